// The shapes of the goals table and the router that makes group sizes for them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace cadre::bench {

struct MoeShape {
  std::string name;
  int experts;
  int rows;  // tokens x top_k
  int k;
  int n;
  bool decode;
};

inline std::vector<MoeShape> moe_shapes() {
  return {{"mixtral-8x7b w13", 8, 8192 * 2, 4096, 28672, false},
          {"mixtral-8x7b w2", 8, 8192 * 2, 14336, 4096, false},
          {"dsv3-ep8 w13", 32, 8192 * 8, 7168, 4096, false},
          {"dsv3-ep8 w2", 32, 8192 * 8, 2048, 7168, false},
          {"qwen3-235b w13", 128, 8192 * 8, 4096, 3072, false},
          {"qwen3-235b w2", 128, 8192 * 8, 1536, 4096, false},
          {"qwen3-30b w13", 128, 8192 * 8, 2048, 1536, false},
          {"qwen3-30b w2", 128, 8192 * 8, 768, 2048, false},
          {"gpt-oss-120b w13", 128, 8192 * 4, 2880, 5760, false},
          {"dsv3-ep8 w13 decode", 32, 64 * 8, 7168, 4096, true},
          {"qwen3-235b w13 decode", 128, 128 * 8, 4096, 3072, true},
          {"qwen3-30b w2 decode", 128, 128 * 8, 768, 2048, true},
          {"gpt-oss-120b w13 decode", 128, 64 * 4, 2880, 5760, true}};
}

// A multinomial draw: expert i has weight 1 / (i + 1)^skew, experts in a random order.
inline std::vector<int> route(int experts, int rows, double skew, uint32_t seed) {
  std::vector<double> weights;
  for (int i = 0; i < experts; ++i) weights.push_back(std::pow(i + 1.0, -skew));
  std::mt19937 generator(seed);
  std::shuffle(weights.begin(), weights.end(), generator);
  std::discrete_distribution<int> draw(weights.begin(), weights.end());
  std::vector<int> sizes(experts, 0);
  for (int i = 0; i < rows; ++i) ++sizes[draw(generator)];
  return sizes;
}

}  // namespace cadre::bench
