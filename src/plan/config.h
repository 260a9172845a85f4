// Config: what was chosen for a Problem. Plain, printable, hashable; its name can be pinned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace cadre::plan {

struct Config {
  std::string kernel;  ///< "reference", "cpu/avx512", "sm80/gmm", "sm90/gmm_coop", ...
  int32_t tile_m = 0;  ///< of the result's rows; 0 where the kernel has no tiles
  int32_t tile_n = 0;
  int32_t tile_k = 0;
  int32_t stages = 0;
  int32_t threads = 0;  ///< CPU: threads; CUDA: threads of a block

  friend bool operator==(const Config&, const Config&) = default;
};

/// "cpu/avx512 tile 14x32x256 threads 2"
std::string to_string(const Config& config);

size_t hash_of(const Config& config);

}  // namespace cadre::plan
