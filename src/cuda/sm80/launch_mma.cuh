// Picks the instantiation of the tensor-core kernel for a layout.
#pragma once

#include <algorithm>

#include "cuda/sm80/launchers.h"
#include "cuda/sm80/mma_kernel.cuh"

namespace cadre::sm80 {

template <typename Traits>
Status launch_mma(const ProductLaunch& product) {
  const int64_t resident = int64_t{product.launch.sm_count} * Traits::kBlocksOfSm;
  const cuda::GridShape shape{
      .blocks = static_cast<unsigned>(std::clamp<int64_t>(product.useful_blocks, 1, resident)),
      .threads = Traits::kThreads,
      .shared_bytes = Traits::kSharedBytes};
  return cuda::launch_kernel(product.launch, product.config.kernel, mma_kernel<Traits>, shape,
                             product.args);
}

template <typename Element, typename Shape>
Status launch_mma_layout(const ProductLaunch& product) {
  constexpr ByIndex kRowsOfA = ByIndex::kRowsOfA;
  if (product.args.by_index() == ByIndex::kRowsAlongK) {
    return launch_mma<MmaTraits<Element, false, false, Shape, ByIndex::kRowsAlongK>>(product);
  }
  if (product.args.by_index() == kRowsOfA) {
    return product.layout.b_k_major
               ? launch_mma<MmaTraits<Element, true, true, Shape, kRowsOfA>>(product)
               : launch_mma<MmaTraits<Element, true, false, Shape, kRowsOfA>>(product);
  }
  if (product.layout.a_k_major) {
    return product.layout.b_k_major ? launch_mma<MmaTraits<Element, true, true, Shape>>(product)
                                    : launch_mma<MmaTraits<Element, true, false, Shape>>(product);
  }
  return product.layout.b_k_major ? launch_mma<MmaTraits<Element, false, true, Shape>>(product)
                                  : launch_mma<MmaTraits<Element, false, false, Shape>>(product);
}

template <typename Element>
Status launch_mma_tile(const ProductLaunch& product, MmaTile tile) {
  switch (tile) {
    case MmaTile::kWide:
      return launch_mma_layout<Element, WideShape>(product);
    case MmaTile::kDeep:
      return launch_mma_layout<Element, DeepShape>(product);
    default:
      return launch_mma_layout<Element, SmallShape>(product);
  }
}

}  // namespace cadre::sm80
