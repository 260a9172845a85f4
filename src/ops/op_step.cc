// From a value to the op's function.
#include "ops/op_step.h"

#include <algorithm>

#include "plan/row_call.h"

namespace cadre::ops {

Status run(Context& context, const OpStep& step) {
  return std::visit(
      plan::EachOf{[&](const PermuteArgs& args) { return permute(context, args); },
                   [&](const CombineArgs& args) { return combine(context, args); },
                   [&](const CombineGradArgs& args) { return combine_grad(context, args); },
                   [&](const GmmArgs& args) { return gmm(context, args); },
                   [&](const GmmGradArgs& args) { return gmm_grad(context, args); },
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
          [&](const GmmArgs& args) { return gmm_workspace_size(context, args, bytes); },
          [&](const GmmGradArgs& args) { return gmm_grad_workspace_size(context, args, bytes); },
          [&](const TgmmArgs& args) { return tgmm_workspace_size(context, args, bytes); },
          [&](const BiasGradArgs& args) { return bias_grad_workspace_size(context, args, bytes); }},
      step.call);
}

TensorView Scratch::matrix(DType dtype, int64_t rows, int64_t cols) {
  const size_t bytes = align_scratch(static_cast<size_t>(rows * cols) * size_of(dtype));
  size_t begin = 0;
  auto next = taken_.begin();
  for (; next != taken_.end() && next->begin - begin < bytes; ++next) begin = next->end;
  if (bytes > capacity_ - begin) return {};
  // An empty matrix takes no room.
  if (bytes > 0) taken_.insert(next, {begin, begin + bytes});
  most_ = std::max(most_, begin + bytes);
  return TensorView::contiguous(start_ + begin, dtype, {rows, cols}, device_);
}

bool Scratch::give_back(const TensorView& matrix) {
  if (matrix.shape[0] == 0 || matrix.shape[1] == 0) return false;  // it has no room
  const size_t begin =
      reinterpret_cast<uintptr_t>(matrix.data) - reinterpret_cast<uintptr_t>(start_);
  const auto place = std::find_if(taken_.begin(), taken_.end(),
                                  [&](const Span& span) { return span.begin == begin; });
  if (place == taken_.end()) return false;
  taken_.erase(place);
  return true;
}

}  // namespace cadre::ops
