// How much of a product is worked on at a time, derived from the cache sizes.
#pragma once

#include <cstdint>

#include "cpu/cache.h"
#include "cpu/kernels/gemm_kernel.h"

namespace cadre::cpu {

struct Blocking {
  int64_t k_block;      ///< k values of a block
  int64_t n_block;      ///< columns of a block of B that is packed and then used for many rows
  int64_t m_block;      ///< rows that use one packed block before their results leave the cache
  int64_t a_bytes_max;  ///< rows whose packed A is at most this stay resident (few rows per expert)
  int64_t panel_k;      ///< k values of one panel piece, packed and used at once (few rows)
  int64_t stream_k;     ///< rows of B streamed side by side (few rows, B contiguous along n)
};

Blocking make_blocking(const GemmKernel& kernel, const CacheSizes& caches);

}  // namespace cadre::cpu
