// f32 and f64 products of any operand types, and f32 through tf32.
#include <algorithm>

#include "cuda/sm80/launchers.h"
#include "cuda/sm80/simt_kernel.cuh"

namespace cadre::sm80 {
namespace {

using F32 = SimtTraits<float, 8, 16>;
using F64 = SimtTraits<double, 4, 16>;
/// A pitch of 8 mod 32 words, which the fragments of the tf32 kernel ask for.
struct Tf32 : SimtTraits<float, 8, 16> {
  static constexpr int kPitch = kTile + 8;
};

template <typename Traits, template <typename> typename Math>
Status launch_simt(const ProductLaunch& product) {
  const int64_t resident = int64_t{product.launch.sm_count} * 2;
  const cuda::GridShape shape{
      .blocks = static_cast<unsigned>(std::clamp<int64_t>(product.useful_blocks, 1, resident)),
      .threads = Traits::kThreads};
  return cuda::launch_kernel(product.launch, product.config.kernel, simt_kernel<Traits, Math>,
                             shape, product.args);
}

}  // namespace

Status launch_f32(const ProductLaunch& product) { return launch_simt<F32, SimtMath>(product); }
Status launch_tf32(const ProductLaunch& product) { return launch_simt<Tf32, Tf32Math>(product); }
Status launch_f64(const ProductLaunch& product) { return launch_simt<F64, SimtMath>(product); }

}  // namespace cadre::sm80
