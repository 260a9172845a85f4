// One call of a product on a GPU, with the tiles as its kernel recorded them. In a build without
// CUDA, cli/bench_no_cuda.cc answers instead.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/cuda/cases.h"
#include "cadre/status.h"

namespace cadre::bench {

struct RecordedTile {
  int32_t sm;
  int32_t warpgroup;  ///< 0 or 1; always 0 where both share every tile
  int64_t group;
  int64_t start_ns;  ///< from the first tile's start on
  int64_t end_ns;
};

struct TileRecording {
  std::string device{};
  std::string kernel{};
  int32_t sms = 0;
  std::vector<RecordedTile> tiles{};  ///< by start
};

/// kUnsupported where there is no GPU, in a build without CADRE_CUDA_RECORD, and for a kernel that
/// records nothing. The result is checked before it is recorded.
Status record_tiles(const shapes::Shape& shape, double skew, Pass pass, DType dtype,
                    TileRecording* recording);

}  // namespace cadre::bench
