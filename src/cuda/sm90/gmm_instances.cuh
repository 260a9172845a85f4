// How an element type's instantiations are picked; included by gmm_bf16.cu and gmm_f16.cu alone.
#pragma once

#include "cuda/sm90/gmm_instances.h"
#include "cuda/sm90/gmm_kernel.cuh"
#include "cuda/sm90/turn_kernel.cuh"

namespace cadre::sm90 {

template <typename Traits>
GmmInstance instance_of() {
  return {.kernel = &gmm_kernel<Traits>,
          .shared_bytes = sizeof(GmmStorage<Traits>),
          .token_box = Traits::kTokenBox,
          .streams = Traits::kStreams};
}

template <typename Traits>
GmmInstance turn_instance_of() {
  return {.kernel = &gmm_turn_kernel<Traits>,
          .shared_bytes = sizeof(TurnStorage<Traits>),
          .token_box = Traits::kTokenBox};
}

template <typename T, ptx::Major kWeights>
GmmInstance instance_for(const GmmConfig& config) {
  switch (config.shape) {
    case GmmShapeKind::kLarge:
      return instance_of<GmmTraits<T, kWeights, LargeShape>>();
    case GmmShapeKind::kTurn:
      return turn_instance_of<GmmTraits<T, kWeights, TurnShape>>();
    case GmmShapeKind::kTurnWithC:
      return turn_instance_of<GmmTraits<T, kWeights, TurnShapeWithC>>();
    case GmmShapeKind::kNarrow:
      return instance_of<GmmTraits<T, kWeights, NarrowShape>>();
    default:
      return instance_of<GmmTraits<T, kWeights, GeneralShape>>();
  }
}

template <typename T>
GmmInstance instance_for(bool transposed_rhs, const GmmConfig& config) {
  return transposed_rhs ? instance_for<T, ptx::Major::kK>(config)
                        : instance_for<T, ptx::Major::kMN>(config);
}

}  // namespace cadre::sm90
