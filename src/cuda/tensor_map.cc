// The specs of tensor maps, and their encoder; see tensor_map.h.
#include "cuda/tensor_map.h"

#include "cuda/driver.h"
#include "cuda/tensor_map_cache.h"

namespace cadre::cuda {
namespace {

using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                            const cuuint64_t*, const cuuint32_t*, const cuuint32_t*,
                            CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                            CUtensorMapFloatOOBfill);

bool encode(const TensorMapSpec& spec, CUtensorMap* map) {
  static const auto encoder = driver_function<Encode>("cuTensorMapEncodeTiled");
  if (encoder == nullptr) return false;
  const std::array<uint32_t, 5> steps = {1, 1, 1, 1, 1};
  return encoder(map, spec.type, spec.rank, const_cast<void*>(spec.base), spec.dims.data(),
                 spec.strides_bytes.data(), spec.box.data(), steps.data(),
                 CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                 spec.fetches_more ? CU_TENSOR_MAP_L2_PROMOTION_L2_256B
                                   : CU_TENSOR_MAP_L2_PROMOTION_NONE,
                 CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

uint64_t size_of(CUtensorMapDataType type) {
  if (type == CU_TENSOR_MAP_DATA_TYPE_UINT8) return 1;
  return type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32 ? 4 : 2;
}

// Every thread has its own: a lock for each of a call's maps would cost more than the look-up.
TensorMapCache& cache() {
  thread_local TensorMapCache cache(encode, kTensorMapCacheSize, kTensorMapSets);
  return cache;
}

}  // namespace

TensorMapSpec matrix_map(const void* base, CUtensorMapDataType type,
                         std::array<uint64_t, 2> rows_columns, uint64_t row_stride,
                         std::array<uint32_t, 2> box_rows_columns) {
  const uint64_t size = size_of(type);
  return {.base = base,
          .type = type,
          .rank = 2,
          .dims = {rows_columns[1], rows_columns[0]},
          .strides_bytes = {row_stride * size},
          .box = {box_rows_columns[1], box_rows_columns[0]}};
}

TensorMapSpec stacked_map(const void* base, CUtensorMapDataType type, const StackedShape& shape,
                          std::array<uint32_t, 2> box_rows_columns) {
  const uint64_t size = size_of(type);
  return {.base = base,
          .type = type,
          .rank = 3,
          .dims = {shape.columns, shape.rows, shape.groups},
          .strides_bytes = {shape.row_stride * size, shape.group_stride * size},
          .box = {box_rows_columns[1], box_rows_columns[0], 1}};
}

TensorMapSpec ragged_map(const void* base, CUtensorMapDataType type, uint64_t columns,
                         uint64_t row_stride, std::array<uint32_t, 2> box_rows_columns) {
  const uint64_t size = size_of(type);
  constexpr uint64_t kOuter = 0x7fff0000;
  return {.base = base,
          .type = type,
          .rank = 4,
          .dims = {columns, uint64_t{1} << 30, kOuter, kOuter},
          .strides_bytes = {row_stride * size, row_stride * size,
                            ((uint64_t{1} << 34) - row_stride) * size},
          .box = {box_rows_columns[1], box_rows_columns[0], 1, 1}};
}

bool encode_tensor_map(const TensorMapSpec& spec, CUtensorMap* map) {
  return cache().find_or_encode(spec, map);
}

bool encode_tensor_maps(const TensorMapSpec& spec, const BoxHeights& boxes, CUtensorMap* maps) {
  return cache().find_or_encode(spec, boxes, maps);
}

}  // namespace cadre::cuda
