// AMX tile instructions as plain loops, for machines that have none: to be included before
// gemm_amx.cc, whose intrinsics it replaces. Stricter than the processor where a mistake would show
// on few machines: a tile that isn't configured ends the program, and one that was neither loaded
// nor zeroed holds NaN.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace cadre::emulated {

inline constexpr int kTiles = 8, kRows = 16, kRowBytes = 64;

struct Tile {
  int rows = 0, row_bytes = 0;
  alignas(64) unsigned char bytes[kRows][kRowBytes];
};

inline thread_local Tile tiles[kTiles];

inline Tile& configured(int number) {
  if (tiles[number].rows == 0 || tiles[number].row_bytes != kRowBytes) std::abort();
  return tiles[number];
}

inline void load_config(const void* config) {
  const auto* bytes = static_cast<const unsigned char*>(config);
  for (int i = 0; i < kTiles; ++i) {
    tiles[i].rows = bytes[48 + i];
    tiles[i].row_bytes = bytes[16 + 2 * i] + 256 * bytes[17 + 2 * i];
    std::memset(tiles[i].bytes, 0xff, sizeof(tiles[i].bytes));
  }
}

inline void release() {
  for (Tile& tile : tiles) tile.rows = tile.row_bytes = 0;
}

inline void zero(int number) {
  Tile& tile = configured(number);
  std::memset(tile.bytes, 0, sizeof(tile.bytes));
}

inline void load(int number, const void* from, int64_t stride) {
  Tile& tile = configured(number);
  std::memset(tile.bytes, 0, sizeof(tile.bytes));
  for (int r = 0; r < tile.rows; ++r)
    std::memcpy(tile.bytes[r], static_cast<const char*>(from) + r * stride, kRowBytes);
}

inline void store(int number, void* to, int64_t stride) {
  const Tile& tile = configured(number);
  for (int r = 0; r < tile.rows; ++r)
    std::memcpy(static_cast<char*>(to) + r * stride, tile.bytes[r], kRowBytes);
}

// Element i of a row of one of the types T.
template <class T>
T element(const unsigned char (&row)[kRowBytes], int i) {
  T value;
  std::memcpy(&value, row + i * static_cast<int>(sizeof(T)), sizeof(T));
  return value;
}

inline float bf16(const unsigned char (&row)[kRowBytes], int i) {
  const uint32_t bits = uint32_t{element<uint16_t>(row, i)} << 16;
  float value = 0;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// Each word of `to` becomes sum(word, row of left, n, right).
template <class Word, class Sum>
void multiply(int to, int left, int right, Sum sum) {
  Tile& sums = configured(to);
  const Tile& a = configured(left);
  const Tile& b = configured(right);
  if (a.rows != sums.rows) std::abort();
  for (int r = 0; r < sums.rows; ++r) {
    for (int n = 0; n < kRowBytes / 4; ++n) {
      const Word word = sum(element<Word>(sums.bytes[r], n), a.bytes[r], n, b);
      std::memcpy(sums.bytes[r] + 4 * n, &word, sizeof(word));
    }
  }
}

// Sums over even and over odd k values first, as the processor does.
inline void multiply_bf16(int to, int left, int right) {
  multiply<float>(to, left, right, [](float sum, const auto& row, int n, const Tile& b) {
    float even = 0, odd = 0;
    for (int k = 0; k < b.rows; ++k) {
      even += bf16(row, 2 * k) * bf16(b.bytes[k], 2 * n);
      odd += bf16(row, 2 * k + 1) * bf16(b.bytes[k], 2 * n + 1);
    }
    return sum + (even + odd);
  });
}

inline void multiply_int8(int to, int left, int right) {
  multiply<uint32_t>(to, left, right, [](uint32_t sum, const auto& row, int n, const Tile& b) {
    for (int k = 0; k < 4 * b.rows; ++k) {
      const int product = element<int8_t>(row, k) * element<int8_t>(b.bytes[k / 4], 4 * n + k % 4);
      sum += static_cast<uint32_t>(product);
    }
    return sum;
  });
}

}  // namespace cadre::emulated

#undef _tile_loadd
#undef _tile_stream_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#undef _tile_dpbssd
#define _tile_loadconfig cadre::emulated::load_config
#define _tile_release cadre::emulated::release
#define _tile_zero cadre::emulated::zero
#define _tile_loadd cadre::emulated::load
#define _tile_stream_loadd cadre::emulated::load
#define _tile_stored cadre::emulated::store
#define _tile_dpbf16ps cadre::emulated::multiply_bf16
#define _tile_dpbssd cadre::emulated::multiply_int8
