// Values around 1, so that a scale that is missed or taken from elsewhere is seen.
#include "owned_scales.h"

namespace cadre::cli {
namespace {

int64_t blocks_of(int64_t extent) { return (extent + 127) / 128; }

}  // namespace

Status OwnedScales::make_rows(ScaleMode mode, int64_t m, int64_t k, Device device) {
  mode_ = mode;
  if (mode == ScaleMode::kNone) return {};
  Status status = mode == ScaleMode::kBlock128
                      ? values_.make(DType::kF32, {m, blocks_of(k)}, device)
                      : values_.make(DType::kF32, {m}, device);
  return status.ok() ? fill(3) : status;
}

Status OwnedScales::make_weights(ScaleMode mode, int64_t g, int64_t n, int64_t k, Device device) {
  mode_ = mode;
  if (mode == ScaleMode::kNone) return {};
  Status status = mode == ScaleMode::kBlock128
                      ? values_.make(DType::kF32, {g, blocks_of(n), blocks_of(k)}, device)
                      : values_.make(DType::kF32, {g, n}, device);
  return status.ok() ? fill(4) : status;
}

Status OwnedScales::fill(uint64_t seed) {
  values_.fill_random(seed, 0.5);
  for (int64_t i = 0; i < values_.size(); ++i) values_.set(i, 1.0 + values_.get(i));
  return values_.upload();
}

Scales OwnedScales::view(Side side) const {
  return mode_ == ScaleMode::kNone ? Scales{} : Scales(mode_, values_.view(side));
}

}  // namespace cadre::cli
