// The gradient of an activation in the ring of chunks. A tile's sums, rounded as a product of their
// own would be, are the gradient of the activation's results. For 64 tokens x 64 features of them
// the pre-activation comes in as C does, is replaced by its gradient and leaves; a further chunk
// takes the sums and then what was activated. A row's dot product is left in parts of 16 features,
// a warp's, which rows/sum_parts.cu adds in order.
#pragma once

#include "cuda/ptx/fences.cuh"
#include "cuda/ptx/shared_vector.cuh"
#include "cuda/rows/gates.cuh"
#include "cuda/sm90/epilogue/chunk.cuh"
#include "cuda/sm90/epilogue/chunk_ring.cuh"

namespace cadre::sm90 {

// kHalves: gates, up parts, result. kPairs: the first 32 features' pairs, the others', result.
// kEach: input, result.
template <ActivationForm kForm>
struct GradientChunks {
  static constexpr int kInputs = columns_of(kForm);
  static constexpr int kParts = kInputs + 1;  // of a block
  const GmmArguments& args;

  __device__ __forceinline__ explicit GradientChunks(const GmmArguments& arguments)
      : args(arguments) {}

  __device__ __forceinline__ int count(const Tile& tile) const {
    return (Tile::width(tile.control) + kChunkTokens - 1) / kChunkTokens * 2 * kParts;
  }
  __device__ __forceinline__ void send(const Tile& tile, int chunk, uint32_t from) const {
    const Place place(args, tile, chunk);
    const bool result = place.part == kInputs;
    if (place.column >= place.end || !(result || args.epilogue.gradient.writes_d_preact)) return;
    const RaggedRows rows(tile.row, tile.rows, place.token);
    const CUtensorMap* map = result ? &args.out_map : &args.input_maps[place.map];
    ptx::tma_store_4d(map, from, place.column, rows.bound, rows.end, kRaggedBound);
  }
  __device__ __forceinline__ bool reads_c(const Tile& tile, int chunk) const {
    return Tile::kind(tile.control) == Tile::kProduct && chunk % kParts < kInputs;
  }
  // Columns behind the last are filled with zeros, so that they add nothing.
  __device__ __forceinline__ void load_c(const Tile& tile, int chunk, uint32_t to,
                                         uint32_t loaded) const {
    const Place place(args, tile, chunk);
    const RaggedRows rows(tile.row, tile.rows, place.token);
    ptx::mbarrier_arrive_expect(loaded, kChunkBytes);
    ptx::tma_load_4d(to, &args.saved_maps[place.map], loaded, ptx::kEvictFirst, place.column,
                     rows.bound, rows.end, kRaggedBound);
  }

 private:
  struct Place {
    int token;  // the first, within the tile
    int part;
    int map = 0;
    int column;  // the first, in its map
    int end;

    __device__ __forceinline__ Place(const GmmArguments& args, const Tile& tile, int chunk)
        : token(chunk / (2 * kParts) * kChunkTokens),
          part(chunk % kParts),
          column(tile.feature + chunk / kParts % 2 * kBlockRows),
          end(args.n) {
      if (part == kInputs) return;
      if (kForm == ActivationForm::kHalves) map = part;
      if (kForm == ActivationForm::kPairs) {
        column = 2 * column + part * kBlockRows;
        end = 2 * args.n;
      }
    }
  };
};

// The pre-activation of an 8-token group and a thread's two features, and then its gradient.
template <typename T, ActivationForm kForm>
class GroupInputs {
 public:
  __device__ __forceinline__ GroupInputs(const uint32_t (&chunks)[2], const ChunkLane& lane,
                                         int group)
      : chunks_{chunks[0] + lane.matrix + group * 1024, chunks[1] + lane.matrix + group * 1024} {
    ptx::ldmatrix_x2_transposed(gates_, chunks_[0]);
    if constexpr (kForm == ActivationForm::kHalves) ptx::ldmatrix_x2_transposed(ups_, chunks_[1]);
  }
  // Of feature h: both tokens' gates and up parts.
  __device__ __forceinline__ void get(int h, float2* gate, float2* up) const {
    *gate = unpack<T>(gates_[h]);
    *up = kForm == ActivationForm::kHalves ? unpack<T>(ups_[h]) : float2{1.0f, 1.0f};
  }
  __device__ __forceinline__ void set(int h, float2 gate, float2 up) {
    gates_[h] = pack<T>(gate.x, gate.y);
    if constexpr (kForm == ActivationForm::kHalves) ups_[h] = pack<T>(up.x, up.y);
  }
  __device__ __forceinline__ void store() const {
    ptx::stmatrix_x2_transposed(chunks_[0], gates_);
    if constexpr (kForm == ActivationForm::kHalves) ptx::stmatrix_x2_transposed(chunks_[1], ups_);
  }

 private:
  uint32_t chunks_[2];
  uint32_t gates_[2];
  uint32_t ups_[2];
};

// A gate and its up part are one word. Each is read and written when it is needed: with all of a
// group at once there are no registers left. A warp's lanes meet all 32 banks once.
template <typename T>
class GroupInputs<T, ActivationForm::kPairs> {
 public:
  __device__ __forceinline__ GroupInputs(const uint32_t (&chunks)[2], const ChunkLane& lane,
                                         int group)
      : row_((lane.feature < 32 ? chunks[0] : chunks[1]) + (8 * group + lane.token) * kRowBytes),
        vector_(lane.feature % 32 / 4),
        token_(lane.token),
        byte_(lane.feature % 4 * 4) {}
  __device__ __forceinline__ void get(int h, float2* gate, float2* up) const {
    const float2 first = unpack<T>(ptx::load_shared_word(address(h, 0)));
    const float2 second = unpack<T>(ptx::load_shared_word(address(h, 1)));
    *gate = {first.x, second.x};
    *up = {first.y, second.y};
  }
  __device__ __forceinline__ void set(int h, float2 gate, float2 up) {
    ptx::store_shared_word(address(h, 0), pack<T>(gate.x, up.x));
    ptx::store_shared_word(address(h, 1), pack<T>(gate.y, up.y));
  }
  __device__ __forceinline__ void store() const {}

 private:
  // Feature h is 8 pairs, two vectors of 16 bytes, further.
  __device__ __forceinline__ uint32_t address(int h, int token) const {
    return row_ + token * kRowBytes + ((vector_ + 2 * h) ^ (token_ + token)) * 16 + byte_;
  }

  uint32_t row_;
  int vector_;
  int token_;
  int byte_;
};

// Dot products of 64 tokens over a warp's 16 features. A lane ends up with tokens place() and
// place() + 32.
class WarpDots {
 public:
  // `parts`: what a lane's two features add to two tokens of an 8-token group.
  __device__ __forceinline__ void add(const float2& parts, int group) {
    const uint32_t lane = threadIdx.x % 32;
    const bool upper = lane >= 16;
    const float given = upper ? parts.x : parts.y;
    float sum = rows::sum_of(upper ? parts.y : parts.x, __shfl_xor_sync(0xffffffffu, given, 16));
    sum = rows::sum_of(sum, __shfl_xor_sync(0xffffffffu, sum, 8));
    sum = rows::sum_of(sum, __shfl_xor_sync(0xffffffffu, sum, 4));
    if (lane / 4 % 4 != static_cast<uint32_t>(group) % 4) return;
    if (group < 4)
      first_ = sum;
    else
      second_ = sum;
  }
  // Leaves them for rows/sum_parts.cu.
  __device__ __forceinline__ void store(const GmmArguments& args, const Tile& tile, int feature,
                                        int first_token) const {
    float* const dots = args.epilogue.gradient.dots;
    if (dots == nullptr || feature >= args.n) return;
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int token = first_token + lane / 4 % 4 * 8 + lane % 4 * 2 + lane / 16;
    float* const to = dots + static_cast<int64_t>(feature / 16) * args.m + tile.row + token;
    if (token < tile.rows) to[0] = first_;
    if (token + 32 < tile.rows) to[32] = second_;
  }

 private:
  float first_ = 0.0f;
  float second_ = 0.0f;
};

// One block of 64 features of 64 tokens, whose sums lie in chunk `result`.
template <ActivationKind kKind, typename T, typename Traits>
__device__ __forceinline__ void differentiate_chunk(const EpilogueInputs<Traits>& factors,
                                                    const ClampParameters<float>& clamp,
                                                    bool weighed, const ChunkLane& lane,
                                                    int first_token, const uint32_t (&inputs)[2],
                                                    uint32_t result, WarpDots& dots) {
#pragma unroll 1
  for (int group = 0; group < kChunkTokens / 8; ++group) {
    uint32_t sums[2];
    ptx::ldmatrix_x2_transposed(sums, result + lane.matrix + group * 1024);
    GroupInputs<T, Traits::kGradientOf> in(inputs, lane, group);
    float2 scale{1.0f, 1.0f};
    if (weighed) {
      const RowFactors::Rows<1> pair(factors, first_token / 8 + group, lane.token);
      scale = {pair.at(0, 0).product, pair.at(0, 1).product};
    }
    float2 parts{0.0f, 0.0f};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float2 gate;
      float2 up;
      in.get(h, &gate, &up);
      const float2 grad = unpack<T>(sums[h]);
      const Activated<float> first = activate_with<kKind>(gate.x, up.x, clamp);
      const Activated<float> second = activate_with<kKind>(gate.y, up.y, clamp);
      parts.x = rows::sum_of(parts.x, rows::product(first.value, grad.x));
      parts.y = rows::sum_of(parts.y, rows::product(second.value, grad.y));
      const float2 scaled = {rows::product(scale.x, grad.x), rows::product(scale.y, grad.y)};
      in.set(h, {rows::product(scaled.x, first.d_gate), rows::product(scaled.y, second.d_gate)},
             {rows::product(scaled.x, first.d_up), rows::product(scaled.y, second.d_up)});
      sums[h] = pack<T>(rows::product(scale.x, first.value), rows::product(scale.y, second.value));
    }
    in.store();
    ptx::stmatrix_x2_transposed(result + lane.matrix + group * 1024, sums);
    dots.add(parts, group);
  }
}

template <int kInputs>
__device__ __forceinline__ void zero_chunks(const uint32_t (&chunks)[2], const ChunkLane& lane) {
  const uint32_t zeros[4] = {};
#pragma unroll
  for (int i = 0; i < kInputs; ++i) {
#pragma unroll
    for (int j = 0; j < kChunkTokens / 8; j += 2) {
      ptx::stmatrix_x4_transposed(chunks[i] + lane.matrix + j * 1024, zeros);
    }
  }
}

// All chunks of a tile, from position `cursor` of the ring on.
template <typename Traits, typename Storage>
__device__ __forceinline__ void finish_gradient_tile(Storage& shared, const GmmArguments& args,
                                                     const Tile& tile,
                                                     const EpilogueInputs<Traits>& factors,
                                                     Cursor<Traits::kChunks>& cursor,
                                                     const Accumulators<Traits>& acc) {
  using T = typename Traits::ElementA;
  constexpr int kInputs = GradientChunks<Traits::kGradientOf>::kInputs;
  const GradientArguments& gradient = args.epilogue.gradient;
  const ClampParameters<float> clamp(gradient.activation);
  const bool product = Tile::kind(tile.control) == Tile::kProduct;
  const ChunkLane lane(ptx::thread_index());
#pragma unroll
  for (int chunk = 0; chunk < Traits::kTokens / kChunkTokens * 2; ++chunk) {
    const int first_token = chunk / 2 * kChunkTokens;
    if (first_token >= tile.rows) break;
    const FilledChunk<Traits> one(shared, cursor);
    const FilledChunk<Traits> other = kInputs == 2 ? FilledChunk<Traits>(shared, cursor) : one;
    const FilledChunk<Traits> result(shared, cursor);
    const uint32_t inputs[2] = {one.address, other.address};
    WarpDots dots;
    if (product) {
      write_chunk<PlainSums, false, T, 2>(factors, lane, acc[chunk % 2], 0, first_token / 8,
                                          result.address);
      __syncwarp();  // a warp's 16 features are its own
      rows::with_gated_kind(gradient.activation.kind, [&](auto kind) {
        differentiate_chunk<decltype(kind)::value, T, Traits>(
            factors, clamp, args.epilogue.has_factors, lane, first_token, inputs, result.address,
            dots);
      });
    } else {
      zero_chunks<kInputs>(inputs, lane);
      zero_chunks<1>({result.address, result.address}, lane);
    }
    dots.store(args, tile, tile.feature + chunk % 2 * kBlockRows + lane.feature / 16 * 16,
               first_token);
    ptx::fence_async_shared();
    one.publish();
    if (kInputs == 2) other.publish();
    result.publish();
  }
}

}  // namespace cadre::sm90
