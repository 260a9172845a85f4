// The shape of every op's C function: convert the arguments, call, keep the failure.
#pragma once

#include "capi/convert.h"
#include "capi/error.h"
#include "capi/handles.h"

namespace cadre::capi {

/// `convert(given, &args)`, then `op(context, args)`.
template <typename Args, typename CArgs, typename Convert, typename Op>
cadre_status_code call(const char* function, cadre_context* context, const CArgs* given,
                       Convert convert, Op op) {
  return guarded(function, [&]() -> Status {
    if (context == nullptr) {
      return Status::invalid(text(function, ": context = null, expected a context"));
    }
    Args args;
    if (Status status = convert(given, &args); !status.ok()) return status;
    return op(context->context, args);
  });
}

/// The same for an op's workspace size.
template <typename Args, typename CArgs, typename Convert, typename Op>
cadre_status_code call_for_size(const char* function, cadre_context* context, const CArgs* given,
                                Convert convert, size_t* size_bytes, Op op) {
  return call<Args>(function, context, given, convert,
                    [&](Context& target, const Args& args) -> Status {
                      if (size_bytes == nullptr) {
                        return Status::invalid(
                            text(function, ": size_bytes = null, expected a place for the result"));
                      }
                      return op(target, args, size_bytes);
                    });
}

}  // namespace cadre::capi
