// The shapes that tests and benchmarks share: expert layers of known models, with group sizes as a
// router makes them.
#pragma once

#include <cstdint>
#include <span>
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
