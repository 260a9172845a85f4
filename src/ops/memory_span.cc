// The bytes a view covers, and whether two views share any.
#include "ops/memory_span.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "ops/checker.h"
#include "plan/grouped_dims.h"

namespace cadre::ops {
namespace {

using plan::dims_of;
using plan::MatrixDims;
using plan::on_device;
using plan::packed_begin;
using plan::packed_elements;
using plan::row_stride_of;

__extension__ using Wide = __int128;

struct Dim {
  int64_t size;
  int64_t stride;
};

/// The span of elements base + sum(i_d * stride_d), in bytes; the last dim is the row's.
bool span_of_dims(const void* data, DType dtype, std::initializer_list<Dim> dims,
                  MemorySpan* span) {
  *span = {};
  for (const Dim& dim : dims) {
    if (dim.size == 0) return true;
  }
  int64_t low = 0;
  int64_t high = 0;
  bool fits = true;
  for (const Dim& dim : dims) {
    int64_t reach = 0;
    fits &= !__builtin_mul_overflow(dim.size - 1, dim.stride, &reach);
    int64_t& bound = reach < 0 ? low : high;
    fits &= !__builtin_add_overflow(bound, reach, &bound);
  }
  const auto size = static_cast<int64_t>(size_of(dtype));
  int64_t extent = 0;  // in elements, then in bytes
  fits &= !__builtin_sub_overflow(high, low, &extent);
  fits &= !__builtin_add_overflow(extent, 1, &extent);
  fits &= !__builtin_mul_overflow(extent, size, &extent);
  if (!fits) return false;
  span->begin = reinterpret_cast<uintptr_t>(data) + static_cast<uintptr_t>(low * size);
  span->end = span->begin + static_cast<uintptr_t>(extent);

  const auto* row = dims.end() - 1;
  if (row->stride != 1 && row->size > 1) return true;
  // Every outer stride must be a positive multiple of the smallest: then rows start at one pitch.
  int64_t pitch = 0;
  for (const Dim* dim = dims.begin(); dim != row; ++dim) {
    if (dim->size <= 1) continue;
    if (dim->stride <= 0) return true;
    const bool whole = pitch == 0 || pitch % dim->stride == 0;
    pitch = whole ? dim->stride : std::gcd(pitch, dim->stride);
  }
  span->width = row->size * size;
  span->pitch = pitch * size;
  if (span->pitch != 0 && span->width > span->pitch) span->pitch = span->width = 0;
  return true;
}

bool collide(int64_t size_a, int64_t stride_a, int64_t size_b, int64_t stride_b) {
  // i * stride_a == j * stride_b has its smallest solution at i = stride_b / g, j = stride_a / g.
  if (size_a > 1 && stride_a == 0) return true;
  if (size_b > 1 && stride_b == 0) return true;
  if (size_a < 2 || size_b < 2) return false;
  const int64_t g = std::gcd(stride_a, stride_b);
  return std::abs(stride_b / g) < size_a && std::abs(stride_a / g) < size_b;
}

Wide floor_div(Wide a, Wide b) { return a / b - ((a % b != 0 && (a < 0) != (b < 0)) ? 1 : 0); }

/// x with a * x == gcd(a, b) modulo b, for b > 0.
Wide bezout(Wide a, Wide b) {
  Wide x = 1;
  Wide next_x = 0;
  while (b != 0) {
    const Wide q = floor_div(a, b);
    a = std::exchange(b, a - q * b);
    x = std::exchange(next_x, x - q * next_x);
  }
  return x;
}

/// Whether i * a.stride + j * b.stride == target for some |i| < a.size and |j| < b.size; both
/// strides positive.
bool reaches(const Dim& a, const Dim& b, Wide target) {
  const int64_t g = std::gcd(a.stride, b.stride);
  if (target % g != 0) return false;
  // All solutions: i = first + u * (b / g), j = (target - i * a) / b. Each bound is an interval of
  // i.
  const Wide step = b.stride / g;
  const Wide first = ((target / g) % step) * (bezout(a.stride, b.stride) % step) % step;
  const Wide reach = static_cast<Wide>(b.size - 1) * b.stride;
  const Wide low = std::max<Wide>(1 - a.size, -floor_div(reach - target, a.stride));
  const Wide high = std::min<Wide>(a.size - 1, floor_div(target + reach, a.stride));
  return first + floor_div(high - first, step) * step >= low;
}

/// Whether elements apart in all three dims meet. Dims that nest (each stride beyond the reach of
/// the smaller ones) never do; others are solved for every distance along the shortest dim.
bool collide_in_three(std::array<Dim, 3> dims) {
  for (Dim& dim : dims) {
    if (dim.size < 2) return false;
    dim.stride = std::abs(dim.stride);
  }
  std::sort(dims.begin(), dims.end(),
            [](const Dim& a, const Dim& b) { return a.stride < b.stride; });
  Wide reach = 0;
  bool nested = true;
  for (const Dim& dim : dims) {
    nested = nested && dim.stride > reach;
    reach += static_cast<Wide>(dim.size - 1) * dim.stride;
  }
  if (nested) return false;
  std::sort(dims.begin(), dims.end(), [](const Dim& a, const Dim& b) { return a.size < b.size; });
  for (int64_t i = 1; i < dims[0].size; ++i) {
    if (reaches(dims[1], dims[2], static_cast<Wide>(i) * dims[0].stride)) return true;
  }
  return false;
}

}  // namespace

bool span_of(const TensorView& view, MemorySpan* span) {
  const auto dim = [&view](size_t i) { return Dim{view.shape[i], view.strides[i]}; };
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
  const Dim row = {tensor.cols.uniform, tensor.col_stride};
  const Dim rows = {tensor.rows.uniform, tensor.row_stride};
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
  // Columns of one wide buffer: the rows of both repeat at one pitch and never meet inside it.
  // A single row (width without pitch) repeats at any pitch.
  const int64_t common = a.pitch == 0 ? b.pitch : a.pitch;
  const bool rows_known = a.width > 0 && b.width > 0 && a.width <= common && b.width <= common;
  if (rows_known && (a.pitch == 0 || b.pitch == 0 || a.pitch == b.pitch)) {
    const auto pitch = static_cast<uintptr_t>(common);
    const uintptr_t start = b.begin >= a.begin ? (b.begin - a.begin) % pitch
                                               : (pitch - (a.begin - b.begin) % pitch) % pitch;
    const bool apart = start >= static_cast<uintptr_t>(a.width) &&
                       start + static_cast<uintptr_t>(b.width) <= pitch;
    if (apart) return false;
  }
  return true;
}

bool overlaps_itself(const int64_t (&dims)[3], const int64_t (&strides)[3]) {
  for (int64_t dim : dims) {
    if (dim == 0) return false;
  }
  return collide(dims[0], strides[0], dims[1], strides[1]) ||
         collide(dims[0], strides[0], dims[2], strides[2]) ||
         collide(dims[1], strides[1], dims[2], strides[2]) ||
         collide_in_three(
             {Dim{dims[0], strides[0]}, Dim{dims[1], strides[1]}, Dim{dims[2], strides[2]}});
}

void check_packed_bounds(Checker& checker, std::string_view argument, const GroupedTensor& tensor) {
  if (!checker.ok() || on_device(tensor.rows) || on_device(tensor.cols) ||
      on_device(tensor.offsets)) {
    return;
  }
  if (tensor.row_stride < 0 || tensor.col_stride < 0) {
    checker.fail(argument, ".row_stride = ", tensor.row_stride,
                 ", .col_stride = ", tensor.col_stride, ", expected 0 or more in a packed buffer");
    return;
  }
  int64_t next = 0;
  for (int64_t i = 0; i < tensor.num_groups; ++i) {
    const MatrixDims dims = dims_of(tensor, i);
    const int64_t begin = packed_begin(tensor, i, next);
    const bool empty = dims.rows == 0 || dims.cols == 0;
    const Wide end = empty ? static_cast<Wide>(begin)
                           : static_cast<Wide>(begin) +
                                 static_cast<Wide>(dims.rows - 1) * row_stride_of(tensor, dims) +
                                 static_cast<Wide>(dims.cols - 1) * tensor.col_stride + 1;
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
