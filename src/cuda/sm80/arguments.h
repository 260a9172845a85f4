// Parameters of the portable kernels: plain structs that travel in the launch.
#pragma once

#include <cstdint>

#include "cadre/dtype.h"
#include "core/host_device.h"
#include "cuda/group_inputs.h"
#include "cuda/sm80/group_entry.h"
#include "plan/problem.h"

namespace cadre::sm80 {

/// A value for all groups, or an array on the device.
struct ExtentArguments {
  int64_t uniform = 0;
  const void* values = nullptr;
  cuda::SizesForm form = cuda::SizesForm::kI64;
  int64_t max = 0;  ///< values outside [0, max] are faults
};

struct TensorArguments {
  Placement placement = Placement::kAbsent;
  int32_t element_bytes = 0;
  char* data = nullptr;
  void* const* pointers = nullptr;  ///< on the device
  int64_t group_stride = 0;
  int64_t row_stride = 0;
  int64_t col_stride = 1;
  bool contiguous = false;  ///< a matrix's row stride is its cols
  ExtentArguments rows{}, cols{}, offsets{};
  int64_t capacity = 0;
};

struct ScalarArguments {
  double uniform = 0;
  const void* values = nullptr;
  int64_t stride = 0;
  bool is_f64 = false;
};

/// Rows of an operand by index: row r of the product is row data[r] of the operand; without data it
/// is row r.
struct RowIndexArguments {
  const void* data = nullptr;
  bool is_i64 = false;
  int64_t stride = 1;
  int32_t limit = INT32_MAX;  ///< rows of the operand: an index outside [0, limit) is one of zeros
  int32_t* fault = nullptr;
};

/// Which rows lie by index: those of A, along M (gmm), or those of either operand, along K (tgmm).
enum class ByIndex { kNone, kRowsOfA, kRowsAlongK };

/// The scales of an operand. A group's begin at pointers[group] or group * group_stride, and then
/// GroupEntry::row_begin * begin_stride further on; strides count scales.
struct ScaleArguments {
  const char* data = nullptr;
  void* const* pointers = nullptr;  ///< on the device
  bool is_e8m0 = false;
  int32_t outer_block = 1;
  int32_t inner_block = 0;  ///< 0: all of K shares one
  int64_t group_stride = 0;
  int64_t begin_stride = 0;
  int64_t outer_stride = 0;
  int64_t inner_stride = 0;
};

/// Column-wise copies among tgmm's operands.
struct ColumnArguments {
  bool a = false, b = false;
  int64_t capacity = 0;   ///< columns that all copies have
  int32_t line_rows = 0;  ///< rows of a line of scales; 0: a line for each group
  int64_t lines = 0;      ///< lines of scales that all have memory for
};

/// What prepare_kernel.cu reads.
struct PrepareArguments {
  plan::Op op = plan::Op::kGmm;
  bool transpose_a = false;
  bool transpose_b = false;
  bool reads_c = false;
  /// gmm: rows of D before the first local group and behind the last are two more entries of the
  /// table, without k, which give zeros.
  bool zeroes_other_rows = false;
  cuda::GroupInputs groups;
  int64_t* offsets = nullptr;  ///< Workspace::offsets(): gmm and tgmm
  int64_t n = 0;
  int64_t k = 0;
  TensorArguments a, b, c, d, bias;
  ColumnArguments columns{};
  ScaleArguments a_scales{}, b_scales{};  ///< handed on to the product
  /// Then gmm's A, or both of tgmm's operands, begin in every group with the tensor's first row.
  bool by_index = false;
  ScalarArguments alpha, beta;
  int32_t tile_m = 0;
  int32_t tile_n = 0;
  GroupEntries table{};
  const uint32_t* only_if = nullptr;  ///< Launch::only_if: while it is 0 there are no tiles
};

/// A [m] vector; data is null when it isn't given.
struct VectorArguments {
  const char* data = nullptr;
  int64_t stride = 0;
  DType dtype = DType::kF32;
};

/// What a transform (epilogue.cuh) reads beside the group's entry.
struct EpilogueArguments {
  int64_t c_col_stride = 1;
  DType c_dtype = DType::kF32;
  int64_t bias_stride = 1;
  DType bias_dtype = DType::kF32;
  VectorArguments row_scale{}, bias_scale{};
};

/// What the product kernels read.
struct ProductArguments {
  GroupEntries table{};
  int64_t num_groups = 0;
  /// The stored A has rows along k (tgmm, transa); the stored B has rows along n (transpose_rhs).
  bool a_rows_along_k = false;
  bool b_rows_along_n = false;
  int64_t a_col_stride = 1;
  int64_t b_col_stride = 1;
  int64_t d_col_stride = 1;
  int32_t a_element_bytes = 4;
  int32_t b_element_bytes = 4;
  RowIndexArguments a_index{};
  ScaleArguments a_scales{}, b_scales{};
  DType a_dtype = DType::kF32;
  DType b_dtype = DType::kF32;
  DType d_dtype = DType::kF32;
  EpilogueArguments epilogue{};

  /// Rows of D outside all groups to be zeroed: before offsets[0] and from offsets[num_groups] to
  /// m; null: none.
  const int64_t* zero_outside = nullptr;
  char* zero_data = nullptr;
  int32_t zero_element_bytes = 0;
  int64_t zero_rows = 0;  ///< m
  int64_t zero_cols = 0;
  int64_t zero_row_stride = 0;

  RowIndexArguments b_index{};  ///< tgmm

  CADRE_HOST_DEVICE ByIndex by_index() const {
    if (a_index.data == nullptr && b_index.data == nullptr) return ByIndex::kNone;
    return a_rows_along_k ? ByIndex::kRowsAlongK : ByIndex::kRowsOfA;
  }
};

}  // namespace cadre::sm80
