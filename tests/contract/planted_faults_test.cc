// The contract can fail: each planted fault is caught by the check that is there for it, and that
// check is silent without the fault.
#include <gtest/gtest.h>

#include <memory>

#include "backend/registry.h"
#include "tests/contract/contract.h"
#include "tests/contract/faulty_backend.h"
#include "tests/contract/moe_mlp_checks.h"
#include "tests/contract/row_checks.h"
#include "verify/case_call.h"
#include "verify/differential.h"

namespace cadre::contract {
namespace {

constexpr DTypes kF32{DType::kF32, DType::kF32, DType::kF32};
constexpr DTypes kBF16{DType::kBF16, DType::kBF16, DType::kBF16};
constexpr DTypes kInt8{DType::kI8, DType::kI8, DType::kI32};

struct Planted {
  const char* name;
  Fault fault;
  Check check;
  DTypes types;
};

const Planted kPlanted[] = {
    {"WrongGroup", Fault::kWrongGroup, gmm::right_for_every_partition, kF32},
    {"WrongGroupInt8", Fault::kWrongGroup, gmm::right_for_every_partition, kInt8},
    {"SwappedTranspose", Fault::kSwappedTranspose, gmm::transposed_weights, kBF16},
    {"SwappedTransposePlain", Fault::kSwappedTranspose, gmm::right_at_tile_edges, kF32},
    {"UnwrittenTail", Fault::kUnwrittenTail, gmm::tail_rows, kF32},
    {"UnwrittenTailInt8", Fault::kUnwrittenTail, gmm::tail_rows, kInt8},
    {"OverwrittenTail", Fault::kOverwrittenTail, gmm::tail_rows, kBF16},
    {"TailZeroedDespiteBeta", Fault::kTailZeroedDespiteBeta, gmm::tail_rows, kF32},
    {"LeakedNanGmm", Fault::kLeakedNan, gmm::nan_stays_in_its_group, kF32},
    {"LeakedNanTgmm", Fault::kLeakedNan, tgmm::nan_stays_in_its_group, kBF16},
    {"OffByOneRowGmm", Fault::kOffByOneRow, gmm::right_for_every_partition, kF32},
    {"OffByOneRowTgmm", Fault::kOffByOneRow, tgmm::right_for_every_partition, kF32},
    {"BetaReadWhenZeroGmm", Fault::kBetaReadWhenZero, gmm::c_is_not_read_without_beta, kF32},
    {"BetaReadWhenZeroTgmm", Fault::kBetaReadWhenZero, tgmm::alpha_beta_and_c, kF32},
    {"Offset32Bit", Fault::kOffset32Bit, offsets_are_64_bit, kBF16},
    {"IgnoredGroupOffsetGmm", Fault::kIgnoredGroupOffset, gmm::group_offset, kF32},
    {"IgnoredGroupOffsetTgmm", Fault::kIgnoredGroupOffset, tgmm::group_offset, kF32},
    {"BiasAddedTwice", Fault::kBiasAddedTwice, gmm::bias_and_scales, kF32},
    {"BetaIgnoredGmm", Fault::kBetaIgnored, gmm::alpha_beta_and_c, kF32},
    {"BetaIgnoredMainGrad", Fault::kBetaIgnored, tgmm::accumulates_in_main_grad, kBF16},
    {"BetaIgnoredGroupedGemm", Fault::kBetaIgnored, grouped_gemm::alpha_beta_and_c, kF32},
    {"AlphaOfWrongGroup", Fault::kAlphaOfWrongGroup, gmm::alpha_beta_and_c, kF32},
    {"CIgnored", Fault::kCIgnored, gmm::alpha_beta_and_c, kF32},
    {"RowScaleIgnored", Fault::kRowScaleIgnored, gmm::bias_and_scales, kBF16},
    {"BiasScaleIgnored", Fault::kBiasScaleIgnored, gmm::bias_and_scales, kBF16},
    {"LastColumnMissing", Fault::kLastColumnMissing, gmm::right_at_tile_edges, kF32},
    {"DepthRoundedDown", Fault::kDepthRoundedDown, gmm::right_at_tile_edges, kBF16},
    {"EmptyGroupUnwritten", Fault::kEmptyGroupUnwritten, tgmm::empty_groups_give_beta_c, kF32},
    {"TransposedGradient", Fault::kTransposedGradient, tgmm::right_at_tile_edges, kF32},
    {"PaddingWritten", Fault::kPaddingWritten, gmm::any_strides, kF32},
    {"Int8InFloatGmm", Fault::kInt8InFloat, gmm::int8_sums_are_exact, kInt8},
    {"Int8InFloatTgmm", Fault::kInt8InFloat, tgmm::int8_sums_are_exact, kInt8},
    {"FirstPointerForAll", Fault::kFirstPointerForAll, gmm::pointer_lists, kF32},
    {"RoundsTowardsZero", Fault::kRoundsTowardsZero, gmm::right_at_tile_edges, kBF16},
    {"AccumulatesInOutput", Fault::kAccumulatesInOutput, gmm::right_at_tile_edges, kBF16},
    {"NotRepeatable", Fault::kNotRepeatable, gmm::right_for_every_partition, kF32},
    {"DependsOnRowCount", Fault::kDependsOnRowCount, gmm_rows_are_batch_invariant, kF32},
    {"DependsOnRowCountOf4096", Fault::kDependsOnRowCount, gmm_row_of_one_and_of_4096, kF32},
    {"DependsOnRowCountOf4096Tgmm", Fault::kDependsOnRowCount, tgmm_group_of_one_row_and_of_4096,
     kF32},
    {"BiasGradReadsTail", Fault::kBiasGradReadsTail, bias_grad::sums_rows_of_each_group, kF32},
    {"ScaleGradientKeepsTail", Fault::kScaleGradientKeepsTail, bias_grad::gradient_of_bias_scale,
     kF32},
    {"RouteUnstable", Fault::kRouteUnstable, route::sorts_slots_by_expert, kF32},
    {"RoutePadsSource", Fault::kRoutePadsSource, route::drops_ids_out_of_range, kF32},
    {"CombineReadsDropped", Fault::kCombineReadsDropped, combine::dropped_slots_are_not_read, kF32},
    {"CombineGradKeepsDropped", Fault::kCombineGradKeepsDropped, combine::gradients, kF32},
    {"GateLayoutIgnored", Fault::kGateLayoutIgnored, activate::every_kind_and_layout, kBF16},
    {"GateLayoutIgnoredInGradient", Fault::kGateLayoutIgnored, activate::gradients, kF32},
    {"ActivateGradUnscaled", Fault::kActivateGradUnscaled, activate::gradients, kF32},
    {"IgnoredGroupOffsetMoe", Fault::kIgnoredGroupOffset, moe_mlp::shards_add_up, kF32},
    {"BetaIgnoredMoe", Fault::kBetaIgnored, moe_mlp::adds_to_main_grad, kF32},
    {"TransposedGradientMoe", Fault::kTransposedGradient, moe_mlp::every_form_of_weights, kF32},
    {"GateLayoutIgnoredMoe", Fault::kGateLayoutIgnored, moe_mlp::every_activation_and_layout,
     kBF16},
    {"ActivateGradUnscaledMoe", Fault::kActivateGradUnscaled,
     moe_mlp::router_weights_on_either_side, kF32},
    {"UnwrittenTailMoe", Fault::kUnwrittenTail, moe_mlp::shards_add_up, kF32},
    {"DependsOnRowCountMoe", Fault::kDependsOnRowCount, moe_mlp::tokens_are_batch_invariant, kF32},
    {"RowDotOfScaled", Fault::kRowDotOfScaled, activate::gradients, kF32},
    {"BlocksAcrossGroups", Fault::kBlocksAcrossGroups, quantize::groups_are_alone, kBF16},
    {"ScaleRoundedDown", Fault::kScaleRoundedDown, quantize::scales_of_every_rule, kF32},
    {"InfinitySaturates", Fault::kInfinitySaturates, quantize::numbers_without_a_scale, kBF16},
    {"ColumnPaddingUnwritten", Fault::kColumnPaddingUnwritten, quantize::every_mode_and_type, kF32},
    {"QuantizedTailUnwritten", Fault::kQuantizedTailUnwritten, quantize::every_mode_and_type, kF32},
};

FaultyBackend& faulty_backend() {
  static FaultyBackend* backend = [] {
    auto owned = std::make_unique<FaultyBackend>();
    FaultyBackend* raw = owned.get();
    backend::Registry::instance().add_front(std::move(owned));
    return raw;
  }();
  return *backend;
}

ContextOptions faulty_options() {
  faulty_backend();
  ContextOptions options;
  options.backend = std::string(FaultyBackend::kName);
  return options;
}

class PlantedFaults : public testing::TestWithParam<Planted> {
 protected:
  PlantedFaults() : context_(faulty_options()) {}
  ~PlantedFaults() override { faulty_backend().plant(Fault::kNone); }

  Failures run(Fault fault) {
    faulty_backend().plant(fault);
    return GetParam().check({{context_, verify::host_memory()}}, GetParam().types);
  }

  Context context_;
};

TEST_P(PlantedFaults, IsCaught) {
  const Failures without = run(Fault::kNone);
  EXPECT_TRUE(without.empty()) << without.front();
  const Failures with = run(GetParam().fault);
  ASSERT_FALSE(with.empty()) << "the contract has no eye for this fault";
  EXPECT_EQ(with.front().find("mmap failed"), std::string::npos);
  RecordProperty("caught_as", with.front());
}

INSTANTIATE_TEST_SUITE_P(All, PlantedFaults, testing::ValuesIn(kPlanted),
                         [](const auto& planted) { return std::string(planted.param.name); });

TEST(Exceptions, DoNotLeaveAnOp) {
  Context context(faulty_options());
  faulty_backend().plant(Fault::kThrows);
  const auto run = [&](const Case& c) {
    const verify::CaseData data = verify::make_data(c, verify::host_memory());
    return verify::call(context, c, data);
  };
  for (const auto& [op, c] : {std::pair{"gmm", gmm::basic(kF32)},
                              {"tgmm", tgmm::basic(kF32)},
                              {"grouped_gemm", grouped_gemm::basic(kF32)},
                              {"bias_grad", bias_grad::basic(kF32)}}) {
    const Status status = run(c);
    EXPECT_EQ(status.code(), StatusCode::kInternal);
    EXPECT_EQ(status.message(), std::string(op) + ": out of host memory");
  }
  faulty_backend().plant(Fault::kNone);
}

class DifferentialFaults : public testing::TestWithParam<Fault> {};

TEST_P(DifferentialFaults, AreFoundByRandomCases) {
  Context context(faulty_options());
  faulty_backend().plant(GetParam());
  verify::DifferentialOptions options;
  options.cases = 400;
  options.max_failures = 1;
  options.backend = std::string(FaultyBackend::kName);
  const verify::DifferentialReport report =
      verify::run_differential({context, verify::host_memory()}, options);
  faulty_backend().plant(Fault::kNone);
  ASSERT_EQ(report.failures.size(), 1u);
  EXPECT_EQ(report.failures[0].command, "cadre verify --cases 1 --seed " +
                                            std::to_string(report.failures[0].seed) +
                                            " --backend faulty");
}

INSTANTIATE_TEST_SUITE_P(All, DifferentialFaults,
                         testing::Values(Fault::kWrongGroup, Fault::kUnwrittenTail,
                                         Fault::kOverwrittenTail, Fault::kLeakedNan,
                                         Fault::kOffByOneRow, Fault::kBetaReadWhenZero,
                                         Fault::kIgnoredGroupOffset, Fault::kBiasAddedTwice));

}  // namespace
}  // namespace cadre::contract
