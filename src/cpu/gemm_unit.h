// Computes one work unit (a rectangle of one product's output) on the calling thread.
#pragma once

#include "cpu/work_units.h"

namespace cadre::cpu {

/// False when there is no memory for the packed panels.
bool multiply_unit(const WorkUnit& unit, const GemmPlan& plan);

}  // namespace cadre::cpu
