// See tensor_map_cache.h.
#include "cuda/tensor_map_cache.h"

#include <algorithm>
#include <cstdint>

namespace cadre::cuda {
namespace {

// Of what differs between the maps of one program; products that don't wait for each other, since
// every call looks up half a dozen maps.
uint64_t hash_of(const TensorMapSpec& spec) {
  const uint64_t hash =
      reinterpret_cast<uintptr_t>(spec.base) * 0x9e3779b97f4a7c15 +
      spec.dims[0] * 0xc2b2ae3d27d4eb4f + spec.dims[1] * 0x165667b19e3779f9 +
      spec.dims[2] * 0x27d4eb2f165667c5 + spec.strides_bytes[0] * 0xff51afd7ed558ccd +
      (spec.box[0] + (uint64_t{spec.box[1]} << 32) + (uint64_t{spec.fetches_more} << 16)) *
          0xd6e8feb86659fd93;
  return hash ^ (hash >> 32);
}

}  // namespace

bool TensorMapCache::find_or_encode(const TensorMapSpec& spec, CUtensorMap* map) {
  Entry& entry = entries_[hash_of(spec) % entries_.size()];
  if (!(entry.spec == spec)) {
    CUtensorMap encoded;
    if (!encode_(spec, &encoded)) return false;
    entry = {spec, encoded};
  }
  *map = entry.map;
  return true;
}

bool TensorMapCache::find_or_encode(const TensorMapSpec& spec, const BoxHeights& boxes,
                                    CUtensorMap* maps) {
  Set& set = sets_[(hash_of(spec) + boxes[0]) % sets_.size()];
  if (!(set.spec == spec && set.boxes == boxes)) {
    Set made{spec, boxes, {}};
    for (size_t i = 0; i < boxes.size(); ++i) {
      TensorMapSpec one = spec;
      one.box[1] = boxes[i];
      if (!encode_(one, &made.maps[i])) return false;
    }
    set = made;
  }
  std::copy(set.maps.begin(), set.maps.end(), maps);
  return true;
}

}  // namespace cadre::cuda
