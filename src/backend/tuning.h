// Measurements decide between kernels: what a Context has read of them, and the choice they lead
// to. A measurement only ever chooses among kernels that give the same bits.
#pragma once

#include <string>
#include <vector>

#include "backend/tuning_file.h"
#include "plan/backend.h"

namespace cadre::backend {

/// A file or a shipped table as a Context sees it.
struct TuningSource {
  std::string name{};    ///< its path, or "nvidia-h200.json (shipped)"
  std::string status{};  ///< "12 entries", "no such file", "ignored: not JSON, or cut off"
};

/// Reads them, unless that has been done. Empty where the Context wants none.
std::vector<TuningSource> tuning_sources(const detail::ContextState& context);

/// What the measurements say of one problem.
struct TunedChoice {
  const TuningEntry* entry = nullptr;  ///< lives as long as the Context
  std::string source{};                ///< where it is from
  std::string refused{};               ///< why the kernel that it names was not chosen
  std::string none{};                  ///< why there is no entry

  /// "sm90/gmm_192x128, 1.04 times as fast as sm90/gmm_192x256, by nvidia-h200.json (shipped)"
  std::string word() const;
};

/// Replaces `*config`, which the backend has chosen by its own rules, where an entry knows better.
/// `says` is for people: null in a call.
void choose_tuned(const detail::ContextState& context, const plan::Backend& backend,
                  const plan::Problem& problem, plan::Config* config, TunedChoice* says = nullptr);

/// The choices among which a measurement may decide, the backend's own first: other kernels of the
/// same bits, and on a CPU fewer threads.
std::vector<plan::Config> tuning_candidates(const detail::ContextState& context,
                                            const plan::Backend& backend,
                                            const plan::Problem& problem);

}  // namespace cadre::backend
