// What the opaque handles of the C ABI hold.
#pragma once

#include "cadre/c_api.h"
#include "cadre/context.h"

struct cadre_context {
  explicit cadre_context(const cadre::ContextOptions& options) : context(options) {}

  cadre::Context context;
};
