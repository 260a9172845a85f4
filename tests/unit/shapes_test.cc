// The shared shapes and the router that makes their group sizes.
#include "bench/shapes/shapes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

namespace cadre::shapes {
namespace {

TEST(Shapes, NamesAreUniqueAndFound) {
  std::set<std::string_view> names;
  for (const Shape& shape : all()) {
    EXPECT_TRUE(names.insert(shape.name).second) << shape.name;
    ASSERT_NE(find(shape.name), nullptr);
    EXPECT_EQ(find(shape.name)->n, shape.n);
    // gpt-oss has a square layer; any other such shape would hide a swapped transpose.
    EXPECT_EQ(shape.k == shape.n, shape.name == "gpt-oss-120b-w2") << shape.name;
  }
  EXPECT_EQ(find("no such shape"), nullptr);
  EXPECT_EQ(tagged("train").size() + tagged("decode").size(), all().size());
}

TEST(Shapes, ALayerIsMadeOfItsTwoProducts) {
  for (const LayerShape& layer : layers()) {
    const std::vector<Shape> products = called(layer.name);
    ASSERT_EQ(products.size(), 2u) << layer.name;
    EXPECT_EQ(products[0].name, std::string(layer.name) + "-w13");
    EXPECT_EQ(products[1].name, std::string(layer.name) + "-w2");
    EXPECT_EQ(products[0].n, 2 * layer.intermediate);
    EXPECT_EQ(products[1].n, layer.hidden);
    double operations = 0;
    for (const Shape& one : products) {
      operations += 2.0 * static_cast<double>(one.m()) * static_cast<double>(one.k) *
                    static_cast<double>(one.n);
    }
    EXPECT_EQ(layer.forward_operations(), operations) << layer.name;
    EXPECT_EQ(find_layer(layer.name)->experts, products[1].num_groups);
  }
  EXPECT_EQ(called("decode").size(), tagged("decode").size());
  EXPECT_EQ(called("qwen3-30b-w13").size(), 1u);
  EXPECT_TRUE(called("nonesuch").empty());
  EXPECT_EQ(find_layer("qwen3-30b-w13"), nullptr);
}

TEST(Shapes, RowsPerExpertAreTheDocumentedOnes) {
  for (const Shape& shape : tagged("decode")) {
    EXPECT_GE(shape.m() / shape.num_groups, 2) << shape.name;
    EXPECT_LE(shape.m() / shape.num_groups, 16) << shape.name;
  }
  EXPECT_EQ(find("dsv3-ep8-w13")->m() / 32, 2048);
  EXPECT_EQ(find("gpt-oss-120b-w13")->m() / 128, 256);
}

TEST(Router, SizesSumToTheRowsAndRepeat) {
  for (double skew : {0.0, 1.0}) {
    const auto sizes = router_group_sizes(128, 65536, skew, 7);
    EXPECT_EQ(sizes.size(), 128u);
    EXPECT_EQ(std::accumulate(sizes.begin(), sizes.end(), int64_t{0}), 65536);
    EXPECT_EQ(sizes, router_group_sizes(128, 65536, skew, 7));
    EXPECT_NE(sizes, router_group_sizes(128, 65536, skew, 8));
  }
  EXPECT_TRUE(router_group_sizes(0, 10, 0, 1).empty());
  EXPECT_EQ(router_group_sizes(3, 0, 1, 1), (std::vector<int64_t>{0, 0, 0}));
}

TEST(Router, SkewSpreadsTheSizes) {
  // Balanced: mean 512, standard deviation 22.5. Zipf over 128: the first rank takes 1/5.43 of all.
  const auto balanced = router_group_sizes(128, 65536, 0, 3);
  EXPECT_GT(*std::min_element(balanced.begin(), balanced.end()), 512 - 6 * 23);
  EXPECT_LT(*std::max_element(balanced.begin(), balanced.end()), 512 + 6 * 23);
  const auto skewed = router_group_sizes(128, 65536, 1, 3);
  EXPECT_NEAR(static_cast<double>(*std::max_element(skewed.begin(), skewed.end())), 65536 / 5.43,
              600);
}

TEST(Router, MostRowsGoToOneGroup) {
  const auto sizes = most_in_one_group(128, 8192, 0.9);
  EXPECT_EQ(std::accumulate(sizes.begin(), sizes.end(), int64_t{0}), 8192);
  EXPECT_EQ(sizes[64], 7373);
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (i == 64) continue;
    EXPECT_GE(sizes[i], 6);
    EXPECT_LE(sizes[i], 7);
  }
  EXPECT_EQ(most_in_one_group(1, 10, 0.9), std::vector<int64_t>{10});
  EXPECT_EQ(most_in_one_group(3, 1, 0.9), (std::vector<int64_t>{0, 1, 0}));
  EXPECT_TRUE(most_in_one_group(0, 0, 0.9).empty());
}

}  // namespace
}  // namespace cadre::shapes
