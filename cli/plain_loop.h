// What `cadre demo` compares its times with: the loops that one writes first, on one core.
#pragma once

#include "moe_layer.h"

namespace cadre::cli {

/// Seconds that plain loops take for the whole op: timed over rows spread over all groups, for
/// about a twentieth of a second, and scaled to all rows. Tensors in host memory, row-major without
/// gaps. Epilogues are left out: they cost next to nothing.
double plain_loop_seconds(const OpArgs& host);

}  // namespace cadre::cli
