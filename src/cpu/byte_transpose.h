// A square of bytes, transposed in registers.
#pragma once

#include <cstdint>
#include <cstring>

namespace cadre::cpu {

/// Eight rows of eight bytes, exchanged by halves, quarters and bytes of words.
inline void transpose_block(const uint8_t* from, int64_t from_stride, uint8_t* to,
                            int64_t to_stride) {
  uint64_t words[8];
  for (int64_t i = 0; i < 8; ++i) std::memcpy(&words[i], from + i * from_stride, 8);
  const auto exchange = [&words](int distance, int bits, uint64_t low) {
    for (int i = 0; i < 8; ++i) {
      if ((i & distance) != 0) continue;
      const uint64_t moved = ((words[i] >> bits) ^ words[i + distance]) & low;
      words[i + distance] ^= moved;
      words[i] ^= moved << bits;
    }
  };
  exchange(4, 32, 0x00000000ffffffff);
  exchange(2, 16, 0x0000ffff0000ffff);
  exchange(1, 8, 0x00ff00ff00ff00ff);
  for (int64_t i = 0; i < 8; ++i) std::memcpy(to + i * to_stride, &words[i], 8);
}

}  // namespace cadre::cpu
