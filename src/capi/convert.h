// From the structs of the C ABI to the C++ API (those of the ops: ops.cc), and the versioning of
// those structs.
#pragma once

#include <algorithm>
#include <cstring>
#include <string_view>

#include "cadre/activation.h"
#include "cadre/bias_grad.h"
#include "cadre/c_api.h"
#include "cadre/context.h"
#include "cadre/gmm.h"
#include "cadre/grouped_gemm.h"
#include "cadre/scaled_tensor.h"
#include "cadre/tgmm.h"
#include "core/text.h"

namespace cadre::capi {

TensorView tensor(const cadre_tensor* view);  ///< NULL: not given
GroupedTensor grouped(const cadre_grouped_tensor* tensor);
Scales scales(const cadre_scales* given);  ///< NULL: none
GroupSizes sizes(const cadre_sizes& sizes);
GroupScalars scalars(double uniform, const cadre_tensor* per_group);
GroupOffset group_offset(int64_t value, const void* on_device, cadre_dtype dtype, Device device);
Activation activation(const cadre_activation& given);
cadre_activation default_activation();
const PackedWeights* packed(const cadre_packed_weights* given);
Status call_options(std::string_view function, const cadre_call_options* options,
                    CallOptions* result);

/// The arguments of an op, or kInvalid for a struct of another version.
Status to_cpp(const cadre_gmm_args* given, GmmArgs* args);
Status to_cpp(const cadre_tgmm_args* given, TgmmArgs* args);
Status to_cpp(const cadre_grouped_gemm_args* given, GroupedGemmArgs* args);
Status to_cpp(const cadre_bias_grad_args* given, BiasGradArgs* args);

/// Copies what the caller's version of a struct holds over this library's defaults, which `init`
/// writes. `oldest` is the size the struct had in its first release.
template <typename Struct>
Status read_struct(std::string_view function, const Struct* given, size_t oldest,
                   void (*init)(Struct*, size_t), Struct* result) {
  if (given == nullptr) {
    return Status::invalid(text(function, ": args = null, expected a struct"));
  }
  if (given->struct_size > sizeof(Struct)) {
    return Status::invalid(text(function, ": struct_size = ", given->struct_size,
                                ", expected at most ", sizeof(Struct),
                                " (the caller was built with the header of another version)"));
  }
  if (given->struct_size < oldest) {
    return Status::invalid(text(function, ": struct_size = ", given->struct_size,
                                ", expected at least ", oldest,
                                " (was the struct filled by its init function?)"));
  }
  if (given->struct_size < sizeof(Struct)) init(result, sizeof(Struct));
  std::memcpy(result, given, given->struct_size);
  result->struct_size = sizeof(Struct);
  return {};
}

/// Writes as much of the defaults as the caller's version of the struct has room for.
template <typename Struct>
void write_defaults(const Struct& defaults, Struct* given, size_t struct_size) {
  if (given == nullptr) return;
  std::memset(given, 0, struct_size);
  std::memcpy(given, &defaults, std::min(struct_size, sizeof(Struct)));
  if (struct_size >= sizeof(given->struct_size)) given->struct_size = struct_size;
}

}  // namespace cadre::capi
