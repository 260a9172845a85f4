// Which views share memory: the check behind every "overlaps" error.
#include "ops/memory_span.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "ops/checker.h"
#include "verify/random.h"

namespace cadre::ops {
namespace {

float* at(int64_t element) { return reinterpret_cast<float*>(0x10000) + element; }

TensorView view(int64_t begin, std::initializer_list<int64_t> shape,
                std::initializer_list<int64_t> strides) {
  return TensorView::strided(at(begin), DType::kF32, shape, strides);
}

MemorySpan span(int64_t begin, std::initializer_list<int64_t> shape,
                std::initializer_list<int64_t> strides) {
  MemorySpan result;
  EXPECT_TRUE(span_of(view(begin, shape, strides), &result));
  return result;
}

bool both_ways(const MemorySpan& a, const MemorySpan& b) {
  EXPECT_EQ(overlap(a, b), overlap(b, a));
  return overlap(a, b);
}

std::string error_of(const MemorySpans& out, const std::vector<NamedSpans>& inputs) {
  Checker checker("gmm");
  check_overlap(checker, "out", out, inputs);
  return checker.status().message();
}

TEST(MemorySpan, CoversNegativeStrides) {
  const MemorySpan s = span(100, {3, 4}, {-10, 1});
  EXPECT_EQ(s.begin, reinterpret_cast<uintptr_t>(at(80)));
  EXPECT_EQ(s.end, reinterpret_cast<uintptr_t>(at(104)));
  MemorySpan none;
  EXPECT_TRUE(span_of(view(0, {0, 4}, {4, 1}), &none));
  EXPECT_EQ(none.begin, none.end);
}

TEST(MemorySpan, ExtentBeyond63BitsIsNotASpan) {
  MemorySpan result;
  EXPECT_FALSE(span_of(view(0, {int64_t{1} << 40, 2}, {int64_t{1} << 40, 1}), &result));
  EXPECT_FALSE(span_of(view(0, {3, 2}, {INT64_MAX, 1}), &result));
  EXPECT_TRUE(span_of(view(0, {1, 2}, {INT64_MAX, 1}), &result));
}

TEST(MemorySpan, NeighboursDoNotOverlap) {
  EXPECT_FALSE(both_ways(span(0, {4, 8}, {8, 1}), span(32, {4, 8}, {8, 1})));
  EXPECT_TRUE(both_ways(span(0, {4, 8}, {8, 1}), span(31, {4, 8}, {8, 1})));
  EXPECT_FALSE(both_ways(span(0, {0, 8}, {8, 1}), span(0, {4, 8}, {8, 1})));
}

TEST(MemorySpan, ColumnsOfOneBufferDoNotOverlap) {
  const MemorySpan left = span(0, {4, 3}, {8, 1});
  EXPECT_FALSE(both_ways(left, span(3, {4, 5}, {8, 1})));
  EXPECT_TRUE(both_ways(left, span(2, {4, 5}, {8, 1})));
  EXPECT_TRUE(both_ways(left, span(3, {4, 6}, {8, 1})));    // reaches into the next row
  EXPECT_FALSE(both_ways(left, span(11, {2, 5}, {8, 1})));  // the same columns, rows 1 and 2
  EXPECT_TRUE(both_ways(left, span(8, {2, 3}, {8, 1})));
  EXPECT_FALSE(both_ways(left, span(3, {5}, {1})));  // a vector in the padding
  EXPECT_TRUE(both_ways(left, span(3, {6}, {1})));
  EXPECT_TRUE(both_ways(left, span(3, {4, 3}, {7, 1})));   // another pitch: both have element 10
  EXPECT_FALSE(both_ways(left, span(3, {4, 1}, {9, 1})));  // and here none: 3, 12, 21, 30
}

TEST(MemorySpan, InterleavedColumnsDoNotOverlap) {
  for (const int64_t width : {8, 9, 640}) {  // an odd width: rows alternate
    const int64_t columns = width / 2;
    EXPECT_FALSE(both_ways(span(0, {50, columns}, {width, 2}), span(1, {50, columns}, {width, 2})));
    EXPECT_TRUE(both_ways(span(0, {50, columns}, {width, 2}), span(2, {50, columns}, {width, 2})));
  }
}

TEST(MemorySpan, ViewsWithNothingInCommonAreDecidedSoon) {
  // Four strides without a common factor, a million elements in each view.
  EXPECT_TRUE(both_ways(span(0, {1000, 1000}, {10007, 3}), span(1, {1000, 1000}, {9973, 7})));
  // Broadcasts of a claimed size, and extents near all there is.
  const int64_t huge = int64_t{1} << 48;
  EXPECT_TRUE(both_ways(span(0, {huge, huge}, {0, 0}), span(0, {4, 8}, {8, 1})));
  EXPECT_FALSE(both_ways(span(3, {huge, huge}, {0, 0}), span(0, {4, 3}, {8, 1})));
  EXPECT_FALSE(both_ways(span(0, {huge, 2}, {int64_t{1} << 10, 1}), span(2, {huge}, {1 << 10})));
}

// Random views of up to three dims and elements of 1 to 8 bytes, against a count of the bytes.
TEST(MemorySpan, OverlapIsExact) {
  verify::Random random(17);
  constexpr DType kTypes[] = {DType::kI8, DType::kBF16, DType::kF32, DType::kF64};
  const auto draw = [&](std::set<uintptr_t>* bytes) {
    const DType dtype = kTypes[random.between(0, 3)];
    const int64_t widest = random.chance(0.5) ? 12 : 60;
    int64_t dims[3];
    int64_t strides[3];
    for (size_t i = 0; i < 3; ++i) {
      dims[i] = random.chance(0.3) ? 1 : random.between(1, 7);
      strides[i] = random.between(-widest, widest);
    }
    auto* origin = reinterpret_cast<char*>(0x100000) + random.between(0, 400);
    const auto size = static_cast<int64_t>(size_of(dtype));
    for (int64_t i = 0; i < dims[0] * dims[1] * dims[2]; ++i) {
      const int64_t element = i / (dims[1] * dims[2]) * strides[0] +
                              i / dims[2] % dims[1] * strides[1] + i % dims[2] * strides[2];
      for (int64_t byte = 0; byte < size; ++byte) {
        bytes->insert(reinterpret_cast<uintptr_t>(origin) +
                      static_cast<uintptr_t>(element * size + byte));
      }
    }
    MemorySpan result;
    EXPECT_TRUE(span_of(TensorView::strided(origin, dtype, {dims[0], dims[1], dims[2]},
                                            {strides[0], strides[1], strides[2]}),
                        &result));
    return result;
  };
  int apart_inside = 0;  // disjoint, though the one's bytes lie between the other's
  for (int i = 0; i < 20000; ++i) {
    std::set<uintptr_t> bytes_a;
    std::set<uintptr_t> bytes_b;
    const MemorySpan a = draw(&bytes_a);
    const MemorySpan b = draw(&bytes_b);
    const bool expected = std::any_of(bytes_a.begin(), bytes_a.end(),
                                      [&](uintptr_t byte) { return bytes_b.contains(byte); });
    ASSERT_EQ(both_ways(a, b), expected) << "case " << i;
    if (!expected && a.begin < b.end && b.begin < a.end) ++apart_inside;
  }
  EXPECT_GT(apart_inside, 1000);
}

TEST(MemorySpan, ViewsThatOverlapThemselves) {
  EXPECT_TRUE(overlaps_itself({1, 4, 8}, {0, 0, 1}));  // a broadcast row
  EXPECT_TRUE(overlaps_itself({1, 4, 8}, {0, 7, 1}));  // rows closer than their length
  EXPECT_FALSE(overlaps_itself({1, 4, 8}, {0, 8, 1}));
  EXPECT_FALSE(overlaps_itself({1, 4, 8}, {0, -8, 1}));
  EXPECT_FALSE(overlaps_itself({1, 4, 8}, {0, 1, 4}));  // column-major
  EXPECT_TRUE(overlaps_itself({3, 4, 8}, {16, 8, 1}));
  EXPECT_FALSE(overlaps_itself({0, 4, 8}, {0, 0, 0}));
  EXPECT_FALSE(overlaps_itself({1, 1, 1}, {0, 0, 0}));
}

// Every view of small dims and strides, against a count of the addresses.
TEST(MemorySpan, SelfOverlapIsExact) {
  const auto repeats = [](const int64_t(&dims)[3], const int64_t(&strides)[3]) {
    std::set<int64_t> seen;
    for (int64_t i = 0; i < dims[0]; ++i) {
      for (int64_t j = 0; j < dims[1]; ++j) {
        for (int64_t k = 0; k < dims[2]; ++k) {
          if (!seen.insert(i * strides[0] + j * strides[1] + k * strides[2]).second) return true;
        }
      }
    }
    return false;
  };
  int three_way = 0;
  for (int64_t a = -11; a <= 11; ++a) {
    for (int64_t b = -7; b <= 9; ++b) {
      for (int64_t c = -2; c <= 11; ++c) {
        for (int64_t size = 1; size <= 4; ++size) {
          const int64_t dims[3] = {size, 3, 2 + size % 3};
          const int64_t strides[3] = {a, b, c};
          const bool expected = repeats(dims, strides);
          ASSERT_EQ(overlaps_itself(dims, strides), expected)
              << size << " x 3 x " << dims[2] << ", strides " << a << ", " << b << ", " << c;
          const bool in_pairs = repeats({dims[0], dims[1], 1}, {a, b, 0}) ||
                                repeats({dims[0], 1, dims[2]}, {a, 0, c}) ||
                                repeats({1, dims[1], dims[2]}, {0, b, c});
          if (expected && !in_pairs) ++three_way;
        }
      }
    }
  }
  EXPECT_GT(three_way, 100);  // collisions that no two dims show alone
}

TEST(CheckOverlap, FindsAnyPairOfOutputs) {
  EXPECT_EQ(error_of({span(0, {8}, {1}), span(8, {8}, {1})}, {}), "");
  EXPECT_EQ(error_of({span(8, {8}, {1}), span(0, {9}, {1})}, {}),
            "gmm: out: two groups share memory, expected separate outputs");
  // Sorted by address the second lies between the first and the third, which overlap.
  EXPECT_EQ(
      error_of({span(0, {4, 3}, {8, 1}), span(3, {4, 5}, {8, 1}), span(8, {2, 3}, {8, 1})}, {}),
      "gmm: out: two groups share memory, expected separate outputs");
}

TEST(CheckOverlap, OneOutputMeetsEveryInput) {
  const MemorySpans out = {span(0, {4, 3}, {8, 1})};
  EXPECT_EQ(error_of(out, {}), "");
  EXPECT_EQ(error_of(out, {{"lhs", {}}, {"rhs", {span(3, {4, 5}, {8, 1})}}}), "");
  EXPECT_EQ(error_of(out, {{"lhs", {span(40, {1}, {1})}},
                           {"rhs", {span(100, {1}, {1}), span(26, {1}, {1})}}}),
            "gmm: out overlaps rhs, expected separate memory");
  EXPECT_EQ(error_of({}, {{"lhs", {span(0, {8}, {1})}}}), "");
}

TEST(CheckOverlap, FindsAnInputInsideALongOutput) {
  const MemorySpans out = {span(0, {9, 3}, {8, 1}), span(3, {2, 5}, {8, 1})};
  EXPECT_EQ(error_of(out, {{"lhs", {span(64, {2}, {1})}}}),
            "gmm: out overlaps lhs, expected separate memory");
  EXPECT_EQ(error_of(out, {{"lhs", {span(67, {2}, {1})}}}), "");
  EXPECT_EQ(error_of(out, {{"lhs", {}}, {"rhs", {span(12, {1}, {1})}}}),
            "gmm: out overlaps rhs, expected separate memory");
}

}  // namespace
}  // namespace cadre::ops
