// The workspace of a call and the Context's own blocks, one for each stream.
#include "cuda/workspace.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "core/text.h"
#include "cuda/device.h"
#include "cuda/device_block.h"
#include "cuda/graph_words.h"

namespace cadre::cuda {
namespace {

/// What cudaMalloc gives, and more than any kernel here asks for (tensor maps: 64 bytes).
constexpr size_t kAlignment = 256;

/// From here on a block gets an eighth to grow, not as much again.
constexpr size_t kLargeWorkspace = size_t{64} << 20;

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

/// 64-bit words the host may have to carry: offsets of host sizes, pointers of lists, and for
/// grouped_gemm the dims, position and pointer of every matrix. An upper bound: a list may lie on
/// the device already.
size_t word_count(const plan::Problem& problem) {
  const auto groups = static_cast<size_t>(problem.num_groups);
  const auto local = static_cast<size_t>(problem.num_local_groups);
  if (problem.op == plan::Op::kGroupedGemm) {
    constexpr size_t kTensors = 4;
    constexpr size_t kWordsOfMatrix = 4;  // rows, cols, offset or pointer, and one to spare
    return groups * kTensors * kWordsOfMatrix;
  }
  size_t words = problem.sizes_on_device ? 0 : groups + 1;
  // C is out itself unless Problem::c is given; four lists at most, all of local groups.
  for (const plan::OperandLayout* layout :
       {&problem.rhs, &problem.epilogue.c, &problem.out, &problem.epilogue.bias}) {
    if (layout->placement == Placement::kList) words += local;
  }
  if (problem.rhs_scales.list) words += local;
  return words;
}

struct StreamState {
  std::mutex mutex;
  unsigned long long id = 0;  ///< 0: not known yet
  int32_t* fault = nullptr;   ///< the device's status word, once it was looked up
  DeviceBlock workspace;
  DeviceBlock tile_counter;
  size_t workspace_bytes = 0;
  /// Blocks that became too small. A captured graph may still use them, so they live as long as the
  /// Context.
  std::vector<DeviceBlock> retired;
};

/// The attachment of the CUDA backend to a Context.
class StreamStates final : public detail::ContextState::Attachment {
 public:
  /// The state of a stream, made at the first call, which also checks that the stream is one of the
  /// device. A handle may name another stream later on; that is seen by the stream's id, which
  /// can't be asked for during a capture. The old state then lives on, since a captured graph may
  /// use its workspace.
  Status find(const StreamCall& call, cudaStream_t stream, StreamState** state) {
    // Null is one stream for ever; cudaStreamPerThread is another one in every thread.
    const bool asked = !call.capturing && stream != nullptr;
    const unsigned long long id = asked ? stream_id(stream) : 0;
    const std::scoped_lock lock(mutex_);
    std::unique_ptr<StreamState>& slot = states_[{call.device_index, stream}];
    const bool same_as_before = slot && id != 0 && slot->id == id;
    if (!same_as_before && !call.capturing) {
      if (Status status = check_stream(call.op, stream, call.device_index); !status.ok()) {
        return status;
      }
    }
    if (slot && id != 0 && slot->id != 0 && slot->id != id) {
      outlived_.push_back(std::exchange(slot, nullptr));
    }
    if (!slot) slot = std::make_unique<StreamState>();
    if (id != 0) slot->id = id;
    *state = slot.get();
    return {};
  }

  /// The device's status word. It may be made during a capture, since it is there before the launch
  /// that is captured and lives as long as the Context.
  cudaError_t fault_word(int32_t device, bool make, int32_t** word) {
    const std::scoped_lock lock(mutex_);
    DeviceBlock& block = faults_[device];
    if (block.data() == nullptr && make) {
      if (const cudaError_t error = block.allocate(sizeof(int32_t)); error) return error;
    }
    *word = static_cast<int32_t*>(block.data());
    return cudaSuccess;
  }

  /// Null where the driver can't tie memory to a graph: then tiles go in a fixed order.
  uint32_t* graph_word(int32_t device, cudaStream_t stream) {
    GraphWords* words = nullptr;
    {
      const std::scoped_lock lock(mutex_);
      words = &graph_words_[device];
    }
    uint32_t* word = nullptr;
    if (words->take(stream, &word) != cudaSuccess) cudaGetLastError();
    return word;
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<int32_t, cudaStream_t>, std::unique_ptr<StreamState>> states_;
  std::vector<std::unique_ptr<StreamState>> outlived_;
  std::map<int32_t, DeviceBlock> faults_;
  std::map<int32_t, GraphWords> graph_words_;
};

StreamStates& states_of(detail::ContextState& context) {
  static const char owner = 0;
  return static_cast<StreamStates&>(
      context.attachment(&owner, [] { return std::make_unique<StreamStates>(); }));
}

/// The Context's block for the stream, made or grown when it is too small.
Status own_workspace(std::string_view op, bool capturing, size_t bytes, StreamState* state) {
  if (state->workspace_bytes >= bytes) return {};
  if (capturing) {
    return Status::invalid(
        text(op, ": the stream is being captured and its workspace has ", state->workspace_bytes,
             " bytes, expected ", bytes,
             ": make this call once before the capture, or pass options.workspace"));
  }
  // Some room to grow: a few sizes in turn shouldn't leave a row of retired blocks. Large ones
  // (mx's widened weights) aren't taken twice.
  const size_t spare = bytes < kLargeWorkspace ? bytes : bytes / 8;
  const size_t rounded = std::max<size_t>(aligned(bytes + spare), size_t{1} << 16);
  DeviceBlock block;
  if (const cudaError_t error = block.allocate(rounded); error != cudaSuccess) {
    return cuda_failure(text(op, ": allocating a workspace of ", rounded, " bytes"), error);
  }
  if (state->workspace.data() != nullptr) state->retired.push_back(std::move(state->workspace));
  state->workspace = std::move(block);
  state->workspace_bytes = rounded;
  return {};
}

/// The caller's workspace, or the Context's.
Status lease_workspace(const StreamCall& call, const CallOptions& options,
                       const WorkspaceLayout& layout, StreamState* state, Workspace* workspace) {
  if (options.workspace != nullptr) {
    if (options.workspace_size_bytes < layout.total_bytes) {
      return Status::invalid(text(call.op,
                                  ": options.workspace_size_bytes = ", options.workspace_size_bytes,
                                  ", expected at least ", layout.total_bytes));
    }
    *workspace = Workspace(options.workspace, layout);
    return {};
  }
  if (Status status = own_workspace(call.op, call.capturing, layout.total_bytes, state);
      !status.ok()) {
    return status;
  }
  *workspace = Workspace(state->workspace.data(), layout);
  return {};
}

}  // namespace

WorkspaceLayout workspace_layout(const plan::Problem& problem, size_t scratch_bytes) {
  WorkspaceLayout layout{};
  layout.words_bytes = word_count(problem) * sizeof(int64_t);
  layout.offsets_begin = aligned(layout.words_bytes);
  // A step before the product may walk the groups of all shards (product_steps.h).
  const auto groups = static_cast<size_t>(std::max(problem.num_groups, problem.num_local_groups));
  layout.scratch_begin = layout.offsets_begin + aligned((groups + 1) * sizeof(int64_t));
  layout.scratch_bytes = scratch_bytes;
  layout.total_bytes = layout.scratch_begin + aligned(scratch_bytes) + kAlignment;
  return layout;
}

Workspace::Workspace(void* memory, const WorkspaceLayout& layout) : layout_(layout) {
  const auto address = reinterpret_cast<uintptr_t>(memory);
  start_ = static_cast<char*>(memory) + (aligned(address) - address);
}

Status lease_stream(detail::ContextState& context, const StreamCall& call,
                    const CallOptions& options, const WorkspaceLayout& layout, StreamLease* lease) {
  const std::string_view op = call.op;
  const auto stream = static_cast<cudaStream_t>(options.stream);
  StreamStates& states = states_of(context);
  StreamState* state = nullptr;
  if (Status status = states.find(call, stream, &state); !status.ok()) return status;
  lease->lock = std::unique_lock(state->mutex);
  if (state->fault == nullptr) {
    if (const cudaError_t error = states.fault_word(call.device_index, true, &state->fault);
        error != cudaSuccess) {
      return cuda_failure(text(op, ": allocating the status word"), error);
    }
  }
  lease->fault = state->fault;
  if (Status status = lease_workspace(call, options, layout, state, &lease->workspace);
      !status.ok()) {
    return status;
  }
  if (call.capturing) {
    lease->tile_counter = states.graph_word(call.device_index, stream);
    return {};
  }
  if (state->tile_counter.data() == nullptr) {
    if (const cudaError_t error = state->tile_counter.allocate(sizeof(uint32_t));
        error != cudaSuccess) {
      return cuda_failure(text(op, ": allocating the stream's tile counter"), error);
    }
  }
  lease->tile_counter = static_cast<uint32_t*>(state->tile_counter.data());
  return {};
}

int32_t* find_fault_word(detail::ContextState& context, int32_t device_index) {
  int32_t* word = nullptr;
  static_cast<void>(states_of(context).fault_word(device_index, false, &word));
  return word;
}

}  // namespace cadre::cuda
