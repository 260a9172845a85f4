// The portable family: which kernel a problem gets, and the arguments of the product kernels.
#include "cuda/sm80/family.h"

#include <algorithm>
#include <array>

#include "cuda/rows/launchers.h"
#include "cuda/sm80/launchers.h"
#include "cuda/sm80/mma_shape.h"
#include "cuda/sm80/prepare.h"
#include "cuda/sm80/shape_fits.h"

namespace cadre::sm80 {
namespace {

/// A row of the table: what a problem gets, whole.
struct PortableKernel : cuda::FamilyKernel {
  std::string_view name;
  Status (*launch)(const ProductLaunch&) = nullptr;  ///< products
  int32_t tile_m = 0, tile_n = 0, tile_k = 0, stages = 0, threads = 0;
};

constexpr PortableKernel simple(std::string_view name, Status (*launch)(const ProductLaunch&) = {},
                                int32_t tile = 0, int32_t threads = 256) {
  return {{{}, &portable_family}, name, launch, tile, tile, tile > 0 ? 16 : 0, 0, threads};
}

template <MmaTile kTile>
Status launch_mma(const ProductLaunch& product) {
  return product.args.a_dtype == DType::kBF16 ? launch_bf16(product, kTile)
                                              : launch_f16(product, kTile);
}

template <typename Shape>
constexpr PortableKernel tiled(std::string_view name, Status (*launch)(const ProductLaunch&),
                               int32_t tile_k) {
  return {{{}, &portable_family}, name,   launch,         Shape::kTileM,
          Shape::kTileN,          tile_k, Shape::kStages, Shape::kThreads};
}

constexpr PortableKernel kMmaEven =
    tiled<EvenShape>("sm80/mma_160x256x64", &launch_even, EvenShape::kBlockElements);
constexpr PortableKernel kMmaWide = tiled<WideShape>(
    "sm80/mma_128x256x64", &launch_mma<MmaTile::kWide>, WideShape::kBlockBytes / 2);
constexpr PortableKernel kMmaDeep = tiled<DeepShape>(
    "sm80/mma_128x128x64", &launch_mma<MmaTile::kDeep>, DeepShape::kBlockBytes / 2);
constexpr PortableKernel kMma = tiled<SmallShape>(
    "sm80/mma_128x128x32", &launch_mma<MmaTile::kSmall>, SmallShape::kBlockBytes / 2);
constexpr PortableKernel kInt8 =
    tiled<SmallShape>("sm80/int8", &launch_int8, SmallShape::kBlockBytes);
constexpr PortableKernel kTf32 = simple("sm80/tf32", &launch_tf32, 128);
constexpr PortableKernel kF32 = simple("sm80/f32", &launch_f32, 128);
constexpr PortableKernel kScaled = simple("sm80/f32_scaled", &launch_scaled, 64);
constexpr PortableKernel kF64 = simple("sm80/f64", &launch_f64, 64);
constexpr PortableKernel kBiasGrad = simple("sm80/bias_grad", nullptr, 0, 128);
constexpr PortableKernel kRoute = simple("sm80/route");
constexpr PortableKernel kPermute = simple("sm80/permute");
constexpr PortableKernel kCombine = simple("sm80/combine");
constexpr PortableKernel kCombineGrad = simple("sm80/combine_grad");
constexpr PortableKernel kSelectExperts = simple("sm80/select_experts");
constexpr PortableKernel kSelectExpertsGrad = simple("sm80/select_experts_grad");
constexpr PortableKernel kActivate = simple("sm80/activate");
constexpr PortableKernel kActivateGrad = simple("sm80/activate_grad");
constexpr PortableKernel kQuantize = simple("sm80/quantize");
constexpr PortableKernel kDequantize = simple("sm80/dequantize");
constexpr PortableKernel kAmax = simple("sm80/amax");

constexpr std::array kKernels = {&kMmaEven,  &kMmaWide,      &kMmaDeep,       &kMma,
                                 &kInt8,     &kTf32,         &kF32,           &kScaled,
                                 &kF64,      &kBiasGrad,     &kRoute,         &kPermute,
                                 &kCombine,  &kCombineGrad,  &kSelectExperts, &kSelectExpertsGrad,
                                 &kActivate, &kActivateGrad, &kQuantize,      &kDequantize,
                                 &kAmax};
constexpr auto kNames = [] {
  std::array<std::string_view, kKernels.size()> names{};
  for (size_t i = 0; i < names.size(); ++i) names[i] = kKernels[i]->name;
  return names;
}();

/// The kernel of an op that has one alone; null for products.
const PortableKernel* only_kernel_of(plan::Op op) {
  switch (op) {
    case plan::Op::kBiasGrad:
      return &kBiasGrad;
    case plan::Op::kRoute:
      return &kRoute;
    case plan::Op::kPermute:
      return &kPermute;
    case plan::Op::kCombine:
      return &kCombine;
    case plan::Op::kCombineGrad:
      return &kCombineGrad;
    case plan::Op::kSelectExperts:
      return &kSelectExperts;
    case plan::Op::kSelectExpertsGrad:
      return &kSelectExpertsGrad;
    case plan::Op::kActivate:
      return &kActivate;
    case plan::Op::kActivateGrad:
      return &kActivateGrad;
    case plan::Op::kQuantize:
      return &kQuantize;
    case plan::Op::kDequantize:
      return &kDequantize;
    case plan::Op::kAmax:
      return &kAmax;
    default:
      return nullptr;
  }
}

/// Both operands of one 16-bit type: what the tensor cores take as it is.
bool is_16bit_pair(const plan::Problem& problem) {
  const DType dtype = problem.lhs.dtype;
  return dtype == problem.rhs.dtype && (dtype == DType::kBF16 || dtype == DType::kF16) &&
         problem.compute == DType::kF32;
}

/// In floating point, where no product of tiles overflows.
double tiles_of(int64_t extent, int32_t tile) {
  const int64_t tiles = (extent + tile - 1) / tile;
  return static_cast<double>(tiles);
}

/// No call has more tiles than this.
double most_tiles(const plan::Problem& problem, int32_t tile_m, int32_t tile_n) {
  const auto groups = static_cast<double>(problem.num_local_groups);
  const double columns = tiles_of(problem.n, tile_n);
  if (problem.op == plan::Op::kTgmm) return groups * tiles_of(problem.k, tile_m) * columns;
  if (problem.op == plan::Op::kGroupedGemm) return groups * tiles_of(problem.m, tile_m) * columns;
  return (tiles_of(problem.m, tile_m) + groups) * columns;
}

/// A wide tile loads a quarter less for each output, but takes a whole multiprocessor: nothing is
/// computed beside its epilogue. So it needs a deep sum, rows that fill it, and some tiles for each
/// multiprocessor.
bool fills_wide_tiles(const plan::Problem& problem, const cuda::DeviceProperties& device) {
  const bool is_tgmm = problem.op == plan::Op::kTgmm;
  const int64_t depth = is_tgmm ? problem.average_rows : problem.k;
  const int64_t rows = is_tgmm                                ? problem.k
                       : problem.op == plan::Op::kGroupedGemm ? problem.m
                                                              : problem.average_rows;
  // Measured: a forward product gains from 768 terms on, a weight gradient of 512 rows doesn't.
  const int64_t least_depth = is_tgmm ? 1024 : 512;
  constexpr int64_t kTilesOfSm = 4;
  const double tiles = static_cast<double>(problem.num_local_groups) *
                       tiles_of(rows, WideShape::kTileM) * tiles_of(problem.n, WideShape::kTileN);
  return depth >= least_depth && rows >= WideShape::kTileM && problem.n > DeepShape::kTileN &&
         tiles >= static_cast<double>(kTilesOfSm * device.sm_count);
}

/// 16 bytes at a time in every group, as far as the host knows.
bool is_vector(const plan::OperandLayout& layout) {
  const auto size = static_cast<int64_t>(size_of(layout.dtype));
  const int64_t row_bytes = layout.row_stride * size;
  return layout.col_stride == 1 && layout.alignment_bytes >= 16 && row_bytes > 0 &&
         row_bytes <= INT32_MAX && row_bytes % 16 == 0 &&
         (layout.placement != Placement::kStacked || layout.group_stride * size % 16 == 0);
}

/// A stacked operand stored column by column is the same memory as its transpose stored row by row;
/// the kernels load the latter 16 bytes at a time.
template <typename Operand>
bool is_turned(const Operand& operand) {
  return operand.placement == Placement::kStacked && operand.col_stride != 1 &&
         operand.row_stride == 1;
}

/// What even_kernel.cuh computes: results of the operands' type without options, whole vectors of
/// 16 bytes, and at least a tile of whatever isn't rows of a gmm.
bool takes_even_tiles(const plan::Problem& problem, const cuda::DeviceProperties& device) {
  const bool is_tgmm = problem.op == plan::Op::kTgmm;
  if (!is_tgmm && problem.op != plan::Op::kGmm) return false;
  if (!fits<EvenShape>(device) || problem.out.dtype != problem.lhs.dtype ||
      problem.lhs_rows.by_index() || problem.rhs_rows.by_index() || problem.epilogue.has_beta ||
      problem.epilogue.bias.given() || problem.epilogue.has_row_scale) {
    return false;
  }
  if (problem.n < EvenShape::kTileN || (is_tgmm && problem.k < EvenShape::kTileM) ||
      problem.n % 8 != 0 || problem.k % 8 != 0 ||
      std::max({problem.m, problem.k, problem.n}) > INT32_MAX) {
    return false;
  }
  plan::OperandLayout rhs = problem.rhs;
  if (is_turned(rhs)) std::swap(rhs.row_stride, rhs.col_stride);
  return is_vector(problem.lhs) && is_vector(rhs) && is_vector(problem.out);
}

/// Rows that are worth some slices, a deep sum, and some tiles for each multiprocessor, since
/// nothing is computed beside an epilogue.
bool fills_even_tiles(const plan::Problem& problem, const cuda::DeviceProperties& device) {
  const bool is_tgmm = problem.op == plan::Op::kTgmm;
  constexpr int64_t kLeastRows = 256;
  const int64_t least_depth = is_tgmm ? 256 : 512;
  constexpr int64_t kTilesOfSm = 4;
  const int64_t rows = is_tgmm ? problem.k : problem.average_rows;
  const int64_t depth = is_tgmm ? problem.average_rows : problem.k;
  const double tiles = static_cast<double>(problem.num_local_groups) *
                       tiles_of(rows, EvenShape::kTileM) * tiles_of(problem.n, EvenShape::kTileN);
  return rows >= kLeastRows && depth >= least_depth &&
         tiles >= static_cast<double>(kTilesOfSm * device.sm_count);
}

/// The kernels that compute this problem as the contract demands, best first. All of them add over
/// K in one order.
std::vector<const PortableKernel*> candidates(const plan::Problem& problem,
                                              const cuda::DeviceProperties& device) {
  if (const PortableKernel* only = only_kernel_of(problem.op); only != nullptr) return {only};
  if (problem.compute == DType::kI32) return {&kInt8};
  if (problem.compute == DType::kF64) return {&kF64};
  if (is_16bit_pair(problem)) {
    std::vector<const PortableKernel*> kernels;
    if (fits<DeepShape>(device)) kernels.push_back(&kMmaDeep);
    if (fits<WideShape>(device)) {
      kernels.insert(fills_wide_tiles(problem, device) ? kernels.begin() : kernels.end(),
                     &kMmaWide);
    }
    kernels.push_back(&kMma);
    if (takes_even_tiles(problem, device)) {
      kernels.insert(fills_even_tiles(problem, device) ? kernels.begin() : kernels.end(),
                     &kMmaEven);
    }
    return kernels;
  }
  if (is_fp8(problem.lhs.dtype)) return {&kScaled};
  if (problem.precision == Precision::kTf32) return {&kTf32};
  return {&kF32};
}

VectorArguments vector_arguments(const TensorView& view) {
  if (!view.given()) return {};
  return {static_cast<const char*>(view.data), view.strides[0], view.dtype};
}

EpilogueArguments epilogue_arguments(const plan::Epilogue& epilogue) {
  return {.c_col_stride = epilogue.c.col_stride,
          .c_dtype = epilogue.c.dtype,
          .bias_stride = epilogue.bias.col_stride,
          .bias_dtype = epilogue.bias.dtype,
          .row_scale = vector_arguments(epilogue.row_scale),
          .bias_scale = vector_arguments(epilogue.bias_scale)};
}

RowIndexArguments index_arguments(const GroupedTensor& tensor, const TensorView& index,
                                  const PrepareArguments& prepared) {
  if (!index.given()) return {};
  return {.data = index.data,
          .is_i64 = index.dtype == DType::kI64,
          .stride = index.strides[0],
          .limit = static_cast<int32_t>(tensor.rows.uniform),
          .fault = prepared.groups.fault};
}

/// True when it was turned around.
bool turn_around(GroupedTensor* tensor) {
  if (!is_turned(*tensor)) return false;
  std::swap(tensor->rows, tensor->cols);
  std::swap(tensor->row_stride, tensor->col_stride);
  return true;
}

ProductArguments product_arguments(const plan::Problem& problem, const plan::Operands& operands,
                                   const PrepareArguments& prepared) {
  ProductArguments args{.table = prepared.table, .num_groups = problem.num_local_groups};
  const bool is_tgmm = problem.op == plan::Op::kTgmm;
  args.a_rows_along_k = prepared.transpose_a || (is_tgmm && !prepared.columns.a);
  args.b_rows_along_n = prepared.transpose_b || prepared.columns.b;
  args.a_scales = prepared.a_scales;
  args.b_scales = prepared.b_scales;
  args.a_col_stride = operands.lhs.col_stride;
  args.b_col_stride = operands.rhs.col_stride;
  args.d_col_stride = operands.out.col_stride;
  args.a_element_bytes = prepared.a.element_bytes;
  args.b_element_bytes = prepared.b.element_bytes;
  args.a_dtype = operands.lhs.dtype;
  args.b_dtype = operands.rhs.dtype;
  args.d_dtype = operands.out.dtype;
  if (problem.lhs_rows.by_index()) {
    args.a_index = index_arguments(operands.lhs, operands.lhs_index, prepared);
  }
  if (problem.rhs_rows.by_index()) {
    args.b_index = index_arguments(operands.rhs, operands.rhs_index, prepared);
  }
  args.epilogue = epilogue_arguments(operands.epilogue);
  // With beta uncovered rows keep what they hold; a list has none.
  if (problem.op == plan::Op::kGmm && problem.tail == Tail::kZero && !problem.epilogue.has_beta &&
      operands.out.placement == Placement::kRows) {
    args.zero_outside = prepared.offsets;
    args.zero_data = prepared.d.data;
    args.zero_element_bytes = prepared.d.element_bytes;
    args.zero_rows = problem.m;
    args.zero_cols = problem.n;
    args.zero_row_stride = operands.out.row_stride;
  }
  return args;
}

/// An upper bound of the blocks that find something to do: tiles, or rows to zero (a few for each
/// block).
int64_t useful_blocks(const plan::Problem& problem, const plan::Config& config) {
  double blocks = most_tiles(problem, config.tile_m, config.tile_n);
  constexpr int64_t kZeroRowsOfBlock = 8;
  if (problem.op == plan::Op::kGmm) {
    const int64_t zero_blocks = problem.m / kZeroRowsOfBlock;
    blocks += static_cast<double>(zero_blocks);
  }
  return static_cast<int64_t>(std::min(blocks, 1e9));
}

class PortableFamily final : public cuda::KernelFamily {
 public:
  std::span<const std::string_view> kernels() const override { return kNames; }

  Status supports(const plan::Problem& problem,
                  const cuda::DeviceProperties& device) const override {
    if (device.major < 8) {
      return Status::unsupported(text("needs compute capability 8.0, ", device.name, " has ",
                                      device.major, ".", device.minor));
    }
    if (problem.epilogue.activates() || problem.epilogue.gradient.given()) {
      return Status::unsupported("applies no activation in the epilogue");
    }
    // The dims of grouped_gemm may be bounds alone: there
    // prepare_kernel.cu counts.
    const bool small = problem.compute == DType::kF64 || is_fp8(problem.lhs.dtype);
    const int32_t tile = small ? 64 : 128;
    if (problem.op != plan::Op::kGroupedGemm && problem.op != plan::Op::kBiasGrad &&
        most_tiles(problem, tile, tile) > static_cast<double>(kMaxTiles)) {
      return Status::unsupported(text("has more than 2^30 tiles of ", tile, " x ", tile));
    }
    return {};
  }

  /// Every loader does. Row numbers have 32 bits there; and a group of a column-wise copy begins
  /// elsewhere than the rows that the other operand has by index.
  bool follows_rows(const plan::Problem& problem) const override {
    return problem.lhs_rows.rows < INT32_MAX && problem.rhs_rows.rows < INT32_MAX &&
           !problem.lhs_scales.columns && !problem.rhs_scales.columns;
  }

  Status configure(const plan::Problem& problem, const cuda::DeviceProperties& device,
                   const char* pinned, plan::Config* config) const override {
    const std::vector<const PortableKernel*> kernels = candidates(problem, device);
    const PortableKernel* chosen = kernels.front();
    if (pinned != nullptr) {
      const auto found = std::find_if(kernels.begin(), kernels.end(),
                                      [&](const auto* kernel) { return kernel->name == pinned; });
      if (found == kernels.end()) {
        return Status::unsupported(text(pinned, " doesn't compute such a problem"));
      }
      chosen = *found;
    }
    *config = {.kernel = chosen->name,
               .choice = chosen,
               .tile_m = chosen->tile_m,
               .tile_n = chosen->tile_n,
               .tile_k = chosen->tile_k,
               .stages = chosen->stages,
               .threads = chosen->threads};
    return {};
  }

  size_t scratch_bytes(const plan::Problem& problem,
                       const plan::Config& /*config*/) const override {
    if (problem.op == plan::Op::kBiasGrad) return 0;
    if (plan::is_row_op(problem.op)) return rows::scratch_bytes(problem);
    return GroupEntries::bytes(problem.num_local_groups);
  }

  Status launch(const cuda::Launch& launch, const plan::Problem& given, const plan::Config& config,
                const plan::Operands& given_operands) const override {
    plan::Problem problem = given;
    plan::Operands operands = given_operands;
    if (turn_around(&operands.rhs)) problem.transpose_rhs = !problem.transpose_rhs;
    if (problem.op == plan::Op::kGroupedGemm && turn_around(&operands.lhs)) {
      problem.transpose_lhs = !problem.transpose_lhs;
    }
    PrepareArguments prepared;
    if (Status status = prepare(launch, problem, config, operands, &prepared); !status.ok()) {
      return status;
    }
    const ProductArguments args = product_arguments(problem, operands, prepared);
    const ProductLaunch product{
        .launch = launch,
        .config = config,
        .args = args,
        .layout = {.a_k_major = !args.a_rows_along_k, .b_k_major = args.b_rows_along_n},
        .useful_blocks = useful_blocks(problem, config)};
    return static_cast<const PortableKernel*>(config.choice)->launch(product);
  }

  Status launch_bias_grad(const cuda::Launch& launch, const plan::Problem& problem,
                          const plan::Config& /*config*/, const BiasGradArgs& args,
                          const std::vector<int64_t>& host_offsets) const override {
    return sm80::launch_bias_grad(launch, problem, args, host_offsets);
  }

  Status launch_rows(const cuda::Launch& launch, const plan::Problem& problem,
                     const plan::RowCall& call) const override {
    return rows::launch(launch, problem, call);
  }
};

}  // namespace

const cuda::KernelFamily& portable_family() {
  static const PortableFamily family;
  return family;
}

}  // namespace cadre::sm80
