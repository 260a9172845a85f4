// Tensor maps for the copy engine (TMA), encoded by the driver and cached by pointer and shape. No
// link to libcuda: the encoder comes through the runtime, so the library loads on a machine without
// a driver.
#pragma once

#include <cuda.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace cadre::cuda {

// Dims and boxes innermost first; the innermost dim is contiguous. Every map swizzles by 128 bytes.
struct TensorMapSpec {
  const void* base = nullptr;
  CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  uint32_t rank = 0;
  std::array<uint64_t, 5> dims{};
  std::array<uint64_t, 4> strides_bytes{};  // of dims 1 and on
  std::array<uint32_t, 5> box{};
  bool fetches_more = true;  // a miss in L2 brings in 256 bytes, or else what was asked for

  friend bool operator==(const TensorMapSpec&, const TensorMapSpec&) = default;
};

// [rows, columns] with rows `row_stride` elements apart.
TensorMapSpec matrix_map(const void* base, CUtensorMapDataType type,
                         std::array<uint64_t, 2> rows_columns, uint64_t row_stride,
                         std::array<uint32_t, 2> box_rows_columns);

// [groups, rows, columns].
struct StackedShape {
  uint64_t groups, rows, columns, group_stride, row_stride;
};
TensorMapSpec stacked_map(const void* base, CUtensorMapDataType type, const StackedShape& shape,
                          std::array<uint32_t, 2> box_rows_columns);

// Rows of ragged groups: 4-D, so that any range of rows can be given a bound at run time. For
// `rows` rows from `row` on, the box at row `first` of them has the coordinates {column, 2^30 -
// rows + first, row + rows, 2^30}: the address folds (mod 2^64) to base + (row + first) * stride,
// and the second dim's bound lies at the last valid row. There is no outer bound: row + rows must
// be checked before.
TensorMapSpec ragged_map(const void* base, CUtensorMapDataType type, uint64_t columns,
                         uint64_t row_stride, std::array<uint32_t, 2> box_rows_columns);

// False when the driver has no encoder or rejects the map. Thread-safe: every thread keeps its last
// maps, at most kTensorMapCacheSize of them.
inline constexpr size_t kTensorMapCacheSize = 512;
bool encode_tensor_map(const TensorMapSpec& spec, CUtensorMap* map);

// The same for maps that differ in the height of their box alone: boxes[i] rows for maps[i]. A
// thread keeps at most kTensorMapSets such sets.
inline constexpr size_t kTensorMapSets = 128;
using BoxHeights = std::array<uint32_t, 4>;
bool encode_tensor_maps(const TensorMapSpec& spec, const BoxHeights& boxes, CUtensorMap* maps);

}  // namespace cadre::cuda
