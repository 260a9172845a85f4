// Views whose elements lie more than 2^32 elements apart, on memory that is mapped and hardly
// touched. An offset squeezed into 32 bits wraps around to other, zero elements of the mapping.
#include <sys/mman.h>

#include <cmath>

#include "core/text.h"
#include "tests/contract/contract.h"
#include "verify/element.h"
#include "verify/random.h"
#include "verify/tolerance.h"

namespace cadre::contract {
namespace {

using verify::load_element;
using verify::store_element;

constexpr int64_t kRowsPerGroup = 3;
constexpr int64_t kGroups = 3;
constexpr int64_t kM = kRowsPerGroup * kGroups;
constexpr int64_t kK = 5;
constexpr int64_t kN = 4;
constexpr int64_t kHuge = (int64_t{1} << 31) + 24;

/// Zero bytes that cost nothing until they are touched.
class SparseMapping {
 public:
  SparseMapping(int64_t elements, DType dtype)
      : size_bytes_(static_cast<size_t>(elements) * size_of(dtype)),
        data_(mmap(nullptr, size_bytes_, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ~SparseMapping() {
    if (valid()) munmap(data_, size_bytes_);
  }
  SparseMapping(const SparseMapping&) = delete;
  SparseMapping& operator=(const SparseMapping&) = delete;

  bool valid() const { return data_ != MAP_FAILED; }
  void* data() const { return data_; }

 private:
  size_t size_bytes_;
  void* data_;
};

/// Strides of [row, col] and, for rhs, of the group.
struct Strides {
  const char* name;
  int64_t lhs_row = kK, lhs_col = 1;
  int64_t rhs_group = kK * kN, rhs_row = kN;
  int64_t out_row = kN, out_col = 1;
};

Failures run(const Subject& subject, const DTypes& types, const Strides& s) {
  const SparseMapping lhs((kM - 1) * s.lhs_row + (kK - 1) * s.lhs_col + 1, types.lhs);
  const SparseMapping rhs((kGroups - 1) * s.rhs_group + (kK - 1) * s.rhs_row + kN, types.rhs);
  const SparseMapping out((kM - 1) * s.out_row + (kN - 1) * s.out_col + 1, types.out);
  if (!lhs.valid() || !rhs.valid() || !out.valid()) return {text(s.name, ": mmap failed")};

  verify::Random random(31);
  const auto value = [&](DType dtype) {
    return dtype == DType::kI8 ? static_cast<double>(random.between(1, 127))
                               : random.uniform(0.5, 1);
  };
  for (int64_t row = 0; row < kM; ++row) {
    for (int64_t i = 0; i < kK; ++i) {
      store_element(lhs.data(), types.lhs, row * s.lhs_row + i * s.lhs_col, value(types.lhs));
    }
  }
  for (int64_t group = 0; group < kGroups; ++group) {
    for (int64_t i = 0; i < kK; ++i) {
      for (int64_t col = 0; col < kN; ++col) {
        store_element(rhs.data(), types.rhs, group * s.rhs_group + i * s.rhs_row + col,
                      value(types.rhs));
      }
    }
  }
  const int32_t sizes[kGroups] = {kRowsPerGroup, kRowsPerGroup, kRowsPerGroup};
  GmmArgs args;
  args.lhs = TensorView::strided(lhs.data(), types.lhs, {kM, kK}, {s.lhs_row, s.lhs_col});
  args.rhs =
      TensorView::strided(rhs.data(), types.rhs, {kGroups, kK, kN}, {s.rhs_group, s.rhs_row, 1});
  args.out = TensorView::strided(out.data(), types.out, {kM, kN}, {s.out_row, s.out_col});
  args.group_sizes = GroupSizes(sizes, DType::kI32, kGroups);
  if (const Status status = cadre::gmm(subject.context, args); !status.ok()) {
    return {text(s.name, ": refused: ", status.message())};
  }
  Failures failures;
  for (int64_t row = 0; row < kM && failures.empty(); ++row) {
    for (int64_t col = 0; col < kN; ++col) {
      verify::Expected expected;
      for (int64_t i = 0; i < kK; ++i) {
        const int64_t group = row / kRowsPerGroup;
        expected.value +=
            load_element(lhs.data(), types.lhs, row * s.lhs_row + i * s.lhs_col) *
            load_element(rhs.data(), types.rhs, group * s.rhs_group + i * s.rhs_row + col);
      }
      // All terms are positive: the sum is its own magnitude.
      expected.bound = verify::rounding_bound(DType::kF32, kK + 8, expected.value);
      const double got = load_element(out.data(), types.out, row * s.out_row + col * s.out_col);
      if (verify::agrees(types.out, expected, got)) continue;
      failures.push_back(
          text(s.name, ": row ", row, " col ", col, ": expected ", expected.value, ", got ", got));
      break;
    }
  }
  return failures;
}

}  // namespace

Failures offsets_are_64_bit(const Subject& subject, const DTypes& types) {
  Failures failures;
  for (const Strides& strides :
       {Strides{.name = "lhs rows far apart", .lhs_row = kHuge},
        Strides{.name = "lhs columns far apart", .lhs_row = 1, .lhs_col = kHuge},
        Strides{.name = "groups of rhs far apart", .rhs_group = kHuge},
        Strides{.name = "rows of rhs far apart", .rhs_group = kN, .rhs_row = kHuge},
        Strides{.name = "out rows far apart", .out_row = kHuge}}) {
    const Failures found = run(subject, types, strides);
    failures.insert(failures.end(), found.begin(), found.end());
  }
  return failures;
}

}  // namespace cadre::contract
