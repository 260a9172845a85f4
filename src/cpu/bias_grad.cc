// bias_grad as two lists of one-row products: dbias_i = bias_scale[rows_i] . dy[rows_i], and
// dbias_scale[rows_i] = bias_i . dy[rows_i]^T. Both read dy once, at memory speed, and sum in
// ascending order.
#include "cpu/bias_grad.h"

#include <vector>

#include "core/convert.h"
#include "cpu/gemm_item.h"

namespace cadre::cpu {
namespace {

void* at(const TensorView& view, int64_t index) {
  return static_cast<char*>(view.data) +
         index * view.strides[0] * static_cast<int64_t>(size_of(view.dtype));
}

/// The vector of local group i of a [g, n] tensor or a list, as a matrix of one row.
MatrixRef row_of(const GroupedTensor& tensor, int64_t group) {
  if (tensor.placement == Placement::kList) {
    return {tensor.pointers[group], tensor.dtype, 0, tensor.col_stride};
  }
  const auto bytes = group * tensor.group_stride * static_cast<int64_t>(size_of(tensor.dtype));
  return {static_cast<char*>(tensor.data) + bytes, tensor.dtype, 0, tensor.col_stride};
}

}  // namespace

Status bias_grad(const plan::Problem& problem, const BiasGradArgs& args,
                 const std::vector<int64_t>& offsets, const GemmPlan& plan) {
  float one = 1.0f;  // a row of ones has strides of 0
  if (args.dbias_scale.given()) {
    for (int64_t row = 0; row < problem.m; ++row) {
      store_rounded(at(args.dbias_scale, row), args.dbias_scale.dtype, 0, 0.0);
    }
  }
  std::vector<GemmItem> items;
  for (int64_t i = 0; i < problem.num_local_groups; ++i) {
    const int64_t begin = offsets[static_cast<size_t>(args.group_offset.value + i)];
    const int64_t end = offsets[static_cast<size_t>(args.group_offset.value + i + 1)];
    const MatrixRef dy{
        static_cast<char*>(args.dy.data) +
            begin * args.dy.strides[0] * static_cast<int64_t>(size_of(args.dy.dtype)),
        args.dy.dtype, args.dy.strides[0], args.dy.strides[1]};
    if (args.dbias.given()) {
      GemmItem item{.m = 1, .n = problem.n, .k = end - begin, .group = i};
      item.a = {&one, DType::kF32, 0, 0};
      if (args.bias_scale.given()) {
        item.a = {at(args.bias_scale, begin), args.bias_scale.dtype, 0, args.bias_scale.strides[0]};
      }
      item.b = dy;
      item.d = row_of(args.dbias, i);
      item.c = item.d;
      item.beta = args.accumulate ? 1.0 : 0.0;
      items.push_back(item);
    }
    if (args.dbias_scale.given() && begin < end) {
      GemmItem item{.m = 1, .n = end - begin, .k = problem.n, .group = i};
      item.a = row_of(args.bias, i);
      item.b = {dy.data, dy.dtype, dy.col_stride, dy.row_stride};
      item.d = {at(args.dbias_scale, begin), args.dbias_scale.dtype, 0,
                args.dbias_scale.strides[0]};
      items.push_back(item);
    }
  }
  return multiply_items(items, plan);
}

}  // namespace cadre::cpu
