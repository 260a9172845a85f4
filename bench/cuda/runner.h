// Measures groups of cases on the GPU. In a build without CUDA, cli/bench_no_cuda.cc answers
// instead.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/cuda/cases.h"
#include "bench/cuda/measurement.h"
#include "bench/trace.h"
#include "cadre/status.h"

namespace cadre::bench {

/// A call and the dense products that are its yardstick.
struct TimedCall {
  struct Dense {
    int64_t m, n, k;
  };
  std::function<void()> call;
  std::vector<Dense> dense{};
  DType dtype = DType::kBF16;  ///< of these
  std::vector<Condition> conditions{};
  int repeats = 0;  ///< mixed
};

class CudaRunner {
 public:
  /// kUnsupported where there is no CUDA in the build or no GPU here, with the reason.
  static Status make(std::unique_ptr<CudaRunner>* runner);
  virtual ~CudaRunner() = default;

  /// "libcublas.so.13, version 130000", or why there are no dense products.
  virtual std::string dense_library() const = 0;
  virtual bool has_dense() const = 0;
  /// What the driver supports: 13000 is CUDA 13.0.
  virtual int driver_version() const = 0;
  /// Bytes a second that a copy reads and writes.
  virtual double copy_rate() const = 0;

  /// A measurement for each case of the group. Cases whose check fails are timed all the same.
  /// `repeats` is for the mixed condition; the others have their own numbers of calls.
  virtual Status measure(const CaseGroup& group, int repeats,
                         std::vector<Measurement>* measurements) = 0;

  /// The stream of all calls, a cudaStream_t.
  virtual void* stream() const = 0;
  /// Times a call of the caller's in each condition; mixed is in turn with its dense products, if
  /// there are any: one after the other, each of these rows, columns and terms.
  virtual Status time_call(const TimedCall& timed, std::vector<Timing>* timings) = 0;

  /// Spans of what measure() times, a track for each condition; null: none.
  virtual void trace_to(Trace* trace) = 0;

  /// What a call through the C API costs the host, by op.
  virtual Status measure_host_cost(std::vector<HostCost>* costs) = 0;
};

}  // namespace cadre::bench
