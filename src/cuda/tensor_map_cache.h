// The tensor maps of recent calls of one thread, of a fixed size.
#pragma once

#include <cuda.h>

#include <array>
#include <cstddef>
#include <tuple>
#include <vector>

#include "cuda/tensor_map.h"

namespace cadre::cuda {

// Direct mapped: a newcomer replaces what lies in its slot, so there is nothing to evict. A map is
// a function of its spec alone, never of what lies at the address, so it can't grow stale. Every
// thread has its own: a lock for each of a call's maps would cost more than the look-up.
class TensorMapCache {
 public:
  // Fills the map; false when it can't be made.
  using Encode = bool (*)(const TensorMapSpec&, CUtensorMap*);

  TensorMapCache(Encode encode, size_t maps, size_t sets)
      : encode_(encode), entries_(maps), sets_(sets) {}

  // From the cache, or encoded and kept. False, and nothing kept, when encoding fails.
  bool find_or_encode(const TensorMapSpec& spec, CUtensorMap* map);
  // The same for maps that differ in the height of their box alone.
  bool find_or_encode(const TensorMapSpec& spec, const BoxHeights& boxes, CUtensorMap* maps);

 private:
  struct Entry {
    TensorMapSpec spec;  // rank 0: empty
    CUtensorMap map;
  };

  struct Set {
    TensorMapSpec spec;  // rank 0: empty
    BoxHeights boxes;
    std::array<CUtensorMap, std::tuple_size_v<BoxHeights>> maps;
  };

  Encode encode_;
  std::vector<Entry> entries_;
  std::vector<Set> sets_;
};

}  // namespace cadre::cuda
