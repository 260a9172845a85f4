// pack_weights: check, fill in the types, hand over to the CPU backend; and what its result says of
// itself.
#include "cadre/pack_weights.h"

#include "backend/registry.h"
#include "ops/dispatch.h"
#include "ops/guarded.h"
#include "plan/packed_weights.h"

namespace cadre {
namespace {

Status check(const PackWeightsArgs& args) {
  ops::Checker checker("pack_weights");
  const GroupedTensor& rhs = args.rhs;
  checker.grouped("rhs", rhs, {Placement::kStacked, Placement::kList});
  if (!checker.ok()) return checker.status();
  checker.expect(rhs.device.kind == DeviceKind::kCpu, "rhs.device", ops::device_name(rhs.device),
                 "cpu: only the kernels of the CPU read packed weights");
  checker.expect(!rhs.rows.varies() && !rhs.cols.varies(), "rhs.rows", "per-group",
                 "one shape for all groups");
  checker.pointers("rhs", rhs);
  const auto operand = [&](std::string_view argument, DType dtype) {
    checker.expect(is_float(dtype) || dtype == DType::kI8, argument, name_of(dtype),
                   "f64, f32, bf16, f16 or i8");
  };
  operand("rhs.dtype", rhs.dtype);
  operand("lhs_dtype", args.lhs_dtype);
  const bool both_int8 = args.lhs_dtype == DType::kI8 && rhs.dtype == DType::kI8;
  checker.expect(is_float(args.out_dtype) || (args.out_dtype == DType::kI32 && both_int8),
                 "out_dtype", name_of(args.out_dtype),
                 both_int8 ? "i32, f64, f32, bf16 or f16" : "f64, f32, bf16 or f16");
  return checker.status();
}

}  // namespace

PackedWeights::PackedWeights() = default;
PackedWeights::~PackedWeights() = default;
PackedWeights::PackedWeights(PackedWeights&&) noexcept = default;
PackedWeights& PackedWeights::operator=(PackedWeights&&) noexcept = default;

size_t PackedWeights::size_bytes() const { return state_ ? state_->size_bytes : 0; }

std::string_view PackedWeights::kernel() const {
  return state_ ? state_->kernel : std::string_view();
}

Status pack_weights(Context& context, const PackWeightsArgs& args, PackedWeights* packed) {
  return ops::guarded("pack_weights", [&]() -> Status {
    if (!context.status().ok()) return context.status();
    if (packed == nullptr) {
      return Status::invalid("pack_weights: packed = null, expected an object");
    }
    PackWeightsArgs filled = args;
    if (args.lhs_dtype == DType::kInvalid) filled.lhs_dtype = args.rhs.dtype;
    if (args.out_dtype == DType::kInvalid) {
      filled.out_dtype = default_output_dtype(filled.lhs_dtype, args.rhs.dtype);
    }
    if (Status status = check(filled); !status.ok()) return status;
    std::unique_ptr<PackedWeights::State> state;
    const DType compute = ops::compute_dtype(filled.lhs_dtype, filled.rhs.dtype, filled.out_dtype);
    const plan::Backend* cpu = backend::Registry::instance().find("cpu");
    if (Status status = cpu->pack_weights(context.state(), filled, compute, &state); !status.ok()) {
      return status;
    }
    packed->state_ = std::move(state);
    return {};
  });
}

}  // namespace cadre
