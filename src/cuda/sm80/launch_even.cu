// Products of 16-bit types on even tiles.
#include <algorithm>

#include "cuda/sm80/even_kernel.cuh"
#include "cuda/sm80/launchers.h"

namespace cadre::sm80 {
namespace {

template <typename T, bool kAKMajor, bool kBKMajor>
Status launch(const ProductLaunch& product) {
  const auto blocks = std::clamp<int64_t>(product.useful_blocks, 1, product.launch.sm_count);
  const cuda::GridShape shape{.blocks = static_cast<unsigned>(blocks),
                              .threads = EvenShape::kThreads,
                              .shared_bytes = EvenShape::kSharedBytes};
  return cuda::launch_kernel(product.launch, product.config.kernel,
                             even_kernel<T, kAKMajor, kBKMajor>, shape, product.args);
}

template <typename T>
Status launch_layout(const ProductLaunch& product) {
  if (!product.layout.a_k_major) return launch<T, false, false>(product);
  return product.layout.b_k_major ? launch<T, true, true>(product)
                                  : launch<T, true, false>(product);
}

}  // namespace

Status launch_even(const ProductLaunch& product) {
  return product.args.a_dtype == DType::kBF16 ? launch_layout<__nv_bfloat16>(product)
                                              : launch_layout<__half>(product);
}

}  // namespace cadre::sm80
