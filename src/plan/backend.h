// The interface a backend implements. It lives below the backends; the registry that orders them
// lives above (src/backend).
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cadre/bias_grad.h"
#include "cadre/context.h"
#include "cadre/pack_weights.h"
#include "cadre/status.h"
#include "plan/config.h"
#include "plan/context_state.h"
#include "plan/operands.h"
#include "plan/problem.h"
#include "plan/row_call.h"

namespace cadre::plan {

class Backend {
 public:
  virtual ~Backend() = default;

  /// "cpu", "cuda", "reference", ...
  virtual std::string_view name() const = 0;

  /// Names of the kernels there are, best first.
  virtual std::vector<std::string> kernels() const = 0;

  /// Ok and a Config, or kUnsupported with the reason; kInvalid when `pinned` (a kernel name, or
  /// null) is unknown here. Touches no data.
  virtual Status choose(const detail::ContextState& context, const Problem& problem,
                        const char* pinned, Config* config) const = 0;

  /// What a measurement is for, as far as this backend is concerned: "avx512_bf16, 16 threads";
  /// empty where nothing is to be measured.
  virtual std::string machine(const detail::ContextState& /*context*/, Device /*device*/) const {
    return {};
  }

  /// Whether two choices for one problem give the same bits whatever the data: only then a
  /// measurement may decide between them.
  virtual bool same_bits(const Problem& /*problem*/, const Config& /*one*/,
                         const Config& /*other*/) const {
    return false;
  }

  /// Whether two choices run the same code, under whatever names.
  virtual bool same_kernel(const Config& one, const Config& other) const {
    return one.choice == other.choice;
  }

  /// Bytes of device workspace that run() uses for this choice.
  virtual size_t workspace_size(const Problem& /*problem*/, const Config& /*config*/) const {
    return 0;
  }

  /// gmm, tgmm or grouped_gemm on operands that have been checked.
  virtual Status run(detail::ContextState& context, const Problem& problem, const Config& config,
                     const Operands& operands, const CallOptions& options) const = 0;

  /// `host_offsets` as in Operands.
  virtual Status run_bias_grad(detail::ContextState& context, const Problem& problem,
                               const Config& config, const BiasGradArgs& args,
                               const std::vector<int64_t>& host_offsets) const = 0;

  /// Any op of plan/row_call.h.
  virtual Status run_rows(detail::ContextState& context, const Problem& problem,
                          const Config& config, const RowCall& call,
                          const CallOptions& options) const = 0;

  /// Packs weights that have been checked for products with lhs of args.lhs_dtype, summed in
  /// `compute`.
  virtual Status pack_weights(const detail::ContextState& /*context*/,
                              const PackWeightsArgs& /*args*/, DType /*compute*/,
                              std::unique_ptr<PackedWeights::State>* /*packed*/) const {
    return Status::unsupported("packs no weights");
  }

  /// Waits for the stream and reports faults met on the device since the last report.
  virtual Status check(detail::ContextState& /*context*/, Device /*device*/,
                       void* /*stream*/) const {
    return {};
  }
};

}  // namespace cadre::plan
