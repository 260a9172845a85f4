// Where builds with CADRE_CUDA_RECORD keep which multiprocessor ran which tile when; in all others
// a recorder is empty, and recorder.cuh does nothing.
#pragma once

#include <cstdint>

namespace cadre::sm90 {

// A tile from the moment when its products may begin to that when its results are in shared memory.
struct TileRecord {
  uint64_t start_ns;
  uint64_t end_ns;
  int32_t sm;
  int32_t group;  // tgmm: -1, the group is the one of these rows
  int32_t row;    // gmm: first row within the group; tgmm: first row of both operands
  int32_t rows;
  int32_t column;  // first column of out
  int32_t unused;
};

#ifdef CADRE_RECORD_SCHEDULE

inline constexpr bool kRecordsTiles = true;

// Each consumer warpgroup w of CTA c has a section of its own: 2 * c + w.
struct TileRecorder {
  TileRecord* tiles = nullptr;  // [sections, room]; null: nothing is recorded
  uint32_t* counts = nullptr;   // [sections]: tiles so far, also those for which there was no room
  uint32_t room = 0;            // of a section
};

// What the kernels launched by this process are given.
inline TileRecorder& tile_recorder() {
  static TileRecorder recorder;
  return recorder;
}

#else

inline constexpr bool kRecordsTiles = false;
struct TileRecorder {};
inline TileRecorder tile_recorder() { return {}; }

#endif

}  // namespace cadre::sm90
