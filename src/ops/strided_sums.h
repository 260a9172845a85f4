// Whether strided memory meets strided memory: sums of multiples of strides that fall into an
// interval.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace cadre::ops {

/// Wide enough for the distance of any two elements, and for products of such distances.
__extension__ using Wide = __int128;

/// All sums of i_d * stride_d with 0 <= i_d <= last_d, where strides may have any sign. A view's
/// elements, or the distances between the elements of two views.
class StridedSums {
 public:
  /// At most three dims of each of two views. Dims that don't move (of one element, or of stride 0)
  /// are left out.
  void add(Wide stride, Wide last) {
    if (last <= 0 || stride == 0) return;
    // A dim that runs backwards runs forwards from its other end.
    if (stride < 0) begin_ += stride * last;
    const Term added{stride < 0 ? -stride : stride, last};
    size_t i = count_++;
    for (; i > 0 && terms_[i - 1].stride > added.stride; --i) terms_[i] = terms_[i - 1];
    terms_[i] = added;
  }

  /// Whether a sum lies in [low, high]. Exact; only where four or more strides have nothing in
  /// common can the search grow long, and after kMaxSteps steps the answer is "yes".
  bool reach(Wide low, Wide high) const;

 private:
  struct Term {
    Wide stride;
    Wide last;
  };
  struct Search;
  static constexpr size_t kMaxTerms = 6;
  static constexpr int64_t kMaxSteps = 1 << 20;

  std::array<Term, kMaxTerms> terms_{};  ///< ascending strides, all positive
  size_t count_ = 0;
  Wide begin_ = 0;
};

}  // namespace cadre::ops
