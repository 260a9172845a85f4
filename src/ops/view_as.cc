// Views under another shape.
#include "ops/view_as.h"

#include <algorithm>
#include <vector>

#include "core/text.h"
#include "plan/grouped_dims.h"

namespace cadre::ops {
namespace {

/// Dims that follow each other without a gap, merged into one; dims of size 1 dropped.
struct Run {
  int64_t size;
  int64_t stride;  ///< of its innermost element
};

std::vector<Run> runs_of(const TensorView& tensor) {
  std::vector<Run> runs;
  for (int32_t i = 0; i < tensor.rank; ++i) {
    const int64_t size = tensor.shape[static_cast<size_t>(i)];
    const int64_t stride = tensor.strides[static_cast<size_t>(i)];
    if (size == 1) continue;
    if (!runs.empty() && runs.back().stride == size * stride) {
      runs.back() = {runs.back().size * size, stride};
    } else {
      runs.push_back({size, stride});
    }
  }
  return runs;
}

std::string join(const int64_t* values, int32_t count) {
  std::string list = "[";
  for (int32_t i = 0; i < count; ++i) list += text(i == 0 ? "" : ", ", values[i]);
  return list + "]";
}

}  // namespace

bool view_as(const TensorView& tensor, const std::array<int64_t, 3>& shape, TensorView* view) {
  if (tensor.rank < 0 || tensor.rank > kMaxRank) return false;
  int64_t elements = 1;
  for (int32_t i = 0; i < tensor.rank; ++i) elements *= tensor.shape[static_cast<size_t>(i)];
  if (elements != shape[0] * shape[1] * shape[2]) return false;

  *view = tensor;
  view->rank = 3;
  view->shape = {shape[0], shape[1], shape[2]};
  view->strides = {shape[1] * shape[2], shape[2], 1};
  if (elements == 0) return true;
  // From the inside: each new dim must be cut from the run that is left.
  std::vector<Run> runs = runs_of(tensor);
  for (size_t dim = 3; dim-- > 0;) {
    if (shape[dim] == 1) continue;
    if (runs.empty() || runs.back().size % shape[dim] != 0) return false;
    Run& run = runs.back();
    view->strides[dim] = run.stride;
    run = {run.size / shape[dim], run.stride * shape[dim]};
    if (run.size == 1) runs.pop_back();
  }
  return runs.empty();
}

std::string shape_and_strides(const TensorView& tensor) {
  const int32_t rank = std::clamp(tensor.rank, 0, kMaxRank);
  return text(join(tensor.shape.data(), rank), " with strides ", join(tensor.strides.data(), rank));
}

std::string shape_and_strides(const GroupedTensor& tensor) {
  const int64_t shape[] = {tensor.rows.uniform, tensor.cols.uniform};
  const int64_t strides[] = {plan::row_stride_of(tensor, {shape[0], shape[1]}), tensor.col_stride};
  return text(tensor.placement == Placement::kList ? "a list of " : "", join(shape, 2),
              " with strides ", join(strides, 2));
}

}  // namespace cadre::ops
