// The scheduler warp of gmm: walks device-side group sizes 32 groups at a step and feeds tiles into
// the ring. Tiles are numbered in one order, whoever computes them. Bad sizes end the walk: what
// follows counts as tail.
#pragma once

#include <cstdint>

#include "cuda/group_inputs.cuh"
#include "cuda/sm90/arguments.h"
#include "cuda/sm90/epilogue/factors.cuh"
#include "cuda/sm90/mma/operands.cuh"
#include "cuda/sm90/schedule/tile.cuh"
#include "cuda/sm90/schedule/tile_ring.cuh"
#include "plan/even_cut.h"
#include "plan/tile_walk.h"

namespace cadre::sm90 {

// Token tiles of one expert that run together over all features, so that its rows and a few weight
// tiles share L2.
inline constexpr int kBandTiles = 10;

// Up to so many waves of tiles the last one is filled (fill_last_wave): a wave more or less is 2 %
// there.
inline constexpr int kMaxFilledWaves = 48;

template <typename V>
__device__ __forceinline__ V warp_inclusive_sum(V value, int lane) {
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const V below = __shfl_up_sync(0xffffffffu, value, distance);
    if (lane >= distance) value += below;
  }
  return value;
}

// Groups first..first+31, one a lane, with their tiles. All lanes of the warp call every method
// together.
template <typename Traits>
class GroupWindow {
 public:
  __device__ GroupWindow(const GmmArguments& args, int lane) : args_(args), lane_(lane) {
    features_ = (args.n + Traits::kFeatures - 1) / Traits::kFeatures;
    const cuda::GroupInputs& groups = args.groups;
    local_first_ = groups.group_offset_pointer == nullptr
                       ? groups.group_offset
                       : cuda::read_form(groups.group_offset_pointer, groups.offset_form, 0);
    local_groups_ = groups.num_local;
    if (local_first_ < 0 || local_first_ > groups.num_groups - groups.num_local) {
      local_groups_ = 0;  // every group counts as foreign
      report(plan::DeviceFault::kGroupOffset);
    }
    load(0);
  }

  // The tile of that index into `tile` (every lane gets it); false past the last one. Indices must
  // not decrease.
  __device__ bool find(int64_t index, Tile& tile) {
    while (index >= tile_base_ + tiles_in_window_) {
      if (tail_done_) return false;
      tile_base_ += tiles_in_window_;
      row_base_ += rows_in_window_;
      if (broken_ || first_ + 32 >= args_.groups.num_groups) {
        load_tail();
      } else {
        load(first_ + 32);
      }
    }
    const int64_t position = position_of(index - tile_base_);
    const int64_t before = tiles_end_ - int64_t{token_tiles_} * features_;
    const uint32_t holds = __ballot_sync(0xffffffffu, before <= position && position < tiles_end_);
    const int owner = __ffs(holds) - 1;
    cut(static_cast<uint32_t>(position - from64(owner, before)), from(owner, token_tiles_),
        from(owner, rows_), from(owner, row_), tile);
    tile.group = from(owner, group_);
    if (from(owner, zero_) != 0) tile.control |= Tile::kZero << 16;
    const EpilogueArguments& epilogue = args_.epilogue;
    if (epilogue.has_c && read_factor(epilogue.beta, tile.group) != 0.0f) tile.control |= 1u << 24;
    return true;
  }

  // All tiles there are; known once find() has returned false.
  __device__ int64_t tiles() const { return tile_base_ + tiles_in_window_; }

 private:
  // Where it was measured to gain (kernels.md): warpgroups in turn, weights [g,n,k].
  static constexpr bool kMixes = Traits::kSharers == 1 && Traits::kMajorA == ptx::Major::kK;

  __device__ int from(int lane, int value) const { return __shfl_sync(0xffffffffu, value, lane); }
  __device__ int64_t from64(int lane, int64_t value) const {
    return __shfl_sync(0xffffffffu, value, lane);
  }

  __device__ void load(int first) {
    first_ = first;
    const cuda::GroupInputs& groups = args_.groups;
    const int group = first + lane_;
    const bool exists = group < groups.num_groups;
    int64_t rows = exists ? cuda::read_form(groups.sizes, groups.form, group) : 0;
    if (groups.are_ends) {
      // Every group before is good, so the rows before this window end where the last of them does.
      const int64_t below = __shfl_up_sync(0xffffffffu, rows, 1);
      if (exists) rows = cuda::size_between(lane_ == 0 ? row_base_ : below, rows);
    }
    // A size beyond m is bad by itself, so the sums below stay far from overflow.
    const bool bad_size = rows < 0 || rows > args_.m;
    const int64_t end = warp_inclusive_sum<int64_t>(bad_size ? 0 : rows, lane_);
    const uint32_t bad = __ballot_sync(0xffffffffu, bad_size || row_base_ + end > args_.m);
    if (bad != 0) {
      broken_ = true;
      const int first_bad = __ffs(bad) - 1;
      report(from64(first_bad, rows) < 0 ? plan::DeviceFault::kNegativeSize
                                         : plan::DeviceFault::kSumAboveRows);
      if (lane_ >= first_bad) rows = 0;
    }
    const int64_t local = group - local_first_;
    zero_ = !(local >= 0 && local < local_groups_);
    group_ = zero_ ? 0 : static_cast<int>(local);
    const int64_t row_end = warp_inclusive_sum<int64_t>(rows, lane_);
    rows_in_window_ = from64(31, row_end);
    const int row = static_cast<int>(row_base_ + row_end - rows);
    // The matrices of a list hold so many rows and no more.
    const bool too_many = zero_ == 0 && rows > args_.list_rows;
    if (__any_sync(0xffffffffu, too_many)) report(plan::DeviceFault::kExtent);
    set_rows(row, too_many ? args_.list_rows : static_cast<int>(rows));
  }

  // The rows after the last good group, as one more group that lane 0 holds.
  __device__ void load_tail() {
    tail_done_ = true;
    const int rows = static_cast<int>(args_.m - row_base_);
    if (rows > 0 && args_.groups.sum_must_be_m && !broken_) report(plan::DeviceFault::kSumNotRows);
    zero_ = 1;
    group_ = 0;
    rows_in_window_ = 0;
    set_rows(static_cast<int>(row_base_), lane_ == 0 ? rows : 0);
  }

  __device__ void set_rows(int row, int rows) {
    row_ = row;
    rows_ = rows;
    const bool skipped = zero_ != 0 && !args_.zero_other_rows;
    token_tiles_ = skipped ? 0 : (rows + Traits::kTokens - 1) / Traits::kTokens;
    count_tiles();
    if (first_ == 0 && args_.groups.num_groups <= 32 && !tail_done_) fill_last_wave();
  }

  // Positions: first the tiles of groups with several token tiles, then those of the others; or,
  // where nothing is mixed, group by group.
  __device__ void count_tiles() {
    const int64_t tiles = int64_t{token_tiles_} * features_;
    tiles_end_ = warp_inclusive_sum<int64_t>(tiles, lane_);
    tiles_in_window_ = from64(31, tiles_end_);
    long_tiles_ = 0;
    const bool is_long = token_tiles_ > 1;
    // Both kinds: otherwise none of this code is run, which a cold kernel loads from memory.
    if (kMixes && __any_sync(0xffffffffu, is_long) && __any_sync(0xffffffffu, token_tiles_ == 1)) {
      const int64_t long_end = warp_inclusive_sum<int64_t>(is_long ? tiles : 0, lane_);
      long_tiles_ = from64(31, long_end);
      tiles_end_ = is_long ? long_end : long_tiles_ + tiles_end_ - long_end;
    }
  }

  // Where tile `index` of the window comes from. A group of one token tile is bound by reading its
  // weights, one of several by its products: tiles of both kinds run beside each other, so that
  // neither memory nor the tensor cores wait for the other.
  __device__ int64_t position_of(int64_t index) const {
    if (!kMixes || long_tiles_ == 0) return index;
    return plan::EvenMix{long_tiles_, tiles_in_window_}.position_of(index);
  }

  // All tiles are known: where they would leave CTAs without one in the last wave, the last groups
  // are cut into one more token tile each, as many as that wave has room for. The tiles of the last
  // waves are narrower then, and all end earlier. (Of few token tiles a group one more would be
  // much narrower, and all of them read the weights.)
  __device__ void fill_last_wave() {
    constexpr int kMinTokenTiles = 4;
    const int64_t ctas = gridDim.x;
    const int64_t waves = (tiles_in_window_ + ctas - 1) / ctas;
    if (waves < 2 || waves > kMaxFilledWaves) return;
    const int64_t cut_groups = (waves * ctas - tiles_in_window_) / features_;
    const bool suits = zero_ == 0 && token_tiles_ >= kMinTokenTiles;
    const uint32_t after = __ballot_sync(0xffffffffu, suits) >> lane_ >> 1;
    if (suits && __popc(after) < cut_groups) ++token_tiles_;
    count_tiles();
  }

  // Tile r of a group of `rows` rows.
  __device__ void cut(uint32_t r, int token_tiles, int rows, int row, Tile& tile) const {
    const plan::BandedTiles order{token_tiles, features_, plan::even_band(token_tiles, kBandTiles)};
    int32_t token_tile = 0;
    int32_t feature_tile = 0;
    order.tile_at(static_cast<int32_t>(r), &token_tile, &feature_tile);
    const plan::EvenCut widths{static_cast<uint32_t>((rows + kTokenStep - 1) / kTokenStep),
                               static_cast<uint32_t>(token_tiles)};
    int32_t start = 0;
    int32_t width = 0;
    widths.tile_at(token_tile, &start, &width);
    start *= kTokenStep;
    width *= kTokenStep;
    tile.control = width;
    tile.group_row = start;
    tile.row = row + start;
    tile.rows = min(width, rows - start);
    tile.feature = feature_tile * Traits::kFeatures;
  }

  // One CTA reports; the first fault stays until the host has read it.
  __device__ void report(plan::DeviceFault fault) const {
    if (lane_ == 0 && blockIdx.x == 0) cuda::report_fault(args_.groups.fault, fault);
  }

  const GmmArguments& args_;
  int lane_;
  int features_ = 0;         // feature tiles
  int64_t local_first_ = 0;  // first group that rhs holds
  int64_t local_groups_ = 0;
  int first_ = 0;
  bool broken_ = false;
  bool tail_done_ = false;
  int64_t row_base_ = 0;  // rows before this window
  int64_t rows_in_window_ = 0;
  int64_t tile_base_ = 0;  // tiles before this window
  int64_t tiles_in_window_ = 0;
  int64_t long_tiles_ = 0;  // those of groups with several token tiles; 0: nothing is mixed
  // This lane's group.
  int row_ = 0;
  int rows_ = 0;
  int group_ = 0;
  int zero_ = 0;
  int token_tiles_ = 0;
  int64_t tiles_end_ = 0;  // position after its last tile
};

// The tile that GroupWindow finds for blockIdx.x, where the first 32 groups are all that matters
// and ordinary. Few instructions: those of a kernel that wasn't in use come from memory one after
// the other, and this is what every other role waits for.
template <typename Traits>
__device__ bool find_first(const GmmArguments& args, Tile& tile) {
  constexpr int kMaxRows = INT32_MAX / 32;  // sums of 32 of them fit
  constexpr int kMaxTokenTiles = 3;         // GroupWindow may cut larger groups in its own way
  const cuda::GroupInputs& groups = args.groups;
  if (groups.group_offset_pointer != nullptr || groups.num_local != groups.num_groups ||
      groups.group_offset != 0 || args.epilogue.has_c || args.m > kMaxRows ||
      cuda::is_narrow(groups.form)) {
    return false;
  }
  const int lane = threadIdx.x % 32;
  const bool exists = lane < groups.num_groups;
  int64_t size = exists ? cuda::read_wide_form(groups.sizes, groups.form, lane) : 0;
  if (groups.are_ends) {
    const int64_t below = __shfl_up_sync(0xffffffffu, size, 1);
    if (exists && lane > 0) size = cuda::size_between(below, size);
  }
  const bool ordinary = size >= 0 && size <= args.m && size <= args.list_rows &&
                        size <= kMaxTokenTiles * Traits::kTokens;
  const int rows = ordinary ? static_cast<int>(size) : 0;
  const int token_tiles = (rows + Traits::kTokens - 1) / Traits::kTokens;
  const int row_end = warp_inclusive_sum(rows, lane);
  const int tiles_end = warp_inclusive_sum(token_tiles, lane);
  const uint32_t feature_tiles = (args.n + Traits::kFeatures - 1) / Traits::kFeatures;
  const uint32_t token_tile = blockIdx.x / feature_tiles;
  const uint32_t above = __ballot_sync(0xffffffffu, tiles_end > static_cast<int>(token_tile));
  const int owner = __ffs(above) - 1;
  if (!__all_sync(0xffffffffu, ordinary && row_end <= args.m) || above == 0) return false;
  if (__shfl_sync(0xffffffffu, token_tiles, owner) != 1) return false;
  tile.group = owner;
  tile.rows = __shfl_sync(0xffffffffu, rows, owner);
  tile.row = __shfl_sync(0xffffffffu, row_end, owner) - tile.rows;
  tile.group_row = 0;
  tile.control = (tile.rows + kTokenStep - 1) / kTokenStep * kTokenStep;
  tile.feature = static_cast<int>((blockIdx.x - token_tile * feature_tiles) * Traits::kFeatures);
  return true;
}

// All tiles of a CTA, and the end.
template <typename Traits, typename Storage>
__device__ void schedule(Storage& shared, const GmmArguments& args) {
  Cursor<Traits::kRingSlots> ring;
  TileNumbers<int64_t> numbers(args.tile_counter);
  if constexpr (Traits::kStreams) {
    Tile first{};
    if (find_first<Traits>(args, first)) {
      publish_tile(shared, ring, first);
      numbers.claim();
      numbers.advance();
    }
  }
  GroupWindow<Traits> groups(args, threadIdx.x % 32);
  while (true) {
    Tile tile{};
    const bool more = groups.find(numbers.index(), tile);
    if (!more) tile.set_end();
    publish_tile(shared, ring, tile);
    if (!more) break;
    numbers.claim();  // only now, when there was room: CTAs with narrow tiles take more of them
    numbers.advance();
  }
  numbers.finish(groups.tiles());
}

}  // namespace cadre::sm90
