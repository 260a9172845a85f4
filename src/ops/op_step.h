// One call of any op, as a value: what a layer is made of. And the workspace that tensors between
// such calls lie in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <variant>
#include <vector>

#include "cadre/activate.h"
#include "cadre/bias_grad.h"
#include "cadre/combine.h"
#include "cadre/gmm.h"
#include "cadre/permute.h"
#include "cadre/tgmm.h"

namespace cadre::ops {

struct OpStep {
  std::string_view what;  ///< what of the layer it computes, for errors
  std::variant<PermuteArgs, CombineArgs, CombineGradArgs, ActivateGradArgs, GmmArgs, TgmmArgs,
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

/// Hands out the workspace's room from its aligned start.
class Scratch {
 public:
  Scratch(void* start, Device device) : start_(static_cast<char*>(start)), device_(device) {}

  TensorView matrix(DType dtype, int64_t rows, int64_t cols) {
    const TensorView view = TensorView::contiguous(start_ + bytes_, dtype, {rows, cols}, device_);
    bytes_ += align_scratch(static_cast<size_t>(rows * cols) * size_of(dtype));
    return view;
  }
  size_t bytes() const { return bytes_; }

 private:
  char* start_;
  Device device_;
  size_t bytes_ = 0;
};

}  // namespace cadre::ops
