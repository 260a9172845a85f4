// XLA FFI handlers over the C ABI, for CPU and CUDA. Operands may carry leading batch dims.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "batched_views.h"
#include "cadre/c_api.h"
#include "runtime.h"
#include "xla/ffi/api/ffi.h"

namespace cadre_jax {
namespace {

/// The operands of a handler, in order, then checked for the batch dims of the result.
class Operands {
 public:
  Operands(ffi::RemainingArgs args, int64_t batch_rank, cadre_device device) {
    for (size_t i = 0; i < args.size(); ++i) {
      auto buffer = args.get<ffi::AnyBuffer>(i);
      if (buffer.has_value()) views_.emplace_back(*buffer, batch_rank, device);
    }
  }
  size_t size() const { return views_.size(); }
  const BatchedView& operator[](size_t i) const { return views_[i]; }

 private:
  std::vector<BatchedView> views_;
};

/// A group_offset in host memory. -1, which the library refuses, for what fits no int64 and for
/// what is no integer.
int64_t host_offset(const void* value, cadre_dtype dtype) {
  switch (dtype) {
    case CADRE_I8:
      return *static_cast<const int8_t*>(value);
    case CADRE_U8:
      return *static_cast<const uint8_t*>(value);
    case CADRE_I16:
      return *static_cast<const int16_t*>(value);
    case CADRE_U16:
      return *static_cast<const uint16_t*>(value);
    case CADRE_I32:
      return *static_cast<const int32_t*>(value);
    case CADRE_U32:
      return *static_cast<const uint32_t*>(value);
    case CADRE_I64:
      return *static_cast<const int64_t*>(value);
    case CADRE_U64:
      return std::max<int64_t>(-1, static_cast<int64_t>(*static_cast<const uint64_t*>(value)));
    default:
      return -1;
  }
}

/// Group sizes and group_offset of one batch entry, as every op's args have them.
template <typename Args>
void set_groups(const Place& place, const BatchedView& sizes, const BatchedView& offset,
                int64_t index, const std::vector<int64_t>& batch, Args* args) {
  args->group_sizes = {sizes.data_at(index, batch), sizes.dtype(), place.device, sizes.shape()[0],
                       CADRE_SIZES};
  const void* value = offset.data_at(index, batch);
  if (place.device.kind == CADRE_CUDA) {
    args->group_offset_on_device = value;
    args->group_offset_dtype = offset.dtype();
  } else {
    args->group_offset = host_offset(value, offset.dtype());
  }
}

cadre_call_options options_for(const Place& place, int64_t precision) {
  cadre_call_options options;
  cadre_call_options_init(&options, sizeof(options));
  options.stream = place.stream;
  options.workspace = place.workspace;
  options.workspace_size_bytes = place.workspace_size_bytes;
  options.precision = static_cast<int32_t>(precision);
  return options;
}

/// Runs `call(index)` for each batch entry until one fails.
template <typename Call>
ffi::Error for_each_entry(const Place& place, const std::vector<int64_t>& batch, Call call) {
  if (context() == nullptr) {
    return {ffi::ErrorCode::kFailedPrecondition, "cadre: import cadre.jax before running this"};
  }
  note_device(place);
  for (int64_t index = 0; index < entries(batch); ++index) {
    const cadre_status_code code = call(index);
    if (code != CADRE_OK) return to_error(code, place);
  }
  return ffi::Error::Success();
}

/// lhs [m,k], rhs [g,k,n] or [g,n,k], group_sizes, group_offset, optional bias [g,n] -> [m,n]
ffi::Error gmm(const Place& place, ffi::RemainingArgs args, ffi::Result<ffi::AnyBuffer> result,
               bool transpose_rhs, int64_t batch_rank, int64_t precision) {
  const Operands operands(args, batch_rank, place.device);
  const BatchedView out(*result, batch_rank, place.device);
  prefer_large_pages(place, result->untyped_data(), result->size_bytes());
  const cadre_call_options options = options_for(place, precision);
  return for_each_entry(place, out.batch(), [&](int64_t index) {
    const cadre_tensor lhs = operands[0].tensor_at(index, out.batch());
    const cadre_tensor rhs_tensor = operands[1].tensor_at(index, out.batch());
    const cadre_tensor out_tensor = out.tensor_at(index, out.batch());
    const cadre_grouped_tensor rhs = cadre_grouped_from_tensor(&rhs_tensor);
    const cadre_grouped_tensor out_rows = cadre_grouped_from_tensor(&out_tensor);
    cadre_gmm_args call;
    cadre_gmm_args_init(&call, sizeof(call));
    call.lhs = &lhs;
    call.rhs = &rhs;
    call.out = &out_rows;
    call.transpose_rhs = transpose_rhs;
    call.options = &options;
    set_groups(place, operands[2], operands[3], index, out.batch(), &call);
    cadre_grouped_tensor bias;
    if (operands.size() > 4) {
      const cadre_tensor bias_tensor = operands[4].tensor_at(index, out.batch());
      bias = cadre_grouped_vectors(&bias_tensor);
      call.bias = &bias;
    }
    return cadre_gmm(context(), &call);
  });
}

/// lhs [m,k], rhs [m,n], group_sizes, group_offset -> [g,k,n]
ffi::Error tgmm(const Place& place, ffi::RemainingArgs args, ffi::Result<ffi::AnyBuffer> result,
                int64_t batch_rank, int64_t precision) {
  const Operands operands(args, batch_rank, place.device);
  const BatchedView out(*result, batch_rank, place.device);
  prefer_large_pages(place, result->untyped_data(), result->size_bytes());
  const cadre_call_options options = options_for(place, precision);
  return for_each_entry(place, out.batch(), [&](int64_t index) {
    const cadre_tensor lhs = operands[0].tensor_at(index, out.batch());
    const cadre_tensor rhs = operands[1].tensor_at(index, out.batch());
    const cadre_tensor out_tensor = out.tensor_at(index, out.batch());
    const cadre_grouped_tensor out_stack = cadre_grouped_from_tensor(&out_tensor);
    cadre_tgmm_args call;
    cadre_tgmm_args_init(&call, sizeof(call));
    call.lhs = &lhs;
    call.rhs = &rhs;
    call.out = &out_stack;
    call.options = &options;
    set_groups(place, operands[2], operands[3], index, out.batch(), &call);
    return cadre_tgmm(context(), &call);
  });
}

/// dy [m,n], group_sizes, group_offset -> [g,n]
ffi::Error bias_grad(const Place& place, ffi::RemainingArgs args,
                     ffi::Result<ffi::AnyBuffer> result, int64_t batch_rank) {
  const Operands operands(args, batch_rank, place.device);
  const BatchedView out(*result, batch_rank, place.device);
  prefer_large_pages(place, result->untyped_data(), result->size_bytes());
  const cadre_call_options options = options_for(place, 0);
  return for_each_entry(place, out.batch(), [&](int64_t index) {
    const cadre_tensor dy = operands[0].tensor_at(index, out.batch());
    const cadre_tensor out_tensor = out.tensor_at(index, out.batch());
    const cadre_grouped_tensor dbias = cadre_grouped_vectors(&out_tensor);
    cadre_bias_grad_args call;
    cadre_bias_grad_args_init(&call, sizeof(call));
    call.dy = &dy;
    call.dbias = &dbias;
    call.options = &options;
    set_groups(place, operands[1], operands[2], index, out.batch(), &call);
    return cadre_bias_grad(context(), &call);
  });
}

Place host_place(bool in_mesh) { return {{CADRE_CPU, 0}, nullptr, nullptr, 0, in_mesh}; }

Place cuda_place(void* stream, int32_t ordinal, ffi::Result<ffi::AnyBuffer>& workspace) {
  return {{CADRE_CUDA, ordinal}, stream, workspace->untyped_data(), workspace->size_bytes()};
}

ffi::Error gmm_cpu(ffi::RemainingArgs args, ffi::Result<ffi::AnyBuffer> out, bool transpose_rhs,
                   int64_t batch_rank, int64_t precision, bool in_mesh) {
  return gmm(host_place(in_mesh), args, out, transpose_rhs, batch_rank, precision);
}

ffi::Error gmm_cuda(void* stream, int32_t ordinal, ffi::RemainingArgs args,
                    ffi::Result<ffi::AnyBuffer> out, ffi::Result<ffi::AnyBuffer> workspace,
                    bool transpose_rhs, int64_t batch_rank, int64_t precision) {
  return gmm(cuda_place(stream, ordinal, workspace), args, out, transpose_rhs, batch_rank,
             precision);
}

ffi::Error tgmm_cpu(ffi::RemainingArgs args, ffi::Result<ffi::AnyBuffer> out, int64_t batch_rank,
                    int64_t precision, bool in_mesh) {
  return tgmm(host_place(in_mesh), args, out, batch_rank, precision);
}

ffi::Error tgmm_cuda(void* stream, int32_t ordinal, ffi::RemainingArgs args,
                     ffi::Result<ffi::AnyBuffer> out, ffi::Result<ffi::AnyBuffer> workspace,
                     int64_t batch_rank, int64_t precision) {
  return tgmm(cuda_place(stream, ordinal, workspace), args, out, batch_rank, precision);
}

ffi::Error bias_grad_cpu(ffi::RemainingArgs args, ffi::Result<ffi::AnyBuffer> out,
                         int64_t batch_rank, bool in_mesh) {
  return bias_grad(host_place(in_mesh), args, out, batch_rank);
}

ffi::Error bias_grad_cuda(void* stream, int32_t ordinal, ffi::RemainingArgs args,
                          ffi::Result<ffi::AnyBuffer> out, ffi::Result<ffi::AnyBuffer> workspace,
                          int64_t batch_rank) {
  return bias_grad(cuda_place(stream, ordinal, workspace), args, out, batch_rank);
}

auto on_host() { return ffi::Ffi::Bind(); }

auto on_cuda() {
  return ffi::Ffi::Bind().Ctx<ffi::PlatformStream<void*>>().Ctx<ffi::DeviceOrdinal>();
}

}  // namespace
}  // namespace cadre_jax

using cadre_jax::ffi::AnyBuffer;

extern "C" {
CADRE_API XLA_FFI_Error* cadre_jax_gmm_cpu(XLA_FFI_CallFrame*);
CADRE_API XLA_FFI_Error* cadre_jax_gmm_cuda(XLA_FFI_CallFrame*);
CADRE_API XLA_FFI_Error* cadre_jax_tgmm_cpu(XLA_FFI_CallFrame*);
CADRE_API XLA_FFI_Error* cadre_jax_tgmm_cuda(XLA_FFI_CallFrame*);
CADRE_API XLA_FFI_Error* cadre_jax_bias_grad_cpu(XLA_FFI_CallFrame*);
CADRE_API XLA_FFI_Error* cadre_jax_bias_grad_cuda(XLA_FFI_CallFrame*);
}

// A CUDA handler only launches, so XLA may record it into a command buffer. Its second result is
// the workspace: memory of XLA's own, so that programs that run at once never share one.
XLA_FFI_DEFINE_HANDLER_SYMBOL(cadre_jax_gmm_cpu, cadre_jax::gmm_cpu,
                              cadre_jax::on_host()
                                  .RemainingArgs()
                                  .Ret<AnyBuffer>()
                                  .Attr<bool>("transpose_rhs")
                                  .Attr<int64_t>("batch_rank")
                                  .Attr<int64_t>("precision")
                                  .Attr<bool>("in_mesh"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(cadre_jax_gmm_cuda, cadre_jax::gmm_cuda,
                              cadre_jax::on_cuda()
                                  .RemainingArgs()
                                  .Ret<AnyBuffer>()
                                  .Ret<AnyBuffer>()
                                  .Attr<bool>("transpose_rhs")
                                  .Attr<int64_t>("batch_rank")
                                  .Attr<int64_t>("precision"),
                              {xla::ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER_SYMBOL(cadre_jax_tgmm_cpu, cadre_jax::tgmm_cpu,
                              cadre_jax::on_host()
                                  .RemainingArgs()
                                  .Ret<AnyBuffer>()
                                  .Attr<int64_t>("batch_rank")
                                  .Attr<int64_t>("precision")
                                  .Attr<bool>("in_mesh"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(cadre_jax_tgmm_cuda, cadre_jax::tgmm_cuda,
                              cadre_jax::on_cuda()
                                  .RemainingArgs()
                                  .Ret<AnyBuffer>()
                                  .Ret<AnyBuffer>()
                                  .Attr<int64_t>("batch_rank")
                                  .Attr<int64_t>("precision"),
                              {xla::ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER_SYMBOL(cadre_jax_bias_grad_cpu, cadre_jax::bias_grad_cpu,
                              cadre_jax::on_host()
                                  .RemainingArgs()
                                  .Ret<AnyBuffer>()
                                  .Attr<int64_t>("batch_rank")
                                  .Attr<bool>("in_mesh"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(
    cadre_jax_bias_grad_cuda, cadre_jax::bias_grad_cuda,
    cadre_jax::on_cuda().RemainingArgs().Ret<AnyBuffer>().Ret<AnyBuffer>().Attr<int64_t>(
        "batch_rank"),
    {xla::ffi::Traits::kCmdBufferCompatible});
