// The planted faults, before and after a call of the reference.
#include "tests/contract/faulty_backend.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>

#include "backend/registry.h"
#include "verify/element.h"

namespace cadre::contract {
namespace {

using plan::Operands;
using plan::Problem;
using verify::load_element;
using verify::store_element;

const plan::Backend& reference() { return *backend::Registry::instance().find("reference"); }

void* element_of(const GroupedTensor& tensor, int64_t group, int64_t row, int64_t col) {
  auto* data = static_cast<char*>(tensor.placement == Placement::kList ? tensor.pointers[group]
                                                                       : tensor.data);
  const int64_t begin = tensor.placement == Placement::kStacked ? group * tensor.group_stride : 0;
  return data + (begin + row * tensor.row_stride + col * tensor.col_stride) *
                    static_cast<int64_t>(size_of(tensor.dtype));
}

bool without_gaps(const GroupedTensor& t) {
  return t.placement == Placement::kStacked && t.row_stride == t.cols.uniform && t.col_stride == 1;
}

/// What a faulty call changes before the reference runs, and memory it needs for that.
struct Changed {
  Problem problem;
  Operands operands;
  std::vector<std::byte> bytes;
  std::vector<void*> pointers;
};

void reverse_groups(GroupedTensor& tensor) {
  if (tensor.placement != Placement::kStacked || tensor.num_groups < 2) return;
  tensor.data = element_of(tensor, tensor.num_groups - 1, 0, 0);
  tensor.group_stride = -tensor.group_stride;
}

void read_the_other_way_round(GroupedTensor& tensor) {
  if (!without_gaps(tensor)) return;
  tensor.row_stride = 1;
  tensor.col_stride = tensor.rows.uniform;
}

void double_bias(Changed* c) {
  GroupedTensor& bias = c->operands.epilogue.bias;
  if (bias.placement != Placement::kStacked) return;
  const int64_t n = c->problem.n;
  c->bytes.resize(static_cast<size_t>(bias.num_groups * n) * sizeof(double));
  for (int64_t group = 0; group < bias.num_groups; ++group) {
    for (int64_t col = 0; col < n; ++col) {
      const double value = load_element(element_of(bias, group, 0, col), bias.dtype, 0);
      store_element(c->bytes.data(), DType::kF64, group * n + col, 2 * value);
    }
  }
  bias.data = c->bytes.data();
  bias.dtype = DType::kF64;
  bias.group_stride = n;
  bias.col_stride = 1;
}

void wrap_lhs_rows(Changed* c) {
  GroupedTensor& lhs = c->operands.lhs;
  const size_t size = size_of(lhs.dtype);
  c->bytes.resize(static_cast<size_t>(c->problem.m * c->problem.k) * size);
  for (int64_t row = 0; row < c->problem.m; ++row) {
    for (int64_t i = 0; i < c->problem.k; ++i) {
      const auto wrapped = static_cast<uint32_t>(row * lhs.row_stride + i * lhs.col_stride);
      std::memcpy(c->bytes.data() + static_cast<size_t>(row * c->problem.k + i) * size,
                  static_cast<const char*>(lhs.data) + wrapped * size, size);
    }
  }
  lhs.data = c->bytes.data();
  lhs.row_stride = c->problem.k;
  lhs.col_stride = 1;
}

void change(Fault fault, Changed* c) {
  Problem& problem = c->problem;
  Operands& operands = c->operands;
  switch (fault) {
    case Fault::kWrongGroup:
      reverse_groups(operands.rhs);
      break;
    case Fault::kSwappedTranspose:
      read_the_other_way_round(operands.rhs);
      break;
    case Fault::kTransposedGradient:
      read_the_other_way_round(operands.out);
      break;
    case Fault::kUnwrittenTail:
      problem.tail = Tail::kUntouched;
      break;
    case Fault::kOverwrittenTail:
      problem.tail = Tail::kZero;
      break;
    case Fault::kTailZeroedDespiteBeta:
      problem.epilogue.has_beta = false;
      break;
    case Fault::kOffByOneRow:
      for (size_t i = 1; i < operands.host_offsets.size(); ++i) {
        if (operands.host_offsets[i] > operands.host_offsets[i - 1]) --operands.host_offsets[i];
      }
      break;
    case Fault::kBetaReadWhenZero:
      if (!operands.epilogue.beta.varies() && operands.epilogue.beta.uniform == 0)
        operands.epilogue.beta = 1e-300;
      break;
    case Fault::kOffset32Bit:
      wrap_lhs_rows(c);
      break;
    case Fault::kIgnoredGroupOffset:
      operands.group_offset = 0;
      break;
    case Fault::kBiasAddedTwice:
      double_bias(c);
      break;
    case Fault::kBetaIgnored:
      operands.epilogue.beta = 0.0;
      break;
    case Fault::kAlphaOfWrongGroup:
      if (TensorView& alpha = operands.epilogue.alpha.per_group;
          alpha.given() && alpha.shape[0] > 0) {
        alpha.data =
            static_cast<char*>(alpha.data) +
            (alpha.shape[0] - 1) * alpha.strides[0] * static_cast<int64_t>(size_of(alpha.dtype));
        alpha.strides[0] = -alpha.strides[0];
      }
      break;
    case Fault::kCIgnored:
      operands.epilogue.c = operands.out;
      break;
    case Fault::kRowScaleIgnored:
      operands.epilogue.row_scale = {};
      break;
    case Fault::kBiasScaleIgnored:
      operands.epilogue.bias_scale = {};
      break;
    case Fault::kLastColumnMissing:
      problem.n -= 1;
      break;
    case Fault::kDepthRoundedDown:
      problem.k -= problem.k % 8;
      break;
    case Fault::kFirstPointerForAll:
      if (operands.rhs.placement == Placement::kList) {
        c->pointers.assign(static_cast<size_t>(operands.rhs.num_groups), operands.rhs.pointers[0]);
        operands.rhs.pointers = c->pointers.data();
      }
      break;
    default:
      break;
  }
}

/// Calls visit(group, row in the output's matrix, col) for each element of a local group.
template <typename Visit>
void for_each_result(const Problem& problem, const Operands& operands, Visit visit) {
  const int64_t first = operands.group_offset.value;
  for (int64_t group = 0; group < problem.num_local_groups; ++group) {
    const bool gmm = problem.op == plan::Op::kGmm;
    const int64_t begin = gmm ? operands.host_offsets[static_cast<size_t>(first + group)] : 0;
    const int64_t end =
        gmm ? operands.host_offsets[static_cast<size_t>(first + group + 1)] : problem.k;
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t col = 0; col < problem.n; ++col) visit(group, row, col);
    }
  }
}

void flip_last_bit(void* element) { *static_cast<unsigned char*>(element) ^= 1; }

void spoil_after(Fault fault, const Problem& problem, const Operands& operands, int calls) {
  if (problem.op == plan::Op::kGroupedGemm) return;
  const GroupedTensor& out = operands.out;
  const GroupedTensor& lhs = operands.lhs;
  const auto row_behind_is_nan = [&](int64_t group) {
    const auto next = static_cast<size_t>(operands.group_offset.value + group + 1);
    const int64_t row = operands.host_offsets[next];
    if (row == operands.host_offsets[next - 1] || row >= problem.m) return false;
    return std::isnan(load_element(element_of(lhs, 0, row, 0), lhs.dtype, 0));
  };
  for_each_result(problem, operands, [&](int64_t group, int64_t row, int64_t col) {
    void* element = element_of(out, group, row, col);
    switch (fault) {
      case Fault::kLeakedNan: {
        const auto next = static_cast<size_t>(operands.group_offset.value + group + 1);
        const bool last = problem.op == plan::Op::kTgmm || row + 1 == operands.host_offsets[next];
        if (last && row_behind_is_nan(group)) {
          store_element(element, out.dtype, 0, std::numeric_limits<double>::quiet_NaN());
        }
        break;
      }
      case Fault::kPaddingWritten:
        if (col + 1 == problem.n && out.row_stride > problem.n) {
          store_element(element_of(out, group, row, problem.n), out.dtype, 0, 0);
        }
        break;
      case Fault::kInt8InFloat:
        if (out.dtype == DType::kI32) {
          store_element(element, out.dtype, 0,
                        static_cast<float>(load_element(element, out.dtype, 0)));
        }
        break;
      case Fault::kNotRepeatable:
        if (calls % 2) flip_last_bit(element);
        break;
      case Fault::kDependsOnRowCount:
        if (problem.m % 2 == 0) flip_last_bit(element);
        break;
      default:
        break;
    }
  });
}

/// bf16 results by cutting an f32 result off.
Status run_cut_off(detail::ContextState& context, const Problem& problem,
                   const plan::Config& config, const Operands& operands,
                   const CallOptions& options) {
  std::vector<float> wide(static_cast<size_t>(problem.m * problem.n));
  Operands changed = operands;
  changed.out = TensorView::contiguous(wide.data(), DType::kF32, {problem.m, problem.n});
  if (Status s = reference().run(context, problem, config, changed, options); !s.ok()) return s;
  for (int64_t row = 0; row < problem.m; ++row) {
    for (int64_t col = 0; col < problem.n; ++col) {
      const auto bits = std::bit_cast<uint32_t>(wide[static_cast<size_t>(row * problem.n + col)]);
      const auto cut = static_cast<uint16_t>(bits >> 16);
      std::memcpy(element_of(operands.out, 0, row, col), &cut, sizeof(cut));
    }
  }
  return {};
}

/// Eight terms at a time, each partial sum rounded to the output's type.
Status run_in_parts(detail::ContextState& context, const Problem& problem,
                    const plan::Config& config, const Operands& operands,
                    const CallOptions& options) {
  for (int64_t done = 0; done < problem.k; done += 8) {
    Problem part = problem;
    part.k = std::min<int64_t>(8, problem.k - done);
    Operands changed = operands;
    changed.lhs.data = element_of(operands.lhs, 0, 0, done);
    changed.rhs.data = problem.transpose_rhs ? element_of(operands.rhs, 0, 0, done)
                                             : element_of(operands.rhs, 0, done, 0);
    if (done > 0) changed.epilogue.beta = 1.0;
    if (Status s = reference().run(context, part, config, changed, options); !s.ok()) return s;
  }
  return {};
}

}  // namespace

Status FaultyBackend::choose(const detail::ContextState& context, const plan::Problem& problem,
                             const char* /*pinned*/, plan::Config* config) const {
  return reference().choose(context, problem, nullptr, config);
}

Status FaultyBackend::run(detail::ContextState& context, const plan::Problem& problem,
                          const plan::Config& config, const plan::Operands& operands,
                          const CallOptions& options) const {
  ++calls_;
  if (fault_ == Fault::kThrows) throw std::bad_alloc();
  if (fault_ == Fault::kRoundsTowardsZero && problem.out.dtype == DType::kBF16) {
    return run_cut_off(context, problem, config, operands, options);
  }
  if (fault_ == Fault::kAccumulatesInOutput) {
    return run_in_parts(context, problem, config, operands, options);
  }
  Changed changed{problem, operands, {}, {}};
  change(fault_, &changed);
  std::vector<std::byte> kept;
  const auto size = static_cast<int64_t>(size_of(operands.out.dtype));
  const auto matrix_bytes = static_cast<size_t>(problem.k * problem.n * size);
  const bool restore = fault_ == Fault::kEmptyGroupUnwritten && without_gaps(operands.out);
  if (restore) {
    const auto* begin = static_cast<const std::byte*>(operands.out.data);
    kept.assign(begin, begin + static_cast<size_t>(problem.num_local_groups) * matrix_bytes);
  }
  if (Status status = reference().run(context, changed.problem, config, changed.operands, options);
      !status.ok()) {
    return status;
  }
  for (int64_t i = 0; i < problem.num_local_groups && restore; ++i) {
    const auto at = static_cast<size_t>(operands.group_offset.value + i);
    if (operands.host_offsets[at] != operands.host_offsets[at + 1]) continue;
    std::memcpy(element_of(operands.out, i, 0, 0),
                kept.data() + static_cast<size_t>(i) * matrix_bytes, matrix_bytes);
  }
  spoil_after(fault_, problem, operands, calls_);
  return {};
}

Status FaultyBackend::run_bias_grad(detail::ContextState& context, const plan::Problem& problem,
                                    const plan::Config& config, const BiasGradArgs& args,
                                    const std::vector<int64_t>& host_offsets) const {
  if (fault_ == Fault::kThrows) throw std::bad_alloc();
  std::vector<int64_t> offsets = host_offsets;
  if (fault_ == Fault::kBiasGradReadsTail) offsets.back() = problem.m;
  std::vector<double> before;
  const TensorView& scale = args.dbias_scale;
  const bool keep = fault_ == Fault::kScaleGradientKeepsTail && scale.given();
  for (int64_t row = offsets.back(); row < problem.m && keep; ++row) {
    before.push_back(load_element(scale.data, scale.dtype, row * scale.strides[0]));
  }
  Status status = reference().run_bias_grad(context, problem, config, args, offsets);
  for (size_t i = 0; i < before.size(); ++i) {
    store_element(scale.data, scale.dtype,
                  (offsets.back() + static_cast<int64_t>(i)) * scale.strides[0], before[i]);
  }
  return status;
}

}  // namespace cadre::contract
