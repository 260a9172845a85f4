// combine_grad: a warp owns a slot: the slot's row of dy and its weight's gradient, so that dout
// and y are read once for both. Rows that no slot owns are zero. A thread owns a slot or a row
// where they are a few columns wide.
#include "cuda/ptx/pdl.cuh"
#include "cuda/rows/columns.cuh"
#include "cuda/rows/launchers.h"
#include "cuda/rows/row_owners.cuh"

namespace cadre::rows {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
/// Widths up to this one have a thread for each row: weights of rows, dots of slots.
constexpr int64_t kNarrow = 4;

struct CombineGradArguments {
  RowView dout, weights, y, dy, dweights;
  RowOwners owners;
  int64_t width;
  bool vectors;  ///< what is given of dout, y and dy has one type and lies in vectors
};

/// Whether `slot` is the first of the token's that names `row`. All lanes get it.
__device__ __forceinline__ bool is_first_slot(const RowOwners& owners, int64_t token, int64_t slot,
                                              int64_t row) {
  for (int64_t first = 0; first < slot; first += 32) {
    const int64_t other = first + threadIdx.x % 32;
    const bool same = other < slot && owners.slot_row.row_at(token, other) == row;
    if (__any_sync(0xffffffffu, same)) return false;
  }
  return true;
}

/// A slot as its warp sees it.
template <typename Compute>
struct Slot {
  int64_t token, row;
  Compute weight;
  bool writes_dy;

  __device__ __forceinline__ Slot(const CombineGradArguments& args, int64_t of_token, int64_t slot)
      : token(of_token),
        row(checked_row(args.owners.slot_row.row_at(token, slot), args.owners.m,
                        args.owners.fault)),
        weight(row >= 0 && args.weights.data != nullptr
                   ? element<Compute>(args.weights, token, slot)
                   : Compute{1}),
        writes_dy(row >= 0 && args.dy.data != nullptr &&
                  args.owners.source_row.row_at(row) == token &&
                  is_first_slot(args.owners, token, slot, row)) {}
};

/// A lane's share of a slot's dot product, in columns ascending by 256; dy is written on the way.
template <typename T, typename Compute>
__device__ __forceinline__ Compute slot_in_vectors(const CombineGradArguments& args,
                                                   const Slot<Compute>& slot) {
  // Runs of a lane that are on their way before the first is looked at: 128 bytes.
  constexpr int kAhead = 8 / static_cast<int>(sizeof(T));
  using Run = RawRun<T>;
  const auto* dout = reinterpret_cast<const Run*>(reinterpret_cast<const T*>(args.dout.data) +
                                                  slot.token * args.dout.row_stride);
  const auto* y = reinterpret_cast<const Run*>(reinterpret_cast<const T*>(args.y.data) +
                                               slot.row * args.y.row_stride);
  auto* dy =
      reinterpret_cast<Run*>(reinterpret_cast<T*>(args.dy.data) + slot.row * args.dy.row_stride);
  const auto runs = static_cast<int>(args.width / kRun);
  Compute sum{};
  for (int first = static_cast<int>(threadIdx.x) % 32; first < runs; first += 32 * kAhead) {
    Run a[kAhead], b[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (first + 32 * i >= runs) break;
      if (args.dweights.data != nullptr) b[i] = y[first + 32 * i];
      a[i] = dout[first + 32 * i];
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (first + 32 * i >= runs) break;
      if (args.dweights.data != nullptr) {
#pragma unroll
        for (int c = 0; c < kRun; ++c) {
          sum = sum_of(sum,
                       product(sm80::widen<Compute>(a[i].at(c)), sm80::widen<Compute>(b[i].at(c))));
        }
      }
      if (!slot.writes_dy) continue;
      Run scaled;
#pragma unroll
      for (int c = 0; c < kRun; ++c) {
        scaled.set(c, sm80::narrow<T>(product(slot.weight, sm80::widen<Compute>(a[i].at(c)))));
      }
      dy[first + 32 * i] = scaled;
    }
  }
  return sum;
}

/// The same for columns of any type and stride.
template <typename T, typename Compute>
__device__ __forceinline__ Compute slot_in_columns(const CombineGradArguments& args,
                                                   const Slot<Compute>& slot) {
  Compute sum{};
  for (int64_t col = threadIdx.x % 32 * kRun; col < args.width; col += 32 * kRun) {
    const int count = static_cast<int>(min(args.width - col, int64_t{kRun}));
    Compute a[kRun];
    if (args.dout.data != nullptr) {
      load_columns<T>(args.dout, slot.token, col, count, a);
    } else {
#pragma unroll
      for (int i = 0; i < kRun; ++i) a[i] = i < count ? Compute{1} : Compute{0};
    }
    if (args.dweights.data != nullptr) {
      Compute b[kRun];
      sm80::with_float_type(
          args.y.dtype, [&]<typename Y>(Y) { load_columns<Y>(args.y, slot.row, col, count, b); });
#pragma unroll
      for (int i = 0; i < kRun; ++i) sum = sum_of(sum, product(a[i], b[i]));
    }
    if (!slot.writes_dy) continue;
#pragma unroll
    for (int i = 0; i < kRun; ++i) a[i] = product(slot.weight, a[i]);
    store_columns(args.dy, slot.row, col, count, a);
  }
  return sum;
}

template <typename Compute>
__device__ __forceinline__ void clear_row(const CombineGradArguments& args, int64_t row) {
  const Compute zeros[kRun] = {};
  for (int64_t col = threadIdx.x % 32 * kRun; col < args.width; col += 32 * kRun) {
    store_columns(args.dy, row, col, static_cast<int>(min(args.width - col, int64_t{kRun})), zeros);
  }
}

/// T is dout's type; f32 or f64 where there is none. Lanes sum their own columns, then in pairs: an
/// order that depends on the width alone.
template <typename T, typename Compute>
__global__ void __launch_bounds__(kThreads, sizeof(Compute) == 8 ? 1 : 2)
    combine_grad_kernel(const __grid_constant__ CombineGradArguments args) {
  ptx::follow_grid();
  const RowOwners& owners = args.owners;
  const int64_t batches = args.dy.data != nullptr ? owners.batches() : 0;
  const int64_t all = batches + owners.t * owners.top_k;
  const int64_t warps = int64_t{gridDim.x} * kWarps;
  for (int64_t i = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32; i < all; i += warps) {
    if (i < batches) {
      owners.each_without_owner(
          i, [&](int64_t row, int64_t /*token*/) { clear_row<Compute>(args, row); });
      continue;
    }
    const int64_t token = (i - batches) / owners.top_k;
    const int64_t number = (i - batches) - token * owners.top_k;
    const Slot<Compute> slot(args, token, number);
    Compute sum{};
    if (slot.row >= 0) {
      if (sizeof(T) <= 4 && args.vectors) {
        sum = slot_in_vectors<T>(args, slot);
      } else {
        sum = slot_in_columns<T>(args, slot);
      }
    }
    if (args.dweights.data == nullptr) continue;
    sum = sum_of_lanes(sum);
    if (threadIdx.x % 32 == 0) set_element(args.dweights, token, number, sum);
  }
}

/// A few columns: a thread for each row and slot.
template <typename Compute>
__global__ void __launch_bounds__(kThreads, 2)
    narrow_grad_kernel(const __grid_constant__ CombineGradArguments args) {
  ptx::follow_grid();
  const RowOwners& owners = args.owners;
  const auto dout = [&](int64_t token, int64_t col) {
    return args.dout.data != nullptr ? element<Compute>(args.dout, token, col) : Compute{1};
  };
  const int64_t rows = args.dy.data != nullptr ? owners.m : 0;
  const int64_t slots = args.dweights.data != nullptr ? owners.t * owners.top_k : 0;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < rows + slots;
       i += int64_t{gridDim.x} * kThreads) {
    if (i >= rows) {
      const int64_t token = (i - rows) / owners.top_k;
      const int64_t slot = (i - rows) % owners.top_k;
      const int64_t row = checked_row(owners.slot_row.row_at(token, slot), owners.m, owners.fault);
      Compute sum{};
      for (int64_t col = 0; row >= 0 && col < args.width; ++col) {
        sum = sum_of(sum, product(dout(token, col), element<Compute>(args.y, row, col)));
      }
      set_element(args.dweights, token, slot, sum);
      continue;
    }
    const int64_t token = checked_row(owners.source_row.row_at(i), owners.t, owners.fault);
    int64_t slot = token < 0 ? owners.top_k : 0;
    while (slot < owners.top_k && owners.slot_row.row_at(token, slot) != i) ++slot;
    const bool found = slot < owners.top_k;
    const Compute weight = found && args.weights.data != nullptr
                               ? element<Compute>(args.weights, token, slot)
                               : Compute{1};
    for (int64_t col = 0; col < args.width; ++col) {
      set_element(args.dy, i, col, found ? product(weight, dout(token, col)) : Compute{0});
    }
  }
}

}  // namespace

Status launch_combine_grad(const cuda::Launch& launch, const plan::Problem& problem,
                           const CombineGradArgs& call) {
  const auto in_same_vectors = [&](const TensorView& view) {
    return !view.given() || (view.dtype == call.dout.dtype && in_vectors(view));
  };
  const CombineGradArguments args{
      .dout = RowView::of(call.dout),
      .weights = RowView::of(call.weights),
      .y = RowView::of(call.y),
      .dy = RowView::of(call.dy),
      .dweights = RowView::of(call.dweights),
      .owners = {.slot_row = IndexView::of(call.slot_row),
                 .source_row =
                     call.source_row.given() ? IndexView::of(call.source_row) : IndexView{},
                 .m = problem.m,
                 .t = call.slot_row.shape[0],
                 .top_k = problem.k,
                 .fault = launch.fault},
      .width = problem.n,
      .vectors = call.dout.given() && problem.n % kRun == 0 && problem.n < int64_t{1} << 31 &&
                 in_same_vectors(call.dout) && in_same_vectors(call.y) && in_same_vectors(call.dy)};
  const bool narrow = problem.n <= kNarrow;
  const int64_t slots = args.owners.t * args.owners.top_k;
  const int64_t rows = call.dy.given() ? problem.m : 0;
  const int64_t units =
      narrow ? rows + (call.dweights.given() ? slots : 0) : (rows + 31) / 32 + slots;
  if (rows == 0 && (slots == 0 || !call.dweights.given())) return {};
  const int64_t of_block = narrow ? kThreads : kWarps;
  const cuda::GridShape shape{.blocks = blocks_for(launch, (units + of_block - 1) / of_block),
                              .threads = kThreads,
                              .after_prologue = true};
  if (narrow) {
    return problem.compute == DType::kF64
               ? cuda::launch_kernel(launch, "sm80/combine_grad", narrow_grad_kernel<double>, shape,
                                     args)
               : cuda::launch_kernel(launch, "sm80/combine_grad", narrow_grad_kernel<float>, shape,
                                     args);
  }
  return with_types(call.dout.dtype, problem.compute, [&]<typename T, typename C>(T, C) {
    return cuda::launch_kernel(launch, "sm80/combine_grad", combine_grad_kernel<T, C>, shape, args);
  });
}

}  // namespace cadre::rows
