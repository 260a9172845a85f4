// The reference backend: plain loops, accumulating in double (int32, wrapping, for int8 x int8).
// Every option of the contract. It must be obviously right; it needn't be fast.
#include "cpu/reference.h"

#include <cstring>

#include "core/activation_math.h"
#include "core/convert.h"
#include "core/text.h"
#include "cpu/gemm_item.h"
#include "cpu/reference_rows.h"
#include "plan/group_offsets.h"

namespace cadre::cpu {
namespace {

double value_at(const MatrixRef& matrix, int64_t row, int64_t col) {
  return load_as_double(element_at(matrix, row, col), matrix.dtype, 0);
}

double value_at(const VectorRef& vector, int64_t index) {
  return load_as_double(vector.data, vector.dtype, index * vector.stride);
}

int32_t int_at(const MatrixRef& matrix, int64_t row, int64_t col) {
  if (matrix.dtype == DType::kI8) {
    int8_t value;
    std::memcpy(&value, element_at(matrix, row, col), sizeof(value));
    return value;
  }
  int32_t value;
  std::memcpy(&value, element_at(matrix, row, col), sizeof(value));
  return value;
}

int64_t row_at(const RowIndex& index, int64_t i) {
  return index.given() ? plan::read_index(index.data, index.dtype, i * index.stride) : i;
}

/// The product sees zeros in a row that no index names.
double indexed_value(const MatrixRef& matrix, int64_t row, int64_t col) {
  return row < 0 || col < 0 ? 0.0 : value_at(matrix, row, col);
}
int32_t indexed_int(const MatrixRef& matrix, int64_t row, int64_t col) {
  return row < 0 || col < 0 ? 0 : int_at(matrix, row, col);
}

/// Scale of A's element [outer, inner], or of B's [inner, outer].
double scale_at(const ScaleRef& scales, int64_t outer, int64_t inner) {
  if (!scales.given() || outer < 0) return 1;
  const int64_t block = plan::inner_block_of(scales.mode);
  const int64_t inner_index = block == 0 ? 0 : inner / block;
  return load_as_double(
      scales.data, scales.dtype,
      outer / scales.outer_block * scales.outer_stride + inner_index * scales.inner_stride);
}

/// Of the dequantised operands, where they have scales.
double float_product(const GemmItem& item, int64_t row, int64_t col) {
  double sum = 0;
  const int64_t a_row = row_at(item.a_rows, row);
  for (int64_t i = 0; i < item.k; ++i) {
    sum += indexed_value(item.a, a_row, row_at(item.a_cols, i)) *
           scale_at(item.a_scales, a_row, i) * indexed_value(item.b, row_at(item.b_rows, i), col) *
           scale_at(item.b_scales, col, i);
  }
  return sum;
}

/// Sums modulo 2^32, read as a signed number.
int32_t int_product(const GemmItem& item, int64_t row, int64_t col) {
  uint32_t sum = 0;
  const int64_t a_row = row_at(item.a_rows, row);
  for (int64_t i = 0; i < item.k; ++i) {
    sum += static_cast<uint32_t>(indexed_int(item.a, a_row, row_at(item.a_cols, i)) *
                                 indexed_int(item.b, row_at(item.b_rows, i), col));
  }
  return static_cast<int32_t>(sum);
}

/// int8 x int8 -> int32: the product, or its wrapping sum with C.
void write_int(const GemmItem& item, int64_t row, int64_t col) {
  auto result = static_cast<uint32_t>(int_product(item, row, col));
  if (item.beta != 0) result += static_cast<uint32_t>(int_at(item.c, row, col));
  std::memcpy(element_at(item.d, row, col), &result, sizeof(result));
}

/// row_scale * (alpha * acc + bias_scale * bias) + beta * C.
double result_at(const GemmItem& item, int64_t row, int64_t col) {
  const bool both_int8 = item.a.dtype == DType::kI8 && item.b.dtype == DType::kI8;
  const double acc = both_int8 ? int_product(item, row, col) : float_product(item, row, col);
  double result = item.alpha * acc;
  if (item.bias.data) {
    const double scale = item.bias_scale.data ? value_at(item.bias_scale, row) : 1.0;
    result += scale * value_at(item.bias, col);
  }
  if (item.row_scale.data) result *= value_at(item.row_scale, row);
  if (item.beta != 0) result += item.beta * value_at(item.c, row, col);
  return result;
}

void write_float(const GemmItem& item, int64_t row, int64_t col) {
  store_rounded(element_at(item.d, row, col), item.d.dtype, 0, result_at(item, row, col));
}

/// Column `col` of the activated result, and its pre-activation where that is asked for.
void write_activated(const GemmItem& item, int64_t row, int64_t col) {
  const Activation& activation = item.step.activation;
  const bool interleaved = activation.layout == GateLayout::kInterleaved;
  const int64_t gate_col = activation.gated() && interleaved ? 2 * col : col;
  const int64_t up_col = interleaved ? gate_col + 1 : col + item.result_cols();
  const auto pre = [&](int64_t pre_col) {
    const double value = result_at(item, row, pre_col);
    const MatrixRef& to = item.step.pre;
    if (to.data) store_rounded(element_at(to, row, pre_col), to.dtype, 0, value);
    double rounded = 0;  // as large as any element
    store_rounded(&rounded, item.d.dtype, 0, value);
    return load_as_double(&rounded, item.d.dtype, 0);
  };
  const double gate = pre(gate_col);
  const double up = activation.gated() ? pre(up_col) : 0.0;
  const double y = with_activation_kind(activation.kind, [&](auto kind) {
    return activate_with<decltype(kind)::value, double>(gate, up,
                                                        ClampParameters<double>(activation))
        .value;
  });
  store_rounded(element_at(item.d, row, col), item.d.dtype, 0, y);
}

void multiply(const GemmItem& item) {
  for (int64_t row = 0; row < item.m; ++row) {
    for (int64_t col = 0; col < item.result_cols(); ++col) {
      if (item.activates()) {
        write_activated(item, row, col);
      } else if (item.d.dtype == DType::kI32) {
        write_int(item, row, col);
      } else {
        write_float(item, row, col);
      }
    }
  }
}

void zero(const GemmItem& rows) {
  for (int64_t row = 0; row < rows.m; ++row) {
    for (int64_t col = 0; col < rows.n; ++col) {
      std::memset(element_at(rows.d, row, col), 0, size_of(rows.d.dtype));
    }
  }
}

class ReferenceBackend final : public plan::Backend {
 public:
  std::string_view name() const override { return "reference"; }

  std::vector<std::string> kernels() const override { return {"reference"}; }

  Status choose(const detail::ContextState& /*context*/, const plan::Problem& problem,
                const char* pinned, plan::Config* config) const override {
    if (problem.device.kind != DeviceKind::kCpu) {
      return Status::unsupported("takes tensors in host memory alone");
    }
    if (pinned && std::string_view(pinned) != "reference") {
      return Status::unsupported(text("has no kernel \"", pinned, "\", only \"reference\""));
    }
    if (problem.epilogue.gradient.given()) {
      return Status::unsupported("takes the gradient of an activation as a pass of its own");
    }
    *config = {.kernel = "reference"};
    return {};
  }

  Status run(detail::ContextState& /*context*/, const plan::Problem& problem,
             const plan::Config& /*config*/, const plan::Operands& operands,
             const CallOptions& /*options*/) const override {
    LoweredCall call;
    lower(problem, operands, &call);
    for (const GemmItem& item : call.items) multiply(item);
    for (const GemmItem& rows : call.zero_rows) zero(rows);
    return {};
  }

  Status run_bias_grad(detail::ContextState& /*context*/, const plan::Problem& problem,
                       const plan::Config& /*config*/, const BiasGradArgs& args,
                       const std::vector<int64_t>& offsets) const override;

  Status run_rows(detail::ContextState& /*context*/, const plan::Problem& problem,
                  const plan::Config& /*config*/, const plan::RowCall& call,
                  const CallOptions& /*options*/) const override {
    reference_rows(problem, call);
    return {};
  }
};

double value_at(const TensorView& vector, int64_t index) {
  return load_as_double(vector.data, vector.dtype, index * vector.strides[0]);
}

/// The vector of local group i of a [g, n] tensor or a list.
MatrixRef vector_of(const GroupedTensor& tensor, int64_t group) {
  if (tensor.placement == Placement::kList) {
    return {tensor.pointers[group], tensor.dtype, 0, tensor.col_stride};
  }
  const auto offset = group * tensor.group_stride * static_cast<int64_t>(size_of(tensor.dtype));
  return {static_cast<char*>(tensor.data) + offset, tensor.dtype, 0, tensor.col_stride};
}

Status ReferenceBackend::run_bias_grad(detail::ContextState& /*context*/,
                                       const plan::Problem& problem, const plan::Config& /*config*/,
                                       const BiasGradArgs& args,
                                       const std::vector<int64_t>& offsets) const {
  const MatrixRef dy{args.dy.data, args.dy.dtype, args.dy.strides[0], args.dy.strides[1]};
  if (args.dbias_scale.given()) {
    for (int64_t row = 0; row < problem.m; ++row) {
      store_rounded(args.dbias_scale.data, args.dbias_scale.dtype,
                    row * args.dbias_scale.strides[0], 0.0);
    }
  }
  for (int64_t i = 0; i < problem.num_local_groups; ++i) {
    const int64_t begin = offsets[static_cast<size_t>(args.group_offset.value + i)];
    const int64_t end = offsets[static_cast<size_t>(args.group_offset.value + i + 1)];
    for (int64_t col = 0; col < problem.n && args.dbias.given(); ++col) {
      const MatrixRef dbias = vector_of(args.dbias, i);
      double sum = args.accumulate ? value_at(dbias, 0, col) : 0.0;
      for (int64_t row = begin; row < end; ++row) {
        const double scale = args.bias_scale.given() ? value_at(args.bias_scale, row) : 1.0;
        sum += scale * value_at(dy, row, col);
      }
      store_rounded(element_at(dbias, 0, col), dbias.dtype, 0, sum);
    }
    for (int64_t row = begin; row < end && args.dbias_scale.given(); ++row) {
      const MatrixRef bias = vector_of(args.bias, i);
      double sum = 0;
      for (int64_t col = 0; col < problem.n; ++col) {
        sum += value_at(dy, row, col) * value_at(bias, 0, col);
      }
      store_rounded(args.dbias_scale.data, args.dbias_scale.dtype,
                    row * args.dbias_scale.strides[0], sum);
    }
  }
  return {};
}

}  // namespace

std::unique_ptr<plan::Backend> make_reference_backend() {
  return std::make_unique<ReferenceBackend>();
}

}  // namespace cadre::cpu
