// Products that take several blocks of rows, columns and depth in any kernel.
#include <numeric>

#include "tests/contract/contract.h"

namespace cadre::contract {
namespace {

void set_sizes(Case* c, std::vector<int64_t> sizes) {
  c->m = std::accumulate(sizes.begin(), sizes.end(), int64_t{3});
  c->group_sizes = std::move(sizes);
}

}  // namespace

Failures gmm_large_product(const Subject& subject, const DTypes& types) {
  Case c = gmm::basic(types);
  c.k = 1031;
  c.n = 643;
  set_sizes(&c, {300, 0, 1, 129, 64});
  Case transposed = c;
  transposed.transpose_rhs = true;
  transposed.n = 1300;
  set_sizes(&transposed, {9, 0, 70, 4});
  transposed.accumulate = true;
  return check_all(subject, {c, transposed});
}

Failures tgmm_large_product(const Subject& subject, const DTypes& types) {
  Case c = tgmm::basic(types);
  c.k = 421;
  c.n = 515;
  set_sizes(&c, {900, 0, 1, 333});
  Case wide = c;
  wide.k = 67;
  wide.n = 1700;
  wide.accumulate = true;
  return check_all(subject, {c, wide});
}

}  // namespace cadre::contract
