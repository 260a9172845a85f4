// Which slot writes a row, where both maps of a routing are given. Either may hold anything: row r
// belongs to token t where source_row[r] = t and a slot of t names r, and to the first such slot;
// other rows have no owner. So every row has at most one, and who has none is found by itself.
#pragma once

#include "cuda/rows/indices.cuh"

namespace cadre::rows {

struct RowOwners {
  IndexView slot_row{}, source_row{};
  int64_t m = 0;
  int64_t t = 0;
  int64_t top_k = 0;
  int32_t* fault = nullptr;

  /// The row of a slot, if it is the token's; -1 otherwise.
  __device__ __forceinline__ int64_t row_of(int64_t token, int64_t slot) const {
    const int64_t row = checked_row(slot_row.row_at(token, slot), m, fault);
    return row >= 0 && source_row.row_at(row) == token ? row : -1;
  }

  /// Rows are looked at in batches of 32, one for each lane.
  __host__ __device__ __forceinline__ int64_t batches() const { return (m + 31) / 32; }

  /// All lanes: f(row, token) for the rows of a batch that have no owner; `token` is source_row's,
  /// -1 where it names none.
  template <typename F>
  __device__ __forceinline__ void each_without_owner(int64_t batch, F f) const {
    const int64_t row = batch * 32 + threadIdx.x % 32;
    const int64_t token = row < m ? checked_row(source_row.row_at(row), t, fault) : -1;
    bool owned = row >= m;
    if (token >= 0) {
#pragma unroll 4
      for (int64_t slot = 0; slot < top_k; ++slot) owned |= slot_row.row_at(token, slot) == row;
    }
    unsigned rest = __ballot_sync(0xffffffffu, !owned);
    for (; rest != 0; rest &= rest - 1) {
      const int lane = __ffs(static_cast<int>(rest)) - 1;
      f(batch * 32 + lane, __shfl_sync(0xffffffffu, token, lane));
    }
  }
};

}  // namespace cadre::rows
