// Computes one work unit (a rectangle of one product's output) on the calling thread.
#pragma once

#include "cpu/shared_block.h"
#include "cpu/work_units.h"

namespace cadre::cpu {

/// Threads without work take part in it by way of `shared`. False when there is no memory for the
/// packed panels.
bool multiply_unit(const WorkUnit& unit, const GemmPlan& plan, SharedBlock* shared);

/// Whether the thread that has the unit may share a part of it.
bool can_share(const WorkUnit& unit, const GemmPlan& plan);

/// Takes part in what another thread shares of a unit, if there is something.
void help_with_unit(const WorkUnit& unit, const GemmPlan& plan, SharedBlock* shared);

}  // namespace cadre::cpu
