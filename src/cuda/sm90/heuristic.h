// Which instantiation of the Hopper gmm kernel a problem gets, from what the host knows: never from
// group sizes.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cuda/sm90/shapes.h"

namespace cadre::sm90 {

/// What a call wants of the epilogue.
struct GmmOutput {
  bool is_f32 = false;
  bool has_c = false;
  ActivationForm activation = ActivationForm::kNone;
  ActivationForm gradient_of = ActivationForm::kNone;
};

/// What a call wants of the sums of FP8 operands.
struct GmmSums {
  bool fp8 = false;
  Promotion promotion = Promotion::kNone;
};

struct GmmConfig {
  GmmShapeKind shape = GmmShapeKind::kGeneral;
  int ctas = 0;  ///< persistent CTAs
};

struct GmmExtent {
  int64_t m, n, k, num_groups;
  int64_t average_rows;  ///< of a group; 0: m / num_groups
  GmmOutput output{};
  GmmSums sums{};
};

/// What the host knows of a typical group.
constexpr int64_t rows_of_group(int64_t m, int64_t num_groups, int64_t average_rows) {
  const int64_t groups = std::max<int64_t>(num_groups, 1);
  return average_rows > 0 ? average_rows : (m + groups - 1) / groups;
}

/// Up to so many rows a group a call is bound by reading the weights.
inline constexpr int64_t kFewRows = 48;

/// A kernel without promotion is for sums that may keep fewer bits; one with a promotion gives at
/// least what is wanted, but for the scales.
constexpr bool takes_sums(GmmShapeKind shape, const GmmSums& sums) {
  const ShapeFacts& facts = facts_of(shape);
  if (!sums.fp8) return facts.promotion == Promotion::kNone;
  const bool more = sums.promotion == Promotion::kNone && facts.promotion == Promotion::kSums;
  return facts.takes_fp8 && (facts.promotion == sums.promotion || more);
}

constexpr bool takes_output(GmmShapeKind shape, const GmmOutput& output) {
  const ShapeFacts& facts = facts_of(shape);
  return (!output.is_f32 || facts.writes_f32) && (!output.has_c || facts.reads_c) &&
         output.activation == facts.activation && output.gradient_of == facts.gradient_of;
}

/// One for each multiprocessor, fewer when there can't be that many tiles.
constexpr int gmm_ctas(const GmmExtent& extent, GmmShapeKind shape, int sm_count) {
  const ShapeFacts& facts = facts_of(shape);
  // Each group's last token tile may be short, and the tail is one more group.
  const int64_t token_tiles = extent.m / facts.width + std::min(extent.m, extent.num_groups + 1);
  const int64_t tiles =
      std::max<int64_t>(token_tiles, 1) * ((extent.n + facts.rows_a - 1) / facts.rows_a);
  return static_cast<int>(std::min<int64_t>(tiles, sm_count));
}

constexpr GmmShapeKind activated_shape(ActivationForm form) {
  switch (form) {
    case ActivationForm::kHalves:
      return GmmShapeKind::kHalves;
    case ActivationForm::kPairs:
      return GmmShapeKind::kPairs;
    default:
      return GmmShapeKind::kEach;
  }
}

constexpr GmmShapeKind gradient_shape(ActivationForm form) {
  switch (form) {
    case ActivationForm::kHalves:
      return GmmShapeKind::kGradientHalves;
    case ActivationForm::kPairs:
      return GmmShapeKind::kGradientPairs;
    default:
      return GmmShapeKind::kGradientEach;
  }
}

constexpr GmmConfig choose_gmm_config(const GmmExtent& extent, int sm_count) {
  // Measured on an H200: in turn wins by 3 to 6 % at K = 768 to 2880 and loses up to 3 % at 4096
  // and more (docs/kernels.md).
  constexpr int64_t kShortK = 3072;
  const int64_t rows = rows_of_group(extent.m, extent.num_groups, extent.average_rows);
  GmmConfig config;
  const bool few = rows <= kFewRows;
  if (extent.sums.fp8) {
    if (extent.sums.promotion == Promotion::kScaled) {
      config.shape = few ? GmmShapeKind::kBlocksNarrow : GmmShapeKind::kBlocks;
    } else if (extent.sums.promotion == Promotion::kSums || few) {
      config.shape = few ? GmmShapeKind::kPromotedNarrow : GmmShapeKind::kPromoted;
    } else {
      config.shape = extent.output.has_c ? GmmShapeKind::kTurnWithC : GmmShapeKind::kTurn;
    }
  } else if (extent.output.gradient_of != ActivationForm::kNone) {
    // Whatever the number of rows: the order of a row's dot product is this kernel's own.
    config.shape = gradient_shape(extent.output.gradient_of);
  } else if (extent.output.activation != ActivationForm::kNone) {
    config.shape = activated_shape(extent.output.activation);
  } else if (few) {
    // Few rows: bound by reading the weights. A narrow tile leaves room for eight stages of 16 KB
    // of them in flight.
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

}  // namespace cadre::sm90
