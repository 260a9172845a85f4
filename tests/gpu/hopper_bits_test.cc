// Batch invariance of the Hopper kernels through the public API: a row of gmm, or a group of tgmm,
// has the same bits in every instantiation, among 1 to 4096 rows, in any place and beside any other
// groups. Without factors these are the bits of the portable kernel, too; with them the portable
// epilogue, which no such call is given, may round the last bit another way.
#include <algorithm>
#include <array>

#include "tests/gpu/gpu_fixture.h"
#include "tests/gpu/hopper_subjects.h"

namespace cadre::tests {
namespace {

using Bytes = std::vector<std::byte>;

enum class Epilogue { kPlain, kFactors, kEverything };

struct BitsParam {
  DType element;
  DType out;
  Epilogue epilogue;
};

std::string name_of_bits(const testing::TestParamInfo<BitsParam>& info) {
  static constexpr std::array kNames = {"plain", "factors", "everything"};
  return std::string(name_of(info.param.element)) + "_" + std::string(name_of(info.param.out)) +
         "_" + kNames[static_cast<size_t>(info.param.epilogue)];
}

/// Whose bits all others must have.
Context first_context(const BitsParam& param) {
  if (param.epilogue == Epilogue::kPlain) return portable_context();
  return Context(BackendUnderTest::options_for("sm90"));
}

void copy_bytes(void* to, const void* from, size_t size_bytes) {
  ASSERT_EQ(cudaMemcpy(to, from, size_bytes, cudaMemcpyDefault), cudaSuccess);
}

/// Rows of `from` become rows `first` and on of `to`; both are [.., cols] of one type.
void copy_rows(const GpuArray& from, int64_t rows, GpuArray& to, int64_t first, int64_t cols) {
  const size_t row_bytes = static_cast<size_t>(cols) * size_of(to.dtype());
  copy_bytes(static_cast<char*>(to.data()) + static_cast<size_t>(first) * row_bytes, from.data(),
             static_cast<size_t>(rows) * row_bytes);
}

TensorView first_rows(const GpuArray& array, int64_t rows, int64_t cols) {
  return TensorView::contiguous(array.data(), array.dtype(), {rows, cols}, kGpu);
}

TensorView first_elements(const GpuArray& array, int64_t count) {
  return TensorView::contiguous(array.data(), array.dtype(), {count}, kGpu);
}

class HopperRowBits : public HopperTest, public testing::WithParamInterface<BitsParam> {
 protected:
  static constexpr int64_t kRows = 4096, kK = 1096, kN = 264;

  /// The compared row stands at `place`, in the second of two groups.
  struct Company {
    int64_t m;
    int64_t place;
    bool transposed;
  };

  void SetUp() override {
    HopperTest::SetUp();
    if (IsSkipped()) return;
    uint64_t seed = 1;
    for (GpuArray* array :
         {&lhs, &rhs, &c, &bias, &row_scale, &bias_scale, &alpha, &row, &c_row, &row_factors}) {
      array->fill_random(seed++);
    }
    beta.store(0, 0);
    beta.store(1, 0.75);
    beta.upload();
  }

  static bool has_c() { return GetParam().epilogue == Epilogue::kEverything; }

  void bits_of(Context& context, const Company& company, const std::string& kernel, Bytes* bits) {
    const auto& [m, place, transposed] = company;
    sizes.set({place / 3, m - place / 3});
    copy_rows(row, 1, lhs, place, kK);
    copy_rows(row_factors, 1, row_scale, place, 1);
    copy_rows(row_factors, 1, bias_scale, place, 1);
    copy_rows(c_row, 1, has_c() ? c : out, place, kN);
    GmmArgs call;
    call.lhs = first_rows(lhs, m, kK);
    call.rhs = TensorView::contiguous(rhs.data(), rhs.dtype(),
                                      {2, transposed ? kN : kK, transposed ? kK : kN}, kGpu);
    call.transpose_rhs = transposed;
    call.group_sizes = sizes.sizes();
    call.out = first_rows(out, m, kN);
    if (GetParam().epilogue != Epilogue::kPlain) {
      call.alpha = alpha.view();
      call.bias = GroupedTensor::vectors(bias.view());
      call.bias_scale = first_elements(bias_scale, m);
      call.row_scale = first_elements(row_scale, m);
    }
    if (has_c()) {
      call.beta = beta.view();
      call.c = first_rows(c, m, kN);
    }
    if (!kernel.empty()) call.options.config = kernel.c_str();
    const Status status = gmm(context, call);
    ASSERT_TRUE(status.ok()) << status.message();
    const size_t row_bytes = static_cast<size_t>(kN) * size_of(out.dtype());
    bits->resize(row_bytes);
    copy_bytes(bits->data(),
               static_cast<const char*>(out.data()) + static_cast<size_t>(place) * row_bytes,
               row_bytes);
  }

  void expect_bits(Context& context, const std::string& kernel, bool transposed,
                   const Bytes& expected) {
    for (const int64_t m : {1,   2,   15,  16,  17,  48,  49,  64,   65,   128, 191,
                            192, 193, 256, 257, 385, 511, 777, 1024, 2047, 4096}) {
      for (const int64_t place : {int64_t{0}, m / 2, m - 1}) {
        Bytes bits;
        bits_of(context, {m, place, transposed}, kernel, &bits);
        ASSERT_EQ(bits, expected) << "row " << place << " of " << m;
      }
    }
  }

  GpuArray lhs{GetParam().element, {kRows, kK}};
  GpuArray rhs{GetParam().element, {2, kK, kN}};
  GpuArray out{GetParam().out, {kRows, kN}};
  GpuArray c{GetParam().out, {kRows, kN}};
  GpuArray bias{DType::kF32, {2, kN}};
  GpuArray row_scale{DType::kF32, {kRows}};
  GpuArray bias_scale{DType::kF32, {kRows}};
  GpuArray alpha{DType::kF32, {2}};
  GpuArray beta{DType::kF32, {2}};
  GpuArray row{GetParam().element, {1, kK}};
  GpuArray c_row{GetParam().out, {1, kN}};
  GpuArray row_factors{DType::kF32, {1}};
  GpuArray sizes{DType::kI32, {2}};
};

TEST_P(HopperRowBits, DependOnTheRowAlone) {
  for (const bool transposed : {true, false}) {
    Context alone = first_context(GetParam());
    Bytes expected;
    bits_of(alone, {1, 0, transposed}, "", &expected);
    EXPECT_TRUE(std::any_of(expected.begin(), expected.end(),
                            [](std::byte byte) { return byte != std::byte{0}; }));
    for (const HopperSubject& subject : hopper_subjects()) {
      if ((has_c() && !subject.c) || (out.dtype() == DType::kF32 && !subject.f32_out)) continue;
      for (const int32_t sm_count : {0, 5, 60}) {
        ContextOptions options = BackendUnderTest::options_for(subject.name);
        options.sm_count = sm_count;
        Context context(options);
        SCOPED_TRACE(subject.name + (transposed ? ", transposed" : "") + ", multiprocessors " +
                     std::to_string(sm_count));
        ASSERT_NO_FATAL_FAILURE(expect_bits(context, subject.kernel, transposed, expected));
      }
    }
  }
}

std::vector<BitsParam> bits_params(const std::vector<Epilogue>& epilogues) {
  std::vector<BitsParam> all;
  for (const DType element : {DType::kBF16, DType::kF16}) {
    for (const DType out : {element, DType::kF32}) {
      for (const Epilogue epilogue : epilogues) all.push_back({element, out, epilogue});
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, HopperRowBits,
                         testing::ValuesIn(bits_params({Epilogue::kPlain, Epilogue::kFactors,
                                                        Epilogue::kEverything})),
                         name_of_bits);

class HopperGroupBits : public HopperTest, public testing::WithParamInterface<BitsParam> {
 protected:
  static constexpr int64_t kRows = 4096, kGroupRows = 1000, kK = 200, kN = 328;

  void SetUp() override {
    HopperTest::SetUp();
    if (IsSkipped()) return;
    uint64_t seed = 1;
    for (GpuArray* array : {&lhs, &rhs, &group_lhs, &group_rhs, &c}) array->fill_random(seed++);
  }

  static bool has_c() { return GetParam().epilogue == Epilogue::kEverything; }

  /// The compared group is the one of index `group`; the local groups are all, or it alone.
  void bits_of(Context& context, const std::vector<int64_t>& rows, size_t group, bool alone,
               Bytes* bits) {
    int64_t first = 0;
    for (size_t i = 0; i < group; ++i) first += rows[i];
    copy_rows(group_lhs, rows[group], lhs, first, kK);
    copy_rows(group_rhs, rows[group], rhs, first, kN);
    const int64_t local = alone ? 1 : static_cast<int64_t>(rows.size());
    const size_t index = alone ? 0 : group;
    GpuArray out(GetParam().out, {local, kK, kN});
    const size_t matrix_bytes = static_cast<size_t>(kK * kN) * size_of(out.dtype());
    out.fill_random(9);
    char* matrix = static_cast<char*>(out.data()) + index * matrix_bytes;
    copy_bytes(matrix, c.data(), matrix_bytes);
    TgmmArgs call;
    call.lhs = lhs.view();
    call.rhs = rhs.view();
    call.group_sizes = GroupSizes(rows.data(), DType::kI64, static_cast<int64_t>(rows.size()));
    call.group_offset = alone ? static_cast<int64_t>(group) : 0;
    call.out = out.view();
    if (GetParam().epilogue != Epilogue::kPlain) call.alpha = 0.625;
    call.accumulate = has_c();
    const Status status = tgmm(context, call);
    ASSERT_TRUE(status.ok()) << status.message();
    bits->resize(matrix_bytes);
    copy_bytes(bits->data(), matrix, matrix_bytes);
  }

  GpuArray lhs{GetParam().element, {kRows, kK}};
  GpuArray rhs{GetParam().element, {kRows, kN}};
  GpuArray group_lhs{GetParam().element, {kGroupRows, kK}};
  GpuArray group_rhs{GetParam().element, {kGroupRows, kN}};
  GpuArray c{GetParam().out, {kK, kN}};
};

TEST_P(HopperGroupBits, DependOnTheGroupAlone) {
  Context first = first_context(GetParam());
  for (const int64_t rows : {int64_t{1}, int64_t{17}, int64_t{64}, int64_t{65}, kGroupRows}) {
    Bytes expected;
    bits_of(first, {rows}, 0, true, &expected);
    for (const std::string& name : restricted_names("tgmm")) {
      Context context(BackendUnderTest::options_for(name));
      struct Company {
        std::vector<int64_t> sizes;
        size_t group;
        bool alone;
      };
      for (const auto& [sizes, group, alone] :
           {Company{{rows}, 0, true}, Company{{rows, 3, 0, 2000}, 0, false},
            Company{{3000, 0, rows}, 2, false}, Company{{9, rows, 33, 1}, 1, false},
            Company{{9, rows, 33, 1}, 1, true}}) {
        Bytes bits;
        bits_of(context, sizes, group, alone, &bits);
        ASSERT_TRUE(bits == expected) << name << ", " << rows << " rows, group " << group << " of "
                                      << sizes.size() << (alone ? ", the only local one" : "");
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, HopperGroupBits,
                         testing::ValuesIn(bits_params({Epilogue::kPlain, Epilogue::kFactors,
                                                        Epilogue::kEverything})),
                         name_of_bits);

}  // namespace
}  // namespace cadre::tests
