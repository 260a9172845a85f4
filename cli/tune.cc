// cadre tune: which problems, which file, and what is kept.
#include "tune.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "command.h"
#include "core/environment.h"
#include "core/text.h"
#include "result_file.h"
#include "terminal.h"

namespace cadre::cli {
namespace {

using backend::TuningEntry;

/// Less than this is the noise of a measurement.
constexpr double kLeastGain = 1.02;

struct TuneOptions {
  std::string device = "cpu";
  std::vector<std::string> shapes;
  std::vector<std::string> ops;
  std::vector<std::string> dtypes;
  int64_t k = 0, n = 0, groups = 0;  ///< a problem of the caller's own instead of --shape
  std::vector<int64_t> rows;
  double seconds = 60;
  std::string cache;
  bool dry_run = false;
};

constexpr std::string_view kOps[] = {"gmm_nt", "gmm", "tgmm"};

Status own_shapes(const TuneOptions& options, std::vector<shapes::Shape>* found) {
  if (options.k == 0 || options.n == 0 || options.groups == 0 || options.rows.empty()) {
    return Status::invalid("--k, --n, --groups and --rows, expected all of them or none");
  }
  if (!options.shapes.empty()) {
    return Status::invalid("--shape and --k, expected one of them");
  }
  for (const int64_t rows : options.rows) {
    found->push_back(
        {"own", "own", options.groups, options.groups * rows, 1, options.k, options.n});
  }
  return {};
}

Status find_problems(const TuneOptions& options, std::vector<TuneProblem>* problems) {
  std::vector<shapes::Shape> found;
  if (options.k > 0 || options.n > 0 || options.groups > 0 || !options.rows.empty()) {
    if (Status status = own_shapes(options, &found); !status.ok()) return status;
  } else if (options.shapes.empty()) {
    // A CPU's default is what it is used for; on a GPU a table for a machine is made.
    found = options.device == "cuda" ? std::vector(shapes::all().begin(), shapes::all().end())
                                     : shapes::tagged("decode");
  }
  for (const std::string& name : options.shapes) {
    const std::vector<shapes::Shape> called = shapes::called(name);
    if (called.empty()) {
      return Status::invalid(text("--shape = ", name, ", expected one of ", shapes::known_names()));
    }
    found.insert(found.end(), called.begin(), called.end());
  }
  for (const std::string& op : options.ops) {
    if (std::find(std::begin(kOps), std::end(kOps), op) == std::end(kOps)) {
      return Status::invalid(text("--op = ", op,
                                  ", expected gmm_nt (rhs stored [n, k]), gmm or "
                                  "tgmm"));
    }
  }
  std::vector<std::string> dtypes = options.dtypes;
  if (dtypes.empty()) dtypes = {"bf16"};
  for (const std::string_view op : kOps) {
    if (!options.ops.empty() &&
        std::find(options.ops.begin(), options.ops.end(), op) == options.ops.end()) {
      continue;
    }
    for (const std::string& name : dtypes) {
      const DType dtype = dtype_from_name(name);
      const bool on_gpu = options.device == "cuda";
      const bool known = on_gpu ? dtype == DType::kBF16 || dtype == DType::kF16
                                : is_float(dtype) || dtype == DType::kI8;
      if (!known) {
        return Status::invalid(text("--dtype = ", name, ", expected ",
                                    on_gpu ? "bf16 or f16 on a GPU" : "f64, f32, bf16, f16 or i8"));
      }
      for (const shapes::Shape& shape : found) {
        if (shape.tag == "decode" && op == "tgmm" && options.ops.empty()) continue;
        problems->push_back({shape, std::string(op), dtype});
      }
    }
  }
  return {};
}

/// Holds a folder for this process alone among all that tune; leaves no file behind.
class FolderLock {
 public:
  explicit FolderLock(const std::filesystem::path& folder)
      : file_(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    if (file_ >= 0) flock(file_, LOCK_EX);
  }
  ~FolderLock() {
    if (file_ >= 0) close(file_);
  }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int file_;
};

/// What the file holds already; a file that isn't one of ours is not written over.
Status read_cache(const std::string& path, std::vector<TuningEntry>* entries) {
  bool exists = false;
  backend::TuningFile file = backend::read_tuning(path, &exists);
  if (!file.fault.empty()) {
    return Status::invalid(
        text("--cache = \"", path, "\": ", file.fault, "; remove it, or name another file"));
  }
  *entries = std::move(file.entries);
  return {};
}

Status keep(const std::string& path, const std::vector<TuningEntry>& added) {
  const std::filesystem::path folder = std::filesystem::absolute(path).parent_path();
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  const FolderLock lock(folder);
  std::vector<TuningEntry> kept;
  if (Status status = read_cache(path, &kept); !status.ok()) return status;
  return replace_file(path, backend::tuning_text(merged(std::move(kept), added)), "--cache");
}

std::string candidate_text(const TuneCandidate& one, bool cpu) {
  return cpu ? text(one.kernel, " on ", one.threads, one.threads == 1 ? " thread" : " threads")
             : one.kernel;
}

TuningEntry entry_of(const TuneMeasured& measured) {
  const TuneCandidate &first = measured.candidates.front(), &best = best_of(measured.candidates);
  return {.machine = measured.machine,
          .key = measured.key,
          .kernel = best.kernel,
          .threads = best.threads,
          .seconds = best.seconds,
          .default_kernel = first.kernel,
          .default_seconds = first.seconds};
}

/// Measures until the time is over; whatever was measured is in `entries`.
Status measure_all(Tuner& tuner, const TuneOptions& options,
                   const std::vector<TuneProblem>& problems, std::vector<TuningEntry>* entries,
                   bool* same_bits) {
  const auto begin = std::chrono::steady_clock::now();
  const auto passed = [&begin] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  LiveTable table({{"op", 6},
                   {"type", 4},
                   {"shape", 23},
                   {"rows", 6, true},
                   {"of", 3, true},
                   {"fastest", 32},
                   {"time", 9, true},
                   {"times as fast", 13, true}},
                  problems.size());
  size_t begun = 0;
  for (const TuneProblem& problem : problems) {
    if (begun > 0 && passed() > options.seconds) break;
    ++begun;
    std::vector<std::string> cells = {
        problem.op, std::string(name_of(problem.dtype)), std::string(problem.shape.name),
        text(problem.shape.m() / std::max<int64_t>(problem.shape.num_groups, 1))};
    table.begin(cells, text(problem.op, " ", problem.shape.name));
    TuneMeasured measured;
    if (Status status = tuner.measure(problem, &measured); !status.ok()) return status;
    if (!measured.left_out.empty()) {
      cells.insert(cells.end(), {text(measured.candidates.size()), measured.left_out});
      table.row(cells);
      table.end();
      continue;
    }
    const TuningEntry entry = entry_of(measured);
    const TuneCandidate& best = best_of(measured.candidates);
    cells.insert(cells.end(),
                 {text(measured.candidates.size()), candidate_text(best, options.device == "cpu"),
                  format_seconds(entry.seconds),
                  fmt::format("{:.3f}", entry.default_seconds / entry.seconds)});
    table.row(cells);
    for (const TuneCandidate& one : measured.candidates) {
      if (one.same_bits) continue;
      *same_bits = false;
      table.line(text("  ", candidate_text(one, options.device == "cpu"), " gives other bits than ",
                      measured.candidates.front().kernel, ": a defect; it is never chosen"));
    }
    entries->push_back(entry);
    table.end();
  }
  if (begun < problems.size()) {
    table.line(text("No time was left for ", problems.size() - begun,
                    " more problems; --seconds gives more."));
  }
  return {};
}

int run(const TuneOptions& options) {
  std::vector<TuneProblem> problems;
  if (Status status = find_problems(options, &problems); !status.ok()) {
    return report("tune", status);
  }
  const std::string path = options.cache.empty() ? environment::tune_cache() : options.cache;
  if (path.empty() && !options.dry_run) {
    return report("tune", Status::invalid("--cache is missing, and neither CADRE_TUNE_CACHE, "
                                          "XDG_CACHE_HOME nor HOME says where to keep it"));
  }
  // Seen before the measuring, so that a file that can't be replaced costs no minutes.
  if (!options.dry_run) {
    std::vector<TuningEntry> there;
    if (Status status = read_cache(path, &there); !status.ok()) return report("tune", status);
  }
  std::unique_ptr<Tuner> tuner;
  const Device device{options.device == "cuda" ? DeviceKind::kCuda : DeviceKind::kCpu, 0};
  constexpr double kSecondsOfCandidate = 0.2;
  if (Status status = Tuner::make(device, kSecondsOfCandidate, &tuner); !status.ok()) {
    return report("tune", status);
  }
  std::vector<TuningEntry> entries;
  bool same_bits = true;
  if (Status status = measure_all(*tuner, options, problems, &entries, &same_bits); !status.ok()) {
    return report("tune", status);
  }
  if (!options.dry_run) {
    if (Status status = keep(path, entries); !status.ok()) return report("tune", status);
    fmt::print("{} entries for \"{}\" are in {}\n", entries.size(),
               entries.empty() ? options.device : entries.front().machine, path);
  }
  return same_bits ? kOk : kCheckFailed;
}

}  // namespace

const TuneCandidate& best_of(const std::vector<TuneCandidate>& candidates) {
  const TuneCandidate* best = &candidates.front();
  for (const TuneCandidate& one : candidates) {
    if (one.same_bits && one.seconds < best->seconds) best = &one;
  }
  return candidates.front().seconds < kLeastGain * best->seconds ? candidates.front() : *best;
}

std::vector<TuningEntry> merged(std::vector<TuningEntry> kept,
                                const std::vector<TuningEntry>& added) {
  for (const TuningEntry& entry : added) {
    std::erase_if(kept, [&entry](const TuningEntry& old) {
      return old.machine == entry.machine && old.key == entry.key;
    });
    kept.push_back(entry);
  }
  return kept;
}

void add_tune(CLI::App& app, int* exit_code) {
  auto options = std::make_shared<TuneOptions>();
  CLI::App* command = app.add_subcommand(
      "tune",
      "Time the kernels that could compute a product, and keep the fastest for later calls");
  command->add_option("--device", options->device, "Where to measure")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  command
      ->add_option(
          "--shape", options->shapes,
          "Shapes of these names, layers or tags (train, decode) of bench/shapes; default: "
          "all on cuda, decode on a cpu")
      ->delimiter(',');
  command
      ->add_option("--op", options->ops,
                   "Only these: gmm_nt (rhs stored [n, k]), gmm, tgmm; default: all, tgmm of "
                   "training shapes alone")
      ->delimiter(',');
  command->add_option("--dtype", options->dtypes, "Element types of the operands; default: bf16")
      ->delimiter(',');
  const CLI::Validator dimension = whole_number(1, 1000000000);
  command->add_option("--k", options->k, "A product of your own: inner dimension")
      ->check(dimension);
  command->add_option("--n", options->n, "Its outer dimension")->check(dimension);
  command->add_option("--groups", options->groups, "Its groups (experts)")
      ->check(whole_number(1, 1 << 20));
  command->add_option("--rows", options->rows, "Its rows of a typical group")
      ->delimiter(',')
      ->check(whole_number(1, 1 << 24));
  command
      ->add_option("--seconds", options->seconds,
                   "No problem begins after this; what was measured is kept")
      ->check(number(0.001, 86400))
      ->capture_default_str();
  command
      ->add_option("--cache", options->cache,
                   "The file to keep it in; default: CADRE_TUNE_CACHE, else cadre/tune.json in the "
                   "user's cache folder")
      ->type_name("FILE");
  command->add_flag("--dry-run", options->dry_run, "Keep nothing");
  command->footer(
      "Examples:\n"
      "  cadre tune --k 2048 --n 1536 --groups 128 --rows 4,64 --dtype bf16,i8\n"
      "  cadre tune --shape decode --op gmm_nt --seconds 30 --dry-run\n"
      "  cadre tune --device cuda --cache h200.json\n\n"
      "Only kernels that give the same bits are compared, and a CPU's numbers of threads. `cadre\n"
      "explain` says whether an entry decides, `cadre info` what was read; CADRE_TUNE=0 turns it\n"
      "off. A kernel of other bits is a defect: it ends in 1.");
  command->callback([options, exit_code] { *exit_code = run(*options); });
}

}  // namespace cadre::cli
