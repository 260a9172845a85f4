// The transforms: all that can be computed from a tile's sums before they are stored. Each is one
// struct here; which of them a call gets is decided where a tile ends (gmm_kernel.cuh,
// gmm_chunks.cuh, tgmm_chunks.cuh). Where the results go is the sinks' business:
//   deferred.cuh     gmm, 16 bits: wait in registers, leave while the next tile's products run
//   at_once.cuh      gmm, 16 bits or fp32: through a warpgroup's own chunk buffers when a tile ends
//   gmm_chunks.cuh   gmm in turn: transposed into the ring of chunks
//   activated_chunks.cuh the same with an activation
//   tgmm_chunks.cuh  tgmm: as they are into the ring of chunks
//
// A transform is made for one of a thread's two-row slices of a block of operand A (`feature`: its
// first row in the tile, the other one is 8 further) and called with a sum, h (0 or 1: which of the
// two rows) and the factors of the sum's token. Rows<n> are those of n 8-token groups, read
// together and before the first result is written: shared memory answers after some 30 cycles, and
// the compiler moves no read before a write. C is added after it (add_c). An activation takes what
// transforms made of a gate's sum and of its up part's.
#pragma once

#include "core/activation_math.h"
#include "cuda/sm90/epilogue/factors.cuh"

namespace cadre::sm90 {

// Transforms without factors read nothing.
struct NoFactors {
  static constexpr bool kReadsRows = false;

  template <int kCount>
  struct Rows {
    template <typename Inputs>
    __device__ __forceinline__ Rows(const Inputs& /*inputs*/, int /*group*/, int /*token*/) {}
    __device__ __forceinline__ RowFactor at(int /*j*/, int /*i*/) const { return {}; }
  };

  NoFactors() = default;
  template <typename Inputs>
  __device__ __forceinline__ NoFactors(const Inputs& /*inputs*/, int /*feature*/) {}
};

// There are no products, and no sums: tail rows, groups without rows.
struct Zeros : NoFactors {
  using NoFactors::NoFactors;
  __device__ __forceinline__ float operator()(float /*sum*/, int /*h*/ = 0,
                                              RowFactor /*row*/ = {}) const {
    return 0.0f;
  }
};

struct PlainSums : NoFactors {
  using NoFactors::NoFactors;
  __device__ __forceinline__ float operator()(float sum, int /*h*/ = 0,
                                              RowFactor /*row*/ = {}) const {
    return sum;
  }
};

// One factor for the whole tile.
struct ScaledSums : NoFactors {
  float factor;
  __device__ __forceinline__ explicit ScaledSums(float value) : factor(value) {}
  __device__ __forceinline__ float operator()(float sum, int /*h*/ = 0,
                                              RowFactor /*row*/ = {}) const {
    return factor * sum;
  }
};

// Multiplied with the row's factor, its share of the bias added.
struct RowFactors {
  static constexpr bool kReadsRows = true;
  float bias[2];

  template <int kCount>
  struct Rows {
    float4 pairs[kCount];  // of two neighbouring tokens, the first one even

    template <typename Inputs>
    __device__ __forceinline__ Rows(const Inputs& inputs, int group, int token) {
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        pairs[j] = *reinterpret_cast<const float4*>(&inputs.rows[8 * (group + j) + token]);
      }
    }
    __device__ __forceinline__ RowFactor at(int j, int i) const {
      return i == 0 ? RowFactor{pairs[j].x, pairs[j].y} : RowFactor{pairs[j].z, pairs[j].w};
    }
  };

  template <typename Inputs>
  __device__ __forceinline__ RowFactors(const Inputs& inputs, int feature)
      : bias{inputs.bias[feature], inputs.bias[feature + 8]} {}

  __device__ __forceinline__ float operator()(float sum, int h, RowFactor row) const {
    return fmaf(row.product, sum, row.bias * bias[h]);
  }
};

// The same of FP8 operands with scales: the row's factor holds its token's, and the feature's is
// read with the bias.
struct ScaledRows : RowFactors {
  float column[2];

  template <typename Inputs>
  __device__ __forceinline__ ScaledRows(const Inputs& inputs, int feature)
      : RowFactors(inputs, feature), column{inputs.columns[feature], inputs.columns[feature + 8]} {}

  __device__ __forceinline__ float operator()(float sum, int h, RowFactor row) const {
    return fmaf(row.product, column[h] * sum, row.bias * bias[h]);
  }
};

// The same where all rows of a group have one factor, which isn't read for each of them: at K = 768
// these reads and their products cost 5 % (docs/kernels.md).
struct GroupFactors : RowFactors {
  using RowFactors::RowFactors;
  static constexpr bool kReadsRows = false;

  template <int kCount>
  struct Rows {
    float product;

    template <typename Inputs>
    __device__ __forceinline__ Rows(const Inputs& inputs, int /*group*/, int /*token*/)
        : product(inputs.rows[0].product) {}
    __device__ __forceinline__ RowFactor at(int /*j*/, int /*i*/) const { return {product, 1.0f}; }
  };
};

// The activations; see ActivationArguments. In the order of core/activation_math.h, so that a pass
// of its own (cuda/rows/activate.cu) gives the same bits.
struct SigmoidGate {
  const ActivationArguments& args;
  __device__ __forceinline__ float operator()(float g, float u) const {
    g = g > args.limit ? args.limit : g;
    u = u < -args.limit ? -args.limit : u;
    u = u > args.limit ? args.limit : u;
    const float inner = args.is_cubic ? g * (args.linear + args.cubic * (g * g)) : args.linear * g;
    return g * sigmoid_of(inner) * (u + args.up_offset);
  }
};

struct NormalGate {
  __device__ __forceinline__ float operator()(float g, float u) const {
    return g * normal_at(g).below * u;
  }
};

struct SquareGate {
  __device__ __forceinline__ float operator()(float g, float u) const {
    return gate_function<ActivationKind::kRelu2>(g).value * u;
  }
};

__device__ __forceinline__ float add_c(float beta, float c, float value) {
  return fmaf(beta, c, value);
}

}  // namespace cadre::sm90
