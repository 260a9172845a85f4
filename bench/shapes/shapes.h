// The shapes that tests and benchmarks share: expert layers of known models, with group sizes as a
// router makes them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cadre::shapes {

/// One expert layer: `tokens` x `top_k` rows spread over `num_groups` experts, each [k, n].
struct Shape {
  std::string_view name;  ///< "qwen3-30b-w13", "decode-gpt-oss-120b-w13"
  std::string_view tag;   ///< "train" or "decode"
  int64_t num_groups;
  int64_t tokens;
  int64_t top_k;
  int64_t k;
  int64_t n;

  int64_t m() const { return tokens * top_k; }
};

/// All shapes, the ones for training first.
std::span<const Shape> all();

/// The shapes of one tag.
std::vector<Shape> tagged(std::string_view tag);

/// Null when no shape has this name.
const Shape* find(std::string_view name);

/// The experts of a layer: w13 [experts, 2 x intermediate, hidden] (gate and up), w2 [experts,
/// hidden, intermediate], top_k of them for each token.
struct LayerShape {
  std::string_view name{};
  int64_t tokens = 0;
  int64_t top_k = 0;
  int64_t hidden = 0;
  int64_t intermediate = 0;
  int64_t experts = 0;

  int64_t rows() const { return tokens * top_k; }
  /// Of all weights.
  int64_t weight_elements() const { return 3 * experts * hidden * intermediate; }
  /// Of both products, forward.
  double forward_operations() const {
    return 6.0 * static_cast<double>(rows()) * static_cast<double>(hidden) *
           static_cast<double>(intermediate);
  }
  /// A training step: forward, to the input, to the weights.
  double step_operations() const { return 3 * forward_operations(); }
};

/// The layers of all(): "qwen3-30b" is made of qwen3-30b-w13 and qwen3-30b-w2.
std::span<const LayerShape> layers();

/// Null when no layer has this name.
const LayerShape* find_layer(std::string_view name);

/// The shapes that a word means: a tag, a shape's name, or a layer's (both of its products).
std::vector<Shape> called(std::string_view name);

/// "train, decode, qwen3-30b, ..., qwen3-30b-w13, ...": every word that called()
/// knows, for messages.
std::string known_names();

/// The same number of groups with k, n and the tokens divided by `divisor` (each at least 1): for
/// machines on which the full shape takes too long.
Shape scaled_down(const Shape& shape, int64_t divisor);

/// Rows of each group when every one of `m` rows draws its group by itself: with probability
/// proportional to 1 / rank^skew, ranks being dealt to the groups at random. Skew 0 is a balanced
/// router (sizes still differ), skew 1 a Zipf one. Equal arguments give equal sizes everywhere.
std::vector<int64_t> router_group_sizes(int64_t num_groups, int64_t m, double skew, uint64_t seed);

/// The worst that routing does to one layer: `share` of the rows in the middle group, the others
/// equally over the rest.
std::vector<int64_t> most_in_one_group(int64_t num_groups, int64_t m, double share);

}  // namespace cadre::shapes
