// select_experts: the router's last step, from logits to experts and weights, and its gradient.
#pragma once

#include "cadre/context.h"
#include "cadre/tensor.h"

namespace cadre {

/// How logits become scores.
enum class ExpertScore : int32_t {
  kSoftmax = 0,  ///< over all experts of a token
  kSigmoid = 1,
};

/// How a group of experts is scored where only some groups may be chosen from.
enum class ExpertGroupScore : int32_t {
  kMax = 0,     ///< its best expert (DeepSeek-V2)
  kTopTwo = 1,  ///< the sum of its best two (DeepSeek-V3)
};

/// What select_experts and its gradient must agree on.
struct ExpertSelection {
  ExpertScore score = ExpertScore::kSoftmax;
  bool normalize = true;  ///< divide by the sum of the chosen scores: weights add up to `scale`
  double scale = 1.0;     ///< factor of all weights
};

/// For each token the top_k experts with the highest score + correction_bias, best first; ties go
/// to the lower index. weights[t, j] = scale * score, divided by the sum of the chosen scores if
/// `normalize` (and where that sum is below about 1e-13, by 1e-20 more, so that scores that all
/// vanish give weights of 0). The bias decides the choice alone. Computed in f32 (f64 where logits
/// are f64). A score that is NaN is chosen last; under softmax one NaN makes every score of its
/// token NaN.
struct SelectExpertsArgs {
  TensorView logits{};           ///< [t, num_experts]
  TensorView correction_bias{};  ///< [num_experts], or not given
  ExpertSelection selection{};
  int64_t num_groups = 1;  ///< groups of neighbours that the experts are cut into
  int64_t top_groups = 1;  ///< experts are chosen from the best `top_groups` groups alone
  ExpertGroupScore group_score = ExpertGroupScore::kTopTwo;
  TensorView expert_ids{};  ///< out: [t, top_k] of i32 or i64
  TensorView weights{};     ///< out: [t, top_k]
  CallOptions options{};
};

CADRE_API Status select_experts(Context& context, const SelectExpertsArgs& args);
CADRE_API Status select_experts_workspace_size(Context& context, const SelectExpertsArgs& args,
                                               size_t* size_bytes);

/// dlogits from dweights, with the experts that were chosen; the choice itself has no gradient.
struct SelectExpertsGradArgs {
  TensorView logits{};  ///< [t, num_experts], as given to select_experts
  ExpertSelection selection{};
  TensorView expert_ids{};  ///< [t, top_k], as select_experts wrote them
  TensorView dweights{};    ///< [t, top_k]
  TensorView dlogits{};     ///< out: [t, num_experts]
  CallOptions options{};
};

CADRE_API Status select_experts_grad(Context& context, const SelectExpertsGradArgs& args);
CADRE_API Status select_experts_grad_workspace_size(Context& context,
                                                    const SelectExpertsGradArgs& args,
                                                    size_t* size_bytes);

}  // namespace cadre
