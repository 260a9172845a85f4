// Checks the Hopper gmm kernel by itself against a device reference: ragged groups around tile
// edges, every epilogue option, poisoned outputs and inputs, bad sizes, shards, and bitwise
// equality over configurations. usage: sm90_gmm_check [text that a case's name must hold]
#include "sm90_gmm_case.cuh"

namespace cadre::testing {
namespace {

// Every instantiation of the kernel.
using sm90::GmmShapeKind;
constexpr GmmShapeKind kShapes[] = {GmmShapeKind::kLarge, GmmShapeKind::kTurn,
                                    GmmShapeKind::kTurnWithC, GmmShapeKind::kGeneral,
                                    GmmShapeKind::kNarrow};

std::vector<Case> cases() {
  const std::vector<int64_t> edges = {1,   0,   63, 64, 65, 0, 127, 128, 129, 255,
                                      256, 257, 15, 16, 17, 0, 513, 31,  33,  300};
  std::vector<Case> all;
  for (const bool transposed : {true, false}) {
    for (const ElementKind element : {ElementKind::kBf16, ElementKind::kF16}) {
      for (const bool wide : {false, true}) {
        for (const GmmShapeKind shape : kShapes) {
          Case base;
          base.sizes = edges;
          base.transposed_rhs = transposed;
          base.element = element;
          base.out = wide ? ElementKind::kF32 : element;
          base.shape = shape;
          const std::string suffix = std::string(transposed ? " [g,n,k]" : " [g,k,n]") +
                                     (element == ElementKind::kBf16 ? " bf16" : " f16") +
                                     (wide ? " f32 out" : "");
          auto add = [&](const char* name, auto change) {
            Case test = base;
            test.name = name + suffix;
            test.n = 320;
            test.k = 256;
            test.tail = 70;
            change(test);
            const sm90::GmmOutput output = {.is_f32 = test.out == ElementKind::kF32,
                                            .has_c = test.c || test.c_is_out};
            if (sm90::takes_output(shape, output)) all.push_back(test);
          };
          add("plain", [](Case&) {});
          add("odd n and k, padded strides", [](Case& t) {
            t.n = 200;
            t.k = 136;
            t.padding = 24;
          });
          add("n 8, k 8", [](Case& t) {
            t.n = 8;
            t.k = 8;
          });
          add("n not of 16 bytes", [](Case& t) {
            t.n = 331;
            t.k = 72;
            t.alpha = t.bias = true;
          });
          add("n below 16 bytes, C", [](Case& t) {
            t.n = 3;
            t.k = 200;
            t.c = sm90::takes_output(t.shape, {.is_f32 = false, .has_c = true});
          });
          add("k not of 16", [](Case& t) {
            t.n = 72;
            t.k = 77;
            t.padding = 8;
          });
          add("bias, scales, alpha",
              [](Case& t) { t.alpha = t.bias = t.row_scale = t.bias_scale = true; });
          add("bias alone", [](Case& t) {
            t.bias = true;
            t.n = 136;
          });
          add("row scale alone", [](Case& t) { t.row_scale = true; });
          add("C", [](Case& t) {
            t.c = true;
            t.k = 704;
          });
          add("C, short k", [](Case& t) {
            t.c = true;
            t.k = 64;
            t.n = 136;
          });
          add("accumulate with everything, beta 0 in places", [](Case& t) {
            t.c_is_out = t.beta_by_group = t.alpha = t.bias = t.row_scale = t.bias_scale = true;
          });
          add("tail untouched", [](Case& t) { t.keep_tail = true; });
          add("few CTAs", [](Case& t) {
            t.ctas = 3;
            t.k = 832;
          });
          add("a last wave to fill", [](Case& t) {
            t.ctas = 10;
            t.sizes = {900, 40, 1000, 1100};
          });
          add("few CTAs, accumulate with everything", [](Case& t) {
            t.ctas = 3;
            t.c_is_out = t.beta_by_group = t.alpha = t.bias = t.row_scale = t.bias_scale = true;
          });
        }
      }
    }
  }
  Case base;
  base.n = 192;
  base.k = 128;
  auto add = [&](const char* name, auto change) {
    Case test = base;
    test.name = name;
    change(test);
    all.push_back(test);
  };
  add("int64 sizes", [](Case& t) {
    t.sizes = {5, 100, 300};
    t.kind = cuda::SizesForm::kI64;
  });
  add("uint32 sizes", [](Case& t) {
    t.sizes = {5, 100, 300};
    t.kind = cuda::SizesForm::kU32;
  });
  add("offsets", [](Case& t) {
    t.sizes = {5, 0, 100, 300};
    t.tail = 9;
    t.kind = cuda::SizesForm::kOffsets;
  });
  add("one group", [](Case& t) { t.sizes = {1000}; });
  add("all empty", [](Case& t) {
    t.sizes = {0, 0, 0};
    t.tail = 40;
  });
  add("shard", [](Case& t) {
    t.sizes = {30, 40, 50, 300, 60, 70};
    t.first_local = 2;
    t.num_local = 2;
    t.tail = 11;
  });
  add("shard, foreign rows kept", [](Case& t) {
    t.sizes = {30, 40, 50, 60, 70};
    t.first_local = 1;
    t.num_local = 2;
    t.keep_tail = true;
  });
  add("negative size", [](Case& t) { t.sizes = {30, 40, -5, 60, 70}; });
  add("sum above m", [](Case& t) {
    t.sizes = {30, 40, 1 << 30, 60, 70};
    t.tail = 3;
  });
  add("huge int64 size", [](Case& t) {
    t.sizes = {30, INT64_MAX, 60};
    t.kind = cuda::SizesForm::kI64;
  });
  add("many groups", [](Case& t) {
    for (int i = 0; i < 4096; ++i) t.sizes.push_back(i % 5 == 0 ? i % 37 : 0);
    t.n = 64;
    t.k = 64;
  });
  add("a big group in bands", [](Case& t) { t.sizes = {40, 5000, 3}; });
  return all;
}

// One row's bits must not depend on m, its neighbours, its position or the configuration.
bool rows_are_batch_invariant() {
  constexpr int kN = 256;
  constexpr int kK = 1096;
  bool ok = true;
  for (const bool transposed : {true, false}) {
    DeviceBuffer rhs(2 * kN * kK * 2), row(kK * 2), sizes(8), fault(4);
    bench::randomize<__nv_bfloat16>(rhs, 8, 0.03f);
    bench::randomize<__nv_bfloat16>(row, 9, 1.0f);
    std::vector<uint16_t> first;
    for (const GmmShapeKind shape : kShapes) {
      for (int m = 1; m <= 4096; m += m < 300 ? 7 : 331) {
        for (const int place : {0, m / 2, m - 1}) {
          DeviceBuffer lhs(int64_t{m} * kK * 2), out(int64_t{m} * kN * 2);
          bench::randomize<__nv_bfloat16>(lhs, 10 + m, 1.0f);
          BENCH_CUDA(cudaMemcpy(lhs.as<uint16_t>() + int64_t{place} * kK, row.as(), kK * 2,
                                cudaMemcpyDeviceToDevice));
          const int before = place / 3;  // rows of group 0; the row is in group 1
          sizes.upload(std::vector<int32_t>{before, m - before});
          sm90::GmmCall call;
          call.transposed_rhs = transposed;
          call.m = m;
          call.n = kN;
          call.k = kK;
          call.lhs = lhs.as();
          call.lhs_stride = kK;
          call.rhs = rhs.as();
          call.rhs_group_stride = kN * kK;
          call.rhs_row_stride = transposed ? kK : kN;
          call.out = out.as();
          call.out_stride = kN;
          call.groups.sizes = sizes.as();
          call.groups.form = cuda::SizesForm::kI32;
          call.groups.num_groups = call.groups.num_local = 2;
          call.groups.fault = fault.as<int32_t>();
          launch(call, {.shape = shape, .ctas = 132});
          std::vector<uint16_t> bits(kN);
          BENCH_CUDA(cudaMemcpy(bits.data(), out.as<uint16_t>() + int64_t{place} * kN, kN * 2,
                                cudaMemcpyDeviceToHost));
          if (first.empty()) first = bits;
          if (bits != first) {
            std::printf("FAIL batch invariance: m %d row %d, %d tokens, transposed %d\n", m, place,
                        sm90::max_tokens(shape), transposed);
            ok = false;
          }
        }
      }
    }
  }
  if (ok) std::printf("ok   batch invariance\n");
  return ok;
}

}  // namespace
}  // namespace cadre::testing

int main(int argc, char** argv) {
  using namespace cadre::testing;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  int failed = 0;
  int ran = 0;
  const std::string only = argc > 1 ? argv[1] : "";
  for (const Case& test : cases()) {
    if (test.name.find(only) == std::string::npos) continue;
    std::vector<unsigned char> first;
    std::vector<unsigned char> second;
    bool ok = run(test, &first);
    ok = run(test, &second) && ok;
    if (first != second) {
      std::printf("FAIL %s: two runs differ\n", test.name.c_str());
      ok = false;
    }
    failed += !ok;
    ++ran;
  }
  if (only.empty()) {
    failed += !rows_are_batch_invariant();
    ++ran;
  }
  std::printf("%d of %d checks failed\n", failed, ran);
  return failed != 0 || ran == 0;
}
