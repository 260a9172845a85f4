// Non-owning views: a strided tensor, one matrix for each group, group sizes, per-group scalars.
// Strides are counted in elements and may be anything; nothing here allocates or frees.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>

#include "cadre/dtype.h"
#include "cadre/export.h"

namespace cadre {

enum class DeviceKind : int32_t { kCpu = 0, kCuda = 1 };

struct Device {
  DeviceKind kind = DeviceKind::kCpu;
  int32_t index = 0;

  friend bool operator==(const Device&, const Device&) = default;
};

inline constexpr int32_t kMaxRank = 4;

/// A strided view of memory that somebody else owns. A default-constructed view means "not given".
struct CADRE_API TensorView {
  void* data = nullptr;
  DType dtype = DType::kInvalid;
  Device device{};
  int32_t rank = -1;
  std::array<int64_t, kMaxRank> shape{};
  std::array<int64_t, kMaxRank> strides{};

  /// Row-major, without gaps. A shape of more than kMaxRank dims gives a view that every op
  /// rejects.
  static TensorView contiguous(const void* data, DType dtype, std::initializer_list<int64_t> shape,
                               Device device = {});
  static TensorView strided(const void* data, DType dtype, std::initializer_list<int64_t> shape,
                            std::initializer_list<int64_t> strides, Device device = {});

  bool given() const { return rank >= 0; }
};

/// What the integers of GroupSizes are.
enum class GroupSizesKind : int32_t {
  kSizes = 0,  ///< the rows of each group
  kEnds = 1,   ///< where each group ends: the sum of all sizes up to its own
};

/// `count` integers of any type (i8 to u64), on the host or on the device of the data.
struct CADRE_API GroupSizes {
  const void* data = nullptr;
  DType dtype = DType::kI32;
  int64_t count = 0;
  Device device{};
  GroupSizesKind kind = GroupSizesKind::kSizes;

  GroupSizes() = default;
  GroupSizes(const void* sizes, DType type, int64_t num_groups, Device where = {})
      : data(sizes), dtype(type), count(num_groups), device(where) {}

  /// The same groups by their ends, which don't decrease (torch's `offs`).
  static GroupSizes ends(const void* ends, DType type, int64_t num_groups, Device where = {}) {
    GroupSizes groups(ends, type, num_groups, where);
    groups.kind = GroupSizesKind::kEnds;
    return groups;
  }
};

/// A value that is the same for every group, or one value for each group.
struct CADRE_API Extent {
  int64_t uniform = 0;
  GroupSizes per_group{};  ///< used when per_group.data is set
  int64_t max = 0;         ///< with per_group on a device: the largest value a group may have

  Extent() = default;
  Extent(int64_t value) : uniform(value) {}  // NOLINT(google-explicit-constructor)
  Extent(GroupSizes values, int64_t largest = 0) : per_group(values), max(largest) {}

  bool varies() const { return per_group.data != nullptr; }
};

/// Where the matrix of a group lies.
enum class Placement : int32_t {
  kAbsent = 0,   ///< not given
  kRows = 1,     ///< consecutive rows of one [m, cols] tensor, one group after the other
  kStacked = 2,  ///< one [num_groups, rows, cols] tensor
  kList = 3,     ///< one pointer for each group
  kPacked = 4,   ///< one buffer; group i starts at element offsets[i]
};

/// One matrix for each group. Constructed from a rank-3 view (stacked) or a rank-2 view (rows of
/// one tensor); `list` and `packed` are the other forms.
struct CADRE_API GroupedTensor {
  Placement placement = Placement::kAbsent;
  DType dtype = DType::kInvalid;
  Device device{};
  int64_t num_groups = 0;  ///< 0 for kRows: the group sizes say how many there are
  void* data = nullptr;    ///< all forms but kList

  /// kList: num_groups pointers, in host memory or in memory of the data's device.
  void* const* pointers = nullptr;
  Device pointers_device{};

  Extent rows{};  ///< rows of each matrix; for kRows, of the whole tensor
  Extent cols{};
  int64_t group_stride = 0;  ///< kStacked
  int64_t row_stride = 0;    ///< a stride, whatever its value: 0 repeats one row
  int64_t col_stride = 1;
  /// kList, kPacked: each matrix is row-major without gaps. row_stride isn't read, col_stride is 1.
  bool contiguous = false;

  /// kPacked: element offset of each group; absent: the matrices lie back to back.
  Extent offsets{};
  /// kPacked: elements in the buffer. Nothing outside [0, capacity) is touched.
  int64_t capacity = 0;

  /// kAbsent: rank and shape of a view that has no form here, for the error that rejects it.
  int32_t rank = 0;
  std::array<int64_t, kMaxRank> shape{};

  GroupedTensor() = default;
  /// Rank 3: stacked; rank 2: rows. A view of any other rank is rejected by the op.
  GroupedTensor(const TensorView& view);  // NOLINT(google-explicit-constructor)

  /// Matrices of one shape at `pointers[0 .. num_groups)`, each with these strides.
  static GroupedTensor list(void* const* pointers, int64_t num_groups, const TensorView& like,
                            Device pointers_device = {});
  /// Row-major matrices of shapes [rows_i, cols_i] in one buffer of `capacity` elements.
  static GroupedTensor packed(void* data, DType dtype, int64_t num_groups, Extent rows, Extent cols,
                              int64_t capacity, Device device = {});
  /// One vector of n elements for each group, from a [g, n] view (a bias).
  static GroupedTensor vectors(const TensorView& view);

  bool given() const { return placement != Placement::kAbsent || dtype != DType::kInvalid; }
};

/// alpha and beta: one number for all groups, or a [num_groups] view of f32 or f64.
struct CADRE_API GroupScalars {
  double uniform = 0;
  TensorView per_group{};

  GroupScalars(double value) : uniform(value) {}  // NOLINT(google-explicit-constructor)
  GroupScalars(const TensorView& values) : per_group(values) {}  // NOLINT

  bool varies() const { return per_group.given(); }
};

/// The first local group: a host value, or one integer of any type on the device of the data.
struct CADRE_API GroupOffset {
  int64_t value = 0;
  const void* device_value = nullptr;
  DType dtype = DType::kI32;
  Device device{};

  GroupOffset(int64_t host_value = 0) : value(host_value) {}  // NOLINT
  GroupOffset(const void* pointer, DType type, Device where)
      : device_value(pointer), dtype(type), device(where) {}
};

}  // namespace cadre
