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

/// 187 KB: rows cut evenly into tiles of at most five slices (even_kernel.cuh), 80x64 outputs a
/// warp.
struct EvenShape {
  static constexpr int kSliceRows = 32;  ///< 16 of each of two warps
  static constexpr int kSlices = 5;
  static constexpr int kTileM = kSlices * kSliceRows;
  static constexpr int kTileN = 256;
  static constexpr int kBlockElements = 64;
  static constexpr int kStages = 3;
  static constexpr int kBlocksOfSm = 1;
  static constexpr int kWarps = 8;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kSquareBytes = 64 * 128;  ///< 64 x 64 elements: 64 lines of 128 bytes
  static constexpr int kSquaresA = 3;
  static constexpr int kSquares = kSquaresA + kTileN / 64;
  static constexpr int kStageBytes = kSquares * kSquareBytes;
  static constexpr int kPlaces = 4;  ///< of tiles, in shared memory
  static constexpr int kSharedBytes =
      kStages * kStageBytes + kWarps * kStripBytes + kTileQueueBytes + kPlaces * 16;
};

}  // namespace cadre::sm80
