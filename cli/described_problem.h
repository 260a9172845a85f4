// A problem described in words and numbers (the options of `cadre explain`), turned into a Problem
// by the op's own checks. Tensors get made-up addresses that nobody reads.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cadre/status.h"
#include "plan/problem.h"

namespace cadre::cli {

inline constexpr int64_t kMaxGroups = 1 << 20;  ///< their sizes are written out

struct ProblemDescription {
  std::string op = "gmm";
  int64_t m = 0;
  int64_t k = -1;  ///< -1: not given
  int64_t n = 0;
  int64_t num_groups = 0;
  int64_t num_local_groups = -1;  ///< -1: all
  std::string lhs_dtype = "bf16";
  std::string rhs_dtype;  ///< empty: that of lhs
  std::string out_dtype;  ///< empty: promoted
  bool transpose_lhs = false;
  bool transpose_rhs = false;
  bool list_rhs = false;
  bool list_out = false;
  bool bias = false;
  bool row_scale = false;
  bool accumulate = false;
  double alpha = 1;
  std::string tail = "zero";
  std::string precision = "default";
  int64_t average_rows = 0;
  int alignment_bytes = 128;
  std::optional<int64_t> lhs_row_stride{};  ///< absent: no gaps
  std::optional<int64_t> lhs_rows{};        ///< rows of lhs where the product's are taken by index
  std::string device = "cpu";
  bool device_sizes = false;
};

/// kInvalid, naming the option, for a description that makes no problem.
Status make_problem(const ProblemDescription& description, plan::Problem* problem);

}  // namespace cadre::cli
