// combine: a thread owns eight columns of a token and adds its rows slot by slot; rows that lie in
// vectors arrive in shared memory several slots ahead.
#include "cuda/ptx/address.cuh"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/pdl.cuh"
#include "cuda/rows/columns.cuh"
#include "cuda/rows/indices.cuh"
#include "cuda/rows/launchers.h"

namespace cadre::rows {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
/// Rows of a token that are loaded before the first is added.
constexpr int kSlotsAhead = 4;

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
  ptx::follow_grid();
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
        rows[i] = slot < args.top_k
                      ? checked_row(args.slot_row.row_at(token, slot), args.m, args.fault)
                      : -1;
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

/// Rows of a thread that are on their way: 32 KB for a block, 8 rows of 16 bits.
constexpr int kRingBytes = 32 * 1024;
/// Blocks of a multiprocessor: what is on its way there is 128 KB at most, several times what
/// memory needs to answer at full speed.
constexpr int kStreamBlocks = 4;

/// The rows that a warp adds, one after the other: the slots of one token, then those of the next
/// of its tokens. Each lane looks up every 32nd of them, one batch before they are needed.
class SlotStream {
 public:
  __device__ __forceinline__ SlotStream(const CombineArguments& args, int64_t first_token,
                                        int64_t token_step)
      : args_(args), first_token_(first_token), token_step_(token_step) {
    look_up(0);
    take_batch(1);
  }

  /// The row of position `at`, in ascending order; -1: nothing is added. All lanes call these
  /// together.
  __device__ __forceinline__ int64_t row_ahead(uint32_t at) {
    if (at > 0 && at % 32 == 0) take_batch(at / 32 + 1);
    return __shfl_sync(0xffffffffu, row_, at % 32);
  }
  /// Of a position that row_ahead has been asked for not more than 32 positions ago; `ahead`: the
  /// last such position.
  __device__ __forceinline__ bool adds(uint32_t at, uint32_t ahead) const {
    const unsigned lanes = at / 32 == ahead / 32 ? rows_ : old_rows_;
    return (lanes >> at % 32 & 1) != 0;
  }
  __device__ __forceinline__ float weight(uint32_t at, uint32_t ahead) const {
    const float mine = at / 32 == ahead / 32 ? weight_ : old_weight_;
    return __shfl_sync(0xffffffffu, mine, at % 32);
  }

 private:
  __device__ __forceinline__ void look_up(uint32_t batch) {
    const uint32_t at = batch * 32 + threadIdx.x % 32;
    const auto top_k = static_cast<uint32_t>(args_.top_k);
    const int64_t token = first_token_ + at / top_k * token_step_;
    const int64_t slot = at % top_k;
    next_row_ = -1;
    next_weight_ = 1.0f;
    if (token >= args_.t) return;
    next_row_ = args_.slot_row.row_at(token, slot);
    if (args_.weights.data != nullptr && next_row_ != -1) {
      next_weight_ = element<float>(args_.weights, token, slot);
    }
  }
  __device__ __forceinline__ void take_batch(uint32_t next) {
    old_rows_ = rows_;
    old_weight_ = weight_;
    row_ = checked_row(next_row_, args_.m, args_.fault);
    rows_ = __ballot_sync(0xffffffffu, row_ >= 0);
    weight_ = next_weight_;
    look_up(next);
  }

  const CombineArguments& args_;
  int64_t first_token_, token_step_;
  int64_t next_row_ = -1, row_ = -1;
  unsigned rows_ = 0, old_rows_ = 0;  // lanes that have one
  float next_weight_ = 1.0f, weight_ = 1.0f, old_weight_ = 1.0f;
};

/// Rows of y in vectors. A warp owns 256 columns of every token_step-th token. A
/// lane copies its own columns and reads them back itself: nobody waits for anybody.
template <typename T>
__global__ void __launch_bounds__(kThreads, kStreamBlocks)
    combine_stream_kernel(const __grid_constant__ CombineArguments args) {
  constexpr int kBytes = kRun * static_cast<int>(sizeof(T));  // of a row
  constexpr int kVectors = kBytes / 16;
  constexpr uint32_t kAhead = kRingBytes / kThreads / kBytes;
  __shared__ __align__(16) unsigned char ring[kAhead][kVectors][kThreads][16];
  ptx::follow_grid();
  const int64_t row_warps = (args.runs_of_row + 31) / 32;
  const int64_t warp = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const int64_t token_step = int64_t{gridDim.x} * kWarps / row_warps;
  const int64_t first_token = warp / row_warps;
  if (first_token >= token_step || first_token >= args.t) return;
  const int64_t run = warp % row_warps * 32 + threadIdx.x % 32;
  const int64_t col = run * kRun;
  const bool mine = run < args.runs_of_row;
  const int64_t tokens = (args.t - 1 - first_token) / token_step + 1;
  const auto end = static_cast<uint32_t>(tokens * args.top_k);
  const char* y = args.y.data + col * static_cast<int64_t>(sizeof(T));
  const int64_t row_bytes = args.y.row_stride * static_cast<int64_t>(sizeof(T));

  SlotStream stream(args, first_token, token_step);
  const auto request = [&](uint32_t at) {
    const int64_t row = stream.row_ahead(at);
    if (row >= 0 && mine) {
      auto& place = ring[at % kAhead];
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        ptx::cp_async_16(ptx::shared_address(place[i][threadIdx.x]), y + row * row_bytes + i * 16);
      }
    }
  };
#pragma unroll 1
  for (uint32_t at = 0; at < kAhead - 1; ++at) {
    if (at < end) request(at);
    ptx::cp_async_commit();
  }
  float sums[kRun] = {};
  int64_t token = first_token;
  uint32_t slot = 0;
#pragma unroll 1
  for (uint32_t at = 0; at < end; ++at) {
    const uint32_t ahead = min(at + kAhead - 1, end - 1);
    if (at + kAhead - 1 < end) request(at + kAhead - 1);
    ptx::cp_async_commit();
    ptx::cp_async_wait<kAhead - 1>();
    const float weight = stream.weight(at, ahead);
    if (stream.adds(at, ahead) && mine) {
      const auto& place = ring[at % kAhead];
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        const auto part = *reinterpret_cast<const sm80::Vector16<T>*>(place[i][threadIdx.x]);
#pragma unroll
        for (int c = 0; c < kRun / kVectors; ++c) {
          float& sum = sums[i * (kRun / kVectors) + c];
          sum = sum_of(sum, product(weight, sm80::widen<float>(part.values[c])));
        }
      }
    }
    if (++slot < args.top_k) continue;
    if (mine) {
      add_columns(args.shared, token, col, kRun, sums);
      add_columns(args.residual, token, col, kRun, sums);
      store_columns(args.out, token, col, kRun, sums);
    }
#pragma unroll
    for (float& sum : sums) sum = 0.0f;
    token += token_step;
    slot = 0;
  }
}

/// As many blocks as run at once; at least enough warps for one token.
template <typename T>
Status launch_stream(const cuda::Launch& launch, const CombineArguments& args) {
  const int64_t row_warps = (args.runs_of_row + 31) / 32;
  const int64_t useful = (args.t * row_warps + kWarps - 1) / kWarps;
  const int64_t least = (row_warps + kWarps - 1) / kWarps;
  const int64_t most = std::max<int64_t>(least, int64_t{launch.sm_count} * kStreamBlocks);
  return cuda::launch_kernel(launch, "sm80/combine", combine_stream_kernel<T>,
                             {.blocks = static_cast<unsigned>(std::min(useful, most)),
                              .threads = kThreads,
                              .after_prologue = true},
                             args);
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
  const bool streams = args.y.vectors && args.width % kRun == 0 && args.top_k > 0 &&
                       tokens * args.top_k < int64_t{1} << 32;
  return with_types(call.y.dtype, problem.compute, [&]<typename T, typename C>(T, C) {
    if constexpr (std::is_same_v<C, float>) {
      if (streams) return launch_stream<T>(launch, args);
    }
    return cuda::launch_kernel(launch, "sm80/combine", combine_kernel<T, C>,
                               {.blocks = blocks_for(launch, (runs + kThreads - 1) / kThreads),
                                .threads = kThreads,
                                .after_prologue = true},
                               args);
  });
}

}  // namespace cadre::rows
