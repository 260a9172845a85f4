// Group offsets on the host: always int64, validated while they are summed.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "cadre/gmm.h"
#include "cadre/status.h"
#include "cadre/tensor.h"

namespace cadre::plan {

/// Element `index` of an i32, u32 or i64 array in host memory.
int64_t read_index(const void* data, DType dtype, int64_t index);

/// Checks dtype, count and pointer of an index array, naming it `argument` in errors.
Status check_index_array(std::string_view op, std::string_view argument, const GroupSizes& sizes);

/// offsets[i] = sum of the sizes before i; offsets has count + 1 entries. `m` bounds the sum, and
/// Tail::kForbid demands that it equals m.
Status make_group_offsets(std::string_view op, const GroupSizes& sizes, int64_t m, Tail tail,
                          std::vector<int64_t>* offsets);

}  // namespace cadre::plan
