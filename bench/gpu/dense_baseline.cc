// cuBLAS through dlopen. The few declarations needed are written out, so that no header of it is
// required.
#include "bench/gpu/dense_baseline.h"

#include <dlfcn.h>

#include <cstdlib>

namespace cadre::bench {
namespace {

using Create = int (*)(void**);
using SetStream = int (*)(void*, cudaStream_t);
using Gemm = int (*)(void*, int, int, int, int, int, const void*, const void*, int, int,
                     const void*, int, int, const void*, void*, int, int, int, int);

constexpr int kNoTranspose = 0;
constexpr int kTranspose = 1;
constexpr int kBf16 = 14;       // CUDA_R_16BF
constexpr int kCompute32 = 68;  // CUBLAS_COMPUTE_32F
constexpr int kDefaultAlgorithm = -1;

}  // namespace

std::string DenseBaseline::open() {
  void* library = nullptr;
  const char* named = std::getenv("CADRE_CUBLAS");
  for (const char* name : {named, "libcublas.so.13", "libcublas.so.12", "libcublas.so"}) {
    if (name == nullptr || *name == '\0') continue;
    library = dlopen(name, RTLD_NOW);
    library_ = name;
    if (library != nullptr) break;
  }
  if (library == nullptr) return "no cuBLAS: neither CADRE_CUBLAS nor the loader finds libcublas";
  const auto create = reinterpret_cast<Create>(dlsym(library, "cublasCreate_v2"));
  set_stream_ = dlsym(library, "cublasSetStream_v2");
  void* gemm = dlsym(library, "cublasGemmEx");
  if (create == nullptr || set_stream_ == nullptr || gemm == nullptr) {
    return library_ + " lacks cublasCreate_v2, cublasSetStream_v2 or cublasGemmEx";
  }
  if (create(&handle_) != 0) return "cublasCreate failed";
  gemm_ = gemm;
  return {};
}

bool DenseBaseline::multiply(cudaStream_t stream, const DenseProduct& p) const {
  // Row-major D = A B is column-major D^T = B^T A^T.
  const float alpha = 1;
  const float beta = 0;
  if (reinterpret_cast<SetStream>(set_stream_)(handle_, stream) != 0) return false;
  const auto gemm = reinterpret_cast<Gemm>(gemm_);
  const auto narrow = [](int64_t value) { return static_cast<int>(value); };
  return gemm(handle_, p.transpose_b ? kTranspose : kNoTranspose,
              p.transpose_a ? kTranspose : kNoTranspose, narrow(p.n), narrow(p.m), narrow(p.k),
              &alpha, p.b, kBf16, narrow(p.transpose_b ? p.k : p.n), p.a, kBf16,
              narrow(p.transpose_a ? p.m : p.k), &beta, p.d, kBf16, narrow(p.n), kCompute32,
              kDefaultAlgorithm) == 0;
}

}  // namespace cadre::bench
