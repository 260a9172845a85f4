// Tile shapes of the tensor-core kernel, for the host's choice and the kernel alike.
#pragma once

namespace cadre::sm80 {

/// The epilogue's strip of shared memory of one warp: eight rows of 64 words, 72 words apart, so
/// that four rows of eight-byte writes cover all banks.
inline constexpr int kStripRows = 8;
inline constexpr int kStripPitch = 72;
inline constexpr int kStripBytes = kStripRows * kStripPitch * 4;

/// Room for the tiles that were found ahead (tile_queue.cuh).
inline constexpr int kTileQueueBytes = 1024;

/// Tile, depth of a block of K in bytes, stages, and blocks that share a multiprocessor.
template <int kTileN_, int kBlockBytes_, int kStages_, int kBlocksOfSm_>
struct MmaShape {
  static constexpr int kTileM = 128;
  static constexpr int kTileN = kTileN_;
  static constexpr int kBlockBytes = kBlockBytes_;
  static constexpr int kStages = kStages_;
  static constexpr int kBlocksOfSm = kBlocksOfSm_;
  static constexpr int kWarps = (kTileM / 64) * (kTileN / 64);
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kStageBytes = (kTileM + kTileN) * kBlockBytes;
  static constexpr int kSharedBytes =
      kStages * kStageBytes + kWarps * kStripBytes + kTileQueueBytes;
};

/// 214 KB, one block in a multiprocessor of 228 KB (Hopper): the fewest bytes from the second-level
/// cache and into shared memory for each output.
using WideShape = MmaShape<256, 128, 4, 1>;
/// 106 KB, two blocks in such a multiprocessor: one computes while the other stores its results.
using DeepShape = MmaShape<128, 128, 3, 2>;
/// 74 KB: fits every GPU from compute capability 8.0, and twice in a multiprocessor of an A100.
using SmallShape = MmaShape<128, 64, 4, 2>;

/// 187 KB: the weight gradient's own (tall_kernel.cuh). Operands lie in panels of 64 elements.
struct TallShape {
  static constexpr int kTileM = 192;
  static constexpr int kTileN = 256;
  static constexpr int kBlockElements = 64;
  static constexpr int kStages = 3;
  static constexpr int kBlocksOfSm = 1;
  static constexpr int kSlices = 6;  ///< of 16 rows, of each of two warps
  static constexpr int kWarps = 8;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kPanelElements = 64;
  static constexpr int kPanelBytes = kBlockElements * kPanelElements * 2;
  static constexpr int kPanelsA = kTileM / kPanelElements;
  static constexpr int kPanels = kPanelsA + kTileN / kPanelElements;
  static constexpr int kStageBytes = kPanels * kPanelBytes;
  static constexpr int kSharedBytes =
      kStages * kStageBytes + kWarps * kStripBytes + kTileQueueBytes;
};

}  // namespace cadre::sm80
