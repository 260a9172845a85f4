// The scheduler warp: walks device-side group sizes 32 groups at a step and feeds tiles into a ring
// in shared memory. Tiles are numbered in one order, whoever computes them. Bad sizes end the walk:
// what follows counts as tail.
#pragma once

#include <cstdint>

#include "cuda/group_inputs.cuh"
#include "cuda/ptx/address.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/sm90/factors.cuh"
#include "cuda/sm90/gmm_arguments.h"
#include "cuda/sm90/gmm_storage.cuh"

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
    if (epilogue.has_c && group_beta(epilogue, tile.group) != 0.0f) tile.control |= 1u << 24;
    return true;
  }

  // All tiles there are; known once find() has returned false.
  __device__ int64_t tiles() const { return tile_base_ + tiles_in_window_; }

 private:
  // Where it was measured to gain (kernels.md): warpgroups in turn, weights [g,n,k].
  static constexpr bool kMixes = Traits::kSharers == 1 && Traits::kWeights == ptx::Major::kK;

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
  // weights, one of several by its products: tiles of both kinds run beside each other, evenly
  // mixed, so that neither memory nor the tensor cores wait for the other.
  __device__ int64_t position_of(int64_t index) const {
    if (!kMixes || long_tiles_ == 0) return index;
    const int64_t share = index * long_tiles_;
    const int64_t of_long = share / tiles_in_window_;  // before this one
    const bool is_long = share - of_long * tiles_in_window_ + long_tiles_ >= tiles_in_window_;
    return is_long ? of_long : long_tiles_ + index - of_long;
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

  // Tile r of a group of `rows` rows: widths that differ by one step at most, never full tiles and
  // a thin rest (a thin tile reads all the weights too); within a band tokens run fastest.
  __device__ void cut(uint32_t r, int token_tiles, int rows, int row, Tile& tile) const {
    const int bands = (token_tiles + kBandTiles - 1) / kBandTiles;
    const uint32_t band_tiles = (token_tiles + bands - 1) / bands;
    const uint32_t band = r / (band_tiles * features_);
    const uint32_t in_band = r - band * band_tiles * features_;
    const uint32_t first_tile = band * band_tiles;
    const uint32_t tiles_here = min(band_tiles, token_tiles - first_tile);
    const uint32_t feature_tile = in_band / tiles_here;
    const uint32_t token_tile = first_tile + in_band - feature_tile * tiles_here;
    const uint32_t units = (rows + kTokenStep - 1) / kTokenStep;
    const uint32_t least = units / token_tiles;
    const uint32_t wider = units - least * token_tiles;  // the first ones are a step wider
    const int width = static_cast<int>(least + (token_tile < wider)) * kTokenStep;
    tile.control = width;
    const int start = static_cast<int>(token_tile * least + min(token_tile, wider)) * kTokenStep;
    tile.group_row = start;
    tile.row = row + start;
    tile.rows = min(width, rows - start);
    tile.feature = static_cast<int>(feature_tile) * Traits::kFeatures;
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

// The ring's writing side: one warp.
template <typename Storage, int kSlots>
__device__ __forceinline__ void publish_tile(Storage& shared, Cursor<kSlots>& ring,
                                             const Tile& tile) {
  ptx::mbarrier_wait(ptx::shared_address(&shared.ring_empty[ring.slot()]), ring.parity() ^ 1);
  if (threadIdx.x % 32 == 0) {
    shared.ring[ring.slot()] = tile;
    ptx::mbarrier_arrive(ptx::shared_address(&shared.ring_full[ring.slot()]));
  }
  ring.advance();
}

// Which tiles a CTA computes. The first one is given; with a counter the next ones are claimed when
// there is room for them, so that CTAs with narrow tiles take more of them. Each CTA that had a
// first tile fails to claim exactly once, so the claim numbered (tiles - 1) is the last of all, and
// whoever gets it leaves the counter at 0.
struct TileNumbers {
  int64_t index = blockIdx.x;
  int64_t claim = -1;

  __device__ void advance(const GmmArguments& args) {
    if (args.tile_counter == nullptr) {
      index += gridDim.x;
      return;
    }
    uint32_t claimed = 0;
    if (threadIdx.x % 32 == 0) claimed = atomicAdd(args.tile_counter, 1u);
    claim = __shfl_sync(0xffffffffu, claimed, 0);
    index = claim + gridDim.x;
  }
  __device__ void finish(const GmmArguments& args, int64_t tiles) const {
    const bool last = threadIdx.x % 32 == 0 && claim >= 0 && claim == tiles - 1;
    if (last) atomicExch(args.tile_counter, 0u);
  }
};

// All tiles of a CTA from `numbers` on, and the end.
template <typename Traits, typename Storage>
__device__ void schedule(Storage& shared, const GmmArguments& args,
                         Cursor<Traits::kRingSlots> ring = {}, TileNumbers numbers = {}) {
  GroupWindow<Traits> groups(args, threadIdx.x % 32);
  while (true) {
    Tile tile{};
    const bool more = groups.find(numbers.index, tile);
    if (!more) tile.control = Tile::kEnd << 16;
    publish_tile(shared, ring, tile);
    if (!more) break;
    numbers.advance(args);
  }
  numbers.finish(args, groups.tiles());
}

// The reading side: every thread that reads a tile waits for it; one thread of each reading warp
// hands it back after the warp's last read.
template <typename Storage, int kSlots>
__device__ __forceinline__ const Tile& read_tile(Storage& shared, const Cursor<kSlots>& ring) {
  ptx::mbarrier_wait(ptx::shared_address(&shared.ring_full[ring.slot()]), ring.parity());
  return shared.ring[ring.slot()];
}

template <typename Storage, int kSlots>
__device__ __forceinline__ void release_tile(Storage& shared, const Cursor<kSlots>& ring) {
  ptx::mbarrier_arrive(ptx::shared_address(&shared.ring_empty[ring.slot()]));
}

// A whole warp takes a tile: its first lane reads it, hands it back and tells the others.
// (racecheck orders what follows an mbarrier after the accesses of the very threads that arrived on
// it.)
template <typename Storage, int kSlots>
__device__ __forceinline__ Tile take_tile(Storage& shared, Cursor<kSlots>& ring) {
  Tile tile{};
  ptx::mbarrier_wait(ptx::shared_address(&shared.ring_full[ring.slot()]), ring.parity());
  if (ptx::thread_index() % 32 == 0) {
    tile = shared.ring[ring.slot()];
    release_tile(shared, ring);
  }
  ring.advance();
  tile.control = ptx::uniform(static_cast<int>(tile.control));
  tile.group = ptx::uniform(tile.group);
  tile.row = ptx::uniform(tile.row);
  tile.group_row = ptx::uniform(tile.group_row);
  tile.rows = ptx::uniform(tile.rows);
  tile.feature = ptx::uniform(tile.feature);
  return tile;
}

}  // namespace cadre::sm90
