// Rows by index in the portable kernels: those that follow the index give the bits of a product of
// rows that were copied first, and take no workspace for it.
#include "core/text.h"
#include "tests/contract/contract.h"
#include "tests/gpu/gpu_fixture.h"
#include "verify/case_call.h"

namespace cadre::tests {
namespace {

using verify::Case;

/// A kernel that follows an index, and what it multiplies. Not every device has all of them.
struct Product {
  const char* kernel;
  DType operands;
  DType out;
  Precision precision = Precision::kDefault;
};

constexpr Product kProducts[] = {
    {"sm80/mma_128x128x32", DType::kBF16, DType::kBF16},
    {"sm80/mma_128x128x64", DType::kF16, DType::kF32},
    {"sm80/mma_128x256x64", DType::kBF16, DType::kF32},
    {"sm80/mma_128x256x64", DType::kF16, DType::kF16},
    {"sm80/int8", DType::kI8, DType::kI32},
    {"sm80/f32", DType::kF32, DType::kF32},
    {"sm80/tf32", DType::kF32, DType::kF32, Precision::kTf32},
    {"sm80/f64", DType::kF64, DType::kF64},
};

void fill(GpuArray& array, uint64_t seed) {
  if (array.dtype() != DType::kI8) return array.fill_random(seed);
  verify::Random random(seed);  // fill_random()'s numbers are fractions
  for (int64_t i = 0; i < array.count(); ++i) {
    array.store(i, static_cast<double>(random.between(-128, 127)));
  }
  array.upload();
}

/// An operand whose rows lie by index, and the same rows one after the other. Some are zeros.
class Rows {
 public:
  Rows(DType dtype, DType index_dtype, int64_t m, int64_t in_memory, int64_t columns)
      : in_memory_(dtype, {in_memory, columns}),
        copy_(dtype, {m, columns}),
        index_(index_dtype, {m}) {
    fill(in_memory_, static_cast<uint64_t>(in_memory));
    std::vector<int64_t> rows;
    for (int64_t r = 0; r < m; ++r) rows.push_back(r % 11 == 5 ? -1 : r * 29 % in_memory);
    index_.set(rows);
    for (int64_t i = 0; i < copy_.count(); ++i) {
      const int64_t row = rows[static_cast<size_t>(i / columns)];
      copy_.store(i, row < 0 ? 0.0 : in_memory_.before(row * columns + i % columns));
    }
    copy_.upload();
  }

  TensorView rows(bool by_index) const { return by_index ? in_memory_.view() : copy_.view(); }
  TensorView index(bool by_index) const { return by_index ? index_.view() : TensorView{}; }

 private:
  GpuArray in_memory_, copy_, index_;
};

/// Groups with and without rows, of less than a block of K and of several.
const std::vector<int64_t> kSizes = {130, 0, 1, 257, 33, 300};
constexpr int64_t kGroups = 6;
constexpr int64_t kRows = 730;                     // a tail of nine
constexpr int64_t kFewRows = 64, kSomeRows = 200;  // in memory

/// Columns of both operands: whole vectors of 16 bytes, edges within one, and rows that begin
/// anywhere.
struct Columns {
  int64_t k, n;
};
constexpr Columns kColumns[] = {{8, 264}, {136, 264}, {520, 40}, {37, 23}};

class PortableRows : public GpuTest {
 protected:
  static ContextOptions options() {
    ContextOptions options = BackendUnderTest::options_for("cuda_sm80");
    options.sm_count = 3;  // every block takes many tiles
    return options;
  }

  static CallOptions options_of(const Product& product) {
    CallOptions options;
    options.precision = product.precision;
    options.config = product.kernel;
    return options;
  }

  /// `call(by_index, out)` multiplies rows by index or their copy, `workspace_size(by_index)` says
  /// what it takes.
  template <typename Call, typename WorkspaceSize>
  void expect_same(const Product& product, const std::vector<int64_t>& shape,
                   const std::string& what, Call call, WorkspaceSize workspace_size) {
    SCOPED_TRACE(text(product.kernel, " of ", name_of(product.operands), ", ", what));
    GpuArray followed(product.out, shape), copied(product.out, shape);
    const Status first = call(false, copied);
    if (first.code() == StatusCode::kUnsupported) return;  // by this device
    ASSERT_TRUE(first.ok()) << first.message();
    const Status second = call(true, followed);
    ASSERT_TRUE(second.ok()) << second.message();
    ASSERT_TRUE(device_memory().finish(context_).ok());
    followed.download();
    copied.download();
    EXPECT_TRUE(followed.guards_intact());
    EXPECT_TRUE(followed.same_after(copied));
    EXPECT_EQ(workspace_size(true), workspace_size(false));
  }

  Context context_{options()};
};

TEST_F(PortableRows, GmmGivesTheBitsOfACopyAndMakesNone) {
  for (const Product& product : kProducts) {
    for (const auto& [k, n] : kColumns) {
      for (const bool transposed : {false, true}) {
        const DType index = transposed ? DType::kI64 : DType::kI32;
        const Rows lhs(product.operands, index, kRows, kSomeRows, k);
        GpuArray rhs(product.operands, {kGroups, transposed ? n : k, transposed ? k : n});
        GpuArray sizes(DType::kI32, {kGroups});
        fill(rhs, 3);
        sizes.set(kSizes);
        const auto args = [&](bool by_index, const GpuArray& out) -> GmmArgs {
          return {.lhs = lhs.rows(by_index),
                  .rhs = rhs.view(),
                  .group_sizes = sizes.sizes(),
                  .out = out.view(),
                  .lhs_rows = lhs.index(by_index),
                  .transpose_rhs = transposed,
                  .options = options_of(product)};
        };
        const GpuArray out(product.out, {kRows, n});
        expect_same(
            product, {kRows, n}, text("k ", k, " n ", n, transposed ? " transposed" : ""),
            [&](bool by_index, const GpuArray& to) { return gmm(context_, args(by_index, to)); },
            [&](bool by_index) {
              size_t bytes = 0;
              EXPECT_TRUE(gmm_workspace_size(context_, args(by_index, out), &bytes).ok());
              return bytes;
            });
      }
    }
  }
}

TEST_F(PortableRows, TgmmGivesTheBitsOfACopyAndMakesNone) {
  for (const Product& product : kProducts) {
    for (const auto& [k, n] : kColumns) {
      const Rows lhs(product.operands, DType::kI32, kRows, kSomeRows, k);
      const Rows rhs(product.operands, DType::kI64, kRows, kFewRows, n);
      GpuArray sizes(DType::kI32, {kGroups});
      sizes.set(kSizes);
      for (const bool of_lhs : {true, false}) {
        for (const bool of_rhs : {true, false}) {
          if (!of_lhs && !of_rhs) continue;
          const auto args = [&](bool by_index, const GpuArray& out) -> TgmmArgs {
            return {.lhs = lhs.rows(by_index && of_lhs),
                    .rhs = rhs.rows(by_index && of_rhs),
                    .group_sizes = sizes.sizes(),
                    .out = out.view(),
                    .lhs_rows = lhs.index(by_index && of_lhs),
                    .rhs_rows = rhs.index(by_index && of_rhs),
                    .options = options_of(product)};
          };
          const GpuArray out(product.out, {kGroups, k, n});
          expect_same(
              product, {kGroups, k, n},
              text("k ", k, " n ", n, of_lhs ? " lhs" : "", of_rhs ? " rhs" : ""),
              [&](bool by_index, const GpuArray& to) { return tgmm(context_, args(by_index, to)); },
              [&](bool by_index) {
                size_t bytes = 0;
                EXPECT_TRUE(tgmm_workspace_size(context_, args(by_index, out), &bytes).ok());
                return bytes;
              });
        }
      }
    }
  }
}

/// 160x256 takes a copy; not every device has it.
constexpr const char* kTiles[] = {"sm80/mma_128x128x32", "sm80/mma_128x128x64",
                                  "sm80/mma_128x256x64", "sm80/mma_160x256x64"};

TEST_F(PortableRows, EveryTileGivesTheSameBits) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const bool is_tgmm : {false, true}) {
      for (const bool transposed : {false, true}) {
        if (is_tgmm && transposed) continue;
        const contract::DTypes types{dtype, dtype, dtype};
        Case c = is_tgmm ? contract::tgmm::basic(types) : contract::gmm::basic(types);
        c.group_sizes = kSizes;
        c.m = kRows;
        c.k = 520;
        c.n = 264;
        c.transpose_rhs = transposed;
        c.lhs_rows = kSomeRows;
        if (is_tgmm) c.rhs_rows = kFewRows;
        c.rows_dtype = transposed ? DType::kI64 : DType::kI32;
        std::vector<std::vector<std::byte>> results;
        for (const char* kernel : kTiles) {
          c.kernel = kernel;
          verify::CaseData data = verify::make_data(c, device_memory());
          std::string chosen;
          if (!verify::kernel_of(context_, c, data, &chosen).ok()) continue;
          data.upload();
          const Status status = verify::call(context_, c, data);
          ASSERT_TRUE(status.ok()) << status.message();
          ASSERT_TRUE(device_memory().finish(context_).ok());
          data.download();
          results.push_back(data.out->all_bytes_after());
          EXPECT_EQ(results.front(), results.back()) << to_string(c);
        }
        EXPECT_GE(results.size(), 2u);
      }
    }
  }
}

}  // namespace
}  // namespace cadre::tests
