// What a kernel says of its operands, once for stages, products and epilogue: the element type and
// its K step, how each operand lies in a stage, and how the sums are held.
#pragma once

#include <cstdint>

#include "cuda/ptx/wgmma.cuh"
#include "cuda/sm90/shapes.h"

namespace cadre::sm90 {

// A stage is kTileK of K: operand A as blocks of 64 rows, then operand B, in rows of 128 bytes.
template <typename A, typename B, ptx::Major kMajorA_, ptx::Major kMajorB_, typename Shape>
struct Products : Shape {
  static_assert(sizeof(A) == sizeof(B));
  using ElementA = A;
  using ElementB = B;
  static constexpr bool kFp8 = sizeof(A) == 1;
  static constexpr ptx::Major kMajorA = kMajorA_;
  static constexpr ptx::Major kMajorB = kMajorB_;
  static constexpr int kTileK = kRowBytes / sizeof(A);
  static constexpr int kStepK = 32 / sizeof(A);  // of one wgmma
  static constexpr int kSteps = kTileK / kStepK;
  static constexpr int kRowsA = Shape::kSharers * Shape::kBlocks * kBlockRows;  // of a tile
  static constexpr int kBytesA = kRowsA * kRowBytes;
  static constexpr int kStageBytes = kBytesA + Shape::kWidth * kRowBytes;
};

// A consumer thread's sums: fp32, [block][8-wide group of operand B * 4 + element].
template <typename Traits>
using Accumulators = float[Traits::kBlocks][Traits::kWidth / 2];

// gmm: weights [features, K] or [K, features] as operand A, tokens as operand B.
template <typename Weights, typename Tokens, ptx::Major kWeights, typename Shape>
struct GmmTraits : Products<Weights, Tokens, kWeights, ptx::Major::kK, Shape> {
  static constexpr bool kByRows = false;
  static constexpr int kWidthStep = kTokenStep;  // widths of tiles are multiples of it
  static constexpr int kFeatures = GmmTraits::kRowsA / columns_of(Shape::kActivation);  // of out
  static constexpr int kTokens = Shape::kWidth;
  // The epilogue applies scales of FP8 operands, one for a token and one for a feature.
  static constexpr bool kScaledResults = GmmTraits::kFp8 && Shape::kPromotion != Promotion::kScaled;
};

// Results by rows: operand A along the rows of out, operand B along its columns.
template <typename A, typename B, ptx::Major kMajorA, ptx::Major kMajorB, typename Shape>
struct MatrixTraits : Products<A, B, kMajorA, kMajorB, Shape> {
  static constexpr bool kByRows = true;
  static constexpr int kWidthStep = 64;
  static constexpr int kAtomsA = MatrixTraits::kRowsA / kBlockRows;  // one TMA box each
  static constexpr int kAtomsB = Shape::kWidth / 64;
  // Sums have a scale for their row and one for their column, which are applied at a tile's end.
  static constexpr bool kScaledResults = Shape::kPromotion == Promotion::kSums;
};

// tgmm: both operands are read as they lie; rows are what is summed over.
template <typename T, typename Shape>
using TgmmTraits = MatrixTraits<T, T, ptx::Major::kMN, ptx::Major::kMN, Shape>;

// FP8 is K-major alone.
template <typename A, typename B, typename Shape>
using Fp8MatrixTraits = MatrixTraits<A, B, ptx::Major::kK, ptx::Major::kK, Shape>;

// The bytes of one wgmma's step along K, and from 64 of M or N to the next where that is not the
// rows' own distance.
constexpr int step_bytes(ptx::Major major) { return major == ptx::Major::kK ? 32 : 16 * kRowBytes; }
constexpr uint32_t leading_bytes(ptx::Major major) {
  return major == ptx::Major::kK ? 0 : kBlockBytes;
}

}  // namespace cadre::sm90
