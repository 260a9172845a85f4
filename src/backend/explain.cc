// Asks every kernel by name, and the backends in order for the choice.
#include "backend/explain.h"

#include <algorithm>
#include <iomanip>
#include <sstream>

#include "backend/registry.h"
#include "backend/tuning.h"
#include "core/text.h"

namespace cadre::backend {
namespace {

using Answers = std::vector<Answer>;

/// Behind the kernels of one backend that refuse for the same reason as the first.
Answers::const_iterator end_of_same_refusal(Answers::const_iterator first,
                                            Answers::const_iterator end) {
  if (first->takes) return first + 1;
  return std::find_if(first + 1, end, [&](const Answer& answer) {
    return answer.takes || answer.backend != first->backend || answer.reason != first->reason;
  });
}

}  // namespace

Explanation explain(const detail::ContextState& context, const plan::Problem& problem,
                    const char* pinned) {
  Explanation result{.problem = problem};
  for (const auto& backend : Registry::instance().backends()) {
    const std::string name(backend->name());
    const bool skipped = !context.backend.empty() && context.backend != name;
    plan::Config config;
    if (!skipped && result.chosen_backend.empty() &&
        backend->choose(context, problem, pinned, &config).ok()) {
      result.chosen_backend = name;
      if (pinned == nullptr) {
        TunedChoice tuned;
        choose_tuned(context, *backend, problem, &config, &tuned);
        result.tuning = tuned.word();
      } else {
        result.tuning = "not asked: a kernel is pinned";
      }
      result.config = config;
      result.workspace_bytes = backend->workspace_size(problem, config);
    }
    for (const std::string& kernel : backend->kernels()) {
      Answer answer{.backend = name, .kernel = kernel};
      const Status status = backend->choose(context, problem, kernel.c_str(), &config);
      answer.takes = status.ok() && !skipped;
      answer.config = status.ok() ? to_string(config) : "";
      answer.reason =
          skipped ? text("not asked: the backend is set to ", context.backend) : status.message();
      result.answers.push_back(answer);
    }
  }
  return result;
}

std::string to_string(const Explanation& result) {
  std::ostringstream lines;
  lines << "Problem   " << to_string(result.problem) << "\n";
  if (result.chosen_backend.empty()) {
    lines << "Chosen    none: every kernel refuses\n";
  } else {
    lines << "Chosen    " << to_string(result.config) << " (backend " << result.chosen_backend
          << ")\nTuning    " << result.tuning << "\nWorkspace " << result.workspace_bytes
          << " bytes\n";
  }
  lines << "\nEvery kernel, asked by name\n" << std::left;
  for (auto answer = result.answers.begin(); answer != result.answers.end();) {
    const auto next = end_of_same_refusal(answer, result.answers.end());
    const bool chosen =
        answer->backend == result.chosen_backend && answer->kernel == result.config.kernel;
    lines << (chosen ? "  * " : "    ") << std::setw(12) << answer->backend << std::setw(22)
          << (next - answer > 1 ? text(next - answer, " kernels") : answer->kernel)
          << (answer->takes ? "takes it: " + answer->config : "refuses: " + answer->reason) << "\n";
    answer = next;
  }
  if (result.problem.device.kind == DeviceKind::kCuda &&
      Registry::instance().find("cuda") == nullptr) {
    lines << "\nThis build has no CUDA backend: configure with -DCADRE_CUDA=ON.\n";
  }
  return lines.str();
}

}  // namespace cadre::backend
