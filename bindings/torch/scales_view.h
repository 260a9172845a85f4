// The scales of an FP8 operand from torch tensors: one tensor, or one for each matrix of a list.
#pragma once

#include "views.h"

namespace cadre_torch {

/// `mode` is a cadre_scale_mode, 0 for an operand without scales.
class ScalesView {
 public:
  ScalesView(const OptionalTensor& scales, int64_t mode) {
    if (!begin(mode)) return;
    if (scales) value_->values = view(*scales);
  }
  /// Of weights in a list, one tensor of the rank that one matrix's scales have is a list, too.
  ScalesView(const char* op, const char* argument, const std::vector<Tensor>& scales, int64_t mode,
             bool weights_are_list) {
    if (!begin(mode) || scales.empty()) return;
    const bool blocks = mode == CADRE_SCALE_BLOCK_128 || mode == CADRE_SCALE_MX;
    const bool of_one = mode != CADRE_SCALE_TENSOR && scales[0].dim() == (blocks ? 2 : 1);
    value_->values = view(scales[0]);
    if (scales.size() > 1 || (weights_are_list && of_one)) take_list(op, argument, scales);
  }
  ScalesView(const ScalesView&) = delete;
  ScalesView& operator=(const ScalesView&) = delete;

  const cadre_scales* get() const { return value_ ? &*value_ : nullptr; }

 private:
  bool begin(int64_t mode) {
    if (mode == CADRE_SCALE_NONE) return false;
    value_.emplace();
    value_->mode = static_cast<cadre_scale_mode>(mode);
    return true;
  }

  void take_list(const char* op, const char* argument, const std::vector<Tensor>& scales) {
    const cadre_tensor first = value_->values;
    for (size_t i = 0; i < scales.size(); ++i) {
      const cadre_tensor each = view(scales[i]);
      const bool same = same_kind(each, first) && each.rank == first.rank &&
                        std::equal(each.shape, each.shape + 4, first.shape) &&
                        std::equal(each.strides, each.strides + 4, first.strides);
      if (!same)
        differs(op, argument, {i, each}, {0, first}, {"dtype", "device", "shape", "strides"});
      pointers_.push_back(each.data);
    }
    value_->values.data = nullptr;
    value_->pointers = pointers_.data();
    value_->pointers_device = {CADRE_CPU, 0};
  }

  std::vector<void*> pointers_;
  std::optional<cadre_scales> value_;
};

}  // namespace cadre_torch
