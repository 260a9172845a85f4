// C ABI: weights packed ahead.
#include "cadre/pack_weights.h"

#include <memory>

#include "capi/call.h"

using namespace cadre;  // NOLINT(google-build-using-namespace): this file is the C side

namespace {

Status to_cpp(const cadre_pack_weights_args* given, PackWeightsArgs* args) {
  cadre_pack_weights_args c;
  if (Status status =
          capi::read_struct("pack_weights", given, sizeof(c), cadre_pack_weights_args_init, &c);
      !status.ok()) {
    return status;
  }
  args->rhs = capi::grouped(c.rhs);
  args->transpose_rhs = c.transpose_rhs != 0;
  args->lhs_dtype = static_cast<DType>(c.lhs_dtype);
  args->out_dtype = static_cast<DType>(c.out_dtype);
  return {};
}

}  // namespace

void cadre_pack_weights_args_init(cadre_pack_weights_args* args, size_t struct_size) {
  capi::write_defaults(cadre_pack_weights_args{}, args, struct_size);
}

cadre_status_code cadre_pack_weights(cadre_context* context, const cadre_pack_weights_args* args,
                                     cadre_packed_weights** packed) {
  return capi::call<PackWeightsArgs>(
      "pack_weights", context, args, to_cpp,
      [&](Context& target, const PackWeightsArgs& given) -> Status {
        if (packed == nullptr) {
          return Status::invalid("pack_weights: packed = null, expected a place for the handle");
        }
        *packed = nullptr;
        auto handle = std::make_unique<cadre_packed_weights>();
        if (Status status = pack_weights(target, given, &handle->packed); !status.ok()) {
          return status;
        }
        handle->kernel = handle->packed.kernel();
        *packed = handle.release();
        return {};
      });
}

void cadre_packed_weights_destroy(cadre_packed_weights* packed) { delete packed; }

size_t cadre_packed_weights_size_bytes(const cadre_packed_weights* packed) {
  return packed == nullptr ? 0 : packed->packed.size_bytes();
}

const char* cadre_packed_weights_kernel(const cadre_packed_weights* packed) {
  return packed == nullptr ? "" : packed->kernel.c_str();
}
