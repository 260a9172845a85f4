// The bytes a view covers, and whether two views share any.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "cadre/scaled_tensor.h"

namespace cadre::ops {

class Checker;

/// Bytes [begin, end), of which a view of up to three dims covers an element at each of its places.
struct MemorySpan {
  struct Dim {
    int64_t size = 1;
    int64_t stride = 0;  ///< bytes
  };

  uintptr_t begin = 0;
  uintptr_t end = 0;
  uintptr_t origin = 0;  ///< of the element whose indices are all 0
  int64_t element_bytes = 0;
  std::array<Dim, 3> dims{};
};

/// False when the extent doesn't fit 63 bits. An empty view gives an empty span.
bool span_of(const TensorView& view, MemorySpan* span);
/// For every form but kList.
bool span_of(const GroupedTensor& tensor, MemorySpan* span);

/// Any number of spans. One takes no memory of its own: calls are checked every time, and nearly
/// all tensors are one span.
class MemorySpans {
 public:
  MemorySpans() = default;
  MemorySpans(std::initializer_list<MemorySpan> spans) {
    for (const MemorySpan& span : spans) push_back(span);
  }

  void push_back(const MemorySpan& span) {
    if (count_ == 0) {
      first_ = span;
    } else {
      if (count_ == 1) all_.push_back(first_);
      all_.push_back(span);
    }
    ++count_;
  }

  size_t size() const { return count_; }
  const MemorySpan* begin() const { return count_ <= 1 ? &first_ : all_.data(); }
  const MemorySpan* end() const { return begin() + count_; }

 private:
  size_t count_ = 0;
  MemorySpan first_{};
  std::vector<MemorySpan> all_;  ///< empty unless there are two or more
};

/// All spans of a tensor: one for each pointer of a host list, none for a list on a device or one
/// whose dims lie on a device.
MemorySpans spans_of(const GroupedTensor& tensor);
/// None of an absent view.
MemorySpans spans_of(const TensorView& view);
/// None where no scales are given; of a list on the host, the scales of each of its groups.
MemorySpans spans_of(const Scales& scales, int64_t num_groups);

/// Whether an element of one shares a byte with an element of the other (see StridedSums::reach).
bool overlap(const MemorySpan& a, const MemorySpan& b);

/// Whether two views of one shape have each element at one address, in one type.
bool same_elements(const TensorView& a, const TensorView& b);

/// True when two elements of a [dims] view with these strides share an address.
bool overlaps_itself(const int64_t (&dims)[3], const int64_t (&strides)[3]);

/// Fails when two elements of one matrix, or of one stack of them, share an address. Dims on a
/// device count with their bounds. Matrices of a list or a packed buffer are held against each
/// other by OverlapCheck.
void check_elements_apart(Checker& checker, std::string_view output, const GroupedTensor& tensor);

/// kPacked: no negative strides, and with host dims every matrix lies in [0, capacity).
void check_packed_bounds(Checker& checker, std::string_view argument, const GroupedTensor& tensor);

/// Fails when an output shares memory with itself, or with an input.
class OverlapCheck {
 public:
  OverlapCheck(Checker& checker, std::string_view output, const MemorySpans& out);
  void input(std::string_view argument, const MemorySpans& spans);

 private:
  bool meets(const MemorySpan& span) const;
  bool meets_before(const MemorySpan& span, size_t count) const;

  Checker& checker_;
  std::string_view output_;
  MemorySpan only_{};  ///< of a single output
  /// Of many, by address. `reach_[i]` is the highest end of outputs 0 to i, so that a search from
  /// behind can stop: interleaved columns of one buffer may lie inside each other's spans.
  std::vector<MemorySpan> sorted_;
  std::vector<uintptr_t> reach_;
};

/// The same for all inputs at once.
struct NamedSpans {
  std::string_view argument;
  MemorySpans spans;
};
void check_overlap(Checker& checker, std::string_view output, const MemorySpans& out,
                   std::span<const NamedSpans> inputs);

}  // namespace cadre::ops
