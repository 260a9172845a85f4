// The passes of MoeMlp as lists of steps.
#pragma once

#include "cadre/moe_mlp.h"
#include "ops/moe_mlp_check.h"
#include "ops/op_step.h"

namespace cadre::ops {

/// Arguments have been checked. Made over a Scratch, a pass uses the room that it has taken there;
/// how much that is depends on shapes and types alone.
struct MoePasses {
  const MoeMlpWeights& weights;
  const MoeMlpOptions& options;
  MoeDims dims{};

  OpSteps forward(const MoeMlpForwardArgs& args, Scratch& scratch) const;
  /// `delayed`: without dw13 and dw2.
  OpSteps backward(const MoeMlpSaved& saved, const MoeMlpBackwardArgs& args, bool delayed,
                   Scratch& scratch) const;
  /// dw13 and dw2, from d_preact and activated.
  OpSteps backward_dw(const MoeMlpSaved& saved, const MoeMlpBackwardArgs& args,
                      Scratch& scratch) const;
};

}  // namespace cadre::ops
