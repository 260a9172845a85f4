// The order in which kernel families are tried.
#include <iterator>

#include "cuda/kernel_family.h"
#include "cuda/sm80/family.h"
#include "cuda/sm90/families.h"

namespace cadre::cuda {

std::span<const KernelFamily* const> families() {
  static const KernelFamily* const ordered[] = {&sm90::gmm_family(), &sm90::tgmm_family(),
                                                &sm90::grouped_family(), &sm80::portable_family()};
  static_assert(std::size(ordered) <= kMaxFamilies);
  return ordered;
}

}  // namespace cadre::cuda
