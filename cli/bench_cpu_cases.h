// What `cadre bench --device cpu` measures: ops, types, layers and numbers of threads.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "bench.h"
#include "cadre/dtype.h"

namespace cadre::cli {

/// One measurement: an op on one layer.
struct CpuCase {
  std::string label;  ///< "256 rows" or a shape's name
  std::string op;     ///< gmm, gmm_nt (rhs stored [n, k]) or tgmm
  DType dtype;
  std::vector<int64_t> group_sizes;
  int64_t k, n;
  int threads;

  int64_t m() const {
    int64_t sum = 0;
    for (const int64_t rows : group_sizes) sum += rows;
    return sum;
  }
  bool tgmm() const { return op == "tgmm"; }
  /// tgmm adds up in f32, as main_grad does; int8 in i32.
  DType out_dtype() const {
    if (dtype == DType::kI8) return DType::kI32;
    return tgmm() && dtype != DType::kF64 ? DType::kF32 : dtype;
  }
  double operations() const {
    return 2.0 * static_cast<double>(m()) * static_cast<double>(k) * static_cast<double>(n);
  }
  /// What must come from memory at least: the weights of experts that have rows (gmm).
  double weight_bytes() const {
    const auto used = std::count_if(group_sizes.begin(), group_sizes.end(),
                                    [](int64_t rows) { return rows > 0; });
    return static_cast<double>(used * k * n) * static_cast<double>(size_of(dtype));
  }
};

/// The cases that the options leave, or an error that names what is expected. `all_threads` is what
/// the machine has.
Status make_cpu_cases(const BenchOptions& options, int all_threads, std::vector<CpuCase>* cases);

}  // namespace cadre::cli
