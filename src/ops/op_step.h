// One call of any op, as a value: what a layer is made of. And the workspace that tensors between
// such calls lie in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <variant>
#include <vector>

#include "cadre/bias_grad.h"
#include "cadre/combine.h"
#include "cadre/gmm.h"
#include "cadre/permute.h"
#include "cadre/tgmm.h"
#include "ops/gmm_grad.h"

namespace cadre::ops {

struct OpStep {
  std::string_view what;  ///< what of the layer it computes, for errors
  std::variant<PermuteArgs, CombineArgs, CombineGradArgs, GmmArgs, GmmGradArgs, TgmmArgs,
               BiasGradArgs>
      call;

  void set_options(const CallOptions& options) {
    std::visit([&](auto& args) { args.options = options; }, call);
  }
};
using OpSteps = std::vector<OpStep>;

Status run(Context& context, const OpStep& step);
/// All of the op's checks included.
Status workspace_size(Context& context, const OpStep& step, size_t* bytes);

/// More than any vector load or TMA box asks for.
inline constexpr size_t kScratchAlignment = 256;

constexpr size_t align_scratch(size_t bytes) {
  return (bytes + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
}

/// Memory that tensors between steps lie in, handed out from an aligned start. What is given back
/// serves later tensors: steps are listed in the order in which they run.
class Scratch {
 public:
  /// `capacity`: bytes that may be handed out.
  Scratch(void* start, Device device, size_t capacity = std::numeric_limits<size_t>::max())
      : start_(static_cast<char*>(start)), device_(device), capacity_(capacity) {}

  /// The lowest room that is free; no data where none is.
  TensorView matrix(DType dtype, int64_t rows, int64_t cols);
  /// Its last reader has been listed. False if it is no matrix of this memory.
  bool give_back(const TensorView& matrix);
  /// The most that was handed out at once.
  size_t bytes() const { return most_; }

 private:
  struct Span {
    size_t begin;
    size_t end;
  };

  char* start_;
  Device device_;
  size_t capacity_;
  size_t most_ = 0;
  std::vector<Span> taken_;  ///< ascending
};

}  // namespace cadre::ops
