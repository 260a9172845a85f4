// Runs random cases and says how to repeat one that fails.
#include "verify/differential.h"

#include "core/text.h"

namespace cadre::verify {

DifferentialReport run_differential(const Subject& subject, const DifferentialOptions& options) {
  DifferentialReport report;
  for (int64_t i = 0; i < options.cases; ++i) {
    const uint64_t seed = options.seed + static_cast<uint64_t>(i);
    const Case test_case = random_case(seed);
    std::vector<std::string> failures = check_case(subject, test_case);
    ++report.cases_run;
    if (!failures.empty()) {
      std::string command = options.isa.empty() ? "" : text("CADRE_ISA=", options.isa, " ");
      command += text("cadre verify --cases 1 --seed ", seed);
      if (!options.backend.empty()) command += text(" --backend ", options.backend);
      report.failures.push_back({seed, to_string(test_case), std::move(failures), command});
    }
    if (options.progress) options.progress(report.cases_run);
    if (static_cast<int64_t>(report.failures.size()) >= options.max_failures) break;
  }
  return report;
}

std::string to_string(const CaseFailure& failure) {
  std::string out = text("case ", failure.seed, ": ", failure.description, "\n");
  for (const std::string& line : failure.failures) out += text("  ", line, "\n");
  return out + text("  repeat with: ", failure.command, "\n");
}

}  // namespace cadre::verify
