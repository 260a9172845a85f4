// Group offsets on the host.
#include "plan/group_offsets.h"

#include <cstring>

#include "core/text.h"

namespace cadre::plan {
namespace {

template <typename T>
int64_t read_as(const void* data, int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(data) + index * static_cast<int64_t>(sizeof(T)),
              sizeof(T));
  return static_cast<int64_t>(value);
}

}  // namespace

int64_t read_index(const void* data, DType dtype, int64_t index) {
  switch (dtype) {
    case DType::kI32:
      return read_as<int32_t>(data, index);
    case DType::kU32:
      return read_as<uint32_t>(data, index);
    default:
      return read_as<int64_t>(data, index);
  }
}

Status check_index_array(std::string_view op, std::string_view argument, const GroupSizes& sizes) {
  if (sizes.dtype != DType::kI32 && sizes.dtype != DType::kU32 && sizes.dtype != DType::kI64) {
    return Status::invalid(
        text(op, ": ", argument, ".dtype = ", name_of(sizes.dtype), ", expected i32, u32 or i64"));
  }
  if (sizes.count < 0) {
    return Status::invalid(
        text(op, ": ", argument, ".count = ", sizes.count, ", expected 0 or more"));
  }
  if (sizes.data == nullptr && sizes.count > 0) {
    return Status::invalid(
        text(op, ": ", argument, ".data = null, expected ", sizes.count, " integers"));
  }
  return {};
}

Status make_group_offsets(std::string_view op, const GroupSizes& sizes, int64_t m, Tail tail,
                          std::vector<int64_t>* offsets) {
  offsets->assign(1, 0);
  offsets->reserve(static_cast<size_t>(sizes.count) + 1);
  int64_t sum = 0;
  for (int64_t i = 0; i < sizes.count; ++i) {
    const int64_t size = read_index(sizes.data, sizes.dtype, i);
    if (size < 0) {
      return Status::invalid(text(op, ": group_sizes[", i, "] = ", size, ", expected 0 or more"));
    }
    if (size > m - sum) {  // written so that it can't overflow
      return Status::invalid(text(op, ": sum of group_sizes[0..", i, "] = ", sum, " + ", size,
                                  ", expected at most m = ", m));
    }
    sum += size;
    offsets->push_back(sum);
  }
  if (tail == Tail::kForbid && sum != m) {
    return Status::invalid(
        text(op, ": sum of group_sizes = ", sum, ", expected m = ", m, " because tail = forbid"));
  }
  return {};
}

}  // namespace cadre::plan
