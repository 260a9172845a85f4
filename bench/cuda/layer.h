// One expert layer in one direction with its random operands on the GPU: inputs, the samples of a
// result, and the same m, k and n as a dense product.
#pragma once

#include <cstdint>
#include <vector>

#include "bench/cuda/cases.h"
#include "bench/cuda/dense_product.h"
#include "bench/cuda/device_buffer.h"
#include "bench/cuda/kernels.h"
#include "cadre/tensor.h"

namespace cadre::bench {

/// A sampled element, with what the epilogue's operands are indexed by.
struct Place {
  int64_t group;
  int64_t row;     ///< of lhs
  int64_t column;  ///< of the output
};

struct Samples {
  std::vector<Sample> samples{};
  std::vector<Place> places{};
};

class Layer {
 public:
  /// The operands are a function of shape, skew and dtype alone.
  Layer(const shapes::Shape& shape, double skew, Pass pass, DType dtype);

  const shapes::Shape& shape() const { return shape_; }
  Pass pass() const { return pass_; }
  DType dtype() const { return dtype_; }
  int64_t used_groups() const;
  int64_t out_elements() const;
  /// Columns of the output.
  int64_t columns() const;

  TensorView lhs() const;
  /// [g, ...] for gmm, [m, ...] for tgmm
  TensorView rhs() const;
  GroupSizes group_sizes() const;
  /// Of this type, in this memory.
  TensorView out(const DeviceBuffer& memory, DType dtype) const;

  /// Corners and random elements of every group's part of the output.
  Samples draw_samples() const;
  /// The same for the dense product.
  Samples draw_dense_samples() const;
  /// `d` of out_elements() for gmm; for tgmm one matrix.
  DenseProduct dense(void* d) const;
  int64_t dense_elements() const;

 private:
  void add_samples(int64_t group, int64_t begin, int64_t end, Samples* samples) const;

  shapes::Shape shape_;
  Pass pass_;
  DType dtype_;
  std::vector<int64_t> sizes_;
  DeviceBuffer lhs_, rhs_, device_sizes_;
};

}  // namespace cadre::bench
