// The randomised differential test: seeded cases of every op against the exact result.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "verify/check_case.h"

namespace cadre::verify {

struct DifferentialOptions {
  int64_t cases = 2000;
  uint64_t seed = 1;         ///< case i is random_case(seed + i), so any one can be run alone
  int64_t max_failures = 5;  ///< stop after this many failing cases
  /// The backend's name, for the command that repeats a case; empty: the context's own choice.
  std::string backend{};
  /// The instruction set the context was made for, for the same command; empty: its own choice.
  std::string isa{};
  /// Called after each case with the number done; may be empty.
  std::function<void(int64_t)> progress{};
};

struct CaseFailure {
  uint64_t seed = 0;
  std::string description;  ///< to_string of the case
  std::vector<std::string> failures;
  std::string command;  ///< repeats this case alone
};

struct DifferentialReport {
  int64_t cases_run = 0;
  std::vector<CaseFailure> failures;

  bool passed() const { return failures.empty() && cases_run > 0; }
};

DifferentialReport run_differential(const Subject& subject, const DifferentialOptions& options);

/// Several lines: the case, what was wrong, and the command that repeats it.
std::string to_string(const CaseFailure& failure);

}  // namespace cadre::verify
