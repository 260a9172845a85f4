// Tensor maps of grouped_gemm, and of FP8's tgmm and gmm by rows: one for each matrix of each
// group, made on the device from the table of groups, since extents, strides and addresses may lie
// there. Nobody on the host has seen them, so the kernel that makes the maps also finds out whether
// the copy engine takes every matrix: if not, the Hopper kernel does nothing, and a portable one
// nothing otherwise.
#pragma once

#include "cadre/status.h"
#include "cuda/launch.h"
#include "cuda/sm90/arguments.h"

namespace cadre::sm90 {

/// Plain: it travels as a kernel parameter.
struct GroupedMapsArguments {
  CUtensorMap operand_pattern;  ///< boxes of 128 bytes x 64 rows
  CUtensorMap out_pattern;      ///< boxes of 128 bytes x 64 rows
  sm80::GroupEntries table{};
  GroupedMaps* maps = nullptr;
  GroupedVerdict* verdict = nullptr;
  int64_t num_groups = 0;
  int32_t operand_element_bytes = 2;
  int32_t out_element_bytes = 2;
  bool transpose_a = false;  ///< A is stored [k, m]
  bool transpose_b = false;  ///< B is stored [n, k]
  bool reads_c = false;
};

Status make_grouped_maps(const cuda::Launch& launch, const GroupedMapsArguments& args);

}  // namespace cadre::sm90
