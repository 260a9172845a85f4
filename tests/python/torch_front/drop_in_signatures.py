"""Signatures of the packages whose calls cadre takes over, as their sources have them: (name, default) in order, a `*`
before what is keyword only."""

REQUIRED = object()

# https://github.com/tgale96/grouped_gemm, commit ebeae0bb3ded459886309b2a30410deb16937af4, grouped_gemm/ops.py and
# grouped_gemm/backend.py; the same in https://github.com/fanshiqing/grouped_gemm, commit
# 15721c6f478092f58ba0767fb0f3642c4f493748.
GROUPED_GEMM_OPS_GMM = [
    ("a", REQUIRED),
    ("b", REQUIRED),
    ("batch_sizes", REQUIRED),
    ("trans_b", False),
]
GROUPED_GEMM_BACKEND_GMM = [
    ("a", REQUIRED),
    ("b", REQUIRED),
    ("batch_sizes", REQUIRED),
    ("trans_a", False),
    ("trans_b", False),
    ("c", None),
]

# https://github.com/NVIDIA/TransformerEngine, commit d0067d0da6cb01811b8072a7d304f0e00344ce2b,
# transformer_engine/pytorch/module/grouped_linear.py. (There `device` is "cuda"; here None, torch's default device.)
TE_GROUPED_LINEAR = [
    ("num_gemms", REQUIRED),
    ("in_features", REQUIRED),
    ("out_features", REQUIRED),
    ("sequence_parallel", False),
    ("fuse_wgrad_accumulation", False),
    ("tp_group", None),
    ("tp_size", 1),
    ("get_rng_state_tracker", None),
    ("rng_tracker_name", None),
    ("init_method", None),
    ("bias", True),
    ("return_bias", False),
    ("params_dtype", None),
    ("parallel_mode", None),
    ("device", None),
    ("ub_overlap_rs", False),
    ("ub_overlap_ag", False),
    ("ub_name", None),
    ("delay_wgrad_compute", False),
    ("save_original_input", False),
    ("single_grouped_weight", False),
    ("single_grouped_bias", False),
    ("name", None),
    ("use_grouped_tensor", None),
]
TE_GROUPED_LINEAR_FORWARD = [
    ("inp", REQUIRED),
    ("m_splits", REQUIRED),
    ("is_first_microbatch", None),
    ("out", None),
    ("dgrad_out", None),
]

# The same commit, transformer_engine/pytorch/ops/basic/grouped_linear.py; forward in ops/op.py, whose keywords for this op
# are OUTPUT_BUFFER_KEY and GRAD_INPUT_BUFFER_KEY.
TE_OPS_GROUPED_LINEAR = [
    ("num_groups", REQUIRED),
    ("in_features", REQUIRED),
    ("out_features", REQUIRED),
    "*",
    ("bias", True),
    ("device", None),
    ("dtype", None),
    ("rng_state_tracker_function", None),
    ("accumulate_into_main_grad", False),
    ("single_grouped_weight", False),
    ("single_grouped_bias", False),
    ("delay_wgrad_compute", False),
    ("scale_bias", False),
]
TE_OPS_GROUPED_LINEAR_BUFFERS = ["output", "grad_input"]
TE_METHODS = [
    "backward_dw",
    "need_backward_dw",
    "register_wgrad_accumulation_and_reduce_hooks",
    "reset_parameters",
    "set_tensor_parallel_group",
]

# https://github.com/NVIDIA/TransformerEngine, commit d0067d0da6cb01811b8072a7d304f0e00344ce2b,
# transformer_engine/pytorch/permutation.py.
TE_MOE_PERMUTE = [
    ("inp", REQUIRED),
    ("routing_map", REQUIRED),
    ("num_out_tokens", REQUIRED),
    ("max_token_num", -1),
    ("map_type", "mask"),
]
TE_MOE_PERMUTE_WITH_PROBS = [
    ("inp", REQUIRED),
    ("probs", REQUIRED),
    ("routing_map", REQUIRED),
    ("num_out_tokens", REQUIRED),
]
TE_MOE_UNPERMUTE = [
    ("inp", REQUIRED),
    ("row_id_map", REQUIRED),
    ("merging_probs", None),
    ("restore_shape", None),
    ("map_type", "mask"),
    ("probs", None),
    ("pad_offsets", None),
]

# The same commit, transformer_engine/pytorch/cpp_extensions/gemm.py.
TE_GENERAL_GROUPED_GEMM = [
    ("A", REQUIRED),
    ("B", REQUIRED),
    ("out", REQUIRED),
    ("quantization_params", REQUIRED),
    ("out_dtype", REQUIRED),
    ("layout", "TN"),
    ("m_splits", None),
    ("gelu", False),
    ("grad", False),
    ("accumulate", False),
    ("bias", None),
    ("use_bias", False),
    ("use_split_accumulator", False),
    ("D_dtype", None),
    ("single_output", False),
]
TE_GENERAL_GROUPED_GEMM_FOR_GROUPED_TENSOR = [
    ("A", REQUIRED),
    ("B", REQUIRED),
    ("out", REQUIRED),
    "*",
    ("layout", "TN"),
    ("accumulate", False),
    ("use_split_accumulator", False),
    ("bias", None),
    ("bias_scale", None),
    ("grad", False),
    ("alpha", None),
    ("beta", None),
]
