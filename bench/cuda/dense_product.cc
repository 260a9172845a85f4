// cuBLAS through dlopen. The few declarations needed are written out, so that no header of it is
// required.
#include "bench/cuda/dense_product.h"

#include <dlfcn.h>

#include <cstdlib>
#include <stdexcept>

#include "core/text.h"

namespace cadre::bench {
namespace {

using Create = int (*)(void**);
using SetStream = int (*)(void*, cudaStream_t);
using GetVersion = int (*)(void*, int*);
using Gemm = int (*)(void*, int, int, int, int, int, const void*, const void*, int, int,
                     const void*, int, int, const void*, void*, int, int, int, int);

constexpr int kNoTranspose = 0;
constexpr int kTranspose = 1;
constexpr int kF16 = 2;         // CUDA_R_16F
constexpr int kBf16 = 14;       // CUDA_R_16BF
constexpr int kCompute32 = 68;  // CUBLAS_COMPUTE_32F
constexpr int kDefaultAlgorithm = -1;

template <typename Function>
Function symbol(void* library, const char* name) {
  return reinterpret_cast<Function>(dlsym(library, name));
}

}  // namespace

std::string DenseCublas::open(cudaStream_t stream) {
  void* library = nullptr;
  const char* named = std::getenv("CADRE_CUBLAS");
  for (const char* name : {named, "libcublas.so.13", "libcublas.so.12", "libcublas.so"}) {
    if (name == nullptr || *name == '\0') continue;
    library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) continue;
    const std::string path = name;
    library_ = path.substr(path.rfind('/') + 1);
    break;
  }
  if (library == nullptr) return "no cuBLAS: neither CADRE_CUBLAS nor the loader finds libcublas";
  const auto create = symbol<Create>(library, "cublasCreate_v2");
  const auto set_stream = symbol<SetStream>(library, "cublasSetStream_v2");
  const auto get_version = symbol<GetVersion>(library, "cublasGetVersion_v2");
  const auto gemm = symbol<void*>(library, "cublasGemmEx");
  if (create == nullptr || set_stream == nullptr || get_version == nullptr || gemm == nullptr) {
    return text("no cuBLAS: ", library_, " lacks one of the functions used here");
  }
  int version = 0;
  if (create(&handle_) != 0 || set_stream(handle_, stream) != 0 ||
      get_version(handle_, &version) != 0) {
    return text("no cuBLAS: ", library_, " doesn't start");
  }
  library_ += text(", version ", version);
  gemm_ = gemm;
  return {};
}

void DenseCublas::multiply(const DenseProduct& p) const {
  // Row-major D = A B is column-major D^T = B^T A^T.
  const float alpha = 1;
  const float beta = 0;
  const int type = p.dtype == DType::kBF16 ? kBf16 : kF16;
  const auto narrow = [](int64_t value) { return static_cast<int>(value); };
  const int error = reinterpret_cast<Gemm>(gemm_)(
      handle_, p.transpose_b ? kTranspose : kNoTranspose, p.transpose_a ? kTranspose : kNoTranspose,
      narrow(p.n), narrow(p.m), narrow(p.k), &alpha, p.b, type, narrow(p.transpose_b ? p.k : p.n),
      p.a, type, narrow(p.transpose_a ? p.m : p.k), &beta, p.d, type, narrow(p.n), kCompute32,
      kDefaultAlgorithm);
  if (error != 0) throw std::runtime_error(text("cublasGemmEx: error ", error));
}

}  // namespace cadre::bench
