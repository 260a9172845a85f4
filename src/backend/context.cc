// Context: resolves options and environment once.
#include "cadre/context.h"

#include "backend/registry.h"
#include "core/environment.h"
#include "core/text.h"
#include "cpu/isa.h"
#include "cpu/threads.h"

namespace cadre {
namespace {

Status resolve(const ContextOptions& options, detail::ContextState* state) {
  if (options.num_threads < 0 || options.num_threads > environment::kMaxThreads) {
    return Status::invalid(text("context: num_threads = ", options.num_threads, ", expected 0 to ",
                                environment::kMaxThreads));
  }
  if (options.sm_count < 0) {
    return Status::invalid(text("context: sm_count = ", options.sm_count, ", expected 0 or more"));
  }
  state->sm_count = options.sm_count;
  state->num_threads = options.num_threads;
  if (state->num_threads == 0) {
    if (Status status = environment::num_threads(&state->num_threads); !status.ok()) return status;
  }
  if (state->num_threads == 0) state->num_threads = cpu::default_thread_count();
  state->isa = options.isa.empty() ? environment::isa() : options.isa;
  cpu::Isa isa;
  if (Status status = cpu::resolve_isa(state->isa, &isa); !status.ok()) return status;
  state->backend = options.backend.empty() ? environment::backend() : options.backend;
  const backend::Registry& registry = backend::Registry::instance();
  if (!state->backend.empty() && registry.find(state->backend) == nullptr) {
    return Status::invalid(
        text("context: backend = \"", state->backend, "\", expected one of ", registry.names()));
  }
  if (Status status = environment::tuned(&state->tuned); !status.ok()) return status;
  state->tuned &= options.tuned;
  state->tune_cache = options.tune_cache.empty() ? environment::tune_cache() : options.tune_cache;
  bool check = false;  // read again by every call: here for the error alone
  return environment::check_every_call(&check);
}

}  // namespace

Context::Context(const ContextOptions& options) : state_(new detail::ContextState) {
  state_->status = resolve(options, state_.get());
}

Context::~Context() = default;
Context::Context(Context&&) noexcept = default;
Context& Context::operator=(Context&&) noexcept = default;

const Status& Context::status() const { return state_->status; }

Status Context::check(Device device, void* stream) {
  const backend::Registry& registry = backend::Registry::instance();
  const auto kind = static_cast<int32_t>(device.kind);
  if (kind != 0 && kind != 1) {
    return Status::invalid(text("check: device.kind = ", kind, ", expected 0 (cpu) or 1 (cuda)"));
  }
  if (device.index < 0) {
    return Status::invalid(text("check: device.index = ", device.index, ", expected 0 or more"));
  }
  if (device.kind == DeviceKind::kCuda && registry.find("cuda") == nullptr) {
    return Status::unsupported(
        text("check: device = cuda:", device.index, ", but this library was built without CUDA"));
  }
  for (const auto& backend : registry.backends()) {
    if (Status status = backend->check(*state_, device, stream); !status.ok()) return status;
  }
  bool check = false;  // read again by every call: here for the error alone
  return environment::check_every_call(&check);
}

}  // namespace cadre
