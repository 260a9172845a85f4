// Memory runs out at any moment of a call: the C ABI answers with a status, and neither an
// exception nor the end of the process comes instead. This program replaces malloc and mmap.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "cadre/c_api.h"

namespace {

constexpr int64_t kNever = int64_t{1} << 60;
/// Allocations that still succeed, counted over all threads.
std::atomic<int64_t> allowed{kNever};

bool refused() {
  return allowed.load(std::memory_order_relaxed) < kNever / 2 &&
         allowed.fetch_sub(1, std::memory_order_relaxed) <= 0;
}

}  // namespace

extern "C" {
void* __libc_malloc(size_t size) noexcept;
void* __libc_calloc(size_t count, size_t size) noexcept;
void* __libc_realloc(void* memory, size_t size) noexcept;
void* __libc_memalign(size_t alignment, size_t size) noexcept;

void* malloc(size_t size) noexcept { return refused() ? nullptr : __libc_malloc(size); }
void* calloc(size_t count, size_t size) noexcept {
  return refused() ? nullptr : __libc_calloc(count, size);
}
void* realloc(void* memory, size_t size) noexcept {
  return refused() ? nullptr : __libc_realloc(memory, size);
}
void* aligned_alloc(size_t alignment, size_t size) noexcept {
  return refused() ? nullptr : __libc_memalign(alignment, size);
}
void* mmap(void* at, size_t size, int protection, int flags, int file, off_t offset) noexcept {
  if (refused()) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  // NOLINTNEXTLINE(performance-no-int-to-ptr): what the system call returns is an address
  return reinterpret_cast<void*>(
      syscall(SYS_mmap, at, size, protection, flags, file, static_cast<long>(offset)));
}
}

namespace {

constexpr int64_t kRows = 96, kK = 160, kN = 136, kGroups = 2;
constexpr cadre_device kCpu = {CADRE_CPU, 0};

/// The operands of every op, large enough for several threads and for packed panels.
struct Operands {
  std::vector<float> x = numbers(kRows * kK), w = numbers(kGroups * kK * kN);
  std::vector<float> dy = numbers(kRows * kN), bias = numbers(kGroups * kN);
  std::vector<float> y = numbers(kRows * kN), dw = numbers(kGroups * kK * kN);
  std::vector<float> dbias = numbers(kGroups * kN), scale = numbers(kRows);
  int64_t sizes[kGroups] = {kRows / 2 + 3, kRows / 2 - 3};
  int64_t x_shape[2] = {kRows, kK}, y_shape[2] = {kRows, kN}, w_shape[3] = {kGroups, kK, kN};
  int64_t halves_x[3] = {kGroups, kRows / 2, kK}, halves_y[3] = {kGroups, kRows / 2, kN};
  int64_t bias_shape[2] = {kGroups, kN}, scale_shape[1] = {kRows};
  cadre_tensor x_view = view(x, 2, x_shape), y_view = view(y, 2, y_shape);
  cadre_tensor dy_view = view(dy, 2, y_shape), w_view = view(w, 3, w_shape);
  cadre_tensor dw_view = view(dw, 3, w_shape), bias_view = view(bias, 2, bias_shape);
  cadre_tensor dbias_view = view(dbias, 2, bias_shape), scale_view = view(scale, 1, scale_shape);
  cadre_tensor x_halves_view = view(x, 3, halves_x), y_halves_view = view(y, 3, halves_y);
  cadre_grouped_tensor w_grouped = cadre_grouped_from_tensor(&w_view);
  cadre_grouped_tensor y_grouped = cadre_grouped_from_tensor(&y_view);
  cadre_grouped_tensor dw_grouped = cadre_grouped_from_tensor(&dw_view);
  cadre_grouped_tensor x_halves = cadre_grouped_from_tensor(&x_halves_view);
  cadre_grouped_tensor y_halves = cadre_grouped_from_tensor(&y_halves_view);
  cadre_grouped_tensor bias_grouped = cadre_grouped_vectors(&bias_view);
  cadre_grouped_tensor dbias_grouped = cadre_grouped_vectors(&dbias_view);
  cadre_sizes group_sizes = {sizes, CADRE_I64, kCpu, kGroups, CADRE_SIZES};

  static std::vector<float> numbers(int64_t count) {
    std::vector<float> values(static_cast<size_t>(count));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i * 7 % 23) - 11.0f;
    return values;
  }
  static cadre_tensor view(std::vector<float>& values, int32_t rank, const int64_t* shape) {
    return cadre_tensor_contiguous(values.data(), CADRE_F32, rank, shape, kCpu);
  }
};

cadre_status_code gmm(cadre_context* context, Operands& o) {
  cadre_gmm_args args;
  cadre_gmm_args_init(&args, sizeof(args));
  args.lhs = &o.x_view;
  args.rhs = &o.w_grouped;
  args.out = &o.y_grouped;
  args.bias = &o.bias_grouped;
  args.group_sizes = o.group_sizes;
  return cadre_gmm(context, &args);
}

cadre_status_code gmm_of_bad_shape(cadre_context* context, Operands& o) {
  cadre_gmm_args args;
  cadre_gmm_args_init(&args, sizeof(args));
  args.lhs = &o.y_view;
  args.rhs = &o.w_grouped;
  args.out = &o.y_grouped;
  args.group_sizes = o.group_sizes;
  return cadre_gmm(context, &args) == CADRE_INVALID ? CADRE_OK : CADRE_INTERNAL;
}

cadre_status_code tgmm(cadre_context* context, Operands& o) {
  cadre_tgmm_args args;
  cadre_tgmm_args_init(&args, sizeof(args));
  args.lhs = &o.x_view;
  args.rhs = &o.dy_view;
  args.out = &o.dw_grouped;
  args.group_sizes = o.group_sizes;
  return cadre_tgmm(context, &args);
}

cadre_status_code grouped_gemm(cadre_context* context, Operands& o) {
  cadre_grouped_gemm_args args;
  cadre_grouped_gemm_args_init(&args, sizeof(args));
  args.a = &o.x_halves;
  args.b = &o.w_grouped;
  args.d = &o.y_halves;
  return cadre_grouped_gemm(context, &args);
}

cadre_status_code bias_grad(cadre_context* context, Operands& o) {
  cadre_bias_grad_args args;
  cadre_bias_grad_args_init(&args, sizeof(args));
  args.dy = &o.dy_view;
  args.group_sizes = o.group_sizes;
  args.dbias = &o.dbias_grouped;
  args.bias = &o.bias_grouped;
  args.dbias_scale = &o.scale_view;
  return cadre_bias_grad(context, &args);
}

cadre_status_code workspace_size(cadre_context* context, Operands& o) {
  cadre_gmm_args args;
  cadre_gmm_args_init(&args, sizeof(args));
  args.lhs = &o.x_view;
  args.rhs = &o.w_grouped;
  args.out = &o.y_grouped;
  args.group_sizes = o.group_sizes;
  size_t bytes = 0;
  return cadre_gmm_workspace_size(context, &args, &bytes);
}

cadre_status_code create(cadre_context* /*context*/, Operands& /*o*/) {
  cadre_context* made = nullptr;
  const cadre_status_code code = cadre_context_create(nullptr, &made);
  cadre_context_destroy(made);
  return code;
}

cadre_status_code names(cadre_context* context, Operands& /*o*/) {
  if (cadre_backends() == nullptr || cadre_version() == nullptr) return CADRE_INVALID;
  return cadre_check(context, kCpu, nullptr);
}

using Call = cadre_status_code (*)(cadre_context*, Operands&);

/// On a thread that the library has never seen, with `count` allocations left.
cadre_status_code call_with(int64_t count, Call call, cadre_context* context, Operands& operands,
                            std::string* message) {
  cadre_status_code code = CADRE_OK;
  char copy[256] = {};
  std::thread([&] {
    allowed = count;
    code = call(context, operands);
    const char* const found = cadre_status_message();
    allowed = kNever;
    std::string(found).copy(copy, sizeof(copy) - 1);
  }).join();
  *message = copy;
  return code;
}

TEST(NoMemory, EveryCallOfTheCAbiReturnsAStatus) {
  const std::pair<const char*, Call> calls[] = {{"names", names},
                                                {"context", create},
                                                {"gmm", gmm},
                                                {"gmm of a bad shape", gmm_of_bad_shape},
                                                {"tgmm", tgmm},
                                                {"grouped_gemm", grouped_gemm},
                                                {"bias_grad", bias_grad},
                                                {"workspace_size", workspace_size}};
  for (const int32_t threads : {1, 2}) {
    cadre_context_options options;
    cadre_context_options_init(&options, sizeof(options));
    options.num_threads = threads;
    cadre_context* context = nullptr;
    ASSERT_EQ(cadre_context_create(&options, &context), CADRE_OK);
    for (const auto& [name, call] : calls) {
      SCOPED_TRACE(std::string(name) + ", threads " + std::to_string(threads));
      Operands expected;
      ASSERT_EQ(call(context, expected), CADRE_OK) << cadre_status_message();
      Operands got;
      std::string message;
      // Memory runs out with the first allocation, with the second, and so on.
      int64_t count = 0;
      for (; count < 1000; ++count) {
        const cadre_status_code code = call_with(count, call, context, got, &message);
        if (code == CADRE_OK && count > 0) break;
        if (code == CADRE_OK) continue;
        ASSERT_EQ(code, CADRE_INTERNAL) << message;
        EXPECT_NE(message.find("memory"), std::string::npos) << message;
      }
      EXPECT_LT(count, 1000);
      EXPECT_EQ(got.y, expected.y);
      EXPECT_EQ(got.dw, expected.dw);
      EXPECT_EQ(got.dbias, expected.dbias);
      EXPECT_EQ(got.scale, expected.scale);
    }
    cadre_context_destroy(context);
  }
}

}  // namespace
