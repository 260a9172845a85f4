// One training shape in one direction on the GPU, through the public API.
#pragma once

#include <cstdint>
#include <vector>

#include "bench/gpu/dense_baseline.h"
#include "bench/shapes/shapes.h"
#include "cadre/cadre.h"

namespace cadre::bench {

enum class Pass { kForward, kDgrad, kWgrad };

const char* name_of(Pass pass);

/// Throws std::runtime_error with `what` and CUDA's own words.
void require(cudaError_t error, const char* what);

class DeviceBuffer {
 public:
  explicit DeviceBuffer(size_t size_bytes);
  ~DeviceBuffer();
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  void* get() const { return data_; }

 private:
  void* data_ = nullptr;
};

/// One element of a result and where its terms lie, in elements.
struct ProductSample {
  int64_t a, a_step, b, b_step, d, count;
};

/// Weights are [g, n, k], as a linear layer stores them; everything is random bf16.
class Workload {
 public:
  Workload(const shapes::Shape& shape, Pass pass);

  double flops() const;
  /// `kernel` is pinned. Throws when the call fails.
  void run(Context& context, const char* kernel) const;
  /// A dense product of the same m, n, k. Throws when cuBLAS fails.
  void run_dense(const DenseBaseline& dense) const;
  /// Runs on fresh inputs and a poisoned output, and gives the worst error of samples of every
  /// group, in multiples of what rounding allows.
  float worst_error(Context& context, const char* kernel) const;

 private:
  std::vector<ProductSample> draw_samples() const;
  int64_t result_elements() const;
  void fill_inputs() const;

  shapes::Shape shape_;
  Pass pass_;
  std::vector<int64_t> sizes_;
  DeviceBuffer x_, y_, w_, device_sizes_;
};

}  // namespace cadre::bench
