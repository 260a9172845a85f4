// Times calls on a stream with CUDA events, in the conditions of conditions.h.
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

  /// Mixed: every call once in each of `repeats` rounds, after rounds that don't count (warm_up.h),
  /// each round in an order of its own: what ran before a call says how much power the card has for
  /// it. The L2 is emptied before each call.
  std::vector<Times> in_turn(const std::vector<std::function<void()>>& calls, int repeats,
                             Flush flush) const;

  /// The first kRestedCalls calls after a rest, with an emptied L2 before each.
  Times rested(const std::function<void()>& call, Flush flush) const;

  /// A loop of this call alone. The times are those of a call in each batch, and `*calls` is how
  /// many calls they are made of.
  Times sustained(const std::function<void()>& call, int* calls) const;

  /// Bytes a second that a copy reads and writes.
  double copy_rate() const;

 private:
  void empty_l2(Flush flush, int value) const;
  double seconds(const std::function<void()>& call) const;

  DeviceBuffer flushed_;  ///< written
  DeviceBuffer other_;    ///< read
  cudaStream_t stream_ = nullptr;
  cudaEvent_t start_ = nullptr;
  cudaEvent_t stop_ = nullptr;
};

}  // namespace cadre::bench
