// One matrix for each group from torch tensors: a stack, a list, or gmm's results with the rows of
// each group. The operands of grouped_gemm, which have more forms, are in grouped_gemm.h.
#pragma once

#include "views.h"

namespace cadre_torch {

/// The rows of each local group, as far as the host knows them.
class LocalRows {
 public:
  explicit LocalRows(const Groups& groups) : groups_(groups), first_(groups.offset) {
    known_ = !groups.sizes.is_cuda() && groups.sizes.dim() == 1;
    const OptionalTensor& offset = groups.offset_tensor;
    if (!offset) return;
    known_ = known_ && !offset->is_cuda() && offset->numel() == 1;
    if (known_) first_ = host_integer(offset->data_ptr(), dtype_of(offset->scalar_type()), 0);
  }
  bool known() const { return known_; }
  int64_t first_group() const { return first_; }
  /// 0 for a group that group_sizes doesn't have: the library names that.
  int64_t of(int64_t group) const {
    const int64_t at = first_ + group;
    if (at < 0 || at >= groups_.sizes.size(0)) return 0;
    return groups_.ends && at > 0 ? value(at) - value(at - 1) : value(at);
  }

 private:
  int64_t value(int64_t at) const {
    const Tensor& sizes = groups_.sizes;
    return host_integer(sizes.data_ptr(), dtype_of(sizes.scalar_type()), at * sizes.stride(0));
  }

  const Groups& groups_;
  int64_t first_;
  bool known_;
};

/// One matrix (or vector) for each group: one stacked tensor, or a list of pointers.
class GroupedView {
 public:
  enum class Form { kMatrices, kVectors };

  GroupedView() = default;
  GroupedView(const Tensor& tensor, Form form) { take(tensor, form); }
  /// One tensor of a rank above the single matrix's is a stack; anything else is a list.
  GroupedView(const char* op, const char* argument, const std::vector<Tensor>& tensors, Form form) {
    if (tensors.empty()) return;
    const int64_t rank = form == Form::kMatrices ? 2 : 1;
    if (tensors.size() == 1 && tensors[0].dim() != rank) {
      take(tensors[0], form);
      return;
    }
    const cadre_tensor first = view(tensors[0]);
    pointers_.reserve(tensors.size());
    for (size_t i = 0; i < tensors.size(); ++i) {
      const cadre_tensor each = element(op, argument, tensors, i, rank);
      const bool same = same_kind(each, first) &&
                        std::equal(each.shape, each.shape + 4, first.shape) &&
                        std::equal(each.strides, each.strides + 4, first.strides);
      if (!same)
        differs(op, argument, {i, each}, {0, first}, {"dtype", "device", "shape", "strides"});
      pointers_.push_back(each.data);
    }
    take_list(first);
  }

  /// gmm's results as one matrix for each group. They may have different numbers of rows where the
  /// host knows that each has those of its group; the library is then told the largest.
  static GroupedView results(const char* op, const char* argument,
                             const std::vector<Tensor>& tensors, const LocalRows& rows) {
    GroupedView result;
    if (tensors.empty()) return result;
    size_t most_rows = 0;
    cadre_tensor largest = element(op, argument, tensors, 0, 2);
    for (size_t i = 1; i < tensors.size(); ++i) {
      const cadre_tensor each = element(op, argument, tensors, i, 2);
      if (each.shape[0] <= largest.shape[0]) continue;
      most_rows = i;
      largest = each;
    }
    for (size_t i = 0; i < tensors.size(); ++i) {
      const cadre_tensor each = view(tensors[i]);
      const bool fits = same_kind(each, largest) && each.shape[1] == largest.shape[1] &&
                        (each.shape[0] <= 1 || each.strides[0] == largest.strides[0]) &&
                        (each.shape[1] <= 1 || each.strides[1] == largest.strides[1]);
      if (!fits) {
        differs(op, argument, {i, each}, {most_rows, largest},
                {"dtype", "device", "cols", "strides"});
      }
      if (each.shape[0] != largest.shape[0]) check_rows(op, argument, i, each.shape[0], rows);
      result.pointers_.push_back(each.data);
    }
    result.take_list(largest);
    return result;
  }

  const cadre_grouped_tensor* get() const { return value_ ? &*value_ : nullptr; }
  const cadre_grouped_tensor& operator*() const { return *value_; }

 private:
  static cadre_tensor element(const char* op, const char* argument,
                              const std::vector<Tensor>& tensors, size_t i, int64_t rank) {
    if (tensors[i].dim() != rank) expect_rank(op, element_name(argument, i), tensors[i], rank);
    return view(tensors[i]);
  }

  static void check_rows(const char* op, const char* argument, size_t i, int64_t rows,
                         const LocalRows& groups) {
    const auto group = static_cast<int64_t>(i);
    const std::string name = element_name(argument, i) + ".rows";
    if (!groups.known()) {
      fail(CADRE_INVALID, std::string(op) + ": " + name + " = " + std::to_string(rows) +
                              ", expected one number of rows in all matrices, because the "
                              "host doesn't read sizes on a device");
    }
    if (groups.of(group) > rows) {
      fail(CADRE_INVALID, std::string(op) + ": group_sizes[" +
                              std::to_string(groups.first_group() + group) +
                              "] = " + std::to_string(groups.of(group)) + ", expected at most " +
                              name + " = " + std::to_string(rows));
    }
  }

  void take_list(const cadre_tensor& like) {
    value_ = cadre_grouped_list(pointers_.data(), static_cast<int64_t>(pointers_.size()), &like,
                                {CADRE_CPU, 0});
  }

  void take(const Tensor& tensor, Form form) {
    const cadre_tensor whole = view(tensor);
    value_ =
        form == Form::kVectors ? cadre_grouped_vectors(&whole) : cadre_grouped_from_tensor(&whole);
  }

  std::vector<void*> pointers_;
  std::optional<cadre_grouped_tensor> value_;
};

constexpr auto kMatrices = GroupedView::Form::kMatrices;
constexpr auto kVectors = GroupedView::Form::kVectors;

}  // namespace cadre_torch
