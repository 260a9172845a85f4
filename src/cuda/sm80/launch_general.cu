// f32 and f64 products of any operand types, and f32 through tf32.
#include "cuda/sm80/launch_simt.cuh"

namespace cadre::sm80 {
namespace {

using F32 = SimtTraits<float, 8, 16>;
using F64 = SimtTraits<double, 4, 16>;
/// A pitch of 8 mod 32 words, which the fragments of the tf32 kernel ask for.
struct Tf32 : SimtTraits<float, 8, 16> {
  static constexpr int kPitch = kTile + 8;
};

}  // namespace

Status launch_f32(const ProductLaunch& product) { return launch_simt<F32, SimtMath>(product); }
Status launch_tf32(const ProductLaunch& product) { return launch_simt<Tf32, Tf32Math>(product); }
Status launch_f64(const ProductLaunch& product) { return launch_simt<F64, SimtMath>(product); }

}  // namespace cadre::sm80
