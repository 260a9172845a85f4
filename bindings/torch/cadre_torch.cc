// The torch operators of cadre: schemas and kernels for CPU and CUDA. What Python adds to them
// (fake, autograd, vmap) is in bindings/python/cadre/torch.
#include "bias_grad.h"
#include "grouped_gemm.h"
#include "moe_mlp.h"
#include "products.h"
#include "quantize.h"
#include "row_ops.h"
#include "views.h"

namespace cadre_torch {
namespace {

void check_device(Tensor like) {
  void* stream = like.is_cuda() ? current_stream(like.get_device_index()) : nullptr;
  check(cadre_check(g_context, device_of(like), stream));
}

}  // namespace
}  // namespace cadre_torch

extern "C" __attribute__((visibility("default"))) void cadre_torch_set_context(void* context) {
  cadre_torch::g_context = static_cast<cadre_context*>(context);
}

// No argument has a default: the dispatcher would strip those that equal it, and with them their
// place among the inputs that autograd counts.
STABLE_TORCH_LIBRARY(cadre, m) {
  for (const char* schema : cadre_torch::kProductSchemas) m.def(schema);
  m.def("check(Tensor like) -> ()");
  for (const char* schema : cadre_torch::kBiasGradSchemas) m.def(schema);
  m.def(cadre_torch::kGroupedGemmSchema);
  m.def(cadre_torch::kGroupedGemmOutSchema);
  for (const char* schema : cadre_torch::kRowOpSchemas) m.def(schema);
  for (const char* schema : cadre_torch::kQuantizeSchemas) m.def(schema);
  m.def(cadre_torch::kMoeMlpSchema);
  m.def(cadre_torch::kMoeMlpGradSchema);
  m.def(cadre_torch::kMoeMlpGradIntoSchema);
}

#define CADRE_TORCH_KERNELS(m)                                                       \
  m.impl("gmm", TORCH_BOX(&cadre_torch::gmm));                                       \
  m.impl("gmm_plain", TORCH_BOX(&cadre_torch::gmm_plain));                           \
  m.impl("gmm_list", TORCH_BOX(&cadre_torch::gmm_list));                             \
  m.impl("gmm_out", TORCH_BOX(&cadre_torch::gmm_out));                               \
  m.impl("gmm_activated", TORCH_BOX(&cadre_torch::gmm_activated));                   \
  m.impl("tgmm", TORCH_BOX(&cadre_torch::tgmm));                                     \
  m.impl("tgmm_plain", TORCH_BOX(&cadre_torch::tgmm_plain));                         \
  m.impl("tgmm_out", TORCH_BOX(&cadre_torch::tgmm_out));                             \
  m.impl("bias_grad", TORCH_BOX(&cadre_torch::bias_grad));                           \
  m.impl("bias_grad_out", TORCH_BOX(&cadre_torch::bias_grad_out));                   \
  m.impl("bias_scale_grad", TORCH_BOX(&cadre_torch::bias_scale_grad));               \
  m.impl("quantize", TORCH_BOX(&cadre_torch::quantize));                             \
  m.impl("dequantize", TORCH_BOX(&cadre_torch::dequantize));                         \
  m.impl("amax", TORCH_BOX(&cadre_torch::amax));                                     \
  m.impl("weighted_activate_grad", TORCH_BOX(&cadre_torch::weighted_activate_grad)); \
  m.impl("check", TORCH_BOX(&cadre_torch::check_device));                            \
  m.impl("select_experts", TORCH_BOX(&cadre_torch::select_experts));                 \
  m.impl("select_experts_grad", TORCH_BOX(&cadre_torch::select_experts_grad));       \
  m.impl("route", TORCH_BOX(&cadre_torch::route));                                   \
  m.impl("permute", TORCH_BOX(&cadre_torch::permute));                               \
  m.impl("combine", TORCH_BOX(&cadre_torch::combine));                               \
  m.impl("combine_grad", TORCH_BOX(&cadre_torch::combine_grad));                     \
  m.impl("moe_mlp", TORCH_BOX(&cadre_torch::moe_mlp));                               \
  m.impl("moe_mlp_grad", TORCH_BOX(&cadre_torch::moe_mlp_grad));                     \
  m.impl("moe_mlp_grad_into", TORCH_BOX(&cadre_torch::moe_mlp_grad_into));           \
  m.impl("grouped_gemm", TORCH_BOX(&cadre_torch::grouped_gemm));                     \
  m.impl("grouped_gemm_out", TORCH_BOX(&cadre_torch::grouped_gemm_out))

STABLE_TORCH_LIBRARY_IMPL(cadre, CPU, m) { CADRE_TORCH_KERNELS(m); }
STABLE_TORCH_LIBRARY_IMPL(cadre, CUDA, m) { CADRE_TORCH_KERNELS(m); }
