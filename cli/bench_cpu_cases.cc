// The ladder of rows per expert, and the layers of bench/shapes scaled to fit.
#include "bench_cpu_cases.h"

#include "bench/shapes/shapes.h"
#include "core/text.h"
#include "cpu/cache.h"

namespace cadre::cli {
namespace {

const std::vector<int64_t> kLadder = {1, 4, 16, 64, 256, 1024};
/// One rung that is bound by memory, one that is bound by arithmetic.
const std::vector<int64_t> kQuickLadder = {4, 256};

/// Enough experts that the weights of all of them are several times the largest cache, where
/// reading them is what counts.
int64_t experts_of_ladder(int64_t rows, int64_t expert_bytes) {
  constexpr int64_t kMemoryBoundRows = 16, kTimesCache = 4, kMostExperts = 256;
  const int64_t experts = std::clamp<int64_t>(2048 / rows, 2, 16);
  if (rows > kMemoryBoundRows) return experts;
  const int64_t beyond_cache = kTimesCache * cpu::cache_sizes().l3_bytes / expert_bytes + 1;
  return std::clamp(beyond_cache, experts, kMostExperts);
}

/// Rows per expert of the ladder.
void add_ladder(const BenchOptions& options, const std::string& op, DType dtype, int threads,
                std::vector<CpuCase>* cases) {
  const shapes::Shape* shape = shapes::find("qwen3-30b-w13");
  const std::vector<int64_t>& ladder = options.quick ? kQuickLadder : kLadder;
  for (const int64_t rows : options.rows.empty() ? ladder : options.rows) {
    const int64_t groups =
        experts_of_ladder(rows, shape->k * shape->n * static_cast<int64_t>(size_of(dtype)));
    cases->push_back({.label = text(rows, rows == 1 ? " row" : " rows"),
                      .op = op,
                      .dtype = dtype,
                      .group_sizes = std::vector<int64_t>(static_cast<size_t>(groups), rows),
                      .k = shape->k,
                      .n = shape->n,
                      .threads = threads});
  }
}

enum class Routing { kBalanced, kZipf, kMostInOne };

constexpr double kMostInOne = 0.9;

std::vector<int64_t> group_sizes_of(const shapes::Shape& shape, Routing routing) {
  if (routing == Routing::kMostInOne) {
    return shapes::most_in_one_group(shape.num_groups, shape.m(), kMostInOne);
  }
  return shapes::router_group_sizes(shape.num_groups, shape.m(), routing == Routing::kZipf ? 1 : 0,
                                    1);
}

std::string_view suffix_of(Routing routing) {
  switch (routing) {
    case Routing::kBalanced:
      return "";
    case Routing::kZipf:
      return " skewed";
    default:
      return " 90% in one";
  }
}

/// A named layer, scaled down until one product takes about a tenth of a second at 500 GFLOP/s and
/// its weights half a gigabyte.
void add_shape(const shapes::Shape& full, const std::string& op, DType dtype, int threads,
               Routing routing, std::vector<CpuCase>* cases) {
  const auto too_large = [dtype](const shapes::Shape& shape) {
    const double weights = static_cast<double>(shape.k) * static_cast<double>(shape.n);
    return 2.0 * weights * static_cast<double>(shape.m()) > 5e10 ||
           weights * static_cast<double>(shape.num_groups) * static_cast<double>(size_of(dtype)) >
               5e8;
  };
  shapes::Shape shape = full;
  for (int64_t divisor = 2; too_large(shape); ++divisor) {
    shape = shapes::scaled_down(full, divisor);
  }
  cases->push_back({.label = text(full.name, suffix_of(routing)),
                    .op = op,
                    .dtype = dtype,
                    .group_sizes = group_sizes_of(shape, routing),
                    .k = shape.k,
                    .n = shape.n,
                    .threads = threads});
}

}  // namespace

Status make_cpu_cases(const BenchOptions& options, int all_threads, std::vector<CpuCase>* cases) {
  const auto wanted = [&](const std::string& op) {
    return options.ops.empty() ||
           std::find(options.ops.begin(), options.ops.end(), op) != options.ops.end();
  };
  for (const std::string& op : options.ops) {
    if (op != "gmm" && op != "gmm_nt" && op != "tgmm") {
      return Status::invalid(
          text("--op = ", op, ", expected gmm, gmm_nt (rhs stored [n, k]) or tgmm"));
    }
  }
  std::vector<DType> dtypes = {DType::kF32, DType::kBF16, DType::kI8};
  if (!options.dtype.empty()) {
    dtypes = {dtype_from_name(options.dtype)};
    if (!is_float(dtypes[0]) && dtypes[0] != DType::kI8) {
      return Status::invalid(
          text("--dtype = ", options.dtype, ", expected f64, f32, bf16, f16 or i8"));
    }
  }
  std::vector<int> thread_counts = options.threads;
  if (thread_counts.empty()) {
    thread_counts = {1};
    if (all_threads > 1) thread_counts.push_back(all_threads);
  }
  for (const int threads : thread_counts) {
    for (const DType dtype : dtypes) {
      for (const std::string op : {"gmm", "gmm_nt", "tgmm"}) {
        // Nobody trains in int8, but the op is there for who names it.
        const bool int8_named = !options.dtype.empty() && !options.ops.empty();
        if (!wanted(op) || (op == "tgmm" && dtype == DType::kI8 && !int8_named)) continue;
        if (options.shapes.empty()) {
          add_ladder(options, op, dtype, threads, cases);
          if (threads > 1 && op == "gmm" && options.rows.empty() && !options.quick) {
            for (const Routing routing : {Routing::kZipf, Routing::kMostInOne}) {
              add_shape(*shapes::find("qwen3-30b-w13"), op, dtype, threads, routing, cases);
            }
          }
          continue;
        }
        for (const std::string& name : options.shapes) {
          std::vector<shapes::Shape> found = shapes::tagged(name);
          if (const shapes::Shape* shape = shapes::find(name)) found.push_back(*shape);
          if (found.empty()) {
            std::string known = "train, decode";
            for (const shapes::Shape& shape : shapes::all()) known += text(", ", shape.name);
            return Status::invalid(text("--shape = ", name, ", expected one of ", known));
          }
          for (const shapes::Shape& shape : found) {
            for (const Routing routing :
                 {Routing::kBalanced, Routing::kZipf, Routing::kMostInOne}) {
              add_shape(shape, op, dtype, threads, routing, cases);
            }
          }
        }
      }
    }
  }
  return {};
}

}  // namespace cadre::cli
