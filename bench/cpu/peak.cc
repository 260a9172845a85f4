// Peaks by running independent instructions from registers. Without such loops for an instruction
// set, the kernel itself runs on data in L1.
#include "bench/cpu/peak.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "cpu/cache.h"
#include "cpu/kernel_table.h"

namespace cadre::bench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct ThreadsRun {
  int started;  ///< threads, of which the system may grant fewer than were wanted
  double seconds;
};

/// Runs `work(i)` on threads 0, 1, ... that begin together, the calling one among them.
template <class Work>
ThreadsRun on_threads(int threads, Work work) {
  std::vector<std::thread> others;
  std::atomic<int> ready{0}, done{0};
  std::atomic<bool> go{false};
  const auto follow = [&](int number) {
    ++ready;
    while (!go) std::this_thread::yield();
    work(number);
    ++done;
  };
  try {
    for (int i = 1; i < threads; ++i) others.emplace_back(follow, i);
  } catch (const std::system_error&) {  // the system starts no more
  }
  const auto count = static_cast<int>(others.size());
  while (ready < count) std::this_thread::yield();
  const Clock::time_point start = Clock::now();
  go = true;
  work(0);
  while (done < count) std::this_thread::yield();
  const double seconds = seconds_since(start);
  for (std::thread& other : others) other.join();
  return {count + 1, seconds};
}

/// The best rate of several short runs: the peak is what the machine can do, and anything that
/// disturbs a run only lowers it.
template <class Work>
double best_rate(int threads, double operations, Work work) {
  double best = 0;
  const Clock::time_point begin = Clock::now();
  while (seconds_since(begin) < 0.25) {
    const ThreadsRun run = on_threads(threads, [&](int) { work(); });
    best = std::max(best, operations * run.started / run.seconds / 1e9);
  }
  return best;
}

constexpr int64_t kRounds = 200000;
constexpr int64_t kAmxRounds = 50000;

#if defined(__x86_64__)
// Twelve independent accumulators: more than latency times throughput of any of these. The
// assembler knows the instructions; only their presence matters.
#define CADRE_TWELVE(instruction, file)                                                         \
  instruction " %%" file "14, %%" file "15, %%" file "0\n" instruction " %%" file "14, %%" file \
              "15, %%" file "1\n" instruction " %%" file "14, %%" file "15, %%" file            \
              "2\n" instruction " %%" file "14, %%" file "15, %%" file "3\n" instruction        \
              " %%" file "14, %%" file "15, %%" file "4\n" instruction " %%" file "14, %%" file \
              "15, %%" file "5\n" instruction " %%" file "14, %%" file "15, %%" file            \
              "6\n" instruction " %%" file "14, %%" file "15, %%" file "7\n" instruction        \
              " %%" file "14, %%" file "15, %%" file "8\n" instruction " %%" file "14, %%" file \
              "15, %%" file "9\n" instruction " %%" file "14, %%" file "15, %%" file            \
              "10\n" instruction " %%" file "14, %%" file "15, %%" file "11\n"
// Zeros to begin with: what the registers happen to hold may be denormal, which some processors
// take a hundred times as long for.
#define CADRE_PEAK_LOOP(name, instruction, file)                                                 \
  void name() {                                                                                  \
    __asm__ volatile("vzeroall"                                                                  \
                     :                                                                           \
                     :                                                                           \
                     : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",   \
                       "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");            \
    for (int64_t i = 0; i < kRounds; ++i) {                                                      \
      __asm__ volatile(CADRE_TWELVE(instruction, file)                                           \
                       :                                                                         \
                       :                                                                         \
                       : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", \
                         "xmm9", "xmm10", "xmm11");                                              \
    }                                                                                            \
  }
CADRE_PEAK_LOOP(fma_f32_ymm, "vfmadd231ps", "ymm")
CADRE_PEAK_LOOP(fma_f64_ymm, "vfmadd231pd", "ymm")
CADRE_PEAK_LOOP(madd_int8_ymm, "vpmaddwd", "ymm")
CADRE_PEAK_LOOP(fma_f32_zmm, "vfmadd231ps", "zmm")
CADRE_PEAK_LOOP(fma_f64_zmm, "vfmadd231pd", "zmm")
CADRE_PEAK_LOOP(madd_int8_zmm, "vpmaddwd", "zmm")
CADRE_PEAK_LOOP(vnni_zmm, "vpdpbusd", "zmm")
CADRE_PEAK_LOOP(bf16_zmm, "vdpbf16ps", "zmm")

struct alignas(64) TileConfig {
  uint8_t bytes[64] = {};
  TileConfig() {
    bytes[0] = 1;
    for (int tile = 0; tile < 8; ++tile) {
      bytes[16 + 2 * tile] = 64;  // bytes of a row
      bytes[48 + tile] = 16;      // rows
    }
  }
};

#define CADRE_AMX_LOOP(name, instruction)                                                          \
  void name() {                                                                                    \
    const TileConfig config;                                                                       \
    __asm__ volatile("ldtilecfg %0" : : "m"(config));                                              \
    for (int64_t i = 0; i < kAmxRounds; ++i) {                                                     \
      __asm__ volatile(instruction " %tmm6, %tmm4, %tmm0\n" instruction                            \
                                   " %tmm7, %tmm4, %tmm1\n" instruction                            \
                                   " %tmm6, %tmm5, %tmm2\n" instruction " %tmm7, %tmm5, %tmm3\n"); \
    }                                                                                              \
    __asm__ volatile("tilerelease");                                                               \
  }
CADRE_AMX_LOOP(amx_bf16, "tdpbf16ps")
CADRE_AMX_LOOP(amx_int8, "tdpbssd")

constexpr double kLoop = 12.0 * kRounds;
constexpr double kAmxLoop = 4.0 * kAmxRounds;

CpuPeak measure_x86(cpu::Isa isa, int threads) {
  CpuPeak peak;
  if (isa >= cpu::Isa::kAvx512) {
    peak.f32 = best_rate(threads, kLoop * 32, fma_f32_zmm);
    peak.f64 = best_rate(threads, kLoop * 16, fma_f64_zmm);
    peak.int8 = best_rate(threads, kLoop * 64, madd_int8_zmm);
  } else {
    peak.f32 = best_rate(threads, kLoop * 16, fma_f32_ymm);
    peak.f64 = best_rate(threads, kLoop * 8, fma_f64_ymm);
    peak.int8 = best_rate(threads, kLoop * 32, madd_int8_ymm);
  }
  peak.bf16 = peak.f32;
  if (isa >= cpu::Isa::kAvx512Vnni) peak.int8 = best_rate(threads, kLoop * 128, vnni_zmm);
  if (isa >= cpu::Isa::kAvx512Bf16) peak.bf16 = best_rate(threads, kLoop * 64, bf16_zmm);
  if (isa >= cpu::Isa::kAmx) {
    peak.bf16 = best_rate(threads, kAmxLoop * 2 * 16 * 16 * 32, amx_bf16);
    peak.int8 = best_rate(threads, kAmxLoop * 2 * 16 * 16 * 64, amx_int8);
  }
  return peak;
}
#endif

/// The kernel's own inner loop on one full tile in L1.
double kernel_rate(const cpu::GemmKernel& kernel, int threads) {
  constexpr int64_t kGranules = 64;
  const double operations = 2.0 * kernel.mr * kernel.nr * kGranules * kernel.granule_k;
  constexpr int kCalls = 200;
  return best_rate(threads, operations * kCalls, [&] {
    std::vector<char> a(static_cast<size_t>(kernel.mr * cpu::kPackedRowStride) * 8);
    std::vector<char> b(static_cast<size_t>(kernel.nr * kGranules + kernel.nr) * 8);
    std::vector<char> acc(static_cast<size_t>(kernel.mr * kernel.nr) * 8);
    cpu::PrefetchWalk none;
    for (int call = 0; call < kCalls; ++call) {
      kernel.multiply({.a = a.data(),
                       .b = b.data(),
                       .b_granule_bytes = int64_t{kernel.nr} * kernel.granule_bytes,
                       .acc = acc.data(),
                       .granules = kGranules,
                       .panels = 1,
                       .rows = kernel.mr,
                       .prefetch = &none});
    }
  });
}

}  // namespace

int started_threads(int wanted) {
  return on_threads(wanted, [](int) {}).started;
}

CpuPeak measure_peak(cpu::Isa isa, int threads) {
#if defined(__x86_64__)
  if (isa >= cpu::Isa::kAvx2) return measure_x86(isa, threads);
#endif
  CpuPeak peak;
  peak.f32 = kernel_rate(*cpu::find_kernel(isa, DType::kF32, DType::kF32, DType::kF32), threads);
  peak.f64 = kernel_rate(*cpu::find_kernel(isa, DType::kF64, DType::kF64, DType::kF64), threads);
  peak.int8 = kernel_rate(*cpu::find_kernel(isa, DType::kI8, DType::kI8, DType::kI32), threads);
  peak.bf16 = peak.f32;
  return peak;
}

namespace {

/// Reads lines of `streams` equal parts of [data, data + bytes) in turn, two of each, asking for
/// what lies `ahead` bytes behind.
template <class ReadLine>
void read_streams(const char* data, int64_t bytes, int64_t streams, int64_t ahead, ReadLine read) {
  const int64_t part = bytes / streams;
  for (int64_t at = 0; at < part; at += 128) {
    for (int64_t stream = 0; stream < streams; ++stream) {
      const char* line = data + stream * part + at;
      __builtin_prefetch(line + ahead, 0, 2);
      __builtin_prefetch(line + ahead + 64, 0, 2);
      read(line);
      read(line + 64);
    }
  }
}

void read_part(cpu::Isa isa, const char* data, int64_t bytes, int64_t streams, int64_t ahead) {
#if defined(__x86_64__)
  if (isa >= cpu::Isa::kAvx512) {
    return read_streams(data, bytes, streams, ahead, [](const char* line) {
      __asm__ volatile("vmovups (%0), %%zmm0" : : "r"(line) : "xmm0", "memory");
    });
  }
#endif
  (void)isa;
  read_streams(data, bytes, streams, ahead, [](const char* line) {
    for (int64_t word = 0; word < 64; word += 16)
      (void)*reinterpret_cast<const volatile uint64_t*>(line + word);
  });
}

}  // namespace

double measure_read_rate(cpu::Isa isa, int threads, [[maybe_unused]] bool huge_pages) {
  // Several times the largest cache, like the weights of few rows, a part for each thread. Of each
  // way of reading the median of a few passes, because a single lucky one would be no rate to hold
  // a kernel to; of these the best, because a kernel may read as it likes.
  constexpr int64_t kLeastBytes = int64_t{512} << 20, kTimesCache = 4, kHugePage = 2 << 20;
  const int64_t bytes =
      std::max(kLeastBytes, kTimesCache * cpu::cache_sizes().l3_bytes / kHugePage * kHugePage);
  auto* data = static_cast<char*>(std::aligned_alloc(kHugePage, static_cast<size_t>(bytes)));
  if (data == nullptr) return 0;
#if defined(__linux__)
  if (huge_pages) madvise(data, static_cast<size_t>(bytes), MADV_HUGEPAGE);  // only a wish
#endif
  std::memset(data, 1, static_cast<size_t>(bytes));
  double best = 0;
  for (const int64_t streams : {1, 4, 16, 32}) {
    for (const int64_t ahead : {256, 1024, 4096}) {
      std::vector<double> rates;
      for (int pass = 0; pass < 3; ++pass) {
        const int64_t part = bytes / threads / 4096 * 4096;
        const ThreadsRun run = on_threads(threads, [&](int number) {
          read_part(isa, data + number * part, part, streams, ahead);
        });
        rates.push_back(static_cast<double>(part * run.started) / run.seconds / 1e9);
      }
      std::sort(rates.begin(), rates.end());
      best = std::max(best, rates[rates.size() / 2]);
    }
  }
  std::free(data);
  return best;
}

}  // namespace cadre::bench
