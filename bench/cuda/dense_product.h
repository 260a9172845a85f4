// A dense product by cuBLAS, opened at run time: the yardstick of the GPU benchmarks. Nothing is
// linked; where cuBLAS is missing, open() says so.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

#include "cadre/dtype.h"

namespace cadre::bench {

/// d [m, n] = op(a) [m, k] @ op(b) [k, n], row-major, bf16 or f16, summed in f32.
struct DenseProduct {
  const void* a;
  const void* b;
  void* d;
  int64_t m, n, k;
  bool transpose_a;  ///< a is stored [k, m]
  bool transpose_b;  ///< b is stored [n, k]
  DType dtype;
};

class DenseCublas {
 public:
  /// Empty when cuBLAS was found (in CADRE_CUBLAS, or by the loader's own search), else the reason.
  std::string open(cudaStream_t stream);
  bool available() const { return gemm_ != nullptr; }
  /// "libcublas.so.13, version 130000"
  const std::string& library() const { return library_; }

  /// Throws when cuBLAS fails.
  void multiply(const DenseProduct& product) const;

 private:
  void* handle_ = nullptr;
  std::string library_;
  void* gemm_ = nullptr;
};

}  // namespace cadre::bench
