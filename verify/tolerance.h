// How far a result may lie from the exact one: docs/numerics.md has the derivation.
#pragma once

#include "cadre/context.h"
#include "cadre/dtype.h"

namespace cadre::verify {

/// What an element should be, and by how much the sum may be off before its last rounding.
struct Expected {
  double value = 0;
  double bound = 0;
};

/// One unit in the last place of the type an op computes in.
double unit_of(DType compute);

/// The bound of a sum in which no term passes through more than `operations` roundings in
/// `compute`; `magnitude` is the sum of the terms' absolute values.
double rounding_bound(DType compute, int64_t operations, double magnitude);

/// True when `got`, an element of type `out`, can be the rounding of a number within the bound.
bool agrees(DType out, const Expected& expected, double got);

/// How wrong an element is, in multiples of what is allowed; more than 1 when it doesn't agree.
double severity(DType out, const Expected& expected, double got);

/// The tolerance as one number, for messages: the bound and half a unit of the output type.
double tolerance_of(DType out, const Expected& expected);

}  // namespace cadre::verify
