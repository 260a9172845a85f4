// The tile shapes of the Hopper kernels, and the choice among them: neither needs a GPU.
#include <gtest/gtest.h>

#include <string>

#include "cuda/sm90/heuristic.h"
#include "cuda/sm90/shapes.h"

namespace cadre::sm90 {
namespace {

/// Rows x columns of out. Operand A is columns of gmm's out and rows of tgmm's.
void expect_name_says_tile(const ShapeFacts& facts, std::string_view op) {
  const bool is_gmm = op == "gmm";
  const std::string tile = std::to_string(is_gmm ? facts.width : facts.rows_a) + "x" +
                           std::to_string(is_gmm ? facts.rows_a : facts.width);
  constexpr std::string_view kSuffixes[] = {"", "_gated", "_interleaved", "_activated"};
  const bool differentiates = facts.gradient_of != ActivationForm::kNone;
  const ActivationForm form = differentiates ? facts.gradient_of : facts.activation;
  const std::string suffix =
      std::string(differentiates ? "_d" : "") + std::string(kSuffixes[static_cast<size_t>(form)]);
  constexpr std::string_view kPromotions[] = {"", "_promoted", "_blocks"};
  const std::string promotion(kPromotions[static_cast<size_t>(facts.promotion)]);
  const std::string begin = "sm90/" + std::string(op) + "_" + tile + suffix + promotion;
  EXPECT_TRUE(facts.name == begin || facts.name == begin + "_c") << facts.name << " has " << tile;
  EXPECT_GE(facts.stages, 3) << facts.name;
}

TEST(HopperShapes, NamesSayTheirTiles) {
  for (const ShapeFacts& facts : kGmmShapes) expect_name_says_tile(facts, "gmm");
  for (const ShapeFacts& facts : kTgmmShapes) expect_name_says_tile(facts, "tgmm");
  EXPECT_FALSE(kTgmmShapes[0].reads_c);
  EXPECT_TRUE(kTgmmShapes[1].reads_c);
}

TEST(HopperShapes, ChosenOneTakesTheOutputOnAtMostEverySm) {
  constexpr int kSms = 132;
  for (const int64_t rows : {0, 1, 48, 49, 256, 319, 320, 4096}) {
    for (const int64_t k : {1, 768, 3072, 3073, 14336}) {
      for (const bool f32 : {false, true}) {
        for (const bool c : {false, true}) {
          for (const ActivationForm form : {ActivationForm::kNone, ActivationForm::kHalves,
                                            ActivationForm::kPairs, ActivationForm::kEach}) {
            if (form != ActivationForm::kNone && (f32 || c)) continue;
            const GmmExtent extent = {.m = rows * 8,
                                      .n = 200,
                                      .k = k,
                                      .num_groups = 8,
                                      .average_rows = 0,
                                      .output = {.is_f32 = f32, .has_c = c, .activation = form}};
            const GmmConfig config = choose_gmm_config(extent, kSms);
            EXPECT_TRUE(takes_sums(config.shape, {}));
            EXPECT_TRUE(takes_output(config.shape, extent.output))
                << facts_of(config.shape).name << ", rows " << rows << ", k " << k;
            EXPECT_GE(config.ctas, 1);
            EXPECT_LE(config.ctas, kSms);
          }
        }
      }
    }
  }
}

// A row's dot product is added up in this kernel's order.
TEST(HopperShapes, AGradientsKernelDependsOnNoNumberOfRows) {
  for (const ActivationForm form :
       {ActivationForm::kHalves, ActivationForm::kPairs, ActivationForm::kEach}) {
    for (const int64_t rows : {1, 48, 49, 320, 4096}) {
      const GmmExtent extent = {.m = rows * 8,
                                .n = 200,
                                .k = 4096,
                                .num_groups = 8,
                                .average_rows = rows,
                                .output = {.gradient_of = form}};
      const GmmConfig config = choose_gmm_config(extent, 132);
      EXPECT_EQ(facts_of(config.shape).gradient_of, form) << "rows " << rows;
      EXPECT_TRUE(takes_output(config.shape, extent.output));
    }
  }
}

TEST(HopperShapes, ChosenOneMakesTheSumsOfFp8) {
  for (const Promotion promotion : {Promotion::kNone, Promotion::kSums, Promotion::kScaled}) {
    for (const int64_t rows : {0, 48, 49, 4096}) {
      for (const bool f32 : {false, true}) {
        for (const bool c : {false, true}) {
          const GmmExtent extent = {.m = rows * 8,
                                    .n = 200,
                                    .k = 4096,
                                    .num_groups = 8,
                                    .average_rows = 0,
                                    .output = {.is_f32 = f32, .has_c = c},
                                    .sums = {.fp8 = true, .promotion = promotion}};
          const GmmConfig config = choose_gmm_config(extent, 132);
          EXPECT_TRUE(takes_output(config.shape, extent.output)) << facts_of(config.shape).name;
          EXPECT_TRUE(takes_sums(config.shape, extent.sums)) << facts_of(config.shape).name;
          EXPECT_EQ(takes_sums(config.shape, {}), config.shape == GmmShapeKind::kTurn ||
                                                      config.shape == GmmShapeKind::kTurnWithC);
        }
      }
    }
  }
}

TEST(HopperShapes, ChosenByRowsAndK) {
  const auto chosen = [](int64_t rows, int64_t k) {
    return choose_gmm_config(
               {.m = rows * 128, .n = 4096, .k = k, .num_groups = 128, .average_rows = 0}, 132)
        .shape;
  };
  EXPECT_EQ(chosen(48, 4096), GmmShapeKind::kNarrow);
  EXPECT_EQ(chosen(49, 3072), GmmShapeKind::kTurn);
  EXPECT_EQ(chosen(319, 4096), GmmShapeKind::kGeneral);
  EXPECT_EQ(chosen(320, 4096), GmmShapeKind::kLarge);
}

}  // namespace
}  // namespace cadre::sm90
