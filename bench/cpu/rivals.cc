// OpenBLAS and oneDNN, each where the build found it.
#include "bench/cpu/rivals.h"

#include "core/text.h"

#if defined(CADRE_BENCH_OPENBLAS)
#include <cblas.h>

#include <sstream>
#endif
#if defined(CADRE_BENCH_ONEDNN)
#include <map>
#include <oneapi/dnnl/dnnl.hpp>

/// Of OpenMP, whose threads oneDNN runs on.
extern "C" void omp_set_num_threads(int count);
#endif

namespace cadre::bench {
namespace {

/// Element offsets of one expert's operands.
struct Offsets {
  int64_t lhs, rhs, out;
};

template <class Visit>
void for_each_expert(const RivalCase& work, Visit visit) {
  int64_t row = 0;
  for (size_t i = 0; i < work.group_sizes.size(); ++i) {
    const int64_t rows = work.group_sizes[i];
    const auto group = static_cast<int64_t>(i);
    const Offsets at = work.transposed_lhs
                           ? Offsets{row * work.k, row * work.n, group * work.k * work.n}
                           : Offsets{row * work.k, group * work.k * work.n, row * work.n};
    if (rows > 0) visit(rows, at);
    row += rows;
  }
}

#if defined(CADRE_BENCH_OPENBLAS)
class OpenBlas final : public Rival {
 public:
  std::string name() const override { return "openblas"; }
  /// The second word of "OpenBLAS 0.3.21 DYNAMIC_ARCH ...".
  std::string version() const override {
    std::istringstream config(openblas_get_config());
    std::string name, version;
    config >> name >> version;
    return version;
  }

  bool prepare(const RivalCase& work) override {
    work_ = work;
    return work.dtype == work.out_dtype && (work.dtype == DType::kF32 || work.dtype == DType::kF64);
  }

  void run() override {
    openblas_set_num_threads(work_.threads);
    for_each_expert(work_, [this](int64_t rows, const Offsets& at) {
      if (work_.dtype == DType::kF32) {
        multiply<float>(rows, at, cblas_sgemm);
      } else {
        multiply<double>(rows, at, cblas_dgemm);
      }
    });
  }

 private:
  template <class T, class Gemm>
  void multiply(int64_t rows, const Offsets& at, Gemm gemm) const {
    const auto* lhs = static_cast<const T*>(work_.lhs) + at.lhs;
    const auto* rhs = static_cast<const T*>(work_.rhs) + at.rhs;
    auto* out = static_cast<T*>(work_.out) + at.out;
    const auto m = static_cast<blasint>(rows), k = static_cast<blasint>(work_.k),
               n = static_cast<blasint>(work_.n);
    if (work_.transposed_lhs) {
      gemm(CblasRowMajor, CblasTrans, CblasNoTrans, k, n, m, T{1}, lhs, k, rhs, n, T{0}, out, n);
    } else {
      const bool transposed = work_.transpose_rhs;
      gemm(CblasRowMajor, CblasNoTrans, transposed ? CblasTrans : CblasNoTrans, m, n, k, T{1}, lhs,
           k, rhs, transposed ? k : n, T{0}, out, n);
    }
  }

  RivalCase work_{};
};
#endif

#if defined(CADRE_BENCH_ONEDNN)
class OneDnn final : public Rival {
 public:
  std::string name() const override { return "onednn"; }
  std::string version() const override {
    const dnnl_version_t* version = dnnl_version();
    return text(version->major, ".", version->minor, ".", version->patch);
  }

  bool prepare(const RivalCase& work) override {
    work_ = work;
    matmuls_.clear();
    using Type = dnnl::memory::data_type;
    const std::map<DType, Type> types = {{DType::kF32, Type::f32},
                                         {DType::kBF16, Type::bf16},
                                         {DType::kI8, Type::s8},
                                         {DType::kI32, Type::s32}};
    if (!types.count(work.dtype) || !types.count(work.out_dtype)) return false;
    omp_set_num_threads(work.threads);
    try {
      for_each_expert(work, [&](int64_t rows, const Offsets&) {
        if (matmuls_.count(rows)) return;
        using Dims = dnnl::memory::dims;
        const int64_t k = work.k, n = work.n;
        const Dims out = work.transposed_lhs ? Dims{k, n} : Dims{rows, n};
        const Dims a = work.transposed_lhs ? Dims{k, rows} : Dims{rows, k};
        const Dims b = work.transposed_lhs ? Dims{rows, n} : Dims{k, n};
        const Dims a_strides = work.transposed_lhs ? Dims{1, k} : Dims{k, 1};
        const Dims b_strides = work.transpose_rhs ? Dims{1, k} : Dims{n, 1};
        const dnnl::memory::desc a_desc(a, types.at(work.dtype), a_strides);
        const dnnl::memory::desc b_desc(b, types.at(work.dtype), b_strides);
        const dnnl::memory::desc out_desc(out, types.at(work.out_dtype), Dims{n, 1});
        const auto primitive = primitive_desc(a_desc, b_desc, out_desc);
        matmuls_.emplace(rows,
                         Matmul{dnnl::matmul(primitive), dnnl::memory(a_desc, engine_, nullptr),
                                dnnl::memory(b_desc, engine_, nullptr),
                                dnnl::memory(out_desc, engine_, nullptr)});
      });
    } catch (const dnnl::error&) {
      return false;  // no implementation for these types on this machine
    }
    return true;
  }

  void run() override {
    omp_set_num_threads(work_.threads);
    const auto size = static_cast<int64_t>(size_of(work_.dtype));
    const auto out_size = static_cast<int64_t>(size_of(work_.out_dtype));
    for_each_expert(work_, [&](int64_t rows, const Offsets& at) {
      Matmul& matmul = matmuls_.at(rows);
      const auto shifted = [](const void* base, int64_t bytes) {
        return static_cast<char*>(const_cast<void*>(base)) + bytes;
      };
      matmul.a.set_data_handle(shifted(work_.lhs, at.lhs * size));
      matmul.b.set_data_handle(shifted(work_.rhs, at.rhs * size));
      matmul.out.set_data_handle(shifted(work_.out, at.out * out_size));
      matmul.primitive.execute(
          stream_,
          {{DNNL_ARG_SRC, matmul.a}, {DNNL_ARG_WEIGHTS, matmul.b}, {DNNL_ARG_DST, matmul.out}});
    });
    stream_.wait();
  }

 private:
  using Desc = dnnl::memory::desc;

  /// oneDNN 3 has no descriptors of operations any more.
  dnnl::matmul::primitive_desc primitive_desc(const Desc& a, const Desc& b, const Desc& out) const {
#if DNNL_VERSION_MAJOR >= 3
    return {engine_, a, b, out};
#else
    return {dnnl::matmul::desc(a, b, out), engine_};
#endif
  }

  struct Matmul {
    dnnl::matmul primitive;
    dnnl::memory a, b, out;
  };
  RivalCase work_{};
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  std::map<int64_t, Matmul> matmuls_;
};
#endif

}  // namespace

std::vector<std::unique_ptr<Rival>> make_rivals() {
  std::vector<std::unique_ptr<Rival>> rivals;
#if defined(CADRE_BENCH_OPENBLAS)
  rivals.push_back(std::make_unique<OpenBlas>());
#endif
#if defined(CADRE_BENCH_ONEDNN)
  rivals.push_back(std::make_unique<OneDnn>());
#endif
  return rivals;
}

}  // namespace cadre::bench
