// Every environment variable that the library reads, in one place. Each is read anew at every call
// of its function.
#pragma once

#include <cstdint>
#include <string>

#include "cadre/status.h"

namespace cadre::environment {

/// CADRE_ISA: the CPU instruction set to use; empty when unset.
std::string isa();

/// CADRE_BACKEND: the backend to use alone; empty when unset.
std::string backend();

/// More threads than any machine has cores for.
inline constexpr int32_t kMaxThreads = 4096;

/// CADRE_NUM_THREADS: CPU threads; 0 when unset. Not a number from 1 to kMaxThreads: an error.
Status num_threads(int32_t* count);

/// OMP_NUM_THREADS, which people set for every numeric library of a process: 0 when unset or not a
/// number from 1 to kMaxThreads. Of a list, one number for each level of nesting, the first.
int32_t omp_num_threads();

/// CADRE_CHECK=1: every CUDA call waits and reports faults found on the device. Unset, empty and 0:
/// no. Anything else: an error.
Status check_every_call(bool* check);

/// CADRE_TUNE_CACHE, else cadre/tune.json in XDG_CACHE_HOME or ~/.cache; empty where none of these
/// is set.
std::string tune_cache();

/// CADRE_TUNE=0: no measurement decides. Unset, empty and 1: they do. Anything else: an error.
Status tuned(bool* tuned);

}  // namespace cadre::environment
