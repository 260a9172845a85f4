// The C ABI: structs of other versions, null handles, and defaults that stand in one place.
#include "cadre/c_api.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>

#include "cadre/cadre.h"
#include "core/text.h"

namespace cadre {
namespace {

using Owner = std::unique_ptr<cadre_context, decltype(&cadre_context_destroy)>;

Owner make_context() {
  cadre_context* context = nullptr;
  EXPECT_EQ(cadre_context_create(nullptr, &context), CADRE_OK);
  return {context, cadre_context_destroy};
}

/// A valid product of [2, 1] and [1, 1, 2] whose result is 2.
struct SmallProduct {
  float lhs[2] = {1, 1}, rhs[2] = {2, 2}, out[4] = {-1, -1, -1, -1};
  int32_t sizes[1] = {2};
  int64_t lhs_shape[2] = {2, 1}, rhs_shape[3] = {1, 1, 2}, out_shape[2] = {2, 2};
  cadre_tensor lhs_view = cadre_tensor_contiguous(lhs, CADRE_F32, 2, lhs_shape, {CADRE_CPU, 0});
  cadre_tensor rhs_view = cadre_tensor_contiguous(rhs, CADRE_F32, 3, rhs_shape, {CADRE_CPU, 0});
  cadre_tensor out_view = cadre_tensor_contiguous(out, CADRE_F32, 2, out_shape, {CADRE_CPU, 0});
  cadre_grouped_tensor rhs_grouped = cadre_grouped_from_tensor(&rhs_view);
  cadre_grouped_tensor out_grouped = cadre_grouped_from_tensor(&out_view);

  void fill(cadre_gmm_args* args) {
    args->lhs = &lhs_view;
    args->rhs = &rhs_grouped;
    args->out = &out_grouped;
    args->group_sizes = {sizes, CADRE_I32, {CADRE_CPU, 0}, 1, CADRE_SIZES};
  }
};

TEST(CApi, StructOfAnotherVersionIsAnError) {
  const Owner context = make_context();
  SmallProduct product;
  struct {
    cadre_gmm_args args;
    int64_t field_of_tomorrow;
  } newer;
  cadre_gmm_args_init(&newer.args, sizeof(newer));
  product.fill(&newer.args);
  EXPECT_EQ(cadre_gmm(context.get(), &newer.args), CADRE_INVALID);
  EXPECT_EQ(
      std::string(cadre_status_message()),
      text("gmm: struct_size = ", sizeof(newer), ", expected at most ", sizeof(cadre_gmm_args),
           " (the caller was built with the header of another version)"));
  EXPECT_EQ(product.out[0], -1);

  // Also what cadre_call_options was before it lost two fields.
  cadre_call_options options;
  cadre_call_options_init(&options, sizeof(options));
  options.struct_size += 8;
  cadre_gmm_args args;
  cadre_gmm_args_init(&args, sizeof(args));
  product.fill(&args);
  args.options = &options;
  EXPECT_EQ(cadre_gmm(context.get(), &args), CADRE_INVALID);
  EXPECT_NE(std::string(cadre_status_message()).find("struct_size = "), std::string::npos);
  EXPECT_EQ(product.out[0], -1);

  cadre_context_options settings;
  cadre_context_options_init(&settings, sizeof(settings));
  settings.struct_size += 8;
  cadre_context* other = nullptr;
  EXPECT_EQ(cadre_context_create(&settings, &other), CADRE_INVALID);
  EXPECT_EQ(other, nullptr);
}

TEST(CApi, StructThatWasNotInitialisedIsAnError) {
  const Owner context = make_context();
  const cadre_gmm_args args = {};
  EXPECT_EQ(cadre_gmm(context.get(), &args), CADRE_INVALID);
  EXPECT_NE(std::string(cadre_status_message()).find("was the struct filled by its init function?"),
            std::string::npos);
}

TEST(CApi, NullHandlesAndStructsAreErrors) {
  const Owner context = make_context();
  cadre_gmm_args args;
  cadre_gmm_args_init(&args, sizeof(args));
  EXPECT_EQ(cadre_gmm(nullptr, &args), CADRE_INVALID);
  EXPECT_STREQ(cadre_status_message(), "gmm: context = null, expected a context");
  EXPECT_EQ(cadre_gmm(context.get(), nullptr), CADRE_INVALID);
  EXPECT_STREQ(cadre_status_message(), "gmm: args = null, expected a struct");
  SmallProduct product;
  product.fill(&args);
  EXPECT_EQ(cadre_gmm_workspace_size(context.get(), &args, nullptr), CADRE_INVALID);
  EXPECT_EQ(cadre_context_create(nullptr, nullptr), CADRE_INVALID);
  EXPECT_EQ(cadre_check(nullptr, {CADRE_CPU, 0}, nullptr), CADRE_INVALID);
  cadre_context_destroy(nullptr);
}

TEST(CApi, UnknownBackendIsNamed) {
  cadre_context_options settings;
  cadre_context_options_init(&settings, sizeof(settings));
  settings.backend = "quantum";
  cadre_context* context = nullptr;
  EXPECT_EQ(cadre_context_create(&settings, &context), CADRE_INVALID);
  EXPECT_EQ(context, nullptr);
  EXPECT_NE(std::string(cadre_status_message()).find("context: backend = \"quantum\""),
            std::string::npos);
}

TEST(CApi, AValidCallComputes) {
  const Owner context = make_context();
  SmallProduct product;
  cadre_gmm_args args;
  cadre_gmm_args_init(&args, sizeof(args));
  product.fill(&args);
  ASSERT_EQ(cadre_gmm(context.get(), &args), CADRE_OK) << cadre_status_message();
  for (float value : product.out) EXPECT_EQ(value, 2);
  size_t size_bytes = 99;
  EXPECT_EQ(cadre_gmm_workspace_size(context.get(), &args, &size_bytes), CADRE_OK);
  EXPECT_EQ(size_bytes, 0u);  // on the cpu
  EXPECT_EQ(cadre_check(context.get(), {CADRE_CPU, 0}, nullptr), CADRE_OK);
}

TEST(CApi, ExplainNamesTheKernelAndRunsNothing) {
  const Owner context = make_context();
  SmallProduct product;
  cadre_gmm_args args;
  cadre_gmm_args_init(&args, sizeof(args));
  product.fill(&args);
  const char* explanation = nullptr;
  ASSERT_EQ(cadre_gmm_explain(context.get(), &args, &explanation), CADRE_OK)
      << cadre_status_message();
  EXPECT_NE(std::string(explanation).find("Chosen    cpu/"), std::string::npos) << explanation;
  EXPECT_EQ(product.out[0], -1);

  cadre_call_options options;
  cadre_call_options_init(&options, sizeof(options));
  options.config = "reference";
  args.options = &options;
  ASSERT_EQ(cadre_gmm_explain(context.get(), &args, &explanation), CADRE_OK);
  EXPECT_NE(std::string(explanation).find("Chosen    reference"), std::string::npos);

  product.sizes[0] = 3;
  EXPECT_EQ(cadre_gmm_explain(context.get(), &args, &explanation), CADRE_INVALID);
  EXPECT_EQ(explanation, nullptr);
  EXPECT_EQ(cadre_gmm_explain(context.get(), &args, nullptr), CADRE_INVALID);
  EXPECT_EQ(cadre_tgmm_explain(nullptr, nullptr, &explanation), CADRE_INVALID);
}

/// "name = value" of every default, as the C++ structs have them.
std::map<std::string, std::string> cpp_defaults() {
  const GmmArgs gmm;
  const TgmmArgs tgmm;
  const GroupedGemmArgs gemm;
  const BiasGradArgs bias_grad;
  const CallOptions call;
  const ContextOptions context;
  return {
      {"gmm.transpose_rhs", text(gmm.transpose_rhs)},
      {"gmm.alpha", text(gmm.alpha.uniform)},
      {"gmm.beta", text(gmm.beta.uniform)},
      {"gmm.accumulate", text(gmm.accumulate)},
      {"gmm.tail", text(static_cast<int>(gmm.tail))},
      {"gmm.group_offset", text(gmm.group_offset.value)},
      {"tgmm.alpha", text(tgmm.alpha.uniform)},
      {"tgmm.beta", text(tgmm.beta.uniform)},
      {"tgmm.accumulate", text(tgmm.accumulate)},
      {"tgmm.group_offset", text(tgmm.group_offset.value)},
      {"grouped_gemm.transa", text(gemm.transa)},
      {"grouped_gemm.transb", text(gemm.transb)},
      {"grouped_gemm.alpha", text(gemm.alpha.uniform)},
      {"grouped_gemm.beta", text(gemm.beta.uniform)},
      {"grouped_gemm.accumulate", text(gemm.accumulate)},
      {"bias_grad.accumulate", text(bias_grad.accumulate)},
      {"bias_grad.group_offset", text(bias_grad.group_offset.value)},
      {"call.precision", text(static_cast<int>(call.precision))},
      {"call.average_rows", text(call.average_rows)},
      {"call.workspace_size_bytes", text(call.workspace_size_bytes)},
      {"context.num_threads", text(context.num_threads)},
      {"context.sm_count", text(context.sm_count)},
      {"context.tuned", text(context.tuned ? 1 : 0)},
  };
}

/// The same, as the init functions of the C ABI set them.
std::map<std::string, std::string> c_defaults() {
  cadre_gmm_args gmm;
  cadre_tgmm_args tgmm;
  cadre_grouped_gemm_args gemm;
  cadre_bias_grad_args bias_grad;
  cadre_call_options call;
  cadre_context_options context;
  std::memset(&gmm, 0x77, sizeof(gmm));
  std::memset(&tgmm, 0x77, sizeof(tgmm));
  std::memset(&gemm, 0x77, sizeof(gemm));
  std::memset(&bias_grad, 0x77, sizeof(bias_grad));
  std::memset(&call, 0x77, sizeof(call));
  std::memset(&context, 0x77, sizeof(context));
  cadre_gmm_args_init(&gmm, sizeof(gmm));
  cadre_tgmm_args_init(&tgmm, sizeof(tgmm));
  cadre_grouped_gemm_args_init(&gemm, sizeof(gemm));
  cadre_bias_grad_args_init(&bias_grad, sizeof(bias_grad));
  cadre_call_options_init(&call, sizeof(call));
  cadre_context_options_init(&context, sizeof(context));
  return {
      {"gmm.transpose_rhs", text(gmm.transpose_rhs)},
      {"gmm.alpha", text(gmm.alpha)},
      {"gmm.beta", text(gmm.beta)},
      {"gmm.accumulate", text(gmm.accumulate)},
      {"gmm.tail", text(gmm.tail)},
      {"gmm.group_offset", text(gmm.group_offset)},
      {"tgmm.alpha", text(tgmm.alpha)},
      {"tgmm.beta", text(tgmm.beta)},
      {"tgmm.accumulate", text(tgmm.accumulate)},
      {"tgmm.group_offset", text(tgmm.group_offset)},
      {"grouped_gemm.transa", text(gemm.transa)},
      {"grouped_gemm.transb", text(gemm.transb)},
      {"grouped_gemm.alpha", text(gemm.alpha)},
      {"grouped_gemm.beta", text(gemm.beta)},
      {"grouped_gemm.accumulate", text(gemm.accumulate)},
      {"bias_grad.accumulate", text(bias_grad.accumulate)},
      {"bias_grad.group_offset", text(bias_grad.group_offset)},
      {"call.precision", text(call.precision)},
      {"call.average_rows", text(call.average_rows)},
      {"call.workspace_size_bytes", text(call.workspace_size_bytes)},
      {"context.num_threads", text(context.num_threads)},
      {"context.sm_count", text(context.sm_count)},
      {"context.tuned", text(context.tuned)},
  };
}

/// Rows `| op.option | value | ...` of docs/defaults.md.
std::map<std::string, std::string> documented_defaults() {
  std::map<std::string, std::string> defaults;
  std::ifstream file("docs/defaults.md");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("| `", 0) != 0) continue;
    const size_t name_end = line.find('`', 3);
    const size_t value_begin = line.find('`', name_end + 1);
    const size_t value_end = line.find('`', value_begin + 1);
    defaults[line.substr(3, name_end - 3)] =
        line.substr(value_begin + 1, value_end - value_begin - 1);
  }
  return defaults;
}

TEST(Defaults, StructsOfBothApisAndDocsAgree) {
  EXPECT_EQ(c_defaults(), cpp_defaults());
  EXPECT_EQ(documented_defaults(), cpp_defaults());
}

/// Enumerators whose values are promised to be the same in both APIs.
TEST(Defaults, EnumeratorsOfBothApisAgree) {
  EXPECT_EQ(CADRE_TAIL_ZERO, static_cast<int>(Tail::kZero));
  EXPECT_EQ(CADRE_TAIL_UNTOUCHED, static_cast<int>(Tail::kUntouched));
  EXPECT_EQ(CADRE_TAIL_FORBID, static_cast<int>(Tail::kForbid));
  EXPECT_EQ(CADRE_PRECISION_TF32, static_cast<int>(Precision::kTf32));
  EXPECT_EQ(CADRE_ROWS, static_cast<int>(Placement::kRows));
  EXPECT_EQ(CADRE_STACKED, static_cast<int>(Placement::kStacked));
  EXPECT_EQ(CADRE_LIST, static_cast<int>(Placement::kList));
  EXPECT_EQ(CADRE_PACKED, static_cast<int>(Placement::kPacked));
  EXPECT_EQ(CADRE_CUDA, static_cast<int>(DeviceKind::kCuda));
  EXPECT_EQ(CADRE_INVALID, static_cast<int>(StatusCode::kInvalid));
  EXPECT_EQ(CADRE_UNSUPPORTED, static_cast<int>(StatusCode::kUnsupported));
  EXPECT_EQ(CADRE_INTERNAL, static_cast<int>(StatusCode::kInternal));
  for (int32_t dtype = CADRE_F64; dtype <= CADRE_E8M0; ++dtype) {
    EXPECT_STREQ(cadre_dtype_name(dtype), std::string(name_of(static_cast<DType>(dtype))).c_str());
    EXPECT_EQ(cadre_dtype_size(dtype), size_of(static_cast<DType>(dtype)));
    EXPECT_EQ(dtype_from_name(cadre_dtype_name(dtype)), static_cast<DType>(dtype));
  }
  EXPECT_STREQ(cadre_dtype_name(CADRE_E8M0), "e8m0");
  EXPECT_EQ(cadre_dtype_size(99), 0u);
}

TEST(CApi, AViewWithoutAShapeIsRejectedByTheOps) {
  const cadre_tensor view = cadre_tensor_contiguous(nullptr, CADRE_F32, 2, nullptr, {CADRE_CPU, 0});
  EXPECT_GT(view.rank, 4);
  EXPECT_EQ(cadre_tensor_contiguous(nullptr, CADRE_F32, 0, nullptr, {CADRE_CPU, 0}).rank, 0);
}

}  // namespace
}  // namespace cadre
