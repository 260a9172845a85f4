// Launchers of the portable kernels, one file for each type: instantiations are what takes the
// compile time.
#pragma once

#include <cstdint>

#include "cadre/bias_grad.h"
#include "cuda/launch.h"
#include "cuda/sm80/arguments.h"
#include "plan/config.h"

namespace cadre::sm80 {

/// Where consecutive elements of op(A) [m, k] and op(B) [k, n] lie.
struct ProductLayout {
  bool a_k_major = true;
  bool b_k_major = true;
};

/// Blocks there is work for; the launchers take fewer when the device holds fewer at a time.
struct ProductLaunch {
  const cuda::Launch& launch;
  const plan::Config& config;
  const ProductArguments& args;
  ProductLayout layout;
  int64_t useful_blocks;
};

/// The shapes of mma_shape.h.
enum class MmaTile { kWide, kDeep, kSmall };

Status launch_bf16(const ProductLaunch& product, MmaTile tile);
Status launch_f16(const ProductLaunch& product, MmaTile tile);
Status launch_even(const ProductLaunch& product);
Status launch_int8(const ProductLaunch& product);
Status launch_f32(const ProductLaunch& product);
Status launch_tf32(const ProductLaunch& product);
Status launch_scaled(const ProductLaunch& product);
Status launch_f64(const ProductLaunch& product);

/// Groups of a bias_grad: validated offsets are made first.
Status launch_bias_grad(const cuda::Launch& launch, const plan::Problem& problem,
                        const BiasGradArgs& args, const std::vector<int64_t>& host_offsets);

}  // namespace cadre::sm80
