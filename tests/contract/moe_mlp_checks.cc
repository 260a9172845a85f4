// The promises of MoeMlp.
#include "tests/contract/moe_mlp_checks.h"

#include <algorithm>
#include <cmath>

#include "core/text.h"
#include "tests/contract/moe_mlp_case.h"

namespace cadre::contract::moe_mlp {
namespace {

using verify::Random;

MoeMlpOptions with(const Activation& activation) { return {.activation = activation}; }

Failures check(const Subject& subject, const DTypes& types, const Routing& routing,
               const MoeCase& c) {
  return MoeData(subject, types, routing, c).check();
}

}  // namespace

const std::vector<DTypes>& types() {
  static const std::vector<DTypes> all = {{DType::kF64, DType::kF64, DType::kF64},
                                          {DType::kF32, DType::kF32, DType::kF32},
                                          {DType::kBF16, DType::kBF16, DType::kBF16},
                                          {DType::kF16, DType::kF16, DType::kF16},
                                          {DType::kBF16, DType::kBF16, DType::kF32}};
  return all;
}

Failures every_activation_and_layout(const Subject& subject, const DTypes& types) {
  Random random(41);
  Failures failures;
  const Routing routing = random_routing(random, 13, 3, 5, 0.1);
  for (int32_t kind = 0; kind <= static_cast<int32_t>(ActivationKind::kClampedSwiglu); ++kind) {
    for (const GateLayout layout : {GateLayout::kConcatenated, GateLayout::kInterleaved}) {
      const Activation activation{.kind = static_cast<ActivationKind>(kind), .layout = layout};
      if (!activation.gated() && layout == GateLayout::kInterleaved) continue;
      const bool odd = kind % 2 == 1;
      append(&failures, check(subject, types, routing,
                              {.options = with(activation),
                               .transposed = odd == (layout == GateLayout::kConcatenated),
                               .biases = odd}));
    }
  }
  return failures;
}

Failures every_form_of_weights(const Subject& subject, const DTypes& types) {
  Random random(42);
  Failures failures;
  const Routing routing = random_routing(random, 17, 2, 4);
  for (const bool transposed : {false, true}) {
    for (const bool lists : {false, true}) {
      for (const bool biases : {false, true}) {
        append(&failures, check(subject, types, routing,
                                {.h = 33,
                                 .i = 17,
                                 .transposed = transposed,
                                 .biases = biases,
                                 .shared = lists,
                                 .residual = transposed,
                                 .lists = lists,
                                 .host_sizes = biases,
                                 .index = lists ? DType::kI64 : DType::kI32}));
      }
    }
  }
  return failures;
}

Failures router_weights_on_either_side(const Subject& subject, const DTypes& types) {
  Random random(43);
  Failures failures;
  const Routing routing = random_routing(random, 15, 4, 6, 0.2);
  for (const bool on_input : {false, true}) {
    for (const bool weighted : {false, true}) {
      append(&failures, check(subject, types, routing,
                              {.options = {.weights_on_input = on_input},
                               .biases = true,
                               .weighted = weighted,
                               .residual = weighted}));
    }
  }
  return failures;
}

Failures any_routing(const Subject& subject, const DTypes& types) {
  Random random(44);
  Failures failures;
  for (const int64_t top_k : {1, 2, 5, 8, 16}) {
    append(&failures,
           check(subject, types, random_routing(random, 9, top_k, 4, 0.1), {.biases = true}));
  }
  append(&failures, check(subject, types, with_ids(20, 2, 5, 3), {}));  // all to one, and twice
  append(&failures, check(subject, types, with_ids(11, 3, 4, -1), {.residual = true}));
  append(&failures, check(subject, types, random_routing(random, 6, 2, 64), {}));  // most empty
  append(&failures, check(subject, types, random_routing(random, 0, 2, 3), {}));
  append(&failures, check(subject, types, random_routing(random, 1, 1, 3), {.biases = true}));
  append(&failures, check(subject, types, random_routing(random, 5, 0, 3), {.shared = true}));
  return failures;
}

Failures rows_sorted_already(const Subject& subject, const DTypes& types) {
  Random random(52);
  Failures failures;
  Routing routing = random_routing(random, 23, 1, 6, 0.2);
  const auto place = [&](int64_t id) { return id < 0 || id >= 6 ? 6 : id; };
  std::sort(routing.ids.begin(), routing.ids.end(),
            [&](int64_t a, int64_t b) { return place(a) < place(b); });
  routing.solve();
  for (const bool delayed : {false, true}) {
    MoeCase c{.options = {.delay_wgrad = delayed},
              .transposed = delayed,
              .biases = true,
              .weighted = false,
              .lists = delayed,
              .host_sizes = delayed,
              .sorted = true,
              .nan_in_dropped = true};
    append(&failures, check(subject, types, routing, c));
    c.first = 2;
    c.count = 3;
    append(&failures, check(subject, types, routing, c));
  }
  return failures;
}

Failures odd_widths(const Subject& subject, const DTypes& types) {
  Random random(45);
  Failures failures;
  const Routing routing = random_routing(random, 12, 2, 3, 0.1);
  for (const auto& [h, i] : {std::pair<int64_t, int64_t>{1, 1}, {7, 5}, {64, 33}, {129, 40}}) {
    append(&failures, check(subject, types, routing, {.h = h, .i = i, .biases = true}));
    append(&failures, check(subject, types, routing,
                            {.h = h,
                             .i = i,
                             .options = with({.kind = ActivationKind::kClampedSwiglu,
                                              .layout = GateLayout::kInterleaved}),
                             .transposed = true}));
  }
  return failures;
}

Failures delayed_gradients_have_the_same_bits(const Subject& subject, const DTypes& types) {
  Random random(46);
  Failures failures;
  const Routing routing = random_routing(random, 14, 3, 5, 0.1);
  for (const bool on_input : {false, true}) {
    MoeCase now{.options = {.weights_on_input = on_input}, .transposed = on_input};
    MoeCase later = now;
    later.options.delay_wgrad = true;
    MoeData at_once(subject, types, routing, now);
    MoeData delayed(subject, types, routing, later);
    append(&failures, at_once.check());
    append(&failures, delayed.check());
    if (at_once.bits_of_gradients() != delayed.bits_of_gradients()) {
      failures.emplace_back("backward_dw() gives other bits than backward()");
    }
  }
  return failures;
}

Failures any_gradients_alone_have_the_same_bits(const Subject& subject, const DTypes& types) {
  Random random(53);
  Failures failures;
  const Routing routing = random_routing(random, 7, 2, 4, 0.2);
  for (const bool on_input : {false, true}) {
    const MoeCase all{.h = 9,
                      .i = 5,
                      .options = {.weights_on_input = on_input},
                      .transposed = on_input,
                      .biases = true};
    MoeData whole(subject, types, routing, all);
    append(&failures, whole.check());
    for (unsigned wanted = 1; wanted < kWantAll; ++wanted) {
      MoeCase some = all;
      some.wanted = wanted;
      MoeData part(subject, types, routing, some);
      append(&failures, part.check());
      const std::string difference = part.first_difference(whole);
      if (!difference.empty() && failures.size() <= 3) {
        failures.push_back(text("gradients ", wanted, " alone, and all: ", difference));
      }
    }
  }
  return failures;
}

Failures memory_used_twice_changes_no_bit(const Subject& subject, const DTypes& types) {
  Random random(54);
  Failures failures;
  struct Shape {
    int64_t tokens, top_k, experts, h, i;
  };
  // dw13 holds everything that it may lend its memory to; some of it; nothing.
  for (const Shape& s : {Shape{6, 2, 9, 33, 16}, {19, 3, 4, 24, 12}, {40, 4, 2, 16, 3}}) {
    const Routing routing = random_routing(random, s.tokens, s.top_k, s.experts, 0.1);
    for (unsigned bits = 0; bits < 8; ++bits) {
      MoeCase c{.h = s.h,
                .i = s.i,
                .options = {.activation = {.kind = (bits & 4) != 0 ? ActivationKind::kClampedSwiglu
                                                                   : ActivationKind::kSwiglu,
                                           .layout = (bits & 4) != 0 ? GateLayout::kInterleaved
                                                                     : GateLayout::kConcatenated},
                            .weights_on_input = (bits & 1) != 0},
                .transposed = (bits & 4) != 0,
                .biases = (bits & 2) != 0};
      MoeData lends(subject, types, routing, c);
      append(&failures, lends.check());
      const auto same = [&](const char* what, const MoeCase& other) {
        MoeData data(subject, types, routing, other);
        append(&failures, data.check());
        const std::string difference = data.first_difference(lends);
        if (difference.empty() || failures.size() > 3) return;
        failures.push_back(text(what, ", options ", bits, ", ", s.tokens, " tokens: ", difference));
      };
      MoeCase other = c;
      other.adds_to_zeros = true;
      same("dw13 added to", other);
      other = c;
      other.over_preact = true;
      same("d_preact over preact", other);
      other.options.delay_wgrad = true;
      same("d_preact over preact, delayed", other);
    }
  }
  return failures;
}

Failures adds_to_main_grad(const Subject& subject, const DTypes& types) {
  Random random(47);
  Failures failures;
  const Routing routing = random_routing(random, 14, 3, 5, 0.1);
  const DType wide = types.lhs == DType::kF64 ? DType::kF64 : DType::kF32;
  for (const bool delayed : {false, true}) {
    append(&failures, check(subject, types, routing,
                            {.options = {.delay_wgrad = delayed},
                             .biases = true,
                             .lists = delayed,
                             .accumulates = true,
                             .gradient = wide}));
  }
  append(&failures, check(subject, types, routing, {.accumulates = true}));
  return failures;
}

Failures shards_add_up(const Subject& subject, const DTypes& types) {
  Random random(48);
  Failures failures;
  const Routing routing = random_routing(random, 18, 3, 7, 0.1);
  for (const bool on_input : {false, true}) {
    MoeCase c{.options = {.weights_on_input = on_input, .delay_wgrad = on_input}, .biases = true};
    MoeData whole(subject, types, routing, c);
    append(&failures, whole.check());
    std::vector<double> sums(static_cast<size_t>(routing.tokens * c.h), 0.0);
    for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 3}, {3, 3}, {6, 1}, {2, 0}}) {
      c.first = first;
      c.count = count;
      MoeData shard(subject, types, routing, c);
      shard.copy_layer(whole);
      append(&failures, shard.check());
      for (size_t k = 0; k < sums.size(); ++k) {
        sums[k] += shard.out(static_cast<int64_t>(k) / c.h, static_cast<int64_t>(k) % c.h);
      }
    }
    for (size_t k = 0; k < sums.size(); ++k) {
      const auto t = static_cast<int64_t>(k) / c.h;
      const auto col = static_cast<int64_t>(k) % c.h;
      // Each of the three sums was rounded on its own.
      verify::Expected expected = whole.expected_out(t, col);
      expected.bound += 3 * verify::tolerance_of(types.out, expected);
      if (verify::agrees(DType::kF64, expected, sums[k]) || failures.size() > 3) continue;
      failures.push_back(text("the shards' out[", t, ", ", col, "] add up to ", sums[k],
                              ", expected ", expected.value));
    }
  }
  return failures;
}

Failures nan_in_dropped_rows_goes_nowhere(const Subject& subject, const DTypes& types) {
  Random random(49);
  Failures failures;
  const Routing routing = random_routing(random, 40, 2, 5, 0.6);
  for (const bool on_input : {false, true}) {
    append(
        &failures,
        check(subject, types, routing,
              {.options = {.weights_on_input = on_input}, .biases = true, .nan_in_dropped = true}));
  }
  return failures;
}

Failures tokens_are_batch_invariant(const Subject& subject, const DTypes& types) {
  Random random(50);
  Failures failures;
  const Routing many = random_routing(random, 130, 4, 6);
  const MoeCase c{.h = 72, .i = 40, .biases = true};
  MoeData among(subject, types, many, c);
  append(&failures, among.check());
  for (const int64_t t : {0, 77, 129}) {
    Routing one{.tokens = 1, .top_k = many.top_k, .num_experts = many.num_experts};
    one.ids.assign(many.ids.begin() + t * many.top_k, many.ids.begin() + (t + 1) * many.top_k);
    one.solve();
    MoeData alone(subject, types, one, c);
    alone.copy_token(among, t, 0);
    append(&failures, alone.check());
    if (alone.bits_of_token(0) != among.bits_of_token(t)) {
      failures.push_back(text("token ", t, " has other bits alone than among 130"));
    }
  }
  return failures;
}

Failures inference_has_the_bits_of_training(const Subject& subject, const DTypes& types) {
  Random random(51);
  Failures failures;
  const Routing routing = random_routing(random, 16, 3, 5, 0.1);
  MoeCase c{.biases = true, .shared = true};
  MoeData training(subject, types, routing, c);
  c.saves = false;
  MoeData inference(subject, types, routing, c);
  append(&failures, training.check());
  append(&failures, inference.check());
  for (int64_t t = 0; t < routing.tokens; ++t) {
    for (int64_t col = 0; col < c.h; ++col) {
      if (training.out(t, col) == inference.out(t, col)) continue;
      failures.push_back(text("out[", t, ", ", col, "] = ", inference.out(t, col),
                              " in inference, ", training.out(t, col), " in training"));
      return failures;
    }
  }
  return failures;
}

}  // namespace cadre::contract::moe_mlp
