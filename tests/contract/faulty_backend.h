// A backend that works like the reference, but for one planted fault: the bugs that grouped
// products really had. It proves that the contract's checks can fail.
#pragma once

#include <string_view>

#include "plan/backend.h"

namespace cadre::contract {

enum class Fault {
  kNone,
  kThrows,            ///< std::bad_alloc from inside the backend
  kWrongGroup,        ///< weights of another group
  kSwappedTranspose,  ///< weights read as if stored the other way round
  kUnwrittenTail,     ///< tail rows keep what they held instead of zero
  kOverwrittenTail,   ///< tail rows are zeroed though they were to stay
  kTailZeroedDespiteBeta,
  kLeakedNan,         ///< 0 * NaN of the row behind a group reaches its last row
  kOffByOneRow,       ///< groups end one row early
  kBetaReadWhenZero,  ///< C is multiplied by 0 instead of left alone
  kOffset32Bit,       ///< row * stride wraps at 2^32
  kIgnoredGroupOffset,
  kBiasAddedTwice,
  kBetaIgnored,
  kAlphaOfWrongGroup,
  kCIgnored,  ///< the output is taken for C
  kRowScaleIgnored,
  kBiasScaleIgnored,
  kLastColumnMissing,
  kDepthRoundedDown,         ///< the last k % 8 terms are missing
  kEmptyGroupUnwritten,      ///< tgmm skips a group without rows
  kTransposedGradient,       ///< tgmm writes [n, k] where [k, n] was asked for
  kPaddingWritten,           ///< one element behind each row of the output
  kInt8InFloat,              ///< int8 sums pass through f32
  kFirstPointerForAll,       ///< a list's first matrix serves every group
  kRoundsTowardsZero,        ///< bf16 by cutting bits off
  kAccumulatesInOutput,      ///< partial sums are rounded to the output's type
  kNotRepeatable,            ///< every second call differs in a last bit
  kDependsOnRowCount,        ///< the last bit of a row depends on m
  kBiasGradReadsTail,        ///< the last group takes the tail's rows, too
  kScaleGradientKeepsTail,   ///< dbias_scale isn't zeroed where no group is
  kRouteUnstable,            ///< two rows of an expert change places
  kRoutePadsSource,          ///< rows of nobody name token 0 instead of none
  kCombineReadsDropped,      ///< 0 * NaN of a dropped row reaches its token
  kCombineGradKeepsDropped,  ///< dy isn't zeroed in rows of nobody
  kGateLayoutIgnored,        ///< interleaved gates are read as if they lay side by side
  kActivateGradUnscaled,     ///< row_scale isn't used
  kRowDotOfScaled,           ///< row_scale is part of the dot product, too
  kBlocksAcrossGroups,       ///< blocks of a column begin at every 128th row, whatever the groups
  kScaleRoundedDown,         ///< a power of two below the quotient: large values saturate
  kInfinitySaturates,        ///< infinity becomes the largest number
  kColumnPaddingUnwritten,   ///< the copy's last column is left as it was
  kQuantizedTailUnwritten,   ///< rows of nobody are left as they were
};

class FaultyBackend final : public plan::Backend {
 public:
  static constexpr std::string_view kName = "faulty";

  void plant(Fault fault) { fault_ = fault; }

  std::string_view name() const override { return kName; }
  std::vector<std::string> kernels() const override { return {std::string(kName)}; }
  Status choose(const detail::ContextState& context, const plan::Problem& problem,
                const char* pinned, plan::Config* config) const override;
  Status run(detail::ContextState& context, const plan::Problem& problem,
             const plan::Config& config, const plan::Operands& operands,
             const CallOptions& options) const override;
  Status run_bias_grad(detail::ContextState& context, const plan::Problem& problem,
                       const plan::Config& config, const BiasGradArgs& args,
                       const std::vector<int64_t>& host_offsets) const override;
  Status run_rows(detail::ContextState& context, const plan::Problem& problem,
                  const plan::Config& config, const plan::RowCall& call,
                  const CallOptions& options) const override;

 private:
  Fault fault_ = Fault::kNone;
  mutable int calls_ = 0;
};

}  // namespace cadre::contract
