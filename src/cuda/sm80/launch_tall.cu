// Weight gradients of 16-bit types on tall tiles.
#include <algorithm>

#include "cuda/sm80/launchers.h"
#include "cuda/sm80/tall_kernel.cuh"

namespace cadre::sm80 {
namespace {

template <typename T>
Status launch(const ProductLaunch& product) {
  const auto blocks = std::clamp<int64_t>(product.useful_blocks, 1, product.launch.sm_count);
  const cuda::GridShape shape{.blocks = static_cast<unsigned>(blocks),
                              .threads = TallShape::kThreads,
                              .shared_bytes = TallShape::kSharedBytes};
  return cuda::launch_kernel(product.launch, product.config.kernel, tall_kernel<T>, shape,
                             product.args);
}

}  // namespace

Status launch_tall(const ProductLaunch& product) {
  return product.args.a_dtype == DType::kBF16 ? launch<__nv_bfloat16>(product)
                                              : launch<__half>(product);
}

}  // namespace cadre::sm80
