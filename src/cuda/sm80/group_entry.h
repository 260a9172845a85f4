// What the portable kernels know of a group: one dense product. A small kernel (prepare_kernel.cu)
// fills a table of these in the workspace from whatever the op and the operands are; the product
// kernels see nothing else.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cadre::sm80 {

/// Operands that can be moved 16 bytes at a time: base and row stride are multiples of 16 bytes,
/// the other stride is 1.
enum VectorFlag : uint32_t {
  kVectorA = 1,
  kVectorB = 2,
  kVectorC = 4,
  kVectorD = 8,
  kVectorBias = 16
};

/// D [m, n] = row_scale * (alpha * A @ B + bias_scale * bias) + beta * C. Row strides are those of
/// the stored matrices, in elements; the other strides are the same for all groups
/// (ProductArguments).
struct alignas(16) GroupEntry {
  const char* a;
  const char* b;
  const char* c;
  char* d;
  const char* bias;
  int64_t m;
  int64_t n;
  int64_t k;
  int64_t a_row_stride;
  int64_t b_row_stride;
  int64_t c_row_stride;
  int64_t d_row_stride;
  /// The group's first row among those of the product: in the [m] vectors row_scale and bias_scale,
  /// and in an index of rows. Of tgmm's column-wise copies the group's first line of scales.
  int64_t row_begin;
  double alpha;
  double beta;
  int32_t row_tiles;
  int32_t col_tiles;
  uint32_t vector_flags;
};
static_assert(sizeof(GroupEntry) % 16 == 0, "it is copied 16 bytes at a time");

/// Tiles of all groups together: an index of one, and the next one of a block, fit 32 bits.
inline constexpr int64_t kMaxTiles = int64_t{1} << 30;

/// The table at Workspace::scratch(): tile_ends[i] tiles belong to groups 0 .. i, then the entries,
/// behind a word that counts the tiles that blocks have claimed.
struct GroupEntries {
  int32_t* claimed;
  int32_t* tile_ends;
  GroupEntry* entries;

  static size_t bytes(int64_t num_groups) {
    return static_cast<size_t>(num_groups) * (sizeof(int32_t) + sizeof(GroupEntry)) + 2 * kSlack;
  }
  static GroupEntries at(void* scratch, int64_t num_groups) {
    char* start = static_cast<char*>(scratch);
    char* ends = start + kSlack;
    const size_t ends_bytes =
        (static_cast<size_t>(num_groups) * sizeof(int32_t) + kSlack - 1) / kSlack * kSlack;
    return {reinterpret_cast<int32_t*>(start), reinterpret_cast<int32_t*>(ends),
            reinterpret_cast<GroupEntry*>(ends + ends_bytes)};
  }

 private:
  static constexpr size_t kSlack = 16;
};

}  // namespace cadre::sm80
