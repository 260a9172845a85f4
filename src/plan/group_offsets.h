// Group offsets on the host: always int64, validated while they are summed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cadre/gmm.h"
#include "cadre/status.h"
#include "cadre/tensor.h"

namespace cadre::plan {

/// Element `index` of an array of integers in host memory; negative for a u64 above 2^63 - 1, which
/// every caller refuses.
int64_t read_index(const void* data, DType dtype, int64_t index);

/// The same element as the caller wrote it, for messages.
std::string index_text(const void* data, DType dtype, int64_t index);

/// Checks dtype, count and pointer of an index array, naming it `argument` in errors.
Status check_index_array(std::string_view op, std::string_view argument, const GroupSizes& sizes);

/// offsets[i] = sum of the sizes before i, or the end of group i - 1; offsets has count + 1
/// entries. `m` bounds the last, and Tail::kForbid demands that it equals m.
Status make_group_offsets(std::string_view op, const GroupSizes& sizes, int64_t m, Tail tail,
                          std::vector<int64_t>* offsets);

}  // namespace cadre::plan
