// A dense product through cuBLAS, loaded at run time so that the benchmark starts on a machine that
// has only the driver.
#pragma once

#include <cuda_runtime.h>
#include <dlfcn.h>

#include <string>
#include <vector>

namespace cadre::bench {

class DenseCublas {
 public:
  // From CADRE_CUBLAS, else the loader's search path.
  DenseCublas() {
    std::vector<std::string> names = {"libcublas.so.13", "libcublas.so.12", "libcublas.so"};
    if (const char* given = std::getenv("CADRE_CUBLAS")) names.insert(names.begin(), given);
    void* library = nullptr;
    for (const std::string& name : names) {
      library = library != nullptr ? library : dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    }
    if (library == nullptr) return;
    const auto create = reinterpret_cast<int (*)(void**)>(dlsym(library, "cublasCreate_v2"));
    gemm_ = reinterpret_cast<Gemm>(dlsym(library, "cublasGemmEx"));
    if (create == nullptr || create(&handle_) != 0) gemm_ = nullptr;
  }

  bool available() const { return gemm_ != nullptr; }

  // Row-major c[m, n] = a[m, k] x b, b stored [n, k] or [k, n]; 16-bit operands and result, fp32
  // inside.
  bool product(const void* a, const void* b, void* c, int m, int n, int k, bool transposed_b,
               cudaDataType type) const {
    constexpr int kNone = 0;
    constexpr int kTranspose = 1;
    constexpr int kCompute32 = 68;  // CUBLAS_COMPUTE_32F
    constexpr int kDefault = -1;    // CUBLAS_GEMM_DEFAULT
    const float one = 1;
    const float zero = 0;
    return gemm_(handle_, transposed_b ? kTranspose : kNone, kNone, n, m, k, &one, b, type,
                 transposed_b ? k : n, a, type, k, &zero, c, type, n, kCompute32, kDefault) == 0;
  }

  // Row-major out[k, n] = lhs[m, k]^T x rhs[m, n], likewise.
  bool weight_gradient(const void* lhs, const void* rhs, void* out, int m, int k, int n,
                       cudaDataType type) const {
    constexpr int kNone = 0;
    constexpr int kTranspose = 1;
    constexpr int kCompute32 = 68;  // CUBLAS_COMPUTE_32F
    constexpr int kDefault = -1;    // CUBLAS_GEMM_DEFAULT
    const float one = 1;
    const float zero = 0;
    return gemm_(handle_, kNone, kTranspose, n, k, m, &one, rhs, type, n, lhs, type, k, &zero, out,
                 type, n, kCompute32, kDefault) == 0;
  }

 private:
  using Gemm = int (*)(void*, int, int, int, int, int, const void*, const void*, cudaDataType, int,
                       const void*, cudaDataType, int, const void*, void*, cudaDataType, int, int,
                       int);
  Gemm gemm_ = nullptr;
  void* handle_ = nullptr;
};

}  // namespace cadre::bench
