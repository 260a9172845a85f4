// What `cadre bench --device cpu` measures: ops, types, layers and numbers of threads.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bench.h"
#include "bench/shapes/shapes.h"
#include "cadre/dtype.h"
#include "cadre/scaled_tensor.h"
#include "core/text.h"

namespace cadre::cli {

/// One measurement: a product, or a layer.
struct CpuCase {
  std::string label;  ///< "256 rows", a shape's name, "qwen3-30b forward"
  std::string op;     ///< gmm, gmm_nt (rhs stored [n, k]), tgmm or layer
  DType dtype;
  std::vector<int64_t> group_sizes{};  ///< of a product
  int64_t k = 0, n = 0;
  ScaleMode scales = ScaleMode::kNone;        ///< of e4m3
  std::optional<shapes::LayerShape> layer{};  ///< then all of the above but op and dtype is empty
  bool backward = false;                      ///< of a layer, after the forward pass
  int threads;

  std::string name() const { return text(op, " ", name_of(dtype), " ", label); }
  bool tgmm() const { return op == "tgmm"; }
  int64_t m() const;
  int64_t num_groups() const;
  /// tgmm adds up in f32, as main_grad does; int8 in i32; e4m3 gives bf16.
  DType out_dtype() const;
  double operations() const;
  /// What must come from memory at least: the weights of experts that have rows, for a layer's
  /// gradients once more, and these written. None for tgmm.
  double weight_bytes() const;
};

/// The cases that the options leave, or an error that names what is expected. `all_threads` is what
/// the machine has.
Status make_cpu_cases(const BenchOptions& options, int all_threads, std::vector<CpuCase>* cases);

}  // namespace cadre::cli
