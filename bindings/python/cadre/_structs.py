"""The structs and constants of include/cadre/c_api.h, for ctypes (tests/python/test_structs.py compares them)."""

import ctypes
from ctypes import POINTER, c_char_p, c_double, c_int32, c_int64, c_size_t, c_void_p

OK, INVALID, UNSUPPORTED, INTERNAL = 0, 1, 2, 3

F64, F32, BF16, F16, I8, I32, I64, U32, E4M3, E5M2, E8M0, I16, U8, U16, U64 = range(1, 16)

CPU, CUDA = 0, 1

ROWS, STACKED, LIST, PACKED = 1, 2, 3, 4

TAIL_ZERO, TAIL_UNTOUCHED, TAIL_FORBID = 0, 1, 2
NO_ACTIVATION, SILU, GELU_TANH, GELU_ERF, RELU2 = range(5)
#: From here on with a gate.
SWIGLU, GEGLU_TANH, GEGLU_ERF, CLAMPED_SWIGLU = range(5, 9)
SCORE_SOFTMAX, SCORE_SIGMOID = 0, 1
GROUP_SCORE_MAX, GROUP_SCORE_TOP_TWO = 0, 1

PRECISION_DEFAULT, PRECISION_TF32 = 0, 1

MAX_RANK = 4


class Device(ctypes.Structure):
    _fields_ = [("kind", c_int32), ("index", c_int32)]


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("dtype", c_int32),
        ("device", Device),
        ("rank", c_int32),
        ("shape", c_int64 * MAX_RANK),
        ("strides", c_int64 * MAX_RANK),
    ]


#: What the integers of Sizes are.
SIZES, ENDS = 0, 1


class Sizes(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("dtype", c_int32),
        ("device", Device),
        ("count", c_int64),
        ("kind", c_int32),
    ]


class Extent(ctypes.Structure):
    _fields_ = [("uniform", c_int64), ("per_group", Sizes), ("max", c_int64)]


class GroupedTensor(ctypes.Structure):
    _fields_ = [
        ("placement", c_int32),
        ("dtype", c_int32),
        ("device", Device),
        ("num_groups", c_int64),
        ("data", c_void_p),
        ("pointers", POINTER(c_void_p)),
        ("pointers_device", Device),
        ("rows", Extent),
        ("cols", Extent),
        ("group_stride", c_int64),
        ("row_stride", c_int64),
        ("col_stride", c_int64),
        ("contiguous", c_int32),
        ("offsets", Extent),
        ("capacity", c_int64),
        ("rank", c_int32),
        ("shape", c_int64 * MAX_RANK),
    ]


#: What shares one scale of a quantised operand (cadre_scale_mode).
SCALE_MODES = {"none": 0, "tensor": 1, "row": 2, "block_128": 3, "mx": 4}


class Scales(ctypes.Structure):
    _fields_ = [
        ("mode", c_int32),
        ("values", Tensor),
        ("pointers", POINTER(c_void_p)),
        ("pointers_device", Device),
    ]


class ContextOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("num_threads", c_int32),
        ("sm_count", c_int32),
        ("isa", c_char_p),
        ("backend", c_char_p),
        ("tune_cache", c_char_p),
        ("tuned", c_int32),
    ]


class CallOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("stream", c_void_p),
        ("workspace", c_void_p),
        ("workspace_size_bytes", c_size_t),
        ("precision", c_int32),
        ("average_rows", c_int64),
        ("config", c_char_p),
        ("fast_accumulation", c_int32),
    ]


_GROUP_OFFSET = [
    ("group_offset", c_int64),
    ("group_offset_on_device", c_void_p),
    ("group_offset_dtype", c_int32),
]

_SCALARS = [
    ("alpha", c_double),
    ("beta", c_double),
    ("alpha_per_group", POINTER(Tensor)),
    ("beta_per_group", POINTER(Tensor)),
]


class Activation(ctypes.Structure):
    _fields_ = [
        ("kind", c_int32),
        ("layout", c_int32),
        ("alpha", c_double),
        ("limit", c_double),
        ("up_offset", c_double),
    ]


class GmmArgs(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("lhs", POINTER(Tensor)),
        ("rhs", POINTER(GroupedTensor)),
        ("group_sizes", Sizes),
        ("out", POINTER(GroupedTensor)),
        ("transpose_rhs", c_int32),
        ("accumulate", c_int32),
        ("tail", c_int32),
        *_SCALARS,
        ("c", POINTER(GroupedTensor)),
        ("bias", POINTER(GroupedTensor)),
        ("bias_scale", POINTER(Tensor)),
        ("row_scale", POINTER(Tensor)),
        ("lhs_rows", POINTER(Tensor)),
        ("activation", Activation),
        ("preactivation", POINTER(Tensor)),
        *_GROUP_OFFSET,
        ("packed_rhs", c_void_p),
        ("lhs_scales", POINTER(Scales)),
        ("rhs_scales", POINTER(Scales)),
        ("options", POINTER(CallOptions)),
    ]


class TgmmArgs(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("lhs", POINTER(Tensor)),
        ("rhs", POINTER(Tensor)),
        ("group_sizes", Sizes),
        ("out", POINTER(GroupedTensor)),
        ("accumulate", c_int32),
        *_SCALARS,
        ("c", POINTER(GroupedTensor)),
        *_GROUP_OFFSET,
        ("lhs_rows", POINTER(Tensor)),
        ("rhs_rows", POINTER(Tensor)),
        ("lhs_scales", POINTER(Scales)),
        ("rhs_scales", POINTER(Scales)),
        ("lhs_columns", c_int32),
        ("rhs_columns", c_int32),
        ("options", POINTER(CallOptions)),
    ]


class GroupedGemmArgs(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("a", POINTER(GroupedTensor)),
        ("b", POINTER(GroupedTensor)),
        ("c", POINTER(GroupedTensor)),
        ("d", POINTER(GroupedTensor)),
        ("transa", c_int32),
        ("transb", c_int32),
        ("accumulate", c_int32),
        *_SCALARS,
        ("a_scales", POINTER(Scales)),
        ("b_scales", POINTER(Scales)),
        ("options", POINTER(CallOptions)),
    ]


class BiasGradArgs(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("dy", POINTER(Tensor)),
        ("group_sizes", Sizes),
        ("dbias", POINTER(GroupedTensor)),
        ("dbias_scale", POINTER(Tensor)),
        ("bias", POINTER(GroupedTensor)),
        ("bias_scale", POINTER(Tensor)),
        ("accumulate", c_int32),
        *_GROUP_OFFSET,
        ("options", POINTER(CallOptions)),
    ]


class RouteArgs(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("expert_ids", POINTER(Tensor)),
        ("group_sizes", POINTER(Tensor)),
        ("source_row", POINTER(Tensor)),
        ("slot_row", POINTER(Tensor)),
        ("options", POINTER(CallOptions)),
    ]


class QuantizeArgs(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("x", POINTER(Tensor)),
        ("source_row", POINTER(Tensor)),
        ("row_scale", POINTER(Tensor)),
        ("activation", Activation),
        ("group_sizes", Sizes),
        ("power_of_two", c_int32),
        ("amax_floor", c_double),
        ("rows", POINTER(Tensor)),
        ("rows_scales", POINTER(Scales)),
        ("columns", POINTER(Tensor)),
        ("columns_scales", POINTER(Scales)),
        ("options", POINTER(CallOptions)),
    ]


class DequantizeArgs(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("x", POINTER(Tensor)),
        ("x_scales", POINTER(Scales)),
        ("x_columns", c_int32),
        ("group_sizes", Sizes),
        ("out", POINTER(Tensor)),
        ("options", POINTER(CallOptions)),
    ]


class AmaxArgs(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("x", POINTER(Tensor)),
        ("group_sizes", Sizes),
        ("mode", c_int32),
        ("out", POINTER(Tensor)),
        ("options", POINTER(CallOptions)),
    ]


class MoeMlpArgs(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("w13", POINTER(GroupedTensor)),
        ("w2", POINTER(GroupedTensor)),
        ("bias13", POINTER(GroupedTensor)),
        ("bias2", POINTER(GroupedTensor)),
        ("transposed", c_int32),
        ("packed_w13", c_void_p),
        ("packed_w2", c_void_p),
        ("activation", Activation),
        ("weights_on_input", c_int32),
        ("delay_wgrad", c_int32),
        ("x", POINTER(Tensor)),
        ("group_sizes", Sizes),
        ("source_row", POINTER(Tensor)),
        ("slot_row", POINTER(Tensor)),
        ("weights", POINTER(Tensor)),
        *_GROUP_OFFSET,
        ("preact", POINTER(Tensor)),
        ("shared", POINTER(Tensor)),
        ("residual", POINTER(Tensor)),
        ("out", POINTER(Tensor)),
        ("dout", POINTER(Tensor)),
        ("dx", POINTER(Tensor)),
        ("dweights", POINTER(Tensor)),
        ("dw13", POINTER(GroupedTensor)),
        ("dw2", POINTER(GroupedTensor)),
        ("dw_beta", c_double),
        ("dw_beta_per_group", POINTER(Tensor)),
        ("dbias13", POINTER(GroupedTensor)),
        ("dbias2", POINTER(GroupedTensor)),
        ("accumulate_dbias", c_int32),
        ("d_preact", POINTER(Tensor)),
        ("activated", POINTER(Tensor)),
        ("options", POINTER(CallOptions)),
    ]


class PackWeightsArgs(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("rhs", POINTER(GroupedTensor)),
        ("transpose_rhs", c_int32),
        ("lhs_dtype", c_int32),
        ("out_dtype", c_int32),
    ]


#: Python class -> (name of the C struct, name of its init function or None).
C_NAMES = {
    Device: ("cadre_device", None),
    Tensor: ("cadre_tensor", None),
    Sizes: ("cadre_sizes", None),
    Extent: ("cadre_extent", None),
    GroupedTensor: ("cadre_grouped_tensor", None),
    Scales: ("cadre_scales", None),
    ContextOptions: ("cadre_context_options", "cadre_context_options_init"),
    CallOptions: ("cadre_call_options", "cadre_call_options_init"),
    Activation: ("cadre_activation", None),
    GmmArgs: ("cadre_gmm_args", "cadre_gmm_args_init"),
    TgmmArgs: ("cadre_tgmm_args", "cadre_tgmm_args_init"),
    GroupedGemmArgs: ("cadre_grouped_gemm_args", "cadre_grouped_gemm_args_init"),
    BiasGradArgs: ("cadre_bias_grad_args", "cadre_bias_grad_args_init"),
    RouteArgs: ("cadre_route_args", "cadre_route_args_init"),
    QuantizeArgs: ("cadre_quantize_args", "cadre_quantize_args_init"),
    DequantizeArgs: ("cadre_dequantize_args", "cadre_dequantize_args_init"),
    AmaxArgs: ("cadre_amax_args", "cadre_amax_args_init"),
    MoeMlpArgs: ("cadre_moe_mlp_args", "cadre_moe_mlp_args_init"),
    PackWeightsArgs: ("cadre_pack_weights_args", "cadre_pack_weights_args_init"),
}
