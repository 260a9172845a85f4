// Positions in the circular buffers that the roles of a CTA share.
#pragma once

#include <cstdint>

namespace cadre::sm90 {

// A slot and the parity of the current round: one register when kSlots is a power of two.
template <int kSlots, bool kPowerOfTwo = (kSlots & (kSlots - 1)) == 0>
class Cursor {
 public:
  __device__ __forceinline__ uint32_t slot() const { return count_ % kSlots; }
  __device__ __forceinline__ uint32_t previous_slot() const { return (count_ - 1) % kSlots; }
  __device__ __forceinline__ uint32_t parity() const { return count_ / kSlots % 2; }
  __device__ __forceinline__ void advance() { ++count_; }
  __device__ __forceinline__ void advance_by(int steps) { count_ += steps; }

 private:
  uint32_t count_ = 0;
};

template <int kSlots>
class Cursor<kSlots, false> {
 public:
  __device__ __forceinline__ uint32_t slot() const { return slot_; }
  __device__ __forceinline__ uint32_t previous_slot() const {
    return slot_ == 0 ? kSlots - 1 : slot_ - 1;
  }
  __device__ __forceinline__ uint32_t parity() const { return parity_; }
  __device__ __forceinline__ void advance() {
    if (++slot_ == kSlots) {
      slot_ = 0;
      parity_ ^= 1;
    }
  }
  __device__ __forceinline__ void advance_by(int steps) {
    const uint32_t reached = slot_ + steps;
    parity_ ^= reached / kSlots & 1;
    slot_ = reached % kSlots;
  }

 private:
  uint32_t slot_ = 0;
  uint32_t parity_ = 0;
};

}  // namespace cadre::sm90
