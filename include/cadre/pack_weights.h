// pack_weights: weights of gmm brought into the order in which this machine's CPU kernels read
// them, once, for inference. The rows of a packed product have the same bits as those of an
// unpacked one.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include "cadre/context.h"
#include "cadre/tensor.h"

namespace cadre {

/// Owns a packed copy. gmm uses it when it is given as GmmArgs::packed_rhs, on the CPU alone; the
/// rhs of that call must have the shape and type of the packed one, and is read in its place only
/// where the call needs another kernel than the one packed for (another isa or type of lhs).
class CADRE_API PackedWeights {
 public:
  PackedWeights();
  ~PackedWeights();
  PackedWeights(PackedWeights&&) noexcept;
  PackedWeights& operator=(PackedWeights&&) noexcept;
  PackedWeights(const PackedWeights&) = delete;
  PackedWeights& operator=(const PackedWeights&) = delete;

  bool empty() const { return state_ == nullptr; }
  size_t size_bytes() const;
  /// The kernel it is packed for ("avx512_bf16"); empty when nothing is packed.
  std::string_view kernel() const;

  struct State;
  const State* state() const { return state_.get(); }

 private:
  friend CADRE_API Status pack_weights(Context& context, const struct PackWeightsArgs& args,
                                       PackedWeights* packed);
  std::unique_ptr<State> state_;
};

struct PackWeightsArgs {
  GroupedTensor
      rhs{};  ///< [g, k, n], or [g, n, k] with transpose_rhs; stacked or a list, on the CPU
  bool transpose_rhs = false;
  DType lhs_dtype = DType::kInvalid;  ///< of the lhs it will be multiplied with; default: rhs's
  DType out_dtype = DType::kInvalid;  ///< default: what gmm gives for these two
};

/// Replaces what `packed` holds. The context says for which instruction set and with how many
/// threads to pack.
CADRE_API Status pack_weights(Context& context, const PackWeightsArgs& args, PackedWeights* packed);

}  // namespace cadre
