// What `cadre bench --device cuda` measures: groups of calls on one layer that are timed in turn.
// Nothing here needs a GPU.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "bench/cuda/conditions.h"
#include "bench/shapes/shapes.h"
#include "cadre/dtype.h"
#include "cadre/scaled_tensor.h"
#include "cadre/status.h"

namespace cadre::bench {

/// Which of a linear layer's three products, for a layer of k inputs and n outputs. Every one is a
/// dense product of the same m, k and n.
enum class Pass {
  kForward,  ///< gmm, weights [g, n, k] as a linear layer stores them
  kDgrad,    ///< gmm, weights [g, k, n]
  kWgrad,    ///< tgmm, the result [g, n, k]
};

/// How the L2 is emptied before each timed call.
enum class Flush {
  kWrite,  ///< by writing: what it holds must still go to memory while the call runs
  kRead,   ///< by writing, then reading something else: what it holds is clean
};

/// What a call asks for beyond the plain product.
struct Extras {
  bool f32_out = false;
  bool accumulate = false;
  bool bias = false;
  bool scales = false;          ///< alpha of each group, bias_scale and row_scale of each row
  bool c = false;               ///< alpha of each group, and half of a C that isn't the output
  bool list = false;            ///< weights (gmm) or results (tgmm) as one pointer for each group
  bool list_on_device = false;  ///< the pointers themselves lie on the device
};

/// What a case's time is compared with, beside the dense product.
enum class Baseline { kNone, kBf16, kPlain };

/// One call that is checked and timed.
struct Case {
  std::string name;  ///< "forward", "wgrad f32 accumulate", "portable dgrad", ...
  DType dtype = DType::kBF16;
  Extras extras{};
  bool portable = false;                ///< held to the portable kernels
  bool alone = false;                   ///< also timed sustained and rested, not only in turn
  std::string kernel{};                 ///< pinned; empty: what the library chooses
  Baseline baseline = Baseline::kNone;  ///< of_bf16 or of_plain in the results
  size_t baseline_case = 0;             ///< its index in the group

  DType out_dtype() const { return extras.f32_out ? DType::kF32 : dtype; }
};

/// Calls on one layer, timed in turn, each dtype's dense product among them.
struct CaseGroup {
  shapes::Shape shape{};
  double skew = 0;
  Pass pass = Pass::kForward;
  Flush flush = Flush::kWrite;
  bool dense = true;
  std::vector<Condition> conditions{};  ///< sustained and rested for the cases that are `alone`
  std::vector<Case> cases{};

  bool decode() const { return shape.tag == "decode"; }
};

/// Empty: everything.
struct CaseFilter {
  std::vector<std::string> ops{};     ///< of kCudaOps
  std::vector<std::string> shapes{};  ///< names or tags of bench/shapes
  std::vector<int> skews{};           ///< 0 or 1
  std::vector<std::string> conditions{};
  std::vector<std::string> dtypes{};  ///< bf16, f16, e4m3
  std::string kernel{};  ///< pinned, for every case but the portable kernels' own, layers and e4m3
};

/// What --op takes: the products by op, the options of the epilogue, the portable kernels, whole
/// layers, and the time a call costs the host.
inline constexpr std::string_view kCudaOps[] = {"gmm_nt",   "gmm",   "tgmm", "options",
                                                "portable", "layer", "host"};

/// A layer, from tokens to tokens: the forward pass or a training step.
struct LayerCase {
  shapes::LayerShape shape{};
  DType dtype = DType::kBF16;
  bool backward = false;
  std::vector<Condition> conditions{};
};

/// gmm of e4m3 operands with weights [g, n, k].
struct ScaledCase {
  shapes::Shape shape{};
  double skew = 0;
  ScaleMode scales = ScaleMode::kBlock128;
  std::vector<Condition> conditions{};
};

/// kInvalid, with what there is, for a name that doesn't exist.
Status make_case_groups(const CaseFilter& filter, std::vector<CaseGroup>* groups);

Status make_layer_cases(const CaseFilter& filter, std::vector<LayerCase>* cases);
Status make_scaled_cases(const CaseFilter& filter, std::vector<ScaledCase>* cases);

/// True when --op names the host's cost, or nothing at all.
bool wants_host_cost(const CaseFilter& filter);

/// "gmm_nt", "gmm" or "tgmm"
std::string_view op_of(Pass pass);

}  // namespace cadre::bench
