// Host data that a call carries into its launches as kernel parameters: the stream needs no copy
// and no pinned buffer, and a captured graph keeps the values.
#pragma once

#include <cstdint>
#include <vector>

#include "cadre/tensor.h"
#include "cuda/launch.h"

namespace cadre::cuda {

/// Collects arrays of 64-bit words; send() stores them all in the workspace, in stream order.
class CarriedWords {
 public:
  explicit CarriedWords(const Launch& launch) : launch_(launch) {}

  /// The device address at which these values will lie.
  const int64_t* add(const int64_t* values, int64_t count);
  void* const* add(void* const* pointers, int64_t count);

  /// A list's pointers on the device: the caller's own array, or a carried copy; null for any other
  /// placement.
  void* const* add_list(const GroupedTensor& tensor);

  /// One launch for every 4000 words; none without words.
  Status send() const;

 private:
  const Launch& launch_;
  std::vector<int64_t> words_;
};

}  // namespace cadre::cuda
