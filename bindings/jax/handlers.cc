// The handlers of the products and of the bias's gradient; those of a layer are in
// layer_handlers.cc.
#include <cstdint>

#include "cadre/c_api.h"
#include "handler_call.h"

namespace cadre_jax {
namespace {

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
