// The launch of an instance of the general kernel.
#pragma once

#include <algorithm>

#include "cuda/sm80/launchers.h"
#include "cuda/sm80/simt_kernel.cuh"

namespace cadre::sm80 {

template <typename Traits, template <typename> typename Math, typename Sources>
Status launch_simt_from(const ProductLaunch& product) {
  const int64_t resident = int64_t{product.launch.sm_count} * 2;
  const cuda::GridShape shape{
      .blocks = static_cast<unsigned>(std::clamp<int64_t>(product.useful_blocks, 1, resident)),
      .threads = Traits::kThreads};
  return cuda::launch_kernel(product.launch, product.config.kernel,
                             simt_kernel<Traits, Math, Sources>, shape, product.args);
}

template <typename Traits, template <typename> typename Math>
Status launch_simt(const ProductLaunch& product) {
  switch (product.args.by_index()) {
    case ByIndex::kRowsOfA:
      return launch_simt_from<Traits, Math, IndexedSources<ByIndex::kRowsOfA>>(product);
    case ByIndex::kRowsAlongK:
      return launch_simt_from<Traits, Math, IndexedSources<ByIndex::kRowsAlongK>>(product);
    default:
      return launch_simt_from<Traits, Math, PlainSources>(product);
  }
}

}  // namespace cadre::sm80
