// See lists.h.
#include "cuda/sm90/lists.h"

#include "cuda/sm80/family.h"

namespace cadre::sm90 {
namespace {

size_t rounded(size_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

bool is_unread_list(const plan::OperandLayout& layout) {
  return layout.placement == Placement::kList && layout.alignment_bytes == 1;
}

bool has_unread_list(const plan::Problem& problem) {
  return is_unread_list(problem.rhs) || is_unread_list(problem.out) ||
         (problem.epilogue.has_beta && is_unread_list(problem.epilogue.c));
}

size_t scratch_with_fallback(const plan::Problem& problem, size_t bytes) {
  if (!has_unread_list(problem)) return bytes;
  return rounded(bytes) + sm80::portable_family().scratch_bytes(problem, {});
}

Status launch_fallback(const cuda::Launch& launch, const plan::Problem& problem,
                       const plan::Operands& operands, const uint32_t* only_if, size_t bytes) {
  const cuda::KernelFamily& portable = sm80::portable_family();
  plan::Config config;
  if (Status status = portable.configure(problem, *launch.device, nullptr, &config); !status.ok()) {
    return status;
  }
  cuda::Launch rest = launch;
  rest.only_if = only_if;
  rest.workspace = launch.workspace.after(rounded(bytes));
  return portable.launch(rest, problem, config, operands);
}

}  // namespace cadre::sm90
