// Scores, choice and weights of one token, and their gradient, in the type `Compute`.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "cadre/select_experts.h"
#include "cpu/row_indices.h"

namespace cadre::cpu {

/// Added to the sum of the chosen scores, so that a token whose scores all vanish gets weights of
/// zero; in f32 no sum above 1e-12 changes by it.
inline constexpr double kLeastScoreSum = 1e-20;

template <typename Compute>
void scores_of(const TensorView& logits, int64_t token, ExpertScore score,
               std::vector<Compute>* scores) {
  const int64_t num_experts = logits.shape[1];
  scores->resize(static_cast<size_t>(num_experts));
  for (int64_t e = 0; e < num_experts; ++e) {
    (*scores)[static_cast<size_t>(e)] = static_cast<Compute>(value_at(logits, token, e));
  }
  if (score == ExpertScore::kSigmoid) {
    for (Compute& s : *scores) s = Compute{1} / (Compute{1} + std::exp(-s));
    return;
  }
  Compute most = -std::numeric_limits<Compute>::infinity();
  for (const Compute s : *scores) most = std::max(most, s);
  Compute sum = 0;
  for (Compute& s : *scores) sum += s = std::exp(s - most);
  for (Compute& s : *scores) s /= sum;
}

/// A number that can be compared: NaN and -inf are the lowest there is.
template <typename Compute>
Compute comparable(Compute value) {
  constexpr Compute kLowest = std::numeric_limits<Compute>::lowest();
  return value >= kLowest ? value : kLowest;
}

/// The index of the highest value, the lowest of several.
template <typename Compute>
size_t highest(const std::vector<Compute>& values) {
  return static_cast<size_t>(std::max_element(values.begin(), values.end()) - values.begin());
}

/// Closes the groups that aren't among the best.
template <typename Compute>
void close_groups(const SelectExpertsArgs& args, std::vector<Compute>* choice) {
  constexpr Compute kClosed = -std::numeric_limits<Compute>::infinity();
  if (args.top_groups == args.num_groups) return;
  const auto size = choice->size() / static_cast<size_t>(args.num_groups);
  std::vector<Compute> groups;
  for (size_t begin = 0; begin < choice->size(); begin += size) {
    Compute best = kClosed;
    Compute second = kClosed;
    for (size_t i = begin; i < begin + size; ++i) {
      const Compute value = (*choice)[i];
      second = std::max(second, std::min(best, value));
      best = std::max(best, value);
    }
    const bool both = args.group_score == ExpertGroupScore::kTopTwo && size > 1;
    groups.push_back(comparable(both ? best + second : best));
  }
  std::vector<bool> open(groups.size(), false);
  for (int64_t i = 0; i < args.top_groups; ++i) {
    const size_t group = highest(groups);
    open[group] = true;
    groups[group] = kClosed;
  }
  for (size_t i = 0; i < choice->size(); ++i) {
    if (!open[i / size]) (*choice)[i] = kClosed;
  }
}

template <typename Compute>
void select_experts_of(const SelectExpertsArgs& args, int64_t token) {
  const int64_t top_k = args.expert_ids.shape[1];
  std::vector<Compute> scores;
  scores_of(args.logits, token, args.selection.score, &scores);
  std::vector<Compute> choice = scores;
  for (size_t e = 0; e < choice.size(); ++e) {
    if (args.correction_bias.given()) {
      choice[e] += static_cast<Compute>(
          load_as_double(args.correction_bias.data, args.correction_bias.dtype,
                         static_cast<int64_t>(e) * args.correction_bias.strides[0]));
    }
    choice[e] = comparable(choice[e]);
  }
  close_groups(args, &choice);
  std::vector<Compute> chosen;
  auto sum = static_cast<Compute>(kLeastScoreSum);
  for (int64_t j = 0; j < top_k; ++j) {
    const size_t e = highest(choice);
    choice[e] = -std::numeric_limits<Compute>::infinity();
    chosen.push_back(scores[e]);
    sum += scores[e];
    set_index(args.expert_ids, token * args.expert_ids.strides[0] + j * args.expert_ids.strides[1],
              static_cast<int64_t>(e));
  }
  const auto scale = static_cast<Compute>(args.selection.scale);
  for (int64_t j = 0; j < top_k; ++j) {
    const Compute score = chosen[static_cast<size_t>(j)];
    const Compute weight = args.selection.normalize ? score / sum : score;
    set_value(args.weights, token, j, static_cast<double>(scale * weight));
  }
}

template <typename Compute>
void select_experts_grad_of(const SelectExpertsGradArgs& args, int64_t token) {
  const int64_t top_k = args.expert_ids.shape[1];
  std::vector<Compute> scores;
  scores_of(args.logits, token, args.selection.score, &scores);
  const auto scale = static_cast<Compute>(args.selection.scale);
  auto sum = static_cast<Compute>(kLeastScoreSum);
  Compute dot = 0;
  const auto each_slot = [&](const auto& body) {
    for (int64_t j = 0; j < top_k; ++j) {
      const int64_t e = index_at(args.expert_ids, token, j);
      if (e < 0) continue;
      body(static_cast<size_t>(e), scale * static_cast<Compute>(value_at(args.dweights, token, j)));
    }
  };
  each_slot([&](size_t e, Compute gradient) {
    sum += scores[e];
    dot += gradient * scores[e];
  });
  std::vector<Compute> dscores(scores.size(), Compute{0});
  each_slot([&](size_t e, Compute gradient) {
    dscores[e] += args.selection.normalize ? (gradient - dot / sum) / sum : gradient;
  });
  Compute mean = 0;
  for (size_t e = 0; e < scores.size(); ++e) mean += scores[e] * dscores[e];
  for (size_t e = 0; e < scores.size(); ++e) {
    const Compute slope = args.selection.score == ExpertScore::kSigmoid
                              ? (Compute{1} - scores[e]) * dscores[e]
                              : dscores[e] - mean;
    set_value(args.dlogits, token, static_cast<int64_t>(e), static_cast<double>(scores[e] * slope));
  }
}

}  // namespace cadre::cpu
