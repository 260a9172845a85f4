// Lists of pointers. gmm has a tensor map for each group, made on the device. The copy engine takes
// addresses that are multiples of 16 bytes alone; where the pointers lie on the device nobody on
// the host has read them, so a kernel of the call looks at them: the Hopper kernel does nothing
// when one of them is unaligned, and a portable one nothing when all are aligned.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#include "cadre/status.h"
#include "cuda/launch.h"
#include "plan/operands.h"
#include "plan/problem.h"

namespace cadre::sm90 {

struct MappedList {
  void* const* pointers = nullptr;  ///< on the device; null: no list
  CUtensorMap pattern;
  CUtensorMap* maps = nullptr;
};

/// Plain: it travels as a kernel parameter.
struct MappedLists {
  MappedList lists[3];
  int64_t count = 0;  ///< groups: pointers of each list
  uint32_t* unaligned = nullptr;
};

/// maps[i] of each list becomes `pattern` with the base pointers[i]. *unaligned becomes 1 when a
/// pointer is no multiple of 16 bytes, whose map must not be used, else 0.
Status make_list_maps(const cuda::Launch& launch, const MappedLists& lists);

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
