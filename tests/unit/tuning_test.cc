// Measurements of `cadre tune`: which file is read, what of it is believed, and that whatever it
// chooses has the bits of the library's own choice.
#include "backend/tuning.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "backend/explain.h"
#include "backend/registry.h"
#include "cadre/gmm.h"
#include "cadre/tgmm.h"
#include "core/convert.h"
#include "core/text.h"
#include "ops/problem_of.h"
#include "tests/support/scoped_environment.h"

namespace cadre::backend {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using tests::ScopedEnvironment;

constexpr int64_t kGroups = 3, kRows = 70, kK = 37, kN = 51;

/// A folder of its own, removed at the end.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "cadre_tune_XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string file(const std::string& name = "tune.json") const { return (path_ / name).string(); }
  std::string write(const std::string& content) const {
    std::ofstream(file()) << content;
    return file();
  }

 private:
  std::filesystem::path path_;
};

/// A gmm on random int8: results in int32, which every CPU kernel computes exactly.
struct Product {
  std::vector<int8_t> lhs = random(kRows * kK, 1), rhs = random(kGroups * kK * kN, 2);
  std::vector<int32_t> out = std::vector<int32_t>(kRows * kN, -77);
  std::vector<int32_t> sizes = {41, 0, 22};  // and 7 rows of tail

  static std::vector<int8_t> random(int64_t count, unsigned seed) {
    std::mt19937 engine(seed);
    std::vector<int8_t> values(static_cast<size_t>(count));
    for (int8_t& value : values) value = static_cast<int8_t>(engine());
    return values;
  }
  GmmArgs args() {
    return {.lhs = TensorView::contiguous(lhs.data(), DType::kI8, {kRows, kK}),
            .rhs = TensorView::contiguous(rhs.data(), DType::kI8, {kGroups, kK, kN}),
            .group_sizes = {sizes.data(), DType::kI32, kGroups},
            .out = TensorView::contiguous(out.data(), DType::kI32, {kRows, kN})};
  }
  plan::Problem problem() {
    plan::Problem problem;
    EXPECT_TRUE(ops::problem_of(args(), &problem).ok());
    return problem;
  }
};

const plan::Backend& cpu_backend() { return *Registry::instance().find("cpu"); }

plan::Config own_choice(const Context& context, const plan::Problem& problem) {
  plan::Config config;
  EXPECT_TRUE(cpu_backend().choose(context.state(), problem, nullptr, &config).ok());
  return config;
}

TuningEntry entry_for(const Context& context, const plan::Problem& problem,
                      const std::string& kernel, int32_t threads) {
  return {.machine = cpu_backend().machine(context.state(), problem.device),
          .key = key_of(problem),
          .kernel = kernel,
          .threads = threads,
          .seconds = 0.5,
          .default_kernel = std::string(own_choice(context, problem).kernel),
          .default_seconds = 0.75};
}

/// What a Context with this file chooses, and what it says of it.
std::pair<plan::Config, std::string> choice_with(const std::string& file,
                                                 const plan::Problem& problem) {
  const Context context({.num_threads = 4, .tune_cache = file});
  EXPECT_TRUE(context.status().ok()) << context.status().message();
  Selection selection;
  EXPECT_TRUE(Registry::instance().select(context.state(), problem, nullptr, &selection).ok());
  const Explanation explained = explain(context.state(), problem, nullptr);
  EXPECT_EQ(explained.config, selection.config) << "explain says something else than calls do";
  EXPECT_THAT(to_string(explained), HasSubstr("\nTuning    " + explained.tuning + "\n"));
  return {selection.config, explained.tuning};
}

TEST(Tuning, AnEntryForThisProblemDecides) {
  const Folder folder;
  Product product;
  const Context context({.num_threads = 4, .tuned = false});
  const std::string file =
      folder.write(tuning_text({entry_for(context, product.problem(), "cpu/scalar", 2)}));
  const auto [config, word] = choice_with(file, product.problem());
  EXPECT_EQ(config.kernel, "cpu/scalar");
  EXPECT_EQ(config.threads, 2);
  EXPECT_THAT(word, AllOf(HasSubstr("cpu/scalar, 1.50 times as fast as "), HasSubstr(file)));
}

TEST(Tuning, AProblemOfAnotherKeyKeepsTheLibrarysChoice) {
  const Folder folder;
  Product product;
  const Context context({.num_threads = 4, .tuned = false});
  const plan::Problem problem = product.problem();
  std::vector<TuningEntry> others(8, entry_for(context, problem, "cpu/scalar", 1));
  others[0].machine = "another machine, 4 threads";
  others[1].key.k += 1;
  others[2].key.n += 1;
  others[3].key.num_groups += 1;
  others[4].key.rows *= 2;
  others[5].key.transpose_rhs = true;
  others[6].key.op = plan::Op::kTgmm;
  others[7].key.lhs = DType::kBF16;
  const auto [config, word] = choice_with(folder.write(tuning_text(others)), problem);
  EXPECT_EQ(config, own_choice(context, problem));
  EXPECT_THAT(word, AllOf(HasSubstr("no entry for \""),
                          HasSubstr("gmm i8 x i8 -> i32, k 37, n 51, "
                                    "3 groups of up to 32 rows"),
                          HasSubstr("(8 entries)")));
}

/// Whatever the sizes of the groups: only their typical number of rows counts, by its magnitude.
TEST(Tuning, TheKeyHoldsMagnitudesAndNoGroupSizes) {
  Product product;
  const TuningKey key = key_of(product.problem());
  product.sizes = {1, 62, 0};
  EXPECT_EQ(key_of(product.problem()), key);
  GmmArgs args = product.args();
  for (const auto& [rows, bucket] :
       std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {2, 2}, {3, 4}, {512, 512}, {513, 1024}}) {
    args.options.average_rows = rows;
    plan::Problem problem;
    ASSERT_TRUE(ops::problem_of(args, &problem).ok());
    EXPECT_EQ(key_of(problem).rows, bucket);
  }
}

TEST(Tuning, DamagedAndForeignFilesAreNamedAndIgnored) {
  Product product;
  const Context context({.num_threads = 4, .tuned = false});
  const plan::Problem problem = product.problem();
  const std::string good = tuning_text({entry_for(context, problem, "cpu/scalar", 1)});
  const auto with = [&](const std::string& old, const std::string& now) {
    std::string changed = good;
    const size_t at = changed.find(old);
    EXPECT_NE(at, std::string::npos) << old;
    return changed.replace(at, old.size(), now);
  };
  const struct {
    std::string content, reason;
  } cases[] = {
      {good.substr(0, good.size() / 2), "ignored: not JSON, or cut off"},
      {"", "ignored: not JSON, or cut off"},
      {std::string(1000, '['), "ignored: not JSON, or cut off"},
      {"[]", "ignored: not a file of cadre tune"},
      {"{\"results\": []}", "ignored: not a file of cadre tune"},
      {with("\"schema\": 1", "\"schema\": 2"), "ignored: schema = 2, expected 1"},
      {with("\"schema\": 1", "\"schema\": \"1\""), "ignored: schema = \"1\""},
      {with("\"entries\": [", "\"entries\": 3, \"x\": ["), "ignored: no list of entries"},
      {with("\"threads\":1", "\"threads\":0"),
       "ignored: entry 0: threads = 0, expected a whole number from 1"},
      {with("\"threads\":1", "\"threads\":1.5"), "ignored: entry 0: threads = 1.5"},
      {with("\"seconds\":0.5", "\"seconds\":\"fast\""), "ignored: entry 0: seconds = \"fast\""},
      {with("\"seconds\":0.5", "\"seconds\":-1"), "ignored: entry 0: seconds = -1"},
      {with("\"op\":\"gmm\"", "\"op\":\"gnn\""), "ignored: entry 0: op = \"gnn\""},
      {with("\"lhs\":\"i8\"", "\"lhs\":\"i9\""), "ignored: entry 0: lhs = \"i9\""},
      {with("\"kernels\":1", "\"kernels\":0"), "0 entries, 1 of other kernels are ignored"},
      {with("{\"activation\"", "7, {\"activation\""), "ignored: entry 0 is no object"},
  };
  for (const auto& bad : cases) {
    const Folder folder;
    const auto [config, word] = choice_with(folder.write(bad.content), problem);
    EXPECT_EQ(config, own_choice(context, problem)) << bad.reason;
    EXPECT_THAT(word, HasSubstr(bad.reason)) << bad.content;
  }
  const Folder folder;
  EXPECT_THAT(choice_with(folder.file("none.json"), problem).second, HasSubstr("no such file"));
  EXPECT_THAT(choice_with(folder.file("."), problem).second, HasSubstr("ignored: "));
}

TEST(Tuning, AFileThatIsWrittenIsReadBackWhole) {
  Product product;
  const Context context({.num_threads = 4, .tuned = false});
  TuningEntry entry = entry_for(context, product.problem(), "cpu/scalar", 3);
  entry.machine = "a \"quoted\" name,\n 132 SMs";
  entry.key.activation = ActivationKind::kClampedSwiglu;
  entry.key.scales = ScaleMode::kBlock128;
  for (bool* flag :
       {&entry.key.interleaved, &entry.key.transpose_lhs, &entry.key.transpose_rhs,
        &entry.key.list_rhs, &entry.key.list_out, &entry.key.beta, &entry.key.by_index}) {
    *flag = !*flag;
    const TuningFile file = parse_tuning(tuning_text({entry, entry}));
    ASSERT_EQ(file.fault, "");
    ASSERT_EQ(file.entries.size(), 2u);
    EXPECT_EQ(file.entries[1].key, entry.key);
    EXPECT_EQ(file.entries[1].machine, entry.machine);
    EXPECT_EQ(file.entries[1].kernel, entry.kernel);
    EXPECT_EQ(file.entries[1].threads, entry.threads);
    EXPECT_EQ(file.entries[1].seconds, entry.seconds);
    EXPECT_EQ(file.entries[1].default_seconds, entry.default_seconds);
  }
}

TEST(Tuning, TheTablesThatAreShippedCanBeRead) {
  for (const ShippedTable& table : shipped_tables()) {
    const TuningFile file = parse_tuning(table.text);
    EXPECT_EQ(file.fault, "") << table.name;
    EXPECT_EQ(file.outdated, 0u) << table.name << " is for other kernels: make it again";
    EXPECT_FALSE(file.entries.empty()) << table.name;
  }
}

TEST(Tuning, OptionsAndVariablesTurnItOffAndNameTheFile) {
  const Folder folder;
  Product product;
  const plan::Problem problem = product.problem();
  const Context plain({.num_threads = 4, .tuned = false});
  const std::string file = folder.write(tuning_text({entry_for(plain, problem, "cpu/scalar", 1)}));
  const auto kernel_of = [&](const ContextOptions& options) {
    const Context context(options);
    Selection selection;
    EXPECT_TRUE(Registry::instance().select(context.state(), problem, nullptr, &selection).ok());
    return std::string(selection.config.kernel);
  };
  const std::string own(own_choice(plain, problem).kernel);
  {
    const ScopedEnvironment named("CADRE_TUNE_CACHE", file.c_str());
    EXPECT_EQ(kernel_of({.num_threads = 4}), "cpu/scalar");
    EXPECT_EQ(kernel_of({.num_threads = 4, .tune_cache = folder.file("none")}), own);
    EXPECT_EQ(kernel_of({.num_threads = 4, .tuned = false}), own);
    const ScopedEnvironment off("CADRE_TUNE", "0");
    EXPECT_EQ(kernel_of({.num_threads = 4}), own);
    EXPECT_EQ(explain(Context({.num_threads = 4}).state(), problem, nullptr).tuning, "off");
  }
  {
    std::filesystem::create_directories(folder.file("cadre"));
    std::filesystem::copy(file, folder.file("cadre/tune.json"));
    const ScopedEnvironment unnamed("CADRE_TUNE_CACHE", nullptr);
    const ScopedEnvironment cache("XDG_CACHE_HOME", folder.file("").c_str());
    EXPECT_EQ(kernel_of({.num_threads = 4}), "cpu/scalar");
  }
  const ScopedEnvironment bad("CADRE_TUNE", "maybe");
  EXPECT_EQ(Context().status().message(), "context: CADRE_TUNE = \"maybe\", expected 0 or 1");
}

/// The promise that lets a measurement decide at all. Every candidate of random products.
TEST(Tuning, EveryCandidateGivesTheSameBits) {
  std::mt19937 random(7);
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64, DType::kI8}) {
    for (const bool transposed : {false, true}) {
      const int64_t k = 1 + random() % 300, n = 1 + random() % 300, m = 90;
      const std::vector<int32_t> sizes = {33, 0, 56};
      const auto bytes = [&](int64_t count) {
        std::vector<char> values(static_cast<size_t>(count) * size_of(dtype));
        for (int64_t i = 0; i < count; ++i) {
          const double value = static_cast<double>(random()) * 0x1p-31 - 1;
          if (dtype == DType::kI8) {
            values[static_cast<size_t>(i)] = static_cast<char>(random());
          } else {
            store_rounded(values.data(), dtype, i, value);
          }
        }
        return values;
      };
      const std::vector<char> lhs = bytes(m * k), rhs = bytes(kGroups * k * n);
      const DType out_dtype = dtype == DType::kI8 ? DType::kI32 : dtype;
      std::vector<char> out(static_cast<size_t>(m * n) * size_of(out_dtype));
      GmmArgs args{.lhs = TensorView::contiguous(lhs.data(), dtype, {m, k}),
                   .rhs = transposed ? TensorView::contiguous(rhs.data(), dtype, {kGroups, n, k})
                                     : TensorView::contiguous(rhs.data(), dtype, {kGroups, k, n}),
                   .group_sizes = {sizes.data(), DType::kI32, kGroups},
                   .out = TensorView::contiguous(out.data(), out_dtype, {m, n}),
                   .transpose_rhs = transposed};
      plan::Problem problem;
      ASSERT_TRUE(ops::problem_of(args, &problem).ok());
      const Context four({.num_threads = 4, .tuned = false});
      const auto candidates = tuning_candidates(four.state(), cpu_backend(), problem);
      ASSERT_GE(candidates.size(), 3u) << "4, 2 and 1 threads at least";
      std::vector<char> first;
      for (const plan::Config& candidate : candidates) {
        const std::string kernel(candidate.kernel);
        Context context({.num_threads = candidate.threads, .tuned = false});
        args.options.config = kernel.c_str();
        std::memset(out.data(), 0xff, out.size());
        ASSERT_TRUE(gmm(context, args).ok());
        if (first.empty()) first = out;
        EXPECT_TRUE(out == first) << kernel << ", " << candidate.threads << " threads, "
                                  << name_of(dtype) << " k " << k << " n " << n;
      }
    }
  }
}

/// Kernels whose bits may differ are no candidates, and a file that names one is not believed.
TEST(Tuning, AKernelOfOtherBitsIsNeverChosen) {
  std::vector<float> lhs(20 * 30), rhs(2 * 30 * 10), out(20 * 10);
  const std::vector<int32_t> sizes = {11, 9};
  const GmmArgs args{.lhs = TensorView::contiguous(lhs.data(), DType::kF32, {20, 30}),
                     .rhs = TensorView::contiguous(rhs.data(), DType::kF32, {2, 30, 10}),
                     .group_sizes = {sizes.data(), DType::kI32, 2},
                     .out = TensorView::contiguous(out.data(), DType::kF32, {20, 10})};
  plan::Problem problem;
  ASSERT_TRUE(ops::problem_of(args, &problem).ok());
  const Context context({.num_threads = 4, .tuned = false});
  const plan::Config own = own_choice(context, problem);
  if (own.kernel == "cpu/scalar") GTEST_SKIP() << "this processor has one kernel for f32";
  for (const plan::Config& one : tuning_candidates(context.state(), cpu_backend(), problem)) {
    EXPECT_NE(one.kernel, "cpu/scalar");
  }
  const Folder folder;
  const auto [config, word] = choice_with(
      folder.write(tuning_text({entry_for(context, problem, "cpu/scalar", 1)})), problem);
  EXPECT_EQ(config, own);
  EXPECT_THAT(word, HasSubstr("names cpu/scalar, ignored: it may give other bits than "));
  const Folder unknown;
  EXPECT_THAT(
      choice_with(unknown.write(tuning_text({entry_for(context, problem, "cpu/quantum", 1)})),
                  problem)
          .second,
      HasSubstr("names cpu/quantum, ignored: "));
}

/// A backend that doesn't say that its kernels give the same bits has one candidate: its own
/// choice. What it says, decides.
class TwoKernels final : public plan::Backend {
 public:
  explicit TwoKernels(bool same) : same_(same) {}
  std::string_view name() const override { return "two"; }
  std::vector<std::string> kernels() const override { return {"two/one", "two/other"}; }
  Status choose(const detail::ContextState& /*context*/, const plan::Problem& /*problem*/,
                const char* pinned, plan::Config* config) const override {
    const bool other = pinned != nullptr && std::string_view(pinned) == "two/other";
    *config = {
        .kernel = other ? "two/other" : "two/one", .choice = &rows_[other ? 1 : 0], .threads = 1};
    return {};
  }
  bool same_bits(const plan::Problem& problem, const plan::Config& one,
                 const plan::Config& other) const override {
    return same_ || plan::Backend::same_bits(problem, one, other);
  }
  std::string machine(const detail::ContextState& /*context*/, Device /*device*/) const override {
    return "two";
  }
  Status run(detail::ContextState&, const plan::Problem&, const plan::Config&,
             const plan::Operands&, const CallOptions&) const override {
    return {};
  }
  Status run_bias_grad(detail::ContextState&, const plan::Problem&, const plan::Config&,
                       const BiasGradArgs&, const std::vector<int64_t>&) const override {
    return {};
  }
  Status run_rows(detail::ContextState&, const plan::Problem&, const plan::Config&,
                  const plan::RowCall&, const CallOptions&) const override {
    return {};
  }

 private:
  bool same_;
  plan::KernelChoice rows_[2];
};

TEST(Tuning, WhatABackendSaysOfItsBitsDecides) {
  Product product;
  const plan::Problem problem = product.problem();
  TuningEntry entry{.machine = "two",
                    .key = key_of(problem),
                    .kernel = "two/other",
                    .threads = 1,
                    .seconds = 1,
                    .default_kernel = "two/one",
                    .default_seconds = 2};
  const Folder folder;
  const Context context({.tune_cache = folder.write(tuning_text({entry}))});
  for (const bool same : {false, true}) {
    const TwoKernels backend(same);
    EXPECT_EQ(tuning_candidates(context.state(), backend, problem).size(), same ? 2u : 1u);
    plan::Config config;
    ASSERT_TRUE(backend.choose(context.state(), problem, nullptr, &config).ok());
    choose_tuned(context.state(), backend, problem, &config);
    EXPECT_EQ(config.kernel, same ? "two/other" : "two/one");
  }
}

TEST(Tuning, ThreadsThatShareAContextReadItsTablesOnce) {
  const Folder folder;
  Product product;
  const Context plain({.num_threads = 4, .tuned = false});
  const plan::Problem problem = product.problem();
  const std::string file = folder.write(tuning_text({entry_for(plain, problem, "cpu/scalar", 1)}));
  const Context context({.num_threads = 4, .tune_cache = file});
  std::vector<std::thread> threads;
  std::vector<int> scalar(8);
  for (size_t i = 0; i < scalar.size(); ++i) {
    threads.emplace_back([&, i] {
      for (int call = 0; call < 200; ++call) {
        Selection selection;
        const Status status =
            Registry::instance().select(context.state(), problem, nullptr, &selection);
        scalar[i] += status.ok() && selection.config.kernel == "cpu/scalar" ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int count : scalar) EXPECT_EQ(count, 200);
  // A file that changes later changes nothing: a call reads none.
  std::ofstream(file) << "damaged";
  Selection selection;
  ASSERT_TRUE(Registry::instance().select(context.state(), problem, nullptr, &selection).ok());
  EXPECT_EQ(selection.config.kernel, "cpu/scalar");
}

TEST(Tuning, ACallComputesWithTheTunedKernel) {
  const Folder folder;
  Product expected, product;
  Context plain({.num_threads = 4, .tuned = false});
  const std::string file =
      folder.write(tuning_text({entry_for(plain, product.problem(), "cpu/scalar", 1)}));
  Context tuned({.num_threads = 4, .tune_cache = file});
  ASSERT_TRUE(gmm(plain, expected.args()).ok());
  ASSERT_TRUE(gmm(tuned, product.args()).ok());
  EXPECT_EQ(product.out, expected.out);
}

}  // namespace
}  // namespace cadre::backend
