// From a value to the op's function.
#include "ops/op_step.h"

#include "plan/row_call.h"

namespace cadre::ops {

Status run(Context& context, const OpStep& step) {
  return std::visit(
      plan::EachOf{[&](const PermuteArgs& args) { return permute(context, args); },
                   [&](const CombineArgs& args) { return combine(context, args); },
                   [&](const CombineGradArgs& args) { return combine_grad(context, args); },
                   [&](const ActivateGradArgs& args) { return activate_grad(context, args); },
                   [&](const GmmArgs& args) { return gmm(context, args); },
                   [&](const TgmmArgs& args) { return tgmm(context, args); },
                   [&](const BiasGradArgs& args) { return bias_grad(context, args); }},
      step.call);
}

Status workspace_size(Context& context, const OpStep& step, size_t* bytes) {
  return std::visit(
      plan::EachOf{
          [&](const PermuteArgs& args) { return permute_workspace_size(context, args, bytes); },
          [&](const CombineArgs& args) { return combine_workspace_size(context, args, bytes); },
          [&](const CombineGradArgs& args) {
            return combine_grad_workspace_size(context, args, bytes);
          },
          [&](const ActivateGradArgs& args) {
            return activate_grad_workspace_size(context, args, bytes);
          },
          [&](const GmmArgs& args) { return gmm_workspace_size(context, args, bytes); },
          [&](const TgmmArgs& args) { return tgmm_workspace_size(context, args, bytes); },
          [&](const BiasGradArgs& args) { return bias_grad_workspace_size(context, args, bytes); }},
      step.call);
}

}  // namespace cadre::ops
