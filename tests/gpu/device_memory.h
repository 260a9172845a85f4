// Device memory for the contract suites, and why there may be none.
#pragma once

#include <string>

#include "verify/memory.h"

namespace cadre::tests {

/// Why no GPU test can run here ("no usable CUDA driver: ..."); empty when they can.
std::string why_no_gpu();

/// Memory of cuda:0. Blocks are kept and used again, except with CADRE_TEST_NO_CACHE=1: then each
/// has an allocation of its own, and a memory checker sees every byte beyond it.
verify::Memory& device_memory();

}  // namespace cadre::tests
