// What a measurement of `cadre tune` is good for: of a problem all that decides between kernels,
// and of its rows no more than their magnitude. Never the sizes of groups.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "plan/problem.h"

namespace cadre::backend {

struct TuningKey {
  plan::Op op = plan::Op::kGmm;
  DType lhs = DType::kInvalid, rhs = DType::kInvalid, out = DType::kInvalid;
  ScaleMode scales = ScaleMode::kNone;  ///< of lhs
  ActivationKind activation = ActivationKind::kNone;
  bool interleaved = false;  ///< gates of the activation
  bool transpose_lhs = false, transpose_rhs = false;
  bool list_rhs = false, list_out = false;
  bool beta = false;
  bool by_index = false;  ///< rows of lhs
  int64_t k = 0, n = 0, num_groups = 0;
  int64_t rows = 0;  ///< of a typical group: up to this power of two

  friend bool operator==(const TuningKey&, const TuningKey&) = default;
};

TuningKey key_of(const plan::Problem& problem);

/// "gmm bf16 x bf16^T -> bf16, k 2048, n 1536, 128 groups of up to 512 rows"
std::string to_string(const TuningKey& key);

struct TuningKeyHash {
  size_t operator()(const TuningKey& key) const;
};

}  // namespace cadre::backend
