// The tile shapes of the Hopper kernels and how each divides the shared memory: one place for the
// kernels and for the host that chooses among them (heuristic.h).
#pragma once

#include <array>
#include <cstddef>
#include <string_view>
#include <type_traits>

namespace cadre::sm90 {

inline constexpr int kCtaThreads = 384;  // a warpgroup that feeds and two that multiply
inline constexpr int kConsumers = 2;
inline constexpr int kRowBytes = 128;  // a row of shared memory under the 128-byte swizzle
inline constexpr int kBlockRows = 64;  // operand A of one wgmma: features (gmm), rows of out (tgmm)
inline constexpr int kBlockBytes = kBlockRows * kRowBytes;
inline constexpr int kTokenStep = 16;    // widths of gmm's tiles: operand B of wgmma
inline constexpr int kTokenBox = 64;     // rows of one TMA box of tokens
inline constexpr int kChunkTokens = 64;  // 16-bit output leaves in chunks of 64 x 64
inline constexpr int kChunkBytes = 8192;
inline constexpr int kSharedBytes = 232448;  // what a CTA may have

// Registers a thread of the feeding warpgroup and of the other two: 128 x 40 + 256 x 232 = 64,512,
// all there are. Warps that bring scales of blocks as well need more.
struct Registers {
  static constexpr int kFeedRegisters = 40;
  static constexpr int kMultiplyRegisters = 232;
};
struct RegistersOfPromotion {
  static constexpr int kFeedRegisters = 56;
  static constexpr int kMultiplyRegisters = 224;
};

// What an activation in the epilogue makes its results of.
enum class ActivationForm : int {
  kNone,    // there is none
  kHalves,  // a gate, and the up part half a row of rhs further
  kPairs,   // a gate, and the up part beside it
  kEach,    // one sum
};
/// Columns of rhs for each column of out.
constexpr int columns_of(ActivationForm form) {
  return form == ActivationForm::kHalves || form == ActivationForm::kPairs ? 2 : 1;
}

/// Whether gelu with erf is among a kernel's activations. `rows_of_k`: rhs is [g, n, k]. The one
/// kernel that can't has no registers left for it.
constexpr bool takes_normal(ActivationForm form, bool rows_of_k) {
  return form != ActivationForm::kHalves || rows_of_k;
}

// What becomes of a stage's products. The tensor cores keep some 14 bits of a sum of FP8 products,
// so a sum of all of k loses what f32 would keep.
enum class Promotion : int {
  kNone,           // they are added to those of the stages before, within the tensor cores
  kSums,           // they are added to a total in f32
  kScaled,         // the same, multiplied with the scale of their block first
  kScaledColumns,  // results by rows: the same, where every column of a block has a scale, too
};
/// Whether scales travel with the stages.
constexpr bool scales_stages(Promotion promotion) {
  return promotion == Promotion::kScaled || promotion == Promotion::kScaledColumns;
}

// kSharers: warpgroups that share a tile; kBlocks: 64-row blocks of operand A for each of them;
// kWidth: operand B of the widest tile, tokens (gmm) or columns of out (tgmm); kRingSlots: tiles
// from the one that is claimed to the one stored; kReadsC and kWritesF32: what the epilogue takes.
//
// Both warpgroups work on one tile. kDeferredTokens: those whose results may wait in registers
// beside the next tile's sums; kChunkBuffers: of each warpgroup; kStreams: few rows a group, bound
// by reading the weights, so that the first tile and bursts of stages come first.
struct SharedShape : Registers {
  static constexpr int kSharers = kConsumers;
  static constexpr int kRingSlots = 2;
  static constexpr bool kStreams = false;
  static constexpr ActivationForm kActivation = ActivationForm::kNone;
  static constexpr ActivationForm kGradientOf = ActivationForm::kNone;
  static constexpr Promotion kPromotion = Promotion::kNone;
};
struct LargeShape : SharedShape {  // the fewest bytes into the multiprocessor: 3 x 56 KB
  static constexpr int kBlocks = 2;
  static constexpr int kWidth = 192;
  static constexpr int kDeferredTokens = 0;
  static constexpr int kStages = 3;
  static constexpr int kChunkBuffers = 3;
  static constexpr bool kReadsC = false;
  static constexpr bool kWritesF32 = false;
};
struct GeneralShape : SharedShape {  // 4 x 48 KB
  static constexpr int kBlocks = 1;
  static constexpr int kWidth = 256;
  static constexpr int kDeferredTokens = 256;
  static constexpr int kStages = 4;
  static constexpr int kChunkBuffers = 2;
  static constexpr bool kReadsC = true;
  static constexpr bool kWritesF32 = true;
};
struct NarrowShape : SharedShape {  // 8 x 24 KB
  static constexpr int kBlocks = 1;
  static constexpr int kWidth = 64;
  static constexpr int kDeferredTokens = 64;
  static constexpr int kStages = 8;
  static constexpr int kChunkBuffers = 2;
  static constexpr bool kReadsC = true;
  static constexpr bool kWritesF32 = true;
  static constexpr bool kStreams = true;
};

// Warpgroups in turn: each owns every second tile and finishes it while the other one multiplies.
// Stages of 40 KB and kChunks chunks share 27 or 28 x 8 KB. Without C a fifth stage is worth more
// than further chunks: the copy engine reads one while the next is written. With C most chunks are
// on their way in. kInputs: tiles whose factors are there.
struct TurnShape : Registers {
  static constexpr int kSharers = 1;
  static constexpr bool kStreams = false;
  static constexpr ActivationForm kActivation = ActivationForm::kNone;
  static constexpr ActivationForm kGradientOf = ActivationForm::kNone;
  static constexpr Promotion kPromotion = Promotion::kNone;
  static constexpr int kBlocks = 2;
  static constexpr int kWidth = 192;
  static constexpr int kRingSlots = 4;
  static constexpr int kStages = 5;
  static constexpr int kChunks = 3;
  static constexpr int kInputs = 1;
  static constexpr bool kReadsC = false;
  static constexpr bool kWritesF32 = true;
};
struct TurnShapeWithC : TurnShape {
  static constexpr int kStages = 4;
  static constexpr int kChunks = 7;
  static constexpr int kInputs = 2;  // so that the next tile's C doesn't wait for this one's end
  static constexpr bool kReadsC = true;
};
// With an activation. kHalves: block 0 of a tile is 64 gates, block 1 their up parts, so that one
// thread has both. kPairs: they are neighbouring rows of a block, in lanes four apart.
template <ActivationForm kForm>
struct ActivatedShape : TurnShape {
  static constexpr ActivationForm kActivation = kForm;
  static constexpr bool kWritesF32 = false;
};
// With the gradient of an activation: its input comes in as C does, and leaves as its gradient.
template <ActivationForm kForm>
struct GradientShape : TurnShapeWithC {
  static constexpr ActivationForm kGradientOf = kForm;
  static constexpr bool kWritesF32 = false;
};
// Both warpgroups work on one tile, a block each, and hide the additions of sums behind products of
// their own. 4 x 40 KB of stages, and chunks for all that a tile holds in 16 bits.
template <Promotion kForm>
struct PromotedShape : TurnShapeWithC {
  static constexpr int kSharers = kConsumers;
  static constexpr int kBlocks = 1;
  static constexpr Promotion kPromotion = kForm;
  static constexpr int kFeedRegisters = RegistersOfPromotion::kFeedRegisters;
  static constexpr int kMultiplyRegisters = RegistersOfPromotion::kMultiplyRegisters;
  static constexpr int kInputs = 1;
};
template <Promotion kForm>
struct NarrowPromotedShape : PromotedShape<kForm> {  // few rows a group: 7 x 24 KB
  static constexpr int kWidth = 64;
  static constexpr int kStages = 7;
  static constexpr int kChunks = 6;
  static constexpr int kInputs = 2;
};

struct TgmmShape : TurnShape {
  static constexpr int kRingSlots = 3;
};
struct TgmmShapeWithC : TgmmShape {
  static constexpr int kStages = 4;
  static constexpr int kChunks = 8;
  static constexpr bool kReadsC = true;
};

/// What the host must know of a shape.
struct ShapeFacts {
  std::string_view name;  ///< of the kernel: rows x columns of a tile of out
  int rows_a;             ///< of a tile of out: with a gate half of operand A's
  int width;
  int stages;
  bool reads_c;
  bool writes_f32;
  ActivationForm activation;
  ActivationForm gradient_of;  ///< an activation whose gradient it makes
  Promotion promotion;
  bool takes_fp8;  ///< and then, with a promotion, nothing else
};
/// The kernel whose warpgroups take turns, without an activation.
template <typename Shape>
inline constexpr bool kTakesFp8 =
    std::is_base_of_v<TurnShape, Shape>&& Shape::kActivation ==
    ActivationForm::kNone&& Shape::kGradientOf == ActivationForm::kNone;
template <typename Shape>
constexpr ShapeFacts facts_of(std::string_view name) {
  return {.name = name,
          .rows_a = Shape::kSharers * Shape::kBlocks * kBlockRows / columns_of(Shape::kActivation),
          .width = Shape::kWidth,
          .stages = Shape::kStages,
          .reads_c = Shape::kReadsC,
          .writes_f32 = Shape::kWritesF32,
          .activation = Shape::kActivation,
          .gradient_of = Shape::kGradientOf,
          .promotion = Shape::kPromotion,
          .takes_fp8 = kTakesFp8<Shape>};
}

enum class GmmShapeKind : int {
  kLarge,
  kTurn,
  kTurnWithC,
  kGeneral,
  kNarrow,
  kHalves,
  kPairs,
  kEach,
  kPromoted,
  kPromotedNarrow,
  kBlocks,
  kBlocksNarrow,
  kGradientHalves,
  kGradientPairs,
  kGradientEach
};

/// By GmmShapeKind.
inline constexpr std::array<ShapeFacts, 15> kGmmShapes = {
    facts_of<LargeShape>("sm90/gmm_192x256"),
    facts_of<TurnShape>("sm90/gmm_192x128"),
    facts_of<TurnShapeWithC>("sm90/gmm_192x128_c"),
    facts_of<GeneralShape>("sm90/gmm_256x128"),
    facts_of<NarrowShape>("sm90/gmm_64x128"),
    facts_of<ActivatedShape<ActivationForm::kHalves>>("sm90/gmm_192x64_gated"),
    facts_of<ActivatedShape<ActivationForm::kPairs>>("sm90/gmm_192x64_interleaved"),
    facts_of<ActivatedShape<ActivationForm::kEach>>("sm90/gmm_192x128_activated"),
    facts_of<PromotedShape<Promotion::kSums>>("sm90/gmm_192x128_promoted"),
    facts_of<NarrowPromotedShape<Promotion::kSums>>("sm90/gmm_64x128_promoted"),
    facts_of<PromotedShape<Promotion::kScaled>>("sm90/gmm_192x128_blocks"),
    facts_of<NarrowPromotedShape<Promotion::kScaled>>("sm90/gmm_64x128_blocks"),
    facts_of<GradientShape<ActivationForm::kHalves>>("sm90/gmm_192x128_d_gated"),
    facts_of<GradientShape<ActivationForm::kPairs>>("sm90/gmm_192x128_d_interleaved"),
    facts_of<GradientShape<ActivationForm::kEach>>("sm90/gmm_192x128_d_activated")};

constexpr const ShapeFacts& facts_of(GmmShapeKind kind) {
  return kGmmShapes[static_cast<size_t>(kind)];
}

/// Without C and with it.
inline constexpr std::array<ShapeFacts, 2> kTgmmShapes = {
    facts_of<TgmmShape>("sm90/tgmm_128x192"), facts_of<TgmmShapeWithC>("sm90/tgmm_128x192_c")};

enum class GroupedShapeKind : int { kPlain, kWithC, kPromoted, kBlocks, kColumns };

/// By GroupedShapeKind. grouped_gemm has tgmm's shapes over operands of either order, without C and
/// with it; the others multiply FP8, for tgmm as well.
inline constexpr std::array<ShapeFacts, 5> kGroupedShapes = {
    facts_of<TgmmShape>("sm90/grouped_128x192"), facts_of<TgmmShapeWithC>("sm90/grouped_128x192_c"),
    facts_of<PromotedShape<Promotion::kSums>>("sm90/grouped_128x192_promoted"),
    facts_of<PromotedShape<Promotion::kScaled>>("sm90/grouped_128x192_blocks"),
    facts_of<PromotedShape<Promotion::kScaledColumns>>("sm90/grouped_128x192_columns")};

constexpr const ShapeFacts& facts_of(GroupedShapeKind kind) {
  return kGroupedShapes[static_cast<size_t>(kind)];
}

}  // namespace cadre::sm90
