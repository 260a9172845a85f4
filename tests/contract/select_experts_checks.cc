// The promises of select_experts and its gradient. The choice is made here again by sorting.
#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "core/text.h"
#include "tests/contract/row_checks.h"
#include "verify/index_matrix.h"
#include "verify/placed_tensor.h"
#include "verify/random.h"
#include "verify/tolerance.h"

namespace cadre::contract::select_experts {
namespace {

using verify::IndexMatrix;
using verify::PlacedTensor;
using verify::Random;

struct Selection {
  int64_t tokens = 40;
  int64_t num_experts = 16;
  int64_t top_k = 4;
  ExpertSelection how{};
  bool bias = false;
  int64_t num_groups = 1;
  int64_t top_groups = 1;
  ExpertGroupScore group_score = ExpertGroupScore::kTopTwo;
  bool ties = false;  ///< logits of few values
  bool nan = false;   ///< one of each token
  Layout layout{};
};

/// Roundings of an exponential, a sum over experts and a division, far above what they need.
constexpr int64_t kRoundings = 64;

class Tokens {
 public:
  Tokens(const Subject& subject, const DTypes& types, const Selection& s)
      : subject_(subject), s_(s), compute_(types.lhs == DType::kF64 ? DType::kF64 : DType::kF32) {
    Random random(21);
    const auto make = [&](DType dtype, int64_t rows, int64_t cols) {
      Layout layout = s.layout;
      layout.form = Placement::kRows;
      return std::make_unique<PlacedTensor>(subject.memory, subject.memory, dtype,
                                            std::vector<verify::MatrixShape>{{rows, cols}},
                                            verify::MatrixShape{rows, cols}, layout, random);
    };
    logits_ = make(types.lhs, s.tokens, s.num_experts);
    bias_ = make(types.rhs, 1, s.num_experts);
    weights_ = make(types.out, s.tokens, s.top_k);
    dweights_ = make(types.out, s.tokens, s.top_k);
    dlogits_ = make(types.out, s.tokens, s.num_experts);
    ids_ = std::make_unique<IndexMatrix>(subject.memory, DType::kI32, s.tokens, s.top_k);
    for (int64_t t = 0; t < s.tokens; ++t) {
      for (int64_t e = 0; e < s.num_experts; ++e) {
        logits_->set(0, t, e,
                     s.ties ? static_cast<double>(random.between(0, 2)) : random.uniform(-4, 4));
        dlogits_->allow_change(0, t, e);
      }
      if (s.nan) {
        logits_->set(0, t, t % s.num_experts, std::numeric_limits<double>::quiet_NaN());
      }
      for (int64_t j = 0; j < s.top_k; ++j) {
        dweights_->set(0, t, j, random.uniform(-1, 1));
        weights_->allow_change(0, t, j);
      }
    }
    for (int64_t e = 0; e < s.num_experts; ++e) bias_->set(0, 0, e, random.uniform(-0.5, 0.5));
  }

  Failures check_forward() {
    upload();
    SelectExpertsArgs args{.logits = logits_->matrix_view(),
                           .selection = s_.how,
                           .num_groups = s_.num_groups,
                           .top_groups = s_.top_groups,
                           .group_score = s_.group_score,
                           .expert_ids = ids_->view(),
                           .weights = weights_->matrix_view()};
    if (s_.bias) args.correction_bias = bias_->vector_view();
    if (const Status status = finish(cadre::select_experts(subject_.context, args)); !status.ok()) {
      return {status.message()};
    }
    Failures failures;
    for (int64_t t = 0; t < s_.tokens && failures.empty(); ++t) {
      const std::vector<double> scores = scores_of(t);
      const std::vector<int64_t> chosen = choose(scores);
      double sum = 0;
      for (const int64_t e : chosen) sum += scores[static_cast<size_t>(e)];
      for (int64_t j = 0; j < s_.top_k; ++j) {
        const int64_t e = chosen[static_cast<size_t>(j)];
        if (ids_->after(t, j) != e) {
          failures.push_back(
              text("expert_ids[", t, ", ", j, "] = ", ids_->after(t, j), ", expected ", e));
        }
        const double weight = s_.how.scale * scores[static_cast<size_t>(e)];
        compare(*weights_, "weights", t, j, s_.how.normalize ? weight / sum : weight, &failures);
      }
    }
    int64_t offset = 0;
    if (!weights_->untouched_elsewhere(&offset) || !ids_->untouched_elsewhere() ||
        !logits_->unchanged()) {
      failures.emplace_back("a byte outside the results changed");
    }
    return failures;
  }

  Failures check_gradient() {
    for (int64_t t = 0; t < s_.tokens; ++t) {
      const std::vector<int64_t> chosen = choose(scores_of(t));
      for (int64_t j = 0; j < s_.top_k; ++j) ids_->set(t, j, chosen[static_cast<size_t>(j)]);
    }
    upload();
    const SelectExpertsGradArgs args{.logits = logits_->matrix_view(),
                                     .selection = s_.how,
                                     .expert_ids = ids_->view(),
                                     .dweights = dweights_->matrix_view(),
                                     .dlogits = dlogits_->matrix_view()};
    if (const Status status = finish(cadre::select_experts_grad(subject_.context, args));
        !status.ok()) {
      return {status.message()};
    }
    Failures failures;
    for (int64_t t = 0; t < s_.tokens && failures.empty(); ++t) {
      const std::vector<double> expected = gradient_of(t);
      for (int64_t e = 0; e < s_.num_experts; ++e) {
        compare(*dlogits_, "dlogits", t, e, expected[static_cast<size_t>(e)], &failures);
      }
    }
    int64_t offset = 0;
    if (!dlogits_->untouched_elsewhere(&offset)) {
      failures.emplace_back("a byte outside dlogits changed");
    }
    return failures;
  }

 private:
  std::vector<double> scores_of(int64_t t) const {
    std::vector<double> scores;
    for (int64_t e = 0; e < s_.num_experts; ++e) scores.push_back(logits_->before(0, t, e));
    if (s_.how.score == ExpertScore::kSigmoid) {
      for (double& s : scores) s = 1 / (1 + std::exp(-s));
      return scores;
    }
    double sum = 0;
    for (double& s : scores) sum += s = std::exp(s);
    for (double& s : scores) s /= sum;
    return scores;
  }

  std::vector<int64_t> choose(const std::vector<double>& scores) const {
    std::vector<double> choice = scores;
    for (int64_t e = 0; e < s_.num_experts; ++e) {
      if (s_.bias) choice[static_cast<size_t>(e)] += bias_->before(0, 0, e);
    }
    for (double& value : choice) {
      if (std::isnan(value)) value = -1e30;
    }
    const auto ranked = [](std::vector<int64_t> indices, const std::vector<double>& by) {
      std::stable_sort(indices.begin(), indices.end(), [&](int64_t a, int64_t b) {
        return by[static_cast<size_t>(a)] > by[static_cast<size_t>(b)];
      });
      return indices;
    };
    const int64_t size = s_.num_experts / s_.num_groups;
    std::vector<double> groups;
    for (int64_t g = 0; g < s_.num_groups; ++g) {
      std::vector<double> members(choice.begin() + g * size, choice.begin() + (g + 1) * size);
      std::sort(members.rbegin(), members.rend());
      const bool both = s_.group_score == ExpertGroupScore::kTopTwo && size > 1;
      groups.push_back(both ? members[0] + members[1] : members[0]);
    }
    std::vector<int64_t> numbers(static_cast<size_t>(s_.num_groups));
    std::iota(numbers.begin(), numbers.end(), 0);
    std::vector<int64_t> open = ranked(numbers, groups);
    open.resize(static_cast<size_t>(s_.top_groups));
    std::vector<int64_t> candidates;
    for (int64_t e = 0; e < s_.num_experts; ++e) {
      if (std::find(open.begin(), open.end(), e / size) != open.end()) candidates.push_back(e);
    }
    std::vector<int64_t> best = ranked(candidates, choice);
    best.resize(static_cast<size_t>(s_.top_k));
    return best;
  }

  /// By the chain rule, one partial derivative at a time.
  std::vector<double> gradient_of(int64_t t) const {
    const std::vector<double> scores = scores_of(t);
    const std::vector<int64_t> chosen = choose(scores);
    double sum = 0;
    for (const int64_t e : chosen) sum += scores[static_cast<size_t>(e)];
    std::vector<double> dscores(scores.size(), 0);
    for (int64_t j = 0; j < s_.top_k; ++j) {
      const double gradient = s_.how.scale * dweights_->before(0, t, j);
      const auto e = static_cast<size_t>(chosen[static_cast<size_t>(j)]);
      if (!s_.how.normalize) {
        dscores[e] += gradient;
        continue;
      }
      for (const int64_t other : chosen) {
        const double own = static_cast<size_t>(other) == e ? sum : 0;
        dscores[static_cast<size_t>(other)] += gradient * (own - scores[e]) / (sum * sum);
      }
    }
    std::vector<double> dlogits(scores.size(), 0);
    for (size_t i = 0; i < scores.size(); ++i) {
      if (s_.how.score == ExpertScore::kSigmoid) {
        dlogits[i] = dscores[i] * scores[i] * (1 - scores[i]);
        continue;
      }
      for (size_t e = 0; e < scores.size(); ++e) {
        dlogits[i] += dscores[e] * scores[e] * ((i == e ? 1.0 : 0.0) - scores[i]);
      }
    }
    return dlogits;
  }

  void upload() {
    for (PlacedTensor* tensor : tensors()) tensor->upload();
    ids_->upload();
  }

  Status finish(const Status& called) {
    if (!called.ok()) return called;
    if (Status status = subject_.memory.finish(subject_.context); !status.ok()) return status;
    for (PlacedTensor* tensor : tensors()) tensor->download();
    ids_->download();
    return {};
  }

  std::vector<PlacedTensor*> tensors() const {
    return {logits_.get(), bias_.get(), weights_.get(), dweights_.get(), dlogits_.get()};
  }

  void compare(const PlacedTensor& tensor, const char* what, int64_t row, int64_t col, double value,
               Failures* failures) const {
    // Gradients are differences of numbers of up to |scale|.
    const double magnitude = std::fabs(value) + std::fabs(s_.how.scale);
    const verify::Expected expected{value, verify::rounding_bound(compute_, kRoundings, magnitude)};
    const double got = tensor.after(0, row, col);
    if (verify::agrees(tensor.dtype(), expected, got)) return;
    failures->push_back(text(what, "[", row, ", ", col, "] = ", got, ", expected ", value, " (",
                             s_.num_experts, " experts, top_k ", s_.top_k, ", ", s_.num_groups,
                             " groups)"));
  }

  const Subject& subject_;
  Selection s_;
  DType compute_;
  std::unique_ptr<PlacedTensor> logits_, bias_, weights_, dweights_, dlogits_;
  std::unique_ptr<IndexMatrix> ids_;
};

void run(const Subject& subject, const DTypes& types, const Selection& s, Failures* failures) {
  for (Failures found :
       {Tokens(subject, types, s).check_forward(), Tokens(subject, types, s).check_gradient()}) {
    failures->insert(failures->end(), found.begin(), found.end());
  }
}

}  // namespace

Failures chooses_the_best(const Subject& subject, const DTypes& types) {
  Failures failures;
  for (const ExpertScore score : {ExpertScore::kSoftmax, ExpertScore::kSigmoid}) {
    for (const bool normalize : {true, false}) {
      for (const int64_t num_experts : {1, 8, 33, 128, 257}) {
        Selection s{.num_experts = num_experts, .how = {score, normalize, normalize ? 1.0 : 2.5}};
        for (const int64_t top_k : {1, 2, 8, 40}) {
          s.top_k = std::min(top_k, num_experts);
          run(subject, types, s, &failures);
          s.bias = !s.bias;
        }
      }
    }
  }
  return failures;
}

Failures keeps_to_the_best_groups(const Subject& subject, const DTypes& types) {
  Failures failures;
  for (const ExpertGroupScore score : {ExpertGroupScore::kMax, ExpertGroupScore::kTopTwo}) {
    for (const int64_t num_groups : {2, 8, 64}) {
      for (const int64_t top_groups : {int64_t{1}, num_groups / 2, num_groups}) {
        const int64_t open = 64 / num_groups * top_groups;
        run(subject, types,
            {.num_experts = 64,
             .top_k = std::min<int64_t>(6, open),
             .how = {ExpertScore::kSigmoid, true, 2.5},
             .bias = true,
             .num_groups = num_groups,
             .top_groups = top_groups,
             .group_score = score},
            &failures);
      }
    }
  }
  return failures;
}

Failures ties_go_to_the_lower_index(const Subject& subject, const DTypes& types) {
  Failures failures;
  run(subject, types, {.num_experts = 70, .top_k = 9, .ties = true}, &failures);
  run(subject, types,
      {.num_experts = 70, .top_k = 9, .how = {ExpertScore::kSigmoid, false, 1.0}, .ties = true},
      &failures);
  // Not a number is worse than anything; sigmoid keeps it to its own expert.
  const Selection with_nan{
      .num_experts = 12, .top_k = 11, .how = {ExpertScore::kSigmoid, false, 1.0}, .nan = true};
  const Failures found = Tokens(subject, types, with_nan).check_forward();
  failures.insert(failures.end(), found.begin(), found.end());
  return failures;
}

Failures any_strides(const Subject& subject, const DTypes& types) {
  Failures failures;
  for (const Layout& layout : odd_layouts(Placement::kRows)) {
    run(subject, types, {.tokens = 7, .top_k = 3, .bias = true, .layout = layout}, &failures);
  }
  for (const int64_t tokens : {0, 1}) {
    run(subject, types, {.tokens = tokens, .top_k = 0}, &failures);
    run(subject, types, {.tokens = tokens, .num_experts = 5, .top_k = 5}, &failures);
  }
  return failures;
}

}  // namespace cadre::contract::select_experts
