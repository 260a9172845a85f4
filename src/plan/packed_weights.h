// What a PackedWeights says of itself. The backend that packs derives what it keeps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "cadre/pack_weights.h"

namespace cadre {

struct PackedWeights::State {
  DType dtype = DType::kInvalid;  ///< of the weights it was packed from
  int64_t num_groups = 0, k = 0, n = 0;
  size_t size_bytes = 0;
  std::string_view kernel;

  State() = default;
  virtual ~State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
};

}  // namespace cadre
