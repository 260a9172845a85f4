// Encoding and caching of tensor maps; see tensor_map.h.
#include "cuda/tensor_map.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <tuple>
#include <vector>

namespace cadre::cuda {
namespace {

using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                            const cuuint64_t*, const cuuint32_t*, const cuuint32_t*,
                            CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                            CUtensorMapFloatOOBfill);

Encode find_encoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                             12000, cudaEnableDefault, &found);
  if (error != cudaSuccess || found != cudaDriverEntryPointSuccess) return nullptr;
  return reinterpret_cast<Encode>(function);
}

bool encode(const TensorMapSpec& spec, CUtensorMap* map) {
  static const Encode encoder = find_encoder();
  if (encoder == nullptr) return false;
  const std::array<uint32_t, 5> steps = {1, 1, 1, 1, 1};
  return encoder(map, spec.type, spec.rank, const_cast<void*>(spec.base), spec.dims.data(),
                 spec.strides_bytes.data(), spec.box.data(), steps.data(),
                 CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                 CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

// Of what differs between the maps of one program; products that don't wait for each other, since
// every call looks up half a dozen maps.
uint64_t hash_of(const TensorMapSpec& spec) {
  const uint64_t hash = reinterpret_cast<uintptr_t>(spec.base) * 0x9e3779b97f4a7c15 +
                        spec.dims[0] * 0xc2b2ae3d27d4eb4f + spec.dims[1] * 0x165667b19e3779f9 +
                        spec.dims[2] * 0x27d4eb2f165667c5 +
                        spec.strides_bytes[0] * 0xff51afd7ed558ccd +
                        (spec.box[0] + (uint64_t{spec.box[1]} << 32)) * 0xd6e8feb86659fd93;
  return hash ^ (hash >> 32);
}

// Direct mapped: a newcomer replaces what lies in its slot, so the size is bounded and there is
// nothing to evict.
struct Entry {
  TensorMapSpec spec;  // rank 0: empty
  CUtensorMap map;
};

}  // namespace

TensorMapSpec matrix_map(const void* base, CUtensorMapDataType type,
                         std::array<uint64_t, 2> rows_columns, uint64_t row_stride,
                         std::array<uint32_t, 2> box_rows_columns) {
  const uint64_t size = type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32 ? 4 : 2;
  return {.base = base,
          .type = type,
          .rank = 2,
          .dims = {rows_columns[1], rows_columns[0]},
          .strides_bytes = {row_stride * size},
          .box = {box_rows_columns[1], box_rows_columns[0]}};
}

TensorMapSpec stacked_map(const void* base, CUtensorMapDataType type, const StackedShape& shape,
                          std::array<uint32_t, 2> box_rows_columns) {
  const uint64_t size = type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32 ? 4 : 2;
  return {.base = base,
          .type = type,
          .rank = 3,
          .dims = {shape.columns, shape.rows, shape.groups},
          .strides_bytes = {shape.row_stride * size, shape.group_stride * size},
          .box = {box_rows_columns[1], box_rows_columns[0], 1}};
}

TensorMapSpec ragged_map(const void* base, CUtensorMapDataType type, uint64_t columns,
                         uint64_t row_stride, std::array<uint32_t, 2> box_rows_columns) {
  const uint64_t size = type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32 ? 4 : 2;
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
  // A thread's own: a lock for each of a call's maps would cost more than the look-up.
  thread_local std::vector<Entry> cache(kTensorMapCacheSize);
  Entry& entry = cache[hash_of(spec) % kTensorMapCacheSize];
  if (!(entry.spec == spec)) {
    CUtensorMap encoded;
    if (!encode(spec, &encoded)) return false;
    entry = {spec, encoded};
  }
  *map = entry.map;
  return true;
}

bool encode_tensor_maps(const TensorMapSpec& spec, const BoxHeights& boxes, CUtensorMap* maps) {
  struct Set {
    TensorMapSpec spec;
    BoxHeights boxes;
    std::array<CUtensorMap, std::tuple_size_v<BoxHeights>> maps;
  };
  constexpr size_t kSets = 128;
  thread_local std::vector<Set> cache(kSets);
  Set& set = cache[(hash_of(spec) + boxes[0]) % kSets];
  if (!(set.spec == spec && set.boxes == boxes)) {
    Set made{spec, boxes, {}};
    for (size_t i = 0; i < boxes.size(); ++i) {
      TensorMapSpec one = spec;
      one.box[1] = boxes[i];
      if (!encode(one, &made.maps[i])) return false;
    }
    set = made;
  }
  std::copy(set.maps.begin(), set.maps.end(), maps);
  return true;
}

bool fits_tensor_map(const void* base, uint64_t stride_bytes) {
  return reinterpret_cast<uintptr_t>(base) % 16 == 0 && stride_bytes % 16 == 0 &&
         stride_bytes < (uint64_t{1} << 40);
}

}  // namespace cadre::cuda
