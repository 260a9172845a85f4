// Three nested loops for each row, in the order in which memory is read along rows.
#include "plain_loop.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <vector>

#include "core/convert.h"

namespace cadre::cli {
namespace {

using Clock = std::chrono::steady_clock;
constexpr double kSeconds = 0.05;
/// Rows that are timed at least, because the first ones find the caches cold.
constexpr int64_t kLeastRows = 4;

struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};
float value_of(Bf16 element) { return bf16_to_float(element.bits); }
float value_of(F16 element) { return f16_to_float(element.bits); }
float value_of(float element) { return element; }
double value_of(double element) { return element; }

/// Calls `row(r, group)` for rows that are spread over all `rows`, until the time is up; returns
/// the seconds that all of them would take.
template <class Row>
double time_rows(const GroupSizes& sizes, Row row) {
  const auto* rows_of = static_cast<const int32_t*>(sizes.data);
  std::vector<int64_t> group_of;
  for (int64_t i = 0; i < sizes.count; ++i) {
    group_of.insert(group_of.end(), static_cast<size_t>(rows_of[i]), i);
  }
  const auto rows = static_cast<int64_t>(group_of.size());
  if (rows == 0) return 0;
  // A step that has no factor in common with `rows` visits each of them once.
  int64_t step = rows / 7 + 1;
  while (std::gcd(step, rows) != 1) ++step;
  int64_t done = 0;
  const Clock::time_point start = Clock::now();
  double seconds = 0;
  for (int64_t r = 0; done < rows && (done < kLeastRows || seconds < kSeconds); ++done) {
    row(r, group_of[static_cast<size_t>(r)]);
    r = (r + step) % rows;
    seconds = std::chrono::duration<double>(Clock::now() - start).count();
  }
  return seconds / static_cast<double>(done) * static_cast<double>(rows);
}

template <class T>
double gmm_seconds(const GmmArgs& args) {
  using Sum = decltype(value_of(T{}));
  const int64_t k = args.lhs.shape[1];
  const int64_t n = args.transpose_rhs ? args.rhs.rows.uniform : args.rhs.cols.uniform;
  std::vector<Sum> sums(static_cast<size_t>(n));
  return time_rows(args.group_sizes, [&](int64_t row, int64_t group) {
    const T* x = static_cast<const T*>(args.lhs.data) + row * k;
    const T* weights = static_cast<const T*>(args.rhs.data) + group * k * n;
    std::fill(sums.begin(), sums.end(), Sum{0});
    if (args.transpose_rhs) {
      for (int64_t j = 0; j < n; ++j) {
        for (int64_t i = 0; i < k; ++i) {
          sums[static_cast<size_t>(j)] += value_of(x[i]) * value_of(weights[j * k + i]);
        }
      }
    } else {
      for (int64_t i = 0; i < k; ++i) {
        for (int64_t j = 0; j < n; ++j) {
          sums[static_cast<size_t>(j)] += value_of(x[i]) * value_of(weights[i * n + j]);
        }
      }
    }
  });
}

template <class T>
double tgmm_seconds(const TgmmArgs& args) {
  using Sum = decltype(value_of(T{}));
  const int64_t k = args.lhs.shape[1], n = args.rhs.shape[1];
  std::vector<Sum> sums(static_cast<size_t>(k * n));
  return time_rows(args.group_sizes, [&](int64_t row, int64_t) {
    const T* x = static_cast<const T*>(args.lhs.data) + row * k;
    const T* dy = static_cast<const T*>(args.rhs.data) + row * n;
    for (int64_t i = 0; i < k; ++i) {
      Sum* line = sums.data() + i * n;
      for (int64_t j = 0; j < n; ++j) line[j] += value_of(x[i]) * value_of(dy[j]);
    }
  });
}

template <class T>
double bias_grad_seconds(const BiasGradArgs& args) {
  using Sum = decltype(value_of(T{}));
  const int64_t n = args.dy.shape[1];
  std::vector<Sum> sums(static_cast<size_t>(n));
  return time_rows(args.group_sizes, [&](int64_t row, int64_t) {
    const T* dy = static_cast<const T*>(args.dy.data) + row * n;
    for (int64_t j = 0; j < n; ++j) sums[static_cast<size_t>(j)] += value_of(dy[j]);
  });
}

template <class T>
double seconds_of(const OpArgs& host) {
  if (const auto* args = std::get_if<GmmArgs>(&host)) return gmm_seconds<T>(*args);
  if (const auto* args = std::get_if<TgmmArgs>(&host)) return tgmm_seconds<T>(*args);
  return bias_grad_seconds<T>(std::get<BiasGradArgs>(host));
}

DType dtype_of(const OpArgs& host) {
  if (const auto* args = std::get_if<GmmArgs>(&host)) return args->lhs.dtype;
  if (const auto* args = std::get_if<TgmmArgs>(&host)) return args->lhs.dtype;
  return std::get<BiasGradArgs>(host).dy.dtype;
}

}  // namespace

double plain_loop_seconds(const OpArgs& host) {
  switch (dtype_of(host)) {
    case DType::kBF16:
      return seconds_of<Bf16>(host);
    case DType::kF16:
      return seconds_of<F16>(host);
    case DType::kF64:
      return seconds_of<double>(host);
    default:
      return seconds_of<float>(host);
  }
}

}  // namespace cadre::cli
