// The workspace of a call: one definition from which its size and its addresses come, and the
// Context's own blocks.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string_view>

#include "cadre/context.h"
#include "plan/context_state.h"
#include "plan/problem.h"

namespace cadre::cuda {

/// Where the parts lie, in bytes from an aligned start.
struct WorkspaceLayout {
  size_t words_bytes;  ///< at 0: 64-bit words the host carries into the launch (carried_words.h)
  size_t
      offsets_begin;  ///< int64[num_groups + 1]: of the local groups (group_offsets.h), or of all
  size_t scratch_begin;  ///< whatever the kernel family asked for
  size_t scratch_bytes;
  size_t total_bytes;  ///< room for aligning the start included
};

WorkspaceLayout workspace_layout(const plan::Problem& problem, size_t scratch_bytes);

/// The workspace of one call.
class Workspace {
 public:
  Workspace() = default;
  Workspace(void* memory, const WorkspaceLayout& layout);

  int64_t* words() const { return reinterpret_cast<int64_t*>(start_); }
  size_t words_capacity() const { return layout_.words_bytes / sizeof(int64_t); }
  int64_t* offsets() const { return reinterpret_cast<int64_t*>(start_ + layout_.offsets_begin); }
  void* scratch() const { return start_ + layout_.scratch_begin; }
  /// The same workspace with a scratch that begins `bytes` (a multiple of 256) further on.
  Workspace after(size_t bytes) const {
    Workspace rest = *this;
    rest.layout_.scratch_begin += bytes;
    rest.layout_.scratch_bytes -= bytes;
    return rest;
  }
  size_t scratch_bytes() const { return layout_.scratch_bytes; }

 private:
  char* start_ = nullptr;
  WorkspaceLayout layout_{};
};

/// What a Context keeps for one stream of one device. The lock is held while a call launches, so
/// that two threads on one stream never mix their launches in one workspace.
struct StreamLease {
  std::unique_lock<std::mutex> lock;
  int32_t* fault = nullptr;          ///< the device's status word, in device memory
  uint32_t* tile_counter = nullptr;  ///< the stream's or the captured graph's, see Launch
  Workspace workspace;
};

/// Who asks.
struct StreamCall {
  std::string_view op;
  int32_t device_index;
  bool capturing;  ///< the stream is being captured
};

/// Finds or makes the device's status word and the stream's workspace; kInvalid when the stream is
/// another device's. A workspace for a stream that is being captured is never made here: then the
/// call must have run once before, or options.workspace must be given.
Status lease_stream(detail::ContextState& context, const StreamCall& call,
                    const CallOptions& options, const WorkspaceLayout& layout, StreamLease* lease);

/// The device's status word; null when no call of this Context has used the device.
int32_t* find_fault_word(detail::ContextState& context, int32_t device_index);

}  // namespace cadre::cuda
