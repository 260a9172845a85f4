// Portable vectors of four f32 and two f64 for machines without kernels of their own; compilers
// turn the loops into whatever 128-bit instructions there are. There is no fused multiply-add to
// count on, so products are rounded. For kernel files only.
#pragma once

#include <cmath>
#include <cstdint>

#include "cpu/kernels/element.h"

namespace cadre::cpu {
namespace {

inline float widen_one(float x) { return x; }
inline double widen_one(double x) { return x; }
inline float widen_one(int8_t x) { return static_cast<float>(x); }
inline double widen_one(int32_t x) { return x; }
inline uint32_t widen_one(uint32_t x) { return x; }

inline void round_one(float* p, float x) { write_one(p, x); }
inline void round_one(double* p, float x) { write_one(p, static_cast<double>(x)); }
inline void round_one(Bf16* p, float x) { write_one(p, round_to_bf16(x)); }
inline void round_one(F16* p, float x) { write_one(p, round_to_f16(x)); }
inline void round_one(float* p, double x) { write_one(p, static_cast<float>(x)); }
inline void round_one(double* p, double x) { write_one(p, x); }
inline void round_one(Bf16* p, double x) { write_one(p, round_to_bf16(narrow_to_odd(x))); }
inline void round_one(F16* p, double x) { write_one(p, round_to_f16(narrow_to_odd(x))); }
template <class T>
inline void round_one(int32_t* p, T x) {
  write_one(p, static_cast<int32_t>(std::nearbyint(x)));
}

template <class T, int kCount>
struct VecOf {
  using Elem = T;
  static constexpr int kLanes = kCount;
  struct Reg {
    T lane[kCount];
  };

  static Reg zero() { return {}; }
  static Reg set1(T x) {
    Reg r;
    for (T& lane : r.lane) lane = x;
    return r;
  }
  static Reg mul(Reg a, Reg b) {
    for (int i = 0; i < kCount; ++i) a.lane[i] *= b.lane[i];
    return a;
  }
  static Reg add(Reg a, Reg b) {
    for (int i = 0; i < kCount; ++i) a.lane[i] += b.lane[i];
    return a;
  }
  static Reg fma(Reg a, Reg b, Reg c) { return add(mul(a, b), c); }

  template <class S>
  static Reg load(const S* p, int64_t count) {
    Reg r = {};
    if (count >= kCount) {
      for (int i = 0; i < kCount; ++i) r.lane[i] = static_cast<T>(widen_one(read_one(p + i)));
    } else {
      for (int64_t i = 0; i < count; ++i) r.lane[i] = static_cast<T>(widen_one(read_one(p + i)));
    }
    return r;
  }
  static void store(T* p, Reg x) {
    for (int i = 0; i < kCount; ++i) write_one(p + i, x.lane[i]);
  }
  static void store_past_cache(T* p, Reg x) { store(p, x); }
  static void finish_past_cache() {}
  template <class S>
  static void store(S* p, Reg x, int64_t count) {
    for (int64_t i = 0; i < (count < kCount ? count : kCount); ++i) round_one(p + i, x.lane[i]);
  }
  static void transpose(Reg (&r)[kCount]) {
    for (int i = 0; i < kCount; ++i) {
      for (int j = 0; j < i; ++j) {
        const T x = r[i].lane[j];
        r[i].lane[j] = r[j].lane[i];
        r[j].lane[i] = x;
      }
    }
  }
};

using VecF32 = VecOf<float, 4>;
using VecF64 = VecOf<double, 2>;

}  // namespace
}  // namespace cadre::cpu
