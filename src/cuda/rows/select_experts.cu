// select_experts: a warp owns a token and keeps its scores in shared memory; each of the top_k
// rounds finds the highest that is left. Its gradient makes the scores again.
#include <algorithm>
#include <limits>

#include "cuda/ptx/pdl.cuh"
#include "cuda/rows/indices.cuh"
#include "cuda/rows/launchers.h"
#include "cuda/rows/row_view.h"
#include "cuda/sm80/elements.cuh"

namespace cadre::rows {
namespace {

constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kMostWarps = 4;
/// As on a CPU (cpu/expert_choice.h).
constexpr double kLeastScoreSum = 1e-20;

struct SelectArguments {
  RowView logits, weights, dweights, dlogits;
  const char* bias = nullptr;
  DType bias_dtype = DType::kF32;
  int64_t bias_stride = 0;
  IndexView ids{};
  int64_t tokens, num_experts, top_k, num_groups, top_groups;
  ExpertSelection selection;
  bool score_top_two;
  int64_t bytes_of_warp;
  int32_t* fault;
};

template <typename Compute>
__device__ __forceinline__ Compute element(const RowView& view, int64_t row, int64_t col) {
  return sm80::load_element<Compute>(view.data, view.dtype,
                                     row * view.row_stride + col * view.col_stride);
}

template <typename Compute>
__device__ __forceinline__ void set_element(const RowView& view, int64_t row, int64_t col,
                                            Compute value) {
  sm80::with_float_type(view.dtype, [&]<typename T>(T) {
    reinterpret_cast<T*>(view.data)[row * view.row_stride + col * view.col_stride] =
        sm80::narrow<T>(value);
  });
}

template <typename Compute>
__device__ __forceinline__ Compute lowest() {
  return std::numeric_limits<Compute>::lowest();
}
template <typename Compute>
__device__ __forceinline__ Compute closed() {
  return -std::numeric_limits<Compute>::infinity();
}
template <typename Compute>
__device__ __forceinline__ Compute comparable(Compute value) {
  return value >= lowest<Compute>() ? value : lowest<Compute>();
}

template <typename Compute>
__device__ __forceinline__ Compute warp_sum(Compute value) {
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, distance);
  }
  return value;
}

/// Index of the highest of `count` values in shared memory, the lowest of several. All lanes get
/// it.
template <typename Compute>
__device__ __forceinline__ int highest(const Compute* values, int64_t count) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  Compute best = closed<Compute>();
  int index = std::numeric_limits<int>::max();
  for (int i = lane; i < count; i += 32) {
    if (values[i] > best || index == std::numeric_limits<int>::max()) {
      best = values[i];
      index = i;
    }
  }
  for (int distance = 16; distance > 0; distance /= 2) {
    const Compute other = __shfl_xor_sync(kAllLanes, best, distance);
    const int other_index = __shfl_xor_sync(kAllLanes, index, distance);
    if (other > best || (other == best && other_index < index)) {
      best = other;
      index = other_index;
    }
  }
  return index;
}

/// The scores of a token, in shared memory, visible to the warp.
template <typename Compute>
__device__ void make_scores(const SelectArguments& args, int64_t token, Compute* scores) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (args.selection.score == ExpertScore::kSigmoid) {
    for (int64_t e = lane; e < args.num_experts; e += 32) {
      scores[e] = Compute{1} / (Compute{1} + exp(-element<Compute>(args.logits, token, e)));
    }
    __syncwarp();
    return;
  }
  Compute most = closed<Compute>();
  for (int64_t e = lane; e < args.num_experts; e += 32) {
    scores[e] = element<Compute>(args.logits, token, e);
    most = max(most, scores[e]);
  }
  for (int distance = 16; distance > 0; distance /= 2) {
    most = max(most, __shfl_xor_sync(kAllLanes, most, distance));
  }
  Compute sum = 0;
  for (int64_t e = lane; e < args.num_experts; e += 32) sum += scores[e] = exp(scores[e] - most);
  sum = warp_sum(sum);
  for (int64_t e = lane; e < args.num_experts; e += 32) scores[e] /= sum;
  __syncwarp();
}

/// Closes the groups that aren't among the best. `groups` has room for a score of each.
template <typename Compute>
__device__ void close_groups(const SelectArguments& args, Compute* choice, Compute* groups) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t size = args.num_experts / args.num_groups;
  for (int64_t group = lane; group < args.num_groups; group += 32) {
    Compute best = closed<Compute>();
    Compute second = closed<Compute>();
    for (int64_t e = group * size; e < (group + 1) * size; ++e) {
      second = max(second, min(best, choice[e]));
      best = max(best, choice[e]);
    }
    groups[group] = comparable(args.score_top_two && size > 1 ? best + second : best);
  }
  __syncwarp();
  for (int64_t i = 0; i < args.top_groups; ++i) {
    const int group = highest(groups, args.num_groups);
    __syncwarp();
    if (lane == 0) groups[group] = closed<Compute>();
    __syncwarp();
  }
  // The chosen groups have been marked; the experts of all others are out.
  for (int64_t e = lane; e < args.num_experts; e += 32) {
    if (groups[e / size] != closed<Compute>()) choice[e] = closed<Compute>();
  }
  __syncwarp();
}

template <typename Compute>
__global__ void select_kernel(const __grid_constant__ SelectArguments args) {
  ptx::follow_grid();
  extern __shared__ char shared[];
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warps = static_cast<int>(blockDim.x / 32);
  auto* scores = reinterpret_cast<Compute*>(shared + threadIdx.x / 32 * args.bytes_of_warp);
  Compute* choice = scores + args.num_experts;
  Compute* groups = choice + args.num_experts;
  Compute* chosen = groups + args.num_groups;
  for (int64_t token = int64_t{blockIdx.x} * warps + threadIdx.x / 32; token < args.tokens;
       token += int64_t{gridDim.x} * warps) {
    make_scores(args, token, scores);
    for (int64_t e = lane; e < args.num_experts; e += 32) {
      Compute value = scores[e];
      if (args.bias != nullptr) {
        value += sm80::load_element<Compute>(args.bias, args.bias_dtype, e * args.bias_stride);
      }
      choice[e] = comparable(value);
    }
    __syncwarp();
    if (args.top_groups < args.num_groups) close_groups(args, choice, groups);
    auto sum = static_cast<Compute>(kLeastScoreSum);
    for (int64_t j = 0; j < args.top_k; ++j) {
      const int e = highest(choice, args.num_experts);
      sum += scores[e];
      __syncwarp();
      if (lane == 0) {
        choice[e] = closed<Compute>();
        chosen[j] = scores[e];
        args.ids.set(token, j, e);
      }
      __syncwarp();
    }
    const auto scale = static_cast<Compute>(args.selection.scale);
    for (int64_t j = lane; j < args.top_k; j += 32) {
      set_element(args.weights, token, j,
                  scale * (args.selection.normalize ? chosen[j] / sum : chosen[j]));
    }
    __syncwarp();
  }
}

template <typename Compute>
__global__ void select_grad_kernel(const __grid_constant__ SelectArguments args) {
  ptx::follow_grid();
  extern __shared__ char shared[];
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warps = static_cast<int>(blockDim.x / 32);
  auto* scores = reinterpret_cast<Compute*>(shared + threadIdx.x / 32 * args.bytes_of_warp);
  Compute* dscores = scores + args.num_experts;
  const auto scale = static_cast<Compute>(args.selection.scale);
  for (int64_t token = int64_t{blockIdx.x} * warps + threadIdx.x / 32; token < args.tokens;
       token += int64_t{gridDim.x} * warps) {
    make_scores(args, token, scores);
    for (int64_t e = lane; e < args.num_experts; e += 32) dscores[e] = 0;
    __syncwarp();
    // A few terms, by one lane, in slot order.
    if (lane == 0) {
      auto sum = static_cast<Compute>(kLeastScoreSum);
      Compute dot = 0;
      for (int64_t j = 0; j < args.top_k; ++j) {
        const int64_t e = checked_row(args.ids.at(token, j), args.num_experts, args.fault);
        if (e < 0) continue;
        sum += scores[e];
        dot += scale * element<Compute>(args.dweights, token, j) * scores[e];
      }
      for (int64_t j = 0; j < args.top_k; ++j) {
        const int64_t e = args.ids.at(token, j);
        if (e < 0 || e >= args.num_experts) continue;
        const Compute gradient = scale * element<Compute>(args.dweights, token, j);
        dscores[e] += args.selection.normalize ? (gradient - dot / sum) / sum : gradient;
      }
    }
    __syncwarp();
    Compute mean = 0;
    for (int64_t e = lane; e < args.num_experts; e += 32) mean += scores[e] * dscores[e];
    mean = warp_sum(mean);
    const bool sigmoid = args.selection.score == ExpertScore::kSigmoid;
    for (int64_t e = lane; e < args.num_experts; e += 32) {
      const Compute slope = sigmoid ? (Compute{1} - scores[e]) * dscores[e] : dscores[e] - mean;
      set_element(args.dlogits, token, e, scores[e] * slope);
    }
    __syncwarp();
  }
}

/// Shared memory of a warp: two values for each expert, and for groups and slots one each.
int64_t bytes_of_warp(const SelectArguments& args, DType compute) {
  const int64_t values = 2 * args.num_experts + args.num_groups + args.top_k;
  return (values * static_cast<int64_t>(size_of(compute)) + 15) / 16 * 16;
}

using SelectKernel = void (*)(SelectArguments);

Status launch_warps(const cuda::Launch& launch, std::string_view name, SelectKernel kernel,
                    const SelectArguments& args) {
  if (args.tokens == 0) return {};
  constexpr int64_t kSharedBytes = 48 * 1024;
  int warps = kMostWarps;
  while (warps > 1 && warps * args.bytes_of_warp > kSharedBytes) warps /= 2;
  const int64_t shared_bytes = warps * args.bytes_of_warp;
  if (shared_bytes > launch.device->max_shared_bytes) {
    return Status::unsupported(text(launch.op, ": ", args.num_experts, " experts need ",
                                    shared_bytes, " bytes of shared memory, the device has ",
                                    launch.device->max_shared_bytes));
  }
  const int64_t useful = (args.tokens + warps - 1) / warps;
  const auto blocks =
      static_cast<unsigned>(std::clamp<int64_t>(useful, 1, int64_t{launch.sm_count} * 32));
  return cuda::launch_kernel(launch, name, kernel,
                             {.blocks = blocks,
                              .threads = static_cast<unsigned>(warps) * 32,
                              .shared_bytes = static_cast<unsigned>(shared_bytes),
                              .after_prologue = true},
                             args);
}

}  // namespace

Status launch_select_experts(const cuda::Launch& launch, const plan::Problem& problem,
                             const SelectExpertsArgs& call) {
  SelectArguments args{.logits = RowView::of(call.logits),
                       .weights = RowView::of(call.weights),
                       .dweights = {},
                       .dlogits = {},
                       .ids = IndexView::of(call.expert_ids),
                       .tokens = problem.m,
                       .num_experts = problem.n,
                       .top_k = problem.k,
                       .num_groups = call.num_groups,
                       .top_groups = call.top_groups,
                       .selection = call.selection,
                       .score_top_two = call.group_score == ExpertGroupScore::kTopTwo,
                       .bytes_of_warp = 0,
                       .fault = launch.fault};
  if (call.correction_bias.given()) {
    args.bias = static_cast<const char*>(call.correction_bias.data);
    args.bias_dtype = call.correction_bias.dtype;
    args.bias_stride = call.correction_bias.strides[0];
  }
  args.bytes_of_warp = bytes_of_warp(args, problem.compute);
  return launch_warps(launch, "sm80/select_experts",
                      problem.compute == DType::kF64 ? select_kernel<double> : select_kernel<float>,
                      args);
}

Status launch_select_experts_grad(const cuda::Launch& launch, const plan::Problem& problem,
                                  const SelectExpertsGradArgs& call) {
  SelectArguments args{.logits = RowView::of(call.logits),
                       .weights = {},
                       .dweights = RowView::of(call.dweights),
                       .dlogits = RowView::of(call.dlogits),
                       .ids = IndexView::of(call.expert_ids),
                       .tokens = problem.m,
                       .num_experts = problem.n,
                       .top_k = problem.k,
                       .num_groups = 1,
                       .top_groups = 1,
                       .selection = call.selection,
                       .score_top_two = false,
                       .bytes_of_warp = 0,
                       .fault = launch.fault};
  args.bytes_of_warp = bytes_of_warp(args, problem.compute);
  return launch_warps(
      launch, "sm80/select_experts_grad",
      problem.compute == DType::kF64 ? select_grad_kernel<double> : select_grad_kernel<float>,
      args);
}

}  // namespace cadre::rows
