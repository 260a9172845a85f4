// Checks of arguments. A Checker keeps the first failure and ignores what comes after it, so that
// the checks of an op read as a plain list.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cadre/status.h"
#include "cadre/tensor.h"
#include "core/text.h"

namespace cadre::ops {

/// The largest dim of any argument. Products of two dims, a dim rounded up to whole tiles, and
/// bytes of a row of tiles stay far from 2^63.
inline constexpr int64_t kMaxDim = int64_t{1} << 48;
/// More groups than anybody has, and few enough for checks that look at each of them.
inline constexpr int64_t kMaxGroups = int64_t{1} << 24;

class Checker {
 public:
  explicit Checker(std::string_view op) : op_(op) {}

  bool ok() const { return status_.ok(); }
  Status status() const { return status_; }
  std::string_view op() const { return op_; }

  /// Records "op: parts..." unless a failure stands already. Cold: what puts a message together is
  /// kept apart from the checks, which run between two launches with few of their lines cached.
  template <typename... Parts>
  [[gnu::cold]] void fail(const Parts&... parts) {
    if (ok()) status_ = Status::invalid(text(op_, ": ", parts...));
  }
  /// "op: argument = received, expected expected"
  template <typename Argument, typename Received, typename... Expected>
  void expect(bool condition, const Argument& argument, const Received& received,
              const Expected&... expected) {
    if (!condition) fail(argument, " = ", received, ", expected ", expected...);
  }
  void take(const Status& status) {
    if (ok()) status_ = status;
  }

  /// Rank, dims, dtype, extent and pointer of a view.
  void view(std::string_view argument, const TensorView& view, int32_t rank);
  /// Placement, dims, dtype, extents and data of a tensor in one of the forms of `allowed`.
  /// Pointers of a list aren't read.
  void grouped(std::string_view argument, const GroupedTensor& tensor,
               std::initializer_list<Placement> allowed);
  /// No pointer of a host list is null unless its matrix is empty. For a list whose num_groups has
  /// been compared with the op's other arguments: before that there may be fewer pointers.
  void pointers(std::string_view argument, const GroupedTensor& tensor);
  /// A bias: one row of floats for each group.
  void vectors(std::string_view argument, const GroupedTensor& tensor);
  void same_device(std::string_view argument, Device device, std::string_view reference,
                   Device expected);
  /// f64, f32, bf16, f16.
  void float_dtype(std::string_view argument, DType dtype);
  /// alpha or beta: [num_groups] of f32 or f64, on `device` or on the host.
  void scalars(std::string_view argument, const GroupScalars& scalars, int64_t num_groups,
               Device device);
  /// Types a product accepts, and the output type they allow.
  struct NamedDType {
    std::string_view argument;
    DType dtype;
  };
  void product_dtypes(NamedDType lhs, NamedDType rhs, NamedDType out);
  /// Pointer, dtype and place of sizes: the host or `device`.
  void index_array(std::string_view argument, const GroupSizes& sizes, Device device);
  /// Host values: 0 <= offset and offset + num_local <= num_groups.
  void group_offset(const GroupOffset& offset, int64_t num_local, int64_t num_groups,
                    Device device);

 private:
  void known_device(std::string_view argument, Device device);
  void dim(std::string_view argument, int64_t value);
  void addressable(std::string_view argument, bool has_span);
  void extent(std::string_view argument, std::string_view dim_name, const Extent& extent,
              const GroupedTensor& tensor);

  std::string_view op_;
  Status status_;
};

std::string device_name(Device device);

}  // namespace cadre::ops
