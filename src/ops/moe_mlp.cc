// MoeMlp: checks everything, then calls its ops one after the other on one stream. A pass is a list
// of steps (moe_mlp_passes.cc) that is made twice: with addresses that nobody reads, to check each
// step and to learn how much workspace it needs, and with those of the workspace, to run it.
#include "cadre/moe_mlp.h"

#include <algorithm>
#include <memory>

#include "core/per_thread.h"
#include "ops/guarded.h"
#include "ops/moe_mlp_check.h"
#include "ops/moe_mlp_passes.h"

namespace cadre {
namespace {

using ops::MoeDims;
using ops::MoePasses;
using ops::OpStep;
using ops::OpSteps;
using ops::Scratch;

constexpr std::string_view kName = "moe_mlp";
/// Where tensors of the workspace lie while a pass is only checked: no memory of any process.
constexpr uintptr_t kMadeUpAddress = uintptr_t{0x7} << 60;

/// An op's error, with what it was to compute in front.
Status within(const OpStep& step, const Status& status) {
  if (status.ok()) return status;
  return {status.code(), text(kName, ": ", step.what, ": ", status.message())};
}

/// Memory that a CPU call keeps between its ops, and the thread between its calls.
class HostBuffer {
 public:
  static void* of_this_thread(size_t bytes) {
    static PerThread<HostBuffer> buffers;
    HostBuffer* const buffer = buffers.get();
    if (buffer == nullptr) throw std::bad_alloc();
    if (buffer->bytes_ < bytes) {
      buffer->data_.reset();
      buffer->bytes_ = 0;
      buffer->data_.reset(new std::byte[bytes]);
      buffer->bytes_ = bytes;
    }
    return buffer->data_.get();
  }

 private:
  std::unique_ptr<std::byte[]> data_;
  size_t bytes_ = 0;
};

struct PassBytes {
  size_t tensors = 0;  ///< between the ops
  size_t op = 0;       ///< the largest need of one of them

  /// Room for aligning the start included.
  size_t total() const { return tensors + op == 0 ? 0 : tensors + op + ops::kScratchAlignment; }
};

/// Checks every step of `make_steps(Scratch&)`.
template <typename MakeSteps>
Status check_pass(Context& context, const MoeDims& dims, const CallOptions& options,
                  MakeSteps make_steps, PassBytes* bytes) {
  Scratch scratch(reinterpret_cast<void*>(kMadeUpAddress), dims.device);
  OpSteps steps = make_steps(scratch);
  bytes->tensors = scratch.bytes();
  CallOptions own = options;
  own.workspace = nullptr;
  own.workspace_size_bytes = 0;
  for (OpStep& step : steps) {
    step.set_options(own);
    size_t needed = 0;
    if (Status status = within(step, workspace_size(context, step, &needed)); !status.ok()) {
      return status;
    }
    bytes->op = std::max(bytes->op, needed);
  }
  return {};
}

/// Checks, finds the memory, runs.
template <typename MakeSteps>
Status run_pass(Context& context, const MoeDims& dims, const CallOptions& options,
                MakeSteps make_steps) {
  PassBytes bytes;
  Status status = check_pass(context, dims, options, make_steps, &bytes);
  if (!status.ok()) return status;
  const bool on_host = dims.device.kind == DeviceKind::kCpu;
  void* memory = options.workspace;
  if (memory == nullptr && !on_host && bytes.total() > 0) {
    return Status::invalid(text(kName, ": options.workspace = null, expected ", bytes.total(),
                                " bytes on ", ops::device_name(dims.device)));
  }
  if (memory != nullptr && options.workspace_size_bytes < bytes.total()) {
    return Status::invalid(text(kName,
                                ": options.workspace_size_bytes = ", options.workspace_size_bytes,
                                ", expected at least ", bytes.total()));
  }
  if (memory == nullptr && bytes.total() > 0) memory = HostBuffer::of_this_thread(bytes.total());
  memory = reinterpret_cast<void*>(ops::align_scratch(reinterpret_cast<uintptr_t>(memory)));
  Scratch scratch(memory, dims.device);
  OpSteps steps = make_steps(scratch);
  CallOptions own = options;
  own.workspace = bytes.op > 0 ? static_cast<char*>(memory) + bytes.tensors : nullptr;
  own.workspace_size_bytes = bytes.op;
  for (OpStep& step : steps) {
    step.set_options(own);
    if (status = within(step, run(context, step)); !status.ok()) return status;
  }
  return {};
}

}  // namespace

MoeMlp::MoeMlp(const MoeMlpWeights& weights, const MoeMlpOptions& options)
    : weights_(weights), options_(options) {}

Status MoeMlp::forward(Context& context, const MoeMlpForwardArgs& args, MoeMlpSaved* saved) const {
  return ops::guarded(kName, [&]() -> Status {
    MoePasses layer{weights_, options_};
    Status status = check_moe_forward(weights_, options_, args, &layer.dims);
    if (!status.ok()) return status;
    status = run_pass(context, layer.dims, args.options,
                      [&](Scratch& scratch) { return layer.forward(args, scratch); });
    if (status.ok() && saved != nullptr) {
      *saved = {.x = args.x, .preact = args.preact, .routing = args.routing};
    }
    return status;
  });
}

Status MoeMlp::forward_workspace_size(Context& context, const MoeMlpForwardArgs& args,
                                      size_t* size_bytes) const {
  return ops::guarded(kName, [&]() -> Status {
    *size_bytes = 0;
    MoePasses layer{weights_, options_};
    Status status = check_moe_forward(weights_, options_, args, &layer.dims);
    if (!status.ok()) return status;
    PassBytes bytes;
    status = check_pass(
        context, layer.dims, args.options,
        [&](Scratch& scratch) { return layer.forward(args, scratch); }, &bytes);
    if (status.ok()) *size_bytes = bytes.total();
    return status;
  });
}

Status MoeMlp::backward(Context& context, const MoeMlpSaved& saved,
                        const MoeMlpBackwardArgs& args) {
  return ops::guarded(kName, [&]() -> Status {
    const bool delayed = options_.delay_wgrad;
    MoePasses layer{weights_, options_};
    Status status = check_moe_backward(weights_, options_, saved, args, delayed, &layer.dims);
    if (!status.ok()) return status;
    const bool leaves_wgrad = delayed && (args.dw13.given() || args.dw2.given());
    if (leaves_wgrad) {
      PassBytes unused;
      status = check_pass(
          context, layer.dims, args.options,
          [&](Scratch& scratch) { return layer.backward_dw(saved, args, scratch); }, &unused);
      if (!status.ok()) return status;
    }
    status = run_pass(context, layer.dims, args.options, [&](Scratch& scratch) {
      return layer.backward(saved, args, delayed, scratch);
    });
    if (status.ok() && leaves_wgrad) pending_.push_back({saved, args});
    return status;
  });
}

Status MoeMlp::backward_workspace_size(Context& context, const MoeMlpSaved& saved,
                                       const MoeMlpBackwardArgs& args, size_t* size_bytes) const {
  return ops::guarded(kName, [&]() -> Status {
    *size_bytes = 0;
    const bool delayed = options_.delay_wgrad;
    MoePasses layer{weights_, options_};
    Status status = check_moe_backward(weights_, options_, saved, args, delayed, &layer.dims);
    if (!status.ok()) return status;
    PassBytes now;
    status = check_pass(
        context, layer.dims, args.options,
        [&](Scratch& scratch) { return layer.backward(saved, args, delayed, scratch); }, &now);
    PassBytes later;
    if (status.ok() && delayed && (args.dw13.given() || args.dw2.given())) {
      status = check_pass(
          context, layer.dims, args.options,
          [&](Scratch& scratch) { return layer.backward_dw(saved, args, scratch); }, &later);
    }
    if (status.ok()) *size_bytes = std::max(now.total(), later.total());
    return status;
  });
}

Status MoeMlp::weight_gradients(Context& context, const MoeMlpSaved& saved,
                                const MoeMlpBackwardArgs& args) const {
  return ops::guarded(kName, [&]() -> Status {
    MoePasses layer{weights_, options_};
    Status status = check_moe_backward(weights_, options_, saved, args, true, &layer.dims);
    if (!status.ok()) return status;
    return run_pass(context, layer.dims, args.options,
                    [&](Scratch& scratch) { return layer.backward_dw(saved, args, scratch); });
  });
}

Status MoeMlp::backward_dw(Context& context, const CallOptions& options) {
  if (pending_.empty()) return {};
  Pending oldest = pending_.front();
  pending_.pop_front();
  oldest.args.options = options;
  return weight_gradients(context, oldest.saved, oldest.args);
}

}  // namespace cadre
