// The list of instantiations for an element type; included by tgmm_bf16.cu and tgmm_f16.cu alone.
#pragma once

#include "cuda/sm90/tgmm_instances.h"
#include "cuda/sm90/tgmm_kernel.cuh"

namespace cadre::sm90 {

template <typename Traits>
TgmmInstance tgmm_instance(std::string_view name) {
  static_assert(sizeof(TgmmStorage<Traits>) <= 232448);  // what a block may have
  return {.name = name,
          .kernel = &tgmm_kernel<Traits>,
          .shared_bytes = sizeof(TgmmStorage<Traits>),
          .with_c = Traits::kWithC,
          .tile_n = Traits::kTileN,
          .stages = Traits::kStages};
}

// Stages and chunks share 28 x 8 KB. Without C a fifth stage is worth more than further chunks: the
// copy engine reads one while the next is written. With C most chunks are on their way in.
template <typename T>
std::span<const TgmmInstance> tgmm_instances() {
  static const TgmmInstance instances[] = {
      tgmm_instance<TgmmTraits<T, 192, 5, 3, false>>("sm90/tgmm_128x192"),
      tgmm_instance<TgmmTraits<T, 192, 4, 8, true>>("sm90/tgmm_128x192_c"),
  };
  return instances;
}

}  // namespace cadre::sm90
