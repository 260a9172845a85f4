// A dense product by cuBLAS, opened at run time: the yardstick of the GPU benchmarks. Nothing is
// linked; where cuBLAS is missing, open() says so.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

namespace cadre::bench {

/// d [m, n] = op(a) [m, k] @ op(b) [k, n], bf16, row-major.
struct DenseProduct {
  const void* a;
  const void* b;
  void* d;
  int64_t m, n, k;
  bool transpose_a;  ///< a is stored [k, m]
  bool transpose_b;  ///< b is stored [n, k]
};

class DenseBaseline {
 public:
  /// Empty when cuBLAS was found (in CADRE_CUBLAS, or by the loader's own search), else the reason.
  std::string open();
  bool available() const { return gemm_ != nullptr; }
  const std::string& library() const { return library_; }

  /// False when cuBLAS fails.
  bool multiply(cudaStream_t stream, const DenseProduct& product) const;

 private:
  void* handle_ = nullptr;
  std::string library_;
  void* set_stream_ = nullptr;
  void* gemm_ = nullptr;
};

}  // namespace cadre::bench
