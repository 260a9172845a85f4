// Which kernel a problem gets, and why each other one refuses it. For `cadre explain` and the C
// ABI.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "plan/backend.h"

namespace cadre::backend {

/// What one kernel says when it is asked by name.
struct Answer {
  std::string backend{};
  std::string kernel{};
  bool takes = false;
  std::string config{};  ///< printed Config, when it takes the problem
  std::string reason{};  ///< when it refuses
};

struct Explanation {
  plan::Problem problem{};
  std::string chosen_backend{};  ///< empty: no backend takes it
  plan::Config config{};
  std::string tuning{};  ///< what measurements say of the choice
  size_t workspace_bytes = 0;
  std::vector<Answer> answers{};  ///< every kernel of every backend
};

/// `pinned` is a kernel's name, or null.
Explanation explain(const detail::ContextState& context, const plan::Problem& problem,
                    const char* pinned);

/// Lines for people, each with its end.
std::string to_string(const Explanation& explanation);

}  // namespace cadre::backend
