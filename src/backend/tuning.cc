// The tables of a Context, read by its first product, and what they choose.
#include "backend/tuning.h"

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <unordered_map>

#include "core/text.h"

namespace cadre::backend {
namespace {

struct Found {
  TuningEntry entry;
  size_t source;  ///< index of sources()
};
using Entries = std::unordered_map<TuningKey, Found, TuningKeyHash>;

/// Nothing changes after it is made but which entries belong to a device.
class Tables final : public detail::ContextState::Attachment {
 public:
  explicit Tables(const std::string& cache) {
    if (!cache.empty()) {
      bool exists = false;
      TuningFile file = read_tuning(cache, &exists);
      add(cache, std::move(file), exists);
    }
    for (const ShippedTable& table : shipped_tables()) {
      add(text(table.name, " (shipped)"), parse_tuning(table.text), true);
    }
  }

  static Tables& of(const detail::ContextState& context) {
    static const char owner = 0;
    return static_cast<Tables&>(context.attachment(
        &owner, [&context] { return std::make_unique<Tables>(context.tune_cache); }));
  }

  bool empty() const { return by_machine_.empty(); }
  const std::vector<TuningSource>& sources() const { return sources_; }

  /// Null where there is none for this machine.
  const Entries* entries_for(const detail::ContextState& context, const plan::Backend& backend,
                             Device device) {
    const std::scoped_lock lock(mutex_);
    for (const Known& known : known_) {
      if (known.backend == &backend && known.device == device) return known.entries;
    }
    const auto found = by_machine_.find(backend.machine(context, device));
    const Entries* entries = found == by_machine_.end() ? nullptr : &found->second;
    known_.push_back({&backend, device, entries});
    return entries;
  }

 private:
  struct Known {
    const plan::Backend* backend;
    Device device;
    const Entries* entries;
  };

  /// What is there already stays: the user's file comes first.
  void add(std::string name, TuningFile file, bool exists) {
    std::string status = text(file.entries.size(), " entries");
    if (file.outdated > 0) status += text(", ", file.outdated, " of other kernels are ignored");
    if (!exists) status = "no such file";
    if (!file.fault.empty()) status = text("ignored: ", file.fault);
    if (!no_tables_reason().empty()) status = no_tables_reason();  // whether there is a file or not
    sources_.push_back({std::move(name), std::move(status)});
    for (TuningEntry& entry : file.entries) {
      const TuningKey key = entry.key;
      Entries& entries = by_machine_[entry.machine];
      entries.try_emplace(key, Found{std::move(entry), sources_.size() - 1});
    }
  }

  std::vector<TuningSource> sources_;
  std::unordered_map<std::string, Entries> by_machine_;
  std::mutex mutex_;
  std::vector<Known> known_;
};

bool is_product(plan::Op op) {
  return op == plan::Op::kGmm || op == plan::Op::kTgmm || op == plan::Op::kGroupedGemm;
}

std::string no_entry(const plan::Backend& backend, const detail::ContextState& context,
                     const plan::Problem& problem, const Tables& tables) {
  std::string looked;
  for (const TuningSource& source : tables.sources()) {
    looked += text(looked.empty() ? " in " : ", ", source.name, " (", source.status, ")");
  }
  return text("no entry for \"", backend.machine(context, problem.device), "\", ",
              to_string(key_of(problem)), looked);
}

/// The choice of an entry, or why not.
Status apply(const detail::ContextState& context, const plan::Backend& backend,
             const plan::Problem& problem, const TuningEntry& entry, plan::Config* config) {
  plan::Config tuned;
  if (Status status = backend.choose(context, problem, entry.kernel.c_str(), &tuned);
      !status.ok()) {
    return status;
  }
  if (!backend.same_bits(problem, *config, tuned)) {
    return Status::unsupported(text("it may give other bits than ", config->kernel));
  }
  if (problem.device.kind == DeviceKind::kCpu) {
    tuned.threads = std::min(tuned.threads, entry.threads);
  }
  *config = tuned;
  return {};
}

}  // namespace

std::string TunedChoice::word() const {
  if (entry == nullptr) return none;
  if (!refused.empty()) return text(source, " names ", entry->kernel, ", ignored: ", refused);
  char ratio[32];
  std::snprintf(ratio, sizeof(ratio), "%.2f", entry->default_seconds / entry->seconds);
  return text(entry->kernel, ", ", ratio, " times as fast as ", entry->default_kernel, ", by ",
              source);
}

std::vector<TuningSource> tuning_sources(const detail::ContextState& context) {
  return context.tuned ? Tables::of(context).sources() : std::vector<TuningSource>{};
}

void choose_tuned(const detail::ContextState& context, const plan::Backend& backend,
                  const plan::Problem& problem, plan::Config* config, TunedChoice* says) {
  if (!is_product(problem.op) || !context.tuned) {
    if (says != nullptr) says->none = context.tuned ? "not for this op" : "off";
    return;
  }
  Tables& tables = Tables::of(context);
  const Entries* entries =
      tables.empty() ? nullptr : tables.entries_for(context, backend, problem.device);
  const auto found =
      entries == nullptr ? Entries::const_iterator{} : entries->find(key_of(problem));
  if (entries == nullptr || found == entries->end()) {
    if (says != nullptr) says->none = no_entry(backend, context, problem, tables);
    return;
  }
  const Status status = apply(context, backend, problem, found->second.entry, config);
  if (says == nullptr) return;
  says->entry = &found->second.entry;
  says->source = tables.sources()[found->second.source].name;
  says->refused = status.message();
}

std::vector<plan::Config> tuning_candidates(const detail::ContextState& context,
                                            const plan::Backend& backend,
                                            const plan::Problem& problem) {
  std::vector<plan::Config> candidates;
  plan::Config own;
  if (!is_product(problem.op) || !backend.choose(context, problem, nullptr, &own).ok()) return {};
  candidates.push_back(own);
  for (const std::string& kernel : backend.kernels()) {
    plan::Config other;
    if (kernel == own.kernel || !backend.choose(context, problem, kernel.c_str(), &other).ok() ||
        !backend.same_bits(problem, own, other)) {
      continue;
    }
    const bool known = std::any_of(candidates.begin(), candidates.end(), [&](const auto& one) {
      return backend.same_kernel(one, other);
    });
    if (!known) candidates.push_back(other);
  }
  if (problem.device.kind != DeviceKind::kCpu) return candidates;
  const size_t kernels = candidates.size();
  for (size_t i = 0; i < kernels; ++i) {
    for (int32_t threads = candidates[i].threads / 2; threads >= 1; threads /= 2) {
      plan::Config fewer = candidates[i];
      fewer.threads = threads;
      candidates.push_back(fewer);
    }
  }
  return candidates;
}

}  // namespace cadre::backend
