// The CUDA backend: finds the family for a problem, checks what only the driver knows, leases a
// workspace, launches.
#include "cuda/cuda_backend.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/environment.h"
#include "core/text.h"
#include "cuda/device.h"
#include "cuda/kernel_family.h"
#include "cuda/memory_check.h"
#include "cuda/product_steps.h"
#include "cuda/status_word.h"
#include "cuda/trace_range.h"
#include "cuda/workspace.h"

namespace cadre::cuda {
namespace {

bool has_kernel(const KernelFamily& family, std::string_view name) {
  const auto kernels = family.kernels();
  return std::find(kernels.begin(), kernels.end(), name) != kernels.end();
}

const KernelFamily& family_of(const plan::Config& config) {
  return static_cast<const FamilyKernel*>(config.choice)->family();
}

/// "sm90: needs compute capability 9.0; sm80: ..."
Status all_refusals(std::span<const Status> refusals) {
  std::string message;
  for (size_t i = 0; i < refusals.size(); ++i) {
    if (refusals[i].ok()) continue;  // not asked
    const std::string_view first = families()[i]->kernels().front();
    message += text(message.empty() ? "" : "; ", first.substr(0, first.find('/')), ": ",
                    refusals[i].message());
  }
  return Status::unsupported(message);
}

Status no_such_kernel(const char* pinned) {
  std::string names;
  for (const KernelFamily* family : families()) {
    for (std::string_view name : family->kernels()) names += text(names.empty() ? "" : ", ", name);
  }
  return Status::invalid(text("has no kernel \"", pinned, "\", only ", names));
}

/// `wanted`: steps that are taken whatever the family.
Status choose_family(const plan::Problem& given, const ProductSteps& wanted,
                     const DeviceProperties& device, std::string_view kernel_prefix,
                     const char* pinned, plan::Config* config) {
  const bool by_index = given.lhs_rows.by_index() || given.rhs_rows.by_index();
  std::array<Status, kMaxFamilies> refusals;
  bool known = pinned == nullptr;
  for (size_t i = 0; i < families().size(); ++i) {
    const KernelFamily* family = families()[i];
    if (pinned != nullptr && !has_kernel(*family, pinned)) continue;
    known = true;
    if (!family->kernels().front().starts_with(kernel_prefix)) continue;
    const auto choose = [&](const ProductSteps& steps) {
      const plan::Problem problem = kernel_problem(given, steps);
      Status status = family->supports(problem, device);
      if (status.ok()) status = family->configure(problem, device, pinned, config);
      config->copies_rows = steps.copies_rows;
      config->widens = steps.widens;
      config->separate_activation = steps.separate_activation;
      return status;
    };
    const bool follows = by_index && !wanted.widens && family->follows_rows(given);
    ProductSteps steps = wanted;
    steps.copies_rows = by_index && !follows;
    Status status = choose(steps);
    // A kernel that is pinned may be one that follows no index.
    if (follows && pinned != nullptr && !status.ok()) {
      steps.copies_rows = true;
      status = choose(steps);
    }
    if (status.ok()) return {};
    if (status.code() != StatusCode::kUnsupported) return status;
    refusals[i] = std::move(status);
  }
  return known ? all_refusals(refusals) : no_such_kernel(pinned);
}

/// What every call does around its launches.
class Session {
 public:
  Session(detail::ContextState& context, const plan::Problem& problem, const CallOptions& options)
      : context_(context),
        problem_(problem),
        options_(options),
        range_(problem),
        guard_(problem.device.index),
        op_(plan::name_of(problem.op)) {}

  Status begin(size_t workspace_scratch_bytes) {
    launch_.op = op_;
    launch_.stream = static_cast<cudaStream_t>(options_.stream);
    if (Status status = environment::check_every_call(&check_); !status.ok()) return status;
    if (guard_.error() != cudaSuccess) return cuda_failure(op_, guard_.error());
    if (Status status = device_properties(problem_.device.index, &launch_.device); !status.ok()) {
      return status;
    }
    if (Status status = is_capturing(op_, launch_.stream, &capturing_); !status.ok()) {
      return status;
    }
    const WorkspaceLayout layout = workspace_layout(problem_, workspace_scratch_bytes);
    if (Status status = lease_stream(context_, {op_, problem_.device.index, capturing_}, options_,
                                     layout, &lease_);
        !status.ok()) {
      return status;
    }
    launch_.sm_count = launch_.device->sm_count;
    if (context_.sm_count > 0) launch_.sm_count = std::min(launch_.sm_count, context_.sm_count);
    launch_.fault = lease_.fault;
    launch_.tile_counter = lease_.tile_counter;
    launch_.workspace = lease_.workspace;
    return {};
  }

  /// CADRE_CHECK=1: waits and reports, except during a capture.
  Status end() {
    lease_.lock.unlock();
    if (capturing_ || !check_) return {};
    Status status = check_status_word(context_, problem_.device.index, launch_.stream);
    return status.ok() ? status : Status(status.code(), text(op_, ": ", status.message()));
  }

  const Launch& launch() const { return launch_; }

 private:
  detail::ContextState& context_;
  const plan::Problem& problem_;
  const CallOptions& options_;
  TraceRange range_;
  DeviceGuard guard_;
  std::string_view op_;
  bool capturing_ = false;
  bool check_ = false;
  StreamLease lease_;
  Launch launch_;
};

class CudaBackend final : public plan::Backend {
 public:
  CudaBackend(std::string name, std::string kernel_prefix)
      : name_(std::move(name)), kernel_prefix_(std::move(kernel_prefix)) {}

  std::string_view name() const override { return name_; }

  std::vector<std::string> kernels() const override {
    std::vector<std::string> names;
    for (const KernelFamily* family : families()) {
      for (std::string_view kernel : family->kernels()) names.emplace_back(kernel);
    }
    return names;
  }

  Status choose(const detail::ContextState& /*context*/, const plan::Problem& problem,
                const char* pinned, plan::Config* config) const override {
    if (problem.device.kind != DeviceKind::kCuda) {
      return Status::unsupported("takes tensors in CUDA memory alone");
    }
    const DeviceProperties* device = nullptr;
    if (Status status = device_properties(problem.device.index, &device); !status.ok()) {
      return status;
    }
    // What is widened comes first: it runs on tensor cores. A kernel that is pinned may be one for
    // the operands as they are.
    Status status;
    for (const bool widens : {true, false}) {
      if (widens && !can_widen(problem)) continue;
      for (const bool separate_activation : {false, true}) {
        if (separate_activation && !problem.epilogue.activates()) continue;
        const ProductSteps steps{.widens = widens, .separate_activation = separate_activation};
        status = choose_family(problem, steps, *device, kernel_prefix_, pinned, config);
        if (status.code() != StatusCode::kUnsupported) return status;
      }
    }
    return status;
  }

  std::string machine(const detail::ContextState& context, Device device) const override {
    const DeviceProperties* found = nullptr;
    if (device.kind != DeviceKind::kCuda || !device_properties(device.index, &found).ok()) {
      return {};
    }
    const int32_t sms =
        context.sm_count > 0 ? std::min(context.sm_count, found->sm_count) : found->sm_count;
    return text(found->name, ", ", sms, " SMs");
  }

  /// Kernels of one family add over k in one order (tests/gpu/hopper_bits_test.cc and
  /// tile_bits_test.cc hold them to it); between families epilogues may round another way. With
  /// fast_accumulation some kernels of a family promote sums of FP8 and some don't, and what was
  /// widened is summed in another order than codes.
  bool same_bits(const plan::Problem& problem, const plan::Config& one,
                 const plan::Config& other) const override {
    if (problem.fast_accumulation) return one.kernel == other.kernel;
    return &family_of(one) == &family_of(other) && one.widens == other.widens;
  }

  size_t workspace_size(const plan::Problem& problem, const plan::Config& config) const override {
    return workspace_layout(problem, scratch_bytes(problem, config)).total_bytes;
  }

  Status run(detail::ContextState& context, const plan::Problem& problem,
             const plan::Config& config, const plan::Operands& operands,
             const CallOptions& options) const override {
    Session session(context, problem, options);
    if (Status status = session.begin(scratch_bytes(problem, config)); !status.ok()) return status;
    const Launch& launch = session.launch();
    if (Status status = check_memory(launch, operands, options); !status.ok()) return status;
    if (Status status = launch_steps(family_of(config), launch, problem, config, operands);
        !status.ok()) {
      return status;
    }
    return session.end();
  }

  Status run_bias_grad(detail::ContextState& context, const plan::Problem& problem,
                       const plan::Config& config, const BiasGradArgs& args,
                       const std::vector<int64_t>& host_offsets) const override {
    const KernelFamily& family = family_of(config);
    Session session(context, problem, args.options);
    if (Status status = session.begin(family.scratch_bytes(problem, config)); !status.ok()) {
      return status;
    }
    const Launch& launch = session.launch();
    if (Status status = check_memory(launch, args); !status.ok()) return status;
    if (Status status = family.launch_bias_grad(launch, problem, config, args, host_offsets);
        !status.ok()) {
      return status;
    }
    return session.end();
  }

  Status run_rows(detail::ContextState& context, const plan::Problem& problem,
                  const plan::Config& config, const plan::RowCall& call,
                  const CallOptions& options) const override {
    const KernelFamily& family = family_of(config);
    Session session(context, problem, options);
    if (Status status = session.begin(family.scratch_bytes(problem, config)); !status.ok()) {
      return status;
    }
    if (Status status = check_memory(session.launch(), call, options); !status.ok()) return status;
    if (Status status = family.launch_rows(session.launch(), problem, call); !status.ok()) {
      return status;
    }
    return session.end();
  }

  Status check(detail::ContextState& context, Device device, void* stream) const override {
    if (device.kind != DeviceKind::kCuda) return {};
    return check_status_word(context, device.index, static_cast<cudaStream_t>(stream));
  }

 private:
  static size_t scratch_bytes(const plan::Problem& problem, const plan::Config& config) {
    return step_bytes(problem, config) +
           family_of(config).scratch_bytes(kernel_problem(problem, ProductSteps::of(config)),
                                           config);
  }

  std::string name_;
  std::string kernel_prefix_;
};

}  // namespace

std::unique_ptr<plan::Backend> make_cuda_backend(std::string name, std::string kernel_prefix) {
  return std::make_unique<CudaBackend>(std::move(name), std::move(kernel_prefix));
}

}  // namespace cadre::cuda
