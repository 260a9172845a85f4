// Calls an op through the C ABI with the arguments of the C++ API, field by field.
#pragma once

#include <string>

#include "cadre/c_api.h"
#include "cadre/cadre.h"

namespace cadre::tests {

struct CResult {
  cadre_status_code code;
  std::string message;
};

CResult call_through_c(const GmmArgs& args);
CResult call_through_c(const TgmmArgs& args);
CResult call_through_c(const GroupedGemmArgs& args);
CResult call_through_c(const BiasGradArgs& args);

inline Status call(Context& context, const GmmArgs& args) { return gmm(context, args); }
inline Status call(Context& context, const TgmmArgs& args) { return tgmm(context, args); }
inline Status call(Context& context, const GroupedGemmArgs& args) {
  return grouped_gemm(context, args);
}
inline Status call(Context& context, const BiasGradArgs& args) { return bias_grad(context, args); }

inline Status call_for_workspace_size(Context& context, const GmmArgs& args, size_t* size) {
  return gmm_workspace_size(context, args, size);
}
inline Status call_for_workspace_size(Context& context, const TgmmArgs& args, size_t* size) {
  return tgmm_workspace_size(context, args, size);
}
inline Status call_for_workspace_size(Context& context, const GroupedGemmArgs& args, size_t* size) {
  return grouped_gemm_workspace_size(context, args, size);
}
inline Status call_for_workspace_size(Context& context, const BiasGradArgs& args, size_t* size) {
  return bias_grad_workspace_size(context, args, size);
}

}  // namespace cadre::tests
