// Context: settings and per-stream workspaces shared by calls. It may be used from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "cadre/export.h"
#include "cadre/status.h"
#include "cadre/tensor.h"

namespace cadre {

struct ContextOptions {
  /// CPU threads; 0: CADRE_NUM_THREADS, else OMP_NUM_THREADS, else every CPU of the process.
  int32_t num_threads = 0;
  /// CPU instruction set ("scalar", "avx2", "avx512", "amx", ...); empty: CADRE_ISA, else the best
  /// here.
  std::string isa{};
  /// Use this backend alone ("reference", "cpu", "cuda"); empty: CADRE_BACKEND, else the first that
  /// takes the problem.
  std::string backend{};
  /// CUDA multiprocessors a kernel may occupy; 0: all of them.
  int32_t sm_count = 0;
  /// What `cadre tune` has measured decides between kernels that give the same bits: this file,
  /// empty: CADRE_TUNE_CACHE, else cadre/tune.json in the user's cache folder; then the tables that
  /// the library ships. Read once, by the first product.
  std::string tune_cache{};
  bool tuned = true;  ///< false, or CADRE_TUNE=0: without any of these
};

enum class Precision : int32_t {
  kDefault = 0,  ///< f32 operands are computed to f32 accuracy
  kTf32 = 1,     ///< f32 operands may be rounded to tf32
};

/// What a single call may set. Everything is optional.
struct CallOptions {
  void* stream = nullptr;     ///< cudaStream_t; CPU calls ignore it
  void* workspace = nullptr;  ///< device memory of workspace_size() bytes; null: the Context's
  size_t workspace_size_bytes = 0;
  Precision precision = Precision::kDefault;
  int64_t average_rows = 0;      ///< hint: rows of a typical group; 0: m / num_groups
  const char* config = nullptr;  ///< a kernel name from `cadre explain`, pinned
  /// FP8 operands: sums may stay in the tensor cores' accumulator over all of k, which keeps fewer
  /// bits than f32 (docs/numerics.md).
  bool fast_accumulation = false;
};

namespace detail {
class ContextState;
}

class CADRE_API Context {
 public:
  Context() : Context(ContextOptions{}) {}
  /// Never fails; an option that can't be honoured is reported by status() and by every call.
  explicit Context(const ContextOptions& options);
  ~Context();
  Context(Context&&) noexcept;
  Context& operator=(Context&&) noexcept;
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  const Status& status() const;

  /// Waits for `stream` of `device` (null: for all of its streams) and reports bad group sizes or
  /// offsets that earlier calls met there (the first is kept until it is reported). Always ok for a
  /// CPU, whose calls report at once.
  Status check(Device device, void* stream = nullptr);

  detail::ContextState& state() const { return *state_; }

 private:
  std::unique_ptr<detail::ContextState> state_;
};

}  // namespace cadre
