// The row ops on a CPU: rows are shared out to threads, the kernels do the arithmetic. A row is one
// thread's, so nothing depends on their number.
#include "cpu/rows.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "core/text.h"
#include "cpu/expert_choice.h"
#include "cpu/quantize.h"
#include "cpu/row_activation.h"
#include "cpu/row_indices.h"
#include "cpu/row_threads.h"

namespace cadre::cpu {
namespace {

/// An exponential, and a look at each score in every round of the choice.
constexpr int64_t kWorkOfLogit = 16;
/// An exponential and a division.
constexpr int64_t kWorkOfActivation = 4;

MatrixRef row_of(const TensorView& view, int64_t row) {
  return {address_at(view, row, 0), view.dtype, 0, view.strides[1]};
}

/// A counting sort: sizes, then their running sums, then every slot to the next row of its expert.
void route(const RouteArgs& args) {
  const int64_t tokens = args.expert_ids.shape[0];
  const int64_t top_k = args.expert_ids.shape[1];
  const int64_t num_experts = args.group_sizes.shape[0];
  std::vector<int64_t> next(static_cast<size_t>(num_experts), 0);
  const auto expert_of = [&](int64_t t, int64_t j) {
    const int64_t expert = index_at(args.expert_ids, t, j);
    return expert >= 0 && expert < num_experts ? expert : -1;
  };
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t j = 0; j < top_k; ++j) {
      if (const int64_t expert = expert_of(t, j); expert >= 0) ++next[static_cast<size_t>(expert)];
    }
  }
  int64_t rows = 0;
  for (int64_t expert = 0; expert < num_experts; ++expert) {
    int64_t& first = next[static_cast<size_t>(expert)];
    set_index(args.group_sizes, expert * args.group_sizes.strides[0], first);
    rows += std::exchange(first, rows);
  }
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t j = 0; j < top_k; ++j) {
      const int64_t expert = expert_of(t, j);
      const int64_t row = expert < 0 ? -1 : next[static_cast<size_t>(expert)]++;
      set_index(args.slot_row, t * args.slot_row.strides[0] + j * args.slot_row.strides[1], row);
      if (row >= 0) set_index(args.source_row, row * args.source_row.strides[0], t);
    }
  }
  for (int64_t row = rows; row < tokens * top_k; ++row) {
    set_index(args.source_row, row * args.source_row.strides[0], -1);
  }
}

void permute(const PermuteArgs& args, RowThreads& threads) {
  const int64_t width = args.out.shape[1];
  const size_t size = size_of(args.x.dtype);
  const bool contiguous = args.x.strides[1] == 1 && args.out.strides[1] == 1;
  threads.each(args.out.shape[0], width, [&](int64_t row) {
    const int64_t from = index_at(args.source_row, row);
    const int64_t copies = contiguous ? 1 : width;
    const size_t bytes = contiguous ? static_cast<size_t>(width) * size : size;
    for (int64_t i = 0; i < copies; ++i) {
      char* to = address_at(args.out, row, i);
      if (from < 0) {
        std::memset(to, 0, bytes);
      } else {
        std::memcpy(to, address_at(args.x, from, i), bytes);
      }
    }
  });
}

void combine(const CombineArgs& args, const RowKernel& kernel, RowThreads& threads, bool wide) {
  const int64_t width = args.out.shape[1];
  const int64_t top_k = args.slot_row.shape[1];
  threads.each(args.out.shape[0], width * (top_k + 1), [&](int64_t t) {
    std::array<MatrixRef, 2> addends;
    int64_t num_addends = 0;
    for (const TensorView* view : {&args.shared, &args.residual}) {
      if (view->given()) addends[static_cast<size_t>(num_addends++)] = row_of(*view, t);
    }
    thread_local std::vector<MatrixRef> rows;
    thread_local std::vector<double> weights;
    rows.clear();
    weights.clear();
    for (int64_t j = 0; j < top_k; ++j) {
      const int64_t row = index_at(args.slot_row, t, j);
      if (row < 0) continue;
      rows.push_back(row_of(args.y, row));
      weights.push_back(args.weights.given() ? value_at(args.weights, t, j) : 1.0);
    }
    kernel.weighted_sum({.rows = rows.data(),
                         .weights = weights.data(),
                         .count = static_cast<int64_t>(rows.size()),
                         .addends = addends.data(),
                         .num_addends = num_addends,
                         .out = row_of(args.out, t),
                         .width = width},
                        wide);
  });
}

void combine_grad(const CombineGradArgs& args, const RowKernel& kernel, RowThreads& threads,
                  bool wide) {
  const TensorView dout = dout_or_ones(args);
  const int64_t width = dout.shape[1];
  if (args.dy.given()) {
    threads.each(args.dy.shape[0], width, [&](int64_t row) {
      const int64_t token = index_at(args.source_row, row);
      const int64_t slot = token < 0 ? -1 : slot_of_row(args.slot_row, token, row);
      const MatrixRef from = slot < 0 ? MatrixRef{} : row_of(dout, token);
      const double weight =
          slot >= 0 && args.weights.given() ? value_at(args.weights, token, slot) : 1.0;
      kernel.weighted_sum({.rows = &from,
                           .weights = &weight,
                           .count = slot < 0 ? 0 : 1,
                           .addends = nullptr,
                           .num_addends = 0,
                           .out = row_of(args.dy, row),
                           .width = width},
                          wide);
    });
  }
  if (args.dweights.given()) {
    const int64_t top_k = args.slot_row.shape[1];
    threads.each(dout.shape[0], width * top_k, [&](int64_t t) {
      for (int64_t j = 0; j < top_k; ++j) {
        const int64_t row = index_at(args.slot_row, t, j);
        const double sum =
            row < 0 ? 0.0 : kernel.dot(row_of(dout, t), row_of(args.y, row), width, wide);
        set_value(args.dweights, t, j, sum);
      }
    });
  }
}

void activate(const ActivateArgs& args, const RowKernel& kernel, RowThreads& threads, bool wide) {
  const int64_t width = args.out.shape[1];
  const RowActivation activation = row_activation(args.activation, width);
  threads.each(args.out.shape[0], width * kWorkOfActivation, [&](int64_t row) {
    kernel.activate({activation, row_of(args.preact, row), row_of(args.out, row)}, wide);
  });
}

void activate_grad(const ActivateGradArgs& args, const RowKernel& kernel, RowThreads& threads,
                   bool wide) {
  const int64_t width = args.grad.shape[1];
  const RowActivation activation = row_activation(args.activation, width);
  const auto given_row = [](const TensorView& view, int64_t row) {
    return view.given() ? row_of(view, row) : MatrixRef{};
  };
  threads.each(args.grad.shape[0], width * 2 * kWorkOfActivation, [&](int64_t row) {
    const double dot = kernel.activate_grad(
        {.activation = activation,
         .preact = row_of(args.preact, row),
         .grad = row_of(args.grad, row),
         .scale = args.row_scale.given() ? number_at(args.row_scale, row) : 1.0,
         .d_preact = given_row(args.d_preact, row),
         .activated = given_row(args.activated, row)},
        wide);
    if (args.row_dot.given()) set_number(args.row_dot, row, dot);
  });
}

}  // namespace

const RowKernel& find_row_kernel([[maybe_unused]] Isa isa) {
#if defined(CADRE_HAVE_AVX512)
  if (isa >= Isa::kAvx512) return kRowsAvx512;
#endif
#if defined(CADRE_HAVE_AVX2)
  if (isa >= Isa::kAvx2) return kRowsAvx2;
#endif
  return kRowsScalar;
}

Status run_rows(const plan::Problem& problem, const plan::RowCall& call, const RowKernel& kernel,
                int num_threads) {
  RowThreads threads(num_threads);
  const bool wide = problem.compute == DType::kF64;
  std::visit(
      plan::EachOf{
          [](const RouteArgs* args) { route(*args); },
          [&](const PermuteArgs* args) { permute(*args, threads); },
          [&](const CombineArgs* args) { combine(*args, kernel, threads, wide); },
          [&](const CombineGradArgs* args) { combine_grad(*args, kernel, threads, wide); },
          [&](const SelectExpertsArgs* args) {
            threads.each(problem.m, problem.n * kWorkOfLogit, [&](int64_t t) {
              wide ? select_experts_of<double>(*args, t) : select_experts_of<float>(*args, t);
            });
          },
          [&](const SelectExpertsGradArgs* args) {
            threads.each(problem.m, problem.n * kWorkOfLogit, [&](int64_t t) {
              wide ? select_experts_grad_of<double>(*args, t)
                   : select_experts_grad_of<float>(*args, t);
            });
          },
          [&](const ActivateArgs* args) { activate(*args, kernel, threads, wide); },
          [&](const ActivateGradArgs* args) { activate_grad(*args, kernel, threads, wide); },
          [&](const QuantizeArgs* args) { quantize(problem, *args, kernel.stripe, threads); },
          [&](const DequantizeArgs* args) { dequantize(problem, *args, kernel.stripe, threads); },
          [&](const AmaxArgs* args) { amax(problem, *args, kernel.stripe, threads); }},
      call);
  return threads.out_of_memory()
             ? Status::internal(text(plan::name_of(problem.op), ": out of host memory"))
             : Status();
}

}  // namespace cadre::cpu
