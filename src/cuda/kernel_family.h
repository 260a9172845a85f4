// A family of kernels: what it takes, which of its kernels a problem gets, and how to launch it.
// families.cc orders them; the first that takes a problem runs it.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "cadre/bias_grad.h"
#include "cadre/status.h"
#include "cuda/device.h"
#include "cuda/launch.h"
#include "plan/config.h"
#include "plan/operands.h"
#include "plan/problem.h"
#include "plan/row_call.h"

namespace cadre::cuda {

class KernelFamily;

/// What Config::choice points to in this backend; each family derives the rows of its own table.
struct FamilyKernel : plan::KernelChoice {
  const KernelFamily& (*family)() = nullptr;
};

class KernelFamily {
 public:
  virtual ~KernelFamily() = default;

  /// Names of the kernels, best first: "sm80/bf16_128x128". All start with the family's own prefix;
  /// a caller may pin one of them.
  virtual std::span<const std::string_view> kernels() const = 0;

  /// Ok, or kUnsupported with the reason ("needs compute capability 9.0").
  virtual Status supports(const plan::Problem& problem, const DeviceProperties& device) const = 0;

  /// Whether its kernels follow the index of rows; otherwise they get a copy of the rows
  /// (product_steps.h).
  virtual bool follows_rows(const plan::Problem& /*problem*/) const { return false; }

  /// The configuration of a supported problem, its `choice` a FamilyKernel of this family; `pinned`
  /// is one of kernels() or null. kUnsupported when the pinned kernel can't run the problem.
  virtual Status configure(const plan::Problem& problem, const DeviceProperties& device,
                           const char* pinned, plan::Config* config) const = 0;

  /// Bytes the kernel needs at Workspace::scratch(), for this choice on any device.
  virtual size_t scratch_bytes(const plan::Problem& /*problem*/,
                               const plan::Config& /*config*/) const {
    return 0;
  }

  /// gmm, tgmm or grouped_gemm. The device is current; nothing may allocate, wait or read device
  /// memory.
  virtual Status launch(const Launch& launch, const plan::Problem& problem,
                        const plan::Config& config, const plan::Operands& operands) const = 0;

  /// `host_offsets` as in Operands.
  virtual Status launch_bias_grad(const Launch& /*launch*/, const plan::Problem& /*problem*/,
                                  const plan::Config& /*config*/, const BiasGradArgs& /*args*/,
                                  const std::vector<int64_t>& /*host_offsets*/) const {
    return Status::internal("bias_grad: this kernel family has no bias_grad");
  }

  virtual Status launch_rows(const Launch& launch, const plan::Problem& /*problem*/,
                             const plan::RowCall& /*call*/) const {
    return Status::internal(text(launch.op, ": this kernel family has no row ops"));
  }
};

/// All families, best first; at most kMaxFamilies.
inline constexpr size_t kMaxFamilies = 8;
std::span<const KernelFamily* const> families();

}  // namespace cadre::cuda
