// What choosing a kernel costs a call with and without the tables of `cadre tune`. No product is
// computed. usage: tuning_lookup
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <vector>

#include "backend/registry.h"
#include "backend/tuning.h"
#include "cadre/gmm.h"
#include "ops/problem_of.h"

namespace {

using cadre::Context;

/// Nanoseconds of a choice: the median of 41 rounds.
double nanoseconds(const Context& context, const cadre::plan::Problem& problem) {
  constexpr int kRounds = 41, kChoices = 20000;
  std::vector<double> times;
  for (int round = 0; round < kRounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kChoices; ++i) {
      cadre::backend::Selection selection;
      if (!cadre::backend::Registry::instance()
               .select(context.state(), problem, nullptr, &selection)
               .ok()) {
        std::exit(1);
      }
    }
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    times.push_back(taken.count() / kChoices * 1e9);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

}  // namespace

int main() {
  static char memory[4096];
  const std::vector<int32_t> sizes = {3, 5};
  const cadre::GmmArgs args{
      .lhs = cadre::TensorView::contiguous(memory, cadre::DType::kI8, {8, 16}),
      .rhs = cadre::TensorView::contiguous(memory + 512, cadre::DType::kI8, {2, 16, 8}),
      .group_sizes = {sizes.data(), cadre::DType::kI32, 2},
      .out = cadre::TensorView::contiguous(memory + 2048, cadre::DType::kI32, {8, 8})};
  cadre::plan::Problem problem;
  if (!cadre::ops::problem_of(args, &problem).ok()) return 1;
  const Context off({.num_threads = 2, .tuned = false});
  const cadre::plan::Backend& cpu = *cadre::backend::Registry::instance().find("cpu");
  std::vector<cadre::backend::TuningEntry> entries;
  for (int64_t i = 0; i < 1000; ++i) {
    entries.push_back({.machine = cpu.machine(off.state(), problem.device),
                       .key = cadre::backend::key_of(problem),
                       .kernel = "cpu/scalar",
                       .threads = 1,
                       .seconds = 1,
                       .default_kernel = "cpu/scalar",
                       .default_seconds = 1});
    entries.back().key.k += i;
  }
  const std::string file = (std::filesystem::temp_directory_path() / "cadre_lookup.json").string();
  const auto with = [&](const char* what) {
    std::ofstream(file) << cadre::backend::tuning_text(entries);
    const Context context({.num_threads = 2, .tune_cache = file});
    std::printf("%-44s %6.0f ns\n", what, nanoseconds(context, problem));
  };
  std::printf("%-44s %6.0f ns\n", "without tables (tuned = false)", nanoseconds(off, problem));
  with("an entry decides, 1000 entries");
  entries.erase(entries.begin());
  with("no entry for the problem, 999 entries");
  entries.clear();
  with("an empty table");
  std::filesystem::remove(file);
}
