// The bytes a view covers, and whether two views share any.
#include "ops/memory_span.h"

#include <algorithm>
#include <array>

#include "ops/checker.h"
#include "ops/strided_sums.h"
#include "plan/grouped_dims.h"

namespace cadre::ops {
namespace {

using plan::dims_of;
using plan::largest;
using plan::MatrixDims;
using plan::packed_begin;
using plan::packed_elements;
using plan::row_stride_of;

using plan::on_device;

/// The span of elements data + sum(i_d * stride_d).
bool span_of_dims(const void* data, DType dtype, std::initializer_list<MemorySpan::Dim> dims,
                  MemorySpan* span) {
  *span = {};
  for (const MemorySpan::Dim& dim : dims) {
    if (dim.size == 0) return true;
  }
  const auto size = static_cast<int64_t>(size_of(dtype));
  int64_t low = 0;
  int64_t high = size;
  size_t count = 0;
  for (const MemorySpan::Dim& dim : dims) {
    if (dim.size == 1) continue;
    int64_t stride = 0;
    int64_t reach = 0;
    if (__builtin_mul_overflow(dim.stride, size, &stride) ||
        __builtin_mul_overflow(dim.size - 1, stride, &reach)) {
      return false;
    }
    int64_t& bound = reach < 0 ? low : high;
    if (__builtin_add_overflow(bound, reach, &bound)) return false;
    span->dims[count++] = {dim.size, stride};
  }
  int64_t extent = 0;
  if (__builtin_sub_overflow(high, low, &extent)) return false;
  const auto address = reinterpret_cast<uintptr_t>(data);
  span->begin = address + static_cast<uintptr_t>(low);
  span->end = address + static_cast<uintptr_t>(high);
  span->origin = address;
  span->element_bytes = size;
  return true;
}

Wide magnitude(int64_t stride) { return stride < 0 ? -Wide{stride} : Wide{stride}; }

/// Each stride passes what the smaller ones reach: the usual way for elements to lie apart.
bool nest(std::array<MemorySpan::Dim, 3> dims) {
  std::sort(dims.begin(), dims.end(),
            [](const auto& a, const auto& b) { return magnitude(a.stride) < magnitude(b.stride); });
  Wide reach = 0;
  for (const MemorySpan::Dim& dim : dims) {
    if (dim.size == 1) continue;
    if (magnitude(dim.stride) <= reach) return false;
    reach += magnitude(dim.stride) * (dim.size - 1);
  }
  return true;
}

}  // namespace

bool span_of(const TensorView& view, MemorySpan* span) {
  const auto dim = [&view](size_t i) { return MemorySpan::Dim{view.shape[i], view.strides[i]}; };
  switch (view.rank) {
    case 1:
      return span_of_dims(view.data, view.dtype, {dim(0)}, span);
    case 2:
      return span_of_dims(view.data, view.dtype, {dim(0), dim(1)}, span);
    case 3:
      return span_of_dims(view.data, view.dtype, {dim(0), dim(1), dim(2)}, span);
    default:
      *span = {};
      return view.rank <= 0;
  }
}

bool span_of(const GroupedTensor& tensor, MemorySpan* span) {
  const MemorySpan::Dim row = {tensor.cols.uniform, tensor.col_stride};
  const MemorySpan::Dim rows = {tensor.rows.uniform, tensor.row_stride};
  switch (tensor.placement) {
    case Placement::kRows:
      return span_of_dims(tensor.data, tensor.dtype, {rows, row}, span);
    case Placement::kStacked:
      return span_of_dims(tensor.data, tensor.dtype,
                          {{tensor.num_groups, tensor.group_stride}, rows, row}, span);
    case Placement::kPacked:
      return span_of_dims(tensor.data, tensor.dtype, {{tensor.capacity, 1}}, span);
    default:
      *span = {};
      return true;
  }
}

MemorySpans spans_of(const TensorView& view) {
  MemorySpan span;
  if (!view.given() || !span_of(view, &span)) return {};
  return {span};
}

MemorySpans spans_of(const Scales& scales, int64_t num_groups) {
  if (!scales.given()) return {};
  if (scales.pointers == nullptr) return spans_of(scales.values);
  MemorySpans spans;
  if (scales.pointers_device.kind != DeviceKind::kCpu) return spans;
  TensorView values = scales.values;
  for (int64_t i = 0; i < num_groups; ++i) {
    values.data = scales.pointers[i];
    MemorySpan span;
    if (span_of(values, &span)) spans.push_back(span);
  }
  return spans;
}

MemorySpans spans_of(const GroupedTensor& tensor) {
  MemorySpans spans;
  const bool list = tensor.placement == Placement::kList;
  if (!list && tensor.placement != Placement::kPacked) {
    MemorySpan span;
    if (tensor.placement != Placement::kAbsent && span_of(tensor, &span)) spans.push_back(span);
    return spans;
  }
  if (on_device(tensor.rows) || on_device(tensor.cols) || on_device(tensor.offsets) ||
      (list && tensor.pointers_device.kind != DeviceKind::kCpu)) {
    return spans;
  }
  int64_t next = 0;
  for (int64_t i = 0; i < tensor.num_groups; ++i) {
    const MatrixDims dims = dims_of(tensor, i);
    const int64_t begin = packed_begin(tensor, i, next);
    const void* data = list ? tensor.pointers[i]
                            : static_cast<const char*>(tensor.data) +
                                  begin * static_cast<int64_t>(size_of(tensor.dtype));
    MemorySpan span;
    if (span_of_dims(data, tensor.dtype,
                     {{dims.rows, row_stride_of(tensor, dims)}, {dims.cols, tensor.col_stride}},
                     &span)) {
      spans.push_back(span);
    }
    next = begin + packed_elements(tensor, dims);
  }
  return spans;
}

bool overlap(const MemorySpan& a, const MemorySpan& b) {
  if (a.begin >= b.end || b.begin >= a.end || a.begin == a.end || b.begin == b.end) return false;
  // Element i of a begins at most a byte less than its size before element j of b, and ends
  // likewise.
  StridedSums distances;
  for (const MemorySpan::Dim& dim : a.dims) distances.add(dim.stride, dim.size - 1);
  for (const MemorySpan::Dim& dim : b.dims) distances.add(-Wide{dim.stride}, dim.size - 1);
  const Wide origin = Wide{b.origin} - Wide{a.origin};
  return distances.reach(origin - (a.element_bytes - 1), origin + (b.element_bytes - 1));
}

bool same_elements(const TensorView& a, const TensorView& b) {
  if (a.data != b.data || a.dtype != b.dtype || a.rank != b.rank) return false;
  const auto rank = static_cast<ptrdiff_t>(std::max(a.rank, 0));
  return std::equal(a.shape.begin(), a.shape.begin() + rank, b.shape.begin()) &&
         std::equal(a.strides.begin(), a.strides.begin() + rank, b.strides.begin());
}

bool overlaps_itself(const int64_t (&dims)[3], const int64_t (&strides)[3]) {
  for (int64_t dim : dims) {
    if (dim == 0) return false;
  }
  if (nest({MemorySpan::Dim{dims[0], strides[0]}, {dims[1], strides[1]}, {dims[2], strides[2]}})) {
    return false;
  }
  // Two elements that meet differ first in dim i, by one or more, and in the dims behind it
  // somehow.
  for (size_t i = 0; i < 3; ++i) {
    if (dims[i] == 1) continue;
    StridedSums distances;
    distances.add(strides[i], dims[i] - 2);
    Wide target = -Wide{strides[i]};
    for (size_t j = i + 1; j < 3; ++j) {
      distances.add(strides[j], 2 * Wide{dims[j] - 1});
      target += Wide{strides[j]} * (dims[j] - 1);
    }
    if (distances.reach(target, target)) return true;
  }
  return false;
}

void check_elements_apart(Checker& checker, std::string_view output, const GroupedTensor& tensor) {
  const bool stacked = tensor.placement == Placement::kStacked;
  if (!checker.ok() || (tensor.num_groups == 0 && tensor.placement != Placement::kRows)) return;
  const auto check = [&](const MatrixDims& matrix) {
    const int64_t dims[3] = {stacked ? tensor.num_groups : 1, matrix.rows, matrix.cols};
    const int64_t strides[3] = {tensor.group_stride, row_stride_of(tensor, matrix),
                                tensor.col_stride};
    if (!overlaps_itself(dims, strides)) return;
    checker.fail(output, " overlaps itself (strides ", stacked ? text(strides[0], ", ") : "",
                 strides[1], ", ", strides[2], "), expected every element at its own address");
  };
  const bool known = !on_device(tensor.rows) && !on_device(tensor.cols);
  if (tensor.contiguous) return;
  if (!known || (!tensor.rows.varies() && !tensor.cols.varies())) {
    check({largest(tensor.rows), largest(tensor.cols)});
    return;
  }
  for (int64_t i = 0; i < tensor.num_groups && checker.ok(); ++i) check(dims_of(tensor, i));
}

void check_packed_bounds(Checker& checker, std::string_view argument, const GroupedTensor& tensor) {
  if (!checker.ok()) return;
  // Offsets are those of the first elements: everything else must lie behind them.
  if (!tensor.contiguous && (tensor.row_stride < 0 || tensor.col_stride < 0)) {
    checker.fail(argument, ".row_stride = ", tensor.row_stride,
                 ", .col_stride = ", tensor.col_stride, ", expected 0 or more in a packed buffer");
    return;
  }
  if (on_device(tensor.rows) || on_device(tensor.cols) || on_device(tensor.offsets)) return;
  int64_t next = 0;
  for (int64_t i = 0; i < tensor.num_groups; ++i) {
    const MatrixDims dims = dims_of(tensor, i);
    const int64_t begin = packed_begin(tensor, i, next);
    const bool empty = dims.rows == 0 || dims.cols == 0;
    const Wide end = empty ? Wide{begin}
                           : Wide{begin} + Wide{dims.rows - 1} * row_stride_of(tensor, dims) +
                                 Wide{dims.cols - 1} * tensor.col_stride + 1;
    if (end > tensor.capacity) {
      checker.fail(argument, ": group ", i, " ([", dims.rows, ", ", dims.cols, "] at element ",
                   begin, ") ends beyond capacity = ", tensor.capacity);
      return;
    }
    next = static_cast<int64_t>(end);
  }
}

OverlapCheck::OverlapCheck(Checker& checker, std::string_view output, const MemorySpans& out)
    : checker_(checker), output_(output) {
  if (out.size() <= 1) {
    only_ = *out.begin();
    return;
  }
  for (const MemorySpan& span : out) {
    if (span.begin != span.end) sorted_.push_back(span);
  }
  std::sort(sorted_.begin(), sorted_.end(),
            [](const MemorySpan& a, const MemorySpan& b) { return a.begin < b.begin; });
  for (const MemorySpan& span : sorted_) {
    reach_.push_back(reach_.empty() ? span.end : std::max(reach_.back(), span.end));
  }
  for (size_t i = 1; i < sorted_.size(); ++i) {
    if (!meets_before(sorted_[i], i)) continue;
    checker_.fail(output_, ": two groups share memory, expected separate outputs");
    return;
  }
}

bool OverlapCheck::meets_before(const MemorySpan& span, size_t count) const {
  for (size_t i = count; i-- > 0 && reach_[i] > span.begin;) {
    if (overlap(sorted_[i], span)) return true;
  }
  return false;
}

bool OverlapCheck::meets(const MemorySpan& span) const {
  if (sorted_.empty()) return overlap(only_, span);
  const auto behind = std::lower_bound(
      sorted_.begin(), sorted_.end(), span.end,
      [](const MemorySpan& candidate, uintptr_t end) { return candidate.begin < end; });
  return meets_before(span, static_cast<size_t>(behind - sorted_.begin()));
}

void OverlapCheck::input(std::string_view argument, const MemorySpans& spans) {
  for (const MemorySpan& span : spans) {
    if (!meets(span)) continue;
    checker_.fail(output_, " overlaps ", argument, ", expected separate memory");
    return;
  }
}

void check_overlap(Checker& checker, std::string_view output, const MemorySpans& out,
                   std::span<const NamedSpans> inputs) {
  if (!checker.ok()) return;
  OverlapCheck check(checker, output, out);
  for (const NamedSpans& input : inputs) check.input(input.argument, input.spans);
}

}  // namespace cadre::ops
