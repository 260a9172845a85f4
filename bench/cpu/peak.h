// What this machine can do at most: multiply-adds without memory, and reading memory without
// arithmetic, each on a given number of threads.
#pragma once

#include "cpu/isa.h"

namespace cadre::bench {

/// Giga operations a second; a multiply-add counts as two.
struct CpuPeak {
  double f32 = 0;
  double f64 = 0;
  double bf16 = 0;  ///< of the instructions the kernels use: AMX, vdpbf16ps, or f32 multiply-adds
  double int8 = 0;
};

/// How many threads the system starts when `wanted` are asked for.
int started_threads(int wanted);

CpuPeak measure_peak(cpu::Isa isa, int threads);

/// GB/s that `threads` threads read together from an array far larger than the caches, in huge
/// pages if the system grants them.
double measure_read_rate(cpu::Isa isa, int threads, bool huge_pages);

}  // namespace cadre::bench
