// See launch.h.
#include "cuda/sm90/launch.h"

#include <algorithm>

#include "cuda/sm90/instances.h"
#include "cuda/sm90/lists.h"
#include "cuda/tensor_map.h"

namespace cadre::sm90 {
namespace {

constexpr size_t kListVerdictBytes = 256;

// Whether the epilogue is more than a rounding of the accumulator.
bool has_factors(const EpilogueArguments& e) {
  return e.alpha.per_group.data != nullptr || e.alpha.value != 1.0f || e.bias.data != nullptr ||
         e.bias_list != nullptr || e.row_scale.data != nullptr || e.lhs_scale.data != nullptr ||
         e.has_c || e.activation.function == ActivationFunction::kNormal;  // activated_chunks.cuh
}

bool has_row_factors(const EpilogueArguments& e) {
  return e.row_scale.data != nullptr || e.bias_scale.data != nullptr || e.lhs_scale.data != nullptr;
}

GmmInstance instance_of(const GmmCall& call, GmmShapeKind shape) {
  const bool differentiates = facts_of(shape).gradient_of != ActivationForm::kNone;
  switch (call.element) {
    case ElementKind::kE5M2:
      return gmm_instance_e5m2_e4m3(shape);
    case ElementKind::kE4M3:
      return call.rhs_element == ElementKind::kE5M2 ? gmm_instance_e4m3_e5m2(shape)
                                                    : gmm_instance_e4m3_e4m3(shape);
    case ElementKind::kF16:
      return differentiates ? gradient_instance_f16(call.transposed_rhs, shape)
                            : gmm_instance_f16(call.transposed_rhs, shape);
    default:
      return differentiates ? gradient_instance_bf16(call.transposed_rhs, shape)
                            : gmm_instance_bf16(call.transposed_rhs, shape);
  }
}

/// Elements of a row of 128 bytes in shared memory.
uint32_t row_elements(const GmmCall& call) {
  return static_cast<uint32_t>(kRowBytes / operand_size(call.element));
}

/// What the maps are made of.
cuda::TensorMapSpec tokens_spec(const GmmCall& call) {
  return cuda::matrix_map(call.lhs, map_type(call.element),
                          {static_cast<uint64_t>(call.m), static_cast<uint64_t>(call.k)},
                          static_cast<uint64_t>(call.lhs_stride), {kTokenBox, row_elements(call)});
}

/// A list's map is encoded for any aligned address, and gets each group's own on the device.
const void* base_or_any(const void* base, void* const* list) {
  return list == nullptr ? base : reinterpret_cast<const void*>(uintptr_t{1} << 20);
}

/// Gates and up parts half a row apart as two planes of a 4-D map.
cuda::TensorMapSpec halves_spec(const GmmCall& call, const cuda::StackedShape& all) {
  const auto n = static_cast<uint64_t>(call.n);
  const auto k = static_cast<uint64_t>(call.k);
  constexpr uint64_t kSize = 2;
  const bool rows_of_k = call.transposed_rhs;
  return {.base = base_or_any(call.rhs, call.rhs_list),
          .type = map_type(call.element),
          .rank = 4,
          .dims = {rows_of_k ? k : n, rows_of_k ? n : k, 2, all.groups},
          .strides_bytes = {all.row_stride * kSize, n * (rows_of_k ? all.row_stride : 1) * kSize,
                            all.group_stride * kSize},
          .box = {64, 64, 1, 1}};
}

cuda::TensorMapSpec weights_spec(const GmmCall& call, const GmmInstance& instance) {
  const auto n = static_cast<uint64_t>(call.n * columns_of(instance.activation));
  const auto k = static_cast<uint64_t>(call.k);
  const bool list = call.rhs_list != nullptr;
  const bool single = list || call.groups.num_local == 1;  // then any stride will do
  const int64_t any_stride = 16 / operand_size(call.element);
  const cuda::StackedShape shape = {
      .groups = list ? 1 : static_cast<uint64_t>(call.groups.num_local),
      .rows = call.transposed_rhs ? n : k,
      .columns = call.transposed_rhs ? k : n,
      .group_stride = static_cast<uint64_t>(single ? any_stride : call.rhs_group_stride),
      .row_stride = static_cast<uint64_t>(call.rhs_row_stride)};
  if (instance.activation == ActivationForm::kHalves) return halves_spec(call, shape);
  cuda::TensorMapSpec spec =
      cuda::stacked_map(base_or_any(call.rhs, call.rhs_list), map_type(call.element), shape,
                        {call.transposed_rhs ? 128u : 64u, row_elements(call)});
  spec.fetches_more = !instance.streams;
  return spec;
}

/// out and C: chunks of 8 KB, 128 bytes wide (two side by side for fp32).
cuda::TensorMapSpec rows_spec(const GmmCall& call, const void* base, int64_t stride,
                              int64_t columns) {
  const bool wide = call.epilogue.out == ElementKind::kF32;
  return cuda::ragged_map(base, map_type(call.epilogue.out), static_cast<uint64_t>(columns),
                          static_cast<uint64_t>(stride), {wide ? 32u : 64u, wide ? 32u : 64u});
}

/// A pre-activation, or its gradient: all of it, or gates and up parts that lie half a row apart.
bool encode_input_maps(const GmmCall& call, ActivationForm form, const void* data, int64_t stride,
                       CUtensorMap* maps) {
  const bool halves = form == ActivationForm::kHalves;
  const int64_t columns = call.n * (halves ? 1 : columns_of(form));
  bool ok = true;
  for (int part = 0; part < (halves ? 2 : 1); ++part) {
    const char* base = static_cast<const char*>(data) + part * call.n * 2;
    ok = ok && cuda::encode_tensor_map(rows_spec(call, base, stride, columns), &maps[part]);
  }
  return ok;
}

bool encode_maps(const GmmCall& call, const GmmInstance& instance, GmmArguments* args) {
  using cuda::encode_tensor_map;
  CUtensorMap tokens[4];
  bool ok = cuda::encode_tensor_maps(tokens_spec(call), {kTokenBox, 16, 32, 48}, tokens);
  args->tokens_map = tokens[0];
  std::copy(tokens + 1, tokens + 4, args->tokens_rest_maps);
  ok = ok && encode_tensor_map(weights_spec(call, instance), &args->weights_map);
  const void* out = base_or_any(call.out, call.out_list);
  // A map needs a column; without a whole vector of 16 bytes this one is never used.
  const int64_t columns = std::max<int64_t>(args->whole_columns, 1);
  ok = ok && encode_tensor_map(rows_spec(call, out, call.out_stride, columns), &args->out_map);
  if (call.epilogue.activation.writes_input) {
    ok = ok && encode_input_maps(call, instance.activation, call.preactivation,
                                 call.preactivation_stride, args->input_maps);
  }
  if (instance.gradient_of != ActivationForm::kNone) {
    ok = ok && encode_input_maps(call, instance.gradient_of, call.preactivation,
                                 call.preactivation_stride, args->saved_maps);
  }
  if (call.epilogue.gradient.writes_d_preact) {
    ok = ok && encode_input_maps(call, instance.gradient_of, call.d_preactivation,
                                 call.d_preactivation_stride, args->input_maps);
  }
  if (call.epilogue.has_c) {
    const void* c = base_or_any(call.c, call.c_list);
    ok = ok && encode_tensor_map(rows_spec(call, c, call.c_stride, call.n), &args->c_map);
  }
  return ok;
}

/// Maps of listed operands, one after the other in the scratch memory behind the verdict.
Status make_maps_of_lists(const cuda::Launch& launch, const GmmCall& call, GmmArguments* args) {
  struct List {
    void* const* pointers;
    const CUtensorMap& pattern;
    const CUtensorMap** maps;
  };
  const List given[] = {{call.rhs_list, args->weights_map, &args->weights_maps},
                        {call.out_list, args->out_map, &args->out_maps},
                        {call.epilogue.has_c ? call.c_list : nullptr, args->c_map, &args->c_maps}};
  auto* scratch = static_cast<char*>(launch.workspace.scratch());
  auto* next = reinterpret_cast<CUtensorMap*>(scratch + kListVerdictBytes);
  MappedLists lists;
  lists.count = call.groups.num_local;
  for (int i = 0; i < 3; ++i) {
    if (given[i].pointers == nullptr) continue;
    lists.lists[i] = {given[i].pointers, given[i].pattern, next};
    *given[i].maps = next;
    next += call.groups.num_local;
  }
  if (next == reinterpret_cast<CUtensorMap*>(scratch + kListVerdictBytes)) return {};
  lists.unaligned = list_verdict(launch);
  args->skip_if = lists.unaligned;
  return make_list_maps(launch, lists);
}

}  // namespace

size_t gmm_scratch_bytes(int64_t lists, int64_t num_local) {
  if (lists == 0) return 0;
  return kListVerdictBytes + static_cast<size_t>(lists * num_local) * sizeof(CUtensorMap);
}

uint32_t* list_verdict(const cuda::Launch& launch) {
  return static_cast<uint32_t*>(launch.workspace.scratch());
}

Status launch_gmm(const cuda::Launch& launch, const GmmCall& call, const GmmConfig& config) {
  const GmmInstance instance = instance_of(call, config.shape);
  GmmArguments args;
  const int64_t vector = call.epilogue.out == ElementKind::kF32 ? 4 : 8;  // elements in 16 bytes
  args.whole_columns = static_cast<int>(call.n / vector * vector);
  args.out = call.out;
  args.out_list = call.out_list;
  args.out_stride = call.out_stride;
  if (!encode_maps(call, instance, &args)) {
    return Status::internal(text(launch.op, ": the driver rejected a tensor map"));
  }
  if (Status status = make_maps_of_lists(launch, call, &args); !status.ok()) return status;
  args.m = static_cast<int>(call.m);
  args.n = static_cast<int>(call.n);
  args.k = static_cast<int>(call.k);
  args.groups = call.groups;
  args.zero_other_rows = call.zero_other_rows;
  args.tile_counter = call.tile_counter;
  args.list_rows = static_cast<int>(std::min<int64_t>(call.list_rows, INT32_MAX));
  args.epilogue = call.epilogue;
  args.block_scales = call.block_scales;
  args.recorder = tile_recorder();
  args.epilogue.has_factors = has_factors(args.epilogue);
  args.epilogue.has_row_factors = has_row_factors(args.epilogue);
  const cuda::GridShape shape{.blocks = static_cast<unsigned>(config.ctas),
                              .threads = kCtaThreads,
                              .shared_bytes = static_cast<unsigned>(instance.shared_bytes),
                              .after_prologue = true};
  return cuda::launch_kernel(launch, facts_of(config.shape).name, instance.kernel, shape, args);
}

}  // namespace cadre::sm90
