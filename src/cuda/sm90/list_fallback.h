// Lists of pointers that lie on the device: the copy engine takes addresses that are multiples of
// 16 bytes alone, and nobody on the host has read these. A kernel of the call looks at them; the
// Hopper kernel does nothing when one of them is unaligned, and a portable one nothing when all are
// aligned.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cadre/status.h"
#include "cuda/launch.h"
#include "plan/operands.h"
#include "plan/problem.h"

namespace cadre::sm90 {

/// Whether the pointers of this operand must be looked at on the device.
bool is_unread_list(const plan::OperandLayout& layout);

/// The same for any operand of the call that the copy engine touches.
bool has_unread_list(const plan::Problem& problem);

/// Scratch of a call whose Hopper kernel needs `bytes` of it. A call with unread lists needs some
/// for the portable kernel too, after the Hopper kernel's own.
size_t scratch_with_fallback(const plan::Problem& problem, size_t bytes);

/// The portable kernel, which does nothing while *only_if is 0. `bytes` as above.
Status launch_fallback(const cuda::Launch& launch, const plan::Problem& problem,
                       const plan::Operands& operands, const uint32_t* only_if, size_t bytes);

}  // namespace cadre::sm90
