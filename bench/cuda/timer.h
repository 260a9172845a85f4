// Times calls on a stream with CUDA events, in turn, with an emptied L2 before each.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <vector>

#include "bench/cuda/cases.h"
#include "bench/cuda/device_buffer.h"
#include "bench/cuda/measurement.h"

namespace cadre::bench {

class Timer {
 public:
  Timer();
  ~Timer();
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  cudaStream_t stream() const { return stream_; }

  /// Every call once in each of `repeats` rounds, after rounds that don't count (warm_up.h), each
  /// round in an order of its own: what ran before a call says how much power the card has for it.
  std::vector<Times> in_turn(const std::vector<std::function<void()>>& calls, int repeats,
                             Flush flush) const;

  /// Bytes a second that a copy reads and writes.
  double copy_rate() const;

 private:
  double seconds(const std::function<void()>& call) const;

  DeviceBuffer flushed_;  ///< written
  DeviceBuffer other_;    ///< read
  cudaStream_t stream_ = nullptr;
  cudaEvent_t start_ = nullptr;
  cudaEvent_t stop_ = nullptr;
};

}  // namespace cadre::bench
