// A problem's key, its text and its hash.
#include "backend/tuning_key.h"

#include <algorithm>
#include <bit>

#include "core/text.h"

namespace cadre::backend {

TuningKey key_of(const plan::Problem& problem) {
  const Activation& activation = problem.epilogue.activation;
  return {.op = problem.op,
          .lhs = problem.lhs.dtype,
          .rhs = problem.rhs.dtype,
          .out = problem.out.dtype,
          .scales = problem.lhs_scales.mode,
          .activation = activation.kind,
          .interleaved = activation.gated() && activation.layout == GateLayout::kInterleaved,
          .transpose_lhs = problem.transpose_lhs,
          .transpose_rhs = problem.transpose_rhs,
          .list_rhs = problem.rhs.placement == Placement::kList,
          .list_out = problem.out.placement == Placement::kList,
          .beta = problem.epilogue.has_beta,
          .by_index = problem.lhs_rows.by_index(),
          .k = problem.k,
          .n = problem.n,
          .num_groups = problem.num_groups,
          .rows = static_cast<int64_t>(
              std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(problem.average_rows, 1))))};
}

std::string to_string(const TuningKey& key) {
  return text(plan::name_of(key.op), " ", name_of(key.lhs), key.transpose_lhs ? "^T" : "", " x ",
              name_of(key.rhs), key.transpose_rhs ? "^T" : "", " -> ", name_of(key.out),
              key.scales == ScaleMode::kNone ? "" : text(" scales ", name_of(key.scales)),
              key.activation == ActivationKind::kNone ? "" : " activated",
              key.list_rhs ? " list of rhs" : "", key.list_out ? " list of out" : "",
              key.beta ? " with beta" : "", key.by_index ? " rows by index" : "", ", k ", key.k,
              ", n ", key.n, ", ", key.num_groups, " groups of up to ", key.rows, " rows");
}

size_t TuningKeyHash::operator()(const TuningKey& key) const {
  uint64_t seed = 0;
  const auto mix = [&seed](auto value) {
    seed = (seed ^ static_cast<uint64_t>(value)) * 0x9e3779b97f4a7c15u;
    seed ^= seed >> 29;
  };
  const bool flags[] = {key.interleaved, key.transpose_lhs, key.transpose_rhs, key.list_rhs,
                        key.list_out,    key.beta,          key.by_index};
  uint64_t bits = 0;
  for (const bool flag : flags) bits = 2 * bits + (flag ? 1 : 0);
  mix(bits);
  mix(key.op);
  mix(key.lhs);
  mix(key.rhs);
  mix(key.out);
  mix(key.scales);
  mix(key.activation);
  for (const int64_t value : {key.k, key.n, key.num_groups, key.rows}) mix(value);
  return seed;
}

}  // namespace cadre::backend
