// Checks of single arguments.
#include "ops/checker.h"

#include <algorithm>

#include "ops/memory_span.h"
#include "plan/group_offsets.h"
#include "plan/grouped_dims.h"

namespace cadre::ops {
namespace {

constexpr std::string_view kPlacementNames[] = {"a tensor of another rank", "rows of one tensor",
                                                "one stacked tensor", "a list of pointers",
                                                "a packed buffer"};

std::string_view placement_name(Placement placement) {
  const auto index = static_cast<size_t>(placement);
  return index < std::size(kPlacementNames) ? kPlacementNames[index] : "a tensor of unknown form";
}

/// " (lhs.shape = [2, 4, 8])", where the shape is known.
std::string shape_note(std::string_view argument, const int64_t* shape, int32_t rank) {
  if (rank < 0 || rank > kMaxRank) return "";
  std::string dims;
  for (int32_t i = 0; i < rank; ++i) dims += text(i == 0 ? "" : ", ", shape[i]);
  return text(" (", argument, ".shape = [", dims, "])");
}

/// A tensor whose rank has no form: given, but neither rows nor stacked.
bool is_of_another_rank(const GroupedTensor& tensor) {
  return tensor.placement == Placement::kAbsent && tensor.given();
}

std::string shape_note(std::string_view argument, const GroupedTensor& tensor) {
  if (is_of_another_rank(tensor)) return shape_note(argument, tensor.shape.data(), tensor.rank);
  const int64_t shape[] = {tensor.num_groups, tensor.rows.uniform, tensor.cols.uniform};
  if (tensor.placement == Placement::kRows) return shape_note(argument, shape + 1, 2);
  return tensor.placement == Placement::kStacked ? shape_note(argument, shape, 3) : "";
}

bool is_operand_dtype(DType dtype) {
  return is_float(dtype) || is_fp8(dtype) || dtype == DType::kI8;
}

}  // namespace

std::string device_name(Device device) {
  return device.kind == DeviceKind::kCpu ? "cpu" : text("cuda:", device.index);
}

void Checker::dim(std::string_view argument, int64_t value) {
  expect(value >= 0, argument, value, "0 or more");
  expect(value <= kMaxDim, argument, value, "at most 2^48");
}

void Checker::view(std::string_view argument, const TensorView& view, int32_t rank) {
  if (!ok()) return;
  expect(view.given(), argument, "nothing", "a tensor of rank ", rank);
  if (!ok()) return;
  if (view.rank != rank) {
    expect(false, joined(argument, ".rank"), view.rank, rank,
           shape_note(argument, view.shape.data(), view.rank));
  }
  expect(size_of(view.dtype) != 0, joined(argument, ".dtype"), static_cast<int32_t>(view.dtype),
         "a known dtype");
  known_device(argument, view.device);
  if (!ok()) return;
  bool empty = false;
  for (int32_t i = 0; i < rank; ++i) {
    const int64_t size = view.shape[static_cast<size_t>(i)];
    if (size < 0 || size > kMaxDim) dim(text(argument, ".shape[", i, "]"), size);
    empty |= size == 0;
  }
  if (!ok() || empty) return;
  MemorySpan span;
  addressable(argument, span_of(view, &span));
  expect(view.data != nullptr, joined(argument, ".data"), "null", "a pointer");
}

void Checker::addressable(std::string_view argument, bool has_span) {
  expect(has_span, joined(argument, ".strides"), "beyond 64-bit addresses",
         "an extent below 2^63 bytes");
}

void Checker::extent(std::string_view argument, std::string_view dim_name, const Extent& extent,
                     const GroupedTensor& tensor) {
  const bool is_dim = dim_name != "offsets";
  if (!extent.varies()) {
    if (extent.uniform < 0 || extent.uniform > kMaxDim) {
      dim(text(argument, ".", dim_name), extent.uniform);
    }
    return;
  }
  const std::string name = text(argument, ".", dim_name);
  index_array(name, extent.per_group, tensor.device);
  expect(extent.per_group.kind == GroupSizesKind::kSizes, joined(name, ".kind"),
         static_cast<int32_t>(extent.per_group.kind), "0: ends are for group_sizes alone");
  expect(extent.per_group.count == tensor.num_groups, joined(name, ".count"),
         extent.per_group.count, argument, ".num_groups = ", tensor.num_groups);
  if (!ok()) return;
  if (extent.per_group.device.kind == DeviceKind::kCuda) {
    // Offsets are bounded by the buffer's capacity, which may well be 0.
    expect(!is_dim || (extent.max > 0 && extent.max <= kMaxDim), joined(name, ".max"), extent.max,
           "a bound on the device's values, 1 to 2^48");
    return;
  }
  for (int64_t i = 0; i < extent.per_group.count; ++i) {
    const int64_t value = plan::read_index(extent.per_group.data, extent.per_group.dtype, i);
    if (value >= 0 && (!is_dim || value <= kMaxDim)) continue;
    expect(false, joined(name, "[", i, "]"),
           plan::index_text(extent.per_group.data, extent.per_group.dtype, i),
           is_dim ? "0 to 2^48" : "0 or more");
  }
}

void Checker::grouped(std::string_view argument, const GroupedTensor& tensor,
                      std::initializer_list<Placement> allowed) {
  if (!ok()) return;
  if (std::find(allowed.begin(), allowed.end(), tensor.placement) == allowed.end()) {
    const bool wrong_rank = is_of_another_rank(tensor);
    std::string expected;
    for (Placement placement : allowed) {
      const std::string_view name = placement_name(placement);
      const std::string_view rank = placement == Placement::kRows      ? "2"
                                    : placement == Placement::kStacked ? "3"
                                                                       : "";
      expected += expected.empty() ? "" : " or ";
      expected += wrong_rank && !rank.empty() ? text(rank, " (", name, ")") : text(name);
    }
    if (wrong_rank) {
      expect(false, joined(argument, ".rank"), tensor.rank, expected, shape_note(argument, tensor));
      return;
    }
    expect(false, argument, tensor.given() ? placement_name(tensor.placement) : "nothing", expected,
           shape_note(argument, tensor));
    return;
  }
  expect(size_of(tensor.dtype) != 0, joined(argument, ".dtype"), static_cast<int32_t>(tensor.dtype),
         "a known dtype");
  known_device(argument, tensor.device);
  expect(tensor.num_groups >= 0, joined(argument, ".num_groups"), tensor.num_groups, "0 or more");
  expect(tensor.num_groups <= kMaxGroups, joined(argument, ".num_groups"), tensor.num_groups,
         "at most 2^24");
  extent(argument, "rows", tensor.rows, tensor);
  extent(argument, "cols", tensor.cols, tensor);
  if (!ok()) return;

  if (tensor.contiguous) {
    expect(tensor.placement == Placement::kList || tensor.placement == Placement::kPacked,
           joined(argument, ".contiguous"), "true",
           joined("false in ", placement_name(tensor.placement), ", which has strides"));
    expect(tensor.col_stride == 1, joined(argument, ".col_stride"), tensor.col_stride,
           "1 because it is contiguous");
    if (!ok()) return;
  }
  const bool varies = tensor.rows.varies() || tensor.cols.varies();
  if (varies && tensor.placement != Placement::kList && tensor.placement != Placement::kPacked) {
    fail(argument, ": per-group dims in ", placement_name(tensor.placement),
         ", expected a list of pointers or a packed buffer");
    return;
  }
  if (tensor.placement == Placement::kList) {
    if (tensor.pointers_device.kind != DeviceKind::kCpu) {
      known_device(text(argument, ".pointers"), tensor.pointers_device);
      same_device(text(argument, ".pointers"), tensor.pointers_device, argument, tensor.device);
    }
    if (tensor.num_groups > 0) {
      expect(tensor.pointers != nullptr, joined(argument, ".pointers"), "null", tensor.num_groups,
             " pointers");
    }
    const plan::MatrixDims dims{plan::largest(tensor.rows), plan::largest(tensor.cols)};
    MemorySpan span;
    addressable(argument,
                span_of(TensorView::strided(nullptr, tensor.dtype, {dims.rows, dims.cols},
                                            {plan::row_stride_of(tensor, dims), tensor.col_stride}),
                        &span));
    return;
  }
  if (tensor.placement == Placement::kPacked) {
    expect(tensor.capacity >= 0, joined(argument, ".capacity"), tensor.capacity, "0 or more");
    expect(tensor.capacity == 0 || tensor.data != nullptr, joined(argument, ".data"), "null",
           "a pointer");
    MemorySpan span;
    addressable(argument, span_of(tensor, &span));
    if (tensor.offsets.varies()) extent(argument, "offsets", tensor.offsets, tensor);
    check_packed_bounds(*this, argument, tensor);
    return;
  }
  const bool empty = tensor.rows.uniform == 0 || tensor.cols.uniform == 0;
  if (empty || (tensor.placement == Placement::kStacked && tensor.num_groups == 0)) return;
  MemorySpan span;
  addressable(argument, span_of(tensor, &span));
  expect(tensor.data != nullptr, joined(argument, ".data"), "null", "a pointer");
}

void Checker::pointers(std::string_view argument, const GroupedTensor& tensor) {
  if (!ok() || tensor.placement != Placement::kList ||
      tensor.pointers_device.kind != DeviceKind::kCpu || plan::on_device(tensor.rows) ||
      plan::on_device(tensor.cols)) {
    return;
  }
  for (int64_t i = 0; i < tensor.num_groups && ok(); ++i) {
    if (tensor.pointers[i] != nullptr) continue;
    const plan::MatrixDims dims = plan::dims_of(tensor, i);
    expect(dims.rows == 0 || dims.cols == 0, joined(argument, ".pointers[", i, "]"), "null",
           "a pointer");
  }
}

void Checker::vectors(std::string_view argument, const GroupedTensor& tensor) {
  if (!ok()) return;
  if (is_of_another_rank(tensor)) {
    expect(false, joined(argument, ".rank"), tensor.rank,
           "2: [g, n], one vector for each group (GroupedTensor::vectors, in C "
           "cadre_grouped_vectors), or a list",
           shape_note(argument, tensor));
    return;
  }
  if (tensor.placement == Placement::kRows) {
    expect(
        false, argument, placement_name(tensor.placement),
        "one vector for each group: GroupedTensor::vectors (cadre_grouped_vectors in C) of it, or "
        "a list",
        shape_note(argument, tensor));
    return;
  }
  grouped(argument, tensor, {Placement::kStacked, Placement::kList});
  if (!ok()) return;
  float_dtype(argument, tensor.dtype);
  expect(!tensor.rows.varies() && tensor.rows.uniform == 1, joined(argument, ".rows"),
         tensor.rows.uniform, "1 (a vector for each group)");
}

void Checker::known_device(std::string_view argument, Device device) {
  const auto kind = static_cast<int32_t>(device.kind);
  expect(kind == 0 || kind == 1, joined(argument, ".device.kind"), kind, "0 (cpu) or 1 (cuda)");
  expect(device.index >= 0, joined(argument, ".device.index"), device.index, "0 or more");
}

void Checker::same_device(std::string_view argument, Device device, std::string_view reference,
                          Device expected) {
  if (device == expected) return;
  expect(false, joined(argument, ".device"), device_name(device), reference,
         ".device = ", device_name(expected));
}

void Checker::float_dtype(std::string_view argument, DType dtype) {
  expect(is_float(dtype), joined(argument, ".dtype"), name_of(dtype), "f64, f32, bf16 or f16");
}

void Checker::scalars(std::string_view argument, const GroupScalars& scalars, int64_t num_groups,
                      Device device) {
  if (!scalars.varies()) return;
  view(argument, scalars.per_group, 1);
  if (!ok()) return;
  const DType dtype = scalars.per_group.dtype;
  expect(dtype == DType::kF32 || dtype == DType::kF64, joined(argument, ".dtype"), name_of(dtype),
         "f32 or f64");
  expect(scalars.per_group.shape[0] == num_groups, joined(argument, ".shape[0]"),
         scalars.per_group.shape[0], "the number of local groups = ", num_groups);
  same_device(argument, scalars.per_group.device, "the data", device);
}

void Checker::product_dtypes(NamedDType lhs, NamedDType rhs, NamedDType out) {
  for (const NamedDType& operand : {lhs, rhs}) {
    if (is_operand_dtype(operand.dtype)) continue;
    expect(false, joined(operand.argument, ".dtype"), name_of(operand.dtype),
           is_integer(operand.dtype) ? "i8, the one integer type of products, or a float type"
                                     : "f64, f32, bf16, f16, i8, e4m3 or e5m2");
  }
  if (!ok()) return;
  if (default_output_dtype(lhs.dtype, rhs.dtype) == DType::kInvalid) {
    // The pairs without a product are those of FP8 with another type, and e5m2 x e5m2.
    const std::string_view partners = lhs.dtype == DType::kE5M2   ? "e4m3"
                                      : lhs.dtype == DType::kE4M3 ? "e4m3 or e5m2"
                                                                  : "f64, f32, bf16, f16 or i8";
    expect(false, joined(rhs.argument, ".dtype"), name_of(rhs.dtype), partners, " because ",
           lhs.argument, ".dtype = ", name_of(lhs.dtype));
    return;
  }
  if (is_fp8(lhs.dtype)) {
    expect(out.dtype == DType::kF32 || out.dtype == DType::kBF16 || out.dtype == DType::kF16,
           joined(out.argument, ".dtype"), name_of(out.dtype), "f32, bf16 or f16 because ",
           lhs.argument, ".dtype = ", name_of(lhs.dtype));
    return;
  }
  const bool both_int8 = lhs.dtype == DType::kI8 && rhs.dtype == DType::kI8;
  expect(is_float(out.dtype) || (out.dtype == DType::kI32 && both_int8),
         joined(out.argument, ".dtype"), name_of(out.dtype),
         both_int8               ? "i32, f64, f32, bf16 or f16"
         : is_integer(out.dtype) ? "f64, f32, bf16 or f16 (i32 is for i8 x i8 alone)"
                                 : "f64, f32, bf16 or f16");
}

void Checker::index_array(std::string_view argument, const GroupSizes& sizes, Device device) {
  if (!ok()) return;
  take(plan::check_index_array(op_, argument, sizes));
  const auto kind = static_cast<int32_t>(sizes.kind);
  expect(kind == 0 || kind == 1, joined(argument, ".kind"), kind, "0 (sizes) or 1 (ends)");
  expect(sizes.count <= kMaxGroups, joined(argument, ".count"), sizes.count, "at most 2^24");
  known_device(argument, sizes.device);
  if (ok() && sizes.device.kind == DeviceKind::kCuda) {
    same_device(argument, sizes.device, "the data", device);
  }
}

void Checker::group_offset(const GroupOffset& offset, int64_t num_local, int64_t num_groups,
                           Device device) {
  if (!ok()) return;
  if (offset.device_value != nullptr) {
    index_array("group_offset", {offset.device_value, offset.dtype, 1, offset.device}, device);
    expect(num_local <= num_groups, "group_sizes.count", num_groups,
           "at least the number of local groups = ", num_local);
    return;
  }
  expect(num_local <= num_groups, "group_sizes.count", num_groups,
         "at least the number of local groups = ", num_local);
  expect(offset.value >= 0 && offset.value <= num_groups - num_local, "group_offset", offset.value,
         "0 to ", num_groups - num_local, " (group_sizes.count - local groups)");
}

}  // namespace cadre::ops
