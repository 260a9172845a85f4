// Sums of parts that another kernel has left for every row, in their order.
#include "cuda/ptx/pdl.cuh"
#include "cuda/rows/launchers.h"

namespace cadre::rows {
namespace {

constexpr int kThreads = 128;
constexpr int kAhead = 16;  // parts on their way at once

struct SumArguments {
  const float* parts;  // [count][m]
  int64_t count;
  int64_t m;
  float* out;
  int64_t stride;
};

__global__ void __launch_bounds__(kThreads)
    sum_parts_kernel(const __grid_constant__ SumArguments args) {
  ptx::follow_grid();
  for (int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x; row < args.m;
       row += int64_t{gridDim.x} * kThreads) {
    float sum = 0.0f;
    for (int64_t first = 0; first < args.count; first += kAhead) {
      float parts[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        parts[i] = first + i < args.count ? args.parts[(first + i) * args.m + row] : 0.0f;
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) sum = __fadd_rn(sum, parts[i]);
    }
    args.out[row * args.stride] = sum;
  }
}

}  // namespace

Status launch_sum_parts(const cuda::Launch& launch, const float* parts, int64_t count,
                        const TensorView& out) {
  const SumArguments args{.parts = parts,
                          .count = count,
                          .m = out.shape[0],
                          .out = static_cast<float*>(out.data),
                          .stride = out.strides[0]};
  const int64_t blocks = (args.m + kThreads - 1) / kThreads;
  return cuda::launch_kernel(launch, "sm80/sum parts", sum_parts_kernel,
                             {.blocks = static_cast<unsigned>(blocks < 65535 ? blocks : 65535),
                              .threads = kThreads,
                              .after_prologue = true},
                             args);
}

}  // namespace cadre::rows
