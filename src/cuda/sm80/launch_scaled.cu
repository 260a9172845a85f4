// FP8 products with scales, in f32.
#include "cuda/sm80/launch_simt.cuh"
#include "cuda/sm80/scaled_source.cuh"

namespace cadre::sm80 {

/// Tiles of 64 x 64: where scales are found takes the registers of larger ones.
Status launch_scaled(const ProductLaunch& product) {
  return launch_simt_from<SimtTraits<float, 4, 16>, SimtMath, ScaledSources>(product);
}

}  // namespace cadre::sm80
