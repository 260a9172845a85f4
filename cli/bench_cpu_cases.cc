// The ladder of rows per expert, and the shapes and layers of bench/shapes scaled to fit.
#include "bench_cpu_cases.h"

#include <algorithm>
#include <numeric>

#include "core/text.h"
#include "cpu/cache.h"

namespace cadre::cli {
namespace {

const std::vector<int64_t> kLadder = {1, 4, 16, 64, 256, 1024};
/// One rung that is bound by memory, one that is bound by arithmetic.
const std::vector<int64_t> kQuickLadder = {4, 256};

/// The case itself, or of e4m3 one for each kind of scales.
void add_scaled(const CpuCase& one, std::vector<CpuCase>* cases) {
  if (one.dtype != DType::kE4M3) return cases->push_back(one);
  for (const ScaleMode mode : {ScaleMode::kBlock128, ScaleMode::kRow}) {
    CpuCase scaled = one;
    scaled.scales = mode;
    scaled.label += text(" ", name_of(mode));
    cases->push_back(std::move(scaled));
  }
}

/// Enough experts that the weights of all of them are several times the largest cache, where
/// reading them is what counts.
int64_t experts_of_ladder(int64_t rows, int64_t expert_bytes) {
  constexpr int64_t kMemoryBoundRows = 16, kTimesCache = 4, kMostExperts = 256;
  const int64_t experts = std::clamp<int64_t>(2048 / rows, 2, 16);
  if (rows > kMemoryBoundRows) return experts;
  const int64_t beyond_cache = kTimesCache * cpu::cache_sizes().l3_bytes / expert_bytes + 1;
  return std::clamp(beyond_cache, experts, kMostExperts);
}

/// A product of every rung; of e4m3 with either kind of scales.
void add_ladder(const BenchOptions& options, const CpuCase& like, std::vector<CpuCase>* cases) {
  const shapes::Shape* shape = shapes::find("qwen3-30b-w13");
  const std::vector<int64_t>& ladder = options.quick ? kQuickLadder : kLadder;
  for (const int64_t rows : options.rows.empty() ? ladder : options.rows) {
    const int64_t groups =
        experts_of_ladder(rows, shape->k * shape->n * static_cast<int64_t>(size_of(like.dtype)));
    CpuCase one = like;
    one.label = text(rows, rows == 1 ? " row" : " rows");
    one.group_sizes.assign(static_cast<size_t>(groups), rows);
    one.k = shape->k;
    one.n = shape->n;
    add_scaled(one, cases);
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

constexpr double kMostOperations = 5e10, kMostWeightBytes = 5e8;

/// A named shape, scaled down until one product takes about a tenth of a second at 500 GFLOP/s and
/// its weights half a gigabyte.
void add_shape(const shapes::Shape& full, const CpuCase& like, Routing routing,
               std::vector<CpuCase>* cases) {
  const auto too_large = [&like](const shapes::Shape& shape) {
    const double weights = static_cast<double>(shape.k) * static_cast<double>(shape.n);
    return 2.0 * weights * static_cast<double>(shape.m()) > kMostOperations ||
           weights * static_cast<double>(shape.num_groups) *
                   static_cast<double>(size_of(like.dtype)) >
               kMostWeightBytes;
  };
  shapes::Shape shape = full;
  for (int64_t divisor = 2; too_large(shape); ++divisor) {
    shape = shapes::scaled_down(full, divisor);
  }
  CpuCase one = like;
  one.label = text(full.name, suffix_of(routing));
  one.group_sizes = group_sizes_of(shape, routing);
  one.k = shape.k;
  one.n = shape.n;
  add_scaled(one, cases);
}

/// A layer, scaled down by the same measure for a training step: forward, and the step.
void add_layer(const shapes::LayerShape& full, const CpuCase& like, std::vector<CpuCase>* cases) {
  shapes::LayerShape shape = full;
  const auto bytes = static_cast<double>(size_of(like.dtype));
  for (int64_t divisor = 2; shape.step_operations() > kMostOperations ||
                            static_cast<double>(shape.weight_elements()) * bytes > kMostWeightBytes;
       ++divisor) {
    shape.tokens = std::max<int64_t>(full.tokens / divisor, 1);
    shape.hidden = std::max<int64_t>(full.hidden / divisor, 1);
    shape.intermediate = std::max<int64_t>(full.intermediate / divisor, 1);
  }
  for (const bool backward : {false, true}) {
    CpuCase one = like;
    one.label = text(full.name, backward ? " training step" : " forward");
    one.layer = shape;
    one.backward = backward;
    cases->push_back(std::move(one));
  }
}

/// What there is of this op, type and number of threads.
void add_cases(const BenchOptions& options, const CpuCase& like, std::vector<CpuCase>* cases) {
  if (like.op == "layer") {
    if (options.shapes.empty()) return add_layer(*shapes::find_layer("qwen3-30b"), like, cases);
    for (const std::string& name : options.shapes) {
      if (const auto* layer = shapes::find_layer(name)) add_layer(*layer, like, cases);
    }
    return;
  }
  if (options.shapes.empty()) {
    add_ladder(options, like, cases);
    if (like.threads > 1 && like.op == "gmm" && options.rows.empty() && !options.quick) {
      for (const Routing routing : {Routing::kZipf, Routing::kMostInOne}) {
        add_shape(*shapes::find("qwen3-30b-w13"), like, routing, cases);
      }
    }
    return;
  }
  for (const std::string& name : options.shapes) {
    for (const shapes::Shape& shape : shapes::called(name)) {
      for (const Routing routing : {Routing::kBalanced, Routing::kZipf, Routing::kMostInOne}) {
        add_shape(shape, like, routing, cases);
      }
    }
  }
}

constexpr std::string_view kOps[] = {"gmm", "gmm_nt", "tgmm", "layer"};

Status check_names(const BenchOptions& options, std::vector<DType>* dtypes) {
  for (const std::string& op : options.ops) {
    if (std::find(std::begin(kOps), std::end(kOps), op) == std::end(kOps)) {
      return Status::invalid(
          text("--op = ", op, ", expected gmm, gmm_nt (rhs stored [n, k]), tgmm or layer"));
    }
  }
  for (const std::string& name : options.shapes) {
    if (shapes::called(name).empty()) {
      return Status::invalid(text("--shape = ", name, ", expected one of ", shapes::known_names()));
    }
  }
  for (const std::string& name : options.dtypes) {
    const DType dtype = dtype_from_name(name);
    if (!is_float(dtype) && dtype != DType::kI8 && dtype != DType::kE4M3) {
      return Status::invalid(
          text("--dtype = ", name, ", expected f64, f32, bf16, f16, i8 or e4m3"));
    }
    dtypes->push_back(dtype);
  }
  return {};
}

/// Of a run in which nothing else is named: i8 and e4m3 where models have them.
bool is_usual(const BenchOptions& options, const std::string& op, DType dtype) {
  if (dtype == DType::kE4M3) return op == "gmm_nt";
  if (op == "tgmm") return dtype != DType::kI8 || (!options.dtypes.empty() && !options.ops.empty());
  if (op != "layer") return true;
  return is_float(dtype) && options.rows.empty() && (!options.quick || dtype == DType::kBF16);
}

}  // namespace

int64_t CpuCase::m() const {
  return layer ? layer->rows()
               : std::accumulate(group_sizes.begin(), group_sizes.end(), int64_t{0});
}

int64_t CpuCase::num_groups() const {
  return layer ? layer->experts : static_cast<int64_t>(group_sizes.size());
}

DType CpuCase::out_dtype() const {
  if (dtype == DType::kI8) return DType::kI32;
  if (dtype == DType::kE4M3) return DType::kBF16;
  return tgmm() && dtype != DType::kF64 ? DType::kF32 : dtype;
}

double CpuCase::operations() const {
  if (layer) return backward ? layer->step_operations() : layer->forward_operations();
  return 2.0 * static_cast<double>(m()) * static_cast<double>(k) * static_cast<double>(n);
}

double CpuCase::weight_bytes() const {
  const auto bytes = static_cast<double>(size_of(dtype));
  if (layer) {
    const double all = static_cast<double>(layer->weight_elements()) * bytes;
    const double used =
        std::min(1.0, static_cast<double>(layer->rows()) / static_cast<double>(layer->experts));
    return backward ? 3 * all : all * used;
  }
  if (tgmm()) return 0;
  const auto used =
      std::count_if(group_sizes.begin(), group_sizes.end(), [](int64_t rows) { return rows > 0; });
  return static_cast<double>(used * k * n) * bytes;
}

Status make_cpu_cases(const BenchOptions& options, int all_threads, std::vector<CpuCase>* cases) {
  std::vector<DType> dtypes;
  if (Status status = check_names(options, &dtypes); !status.ok()) return status;
  if (dtypes.empty()) dtypes = {DType::kF32, DType::kBF16, DType::kI8, DType::kE4M3};
  std::vector<int> thread_counts = options.threads;
  if (thread_counts.empty()) {
    thread_counts = {1};
    if (all_threads > 1) thread_counts.push_back(all_threads);
  }
  for (const int threads : thread_counts) {
    for (const DType dtype : dtypes) {
      for (const std::string_view op : kOps) {
        const bool wanted = options.ops.empty() || std::find(options.ops.begin(), options.ops.end(),
                                                             op) != options.ops.end();
        if (!wanted || !is_usual(options, std::string(op), dtype)) continue;
        if (op == "layer" && options.quick && threads != thread_counts.back()) continue;
        add_cases(options, {.label = {}, .op = std::string(op), .dtype = dtype, .threads = threads},
                  cases);
      }
    }
  }
  if (cases->empty()) {
    return Status::invalid(
        "--op, --dtype, --shape and --rows leave no case (e4m3 is measured in gmm_nt; a layer is "
        "f64, f32, bf16 or f16, of a shape without --rows)");
  }
  return {};
}

}  // namespace cadre::cli
