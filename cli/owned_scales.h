// Random scales of an FP8 operand, of mode row or block_128, on a device and on the host.
#pragma once

#include "cadre/scaled_tensor.h"
#include "owned_tensor.h"

namespace cadre::cli {

class OwnedScales {
 public:
  /// Of rows [m, k]. With mode none there is nothing.
  Status make_rows(ScaleMode mode, int64_t m, int64_t k, Device device);
  /// Of weights [g, n, k].
  Status make_weights(ScaleMode mode, int64_t g, int64_t n, int64_t k, Device device);
  Scales view(Side side) const;

 private:
  Status fill(uint64_t seed);

  OwnedTensor values_;
  ScaleMode mode_ = ScaleMode::kNone;
};

}  // namespace cadre::cli
