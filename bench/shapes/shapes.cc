// Shapes of known models' expert layers, and a multinomial router.
#include "bench/shapes/shapes.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace cadre::shapes {
namespace {

// w13: gate and up together (n = 2 x intermediate size); w2: down. dsv3-ep8 is one of eight shards
// of 256 experts, and the row count is what arrives there.
constexpr Shape kShapes[] = {
    {"mixtral-8x7b-w13", "train", 8, 8192, 2, 4096, 28672},
    {"mixtral-8x7b-w2", "train", 8, 8192, 2, 14336, 4096},
    {"dsv3-ep8-w13", "train", 32, 8192, 8, 7168, 4096},
    {"dsv3-ep8-w2", "train", 32, 8192, 8, 2048, 7168},
    {"qwen3-235b-w13", "train", 128, 8192, 8, 4096, 3072},
    {"qwen3-235b-w2", "train", 128, 8192, 8, 1536, 4096},
    {"qwen3-30b-w13", "train", 128, 8192, 8, 2048, 1536},
    {"qwen3-30b-w2", "train", 128, 8192, 8, 768, 2048},
    {"gpt-oss-120b-w13", "train", 128, 8192, 4, 2880, 5760},
    {"gpt-oss-120b-w2", "train", 128, 8192, 4, 2880, 2880},  // n is no multiple of 128
    {"decode-dsv3-ep8-w13", "decode", 32, 64, 8, 7168, 4096},
    {"decode-qwen3-235b-w13", "decode", 128, 128, 8, 4096, 3072},
    {"decode-qwen3-30b-w2", "decode", 128, 128, 8, 768, 2048},
    {"decode-gpt-oss-120b-w13", "decode", 128, 64, 4, 2880, 5760},
};

/// Of NAME-w13 and NAME-w2. dsv3-ep8 is a shard, not a layer that tokens pass through.
constexpr std::string_view kLayers[] = {"mixtral-8x7b", "qwen3-235b", "qwen3-30b", "gpt-oss-120b"};

const Shape& product_of(std::string_view layer, std::string_view product) {
  return *find(std::string(layer) + std::string(product));
}

/// Uniform in [0, 1). The engine is specified by the standard, distributions aren't.
double uniform(std::mt19937_64& engine) { return static_cast<double>(engine() >> 11) * 0x1p-53; }

}  // namespace

std::span<const Shape> all() { return kShapes; }

std::vector<Shape> tagged(std::string_view tag) {
  std::vector<Shape> found;
  for (const Shape& shape : kShapes) {
    if (shape.tag == tag) found.push_back(shape);
  }
  return found;
}

const Shape* find(std::string_view name) {
  for (const Shape& shape : kShapes) {
    if (shape.name == name) return &shape;
  }
  return nullptr;
}

std::span<const LayerShape> layers() {
  static const std::vector<LayerShape> made = [] {
    std::vector<LayerShape> layers;
    for (const std::string_view name : kLayers) {
      const Shape &w13 = product_of(name, "-w13"), &w2 = product_of(name, "-w2");
      layers.push_back({name, w13.tokens, w13.top_k, w13.k, w2.k, w13.num_groups});
    }
    return layers;
  }();
  return made;
}

const LayerShape* find_layer(std::string_view name) {
  for (const LayerShape& layer : layers()) {
    if (layer.name == name) return &layer;
  }
  return nullptr;
}

std::vector<Shape> called(std::string_view name) {
  std::vector<Shape> found = tagged(name);
  if (const Shape* shape = find(name)) found.push_back(*shape);
  if (find_layer(name) != nullptr) {
    found.push_back(product_of(name, "-w13"));
    found.push_back(product_of(name, "-w2"));
  }
  return found;
}

std::string known_names() {
  std::string names = "train, decode";
  for (const std::string_view layer : kLayers) names += ", " + std::string(layer);
  for (const Shape& shape : kShapes) names += ", " + std::string(shape.name);
  return names;
}

Shape scaled_down(const Shape& shape, int64_t divisor) {
  const auto divide = [divisor](int64_t value) { return std::max<int64_t>(1, value / divisor); };
  Shape scaled = shape;
  scaled.tokens = divide(shape.tokens);
  scaled.k = divide(shape.k);
  scaled.n = divide(shape.n);
  return scaled;
}

std::vector<int64_t> router_group_sizes(int64_t num_groups, int64_t m, double skew, uint64_t seed) {
  std::vector<int64_t> sizes(static_cast<size_t>(num_groups), 0);
  if (num_groups == 0) return sizes;
  std::mt19937_64 engine(seed);
  std::vector<size_t> group_of_rank(sizes.size());
  for (size_t i = 0; i < sizes.size(); ++i) group_of_rank[i] = i;
  for (size_t i = sizes.size() - 1; i > 0; --i) {  // Fisher-Yates
    std::swap(group_of_rank[i], group_of_rank[engine() % (i + 1)]);
  }
  std::vector<double> cumulative(sizes.size());
  double total = 0;
  for (size_t rank = 0; rank < sizes.size(); ++rank) {
    total += std::pow(static_cast<double>(rank + 1), -skew);
    cumulative[rank] = total;
  }
  for (int64_t row = 0; row < m; ++row) {
    const auto rank =
        std::upper_bound(cumulative.begin(), cumulative.end() - 1, uniform(engine) * total) -
        cumulative.begin();
    ++sizes[group_of_rank[static_cast<size_t>(rank)]];
  }
  return sizes;
}

std::vector<int64_t> most_in_one_group(int64_t num_groups, int64_t m, double share) {
  std::vector<int64_t> sizes(static_cast<size_t>(num_groups), 0);
  if (num_groups == 0) return sizes;
  const int64_t middle = num_groups / 2, others = num_groups - 1;
  int64_t left = others == 0 ? 0 : m - std::llround(static_cast<double>(m) * share);
  sizes[static_cast<size_t>(middle)] = m - left;
  for (int64_t i = 0, after = others; i < num_groups; ++i) {
    if (i == middle) continue;
    const int64_t rows = left / after--;
    sizes[static_cast<size_t>(i)] = rows;
    left -= rows;
  }
  return sizes;
}

}  // namespace cadre::shapes
