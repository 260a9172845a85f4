// Random routings, run twice on a subject; every index that route writes is compared.
#include <cstdint>
#include <cstdlib>

#include "core/text.h"
#include "tests/contract/routing.h"
#include "tests/contract/row_checks.h"
#include "tests/contract/row_operands.h"

namespace cadre::contract {
namespace {

using verify::IndexMatrix;
using verify::Random;

void compare(const IndexMatrix& matrix, const std::vector<int64_t>& expected,
             const std::string& what, Failures* failures) {
  for (int64_t i = 0; i < matrix.rows() * matrix.cols(); ++i) {
    const int64_t got = matrix.after(i / matrix.cols(), i % matrix.cols());
    if (got == expected[static_cast<size_t>(i)]) continue;
    failures->push_back(
        text(what, "[", i, "] = ", got, ", expected ", expected[static_cast<size_t>(i)]));
    return;
  }
  if (!matrix.untouched_elsewhere()) {
    failures->push_back(text(what, ": a byte outside its elements changed"));
  }
}

struct IndexForm {
  DType ids = DType::kI32;
  DType out = DType::kI32;
  IndexMatrix::Strides strides{1, 0};
};

/// Runs route twice and compares all of its results.
Failures check_route(const Subject& subject, const Routing& routing, const IndexForm& form = {}) {
  verify::Memory& memory = subject.memory;
  IndexMatrix ids(memory, form.ids, routing.tokens, routing.top_k, form.strides);
  IndexMatrix sizes(memory, form.out, routing.num_experts, 1, form.strides);
  IndexMatrix source(memory, form.out, routing.slots(), 1, form.strides);
  IndexMatrix slot(memory, form.out, routing.tokens, routing.top_k, form.strides);
  fill(ids, routing.ids);
  Failures failures;
  for (int run = 0; run < 2; ++run) {
    for (IndexMatrix* matrix : {&ids, &sizes, &source, &slot}) matrix->upload();
    Status status = cadre::route(subject.context, {.expert_ids = ids.view(),
                                                   .group_sizes = sizes.vector_view(),
                                                   .source_row = source.vector_view(),
                                                   .slot_row = slot.view()});
    if (status.ok()) status = memory.finish(subject.context);
    if (!status.ok()) return {status.message()};
    for (IndexMatrix* matrix : {&ids, &sizes, &source, &slot}) matrix->download();
    compare(sizes, routing.sizes, "group_sizes", &failures);
    compare(source, routing.source_row, "source_row", &failures);
    compare(slot, routing.slot_row, "slot_row", &failures);
    if (!ids.unchanged()) failures.emplace_back("expert_ids was written");
  }
  for (std::string& failure : failures) {
    failure = text(routing.tokens, " tokens, top_k ", routing.top_k, ", ", routing.num_experts,
                   " experts: ", failure);
  }
  return failures;
}

}  // namespace

Failures route::sorts_slots_by_expert(const Subject& subject, const DTypes& /*types*/) {
  Random random(1);
  Failures failures;
  for (int64_t top_k : {1, 2, 3, 8, 16}) {
    for (int64_t num_experts : {1, 2, 8, 128, 257}) {
      for (int64_t tokens : {1, 5, 33, 128}) {
        append(&failures, check_route(subject, random_routing(random, tokens, top_k, num_experts)));
      }
    }
  }
  append(&failures, check_route(subject, random_routing(random, 2000, 8, 128)));
  append(&failures, check_route(subject, random_routing(random, 20000, 8, 7)));
  append(&failures, check_route(subject, random_routing(random, 300, 2, 4096)));
  append(&failures, check_route(subject, random_routing(random, 8192, 8, 128)));
  append(&failures, check_route(subject, random_routing(random, 33000, 8, 64)));
  append(&failures, check_route(subject, random_routing(random, 513, 4, 744)));
  append(&failures, check_route(subject, with_ids(700, 4, 16, 5)));  // all to one, often twice
  return failures;
}

Failures route::drops_ids_out_of_range(const Subject& subject, const DTypes& /*types*/) {
  Random random(2);
  Failures failures;
  for (double dropped : {0.1, 0.9}) {
    append(&failures, check_route(subject, random_routing(random, 77, 3, 9, dropped)));
    append(&failures, check_route(subject, random_routing(random, 1500, 8, 32, dropped)));
  }
  append(&failures, check_route(subject, random_routing(random, 8192, 4, 8, 0.5)));
  append(&failures, check_route(subject, with_ids(50, 2, 4, 4)));
  append(&failures, check_route(subject, with_ids(1200, 2, 4, -1)));
  append(&failures, check_route(subject, with_ids(9, 2, 4, INT32_MIN)));
  return failures;
}

Failures route::indices_of_every_type_and_stride(const Subject& subject, const DTypes& /*types*/) {
  Random random(3);
  Failures failures;
  const Routing routing = random_routing(random, 90, 4, 11, 0.2);
  Routing unsigned_ids = routing;
  for (int64_t& id : unsigned_ids.ids) id = std::abs(id);
  unsigned_ids.solve();
  for (DType out : {DType::kI32, DType::kI64}) {
    for (DType ids : {DType::kI8, DType::kI16, DType::kI32, DType::kI64}) {
      append(&failures, check_route(subject, routing, {ids, out, {2, 3}}));
    }
    for (DType ids : {DType::kU8, DType::kU16, DType::kU32, DType::kU64}) {
      append(&failures, check_route(subject, unsigned_ids, {ids, out, {1, 5}}));
    }
  }
  // An i64 id whose low half is an expert, and a u64 that would be negative as i64.
  append(&failures,
         check_route(subject, with_ids(5, 2, 4, (int64_t{1} << 32) + 1), {.ids = DType::kI64}));
  append(&failures, check_route(subject, with_ids(5, 2, 4, -1), {.ids = DType::kU64}));
  return failures;
}

Failures route::empty_things(const Subject& subject, const DTypes& /*types*/) {
  Random random(4);
  Failures failures;
  append(&failures, check_route(subject, random_routing(random, 0, 8, 5)));
  append(&failures, check_route(subject, random_routing(random, 6, 0, 5)));
  append(&failures, check_route(subject, random_routing(random, 6, 2, 0)));
  append(&failures, check_route(subject, random_routing(random, 0, 0, 0)));
  return failures;
}

}  // namespace cadre::contract
