// See launch.h.
#include "cuda/sm90/launch.h"

#include <algorithm>

#include "core/text.h"
#include "cuda/sm90/instances.h"
#include "cuda/tensor_map.h"
#include "plan/tile_walk.h"

namespace cadre::sm90 {
namespace {

constexpr int32_t kBand = 16;  // tiles along k that are swept along n together

uint64_t size_of(ElementKind kind) { return kind == ElementKind::kF32 ? 4 : 2; }

int64_t tiles_of(int64_t extent, int64_t tile) { return (extent + tile - 1) / tile; }

// A map over [k, n] matrices anywhere from `base` on: its last two dims are the distance from
// there, in steps of 16 bytes and of 2^32. So one map bounds k and n for every matrix, stacked or
// listed, and nothing is encoded on the device.
cuda::TensorMapSpec anywhere_map(uint64_t base, const TgmmCall& call, int64_t row_stride,
                                 int64_t columns) {
  const uint64_t size = size_of(call.output);
  return {
      .base = reinterpret_cast<const void*>(base),
      .type = map_type(call.output),
      .rank = 4,
      .dims = {static_cast<uint64_t>(columns), static_cast<uint64_t>(call.k),
               uint64_t{1} << kTgmmLowBits, uint64_t{1} << 25},
      .strides_bytes = {static_cast<uint64_t>(row_stride) * size, 16, uint64_t{16} << kTgmmLowBits},
      .box = {static_cast<uint32_t>(128 / size), 64, 1, 1}};
}

TgmmMatrices matrices_of(const TgmmResult& result, ElementKind kind) {
  TgmmMatrices matrices;
  matrices.pointers = reinterpret_cast<const uint64_t*>(result.pointers);
  matrices.base = reinterpret_cast<uint64_t>(result.base);
  matrices.group_stride_bytes = result.group_stride * static_cast<int64_t>(size_of(kind));
  matrices.map_base = matrices.base;
  return matrices;
}

bool encode_maps(const TgmmCall& call, bool with_c, TgmmArguments* args) {
  using cuda::encode_tensor_map;
  using cuda::ragged_map;
  const CUtensorMapDataType type = map_type(call.element);
  // Without rows nothing is loaded, and the operands may be null, which no map takes.
  const auto base_of = [&](const void* base) { return call.groups.m > 0 ? base : call.out.base; };
  bool ok = encode_tensor_map(ragged_map(base_of(call.lhs), type, static_cast<uint64_t>(call.k),
                                         static_cast<uint64_t>(call.lhs_stride), {64, 64}),
                              &args->lhs_map);
  ok = ok && encode_tensor_map(ragged_map(base_of(call.rhs), type, static_cast<uint64_t>(call.n),
                                          static_cast<uint64_t>(call.rhs_stride), {64, 64}),
                               &args->rhs_map);
  // A map needs a column; without a whole vector of 16 bytes this one is never used.
  const int64_t columns = std::max(args->whole_columns, 1);
  ok = ok && encode_tensor_map(anywhere_map(args->out.map_base, call, call.out.row_stride, columns),
                               &args->out_map);
  if (with_c) {
    ok = ok && encode_tensor_map(anywhere_map(args->c.map_base, call, call.c.row_stride, call.n),
                                 &args->c_map);
  }
  return ok;
}

}  // namespace

Status launch_tgmm(const cuda::Launch& launch, const TgmmCall& call, bool reads_c,
                   const TgmmWorkspace& workspace) {
  const ShapeFacts& shape = kTgmmShapes[reads_c ? 1 : 0];
  const TgmmInstance instance =
      call.element == ElementKind::kBf16 ? tgmm_instance_bf16(reads_c) : tgmm_instance_f16(reads_c);
  TgmmArguments args;
  args.out = matrices_of(call.out, call.output);
  args.c = matrices_of(call.c, call.output);
  const auto vector = static_cast<int64_t>(16 / size_of(call.output));
  args.whole_columns = static_cast<int>(call.n / vector * vector);
  args.out_row_stride = call.out.row_stride;
  if (!encode_maps(call, reads_c, &args)) {
    return Status::internal(text(launch.op, ": the driver rejected a tensor map"));
  }
  args.groups = call.groups;
  args.offsets = workspace.offsets;
  args.plan = workspace.plan;
  args.tile_counter = workspace.tile_counter;
  args.num_local = static_cast<int>(call.groups.num_local);
  args.alpha = call.alpha;
  args.beta = call.beta;
  args.k = static_cast<int>(call.k);
  args.n = static_cast<int>(call.n);
  args.output = call.output;
  args.recorder = tile_recorder();
  const int64_t tiles_k = tiles_of(call.k, shape.rows_a);
  args.band = plan::even_band(static_cast<int32_t>(tiles_k), kBand);

  const int64_t tiles = call.groups.num_local * tiles_k * tiles_of(call.n, shape.width);
  const cuda::GridShape grid{
      .blocks = static_cast<unsigned>(std::min<int64_t>(tiles, launch.sm_count)),
      .threads = kCtaThreads,
      .shared_bytes = static_cast<unsigned>(instance.shared_bytes),
      .after_prologue = true};
  return cuda::launch_kernel(launch, shape.name, instance.kernel, grid, args);
}

}  // namespace cadre::sm90
