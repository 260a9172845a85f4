// combine: a thread owns eight columns of a token and adds its rows slot by slot. combine_grad: a
// warp owns a row of dy or a slot of dweights, a thread where they are a few columns wide.
#include "cuda/rows/columns.cuh"
#include "cuda/rows/indices.cuh"
#include "cuda/rows/launchers.h"

namespace cadre::rows {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
/// Rows of a token that are loaded before the first is added.
constexpr int kSlotsAhead = 4;
/// Widths up to this one have a thread for each row of combine_grad: weights of rows, dots of
/// slots.
constexpr int64_t kNarrow = 4;

struct CombineArguments {
  RowView y, weights, shared, residual, out;
  IndexView slot_row;
  int64_t m, t, top_k, width;
  int64_t runs_of_row;
  int32_t* fault;
};

template <typename T, typename Compute>
__global__ void __launch_bounds__(kThreads)
    combine_kernel(const __grid_constant__ CombineArguments args) {
  const int64_t runs = args.t * args.runs_of_row;
  for (int64_t run = int64_t{blockIdx.x} * kThreads + threadIdx.x; run < runs;
       run += int64_t{gridDim.x} * kThreads) {
    const int64_t token = run / args.runs_of_row;
    const int64_t col = run % args.runs_of_row * kRun;
    const int count = static_cast<int>(min(args.width - col, int64_t{kRun}));
    Compute sums[kRun] = {};
    for (int64_t first = 0; first < args.top_k; first += kSlotsAhead) {
      int64_t rows[kSlotsAhead];
      Compute weights[kSlotsAhead];
#pragma unroll
      for (int i = 0; i < kSlotsAhead; ++i) {
        const int64_t slot = first + i;
        rows[i] =
            slot < args.top_k ? checked_row(args.slot_row.at(token, slot), args.m, args.fault) : -1;
        weights[i] = args.weights.data != nullptr && rows[i] >= 0
                         ? element<Compute>(args.weights, token, slot)
                         : Compute{1};
      }
#pragma unroll
      for (int i = 0; i < kSlotsAhead; ++i) {
        if (rows[i] < 0) continue;
        Compute values[kRun];
        load_columns<T>(args.y, rows[i], col, count, values);
#pragma unroll
        for (int c = 0; c < kRun; ++c) sums[c] = sum_of(sums[c], product(weights[i], values[c]));
      }
    }
    add_columns(args.shared, token, col, count, sums);
    add_columns(args.residual, token, col, count, sums);
    store_columns(args.out, token, col, count, sums);
  }
}

struct CombineGradArguments {
  RowView dout, weights, y, dy, dweights;
  IndexView slot_row, source_row;
  int64_t m, t, top_k, width;
  int32_t* fault;
};

/// The slot of `token` that names `row`; -1 if none does. All lanes get it.
__device__ __forceinline__ int64_t slot_of_row(const CombineGradArguments& args, int64_t token,
                                               int64_t row) {
  for (int64_t first = 0; first < args.top_k; first += 32) {
    const int64_t slot = first + threadIdx.x % 32;
    const bool found = slot < args.top_k && args.slot_row.at(token, slot) == row;
    const unsigned lanes = __ballot_sync(0xffffffffu, found);
    if (lanes != 0) return first + __ffs(static_cast<int>(lanes)) - 1;
  }
  return -1;
}

/// Columns of dout, or ones where none is given.
template <typename T, typename Compute>
__device__ __forceinline__ void load_dout(const CombineGradArguments& args, int64_t token,
                                          int64_t col, int count, Compute (&values)[kRun]) {
  if (args.dout.data != nullptr) return load_columns<T>(args.dout, token, col, count, values);
#pragma unroll
  for (int i = 0; i < kRun; ++i) values[i] = i < count ? Compute{1} : Compute{0};
}

template <typename T, typename Compute>
__device__ void write_dy(const CombineGradArguments& args, int64_t row) {
  const int64_t token = checked_row(args.source_row.at(row), args.t, args.fault);
  const int64_t slot = token < 0 ? -1 : slot_of_row(args, token, row);
  const Compute weight = slot >= 0 && args.weights.data != nullptr
                             ? element<Compute>(args.weights, token, slot)
                             : Compute{1};
#pragma unroll 4
  for (int64_t col = threadIdx.x % 32 * kRun; col < args.width; col += 32 * kRun) {
    const int count = static_cast<int>(min(args.width - col, int64_t{kRun}));
    Compute values[kRun] = {};
    if (slot >= 0) {
      load_dout<T>(args, token, col, count, values);
#pragma unroll
      for (int i = 0; i < kRun; ++i) values[i] = product(weight, values[i]);
    }
    store_columns(args.dy, row, col, count, values);
  }
}

/// Lanes sum their own columns, then in pairs: an order that depends on the width alone.
template <typename T, typename Compute>
__device__ void write_dweight(const CombineGradArguments& args, int64_t token, int64_t slot) {
  const int64_t row = checked_row(args.slot_row.at(token, slot), args.m, args.fault);
  Compute sum{};
  for (int64_t col = threadIdx.x % 32 * kRun; row >= 0 && col < args.width; col += 32 * kRun) {
    const int count = static_cast<int>(min(args.width - col, int64_t{kRun}));
    Compute a[kRun];
    Compute b[kRun];
    load_dout<T>(args, token, col, count, a);
    sm80::with_float_type(args.y.dtype,
                          [&]<typename Y>(Y) { load_columns<Y>(args.y, row, col, count, b); });
#pragma unroll
    for (int i = 0; i < kRun; ++i) sum = sum_of(sum, product(a[i], b[i]));
  }
  sum = sum_of_lanes(sum);
  if (threadIdx.x % 32 != 0) return;
  set_element(args.dweights, token, slot, sum);
}

/// T is dout's type; f32 or f64 where there is none.
template <typename T, typename Compute>
__global__ void __launch_bounds__(kThreads)
    combine_grad_kernel(const __grid_constant__ CombineGradArguments args) {
  const int64_t rows = args.dy.data != nullptr ? args.m : 0;
  const int64_t slots = args.dweights.data != nullptr ? args.t * args.top_k : 0;
  const int64_t warps = int64_t{gridDim.x} * (kThreads / 32);
  for (int64_t i = int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32; i < rows + slots;
       i += warps) {
    if (i < rows) {
      write_dy<T, Compute>(args, i);
    } else {
      write_dweight<T, Compute>(args, (i - rows) / args.top_k, (i - rows) % args.top_k);
    }
  }
}

/// The same for a few columns: a thread for each row and slot.
template <typename Compute>
__global__ void __launch_bounds__(kThreads, 2)
    narrow_grad_kernel(const __grid_constant__ CombineGradArguments args) {
  const auto dout = [&](int64_t token, int64_t col) {
    return args.dout.data != nullptr ? element<Compute>(args.dout, token, col) : Compute{1};
  };
  const int64_t rows = args.dy.data != nullptr ? args.m : 0;
  const int64_t slots = args.dweights.data != nullptr ? args.t * args.top_k : 0;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < rows + slots;
       i += int64_t{gridDim.x} * kThreads) {
    if (i >= rows) {
      const int64_t token = (i - rows) / args.top_k;
      const int64_t slot = (i - rows) % args.top_k;
      const int64_t row = checked_row(args.slot_row.at(token, slot), args.m, args.fault);
      Compute sum{};
      for (int64_t col = 0; row >= 0 && col < args.width; ++col) {
        sum = sum_of(sum, product(dout(token, col), element<Compute>(args.y, row, col)));
      }
      set_element(args.dweights, token, slot, sum);
      continue;
    }
    const int64_t token = checked_row(args.source_row.at(i), args.t, args.fault);
    int64_t slot = token < 0 ? args.top_k : 0;
    while (slot < args.top_k && args.slot_row.at(token, slot) != i) ++slot;
    const bool found = slot < args.top_k;
    const Compute weight = found && args.weights.data != nullptr
                               ? element<Compute>(args.weights, token, slot)
                               : Compute{1};
    for (int64_t col = 0; col < args.width; ++col) {
      set_element(args.dy, i, col, found ? product(weight, dout(token, col)) : Compute{0});
    }
  }
}

}  // namespace

Status launch_combine(const cuda::Launch& launch, const plan::Problem& problem,
                      const CombineArgs& call) {
  const int64_t tokens = call.out.shape[0];
  const CombineArguments args{.y = RowView::of(call.y),
                              .weights = RowView::of(call.weights),
                              .shared = RowView::of(call.shared),
                              .residual = RowView::of(call.residual),
                              .out = RowView::of(call.out),
                              .slot_row = IndexView::of(call.slot_row),
                              .m = problem.m,
                              .t = tokens,
                              .top_k = problem.k,
                              .width = problem.n,
                              .runs_of_row = (problem.n + kRun - 1) / kRun,
                              .fault = launch.fault};
  const int64_t runs = tokens * args.runs_of_row;
  if (runs == 0) return {};
  return with_types(call.y.dtype, problem.compute, [&]<typename T, typename C>(T, C) {
    return cuda::launch_kernel(
        launch, "sm80/combine", combine_kernel<T, C>,
        {.blocks = blocks_for(launch, (runs + kThreads - 1) / kThreads), .threads = kThreads},
        args);
  });
}

Status launch_combine_grad(const cuda::Launch& launch, const plan::Problem& problem,
                           const CombineGradArgs& call) {
  const CombineGradArguments args{
      .dout = RowView::of(call.dout),
      .weights = RowView::of(call.weights),
      .y = RowView::of(call.y),
      .dy = RowView::of(call.dy),
      .dweights = RowView::of(call.dweights),
      .slot_row = IndexView::of(call.slot_row),
      .source_row = call.source_row.given() ? IndexView::of(call.source_row) : IndexView{},
      .m = problem.m,
      .t = call.slot_row.shape[0],
      .top_k = problem.k,
      .width = problem.n,
      .fault = launch.fault};
  const int64_t units =
      (call.dy.given() ? args.m : 0) + (call.dweights.given() ? args.t * args.top_k : 0);
  if (units == 0) return {};
  if (problem.n <= kNarrow) {
    const cuda::GridShape shape{.blocks = blocks_for(launch, (units + kThreads - 1) / kThreads),
                                .threads = kThreads};
    return problem.compute == DType::kF64
               ? cuda::launch_kernel(launch, "sm80/combine_grad", narrow_grad_kernel<double>, shape,
                                     args)
               : cuda::launch_kernel(launch, "sm80/combine_grad", narrow_grad_kernel<float>, shape,
                                     args);
  }
  return with_types(call.dout.dtype, problem.compute, [&]<typename T, typename C>(T, C) {
    return cuda::launch_kernel(
        launch, "sm80/combine_grad", combine_grad_kernel<T, C>,
        {.blocks = blocks_for(launch, (units + kWarps - 1) / kWarps), .threads = kThreads}, args);
  });
}

}  // namespace cadre::rows
