// C ABI: which kernel a call would get.
#include "backend/explain.h"

#include <string>

#include "capi/convert.h"
#include "capi/error.h"
#include "capi/handles.h"
#include "ops/problem_of.h"

using namespace cadre;  // NOLINT(google-build-using-namespace): this file is the C side

namespace {

thread_local std::string last_explanation;

template <typename Args, typename CArgs>
cadre_status_code explain(const char* op, cadre_context* context, const CArgs* given,
                          const char** explanation) {
  return capi::guarded(op, [&]() -> Status {
    if (context == nullptr || explanation == nullptr) {
      return Status::invalid(text(op, context == nullptr ? ": context" : ": explanation",
                                  " = null, expected a ",
                                  context == nullptr ? "context" : "place for the result"));
    }
    *explanation = nullptr;
    Args args;
    if (Status status = capi::to_cpp(given, &args); !status.ok()) return status;
    plan::Problem problem;
    if (Status status = ops::problem_of(args, &problem); !status.ok()) return status;
    const backend::Explanation result =
        backend::explain(context->context.state(), problem, args.options.config);
    last_explanation = to_string(result);
    *explanation = last_explanation.c_str();
    if (!result.chosen_backend.empty()) return {};
    return Status::unsupported(text(op, ": every kernel refuses ", to_string(problem)));
  });
}

}  // namespace

cadre_status_code cadre_gmm_explain(cadre_context* context, const cadre_gmm_args* args,
                                    const char** explanation) {
  return explain<GmmArgs>("gmm", context, args, explanation);
}

cadre_status_code cadre_tgmm_explain(cadre_context* context, const cadre_tgmm_args* args,
                                     const char** explanation) {
  return explain<TgmmArgs>("tgmm", context, args, explanation);
}

cadre_status_code cadre_grouped_gemm_explain(cadre_context* context,
                                             const cadre_grouped_gemm_args* args,
                                             const char** explanation) {
  return explain<GroupedGemmArgs>("grouped_gemm", context, args, explanation);
}

cadre_status_code cadre_bias_grad_explain(cadre_context* context, const cadre_bias_grad_args* args,
                                          const char** explanation) {
  return explain<BiasGradArgs>("bias_grad", context, args, explanation);
}
