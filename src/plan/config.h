// Config: what was chosen for a Problem. Printable, hashable; its name can be pinned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace cadre::plan {

/// A row of a backend's own table of kernels, which derives from this and lives as long as the
/// process. choose() finds it and run() takes it, without a look at any name.
struct KernelChoice {};

struct Config {
  std::string_view kernel{};  ///< "reference", "cpu/avx512", "sm90/gmm_192x256": rows x columns
  const KernelChoice* choice = nullptr;
  int32_t tile_m = 0;  ///< of the result's rows; 0 where the kernel has no tiles
  int32_t tile_n = 0;
  int32_t tile_k = 0;
  int32_t stages = 0;
  int32_t threads = 0;  ///< CPU: threads; CUDA: threads of a block
  // Steps around the kernel.
  bool copies_rows = false;          ///< rows by index are copied into the workspace first
  bool widens = false;               ///< FP8 becomes bf16 in the workspace first
  bool separate_activation = false;  ///< the activation is applied by a kernel of its own

  friend bool operator==(const Config&, const Config&) = default;
};

/// "cpu/avx512 tile 14x32x256 threads 2"
std::string to_string(const Config& config);

size_t hash_of(const Config& config);

}  // namespace cadre::plan
