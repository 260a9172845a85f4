// The instantiations of the kernels for an element type; included by the source files of each
// alone.
#pragma once

#include "cuda/sm90/gmm_kernel.cuh"
#include "cuda/sm90/instances.h"
#include "cuda/sm90/turn_kernel.cuh"

namespace cadre::sm90 {

template <typename Traits>
GmmInstance shared_instance() {
  return {.kernel = &gmm_kernel<Traits>,
          .shared_bytes = sizeof(GmmStorage<Traits>),
          .streams = Traits::kStreams};
}

template <typename Op>
Instance<typename Op::Arguments> turn_instance() {
  return {.kernel = &turn_kernel<Op>,
          .shared_bytes = sizeof(TurnStorage<Op>),
          .activation = Op::Traits::kActivation,
          .gradient_of = Op::Traits::kGradientOf};
}

template <typename T, ptx::Major kWeights, ActivationForm kForm>
GmmInstance activated_instance() {
  return turn_instance<GmmInTurn<GmmTraits<T, T, kWeights, ActivatedShape<kForm>>>>();
}

template <typename T, ptx::Major kWeights>
GmmInstance gmm_instance_of(GmmShapeKind shape) {
  switch (shape) {
    case GmmShapeKind::kLarge:
      return shared_instance<GmmTraits<T, T, kWeights, LargeShape>>();
    case GmmShapeKind::kTurn:
      return turn_instance<GmmInTurn<GmmTraits<T, T, kWeights, TurnShape>>>();
    case GmmShapeKind::kTurnWithC:
      return turn_instance<GmmInTurn<GmmTraits<T, T, kWeights, TurnShapeWithC>>>();
    case GmmShapeKind::kHalves:
      return activated_instance<T, kWeights, ActivationForm::kHalves>();
    case GmmShapeKind::kPairs:
      return activated_instance<T, kWeights, ActivationForm::kPairs>();
    case GmmShapeKind::kEach:
      return activated_instance<T, kWeights, ActivationForm::kEach>();
    case GmmShapeKind::kNarrow:
      return shared_instance<GmmTraits<T, T, kWeights, NarrowShape>>();
    default:
      return shared_instance<GmmTraits<T, T, kWeights, GeneralShape>>();
  }
}

template <typename T>
GmmInstance gmm_instance_of(bool transposed_rhs, GmmShapeKind shape) {
  return transposed_rhs ? gmm_instance_of<T, ptx::Major::kK>(shape)
                        : gmm_instance_of<T, ptx::Major::kMN>(shape);
}

template <typename T, ptx::Major kWeights, ActivationForm kForm>
GmmInstance gradient_instance() {
  return turn_instance<GmmInTurn<GmmTraits<T, T, kWeights, GradientShape<kForm>>>>();
}

template <typename T, ptx::Major kWeights>
GmmInstance gradient_instance_of(GmmShapeKind shape) {
  switch (shape) {
    case GmmShapeKind::kGradientHalves:
      return gradient_instance<T, kWeights, ActivationForm::kHalves>();
    case GmmShapeKind::kGradientPairs:
      return gradient_instance<T, kWeights, ActivationForm::kPairs>();
    default:
      return gradient_instance<T, kWeights, ActivationForm::kEach>();
  }
}

template <typename T>
GmmInstance gradient_instance_of(bool transposed_rhs, GmmShapeKind shape) {
  return transposed_rhs ? gradient_instance_of<T, ptx::Major::kK>(shape)
                        : gradient_instance_of<T, ptx::Major::kMN>(shape);
}

// FP8: operands are K-major alone.
template <typename Weights, typename Tokens, typename Shape>
GmmInstance fp8_instance() {
  return turn_instance<GmmInTurn<GmmTraits<Weights, Tokens, ptx::Major::kK, Shape>>>();
}

template <typename Weights, typename Tokens>
GmmInstance fp8_gmm_instance_of(GmmShapeKind shape) {
  switch (shape) {
    case GmmShapeKind::kTurn:
      return fp8_instance<Weights, Tokens, TurnShape>();
    case GmmShapeKind::kTurnWithC:
      return fp8_instance<Weights, Tokens, TurnShapeWithC>();
    case GmmShapeKind::kPromoted:
      return fp8_instance<Weights, Tokens, PromotedShape<Promotion::kSums>>();
    case GmmShapeKind::kPromotedNarrow:
      return fp8_instance<Weights, Tokens, NarrowPromotedShape<Promotion::kSums>>();
    case GmmShapeKind::kBlocks:
      return fp8_instance<Weights, Tokens, PromotedShape<Promotion::kScaled>>();
    default:
      return fp8_instance<Weights, Tokens, NarrowPromotedShape<Promotion::kScaled>>();
  }
}

template <typename T>
TgmmInstance tgmm_instance_of(bool reads_c) {
  return reads_c ? turn_instance<Tgmm<TgmmTraits<T, TgmmShapeWithC>>>()
                 : turn_instance<Tgmm<TgmmTraits<T, TgmmShape>>>();
}

template <typename T, ptx::Major kMajorA, ptx::Major kMajorB>
GroupedInstance grouped_instance_of(bool reads_c) {
  return reads_c
             ? turn_instance<GroupedGemm<MatrixTraits<T, T, kMajorA, kMajorB, TgmmShapeWithC>>>()
             : turn_instance<GroupedGemm<MatrixTraits<T, T, kMajorA, kMajorB, TgmmShape>>>();
}

template <typename A, typename B, Promotion kForm>
GroupedInstance fp8_grouped_instance() {
  return turn_instance<GroupedGemm<Fp8MatrixTraits<A, B, PromotedShape<kForm>>>>();
}

template <typename A, typename B>
GroupedInstance fp8_grouped_instance_of(GroupedShapeKind shape) {
  switch (shape) {
    case GroupedShapeKind::kBlocks:
      return fp8_grouped_instance<A, B, Promotion::kScaled>();
    case GroupedShapeKind::kColumns:
      return fp8_grouped_instance<A, B, Promotion::kScaledColumns>();
    default:
      return fp8_grouped_instance<A, B, Promotion::kSums>();
  }
}

template <typename T>
GroupedInstance grouped_instance_of(const GroupedOrder& order, bool reads_c) {
  constexpr ptx::Major kK = ptx::Major::kK;
  constexpr ptx::Major kMN = ptx::Major::kMN;
  if (order.a_along_k) {
    return order.b_along_k ? grouped_instance_of<T, kK, kK>(reads_c)
                           : grouped_instance_of<T, kK, kMN>(reads_c);
  }
  return order.b_along_k ? grouped_instance_of<T, kMN, kK>(reads_c)
                         : grouped_instance_of<T, kMN, kMN>(reads_c);
}

}  // namespace cadre::sm90
