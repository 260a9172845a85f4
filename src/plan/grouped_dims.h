// Dims and positions of the matrices of a GroupedTensor whose per-group values lie on the host.
#pragma once

#include <cstdint>

#include "cadre/tensor.h"

namespace cadre::plan {

struct MatrixDims {
  int64_t rows;
  int64_t cols;

  friend bool operator==(const MatrixDims&, const MatrixDims&) = default;
};

/// True when values of the extent lie in device memory, where the host never reads.
bool on_device(const Extent& extent);

int64_t value_of(const Extent& extent, int64_t group);

/// The largest value an extent can have: on a device its bound.
int64_t largest(const Extent& extent);

MatrixDims dims_of(const GroupedTensor& tensor, int64_t group);

/// Row stride of a matrix: the tensor's, or the matrix's cols where the tensor is contiguous.
int64_t row_stride_of(const GroupedTensor& tensor, const MatrixDims& dims);

/// Element where group i of a packed tensor starts: its explicit offset, or `next`.
int64_t packed_begin(const GroupedTensor& tensor, int64_t group, int64_t next);

/// Elements from the first to the last of a packed matrix.
int64_t packed_elements(const GroupedTensor& tensor, const MatrixDims& dims);

}  // namespace cadre::plan
