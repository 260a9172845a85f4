// The kernel whose warpgroups take turns, for gmm, tgmm and grouped_gemm: each owns every second
// tile, multiplies it alone and finishes it while the other one multiplies. Or, where sums are
// promoted, both have a block of every tile and take no turns. A persistent CTA is four warps that
// feed and drain, and two warpgroups that multiply:
//   schedule -> ring of tiles -> every role
//   fill_stages -> stages -> consume -> chunks -> store_chunks -> out
//                       load_inputs -^ (factors, and C where there is one)
// An Op says what the parts are made of: where tiles and operands come from, which instruction a
// tile takes, and what its results become.
#pragma once

#include "cuda/ptx/warp.cuh"
#include "cuda/sm90/arguments.h"
#include "cuda/sm90/epilogue/activated_chunks.cuh"
#include "cuda/sm90/epilogue/gmm_chunks.cuh"
#include "cuda/sm90/epilogue/gradient_chunks.cuh"
#include "cuda/sm90/epilogue/tgmm_chunks.cuh"
#include "cuda/sm90/mma/k_loop.cuh"
#include "cuda/sm90/mma/promoted_loop.cuh"
#include "cuda/sm90/pipeline/block_scales.cuh"
#include "cuda/sm90/pipeline/cta.cuh"
#include "cuda/sm90/pipeline/producers.cuh"
#include "cuda/sm90/pipeline/row_scales.cuh"
#include "cuda/sm90/schedule/gmm_tiles.cuh"
#include "cuda/sm90/schedule/grouped_tiles.cuh"
#include "cuda/sm90/schedule/recorder.cuh"
#include "cuda/sm90/schedule/tgmm_tiles.cuh"

namespace cadre::sm90 {

struct NoScales {};

template <typename Op>
struct TurnStorage {
  using Tile = typename Op::Tile;
  static constexpr bool kScales = scales_stages(Op::kPromotion);

  alignas(1024) unsigned char stages[Op::kStages][Op::kStageBytes];
  alignas(1024) unsigned char chunks[Op::kChunks][kChunkBytes];
  Tile ring[Op::kRingSlots];
  typename Op::Inputs inputs;
  std::conditional_t<kScales, typename Op::StageScales, NoScales> scales;
  uint64_t stage_full[Op::kStages];
  uint64_t stage_empty[Op::kStages];
  uint64_t ring_full[Op::kRingSlots];
  uint64_t ring_empty[Op::kRingSlots];
  uint64_t chunk_empty[Op::kChunks];   // the copy engine has read it
  uint64_t chunk_loaded[Op::kChunks];  // kReadsC: it holds C
  uint64_t chunk_full[Op::kChunks];    // it holds a part of out
  uint64_t multiply_turn[kConsumers];  // warpgroup i may issue products
  uint64_t store_turn[kConsumers];     // warpgroup i may fill chunks

  __device__ void init() {
    inputs.init();
    init_barriers(stage_full, kScales ? 1 + 32 : 1);  // every lane that wrote scales
    init_barriers(stage_empty, Op::kSharers * (kScales ? 4 : 1));
    init_barriers(ring_full, 1);
    init_barriers(ring_empty, 4 * kConsumers + 2 + Op::kLoadsInputs);  // and those that feed
    init_barriers(chunk_empty, 1);
    init_barriers(chunk_loaded, 1);
    init_barriers(chunk_full, 128);   // every thread that wrote a part of it
    init_barriers(multiply_turn, 4);  // every warp of the other warpgroup
    init_barriers(store_turn, 4);
  }
};

template <typename Traits_>
struct GmmInTurn : Traits_ {
  using Traits = Traits_;
  using Arguments = GmmArguments;
  using Tile = sm90::Tile;
  static constexpr bool kActivates = Traits::kActivation != ActivationForm::kNone;
  static constexpr bool kDifferentiates = Traits::kGradientOf != ActivationForm::kNone;
  using Chunks = std::conditional_t<
      kActivates, ActivatedChunks<Traits::kActivation>,
      std::conditional_t<kDifferentiates, GradientChunks<Traits::kGradientOf>, GmmChunks>>;
  template <typename Storage>
  using Source = GmmSource<Traits, Storage>;
  using StageScales = TokenScales<Traits>;
  using TileScales = TokenTileScales<Traits>;
  static constexpr bool kLoadsInputs = true;

  // The factors of kInputs tiles.
  struct Inputs {
    EpilogueInputs<Traits> tiles[Traits::kInputs];
    uint64_t full[Traits::kInputs];
    uint64_t empty[Traits::kInputs];

    __device__ void init() {
      init_barriers(full, 32);
      init_barriers(empty, 128 * Traits::kSharers);  // the warpgroups whose tile it is
    }
  };
  using InputsCursor = Cursor<Traits::kInputs>;

  template <typename InitBarriers>
  static __device__ __forceinline__ void start(const Arguments& args, InitBarriers init) {
    start_cta(init, args.weights_map, args.tokens_map, args.out_map);
  }

  // All threads; false when there is nothing to do.
  static __device__ __forceinline__ bool prepare(TurnStorage<GmmInTurn>& /*shared*/,
                                                 const Arguments& args) {
    return args.skip_if == nullptr || *args.skip_if == 0;
  }

  static __device__ __forceinline__ bool has_products(const Tile& tile) {
    return Tile::kind(tile.control) == Tile::kProduct;
  }
  static __device__ __forceinline__ KBlocks<Traits> blocks(const Arguments& args,
                                                           const Tile& tile) {
    return KBlocks<Traits>(has_products(tile) ? args.k : 0);
  }
  static __device__ __forceinline__ TokenInstruction instruction(const Arguments& /*args*/,
                                                                 const Tile& tile) {
    return {Tile::width(tile.control)};
  }
  static __device__ __forceinline__ int width(const Tile& tile) {
    return Tile::width(tile.control);
  }
  // Whether the warpgroup's block of a shared tile may be left out.
  static __device__ __forceinline__ bool is_idle(const Tile& /*tile*/,
                                                 const ConsumerPlace& /*place*/) {
    return false;
  }

  static __device__ __forceinline__ void finish(TurnStorage<GmmInTurn>& shared,
                                                const Arguments& args, const ConsumerPlace& place,
                                                const Tile& tile, const InputsCursor& cursor,
                                                Cursor<Traits::kChunks>& chunks,
                                                const Accumulators<Traits>& acc) {
    const uint32_t slot = cursor.slot();
    const bool factors = has_products(tile) && args.epilogue.has_factors;
    if (factors)
      ptx::mbarrier_wait(ptx::shared_address(&shared.inputs.full[slot]), cursor.parity());
    if constexpr (kActivates) {
      finish_activated_tile<Traits>(shared, args, tile, shared.inputs.tiles[slot], chunks, acc);
    } else if constexpr (kDifferentiates) {
      finish_gradient_tile<Traits>(shared, args, tile, shared.inputs.tiles[slot], chunks, acc);
    } else {
      finish_gmm_tile<Traits>(shared, args, place, tile, shared.inputs.tiles[slot], chunks, acc);
    }
    if (factors) ptx::mbarrier_arrive(ptx::shared_address(&shared.inputs.empty[slot]));
  }

  // One warp: all that a tile's epilogue reads.
  static __device__ void load_inputs(TurnStorage<GmmInTurn>& shared, const Arguments& args) {
    const Chunks chunks(args);
    Cursor<Traits::kRingSlots> ring;
    Cursor<Traits::kChunks> cursor;
    InputsCursor inputs;
    while (true) {
      const Tile tile = take_tile(shared, ring);
      if (tile.is_end()) return;
      if (has_products(tile) && args.epilogue.has_factors) {
        const LoadedFactors<Traits> factors(args, tile);
        const uint32_t slot = inputs.slot();
        ptx::mbarrier_wait(ptx::shared_address(&shared.inputs.empty[slot]), inputs.parity() ^ 1);
        factors.store(shared.inputs.tiles[slot], shared.inputs.full[slot], args, tile);
        inputs.advance();
      }
      if (Traits::kReadsC && threadIdx.x % 32 == 0) load_c<Traits>(shared, chunks, tile, cursor);
      __syncwarp();
    }
  }
};

// What tgmm and grouped_gemm share: matrices by rows, with nothing to read beside the sums but C.
template <typename Traits_, typename Tile_, typename Arguments_,
          template <typename> typename Chunks_>
struct RowsInTurn : Traits_ {
  using Traits = Traits_;
  using Tile = Tile_;
  using Arguments = Arguments_;
  using Chunks = Chunks_<Traits>;
  static constexpr bool kScalesResults = Traits::kScaledResults;
  static constexpr bool kLoadsInputs = Traits::kReadsC;
  static_assert(!kScalesResults || kLoadsInputs);

  struct NoInputs {
    __device__ void init() {}
  };
  using Inputs = std::conditional_t<kScalesResults, RowInputs<Traits>, NoInputs>;
  using InputsCursor = Cursor<kScalesResults ? Traits::kInputs : 1>;

  static __device__ __forceinline__ bool has_products(const Tile& tile) { return tile.rows > 0; }
  static __device__ __forceinline__ KBlocks<Traits> blocks(const Arguments& /*args*/,
                                                           const Tile& tile) {
    return KBlocks<Traits>(tile.rows);
  }

  template <typename Storage>
  static __device__ __forceinline__ void finish(Storage& shared, const Arguments& args,
                                                const ConsumerPlace& place, const Tile& tile,
                                                const InputsCursor& cursor,
                                                Cursor<Traits::kChunks>& chunks,
                                                Accumulators<Traits>& acc) {
    if constexpr (kScalesResults) {
      if (has_products(tile)) shared.inputs.apply(place, cursor, acc[0]);
    }
    finish_row_tile<Traits>(shared, args, place, tile, chunks, acc);
  }

  template <typename Storage>
  static __device__ void load_inputs(Storage& shared, const Arguments& args) {
    const Chunks chunks(args);
    Cursor<Traits::kRingSlots> ring;
    Cursor<Traits::kChunks> cursor;
    if constexpr (kScalesResults) {  // the whole warp
      InputsCursor inputs;
      while (true) {
        const Tile tile = take_tile(shared, ring);
        if (tile.is_end()) return;
        if (has_products(tile)) {
          shared.inputs.load(args, tile, inputs);
          inputs.advance();
        }
        if (threadIdx.x % 32 == 0) load_c<Traits>(shared, chunks, tile, cursor);
        __syncwarp();
      }
    }
    if (threadIdx.x % 32 != 0) return;
    while (true) {
      const Tile tile = next_tile(shared, ring);
      if (tile.is_end()) return;
      load_c<Traits>(shared, chunks, tile, cursor);
    }
  }
};

// out[g] = alpha * lhs[rows of g]^T x rhs[rows of g] + beta * C[g].
template <typename Traits>
struct Tgmm : RowsInTurn<Traits, TgmmTile, TgmmArguments, TgmmChunks> {
  template <typename Storage>
  using Source = TgmmSource<Traits, Storage>;
  using StageScales = NoScales;

  template <typename InitBarriers>
  static __device__ __forceinline__ void start(const TgmmArguments& args, InitBarriers init) {
    start_cta(init, args.lhs_map, args.rhs_map, args.out_map);
  }
  static __device__ __forceinline__ bool prepare(TurnStorage<Tgmm>& shared,
                                                 const TgmmArguments& args) {
    return make_plan<Traits>(shared, args);
  }
  static __device__ __forceinline__ AtomInstruction instruction(const TgmmArguments& args,
                                                                const TgmmTile& tile) {
    return {ptx::uniform(tile.atoms_a(args.k)), ptx::uniform(tile.atoms_b())};
  }
};

// D[g] = alpha[g] * op(A[g]) x op(B[g]) + beta[g] * C[g], every group of its own extents; and of
// FP8 tgmm, whose operands are column-wise copies, and gmm with scales of blocks.
template <typename Traits>
struct GroupedGemm : RowsInTurn<Traits, GroupedTile, GroupedArguments, GroupedChunks> {
  template <typename Storage>
  using Source = GroupedSource<Traits, Storage>;
  using StageScales = RowStageScales<Traits>;
  using TileScales = RowTileScales<Traits>;

  template <typename InitBarriers>
  static __device__ __forceinline__ void start(const GroupedArguments& /*args*/,
                                               InitBarriers init) {
    start_cta(init);
  }
  static __device__ __forceinline__ bool prepare(TurnStorage<GroupedGemm>& /*shared*/,
                                                 const GroupedArguments& args) {
    return args.verdict->tiles > 0;
  }
  static __device__ __forceinline__ AtomInstruction instruction(const GroupedArguments& /*args*/,
                                                                const GroupedTile& tile) {
    return {ptx::uniform(tile.atoms_a()), ptx::uniform(tile.atoms_b())};
  }
  static __device__ __forceinline__ int width(const GroupedTile& tile) { return tile.columns; }
  static __device__ __forceinline__ bool is_idle(const GroupedTile& tile,
                                                 const ConsumerPlace& place) {
    return place.warpgroup >= tile.atoms_a();
  }
};

// A consumer warpgroup that has a block of every tile.
template <typename Op>
__device__ __forceinline__ void consume_together(TurnStorage<Op>& shared,
                                                 const typename Op::Arguments& args,
                                                 int warpgroup) {
  using Traits = typename Op::Traits;
  const ConsumerPlace place = {warpgroup};
  typename Op::InputsCursor inputs;
  Cursor<Traits::kRingSlots> ring;
  Cursor<Traits::kStages> stage;
  Cursor<Traits::kChunks> cursor;
  while (true) {
    const typename Op::Tile tile = take_tile(shared, ring);
    if (tile.is_end()) return;
    Accumulators<Traits> totals;
    record_start<Traits>(args.recorder);
    const int count = Op::blocks(args, tile).count();
    if (Op::is_idle(tile, place)) {
      pass_stages<Traits>(shared, place, count, stage);
#pragma unroll
      for (float& total : totals[0]) total = 0.0f;
    } else {
      multiply_promoted<Traits>(shared, place, count, Op::width(tile), stage, totals);
    }
    Op::finish(shared, args, place, tile, inputs, cursor, totals);
    record_end<Traits>(args.recorder, tile);
    if (Op::has_products(tile)) inputs.advance();
  }
}

// A consumer warpgroup that has every second tile.
template <typename Op>
__device__ __forceinline__ void consume(TurnStorage<Op>& shared, const typename Op::Arguments& args,
                                        int warpgroup) {
  using Traits = typename Op::Traits;
  const ConsumerPlace place = {0};  // within the tile, which is the warpgroup's alone
  const typename Op::Chunks chunks(args);
  const uint32_t multiply_turn = ptx::shared_address(shared.multiply_turn);
  const uint32_t store_turn = ptx::shared_address(shared.store_turn);
  const int mine = warpgroup * 8;
  const int other = (warpgroup ^ 1) * 8;
  uint32_t turn_parity = warpgroup == 0 ? 1 : 0;  // warpgroup 0 starts
  typename Op::InputsCursor inputs;
  Cursor<Traits::kRingSlots> ring;
  Cursor<Traits::kStages> stage;
  Cursor<Traits::kChunks> cursor;
  for (int owner = 0;; owner ^= 1) {
    const typename Op::Tile tile = take_tile(shared, ring);
    if (tile.is_end()) return;
    if (owner == warpgroup) {
      Accumulators<Traits> acc;
      const auto instruction = Op::instruction(args, tile);
      ptx::mbarrier_wait(multiply_turn + mine, turn_parity);
      record_start<Traits>(args.recorder);
      // Every warp hands the turn on, since no product holds the warps of a tile without any
      // together: one thread could hand it on and get it back before a slow warp has looked for the
      // phase it awaits.
      multiply<Traits>(
          shared, place, Op::blocks(args, tile), instruction, stage, acc, [](int /*block*/) {},
          [&] {
            if (ptx::first_of_warp()) ptx::mbarrier_arrive(multiply_turn + other);
          });
      ptx::mbarrier_wait(store_turn + mine, turn_parity);
      Op::finish(shared, args, place, tile, inputs, cursor, acc);
      record_end<Traits>(args.recorder, tile);
      if (ptx::first_of_warp()) ptx::mbarrier_arrive(store_turn + other);
      turn_parity ^= 1;
    } else {
      stage.advance_by(Op::blocks(args, tile).count());
      cursor.advance_by(chunks.count(tile));
    }
    if (Op::has_products(tile)) inputs.advance();
  }
}

template <typename Op>
__global__ void __launch_bounds__(kCtaThreads, 1)
    turn_kernel(const __grid_constant__ typename Op::Arguments args) {
  using Storage = TurnStorage<Op>;
  static_assert(sizeof(Storage) <= kSharedBytes);
  extern __shared__ __align__(1024) unsigned char raw[];
  Storage& shared = *reinterpret_cast<Storage*>(raw);
  Op::start(args, [&] { shared.init(); });
  if (!Op::prepare(shared, args)) return;
  const int warpgroup = ptx::uniform(threadIdx.x / 128);
  if (warpgroup == 0) {
    ptx::decrease_registers<Op::kFeedRegisters>();
    const int warp = ptx::uniform(threadIdx.x / 32);
    const bool first_lane = threadIdx.x % 32 == 0;
    if (warp == 0) {
      using Source = typename Op::template Source<Storage>;
      if constexpr (Storage::kScales) {
        fill_scaled_stages<Op>(shared, Source(shared, args), args);
      } else if (first_lane) {
        fill_stages<typename Op::Traits>(shared, Source(shared, args));
      }
    } else if (warp == 1) {
      schedule<typename Op::Traits>(shared, args);
    } else if (warp == 2) {
      if (first_lane) store_chunks<typename Op::Traits>(shared, typename Op::Chunks(args));
    } else if (Op::kLoadsInputs) {
      Op::load_inputs(shared, args);
    }
  } else {
    ptx::increase_registers<Op::kMultiplyRegisters>();
    if constexpr (Op::kPromotion == Promotion::kNone) {
      consume<Op>(shared, args, warpgroup - 1);
    } else {
      consume_together<Op>(shared, args, warpgroup - 1);
    }
  }
}

}  // namespace cadre::sm90
