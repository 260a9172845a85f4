// No exception leaves an op.
#pragma once

#include <exception>
#include <new>
#include <string_view>

#include "cadre/status.h"
#include "core/text.h"

namespace cadre::ops {

/// So short that a std::string holds it without memory of its own.
inline constexpr const char* kNoMemory = "out of memory";

/// Runs `body`, which returns a Status, and turns what it throws into kInternal.
template <typename Body>
Status guarded(std::string_view op, Body body) {
  try {
    try {
      return body();
    } catch (const std::bad_alloc&) {
      return Status::internal(text(op, ": out of host memory"));
    } catch (const std::exception& error) {
      return Status::internal(text(op, ": ", error.what()));
    } catch (...) {
      return Status::internal(text(op, ": unknown exception"));
    }
  } catch (const std::bad_alloc&) {  // not even for the message
    return Status::internal(kNoMemory);
  }
}

}  // namespace cadre::ops
