// See heuristic.h.
#include "cuda/sm90/heuristic.h"

#include <algorithm>

namespace cadre::sm90 {
namespace {

// Measured on an H200: in turn wins by 3 to 6 % at K = 768 to 2880 and loses up to 3 % at 4096 and
// more (docs/kernels.md).
constexpr int64_t kShortK = 3072;

}  // namespace

int max_tokens(GmmShapeKind shape) {
  switch (shape) {
    case GmmShapeKind::kGeneral:
      return 256;
    case GmmShapeKind::kNarrow:
      return 64;
    default:
      return 192;
  }
}

int tile_features(GmmShapeKind shape) { return shape == GmmShapeKind::kLarge ? 256 : 128; }

int pipeline_stages(GmmShapeKind shape) {
  switch (shape) {
    case GmmShapeKind::kLarge:
      return 3;
    case GmmShapeKind::kTurn:
      return 5;
    case GmmShapeKind::kNarrow:
      return 8;
    default:
      return 4;
  }
}

bool takes_output(GmmShapeKind shape, const GmmOutput& output) {
  switch (shape) {
    case GmmShapeKind::kLarge:
      return !output.is_f32 && !output.has_c;
    case GmmShapeKind::kTurn:
      return !output.has_c;
    default:
      return true;
  }
}

GmmConfig choose_gmm_config(const GmmExtent& extent, int sm_count) {
  const int64_t groups = std::max<int64_t>(extent.num_groups, 1);
  const int64_t rows =
      extent.average_rows > 0 ? extent.average_rows : (extent.m + groups - 1) / groups;
  GmmConfig config;
  // Few rows: bound by reading the weights. A narrow tile leaves room for eight stages of 16 KB of
  // them in flight.
  if (rows <= 48) {
    config.shape = GmmShapeKind::kNarrow;
  } else if (extent.output.has_c || extent.output.is_f32 || extent.k <= kShortK) {
    // What it takes to finish a tile is hidden behind the other warpgroup's products.
    config.shape = extent.output.has_c ? GmmShapeKind::kTurnWithC : GmmShapeKind::kTurn;
  } else if (rows >= 320) {
    // A quarter fewer bytes into the multiprocessor. Around 256 rows the 256 tokens of the other
    // shape fit better: one pass over the weights for half of the groups.
    config.shape = GmmShapeKind::kLarge;
  }
  config.ctas = gmm_ctas(extent, config.shape, sm_count);
  return config;
}

int gmm_ctas(const GmmExtent& extent, GmmShapeKind shape, int sm_count) {
  // Each group's last token tile may be short, and the tail is one more group.
  const int64_t token_tiles =
      extent.m / max_tokens(shape) + std::min(extent.m, extent.num_groups + 1);
  const int64_t features = tile_features(shape);
  const int64_t tiles = std::max<int64_t>(token_tiles, 1) * ((extent.n + features - 1) / features);
  return static_cast<int>(std::min<int64_t>(tiles, sm_count));
}

}  // namespace cadre::sm90
