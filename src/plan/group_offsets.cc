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
    case DType::kI8:
      return read_as<int8_t>(data, index);
    case DType::kU8:
      return read_as<uint8_t>(data, index);
    case DType::kI16:
      return read_as<int16_t>(data, index);
    case DType::kU16:
      return read_as<uint16_t>(data, index);
    case DType::kI32:
      return read_as<int32_t>(data, index);
    case DType::kU32:
      return read_as<uint32_t>(data, index);
    default:  // i64 and u64
      return read_as<int64_t>(data, index);
  }
}

std::string index_text(const void* data, DType dtype, int64_t index) {
  const int64_t value = read_index(data, dtype, index);
  return dtype == DType::kU64 ? text(static_cast<uint64_t>(value)) : text(value);
}

Status check_index_array(std::string_view op, std::string_view argument, const GroupSizes& sizes) {
  if (!is_integer(sizes.dtype)) {
    return Status::invalid(text(op, ": ", argument, ".dtype = ", name_of(sizes.dtype),
                                ", expected an integer type (i8 to i64, u8 to u64)"));
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

namespace {

Status offsets_from_ends(std::string_view op, const GroupSizes& ends, int64_t m, Tail tail,
                         std::vector<int64_t>* offsets) {
  int64_t before = 0;
  for (int64_t i = 0; i < ends.count; ++i) {
    const int64_t end = read_index(ends.data, ends.dtype, i);
    if (end < before || end > m) {
      return Status::invalid(
          text(op, ": group_ends[", i, "] = ", index_text(ends.data, ends.dtype, i), ", expected ",
               i == 0 ? "0" : text("group_ends[", i - 1, "] = ", before), " to m = ", m));
    }
    offsets->push_back(end);
    before = end;
  }
  if (tail == Tail::kForbid && before != m) {
    return Status::invalid(text(op, ": the last of group_ends = ", before, ", expected m = ", m,
                                " because tail = forbid"));
  }
  return {};
}

}  // namespace

Status make_group_offsets(std::string_view op, const GroupSizes& sizes, int64_t m, Tail tail,
                          std::vector<int64_t>* offsets) {
  offsets->assign(1, 0);
  offsets->reserve(static_cast<size_t>(sizes.count) + 1);
  if (sizes.kind == GroupSizesKind::kEnds) return offsets_from_ends(op, sizes, m, tail, offsets);
  int64_t sum = 0;
  for (int64_t i = 0; i < sizes.count; ++i) {
    const int64_t size = read_index(sizes.data, sizes.dtype, i);
    if (size < 0 && sizes.dtype != DType::kU64) {
      return Status::invalid(text(op, ": group_sizes[", i, "] = ", size, ", expected 0 or more"));
    }
    if (size < 0 || size > m - sum) {  // written so that it can't overflow
      return Status::invalid(text(op, ": sum of group_sizes[0..", i, "] = ", sum, " + ",
                                  index_text(sizes.data, sizes.dtype, i),
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
