// Bounded sums of multiples: terms are merged where that changes nothing, two are solved as Euclid
// would, and more are searched by the multiples of the largest stride.
#include "ops/strided_sums.h"

#include <algorithm>

namespace cadre::ops {
namespace {

Wide floor_div(Wide a, Wide b) { return a / b - (a % b < 0 ? 1 : 0); }  // b > 0
Wide ceil_div(Wide a, Wide b) { return -floor_div(-a, b); }
Wide modulo(Wide a, Wide b) { return a - floor_div(a, b) * b; }

Wide gcd(Wide a, Wide b) {
  while (b != 0) {
    const Wide rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

/// The smallest x >= 0 with low <= a * x mod m <= high, or -1; 0 <= a < m, 0 <= low <= high < m.
Wide first_in_range(Wide a, Wide m, Wide low, Wide high) {
  if (low == 0) return 0;
  if (a == 0) return -1;
  const Wide x = ceil_div(low, a);
  if (a * x <= high) return x;
  // No multiple of a lies in the range itself: the first one does after so many rounds of m.
  const Wide rounds = first_in_range(m % a, a, modulo(-high, a), modulo(-low, a));
  return rounds < 0 ? -1 : ceil_div(low + m * rounds, a);
}

}  // namespace

/// The terms as they are left to be searched.
struct StridedSums::Search {
  std::array<Term, kMaxTerms> terms{};
  size_t count = 0;
  int64_t steps = 0;

  void drop(size_t i) {
    --count;
    for (; i < count; ++i) terms[i] = terms[i + 1];
  }

  /// Steps of a stride that the smaller one's steps reach without a gap become more of the latter.
  void merge() {
    for (size_t i = 0; i + 1 < count;) {
      Term& small = terms[i];
      const Term& large = terms[i + 1];
      const Wide times = large.stride / small.stride;
      if (large.stride % small.stride == 0 && times <= small.last + 1) {
        small.last += times * large.last;
        drop(i + 1);
        i = 0;
      } else {
        ++i;
      }
    }
  }

  /// i * a + j * b in [low, high], for an interval narrower than a: then j decides i.
  static bool two_reach(const Term& a, const Term& b, Wide low, Wide high) {
    const Wide first = std::max<Wide>(ceil_div(high - (a.last + 1) * a.stride + 1, b.stride), 0);
    const Wide last = std::min(floor_div(high, b.stride), b.last);
    if (first > last) return false;
    // Some j with (high - j * b) mod a <= high - low.
    const Wide width = high - low;
    const Wide rest = modulo(high - first * b.stride, a.stride);
    if (rest <= width) return true;
    const Wide step = modulo(-b.stride, a.stride);
    const Wide more = first_in_range(step, a.stride, a.stride - rest, a.stride - rest + width);
    return more >= 0 && more <= last - first;
  }

  /// With terms [begin, end) alone.
  bool reach(size_t begin, size_t end, Wide low, Wide high) {
    // A stride that isn't wider than the interval widens it.
    while (begin < end && terms[begin].stride <= high - low + 1) {
      low -= terms[begin].stride * terms[begin].last;
      ++begin;
    }
    if (high < 0) return false;
    if (low <= 0) return true;
    if (begin == end) return false;
    Wide rest = 0;  // what all but the largest reach
    Wide common = 0;
    for (size_t i = begin; i < end; ++i) {
      if (i + 1 < end) rest += terms[i].stride * terms[i].last;
      common = gcd(common, terms[i].stride);
    }
    const Term& largest = terms[end - 1];
    if (low > rest + largest.stride * largest.last || floor_div(high, common) * common < low) {
      return false;
    }
    if (end - begin == 1) return true;  // a multiple lies inside, and isn't beyond the last one
    if (end - begin == 2) return two_reach(terms[begin], largest, low, high);
    const Wide first = std::max<Wide>(ceil_div(low - rest, largest.stride), 0);
    const Wide last = std::min(floor_div(high, largest.stride), largest.last);
    for (Wide i = first; i <= last; ++i) {
      if (++steps > kMaxSteps) return true;
      if (reach(begin, end - 1, low - i * largest.stride, high - i * largest.stride)) return true;
    }
    return false;
  }
};

bool StridedSums::reach(Wide low, Wide high) const {
  Search search{.terms = terms_, .count = count_};
  search.merge();
  return search.reach(0, search.count, low - begin_, high - begin_);
}

}  // namespace cadre::ops
