// Which instantiation of the Hopper gmm kernel a problem gets, from what the host knows: never from
// group sizes.
#pragma once

#include <cstdint>

namespace cadre::sm90 {

/// The shapes of gmm_storage.cuh.
enum class GmmShapeKind : int {
  kLarge,      ///< 256 features x 192 tokens; 16-bit output without C
  kTurn,       ///< 128 x 192, warpgroups in turn; without C
  kTurnWithC,  ///< the same with C
  kGeneral,    ///< 128 x 256
  kNarrow,     ///< 128 x 64: few rows a group
};

int max_tokens(GmmShapeKind shape);
int tile_features(GmmShapeKind shape);
int pipeline_stages(GmmShapeKind shape);

/// What a call wants of the epilogue.
struct GmmOutput {
  bool is_f32 = false;
  bool has_c = false;
};
bool takes_output(GmmShapeKind shape, const GmmOutput& output);

struct GmmConfig {
  GmmShapeKind shape = GmmShapeKind::kGeneral;
  int ctas = 0;  ///< persistent CTAs
};

struct GmmExtent {
  int64_t m, n, k, num_groups;
  int64_t average_rows;  ///< of a group; 0: m / num_groups
  GmmOutput output{};
};

GmmConfig choose_gmm_config(const GmmExtent& extent, int sm_count);

/// One for each multiprocessor, fewer when there can't be that many tiles.
int gmm_ctas(const GmmExtent& extent, GmmShapeKind shape, int sm_count);

}  // namespace cadre::sm90
