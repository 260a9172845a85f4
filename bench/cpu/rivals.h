// Other libraries, called once for each expert as one would without a grouped product. Which of
// them there are is decided at build time; the library itself links to none of them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cadre/dtype.h"

namespace cadre::bench {

/// rows_i x k times k x n for each expert (gmm), or k x rows_i times rows_i x n (tgmm).
struct RivalCase {
  bool transposed_lhs;  ///< tgmm: out_i = lhs_i^T @ rhs_i
  bool transpose_rhs;   ///< gmm: rhs is [g, n, k]
  DType dtype;
  DType out_dtype;
  std::vector<int64_t> group_sizes;
  int64_t k, n;
  const void* lhs;
  const void* rhs;
  void* out;
  int threads;
};

class Rival {
 public:
  virtual ~Rival() = default;
  virtual std::string name() const = 0;
  virtual std::string version() const = 0;  ///< of the library that is loaded
  /// False when it doesn't offer these types. Whatever can be prepared is prepared here, untimed.
  virtual bool prepare(const RivalCase& work) = 0;
  virtual void run() = 0;
};

std::vector<std::unique_ptr<Rival>> make_rivals();

}  // namespace cadre::bench
