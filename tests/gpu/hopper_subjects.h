// The Hopper kernels as subjects of the contract suites: which there are, and how a case becomes
// one that they take.
#pragma once

#include <string>
#include <vector>

#include "tests/support/subjects.h"

namespace cadre::tests {

/// Columns and operands of a fitted case.
enum class HopperFit {
  kWhole,   ///< k and n are multiples of 8
  kRagged,  ///< they aren't, only strides are; sizes, offsets and lists lie on the device
};

struct HopperSubject {
  std::string name;      ///< "sm90_192x256"
  std::string kernel{};  ///< of gmm, pinned; empty: the library chooses, for every op
  HopperFit fit = HopperFit::kWhole;
  int32_t sm_count = 0;  ///< few: every CTA takes many tiles
  bool f32_out = true;   ///< the kernel writes f32
  bool c = true;         ///< the kernel reads C
};

const std::vector<HopperSubject>& hopper_subjects();

/// Null when no Hopper subject has this name.
const HopperSubject* find_hopper_subject(const std::string& name);

/// Makes the case one for this subject: wider (strides are multiples of 16 bytes then), and of more
/// rows, so that groups span several tiles. False when only a portable kernel takes its like.
bool fit_to_hopper(const HopperSubject& subject, verify::Case* test_case);

}  // namespace cadre::tests
