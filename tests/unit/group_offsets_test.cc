// Offsets of groups: always 64-bit, and no bad sizes get through.
#include "plan/group_offsets.h"

#include <gtest/gtest.h>

#include <limits>

namespace cadre::plan {
namespace {

template <typename T>
struct DTypeOf;
template <>
struct DTypeOf<int8_t> {
  static constexpr DType value = DType::kI8;
};
template <>
struct DTypeOf<uint8_t> {
  static constexpr DType value = DType::kU8;
};
template <>
struct DTypeOf<int16_t> {
  static constexpr DType value = DType::kI16;
};
template <>
struct DTypeOf<uint16_t> {
  static constexpr DType value = DType::kU16;
};
template <>
struct DTypeOf<uint64_t> {
  static constexpr DType value = DType::kU64;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::kI32;
};
template <>
struct DTypeOf<uint32_t> {
  static constexpr DType value = DType::kU32;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr DType value = DType::kI64;
};

template <typename T>
Status offsets_of(const std::vector<T>& sizes, int64_t m, std::vector<int64_t>* offsets,
                  Tail tail = Tail::kZero) {
  const GroupSizes view(sizes.data(), DTypeOf<T>::value, static_cast<int64_t>(sizes.size()));
  return make_group_offsets("gmm", view, m, tail, offsets);
}

template <typename T>
Status offsets_of_ends(const std::vector<T>& ends, int64_t m, std::vector<int64_t>* offsets,
                       Tail tail = Tail::kZero) {
  const auto view =
      GroupSizes::ends(ends.data(), DTypeOf<T>::value, static_cast<int64_t>(ends.size()));
  return make_group_offsets("gmm", view, m, tail, offsets);
}

template <typename T>
std::string error_of_ends(const std::vector<T>& ends, int64_t m, Tail tail = Tail::kZero) {
  std::vector<int64_t> offsets;
  const Status status = offsets_of_ends(ends, m, &offsets, tail);
  EXPECT_EQ(status.code(), StatusCode::kInvalid);
  return status.message();
}

template <typename T>
std::string error_of(const std::vector<T>& sizes, int64_t m, Tail tail = Tail::kZero) {
  std::vector<int64_t> offsets;
  const Status status = offsets_of(sizes, m, &offsets, tail);
  EXPECT_EQ(status.code(), StatusCode::kInvalid);
  return status.message();
}

TEST(GroupOffsets, AreTheExclusivePrefixSum) {
  std::vector<int64_t> offsets;
  ASSERT_TRUE(offsets_of<int32_t>({3, 0, 5, 1}, 12, &offsets).ok());
  EXPECT_EQ(offsets, (std::vector<int64_t>{0, 3, 3, 8, 9}));
  ASSERT_TRUE(offsets_of<int64_t>({}, 7, &offsets).ok());
  EXPECT_EQ(offsets, (std::vector<int64_t>{0}));
  ASSERT_TRUE(offsets_of<uint32_t>({4}, 4, &offsets, Tail::kForbid).ok());
  EXPECT_EQ(offsets, (std::vector<int64_t>{0, 4}));
}

TEST(GroupOffsets, SumsOfNarrowSizesAreWide) {
  const int32_t large = std::numeric_limits<int32_t>::max();
  std::vector<int64_t> offsets;
  ASSERT_TRUE(offsets_of<int32_t>({large, large, large}, int64_t{1} << 40, &offsets).ok());
  EXPECT_EQ(offsets.back(), 3 * static_cast<int64_t>(large));
  ASSERT_TRUE(offsets_of<uint32_t>({3000000000u, 4000000000u}, int64_t{1} << 40, &offsets).ok());
  EXPECT_EQ(offsets, (std::vector<int64_t>{0, 3000000000, 7000000000}));
}

template <typename T>
class SizesOf : public testing::Test {};
using IntegerTypes =
    testing::Types<int8_t, uint8_t, int16_t, uint16_t, int32_t, uint32_t, int64_t, uint64_t>;
TYPED_TEST_SUITE(SizesOf, IntegerTypes);

TYPED_TEST(SizesOf, AnyIntegerTypeAreRead) {
  constexpr TypeParam kLargest = std::numeric_limits<TypeParam>::max();
  std::vector<int64_t> offsets;
  ASSERT_TRUE(offsets_of<TypeParam>({100, 0, 27}, 127, &offsets, Tail::kForbid).ok());
  EXPECT_EQ(offsets, (std::vector<int64_t>{0, 100, 100, 127}));
  if constexpr (sizeof(TypeParam) < 8) {
    ASSERT_TRUE(offsets_of<TypeParam>({kLargest, kLargest}, int64_t{1} << 40, &offsets).ok());
    EXPECT_EQ(offsets.back(), 2 * static_cast<int64_t>(kLargest));
  } else {
    EXPECT_NE(error_of<TypeParam>({1, kLargest}, std::numeric_limits<int64_t>::max()), "");
  }
  if constexpr (std::is_signed_v<TypeParam>) {
    EXPECT_EQ(error_of<TypeParam>({3, -7}, 12), "gmm: group_sizes[1] = -7, expected 0 or more");
  }
}

TYPED_TEST(SizesOf, EndsOfAnyIntegerTypeAreRead) {
  constexpr TypeParam kLargest = std::numeric_limits<TypeParam>::max();
  std::vector<int64_t> offsets;
  ASSERT_TRUE(offsets_of_ends<TypeParam>({100, 100, 127}, 127, &offsets, Tail::kForbid).ok());
  EXPECT_EQ(offsets, (std::vector<int64_t>{0, 100, 100, 127}));
  ASSERT_TRUE(offsets_of_ends<TypeParam>({}, 7, &offsets).ok());
  EXPECT_EQ(offsets, (std::vector<int64_t>{0}));
  EXPECT_EQ(error_of_ends<TypeParam>({3, kLargest}, 12),
            "gmm: group_ends[1] = " + std::to_string(kLargest) +
                ", expected group_ends[0] = 3 to m = 12");
  EXPECT_EQ(error_of_ends<TypeParam>({3, 5, 4}, 12),
            "gmm: group_ends[2] = 4, expected group_ends[1] = 5 to m = 12");
  if constexpr (std::is_signed_v<TypeParam>) {
    EXPECT_EQ(error_of_ends<TypeParam>({-7, 3}, 12),
              "gmm: group_ends[0] = -7, expected 0 to m = 12");
    EXPECT_NE(error_of_ends<TypeParam>({3, std::numeric_limits<TypeParam>::min(), 5}, 12), "");
  }
}

TEST(GroupOffsets, EndsThatLeaveATailAreNamedWhereNoneIsAllowed) {
  EXPECT_EQ(error_of_ends<int32_t>({3, 8}, 12, Tail::kForbid),
            "gmm: the last of group_ends = 8, expected m = 12 because tail = forbid");
}

TEST(GroupOffsets, SizesAbove63BitsAreNamedAsTheCallerWroteThem) {
  EXPECT_EQ(error_of<uint64_t>({3, 1ull << 63}, std::numeric_limits<int64_t>::max()),
            "gmm: sum of group_sizes[0..1] = 3 + 9223372036854775808, expected at most m = "
            "9223372036854775807");
}

TEST(GroupOffsets, BadSizesAreNamed) {
  EXPECT_EQ(error_of<int32_t>({3, -1, 5}, 12), "gmm: group_sizes[1] = -1, expected 0 or more");
  EXPECT_EQ(error_of<int64_t>({3, 5, 5}, 12),
            "gmm: sum of group_sizes[0..2] = 8 + 5, expected at most m = 12");
  EXPECT_EQ(error_of<uint32_t>({4294967295u}, 12),
            "gmm: sum of group_sizes[0..0] = 0 + 4294967295, expected at most m = 12");
  EXPECT_EQ(error_of<int32_t>({3, 5}, 12, Tail::kForbid),
            "gmm: sum of group_sizes = 8, expected m = 12 because tail = forbid");
}

TEST(GroupOffsets, SumsThatOverflow64BitsAreCaught) {
  const int64_t huge = std::numeric_limits<int64_t>::max();
  EXPECT_NE(error_of<int64_t>({5, huge}, 12).find("group_sizes[0..1]"), std::string::npos);
  EXPECT_NE(error_of<int64_t>({huge, huge}, huge).find("group_sizes[0..1]"), std::string::npos);
  const int32_t large = std::numeric_limits<int32_t>::max();
  // In 32 bits this sum would be negative, and pass.
  EXPECT_NE(error_of<int32_t>({large, large}, 100).find("group_sizes[0..0]"), std::string::npos);
}

TEST(GroupOffsets, IndexArraysAreChecked) {
  const int32_t value = 0;
  EXPECT_EQ(check_index_array("gmm", "group_sizes", {&value, DType::kF32, 1}).message(),
            "gmm: group_sizes.dtype = f32, expected an integer type (i8 to i64, u8 to u64)");
  EXPECT_EQ(check_index_array("gmm", "group_sizes", {&value, DType::kI32, -1}).message(),
            "gmm: group_sizes.count = -1, expected 0 or more");
  EXPECT_EQ(check_index_array("gmm", "group_sizes", {nullptr, DType::kI32, 3}).message(),
            "gmm: group_sizes.data = null, expected 3 integers");
  EXPECT_TRUE(check_index_array("gmm", "group_sizes", {nullptr, DType::kI32, 0}).ok());
}

}  // namespace
}  // namespace cadre::plan
