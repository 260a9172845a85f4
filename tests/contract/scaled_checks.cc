// Products of FP8 operands: every mode and form of scales, against the product of the dequantised
// operands.
#include "core/text.h"
#include "plan/context_state.h"
#include "tests/contract/contract.h"

namespace cadre::contract {

using verify::COperand;
using verify::Presence;
using verify::Scalars;

const std::vector<DTypes>& scaled_types() {
  static const std::vector<DTypes> types = {{DType::kE4M3, DType::kE4M3, DType::kBF16},
                                            {DType::kE4M3, DType::kE5M2, DType::kF32},
                                            {DType::kE5M2, DType::kE4M3, DType::kF16}};
  return types;
}

namespace scaled {
namespace {

struct Modes {
  ScaleMode lhs, rhs;
  bool e8m0 = false;
};

constexpr Modes kModes[] = {
    {ScaleMode::kTensor, ScaleMode::kTensor},
    {ScaleMode::kRow, ScaleMode::kRow},
    {ScaleMode::kTensor, ScaleMode::kRow},
    {ScaleMode::kRow, ScaleMode::kTensor},
    {ScaleMode::kBlock128, ScaleMode::kBlock128},
    {ScaleMode::kBlock128, ScaleMode::kBlock128, true},
    {ScaleMode::kMx, ScaleMode::kMx},
};

Case with_modes(Case c, const Modes& modes) {
  c.lhs_mode = modes.lhs;
  c.rhs_mode = modes.rhs;
  c.e8m0_scales = modes.e8m0;
  return c;
}

Case basic(verify::Op op, const DTypes& types, const Modes& modes) {
  Case c = op == verify::Op::kGmm    ? gmm::basic(types)
           : op == verify::Op::kTgmm ? tgmm::basic(types)
                                     : grouped_gemm::basic(types);
  return with_modes(c, modes);
}

/// A few rows; enough for several row tiles; a single one.
std::vector<std::vector<int64_t>> several_row_counts() {
  return {{5, 0, 1, 17}, {64, 0, 3}, {1, 2}};
}

/// Where some scale is of all rows, tgmm takes rows as they are and, as every other mode, copies.
std::vector<Case> with_and_without_copies(const Case& c) {
  if (c.lhs_mode != ScaleMode::kTensor && c.rhs_mode != ScaleMode::kTensor) return {c};
  Case copies = c;
  copies.tensor_copies = true;
  return {c, copies};
}

bool is_reference(const Subject& subject) { return subject.context.state().backend == "reference"; }

}  // namespace

Failures gmm_in_every_mode(const Subject& subject, const DTypes& types) {
  std::vector<Case> cases;
  // Less than a block, whole blocks, more than one, and no whole pair.
  constexpr int64_t kDepths[] = {320, 19, 451, 128};
  size_t next = 0;
  for (const Modes& modes : kModes) {
    for (const bool transposed : {false, true}) {
      Case c = basic(verify::Op::kGmm, types, modes);
      c.transpose_rhs = transposed;
      for (const std::vector<int64_t>& sizes : several_row_counts()) {
        const size_t index = next++;
        c.k = kDepths[(index + index / 4) % std::size(kDepths)];
        c.n = c.k == 128 ? 96 : 70;
        c.seed = index;
        c.sizes_on_device = index % 3 == 0;
        cases.push_back(with_sizes(c, sizes, 2));
      }
    }
  }
  // Another block of columns.
  Case wide = basic(verify::Op::kGmm, types, kModes[4]);
  wide.k = 130;
  wide.n = 261;
  cases.push_back(wide);
  return check_all(subject, cases);
}

Failures gmm_with_everything(const Subject& subject, const DTypes& types) {
  std::vector<Case> cases;
  for (const Modes& modes : kModes) {
    Case c = basic(verify::Op::kGmm, types, modes);
    c.k = 200;
    c.n = 72;
    c.transpose_rhs = true;
    Case options = c;
    options.alpha = options.beta = Scalars::kPerGroup;
    options.c = COperand::kSeparate;
    options.bias = Presence::kTensor;
    options.bias_scale = options.row_scale = true;
    options.sizes_on_device = true;
    cases.push_back(options);
    Case accumulated = with_sizes(c, {5, 60}, 3);
    accumulated.accumulate = true;
    cases.push_back(accumulated);
    Case local = c;
    local.num_local_groups = 3;
    local.group_offset = 2;
    local.one_scale_for_all = true;
    cases.push_back(local);
    Case by_index = with_sizes(c, {5, 1, 40}, 3);
    by_index.lhs_rows = 30;
    cases.push_back(by_index);
    for (const int64_t n : {64, 72}) {  // halves of whole panels, and of others
      Case activated = with_sizes(c, {5, 1, 20}, 0);
      activated.n = 2 * n;
      activated.activation = {.kind = ActivationKind::kSwiglu};
      activated.activation.layout =
          modes.e8m0 ? GateLayout::kInterleaved : GateLayout::kConcatenated;
      activated.preactivation = true;
      cases.push_back(activated);
    }
    Case empty = with_sizes(c, {0, 4}, 1);
    empty.k = 0;
    cases.push_back(empty);
  }
  return check_all(subject, cases);
}

/// Scales as DeepGEMM, Transformer Engine, Hugging Face and torch have them, and stranger ones.
Failures free_scale_strides(const Subject& subject, const DTypes& types) {
  std::vector<Case> cases;
  for (const Modes& modes : kModes) {
    Case c = basic(verify::Op::kGmm, types, modes);
    c.k = 150;
    c.n = 140;
    for (const bool transposed : {false, true}) {
      c.transpose_rhs = transposed;
      // Rows of A contiguous, without padding or up to a multiple; [blocks of n, blocks of k].
      Case columns = c;
      columns.lhs_scales_layout = {
          .form = Placement::kRows, .row_padding = 1, .column_major = true};
      columns.rhs_scales_layout = {.row_padding = 1};
      cases.push_back(columns);
      Case reversed = c;
      reversed.lhs_scales_layout = {
          .form = Placement::kRows, .row_padding = 3, .col_stride = 2, .reverse_rows = true};
      reversed.rhs_scales_layout = {.col_stride = 3, .reverse_cols = true, .gap_elements = 5};
      cases.push_back(reversed);
      Case list = c;
      list.rhs_layout.form = list.rhs_scales_layout.form = Placement::kList;
      list.sizes_on_device = transposed;
      cases.push_back(list);
    }
  }
  return check_all(subject, cases);
}

Failures any_strides(const Subject& subject, const DTypes& types) {
  std::vector<Case> cases;
  size_t next = 0;
  for (const Layout& layout : odd_layouts(Placement::kStacked)) {
    for (const bool transposed : {false, true}) {
      Case c = basic(verify::Op::kGmm, types, kModes[next++ % std::size(kModes)]);
      c.k = 140;
      c.n = 37;
      c.transpose_rhs = transposed;
      c.rhs_layout = layout;
      c.lhs_layout = c.out_layout = layout;
      c.lhs_layout.form = c.out_layout.form = Placement::kRows;
      cases.push_back(c);
      cases.push_back(with_sizes(c, {50, 2}, 1));
    }
  }
  return check_all(subject, cases);
}

Failures tgmm_in_every_mode(const Subject& subject, const DTypes& types) {
  std::vector<Case> cases;
  for (const Modes& modes : kModes) {
    for (const Case& c : with_and_without_copies(basic(verify::Op::kTgmm, types, modes))) {
      cases.push_back(c);
      Case large = with_sizes(c, {0, 1, 127, 128, 129, 40}, 5);
      large.k = 40;
      large.n = 35;
      cases.push_back(large);
      Case local = large;
      local.num_local_groups = 3;
      local.group_offset = 2;
      local.accumulate = true;
      local.alpha = Scalars::kPerGroup;
      local.lhs_scales_layout = {.form = Placement::kRows, .row_padding = 3, .column_major = true};
      local.rhs_scales_layout = {.form = Placement::kRows, .col_stride = 2};
      local.lhs_layout.row_padding = 7;
      local.sizes_on_device = true;
      cases.push_back(local);
      // Rows by index, beside other such or beside a column-wise copy, which has none.
      Case by_index = large;
      if (!c.columns(c.lhs_mode)) by_index.lhs_rows = 30;
      if (!c.columns(c.rhs_mode)) by_index.rhs_rows = 500;
      if (by_index.lhs_rows >= 0 || by_index.rhs_rows >= 0) cases.push_back(by_index);
    }
  }
  return check_all(subject, cases);
}

Failures grouped_gemm_in_every_mode(const Subject& subject, const DTypes& types) {
  std::vector<Case> cases;
  for (const Modes& modes : kModes) {
    for (int form = 0; form < 4; ++form) {
      Case c = basic(verify::Op::kGroupedGemm, types, modes);
      c.transpose_lhs = form % 2 != 0;
      c.transpose_rhs = form / 2 != 0;
      c.lhs_square_blocks = form == 3;
      c.dims = {{9, 140, 24}, {20, 33, 130}, {0, 5, 6}, {7, 260, 31}, {3, 0, 4}};
      c.alpha = Scalars::kPerGroup;
      c.accumulate = form == 2;
      c.sizes_on_device = form == 1;
      if (form == 1) {
        c.lhs_scales_layout.form = c.rhs_scales_layout.form = Placement::kList;
      }
      cases.push_back(c);
    }
  }
  return check_all(subject, cases);
}

/// DeepSeek's and gpt-oss's odd dims, and groups with a row more or less than a block. Results of
/// 768 x 2880 for each group would take seconds to compare: there one of the two is enough.
Failures groups_around_a_block(const Subject& subject, const DTypes& types) {
  const std::vector<int64_t> sizes = {0, 1, 127, 128, 129};
  std::vector<Case> cases;
  const bool small = is_reference(subject) || has_given_isa(subject);
  const int64_t deep = small ? 135 : 2880, wide = small ? 33 : 768;
  for (const Modes& modes : {kModes[0], kModes[1], kModes[4], kModes[6]}) {
    Case forward = basic(verify::Op::kGmm, types, modes);
    forward.k = deep;
    forward.n = wide;
    forward.transpose_rhs = true;
    cases.push_back(with_sizes(forward, sizes, 3));
    for (const auto& [k, n] : {std::pair<int64_t, int64_t>{40, wide}, {deep, 24}}) {
      Case gradient = with_sizes(basic(verify::Op::kTgmm, types, modes), sizes, 3);
      gradient.k = k;
      gradient.n = n;
      gradient.tensor_copies = true;
      cases.push_back(gradient);
    }
    for (const auto& [k, n] : {std::pair<int64_t, int64_t>{48, wide}, {deep, 24}}) {
      Case grouped = basic(verify::Op::kGroupedGemm, types, modes);
      grouped.transpose_rhs = true;
      grouped.dims.clear();
      for (const int64_t m : sizes) grouped.dims.push_back({m, k, n});
      cases.push_back(grouped);
    }
  }
  return check_all(subject, cases);
}

Failures nan_stays_where_it_is(const Subject& subject, const DTypes& types) {
  std::vector<Case> cases;
  for (const Modes& modes : kModes) {
    Case in_data = basic(verify::Op::kGmm, types, modes);
    in_data.k = 150;
    in_data.nan_group = 3;
    cases.push_back(in_data);
    Case in_scales = in_data;
    in_scales.nan_group = -1;
    in_scales.nan_scales = true;
    in_scales.n = 140;
    cases.push_back(in_scales);
    Case of_columns = with_sizes(basic(verify::Op::kTgmm, types, modes), {20, 150, 3}, 2);
    of_columns.nan_scales = true;
    of_columns.k = 70;
    cases.push_back(of_columns);
    Case in_copies = of_columns;
    in_copies.tensor_copies = true;
    in_copies.nan_scales = false;
    in_copies.nan_group = 1;
    cases.push_back(in_copies);
  }
  return check_all(subject, cases);
}

Failures scales_whose_product_leaves_f32(const Subject& subject, const DTypes& types) {
  std::vector<Case> cases;
  for (const Modes& modes : kModes) {
    // Products of 2^128 and more, whose sums are below 2^-7, and of 2^-126 and less.
    for (const int exponent : {66, -65}) {
      Case c = basic(verify::Op::kGmm, types, modes);
      c.scale_exponent = exponent;
      c.transpose_rhs = true;
      c.k = 140;
      cases.push_back(c);
      c.k = 1;  // many sums are 0, and stay so
      cases.push_back(c);
      Case gradient = with_sizes(basic(verify::Op::kTgmm, types, modes), {1, 0, 140, 3}, 2);
      gradient.scale_exponent = exponent;
      gradient.tensor_copies = true;
      cases.push_back(gradient);
      Case grouped = basic(verify::Op::kGroupedGemm, types, modes);
      grouped.scale_exponent = exponent;
      grouped.dims = {{9, 140, 24}, {20, 33, 130}, {7, 1, 31}};
      cases.push_back(grouped);
    }
  }
  return check_all(subject, cases);
}

Failures rows_are_batch_invariant(const Subject& subject, const DTypes& types) {
  const int64_t k = is_reference(subject) ? 140 : 900, n = 96, m = 120;
  Failures failures;
  for (const Modes& modes : kModes) {
    for (const bool transposed : {false, true}) {
      Case c = with_sizes(basic(verify::Op::kGmm, types, modes), {m}, 0);
      c.k = k;
      c.n = n;
      c.transpose_rhs = transposed;
      if (subject.fit && !subject.fit(&c)) continue;
      verify::CaseData data = make_data(c, subject.memory);
      data.upload();
      const auto run = [&](int64_t first, int64_t rows) -> Status {
        GmmArgs args;
        ScaledTensor lhs(data.lhs->matrix_view(), data.lhs_scales->scales());
        GroupedTensor out = data.out->tensor();
        lhs.data = static_cast<char*>(lhs.data) + first * lhs.strides[0];
        lhs.shape[0] = rows;
        if (modes.lhs != ScaleMode::kTensor) {
          TensorView& scales = lhs.scales.values;
          const auto size = static_cast<int64_t>(size_of(scales.dtype));
          scales.data = static_cast<char*>(scales.data) + first * scales.strides[0] * size;
          scales.shape[0] = rows;
        }
        out.data = static_cast<char*>(out.data) +
                   first * out.row_stride * static_cast<int64_t>(size_of(out.dtype));
        out.rows = rows;
        args.lhs = lhs;
        args.rhs = {data.rhs->tensor(), data.rhs_scales->scales()};
        args.out = out;
        args.transpose_rhs = transposed;
        args.group_sizes = GroupSizes(&rows, DType::kI64, 1);
        if (!subject.kernel.empty()) args.options.config = subject.kernel.c_str();
        if (Status status = cadre::gmm(subject.context, args); !status.ok()) return status;
        return subject.memory.finish(subject.context);
      };
      Status status = run(0, m);
      data.download();
      const std::vector<std::byte> together = data.out->all_bytes_after();
      data.upload();
      int64_t first = 0;
      for (const int64_t rows : {1, 2, 7, 9, 16, 31, 54}) {
        if (status.ok()) status = run(first, rows);
        first += rows;
      }
      data.download();
      if (!status.ok()) {
        failures.push_back(text(to_string(c), ": ", status.message()));
      } else if (data.out->all_bytes_after() != together) {
        failures.push_back(text(to_string(c), ": rows alone have other bits"));
      }
    }
  }
  return failures;
}

}  // namespace scaled
}  // namespace cadre::contract
