// How much of a product is worked on at a time, derived from the cache sizes.
#pragma once

#include <cstdint>

#include "cpu/cache.h"
#include "cpu/kernels/gemm_kernel.h"

namespace cadre::cpu {

struct Blocking {
  int64_t k_block;      ///< k values of a block
  int64_t b_bytes_max;  ///< a block of B that is packed and then used for many rows
  int64_t m_block;      ///< rows that use one packed block before their results leave the cache
  int64_t a_kept_bytes_max;  ///< packed A that stays for all columns, of all threads together
  int64_t kept_k_block;      ///< then: k values of a block
  int64_t kept_b_bytes_max;  ///< and a block of B
  int64_t a_bytes_max;       ///< few rows: packed A of at most this stays resident
  int64_t part_k;          ///< few rows: k values of a panel of B that are packed and used at once
  int64_t row_bytes;       ///< few rows, B contiguous along n: bytes of a row taken side by side
  int64_t stream_k;        ///< few rows, B read without packing: rows of B side by side
  int64_t stream_bytes;    ///< the same: of these rows, so many bytes before the next rows
  int64_t single_bytes;    ///< one row, B read without packing: a row of B of at most this
  int64_t prefetch_bytes;  ///< few rows, columns contiguous along k: prefetched at a time
  int64_t turned_b_bytes;  ///< products turned over: of B at a time, for all rows in cache
};

Blocking make_blocking(const GemmKernel& kernel, const CacheSizes& caches);

}  // namespace cadre::cpu
