// Every CADRE_* environment variable, in one place. Each is read anew at every call of its
// function.
#pragma once

#include <cstdint>
#include <string>

#include "cadre/status.h"

namespace cadre::environment {

/// CADRE_ISA: the CPU instruction set to use; empty when unset.
std::string isa();

/// CADRE_BACKEND: the backend to use alone; empty when unset.
std::string backend();

/// CADRE_NUM_THREADS: CPU threads; 0 when unset. Not a positive number: an error.
Status num_threads(int32_t* count);

/// CADRE_CHECK=1: every CUDA call waits and reports faults found on the device.
bool check_every_call();

}  // namespace cadre::environment
