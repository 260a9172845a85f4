// Checks of quantised operands.
#include "ops/scaled_operand.h"

#include <array>

namespace cadre::ops {
namespace {

constexpr int64_t kBlock = 128;

int64_t blocks_of(int64_t size, int64_t block) { return (size + block - 1) / block; }

enum class Role { kGroup, kOuter, kInner };

/// What the scales of an operand must look like.
struct ExpectedDims {
  int32_t rank = 0;
  std::array<int64_t, 3> sizes{};
  std::array<Role, 3> roles{};

  void add(Role role, int64_t size) {
    sizes[static_cast<size_t>(rank)] = size;
    roles[static_cast<size_t>(rank++)] = role;
  }
};

bool holds_groups(ScaledKind kind) {
  return kind == ScaledKind::kWeights || kind == ScaledKind::kMatrices;
}

/// Dims of the scales; `outer_block` outer indices share one.
ExpectedDims expected_dims(const ScaledOperand& operand, int64_t outer_block) {
  const bool groups = holds_groups(operand.kind) && operand.scales.pointers == nullptr;
  const ScaleMode mode = operand.scales.mode;
  const int64_t outer = blocks_of(operand.outer, outer_block);
  ExpectedDims dims;
  if (mode == ScaleMode::kTensor) {
    // One for all groups is the other form that weights may have.
    dims.add(Role::kGroup, groups && operand.scales.values.shape[0] != 1 ? operand.num_groups : 1);
    return dims;
  }
  if (mode == ScaleMode::kRow) {
    if (groups || operand.kind == ScaledKind::kColumns) {
      dims.add(Role::kGroup, operand.num_groups);
    }
    dims.add(Role::kOuter, outer);
    return dims;
  }
  if (operand.kind == ScaledKind::kColumns) {
    dims.add(Role::kInner, -1);  // as many lines as there are
    dims.add(Role::kOuter, outer);
    return dims;
  }
  const int64_t inner = blocks_of(operand.inner, plan::inner_block_of(mode));
  if (groups) dims.add(Role::kGroup, operand.num_groups);
  if (operand.inner_first) dims.add(Role::kInner, inner);
  dims.add(Role::kOuter, outer);
  if (!operand.inner_first) dims.add(Role::kInner, inner);
  return dims;
}

bool matches(const TensorView& values, const ExpectedDims& dims) {
  if (values.rank != dims.rank) return false;
  for (size_t i = 0; i < static_cast<size_t>(dims.rank); ++i) {
    if (dims.sizes[i] >= 0 && values.shape[i] != dims.sizes[i]) return false;
  }
  return true;
}

std::string shape_text(const int64_t* sizes, int32_t rank) {
  std::string list;
  for (int32_t i = 0; i < rank && i < kMaxRank; ++i) {
    list += i == 0 ? "" : ", ";
    list += sizes[i] < 0 ? text("any") : text(sizes[i]);
  }
  return "[" + list + "]";
}

/// The shape that was expected, with the mode's other form beside it.
std::string expected_text(const ScaledOperand& operand, const ExpectedDims& dims) {
  std::string shape = shape_text(dims.sizes.data(), dims.rank);
  if (operand.scales.mode == ScaleMode::kTensor && holds_groups(operand.kind) &&
      operand.scales.pointers == nullptr) {
    shape = text("[1] or [", operand.num_groups, "]");
  }
  if (operand.kind == ScaledKind::kMatrices && operand.scales.mode == ScaleMode::kBlock128) {
    const ExpectedDims rows = expected_dims(operand, 1);
    shape += text(" or ", shape_text(rows.sizes.data(), rows.rank));
  }
  return shape;
}

template <typename Argument>
void check_mode(Checker& checker, const Argument& argument, ScaleMode given) {
  const auto mode = static_cast<int32_t>(given);
  checker.expect(mode >= 1 && mode <= 4, argument, mode,
                 "1 (tensor), 2 (row), 3 (block_128) or 4 (mx)");
}

void check_values(Checker& checker, const ScaledOperand& operand, Device device) {
  const Scales& scales = operand.scales;
  const std::string name = text(operand.argument, ".scales");
  const DType dtype = scales.values.dtype;
  checker.expect(scales.values.given(), name, "nothing", "a tensor of scales");
  if (!checker.ok()) return;
  if (scales.mode == ScaleMode::kMx) {
    checker.expect(dtype == DType::kE8M0, joined(name, ".dtype"), name_of(dtype), "e8m0");
  } else if (scales.mode == ScaleMode::kBlock128) {
    checker.expect(dtype == DType::kF32 || dtype == DType::kE8M0, joined(name, ".dtype"),
                   name_of(dtype), "f32 or e8m0");
  } else {
    checker.expect(dtype == DType::kF32, joined(name, ".dtype"), name_of(dtype), "f32");
  }
  checker.same_device(name, scales.values.device, operand.argument, device);
  if (!checker.ok() || scales.pointers != nullptr) return;
  checker.view(name, scales.values, scales.values.rank);
}

void check_list(Checker& checker, const ScaledOperand& operand, Device device) {
  const Scales& scales = operand.scales;
  const std::string name = text(operand.argument, ".scales.pointers");
  checker.expect(holds_groups(operand.kind), name, "given",
                 joined("one tensor of scales because ", operand.argument, " is one tensor"));
  if (!checker.ok()) return;
  if (scales.pointers_device.kind != DeviceKind::kCpu) {
    checker.same_device(name, scales.pointers_device, operand.argument, device);
    return;
  }
  if (operand.outer == 0 || operand.inner == 0) return;
  for (int64_t i = 0; i < operand.num_groups && checker.ok(); ++i) {
    if (scales.pointers[i] != nullptr) continue;
    checker.expect(false, joined(name, "[", i, "]"), "null", "a pointer");
  }
}

/// Compares the shape of the values with the mode's, and finds how they lie.
template <typename ModeName>
void find_scale_form(Checker& checker, std::string_view name, const ModeName& mode_name,
                     const ScaledOperand& operand, plan::ScaleForm* form) {
  const Scales& scales = operand.scales;
  const bool columns = operand.kind == ScaledKind::kColumns;
  const bool square = scales.mode == ScaleMode::kBlock128 && holds_groups(operand.kind);
  form->outer_block = square ? kBlock : 1;
  ExpectedDims dims = expected_dims(operand, form->outer_block);
  if (square && operand.kind == ScaledKind::kMatrices && !matches(scales.values, dims)) {
    const ExpectedDims rows = expected_dims(operand, 1);
    if (matches(scales.values, rows)) {
      form->outer_block = 1;
      dims = rows;
    }
  }
  if (!matches(scales.values, dims)) {
    checker.expect(
        false, joined(name, ".shape"), shape_text(scales.values.shape.data(), scales.values.rank),
        expected_text(operand, dims), " because ", mode_name, " = ", name_of(scales.mode));
    return;
  }
  form->mode = scales.mode;
  form->dtype = scales.values.dtype;
  form->columns = columns;
  form->list = scales.pointers != nullptr;
  for (size_t i = 0; i < static_cast<size_t>(dims.rank); ++i) {
    const bool shared = dims.roles[i] == Role::kGroup && scales.values.shape[i] == 1 &&
                        scales.mode == ScaleMode::kTensor;
    const int64_t stride = shared ? 0 : scales.values.strides[i];
    if (dims.roles[i] == Role::kGroup) form->group_stride = stride;
    if (dims.roles[i] == Role::kOuter) form->outer_stride = stride;
    if (dims.roles[i] == Role::kInner) form->inner_stride = stride;
    if (columns && dims.roles[i] == Role::kInner) form->lines = scales.values.shape[i];
  }
}

}  // namespace

void check_scales(Checker& checker, const ScaledOperand& operand, Device device,
                  plan::ScaleForm* form) {
  if (!checker.ok()) return;
  const Scales& scales = operand.scales;
  const std::string name = text(operand.argument, ".scales");
  const bool columns = operand.kind == ScaledKind::kColumns;
  if (!is_fp8(operand.dtype)) {
    checker.expect(!scales.given(), name, "given", "none because ", operand.argument,
                   ".dtype = ", name_of(operand.dtype));
    checker.expect(!columns, joined(operand.argument, ".columns"), "true", "false because ",
                   operand.argument, ".dtype = ", name_of(operand.dtype));
    return;
  }
  checker.expect(scales.given(), name, "nothing", "scales because ", operand.argument,
                 ".dtype = ", name_of(operand.dtype));
  check_mode(checker, joined(name, ".mode"), scales.mode);
  if (!checker.ok()) return;
  check_values(checker, operand, device);
  if (scales.pointers != nullptr) check_list(checker, operand, device);
  if (!checker.ok()) return;
  find_scale_form(checker, name, joined(name, ".mode"), operand, form);
  form->alignment_bytes = alignment_of(scales, operand.num_groups);
}

void check_amax(Checker& checker, const ScaledOperand& operand, Device device,
                plan::ScaleForm* form) {
  check_mode(checker, "mode", operand.scales.mode);
  if (!checker.ok()) return;
  const TensorView& values = operand.scales.values;
  checker.view(operand.argument, values, values.given() ? values.rank : 1);
  checker.expect(values.dtype == DType::kF32, joined(operand.argument, ".dtype"),
                 name_of(values.dtype), "f32");
  checker.same_device(operand.argument, values.device, "x", device);
  if (checker.ok()) find_scale_form(checker, operand.argument, "mode", operand, form);
}

void check_scale_modes(Checker& checker, const ScaledOperand& lhs, const ScaledOperand& rhs) {
  if (!checker.ok() || lhs.scales.mode == rhs.scales.mode) return;
  const auto in_epilogue = [](ScaleMode mode) {
    return mode == ScaleMode::kTensor || mode == ScaleMode::kRow;
  };
  const bool either = in_epilogue(lhs.scales.mode);
  if (either && in_epilogue(rhs.scales.mode)) return;
  checker.expect(false, joined(rhs.argument, ".scales.mode"), name_of(rhs.scales.mode),
                 either ? "tensor or row" : name_of(lhs.scales.mode), " because ", lhs.argument,
                 ".scales.mode = ", name_of(lhs.scales.mode));
}

void check_column_room(Checker& checker, const ScaledOperand& operand, int64_t capacity,
                       const std::vector<int64_t>& host_offsets) {
  if (!checker.ok() || operand.kind != ScaledKind::kColumns || host_offsets.empty()) return;
  const int64_t block = plan::inner_block_of(operand.scales.mode);
  int64_t columns = 0;
  int64_t lines = 0;
  for (size_t i = 0; i + 1 < host_offsets.size(); ++i) {
    const int64_t rows = host_offsets[i + 1] - host_offsets[i];
    columns += blocks_of(rows, kColumnAlignment) * kColumnAlignment;
    if (block != 0) lines += blocks_of(rows, block);
  }
  checker.expect(columns <= capacity, joined(operand.argument, ".shape[1]"), capacity, "at least ",
                 columns, ": each group's rows begin on a multiple of ", kColumnAlignment);
  if (block == 0) return;
  checker.expect(lines <= operand.scales.values.shape[0],
                 joined(operand.argument, ".scales.shape[0]"), operand.scales.values.shape[0],
                 "at least ", lines, ": each group has blocks of ", block, " rows of its own");
}

}  // namespace cadre::ops
