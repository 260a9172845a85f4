// Builds the arguments of an op from a description and asks the op for its Problem.
#include "described_problem.h"

#include <charconv>
#include <vector>

#include "backend/registry.h"
#include "core/text.h"
#include "ops/problem_of.h"

namespace cadre::cli {
namespace {

/// Each operand lies in its own 2^57 bytes, far from any other; there are at most ten.
constexpr uintptr_t kRegion = uintptr_t{1} << 57;

Status parse_dtype(const char* option, const std::string& name, DType* dtype) {
  *dtype = dtype_from_name(name);
  if (*dtype != DType::kInvalid) return {};
  return Status::invalid(text(option, " = ", name, ", expected a type such as f32 or bf16"));
}

Status parse_device(const std::string& name, Device* device) {
  *device = {};
  if (name == "cpu") return {};
  if (name == "cuda") {
    device->kind = DeviceKind::kCuda;
    return {};
  }
  const std::string prefix = "cuda:";
  if (name.rfind(prefix, 0) == 0) {
    const char* end = name.data() + name.size();
    const auto [stop, error] = std::from_chars(name.data() + prefix.size(), end, device->index);
    if (error == std::errc{} && stop == end && device->index >= 0) {
      device->kind = DeviceKind::kCuda;
      return {};
    }
  }
  return Status::invalid(text("--device = ", name, ", expected cpu, cuda or cuda:INDEX"));
}

/// Hands out addresses and keeps the arrays that views point to.
class Builder {
 public:
  explicit Builder(const ProblemDescription& description) : d_(description) {}

  Status prepare();
  Status gmm(plan::Problem* problem);
  Status tgmm(plan::Problem* problem);
  Status grouped_gemm(plan::Problem* problem);
  Status bias_grad(plan::Problem* problem);

 private:
  void* address() {
    return reinterpret_cast<void*>(++used_ * kRegion + static_cast<uintptr_t>(d_.alignment_bytes));
  }
  TensorView rows(DType dtype, int64_t cols) {
    return TensorView::strided(address(), dtype, {d_.m, cols}, {cols, 1}, device_);
  }
  TensorView lhs_of(int64_t cols) {
    return TensorView::strided(address(), lhs_dtype_, {d_.lhs_rows.value_or(d_.m), cols},
                               {d_.lhs_row_stride.value_or(cols), 1}, device_);
  }
  /// Indices on the host are looked at; all of them are -1.
  TensorView lhs_rows() {
    if (!d_.lhs_rows) return {};
    if (device_.kind == DeviceKind::kCuda) return vector(DType::kI32, d_.m);
    row_index_.assign(static_cast<size_t>(d_.m), -1);
    return TensorView::contiguous(row_index_.data(), DType::kI32, {d_.m});
  }
  TensorView vector(DType dtype, int64_t size) {
    return TensorView::contiguous(address(), dtype, {size}, device_);
  }
  GroupedTensor matrices(DType dtype, int64_t num, int64_t num_rows, int64_t num_cols, bool list);
  CallOptions options() const {
    return {.precision = d_.precision == "tf32" ? Precision::kTf32 : Precision::kDefault,
            .average_rows = d_.average_rows};
  }

  const ProblemDescription& d_;
  Device device_{};
  DType lhs_dtype_{}, rhs_dtype_{}, out_dtype_{};
  int64_t num_local_ = 0;
  std::vector<int32_t> sizes_, row_index_;
  GroupSizes group_sizes_{};
  std::vector<std::vector<void*>> pointers_;
  uintptr_t used_ = 0;
};

Status Builder::prepare() {
  if (d_.num_groups < 0 || d_.num_groups > kMaxGroups) {
    return Status::invalid(text("--groups = ", d_.num_groups, ", expected 0 to ", kMaxGroups));
  }
  if (d_.op != "bias_grad" && d_.k < 0) {
    return Status::invalid(text("--k is missing or negative, expected 0 or more for --op ", d_.op));
  }
  if (Status status = parse_dtype("--dtype", d_.lhs_dtype, &lhs_dtype_); !status.ok()) {
    return status;
  }
  rhs_dtype_ = lhs_dtype_;
  if (!d_.rhs_dtype.empty()) {
    if (Status status = parse_dtype("--rhs-dtype", d_.rhs_dtype, &rhs_dtype_); !status.ok()) {
      return status;
    }
  }
  out_dtype_ = default_output_dtype(lhs_dtype_, rhs_dtype_);
  if (!d_.out_dtype.empty()) {
    if (Status status = parse_dtype("--out-dtype", d_.out_dtype, &out_dtype_); !status.ok()) {
      return status;
    }
  }
  if (out_dtype_ == DType::kInvalid) {
    return Status::invalid(
        text("--rhs-dtype = ", name_of(rhs_dtype_),
             ", expected a type that multiplies with --dtype = ", name_of(lhs_dtype_)));
  }
  if (Status status = parse_device(d_.device, &device_); !status.ok()) return status;
  constexpr int64_t kMaxIndices = int64_t{1} << 28;  // they are written down
  if (d_.lhs_rows && device_.kind == DeviceKind::kCpu && d_.m > kMaxIndices) {
    return Status::invalid(
        text("--m = ", d_.m, ", expected at most ", kMaxIndices, " with --lhs-rows"));
  }
  if (d_.device_sizes && device_.kind == DeviceKind::kCpu) {
    return Status::invalid("--device-sizes is given, expected --device cuda with it");
  }
  num_local_ = d_.num_local_groups < 0 ? d_.num_groups : d_.num_local_groups;
  // Sizes on the host: as even as they can be. Nobody reads those on a device.
  sizes_.resize(static_cast<size_t>(d_.num_groups));
  for (int64_t i = 0; i < d_.num_groups && d_.m > 0; ++i) {
    const int64_t begin = d_.m / d_.num_groups * i + d_.m % d_.num_groups * i / d_.num_groups;
    const int64_t end =
        d_.m / d_.num_groups * (i + 1) + d_.m % d_.num_groups * (i + 1) / d_.num_groups;
    if (end - begin > INT32_MAX) {
      return Status::invalid(text("--m = ", d_.m, ", expected fewer than 2^31 rows in a group"));
    }
    sizes_[static_cast<size_t>(i)] = static_cast<int32_t>(end - begin);
  }
  group_sizes_ = {d_.device_sizes ? address() : sizes_.data(), DType::kI32, d_.num_groups,
                  d_.device_sizes ? device_ : Device{}};
  return {};
}

GroupedTensor Builder::matrices(DType dtype, int64_t num, int64_t num_rows, int64_t num_cols,
                                bool list) {
  if (!list) {
    return TensorView::contiguous(address(), dtype, {num, num_rows, num_cols}, device_);
  }
  std::vector<void*>& pointers = pointers_.emplace_back();
  auto* base = static_cast<char*>(address());
  // Matrices 4 KiB apart beyond their own size keep the alignment that was asked for.
  const int64_t bytes = num_rows * num_cols * static_cast<int64_t>(size_of(dtype));
  const int64_t pitch = (bytes / 4096 + 1) * 4096;
  for (int64_t i = 0; i < num; ++i) pointers.push_back(base + i * pitch);
  return GroupedTensor::list(pointers.data(), num,
                             TensorView::contiguous(nullptr, dtype, {num_rows, num_cols}, device_));
}

Status Builder::gmm(plan::Problem* problem) {
  GmmArgs args{.lhs = lhs_of(d_.k),
               .rhs = matrices(rhs_dtype_, num_local_, d_.transpose_rhs ? d_.n : d_.k,
                               d_.transpose_rhs ? d_.k : d_.n, d_.list_rhs),
               .group_sizes = group_sizes_,
               .lhs_rows = lhs_rows(),
               .transpose_rhs = d_.transpose_rhs,
               .alpha = d_.alpha,
               .accumulate = d_.accumulate,
               .options = options()};
  args.out = d_.list_out ? matrices(out_dtype_, num_local_, d_.m, d_.n, true)
                         : GroupedTensor(rows(out_dtype_, d_.n));
  const DType extra = is_float(out_dtype_) ? out_dtype_ : DType::kF32;
  if (d_.bias) {
    args.bias = GroupedTensor::vectors(
        TensorView::contiguous(address(), extra, {num_local_, d_.n}, device_));
  }
  if (d_.row_scale) args.row_scale = vector(DType::kF32, d_.m);
  args.tail = d_.tail == "untouched" ? Tail::kUntouched
              : d_.tail == "forbid"  ? Tail::kForbid
                                     : Tail::kZero;
  return ops::problem_of(args, problem);
}

Status Builder::tgmm(plan::Problem* problem) {
  return ops::problem_of(TgmmArgs{.lhs = lhs_of(d_.k),
                                  .rhs = rows(rhs_dtype_, d_.n),
                                  .group_sizes = group_sizes_,
                                  .out = matrices(out_dtype_, num_local_, d_.k, d_.n, d_.list_out),
                                  .lhs_rows = lhs_rows(),
                                  .alpha = d_.alpha,
                                  .accumulate = d_.accumulate,
                                  .options = options()},
                         problem);
}

Status Builder::grouped_gemm(plan::Problem* problem) {
  const int64_t g = d_.num_groups;
  const int64_t m = g == 0 ? 0 : (d_.m + g - 1) / g;  // of each group
  return ops::problem_of(
      GroupedGemmArgs{.a = matrices(lhs_dtype_, g, d_.transpose_lhs ? d_.k : m,
                                    d_.transpose_lhs ? m : d_.k, false),
                      .b = matrices(rhs_dtype_, g, d_.transpose_rhs ? d_.n : d_.k,
                                    d_.transpose_rhs ? d_.k : d_.n, d_.list_rhs),
                      .d = matrices(out_dtype_, g, m, d_.n, d_.list_out),
                      .transa = d_.transpose_lhs,
                      .transb = d_.transpose_rhs,
                      .alpha = d_.alpha,
                      .accumulate = d_.accumulate,
                      .options = options()},
      problem);
}

Status Builder::bias_grad(plan::Problem* problem) {
  return ops::problem_of(BiasGradArgs{.dy = lhs_of(d_.n),
                                      .group_sizes = group_sizes_,
                                      .dbias = GroupedTensor::vectors(TensorView::contiguous(
                                          address(), out_dtype_, {num_local_, d_.n}, device_)),
                                      .accumulate = d_.accumulate,
                                      .options = options()},
                         problem);
}

/// An option the op has no place for is an error, never dropped.
Status check_applicable(const ProblemDescription& d) {
  const auto only_for = [&d](bool given, const char* option,
                             std::initializer_list<const char*> ops) {
    for (const char* op : ops) given = given && d.op != op;
    return given
               ? Status::invalid(text(option, " is given, but --op ", d.op, " has no such option"))
               : Status{};
  };
  for (const Status& status :
       {only_for(d.k >= 0, "--k", {"gmm", "tgmm", "grouped_gemm"}),
        only_for(d.transpose_lhs, "--transpose-lhs", {"grouped_gemm"}),
        only_for(d.transpose_rhs, "--transpose-rhs", {"gmm", "grouped_gemm"}),
        only_for(d.list_rhs, "--list-rhs", {"gmm", "grouped_gemm"}),
        only_for(d.list_out, "--list-out", {"gmm", "tgmm", "grouped_gemm"}),
        only_for(d.bias, "--bias", {"gmm"}), only_for(d.row_scale, "--row-scale", {"gmm"}),
        only_for(d.alpha != 1, "--alpha", {"gmm", "tgmm", "grouped_gemm"}),
        only_for(d.tail != "zero", "--tail", {"gmm"}),
        only_for(d.lhs_rows.has_value(), "--lhs-rows", {"gmm", "tgmm"}),
        only_for(!d.rhs_dtype.empty(), "--rhs-dtype", {"gmm", "tgmm", "grouped_gemm"}),
        only_for(d.device_sizes, "--device-sizes", {"gmm", "tgmm", "bias_grad"}),
        only_for(d.num_local_groups >= 0, "--local-groups", {"gmm", "tgmm", "bias_grad"}),
        only_for(d.lhs_row_stride.has_value(), "--lhs-row-stride", {"gmm", "tgmm", "bias_grad"})}) {
    if (!status.ok()) return status;
  }
  return {};
}

}  // namespace

Status make_problem(const ProblemDescription& description, plan::Problem* problem) {
  if (Status status = check_applicable(description); !status.ok()) return status;
  Builder builder(description);
  if (Status status = builder.prepare(); !status.ok()) return status;
  if (description.op == "tgmm") return builder.tgmm(problem);
  if (description.op == "grouped_gemm") return builder.grouped_gemm(problem);
  if (description.op == "bias_grad") return builder.bias_grad(problem);
  return builder.gmm(problem);
}

}  // namespace cadre::cli
