// What the opaque handles of the C ABI hold.
#pragma once

#include <string>

#include "cadre/c_api.h"
#include "cadre/context.h"
#include "cadre/pack_weights.h"

struct cadre_context {
  explicit cadre_context(const cadre::ContextOptions& options) : context(options) {}

  cadre::Context context;
};

struct cadre_packed_weights {
  cadre::PackedWeights packed;
  std::string kernel;  ///< of `packed`, terminated
};
