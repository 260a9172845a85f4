// The fast CPU backend. lower.cc turns a call into dense products; kernel_table.cc picks the
// kernel; gemm_driver.cc multiplies.
#include "cpu/cpu_backend.h"

#include <cstring>

#include "core/text.h"
#include "cpu/bias_grad.h"
#include "cpu/gemm_driver.h"
#include "cpu/gemm_item.h"
#include "cpu/kernel_table.h"
#include "cpu/packed_weights.h"
#include "cpu/rows.h"
#include "cpu/threads.h"

namespace cadre::cpu {
namespace {

constexpr std::string_view kPrefix = "cpu/";

void zero(const GemmItem& rows) {
  const size_t size = size_of(rows.d.dtype);
  for (int64_t row = 0; row < rows.m; ++row) {
    if (rows.d.col_stride == 1) {
      std::memset(element_at(rows.d, row, 0), 0, static_cast<size_t>(rows.n) * size);
      continue;
    }
    for (int64_t col = 0; col < rows.n; ++col) std::memset(element_at(rows.d, row, col), 0, size);
  }
}

class CpuBackend final : public plan::Backend {
 public:
  std::string_view name() const override { return "cpu"; }

  std::vector<std::string> kernels() const override {
    std::vector<std::string> names;
    for (const Isa isa : available_isas()) names.insert(names.begin(), text(kPrefix, name_of(isa)));
    return names;
  }

  Status choose(const detail::ContextState& context, const plan::Problem& problem,
                const char* pinned, plan::Config* config) const override {
    if (problem.device.kind != DeviceKind::kCpu) {
      return Status::unsupported("takes tensors in host memory alone");
    }
    if (problem.epilogue.gradient.given()) {
      return Status::unsupported("takes the gradient of an activation as a pass of its own");
    }
    std::string_view wanted = context.isa;
    if (pinned) {
      wanted = pinned;
      if (!wanted.starts_with(kPrefix)) {
        return Status::unsupported(text("has no kernel \"", pinned, "\", only ", join(kernels())));
      }
      wanted.remove_prefix(kPrefix.size());
    }
    Isa isa = Isa::kScalar;
    if (Status status = resolve_isa(wanted, &isa); !status.ok()) return status;
    // bias_grad: the kernel that widens everything, whatever the types of dy and bias.
    const bool widens = problem.op == plan::Op::kBiasGrad || plan::is_row_op(problem.op);
    const CpuKernel& kernel = choose_kernel(isa, widens ? DType::kF32 : problem.lhs.dtype,
                                            problem.rhs.dtype, problem.compute);
    *config = {
        .kernel = kernel.name, .choice = &kernel, .threads = usable_threads(context.num_threads)};
    if (plan::is_row_op(problem.op)) return {};
    config->tile_m = kernel.gemm->mr;
    config->tile_n = kernel.gemm->nr;
    config->tile_k = static_cast<int32_t>(kernel.blocking.k_block);
    return {};
  }

  std::string machine(const detail::ContextState& context, Device device) const override {
    Isa isa = Isa::kScalar;
    if (device.kind != DeviceKind::kCpu || !resolve_isa(context.isa, &isa).ok()) return {};
    return text(name_of(isa), ", ", context.num_threads, " threads");
  }

  /// Sums in int32 are exact in any order; any other kernel adds in an order of its own. The number
  /// of threads never counts.
  bool same_bits(const plan::Problem& problem, const plan::Config& one,
                 const plan::Config& other) const override {
    return problem.out.dtype == DType::kI32 || same_kernel(one, other);
  }

  /// Instruction sets that have nothing better for some types share the kernel.
  bool same_kernel(const plan::Config& one, const plan::Config& other) const override {
    return chosen(one).gemm == chosen(other).gemm;
  }

  Status run(detail::ContextState& /*context*/, const plan::Problem& problem,
             const plan::Config& config, const plan::Operands& operands,
             const CallOptions& /*options*/) const override {
    const GemmPlan plan = plan_of(config);
    LoweredCall call;
    lower(problem, operands, &call);
    std::vector<const PackedMatrix*> packed;
    if (operands.packed_rhs != nullptr) {
      packed = packed_matrices(*operands.packed_rhs, call.items, plan);
    }
    for (const GemmItem& rows : call.zero_rows) zero(rows);
    return multiply_items(call.items, plan, std::move(packed));
  }

  Status run_bias_grad(detail::ContextState& /*context*/, const plan::Problem& problem,
                       const plan::Config& config, const BiasGradArgs& args,
                       const std::vector<int64_t>& offsets) const override {
    return bias_grad(problem, args, offsets, plan_of(config));
  }

  Status run_rows(detail::ContextState& /*context*/, const plan::Problem& problem,
                  const plan::Config& config, const plan::RowCall& call,
                  const CallOptions& /*options*/) const override {
    return cpu::run_rows(problem, call, find_row_kernel(chosen(config).isa), config.threads);
  }

  Status pack_weights(const detail::ContextState& context, const PackWeightsArgs& args,
                      DType compute, std::unique_ptr<PackedWeights::State>* packed) const override {
    return make_packed_weights(context, args, compute, packed);
  }

 private:
  static const CpuKernel& chosen(const plan::Config& config) {
    return *static_cast<const CpuKernel*>(config.choice);
  }

  static GemmPlan plan_of(const plan::Config& config) {
    const CpuKernel& kernel = chosen(config);
    return {.kernel = kernel.gemm, .blocking = kernel.blocking, .threads = config.threads};
  }

  static std::string join(const std::vector<std::string>& names) {
    std::string list;
    for (const std::string& name : names) list += text(list.empty() ? "" : ", ", name);
    return list;
  }
};

}  // namespace

std::unique_ptr<plan::Backend> make_cpu_backend() { return std::make_unique<CpuBackend>(); }

}  // namespace cadre::cpu
