/* cadre's C ABI: pure C11, no exception crosses it, nothing is printed.
 *
 * Every function that can fail returns a cadre_status_code; cadre_status_message() then says which
 * argument was wrong, what was expected and what was received. The structs are plain: fill one with
 * its ..._init function (which sets `struct_size` and every default), set what you need, call.
 * Pointers to tensors may be NULL where an argument is optional. Nothing is owned or kept: what a
 * struct points to must live until the call returns (device memory: until the stream has run it).
 */
#ifndef CADRE_C_API_H_
#define CADRE_C_API_H_

#include <stddef.h>
#include <stdint.h>

#include "cadre/export.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Status ------------------------------------------------------------------------------- */

typedef int32_t cadre_status_code;
enum {
  CADRE_OK = 0,
  CADRE_INVALID = 1,     /* the caller's fault */
  CADRE_UNSUPPORTED = 2, /* no backend takes this problem; the message lists every refusal */
  CADRE_INTERNAL = 3     /* out of memory, a failed launch, a defect */
};

/* What the last call of this thread that failed had to say; "" before the first failure. Valid
 * until this thread's next failing call. */
CADRE_API const char* cadre_status_message(void);

/* "0.1.0" */
CADRE_API const char* cadre_version(void);

/* "cuda, cpu, reference": the backends of this build, in the order they are tried. */
CADRE_API const char* cadre_backends(void);

/* ---- Element types, devices ----------------------------------------------------------------- */

typedef int32_t cadre_dtype;
enum {
  CADRE_F64 = 1,
  CADRE_F32 = 2,
  CADRE_BF16 = 3,
  CADRE_F16 = 4,
  CADRE_I8 = 5,
  CADRE_I32 = 6,
  CADRE_I64 = 7,
  CADRE_U32 = 8,
  CADRE_E4M3 = 9,
  CADRE_E5M2 = 10,
  CADRE_E8M0 = 11,
  CADRE_I16 = 12, /* from here on: types of group sizes, offsets and ids; permute copies any type */
  CADRE_U8 = 13,
  CADRE_U16 = 14,
  CADRE_U64 = 15
};

/* Bytes of one element; 0 for an unknown type. */
CADRE_API size_t cadre_dtype_size(cadre_dtype dtype);
/* "f32", ...; "invalid" for an unknown type. */
CADRE_API const char* cadre_dtype_name(cadre_dtype dtype);
/* The output type a product has unless another is asked for; 0 when the pair has no product. */
CADRE_API cadre_dtype cadre_default_output_dtype(cadre_dtype lhs, cadre_dtype rhs);

typedef int32_t cadre_device_kind;
enum { CADRE_CPU = 0, CADRE_CUDA = 1 };

typedef struct cadre_device {
  cadre_device_kind kind;
  int32_t index;
} cadre_device;

/* ---- Views ---------------------------------------------------------------------------------- */

/* A strided view of memory that the caller owns. Strides count elements and may be anything. */
typedef struct cadre_tensor {
  void* data;
  cadre_dtype dtype;
  cadre_device device;
  int32_t rank; /* at most 4 */
  int64_t shape[4];
  int64_t strides[4];
} cadre_tensor;

typedef int32_t cadre_sizes_kind;
enum {
  CADRE_SIZES = 0, /* the rows of each group */
  CADRE_ENDS = 1   /* where each group ends: the sum of all sizes up to its own */
};

/* `count` integers of any type (CADRE_I8 to CADRE_U64) on the host or on the data's device. */
typedef struct cadre_sizes {
  const void* data;
  cadre_dtype dtype;
  cadre_device device;
  int64_t count;
  cadre_sizes_kind kind; /* of group sizes; 0 elsewhere */
} cadre_sizes;

/* One value for all groups, or, where per_group.data is not NULL, one for each group. `max` bounds
 * values that lie on a device. */
typedef struct cadre_extent {
  int64_t uniform;
  cadre_sizes per_group;
  int64_t max;
} cadre_extent;

typedef int32_t cadre_placement;
enum {
  CADRE_ROWS = 1,    /* consecutive rows of one [m, cols] tensor */
  CADRE_STACKED = 2, /* one [num_groups, rows, cols] tensor */
  CADRE_LIST = 3,    /* one pointer for each group */
  CADRE_PACKED = 4   /* one buffer; group i starts at element offsets[i], or behind its neighbour */
};

/* One matrix for each group. See cadre::GroupedTensor (cadre/tensor.h) for every field. */
typedef struct cadre_grouped_tensor {
  cadre_placement placement;
  cadre_dtype dtype;
  cadre_device device;
  int64_t num_groups;
  void* data;            /* all forms but CADRE_LIST */
  void* const* pointers; /* CADRE_LIST */
  cadre_device pointers_device;
  cadre_extent rows;
  cadre_extent cols;
  int64_t group_stride; /* CADRE_STACKED */
  int64_t row_stride;   /* a stride, whatever its value: 0 repeats one row */
  int64_t col_stride;
  /* CADRE_LIST, CADRE_PACKED: not 0 where each matrix is row-major without gaps; then row_stride is
   * not read and col_stride is 1. */
  int32_t contiguous;
  cadre_extent offsets; /* CADRE_PACKED */
  int64_t capacity;     /* CADRE_PACKED: elements in the buffer */
  /* placement 0: rank and shape of a tensor that has no form here, for the error. */
  int32_t rank;
  int64_t shape[4];
} cadre_grouped_tensor;

/* What shares one scale of a quantised operand: see cadre/scaled_tensor.h for the shapes. */
typedef int32_t cadre_scale_mode;
enum {
  CADRE_SCALE_NONE = 0,
  CADRE_SCALE_TENSOR = 1,    /* f32 */
  CADRE_SCALE_ROW = 2,       /* f32 */
  CADRE_SCALE_BLOCK_128 = 3, /* f32 or e8m0 */
  CADRE_SCALE_MX = 4         /* e8m0 */
};

/* The scales of FP8 data. */
typedef struct cadre_scales {
  cadre_scale_mode mode;
  cadre_tensor values;
  /* Weights in a list: the address of each group's scales, NULL otherwise. `values` is then without
   * data and without the leading dim g. */
  void* const* pointers;
  cadre_device pointers_device;
} cadre_scales;

/* Row-major view without gaps; rank at most 4. */
CADRE_API cadre_tensor cadre_tensor_contiguous(void* data, cadre_dtype dtype, int32_t rank,
                                               const int64_t* shape, cadre_device device);
/* Rank 2: rows of one tensor; rank 3: a stacked tensor. */
CADRE_API cadre_grouped_tensor cadre_grouped_from_tensor(const cadre_tensor* tensor);
/* One vector of n elements for each group, from a [g, n] tensor (a bias). */
CADRE_API cadre_grouped_tensor cadre_grouped_vectors(const cadre_tensor* tensor);
/* Matrices (rank 2) or vectors (rank 1) of the shape and strides of `like`, one at each pointer. */
CADRE_API cadre_grouped_tensor cadre_grouped_list(void* const* pointers, int64_t num_groups,
                                                  const cadre_tensor* like,
                                                  cadre_device pointers_device);

/* ---- Context -------------------------------------------------------------------------------- */

/* Settings and workspaces shared by calls. It may be used from any thread. */
typedef struct cadre_context cadre_context;

typedef struct cadre_context_options {
  size_t struct_size;
  int32_t num_threads; /* 0: CADRE_NUM_THREADS, else OMP_NUM_THREADS, else every CPU */
  int32_t sm_count;    /* 0: every multiprocessor */
  const char* isa;     /* NULL: CADRE_ISA, else the best here */
  const char* backend; /* NULL: CADRE_BACKEND, else the first that takes the problem */
  /* What `cadre tune` has measured; NULL: CADRE_TUNE_CACHE, else the user's cache folder. */
  const char* tune_cache;
  int32_t tuned; /* 1; 0, or CADRE_TUNE=0: neither that file nor the tables that are shipped */
} cadre_context_options;

CADRE_API void cadre_context_options_init(cadre_context_options* options, size_t struct_size);
/* `options` may be NULL. */
CADRE_API cadre_status_code cadre_context_create(const cadre_context_options* options,
                                                 cadre_context** context);
/* NULL is allowed. */
CADRE_API void cadre_context_destroy(cadre_context* context);

/* Waits for the stream (NULL: for all streams of the device) and reports bad sizes or offsets that
 * earlier calls met on the device; the first one is kept until it is reported. */
CADRE_API cadre_status_code cadre_check(cadre_context* context, cadre_device device, void* stream);

/* ---- Calls ---------------------------------------------------------------------------------- */

enum { CADRE_TAIL_ZERO = 0, CADRE_TAIL_UNTOUCHED = 1, CADRE_TAIL_FORBID = 2 };
enum { CADRE_PRECISION_DEFAULT = 0, CADRE_PRECISION_TF32 = 1 };

/* See cadre::CallOptions (cadre/context.h). */
typedef struct cadre_call_options {
  size_t struct_size;
  void* stream;
  void* workspace;
  size_t workspace_size_bytes;
  int32_t precision;
  int64_t average_rows;
  const char* config;
  int32_t fast_accumulation; /* FP8: sums may keep fewer bits than f32 */
} cadre_call_options;

CADRE_API void cadre_call_options_init(cadre_call_options* options, size_t struct_size);

/* Weights brought into the order in which this machine's CPU kernels read them, once, for inference
 * (cadre/pack_weights.h). */
typedef struct cadre_packed_weights cadre_packed_weights;

/* The function between the two products of an expert (cadre/activation.h). */
enum {
  CADRE_ACTIVATION_NONE = 0,
  CADRE_ACTIVATION_SILU = 1,
  CADRE_ACTIVATION_GELU_TANH = 2,
  CADRE_ACTIVATION_GELU_ERF = 3,
  CADRE_ACTIVATION_RELU2 = 4,
  CADRE_ACTIVATION_SWIGLU = 5, /* from here on with a gate: two columns for each result */
  CADRE_ACTIVATION_GEGLU_TANH = 6,
  CADRE_ACTIVATION_GEGLU_ERF = 7,
  CADRE_ACTIVATION_CLAMPED_SWIGLU = 8
};
enum {
  CADRE_GATE_CONCATENATED = 0, /* gate 0 to i - 1, then up 0 to i - 1 */
  CADRE_GATE_INTERLEAVED = 1   /* gate 0, up 0, gate 1, up 1, ... */
};
typedef struct cadre_activation {
  int32_t kind;   /* CADRE_ACTIVATION_... */
  int32_t layout; /* CADRE_GATE_... */
  double alpha;   /* these three: clamped swiglu alone */
  double limit;
  double up_offset;
} cadre_activation;

/* out[r] = row_scale[r] * (alpha_g * (lhs[r] @ rhs_g) + bias_scale[r] * bias_g) + beta_g * c[r].
 * See cadre::GmmArgs (cadre/gmm.h) for shapes. */
typedef struct cadre_gmm_args {
  size_t struct_size;
  const cadre_tensor* lhs;         /* [m, k] */
  const cadre_grouped_tensor* rhs; /* [g, k, n], or [g, n, k] with transpose_rhs */
  cadre_sizes group_sizes;         /* at least g entries */
  const cadre_grouped_tensor* out; /* [m, n], or a list */
  int32_t transpose_rhs;
  int32_t accumulate; /* the same as beta = 1 */
  int32_t tail;       /* CADRE_TAIL_... */
  double alpha;       /* used where alpha_per_group is NULL */
  double beta;
  const cadre_tensor* alpha_per_group; /* [g] of f32 or f64 */
  const cadre_tensor* beta_per_group;
  const cadre_grouped_tensor* c;    /* default: out */
  const cadre_grouped_tensor* bias; /* [g, n]: cadre_grouped_vectors */
  const cadre_tensor* bias_scale;   /* [m] */
  const cadre_tensor* row_scale;    /* [m] */
  const cadre_tensor* lhs_rows; /* [m] of i32 or i64: row r is lhs[lhs_rows[r]], or zeros for -1 */
  cadre_activation activation;  /* of the result, without C; out is [m, n / 2] with a gate */
  const cadre_tensor* preactivation; /* [m, n] of out's type, written beside out; NULL: not */
  int64_t group_offset;
  const void* group_offset_on_device; /* one integer of group_offset_dtype; NULL: the host value */
  cadre_dtype group_offset_dtype;
  const cadre_packed_weights* packed_rhs; /* made of rhs, which must still be given; or NULL */
  const cadre_scales* lhs_scales;         /* of FP8 operands; NULL otherwise */
  const cadre_scales* rhs_scales;
  const cadre_call_options* options; /* NULL: defaults */
} cadre_gmm_args;

CADRE_API void cadre_gmm_args_init(cadre_gmm_args* args, size_t struct_size);
CADRE_API cadre_status_code cadre_gmm(cadre_context* context, const cadre_gmm_args* args);
CADRE_API cadre_status_code cadre_gmm_workspace_size(cadre_context* context,
                                                     const cadre_gmm_args* args,
                                                     size_t* size_bytes);

/* out_i = alpha_i * (lhs[rows_i]^T @ rhs[rows_i]) + beta_i * c_i. See cadre::TgmmArgs. */
typedef struct cadre_tgmm_args {
  size_t struct_size;
  const cadre_tensor* lhs; /* [m, k] */
  const cadre_tensor* rhs; /* [m, n] */
  cadre_sizes group_sizes;
  const cadre_grouped_tensor* out; /* [g, k, n], stacked or a list */
  int32_t accumulate;
  double alpha;
  double beta;
  const cadre_tensor* alpha_per_group;
  const cadre_tensor* beta_per_group;
  const cadre_grouped_tensor* c;
  int64_t group_offset;
  const void* group_offset_on_device;
  cadre_dtype group_offset_dtype;
  const cadre_tensor* lhs_rows; /* [m] of i32 or i64: row r is lhs[lhs_rows[r]], or zeros for -1 */
  const cadre_tensor* rhs_rows; /* the same for rhs */
  const cadre_scales* lhs_scales; /* of FP8 operands; NULL otherwise */
  const cadre_scales* rhs_scales;
  int32_t lhs_columns; /* not 0: a column-wise copy, [k, capacity] */
  int32_t rhs_columns;
  const cadre_call_options* options;
} cadre_tgmm_args;

CADRE_API void cadre_tgmm_args_init(cadre_tgmm_args* args, size_t struct_size);
CADRE_API cadre_status_code cadre_tgmm(cadre_context* context, const cadre_tgmm_args* args);
CADRE_API cadre_status_code cadre_tgmm_workspace_size(cadre_context* context,
                                                      const cadre_tgmm_args* args,
                                                      size_t* size_bytes);

/* d_i = alpha_i * op(a_i) op(b_i) + beta_i * c_i. See cadre::GroupedGemmArgs. */
typedef struct cadre_grouped_gemm_args {
  size_t struct_size;
  const cadre_grouped_tensor* a; /* [m_i, k_i], or [k_i, m_i] with transa */
  const cadre_grouped_tensor* b; /* [k_i, n_i], or [n_i, k_i] with transb */
  const cadre_grouped_tensor* c; /* [m_i, n_i]; default: d */
  const cadre_grouped_tensor* d; /* [m_i, n_i] */
  int32_t transa;
  int32_t transb;
  int32_t accumulate;
  double alpha;
  double beta;
  const cadre_tensor* alpha_per_group;
  const cadre_tensor* beta_per_group;
  const cadre_scales* a_scales; /* of FP8 operands; NULL otherwise */
  const cadre_scales* b_scales;
  const cadre_call_options* options;
} cadre_grouped_gemm_args;

CADRE_API void cadre_grouped_gemm_args_init(cadre_grouped_gemm_args* args, size_t struct_size);
CADRE_API cadre_status_code cadre_grouped_gemm(cadre_context* context,
                                               const cadre_grouped_gemm_args* args);
CADRE_API cadre_status_code cadre_grouped_gemm_workspace_size(cadre_context* context,
                                                              const cadre_grouped_gemm_args* args,
                                                              size_t* size_bytes);

/* dbias[i] = sum of bias_scale[r] * dy[r]; dbias_scale[r] = dot(dy[r], bias). See
 * cadre::BiasGradArgs. */
typedef struct cadre_bias_grad_args {
  size_t struct_size;
  const cadre_tensor* dy; /* [m, n] */
  cadre_sizes group_sizes;
  const cadre_grouped_tensor* dbias; /* [g, n], or NULL */
  const cadre_tensor* dbias_scale;   /* [m], or NULL */
  const cadre_grouped_tensor* bias;  /* [g, n]; needed for dbias_scale */
  const cadre_tensor* bias_scale;    /* [m] */
  int32_t accumulate;
  int64_t group_offset;
  const void* group_offset_on_device;
  cadre_dtype group_offset_dtype;
  const cadre_call_options* options;
} cadre_bias_grad_args;

CADRE_API void cadre_bias_grad_args_init(cadre_bias_grad_args* args, size_t struct_size);
CADRE_API cadre_status_code cadre_bias_grad(cadre_context* context,
                                            const cadre_bias_grad_args* args);
CADRE_API cadre_status_code cadre_bias_grad_workspace_size(cadre_context* context,
                                                           const cadre_bias_grad_args* args,
                                                           size_t* size_bytes);

/* ---- Rows around the products --------------------------------------------------------------- */

enum { CADRE_SCORE_SOFTMAX = 0, CADRE_SCORE_SIGMOID = 1 };
enum { CADRE_GROUP_SCORE_MAX = 0, CADRE_GROUP_SCORE_TOP_TWO = 1 };

/* The top_k experts of each token and their weights. See cadre::SelectExpertsArgs
 * (cadre/select_experts.h). */
typedef struct cadre_select_experts_args {
  size_t struct_size;
  const cadre_tensor* logits;          /* [t, num_experts] */
  const cadre_tensor* correction_bias; /* [num_experts], or NULL */
  int32_t score;                       /* CADRE_SCORE_... */
  int32_t normalize;
  double scale;
  int64_t num_groups;
  int64_t top_groups;
  int32_t group_score;            /* CADRE_GROUP_SCORE_... */
  const cadre_tensor* expert_ids; /* out: [t, top_k] of i32 or i64 */
  const cadre_tensor* weights;    /* out: [t, top_k] */
  const cadre_call_options* options;
} cadre_select_experts_args;

CADRE_API void cadre_select_experts_args_init(cadre_select_experts_args* args, size_t struct_size);
CADRE_API cadre_status_code cadre_select_experts(cadre_context* context,
                                                 const cadre_select_experts_args* args);
CADRE_API cadre_status_code cadre_select_experts_workspace_size(
    cadre_context* context, const cadre_select_experts_args* args, size_t* size_bytes);

/* dlogits from dweights. See cadre::SelectExpertsGradArgs. */
typedef struct cadre_select_experts_grad_args {
  size_t struct_size;
  const cadre_tensor* logits; /* [t, num_experts] */
  int32_t score;
  int32_t normalize;
  double scale;
  const cadre_tensor* expert_ids; /* [t, top_k] */
  const cadre_tensor* dweights;   /* [t, top_k] */
  const cadre_tensor* dlogits;    /* out: [t, num_experts] */
  const cadre_call_options* options;
} cadre_select_experts_grad_args;

CADRE_API void cadre_select_experts_grad_args_init(cadre_select_experts_grad_args* args,
                                                   size_t struct_size);
CADRE_API cadre_status_code cadre_select_experts_grad(cadre_context* context,
                                                      const cadre_select_experts_grad_args* args);
CADRE_API cadre_status_code cadre_select_experts_grad_workspace_size(
    cadre_context* context, const cadre_select_experts_grad_args* args, size_t* size_bytes);

/* Sorts the slots of [t, top_k] expert ids by expert. See cadre::RouteArgs (cadre/route.h). */
typedef struct cadre_route_args {
  size_t struct_size;
  const cadre_tensor* expert_ids;    /* [t, top_k] of any integer type */
  const cadre_tensor* group_sizes;   /* out: [num_experts] of i32 or i64 */
  const cadre_tensor* source_row;    /* out: [t * top_k], -1: no token */
  const cadre_tensor* slot_row;      /* out: [t, top_k], -1: dropped */
  const cadre_call_options* options; /* NULL: defaults */
} cadre_route_args;

CADRE_API void cadre_route_args_init(cadre_route_args* args, size_t struct_size);
CADRE_API cadre_status_code cadre_route(cadre_context* context, const cadre_route_args* args);
CADRE_API cadre_status_code cadre_route_workspace_size(cadre_context* context,
                                                       const cadre_route_args* args,
                                                       size_t* size_bytes);

/* out[r] = x[source_row[r]], zeros where it is -1. See cadre::PermuteArgs (cadre/permute.h). */
typedef struct cadre_permute_args {
  size_t struct_size;
  const cadre_tensor* x;          /* [t, h] */
  const cadre_tensor* source_row; /* [m] of i32 or i64 */
  const cadre_tensor* out;        /* [m, h] of x's type */
  const cadre_call_options* options;
  const cadre_tensor* slot_row; /* [t, top_k], or NULL: with it a GPU reads every token once */
} cadre_permute_args;

CADRE_API void cadre_permute_args_init(cadre_permute_args* args, size_t struct_size);
CADRE_API cadre_status_code cadre_permute(cadre_context* context, const cadre_permute_args* args);
CADRE_API cadre_status_code cadre_permute_workspace_size(cadre_context* context,
                                                         const cadre_permute_args* args,
                                                         size_t* size_bytes);

/* out[t] = sum of weights[t, j] * y[slot_row[t, j]] + shared[t] + residual[t]. See
 * cadre::CombineArgs (cadre/combine.h). */
typedef struct cadre_combine_args {
  size_t struct_size;
  const cadre_tensor* y;        /* [m, h] */
  const cadre_tensor* slot_row; /* [t, top_k] of i32 or i64 */
  const cadre_tensor* weights;  /* [t, top_k], or NULL */
  const cadre_tensor* shared;   /* [t, h], or NULL */
  const cadre_tensor* residual; /* [t, h], or NULL */
  const cadre_tensor* out;      /* [t, h] */
  const cadre_call_options* options;
} cadre_combine_args;

CADRE_API void cadre_combine_args_init(cadre_combine_args* args, size_t struct_size);
CADRE_API cadre_status_code cadre_combine(cadre_context* context, const cadre_combine_args* args);
CADRE_API cadre_status_code cadre_combine_workspace_size(cadre_context* context,
                                                         const cadre_combine_args* args,
                                                         size_t* size_bytes);

/* dy[slot_row[t, j]] = weights[t, j] * dout[t]; dweights[t, j] = dot(dout[t], y[slot_row[t, j]]).
 * See cadre::CombineGradArgs. */
typedef struct cadre_combine_grad_args {
  size_t struct_size;
  const cadre_tensor* dout;       /* [t, h], or NULL: ones */
  const cadre_tensor* slot_row;   /* [t, top_k] */
  const cadre_tensor* source_row; /* [m]; needed for dy */
  const cadre_tensor* weights;    /* [t, top_k], or NULL */
  const cadre_tensor* y;          /* [m, h]; needed for dweights */
  const cadre_tensor* dy;         /* [m, h], or NULL */
  const cadre_tensor* dweights;   /* [t, top_k], or NULL */
  const cadre_call_options* options;
} cadre_combine_grad_args;

CADRE_API void cadre_combine_grad_args_init(cadre_combine_grad_args* args, size_t struct_size);
CADRE_API cadre_status_code cadre_combine_grad(cadre_context* context,
                                               const cadre_combine_grad_args* args);
CADRE_API cadre_status_code cadre_combine_grad_workspace_size(cadre_context* context,
                                                              const cadre_combine_grad_args* args,
                                                              size_t* size_bytes);

/* out[r] = activation(preact[r]). */
typedef struct cadre_activate_args {
  size_t struct_size;
  const cadre_tensor* preact; /* [m, 2i] with a gate, else [m, i] */
  cadre_activation activation;
  const cadre_tensor* out; /* [m, i] */
  const cadre_call_options* options;
} cadre_activate_args;

CADRE_API void cadre_activate_args_init(cadre_activate_args* args, size_t struct_size);
CADRE_API cadre_status_code cadre_activate(cadre_context* context, const cadre_activate_args* args);
CADRE_API cadre_status_code cadre_activate_workspace_size(cadre_context* context,
                                                          const cadre_activate_args* args,
                                                          size_t* size_bytes);

/* Gradients of row_scale[r] * activation(preact[r]) (cadre/activate.h). */
typedef struct cadre_activate_grad_args {
  size_t struct_size;
  const cadre_tensor* preact;    /* [m, 2i] with a gate, else [m, i] */
  const cadre_tensor* grad;      /* [m, i] */
  const cadre_tensor* row_scale; /* [m], or NULL */
  cadre_activation activation;
  const cadre_tensor* d_preact;  /* out: the shape of preact, or preact, or NULL */
  const cadre_tensor* activated; /* out: [m, i], or grad, or NULL */
  const cadre_tensor* row_dot;   /* out: [m], or NULL */
  const cadre_call_options* options;
} cadre_activate_grad_args;

CADRE_API void cadre_activate_grad_args_init(cadre_activate_grad_args* args, size_t struct_size);
CADRE_API cadre_status_code cadre_activate_grad(cadre_context* context,
                                                const cadre_activate_grad_args* args);
CADRE_API cadre_status_code cadre_activate_grad_workspace_size(cadre_context* context,
                                                               const cadre_activate_grad_args* args,
                                                               size_t* size_bytes);

/* ---- FP8 ------------------------------------------------------------------------------------ */

/* Rows [m, k] or weights [g, n, k] to e4m3 or e5m2 with scales, in one or both arrangements. See
 * cadre::QuantizeArgs (cadre/quantize.h). */
typedef struct cadre_quantize_args {
  size_t struct_size;
  const cadre_tensor* x;          /* [t, k], [t, 2k] with a gate, or weights [g, n, k] */
  const cadre_tensor* source_row; /* [m] of i32 or i64, or NULL */
  const cadre_tensor* row_scale;  /* [m], or NULL */
  cadre_activation activation;
  cadre_sizes group_sizes; /* data NULL and count 0: one group of all rows */
  int32_t power_of_two;
  double amax_floor;
  const cadre_tensor* rows; /* out: [m, k] or [g, n, k]; NULL: not */
  const cadre_scales* rows_scales;
  const cadre_tensor* columns; /* out: [k, capacity] or [g, k, n]; NULL: not */
  const cadre_scales* columns_scales;
  const cadre_call_options* options;
} cadre_quantize_args;

CADRE_API void cadre_quantize_args_init(cadre_quantize_args* args, size_t struct_size);
CADRE_API cadre_status_code cadre_quantize(cadre_context* context, const cadre_quantize_args* args);
CADRE_API cadre_status_code cadre_quantize_workspace_size(cadre_context* context,
                                                          const cadre_quantize_args* args,
                                                          size_t* size_bytes);

/* out = code * scale. See cadre::DequantizeArgs. */
typedef struct cadre_dequantize_args {
  size_t struct_size;
  const cadre_tensor* x; /* [m, k], [g, n, k], or with x_columns [k, capacity] */
  const cadre_scales* x_scales;
  int32_t x_columns;
  cadre_sizes group_sizes; /* data NULL and count 0: one group of all rows */
  const cadre_tensor* out; /* [m, k] or [g, n, k] */
  const cadre_call_options* options;
} cadre_dequantize_args;

CADRE_API void cadre_dequantize_args_init(cadre_dequantize_args* args, size_t struct_size);
CADRE_API cadre_status_code cadre_dequantize(cadre_context* context,
                                             const cadre_dequantize_args* args);
CADRE_API cadre_status_code cadre_dequantize_workspace_size(cadre_context* context,
                                                            const cadre_dequantize_args* args,
                                                            size_t* size_bytes);

/* The largest finite magnitudes that would share a scale. See cadre::AmaxArgs. */
typedef struct cadre_amax_args {
  size_t struct_size;
  const cadre_tensor* x; /* [m, k] or [g, n, k] */
  cadre_sizes group_sizes;
  cadre_scale_mode mode;
  const cadre_tensor* out; /* f32 in the shape of the mode's scales */
  const cadre_call_options* options;
} cadre_amax_args;

CADRE_API void cadre_amax_args_init(cadre_amax_args* args, size_t struct_size);
CADRE_API cadre_status_code cadre_amax(cadre_context* context, const cadre_amax_args* args);
CADRE_API cadre_status_code cadre_amax_workspace_size(cadre_context* context,
                                                      const cadre_amax_args* args,
                                                      size_t* size_bytes);

/* The experts of a layer, from tokens to tokens (cadre/moe_mlp.h). One struct for both directions:
 * forward reads what stands under "both" and "forward", backward what stands under "both" and
 * "backward". With delay_wgrad backward leaves dw13 and dw2 to cadre_moe_mlp_backward_dw, which
 * takes the same arguments. */
typedef struct cadre_moe_mlp_args {
  size_t struct_size;
  /* Both. Without a gate read i for 2i. */
  const cadre_grouped_tensor* w13;    /* [g, 2i, h], or [g, h, 2i] if transposed */
  const cadre_grouped_tensor* w2;     /* [g, h, i], or [g, i, h] if transposed */
  const cadre_grouped_tensor* bias13; /* [g, 2i] (cadre_grouped_vectors), or NULL */
  const cadre_grouped_tensor* bias2;  /* [g, h], or NULL */
  int32_t transposed;
  const cadre_packed_weights* packed_w13; /* for forward on a CPU; or NULL */
  const cadre_packed_weights* packed_w2;
  cadre_activation activation; /* default: swiglu */
  int32_t weights_on_input;
  int32_t delay_wgrad;
  const cadre_tensor* x;          /* [t, h] */
  cadre_sizes group_sizes;        /* rows of every expert */
  const cadre_tensor* source_row; /* [m] of i32 or i64; NULL: x's rows are sorted by expert */
  const cadre_tensor* slot_row;   /* [t, top_k] of i32 or i64; NULL where source_row is */
  const cadre_tensor* weights;    /* [t, top_k], or NULL */
  int64_t group_offset;
  const void* group_offset_on_device; /* an integer there takes the place of group_offset */
  cadre_dtype group_offset_dtype;
  const cadre_tensor*
      preact; /* [m, 2i]: written by forward (NULL in inference), read by backward */
  /* Forward. */
  const cadre_tensor* shared;   /* [t, h], or NULL */
  const cadre_tensor* residual; /* [t, h], or NULL */
  const cadre_tensor* out;      /* [t, h] */
  /* Backward: every gradient may be NULL. */
  const cadre_tensor* dout;         /* [t, h] */
  const cadre_tensor* dx;           /* [t, h] */
  const cadre_tensor* dweights;     /* [t, top_k] */
  const cadre_grouped_tensor* dw13; /* the shape of w13 */
  const cadre_grouped_tensor* dw2;  /* the shape of w2 */
  double dw_beta;                   /* 0 replaces dw13 and dw2, 1 adds to them */
  const cadre_tensor* dw_beta_per_group;
  const cadre_grouped_tensor* dbias13; /* [g, 2i] */
  const cadre_grouped_tensor* dbias2;  /* [g, h] */
  int32_t accumulate_dbias;
  const cadre_tensor* d_preact;  /* [m, 2i], or preact; needed for dw13 with delay_wgrad */
  const cadre_tensor* activated; /* [m, i]; needed for dw2 with delay_wgrad */
  const cadre_call_options* options;
} cadre_moe_mlp_args;

CADRE_API void cadre_moe_mlp_args_init(cadre_moe_mlp_args* args, size_t struct_size);
CADRE_API cadre_status_code cadre_moe_mlp_forward(cadre_context* context,
                                                  const cadre_moe_mlp_args* args);
CADRE_API cadre_status_code cadre_moe_mlp_backward(cadre_context* context,
                                                   const cadre_moe_mlp_args* args);
CADRE_API cadre_status_code cadre_moe_mlp_backward_dw(cadre_context* context,
                                                      const cadre_moe_mlp_args* args);
/* Bytes of options.workspace, which must be given for tensors on a GPU. */
CADRE_API cadre_status_code cadre_moe_mlp_forward_workspace_size(cadre_context* context,
                                                                 const cadre_moe_mlp_args* args,
                                                                 size_t* size_bytes);
CADRE_API cadre_status_code cadre_moe_mlp_backward_workspace_size(cadre_context* context,
                                                                  const cadre_moe_mlp_args* args,
                                                                  size_t* size_bytes);

typedef struct cadre_pack_weights_args {
  size_t struct_size;
  const cadre_grouped_tensor* rhs; /* [g, k, n], or [g, n, k] with transpose_rhs, on the CPU */
  int32_t transpose_rhs;
  cadre_dtype lhs_dtype; /* of the lhs it will be multiplied with; 0: rhs's */
  cadre_dtype out_dtype; /* 0: what gmm gives for these two */
} cadre_pack_weights_args;

CADRE_API void cadre_pack_weights_args_init(cadre_pack_weights_args* args, size_t struct_size);
/* The caller destroys what it gets. */
CADRE_API cadre_status_code cadre_pack_weights(cadre_context* context,
                                               const cadre_pack_weights_args* args,
                                               cadre_packed_weights** packed);
CADRE_API void cadre_packed_weights_destroy(cadre_packed_weights* packed);
CADRE_API size_t cadre_packed_weights_size_bytes(const cadre_packed_weights* packed);
/* The kernel it is packed for; valid as long as the weights are. */
CADRE_API const char* cadre_packed_weights_kernel(const cadre_packed_weights* packed);

/* Which kernel a call would get and why each other one refuses it: several lines of text. Nothing
 * is run, and no tensor is read but group sizes and pointers on the host. CADRE_UNSUPPORTED, with
 * the text, when every kernel refuses. The text is valid until this thread's next call of these. */
CADRE_API cadre_status_code cadre_gmm_explain(cadre_context* context, const cadre_gmm_args* args,
                                              const char** explanation);
CADRE_API cadre_status_code cadre_tgmm_explain(cadre_context* context, const cadre_tgmm_args* args,
                                               const char** explanation);
CADRE_API cadre_status_code cadre_grouped_gemm_explain(cadre_context* context,
                                                       const cadre_grouped_gemm_args* args,
                                                       const char** explanation);
CADRE_API cadre_status_code cadre_bias_grad_explain(cadre_context* context,
                                                    const cadre_bias_grad_args* args,
                                                    const char** explanation);

#ifdef __cplusplus
}
#endif

#endif /* CADRE_C_API_H_ */
