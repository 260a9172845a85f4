// Packing: copies a block of A or B, from any strides, into the order in which the inner loop reads
// it. Generic over a Loader, which knows one source element type and one granule (the 4 or 8 bytes
// that the inner loop broadcasts: one widened value, two bf16 or four int8). For kernel files only.
#pragma once

#include <cstdint>

#include "cpu/kernels/gemm_kernel.h"

namespace cadre::cpu {
namespace {

// A Loader offers:
//   Elem, Reg, kLanes, kGranuleK, kGranuleBytes
//   Reg along(const Elem* p, int64_t count)   kLanes granules from `count` elements next to each
//   other along k Reg across(const Elem* p, int64_t k_stride, int64_t k_count, int64_t lanes)
//                                             one granule for each of `lanes` elements next to each
//                                             other across k
//   void store(void* p, Reg x), void transpose(Reg (&)[kLanes])
// and, where it has the type WholeRows:
//   void whole_rows(const Elem* p, int64_t k_stride, Reg (&)[2])   the granules of 2 * kLanes
//   columns
// and, where it can transpose half as many columns at a time:
//   void store_columns(Reg (&)[kLanes / 2], char* rows, int64_t row_bytes)
// Both loads fill what they do not read with zeros and touch nothing beyond it.

inline void prefetch(const void* p, int64_t ahead_bytes) {
  if (ahead_bytes != 0) __builtin_prefetch(static_cast<const char*>(p) + ahead_bytes, 0, 2);
}

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Rows or columns that are contiguous in neither direction are gathered here, this many k values at
// a time.
inline constexpr int64_t kGatherK = 64;

// rows x k -> dst rows of kPackedRowStride granules, k padded with zeros to full vectors.
template <class Loader>
void pack_rows_along(const typename Loader::Elem* src, int64_t row_stride, int64_t rows, int64_t k,
                     char* dst) {
  constexpr int64_t kStep = int64_t{Loader::kLanes} * Loader::kGranuleK;
  for (int64_t r = 0; r < rows; ++r) {
    const typename Loader::Elem* s = src + r * row_stride;
    char* d = dst + r * kPackedRowStride * Loader::kGranuleBytes;
    int64_t p = 0;
    for (; p + kStep <= k; p += kStep) {
      Loader::store(d, Loader::along(s + p, kStep));
      d += Loader::kLanes * Loader::kGranuleBytes;
    }
    if (p < k) Loader::store(d, Loader::along(s + p, k - p));
  }
}

// The same from a source whose rows are next to each other: kLanes granules of kLanes rows at a
// time, transposed.
template <class Loader>
void pack_rows_across(const typename Loader::Elem* src, int64_t k_stride, int64_t rows, int64_t k,
                      char* dst) {
  constexpr int64_t kLanes = Loader::kLanes;
  constexpr int64_t kG = Loader::kGranuleK;
  for (int64_t r0 = 0; r0 < rows; r0 += kLanes) {
    const int64_t lanes = smaller(kLanes, rows - r0);
    for (int64_t p0 = 0; p0 < k; p0 += kLanes * kG) {
      typename Loader::Reg block[kLanes];
      if (p0 + kLanes * kG <= k) {
        const typename Loader::Elem* s = src + p0 * k_stride + r0;
        for (int64_t i = 0; i < kLanes; ++i)
          block[i] = Loader::across(s + i * kG * k_stride, k_stride, kG, lanes);
      } else {
        for (int64_t i = 0; i < kLanes; ++i) {
          const int64_t p = p0 + i * kG;
          block[i] =
              p < k ? Loader::across(src + p * k_stride + r0, k_stride, smaller(kG, k - p), lanes)
                    : Loader::zero();
        }
      }
      Loader::transpose(block);
      char* d = dst + (r0 * kPackedRowStride + p0 / kG) * Loader::kGranuleBytes;
      for (int64_t i = 0; i < lanes; ++i)
        Loader::store(d + i * kPackedRowStride * Loader::kGranuleBytes, block[i]);
    }
  }
}

// rows x k -> dst [k][rows], at most kLanes rows of granules of one k value. Whole vectors are
// stored one over the end of the other; packed rows have room for that of the last.
template <class Loader>
void interleave_rows_along(const typename Loader::Elem* src, int64_t row_stride, int64_t rows,
                           int64_t k, char* dst) {
  constexpr int64_t kLanes = Loader::kLanes;
  static_assert(Loader::kGranuleK == 1);
  for (int64_t p = 0; p < k; p += kLanes) {
    const int64_t count = smaller(kLanes, k - p);
    typename Loader::Reg block[kLanes];
    for (int64_t i = 0; i < kLanes; ++i)
      block[i] = i < rows ? Loader::along(src + i * row_stride + p, count) : Loader::zero();
    Loader::transpose(block);
    for (int64_t i = 0; i < count; ++i, dst += rows * Loader::kGranuleBytes)
      Loader::store(dst, block[i]);
  }
}

// The same from a source whose rows are next to each other.
template <class Loader>
void interleave_rows_across(const typename Loader::Elem* src, int64_t k_stride, int64_t rows,
                            int64_t k, char* dst) {
  for (int64_t p = 0; p < k; ++p, dst += rows * Loader::kGranuleBytes)
    Loader::store(dst, Loader::across(src + p * k_stride, k_stride, 1, rows));
}

// k x cols -> dst [granules][kNr] granules, from columns that are next to each other.
template <class Loader, int kNr>
void pack_panel_across(const typename Loader::Elem* src, int64_t k_stride, int64_t k, int64_t cols,
                       char* dst, int64_t ahead_bytes) {
  constexpr int64_t kLanes = Loader::kLanes;
  constexpr int64_t kG = Loader::kGranuleK;
  static_assert(kNr % kLanes == 0);
  int64_t p = 0;
  if constexpr (requires { typename Loader::WholeRows; }) {
    constexpr int64_t kRowBytes = kLanes * Loader::kGranuleBytes;
    static_assert(kNr == 2 * kLanes);
    for (; p + kG <= k && cols >= kNr; p += kG) {
      for (int64_t i = 0; i < kG; ++i) prefetch(src + (p + i) * k_stride, ahead_bytes);
      typename Loader::Reg granules[2];
      Loader::whole_rows(src + p * k_stride, k_stride, granules);
      Loader::store(dst, granules[0]);
      Loader::store(dst + kRowBytes, granules[1]);
      dst += 2 * kRowBytes;
    }
  } else if (cols >= kNr) {
    for (; p + kG <= k; p += kG) {
      const typename Loader::Elem* s = src + p * k_stride;
      for (int64_t i = 0; i < kG; ++i) {
        constexpr int64_t kLine = 64 / sizeof(typename Loader::Elem);
        for (int64_t j = 0; j < kNr; j += kLine) prefetch(s + i * k_stride + j, ahead_bytes);
      }
      for (int64_t j = 0; j < kNr; j += kLanes) {
        Loader::store(dst, Loader::across(s + j, k_stride, kG, kLanes));
        dst += kLanes * Loader::kGranuleBytes;
      }
    }
  }
  for (; p < k; p += kG) {
    const int64_t k_count = smaller(kG, k - p);
    for (int64_t j = 0; j < kNr; j += kLanes) {
      const int64_t lanes = smaller(kLanes, cols - j);
      Loader::store(dst, lanes > 0
                             ? Loader::across(src + p * k_stride + j, k_stride, k_count, lanes)
                             : Loader::zero());
      dst += kLanes * Loader::kGranuleBytes;
    }
  }
}

// Columns that are contiguous along k are transposed so many at a time.
template <class Loader>
constexpr int64_t columns_at_a_time() {
  constexpr bool kHalf = requires(typename Loader::Reg(&half)[Loader::kLanes / 2], char* p) {
    Loader::store_columns(half, p, 64);
  };
  return kHalf ? Loader::kLanes / 2 : Loader::kLanes;
}

// Whole vectors of k of kLanes columns that are contiguous along k, transposed.
template <class Loader, int kNr>
void pack_columns(const typename Loader::Elem* src, int64_t col_stride, int64_t k, char* dst,
                  int64_t ahead_bytes) {
  constexpr int64_t kLanes = Loader::kLanes;
  constexpr int64_t kStep = kLanes * Loader::kGranuleK;
  constexpr int64_t kRowBytes = kNr * Loader::kGranuleBytes;
  constexpr int64_t kColumns = columns_at_a_time<Loader>();
  for (int64_t j = 0; j < kLanes; j += kColumns) {
    char* d = dst + j * Loader::kGranuleBytes;
    for (int64_t p = 0; p < k; p += kStep, d += kLanes * kRowBytes) {
      typename Loader::Reg block[kColumns];
      const typename Loader::Elem* column = src + j * col_stride + p;
      for (int64_t i = 0; i < kColumns; ++i, column += col_stride) {
        block[i] = Loader::along(column, kStep);
        prefetch(column, ahead_bytes);
      }
      if constexpr (kColumns < kLanes) {
        Loader::store_columns(block, d, kRowBytes);
      } else {
        Loader::transpose(block);
        for (int64_t i = 0; i < kLanes; ++i) Loader::store(d + i * kRowBytes, block[i]);
      }
    }
  }
}

// The same from columns that are contiguous along k: kLanes columns at a time, transposed.
template <class Loader, int kNr>
void pack_panel_along(const typename Loader::Elem* src, int64_t col_stride, int64_t k, int64_t cols,
                      char* dst, int64_t ahead_bytes) {
  constexpr int64_t kLanes = Loader::kLanes;
  constexpr int64_t kStep = kLanes * Loader::kGranuleK;
  constexpr int64_t kRowBytes = kNr * Loader::kGranuleBytes;
  const int64_t granules = divide_up(k, Loader::kGranuleK);
  const int64_t whole_columns = cols / kLanes * kLanes;
  const int64_t whole_k = k / kStep * kStep;
  for (int64_t j = 0; j < whole_columns; j += kLanes)
    pack_columns<Loader, kNr>(src + j * col_stride, col_stride, whole_k,
                              dst + j * Loader::kGranuleBytes, ahead_bytes);
  for (int64_t j = 0; j < kNr; j += kLanes) {
    const typename Loader::Elem* s = src + j * col_stride;
    char* d = dst + j * Loader::kGranuleBytes;
    int64_t p = j < whole_columns ? whole_k : 0;
    for (d += p / Loader::kGranuleK * kRowBytes; p < k; p += kStep, d += kLanes * kRowBytes) {
      typename Loader::Reg block[kLanes];
      for (int64_t i = 0; i < kLanes; ++i)
        block[i] = j + i < cols ? Loader::along(s + i * col_stride + p, smaller(kStep, k - p))
                                : Loader::zero();
      Loader::transpose(block);
      const int64_t count = smaller(kLanes, granules - p / Loader::kGranuleK);
      for (int64_t i = 0; i < count; ++i) Loader::store(d + i * kRowBytes, block[i]);
    }
  }
}

template <class Loader>
void pack_a_from(const MatrixRef& a, int64_t rows, int64_t k, void* dst) {
  using Elem = typename Loader::Elem;
  const Elem* src = static_cast<const Elem*>(a.data);
  char* out = static_cast<char*>(dst);
  if (a.col_stride == 1) {
    pack_rows_along<Loader>(src, a.row_stride, rows, k, out);
  } else if (a.row_stride == 1) {
    pack_rows_across<Loader>(src, a.col_stride, rows, k, out);
  } else {
    Elem gathered[kGatherK] = {};
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t p0 = 0; p0 < k; p0 += kGatherK) {
        const int64_t count = smaller(kGatherK, k - p0);
        for (int64_t p = 0; p < count; ++p)
          gathered[p] = read_one(src + r * a.row_stride + (p0 + p) * a.col_stride);
        char* d = out + (r * kPackedRowStride + p0 / Loader::kGranuleK) * Loader::kGranuleBytes;
        pack_rows_along<Loader>(gathered, 0, 1, count, d);
      }
    }
  }
}

template <class Loader>
void interleave_a_from(const MatrixRef& a, int64_t rows, int64_t k, void* dst) {
  using Elem = typename Loader::Elem;
  const Elem* src = static_cast<const Elem*>(a.data);
  char* out = static_cast<char*>(dst);
  if (rows == 1) return pack_a_from<Loader>(a, 1, k, dst);
  if (a.col_stride == 1) {
    interleave_rows_along<Loader>(src, a.row_stride, rows, k, out);
  } else if (a.row_stride == 1) {
    interleave_rows_across<Loader>(src, a.col_stride, rows, k, out);
  } else {
    Elem gathered[Loader::kLanes] = {};
    for (int64_t p = 0; p < k; ++p, out += rows * Loader::kGranuleBytes) {
      for (int64_t r = 0; r < rows; ++r)
        gathered[r] = read_one(src + r * a.row_stride + p * a.col_stride);
      interleave_rows_across<Loader>(gathered, 0, rows, 1, out);
    }
  }
}

template <class Loader, int kNr>
void pack_b_from(const MatrixRef& b, int64_t k, int64_t cols, void* dst, int64_t ahead_bytes) {
  using Elem = typename Loader::Elem;
  const Elem* src = static_cast<const Elem*>(b.data);
  char* out = static_cast<char*>(dst);
  if (b.col_stride == 1) {
    pack_panel_across<Loader, kNr>(src, b.row_stride, k, cols, out, ahead_bytes);
  } else if (b.row_stride == 1) {
    pack_panel_along<Loader, kNr>(src, b.col_stride, k, cols, out, ahead_bytes);
  } else {
    Elem gathered[kGatherK * kNr] = {};
    for (int64_t p0 = 0; p0 < k; p0 += kGatherK) {
      const int64_t count = smaller(kGatherK, k - p0);
      for (int64_t p = 0; p < count; ++p)
        for (int64_t j = 0; j < cols; ++j)
          gathered[p * kNr + j] = read_one(src + (p0 + p) * b.row_stride + j * b.col_stride);
      char* d = out + p0 / Loader::kGranuleK * kNr * Loader::kGranuleBytes;
      pack_panel_across<Loader, kNr>(gathered, kNr, count, cols, d, 0);
    }
  }
}

// One value a granule, widened exactly to the vector's own type.
template <class V, class T>
struct WidenLoader {
  using Elem = T;
  using Reg = typename V::Reg;
  static constexpr int kLanes = V::kLanes;
  static constexpr int kGranuleK = 1;
  static constexpr int kGranuleBytes = sizeof(typename V::Elem);

  static Reg zero() { return V::zero(); }
  static Reg along(const T* p, int64_t count) { return V::load(p, count); }
  static Reg across(const T* p, int64_t, int64_t, int64_t lanes) { return V::load(p, lanes); }
  static void store(void* p, Reg x) { V::store(static_cast<typename V::Elem*>(p), x); }
  static void transpose(Reg (&r)[kLanes]) { V::transpose(r); }
  static void store_columns(Reg (&r)[kLanes / 2], char* rows, int64_t row_bytes) requires requires {
    V::store_columns(r, rows, row_bytes);
  }
  { V::store_columns(r, rows, row_bytes); }
};

template <class Loader, bool kInterleaved>
void pack_a_as(const MatrixRef& a, int64_t rows, int64_t k, void* dst) {
  if constexpr (kInterleaved) {
    interleave_a_from<Loader>(a, rows, k, dst);
  } else {
    pack_a_from<Loader>(a, rows, k, dst);
  }
}

template <class V, bool kInterleaved = false>
void pack_a_widen(const MatrixRef& a, int64_t rows, int64_t k, void* dst) {
  switch (a.dtype) {
    case DType::kBF16:
      return pack_a_as<WidenLoader<V, Bf16>, kInterleaved>(a, rows, k, dst);
    case DType::kF16:
      return pack_a_as<WidenLoader<V, F16>, kInterleaved>(a, rows, k, dst);
    case DType::kI8:
      return pack_a_as<WidenLoader<V, int8_t>, kInterleaved>(a, rows, k, dst);
    case DType::kE4M3:
      return pack_a_as<WidenLoader<V, Fp8E4M3>, kInterleaved>(a, rows, k, dst);
    case DType::kE5M2:
      return pack_a_as<WidenLoader<V, Fp8E5M2>, kInterleaved>(a, rows, k, dst);
    case DType::kF64:
      return pack_a_as<WidenLoader<V, double>, kInterleaved>(a, rows, k, dst);
    default:
      return pack_a_as<WidenLoader<V, float>, kInterleaved>(a, rows, k, dst);
  }
}

template <class V, int kNr>
void pack_b_widen(const MatrixRef& b, int64_t k, int64_t cols, void* dst, int64_t ahead_bytes) {
  switch (b.dtype) {
    case DType::kBF16:
      return pack_b_from<WidenLoader<V, Bf16>, kNr>(b, k, cols, dst, ahead_bytes);
    case DType::kF16:
      return pack_b_from<WidenLoader<V, F16>, kNr>(b, k, cols, dst, ahead_bytes);
    case DType::kI8:
      return pack_b_from<WidenLoader<V, int8_t>, kNr>(b, k, cols, dst, ahead_bytes);
    case DType::kE4M3:
      return pack_b_from<WidenLoader<V, Fp8E4M3>, kNr>(b, k, cols, dst, ahead_bytes);
    case DType::kE5M2:
      return pack_b_from<WidenLoader<V, Fp8E5M2>, kNr>(b, k, cols, dst, ahead_bytes);
    case DType::kF64:
      return pack_b_from<WidenLoader<V, double>, kNr>(b, k, cols, dst, ahead_bytes);
    default:
      return pack_b_from<WidenLoader<V, float>, kNr>(b, k, cols, dst, ahead_bytes);
  }
}

}  // namespace
}  // namespace cadre::cpu
