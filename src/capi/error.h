// The last failure of a thread, and the wall that no exception crosses.
#pragma once

#include <exception>
#include <new>
#include <string>
#include <utility>

#include "cadre/c_api.h"
#include "cadre/status.h"

namespace cadre::capi {

/// Keeps the message of a failure for cadre_status_message(); returns the code.
cadre_status_code report(const Status& status);

/// Runs `body` (which returns a Status) and turns whatever it throws into kInternal.
template <typename Body>
cadre_status_code guarded(const char* function, Body body) {
  try {
    return report(body());
  } catch (const std::bad_alloc&) {
    return report(Status::internal(std::string(function) + ": out of host memory"));
  } catch (const std::exception& error) {
    return report(Status::internal(std::string(function) + ": " + error.what()));
  } catch (...) {
    return report(Status::internal(std::string(function) + ": unknown exception"));
  }
}

}  // namespace cadre::capi
