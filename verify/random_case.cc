// Draws a Case of any op, dtypes, layouts and options from a seed.
#include <algorithm>
#include <numeric>

#include "verify/case.h"
#include "verify/random.h"

namespace cadre::verify {
namespace {

/// Keeps a case's multiplications near this, so that thousands of them take seconds; a few cases
/// are large enough for several blocks of a kernel.
constexpr int64_t kWorkLimit = 60000;
constexpr int64_t kLargeWorkLimit = 1500000;
constexpr int64_t kLargeMatrix = 200000;  ///< elements of one group's weights

int64_t random_dim(Random& random, bool large) {
  if (random.chance(0.02)) return 0;
  if (large && random.chance(0.4)) return random.between(130, 1100);
  if (random.chance(0.2)) return random.pick<int64_t>({63, 64, 65, 127, 128, 129});
  return random.chance(0.5) ? random.between(1, 9) : random.between(10, 40);
}

DType random_float(Random& random) {
  return random.pick({DType::kF32, DType::kBF16, DType::kF16, DType::kF64});
}

Layout random_layout(Random& random, Placement form) {
  Layout layout{.form = form};
  if (random.chance(0.4)) return layout;
  if (form == Placement::kPacked) {
    layout.explicit_offsets = random.chance(0.5);
    layout.gap_elements = random.between(0, 3);
    layout.offset_elements = random.between(0, 5);
    if (random.chance(0.3)) layout.row_padding = random.between(1, 4);
    return layout;
  }
  if (random.chance(0.5)) layout.row_padding = random.between(1, 9);
  if (random.chance(0.2)) layout.col_stride = random.between(2, 3);
  layout.column_major = random.chance(0.2);
  layout.reverse_rows = random.chance(0.15);
  layout.reverse_cols = random.chance(0.15);
  if (random.chance(0.5)) layout.offset_elements = random.between(1, 7);
  if (random.chance(0.5)) layout.gap_elements = random.between(1, 9);
  return layout;
}

std::vector<int64_t> random_sizes(Random& random, int64_t rows, bool large) {
  const int64_t groups = random.chance(0.03)             ? 0
                         : random.chance(0.06) && !large ? random.between(65, 140)
                                                         : random.between(1, 9);
  std::vector<int64_t> sizes(static_cast<size_t>(groups), 0);
  if (groups == 0) return sizes;
  const auto any = [&] { return static_cast<size_t>(random.between(0, groups - 1)); };
  switch (random.between(0, 4)) {
    case 0:  // everything in one group
      sizes[any()] = rows;
      break;
    case 1:  // one row for some of them
      for (int64_t i = 0; i < std::min(rows, groups); ++i) sizes[static_cast<size_t>(i)] = 1;
      random.shuffle(sizes);
      break;
    case 2:  // all empty
      if (random.chance(0.2)) break;
      [[fallthrough]];
    default: {  // many empty groups, the rest uneven
      const int64_t active = random.between(1, groups);
      std::vector<size_t> chosen;
      for (int64_t i = 0; i < active; ++i) chosen.push_back(any());
      for (int64_t row = 0; row < rows; ++row) {
        ++sizes[chosen[static_cast<size_t>(random.between(0, active - 1))]];
      }
    }
  }
  return sizes;
}

class Generator {
 public:
  explicit Generator(uint64_t seed) : random_(seed), large_(random_.chance(0.02)) {
    case_.seed = seed;
  }

  Case make() {
    const double which = random_.uniform(0, 1);
    case_.op = which < 0.45   ? Op::kGmm
               : which < 0.75 ? Op::kTgmm
               : which < 0.9  ? Op::kGroupedGemm
                              : Op::kBiasGrad;
    choose_dtypes();
    if (case_.op == Op::kGroupedGemm) {
      choose_grouped_dims();
    } else {
      choose_ragged_dims();
    }
    choose_scalars();
    choose_layouts();
    if (case_.op == Op::kGmm) choose_gmm_options();
    if (case_.op == Op::kBiasGrad) choose_bias_grad_options();
    choose_nan_group();
    broadcast_inputs();
    case_.sizes_on_device = random_.chance(0.5);
    if (random_.chance(0.25)) case_.vector_stride = random_.pick<int64_t>({2, 3, -1});
    if (case_.op == Op::kGmm) case_.packed_weights = random_.chance(0.2);
    choose_row_sources();
    return case_;
  }

 private:
  void choose_dtypes() {
    case_.lhs = random_float(random_);
    case_.rhs = random_.chance(0.6) ? case_.lhs : random_float(random_);
    if (case_.op != Op::kBiasGrad) {
      if (random_.chance(0.15)) case_.lhs = DType::kI8;
      if (random_.chance(0.15)) case_.rhs = DType::kI8;
    }
    case_.out = case_.op == Op::kBiasGrad ? random_float(random_)
                                          : default_output_dtype(case_.lhs, case_.rhs);
    if (random_.chance(0.4)) case_.out = random_float(random_);
    case_.c_dtype = case_.out == DType::kI32 ? DType::kI32
                    : random_.chance(0.6)    ? case_.out
                                             : random_float(random_);
    case_.bias_dtype = random_float(random_);
    case_.scale_dtype = random_float(random_);
    if (random_.chance(0.1)) case_.precision = Precision::kTf32;
  }

  void choose_row_sources() {
    if (case_.nan_group >= 0 || (case_.op != Op::kGmm && case_.op != Op::kTgmm)) return;
    if (random_.chance(0.2)) case_.lhs_rows = random_.between(1, 40);
    if (case_.op == Op::kTgmm && random_.chance(0.2)) case_.rhs_rows = random_.between(1, 40);
    case_.rows_dtype = random_.pick({DType::kI32, DType::kI64});
  }

  void choose_ragged_dims() {
    case_.k = case_.op == Op::kBiasGrad ? 0 : random_dim(random_, large_);
    case_.n = random_dim(random_, large_);
    if (large_) case_.n = std::min(case_.n, kLargeMatrix / std::max<int64_t>(1, case_.k));
    const int64_t per_row = std::max<int64_t>(1, std::max<int64_t>(1, case_.k) * case_.n);
    const int64_t most =
        std::clamp<int64_t>((large_ ? kLargeWorkLimit : kWorkLimit) / per_row, 1, 300);
    const int64_t rows = random_.chance(0.03) ? 0 : random_.between(1, most);
    case_.group_sizes = random_sizes(random_, rows, large_);
    const int64_t sum =
        std::accumulate(case_.group_sizes.begin(), case_.group_sizes.end(), int64_t{0});
    case_.m = sum + (random_.chance(0.5) ? random_.between(1, 20) : 0);
    const auto groups = static_cast<int64_t>(case_.group_sizes.size());
    if (random_.chance(0.3)) {
      case_.num_local_groups = random_.between(0, groups);
      case_.group_offset = random_.between(0, groups - case_.num_local_groups);
    }
    choose_sizes_dtype();
    case_.ends = random_.chance(0.3);
    if (case_.op == Op::kGmm) {
      case_.tail = random_.chance(0.3)                     ? Tail::kUntouched
                   : case_.m == sum && random_.chance(0.3) ? Tail::kForbid
                                                           : Tail::kZero;
    }
  }

  /// Any type that holds every size and the group offset.
  void choose_sizes_dtype() {
    int64_t most = case_.group_offset;
    for (int64_t size : case_.group_sizes) most = std::max(most, size);
    const bool one_byte = most <= INT8_MAX;
    case_.sizes_dtype =
        kIndexTypes[static_cast<size_t>(random_.between(one_byte ? 0 : 2, kIndexTypes.size() - 1))];
  }

  void choose_grouped_dims() {
    const int64_t groups = random_.chance(0.05) ? 0 : random_.between(1, 7);
    const auto draw = [&] {
      return std::min<int64_t>(random_dim(random_, large_), large_ ? 130 : 66);
    };
    GemmDims first{draw(), draw(), draw()};
    const bool uniform = random_.chance(0.4);
    for (int64_t i = 0; i < groups; ++i) {
      case_.dims.push_back(uniform ? first : GemmDims{draw(), draw(), draw()});
    }
    case_.transpose_lhs = random_.chance(0.4);
    case_.transpose_rhs = random_.chance(0.4);
  }

  void choose_scalars() {
    const bool integers = case_.out == DType::kI32;
    const auto draw = [&] {
      const double which = random_.uniform(0, 1);
      return which < 0.5    ? Scalars::kDefault
             : which < 0.75 ? Scalars::kUniform
                            : Scalars::kPerGroup;
    };
    case_.accumulate = random_.chance(0.2);
    if (case_.op == Op::kBiasGrad) return;
    if (!integers) case_.alpha = draw();
    if (!case_.accumulate)
      case_.beta = integers && random_.chance(0.5) ? Scalars::kUniform : draw();
    if (integers && case_.beta == Scalars::kPerGroup) case_.beta = Scalars::kDefault;
    const double which = random_.uniform(0, 1);
    case_.c = which < 0.5    ? COperand::kAbsent
              : which < 0.65 ? COperand::kOutput
                             : COperand::kSeparate;
  }

  void choose_layouts() {
    const auto one_of = [&](std::initializer_list<Placement> forms) {
      return random_layout(random_, random_.pick(forms));
    };
    case_.bias_layout = random_layout(random_, Placement::kStacked);
    case_.bias_layout.column_major = false;
    switch (case_.op) {
      case Op::kGmm:
        case_.lhs_layout = one_of({Placement::kRows});
        case_.rhs_layout = one_of({Placement::kStacked, Placement::kStacked, Placement::kList});
        case_.out_layout =
            one_of({Placement::kRows, Placement::kRows, Placement::kRows, Placement::kList});
        case_.c_layout = random_layout(random_, case_.out_layout.form);
        break;
      case Op::kTgmm:
        case_.lhs_layout = one_of({Placement::kRows});
        case_.rhs_layout = one_of({Placement::kRows});
        case_.out_layout = one_of({Placement::kStacked, Placement::kList});
        case_.c_layout = one_of({Placement::kStacked, Placement::kList});
        break;
      case Op::kBiasGrad:
        case_.lhs_layout = one_of({Placement::kRows});
        case_.out_layout = one_of({Placement::kStacked, Placement::kList});
        case_.out_layout.column_major = false;
        break;
      case Op::kGroupedGemm:
        for (Layout* layout :
             {&case_.lhs_layout, &case_.rhs_layout, &case_.out_layout, &case_.c_layout}) {
          *layout = has_one_shape()
                        ? one_of({Placement::kStacked, Placement::kList, Placement::kPacked})
                        : one_of({Placement::kList, Placement::kPacked});
        }
    }
  }

  bool has_one_shape() const {
    return std::all_of(case_.dims.begin(), case_.dims.end(), [&](const GemmDims& d) {
      return d.m == case_.dims[0].m && d.k == case_.dims[0].k && d.n == case_.dims[0].n;
    });
  }

  void choose_gmm_options() {
    case_.transpose_rhs = random_.chance(0.4);
    if (case_.out == DType::kI32) return;
    if (random_.chance(0.35))
      case_.bias = random_.chance(0.7) ? Presence::kTensor : Presence::kList;
    case_.bias_scale = case_.bias != Presence::kAbsent && random_.chance(0.4);
    case_.row_scale = random_.chance(0.25);
  }

  void choose_bias_grad_options() {
    case_.dbias = random_.chance(0.8);
    case_.bias_scale = random_.chance(0.5);
    case_.dbias_scale = random_.chance(0.6);
    if (case_.dbias_scale || random_.chance(0.3)) {
      case_.bias = random_.chance(0.7) ? Presence::kTensor : Presence::kList;
    }
    // Without either the op takes all of group_sizes as local.
    if (!case_.dbias && case_.bias == Presence::kAbsent) {
      case_.num_local_groups = -1;
      case_.group_offset = 0;
    }
    case_.precision = Precision::kDefault;
  }

  void choose_nan_group() {
    const int64_t groups = case_.local_groups();
    if (groups == 0 || case_.lhs == DType::kI8 || !random_.chance(0.15)) return;
    case_.nan_group = random_.between(0, groups - 1);
  }

  /// Some strides of operands that are only read become 0.
  void broadcast_inputs() {
    const bool nan = case_.nan_group >= 0;  // it would be in every group
    std::vector<Layout*> inputs = {&case_.bias_layout};
    if (!nan) inputs.push_back(&case_.lhs_layout);
    if (!nan) inputs.push_back(&case_.rhs_layout);
    if (case_.c == COperand::kSeparate) inputs.push_back(&case_.c_layout);
    for (Layout* layout : inputs) {
      if (!random_.chance(0.1)) continue;
      const int64_t which = random_.between(0, 2);
      layout->broadcast_rows = which == 0;
      layout->broadcast_cols = which == 1;
      layout->broadcast_groups = which == 2 && layout->form == Placement::kStacked;
    }
  }

  Random random_;
  bool large_;
  Case case_;
};

}  // namespace

Case random_case(uint64_t seed) { return Generator(seed).make(); }

}  // namespace cadre::verify
