// The time that a call takes on the host, as a range of NVTX's domain "cadre": Nsight Systems shows
// it above the kernels that the call launched. Without a tool that listens it costs a load and a
// branch.
#pragma once

#include "plan/problem.h"

namespace cadre::cuda {

class TraceRange {
 public:
  /// Opened under the problem's own text: "gmm m=4096 k=2048 n=1536 groups=8 bf16 x bf16 -> bf16
  /// ...".
  explicit TraceRange(const plan::Problem& problem);
  ~TraceRange();
  TraceRange(const TraceRange&) = delete;
  TraceRange& operator=(const TraceRange&) = delete;

  /// Whether a tool listens: one that NVTX_INJECTION64_PATH names, or one that the process was
  /// started under.
  static bool listening();
};

}  // namespace cadre::cuda
