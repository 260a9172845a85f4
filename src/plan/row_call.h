// The ops that move or weigh whole rows around the products. A backend runs any of them through one
// function; the arguments have been checked.
#pragma once

#include <variant>

#include "cadre/activate.h"
#include "cadre/combine.h"
#include "cadre/permute.h"
#include "cadre/quantize.h"
#include "cadre/route.h"
#include "cadre/select_experts.h"

namespace cadre::plan {

using RowCall =
    std::variant<const RouteArgs*, const PermuteArgs*, const CombineArgs*, const CombineGradArgs*,
                 const SelectExpertsArgs*, const SelectExpertsGradArgs*, const ActivateArgs*,
                 const ActivateGradArgs*, const QuantizeArgs*, const DequantizeArgs*,
                 const AmaxArgs*>;

/// A visitor made of lambdas, one for each op.
template <typename... Functions>
struct EachOf : Functions... {
  using Functions::operator()...;
};
template <typename... Functions>
EachOf(Functions...) -> EachOf<Functions...>;

}  // namespace cadre::plan
