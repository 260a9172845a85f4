// The last failure of a thread, and the wall that no exception crosses.
#pragma once

#include "cadre/c_api.h"
#include "cadre/status.h"
#include "ops/guarded.h"

namespace cadre::capi {

/// Keeps the message of a failure for cadre_status_message(); returns the code.
cadre_status_code report(const Status& status) noexcept;

/// Runs `body` (which returns a Status) and turns whatever it throws into kInternal.
template <typename Body>
cadre_status_code guarded(const char* function, Body body) {
  return report(ops::guarded(function, body));
}

}  // namespace cadre::capi
