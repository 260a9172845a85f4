// Encoding and caching of tensor maps; see tensor_map.h.
#include "cuda/tensor_map.h"

#include <cuda_runtime_api.h>

#include <memory>
#include <mutex>
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

// FNV-1a over the words of a spec.
uint64_t hash_of(const TensorMapSpec& spec) {
  uint64_t hash = 0xcbf29ce484222325;
  auto add = [&hash](uint64_t word) { hash = (hash ^ word) * 0x100000001b3; };
  add(reinterpret_cast<uintptr_t>(spec.base));
  add((uint64_t{static_cast<uint32_t>(spec.type)} << 32) | spec.rank);
  for (const uint64_t dim : spec.dims) add(dim);
  for (const uint64_t stride : spec.strides_bytes) add(stride);
  for (const uint32_t extent : spec.box) add(extent);
  return hash ^ (hash >> 32);
}

// Direct mapped: a newcomer replaces what lies in its slot, so the size is bounded and there is
// nothing to evict.
class Cache {
 public:
  bool find(const TensorMapSpec& spec, size_t slot, CUtensorMap* map) {
    const std::scoped_lock lock(mutex_);
    const Entry& entry = entries_[slot];
    if (!(entry.spec == spec)) return false;
    *map = entry.map;
    return true;
  }

  void put(const TensorMapSpec& spec, size_t slot, const CUtensorMap& map) {
    const std::scoped_lock lock(mutex_);
    entries_[slot] = {spec, map};
  }

 private:
  struct Entry {
    TensorMapSpec spec;  // rank 0: empty
    CUtensorMap map;
  };
  std::mutex mutex_;
  std::vector<Entry> entries_{kTensorMapCacheSize};
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
  static Cache cache;
  const size_t slot = hash_of(spec) % kTensorMapCacheSize;
  if (cache.find(spec, slot, map)) return true;
  if (!encode(spec, map)) return false;
  cache.put(spec, slot, *map);
  return true;
}

bool fits_tensor_map(const void* base, uint64_t stride_bytes) {
  return reinterpret_cast<uintptr_t>(base) % 16 == 0 && stride_bytes % 16 == 0 &&
         stride_bytes < (uint64_t{1} << 40);
}

}  // namespace cadre::cuda
