// How a table of bad input is run: each row gets an error that names op, argument, expected and
// received, and touches nothing, through the C++ API and through the C API.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "tests/support/c_calls.h"

namespace cadre::tests {

inline constexpr int64_t kM = 6, kK = 4, kN = 5, kGroups = 3;

/// Memory of a small, valid call; the output is a pattern that nothing may change.
struct Arrays {
  float lhs[kM * kK] = {};
  float rhs[kGroups * kK * kN] = {};
  float out[kGroups * kK * kN] = {};
  float c[kGroups * kK * kN] = {};
  float bias[kGroups * kN] = {};
  float vector[kM] = {};
  float dbias_scale[kM] = {};
  int32_t sizes[kGroups] = {2, 1, 3};
  int32_t negative[kGroups] = {2, -1, 3};
  int32_t too_many[kGroups] = {2, 1, 4};
  int32_t too_few[kGroups] = {2, 1, 2};
  int32_t rows[kM] = {0, 5, -1, 2, 2, 3};
  int32_t bad_rows[kM] = {0, 5, -1, 6, 2, 3};
  int32_t worse_rows[kM] = {0, 5, -2, 4, 2, 3};
  void* pointers[kGroups] = {};
  void* null_in_list[kGroups] = {};
  void* out_pointers[kGroups] = {};
  void* one_pointer[1] = {};

  Arrays() {
    std::memset(out, 0x5a, sizeof(out));
    std::memset(dbias_scale, 0x5a, sizeof(dbias_scale));
    for (int64_t i = 0; i < kGroups; ++i) pointers[i] = null_in_list[i] = rhs + i * kK * kN;
    null_in_list[1] = nullptr;
    for (int64_t i = 0; i < kGroups; ++i) out_pointers[i] = out + i * kK * kN;
    one_pointer[0] = rhs;
  }
  bool untouched() const {
    const Arrays fresh;
    return std::memcmp(out, fresh.out, sizeof(out)) == 0 &&
           std::memcmp(dbias_scale, fresh.dbias_scale, sizeof(dbias_scale)) == 0;
  }
  GroupSizes group_sizes() const { return {sizes, DType::kI32, kGroups}; }
};

inline TensorView f32(const float* data, std::initializer_list<int64_t> shape) {
  return TensorView::contiguous(data, DType::kF32, shape);
}

inline TensorView i32(const int32_t* data, int64_t length) {
  return TensorView::contiguous(data, DType::kI32, {length});
}

inline constexpr auto kUnknownDType = static_cast<DType>(99);

template <typename Args>
struct Row {
  const char* name;
  std::function<void(Args&, Arrays&)> spoil;
  const char* message;
};

/// Runs a row through both APIs.
template <typename Args>
void expect_error(const Row<Args>& row, Args (*valid)(Arrays&)) {
  SCOPED_TRACE(row.name);
  Arrays arrays;
  Args args = valid(arrays);
  Context context;
  {
    Arrays good_arrays;
    const Args good = valid(good_arrays);
    ASSERT_TRUE(call(context, good).ok()) << call(context, good).message();
    ASSERT_FALSE(good_arrays.untouched()) << "the valid call must write, or the test shows nothing";
  }
  row.spoil(args, arrays);
  const Status status = call(context, args);
  EXPECT_EQ(status.code(), StatusCode::kInvalid);
  EXPECT_EQ(status.message(), row.message);
  EXPECT_TRUE(arrays.untouched());
  size_t size_bytes = 0;
  EXPECT_EQ(call_for_workspace_size(context, args, &size_bytes).message(), row.message);

  const CResult through_c = call_through_c(args);
  EXPECT_EQ(through_c.code, CADRE_INVALID);
  EXPECT_EQ(through_c.message, row.message);
  EXPECT_TRUE(arrays.untouched());
}

}  // namespace cadre::tests
