// One block turns sizes, dims, pointers and scalars of a call into the table of GroupEntry and the
// tile counts. It is the only portable kernel that knows which op runs, and the place where what
// lies on the device is validated.
#include "cuda/group_inputs.cuh"
#include "cuda/sm80/prepare.h"

namespace cadre::sm80 {
namespace {

using cuda::kScanThreads;

__device__ int64_t value_of(const ExtentArguments& extent, int64_t group) {
  return extent.values == nullptr ? extent.uniform
                                  : cuda::read_form(extent.values, extent.form, group);
}

__device__ bool in_range(const ExtentArguments& extent, int64_t value) {
  return value >= 0 && (extent.values == nullptr || value <= extent.max);
}

__device__ double value_of(const ScalarArguments& scalars, int64_t group) {
  if (scalars.values == nullptr) return scalars.uniform;
  return scalars.is_f64 ? static_cast<const double*>(scalars.values)[group * scalars.stride]
                        : static_cast<const float*>(scalars.values)[group * scalars.stride];
}

struct Matrix {
  int64_t rows;
  int64_t cols;
  int64_t row_stride;
  char* data;
};

/// Elements from the first to the last one of a packed matrix, saturated: nothing here can
/// overflow.
__device__ int64_t packed_elements(const TensorArguments& tensor, const Matrix& matrix) {
  if (matrix.rows == 0 || matrix.cols == 0) return 0;
  __extension__ using Wide = __int128;
  const Wide elements = static_cast<Wide>(matrix.rows - 1) * matrix.row_stride +
                        static_cast<Wide>(matrix.cols - 1) * tensor.col_stride + 1;
  constexpr int64_t kCap = int64_t{1} << 61;
  return elements > kCap ? kCap : static_cast<int64_t>(elements);
}

/// Dims of a group's matrix, false when they are out of range (then they are 0).
__device__ bool read_dims(const TensorArguments& tensor, int64_t group, Matrix* matrix) {
  *matrix = {value_of(tensor.rows, group), value_of(tensor.cols, group), tensor.row_stride,
             nullptr};
  const bool good = in_range(tensor.rows, matrix->rows) && in_range(tensor.cols, matrix->cols);
  if (!good) matrix->rows = matrix->cols = 0;
  if (tensor.contiguous) matrix->row_stride = matrix->cols;
  return good;
}

/// The address of a group's matrix in any placement but kRows and kPacked.
__device__ char* address_of(const TensorArguments& tensor, int64_t group) {
  if (tensor.placement == Placement::kList) return static_cast<char*>(tensor.pointers[group]);
  return tensor.data + group * tensor.group_stride * tensor.element_bytes;
}

__device__ char* row_address(const TensorArguments& tensor, int64_t row) {
  return tensor.data + row * tensor.row_stride * tensor.element_bytes;
}

__device__ uint32_t vector_flag(const TensorArguments& tensor, const void* data, int64_t row_stride,
                                uint32_t flag) {
  const auto bits =
      reinterpret_cast<uint64_t>(data) | static_cast<uint64_t>(row_stride * tensor.element_bytes);
  // Row strides of 2^31 bytes and more, and negative ones, take the way of odd strides: the fast
  // one multiplies them as 32-bit numbers without a sign.
  const int64_t stride_bytes = row_stride * tensor.element_bytes;
  const bool near = stride_bytes >= 0 && stride_bytes <= INT32_MAX;
  return tensor.col_stride == 1 && near && bits % 16 == 0 ? flag : 0;
}

__device__ void fill_flags(const PrepareArguments& args, GroupEntry* entry) {
  // The loops that load 16 bytes at a time count K in 32 bits; those that load single elements
  // don't.
  constexpr int64_t kMaxVectorK = INT32_MAX - 1024;  // a few blocks past the end still fit
  const bool short_k = entry->k <= kMaxVectorK;
  entry->vector_flags =
      (short_k ? vector_flag(args.a, entry->a, entry->a_row_stride, kVectorA) : 0) |
      (short_k ? vector_flag(args.b, entry->b, entry->b_row_stride, kVectorB) : 0) |
      vector_flag(args.c, entry->c, entry->c_row_stride, kVectorC) |
      vector_flag(args.d, entry->d, entry->d_row_stride, kVectorD) |
      vector_flag(args.bias, entry->bias, 0, kVectorBias);
}

__device__ void gmm_entry(const PrepareArguments& args, int64_t group, GroupEntry* entry) {
  const int64_t begin = args.offsets[group];
  int64_t rows = args.offsets[group + 1] - begin;
  // The matrices of a list hold so many rows and no more.
  for (const TensorArguments* tensor : {&args.d, &args.c}) {
    if (tensor->placement == Placement::kList && rows > tensor->rows.uniform) {
      rows = tensor->rows.uniform;
      cuda::report_fault(args.groups.fault, plan::DeviceFault::kExtent);
    }
  }
  entry->m = rows;
  entry->n = args.n;
  entry->k = args.k;
  entry->a = row_address(args.a, args.by_index ? 0 : begin);
  entry->b = address_of(args.b, group);
  entry->d =
      args.d.placement == Placement::kRows ? row_address(args.d, begin) : address_of(args.d, group);
  entry->c =
      args.c.placement == Placement::kRows ? row_address(args.c, begin) : address_of(args.c, group);
  entry->row_begin = begin;
}

/// The rows of gmm's D before the first local group, or behind the last: a product without k.
__device__ void outside_entry(const PrepareArguments& args, bool behind, GroupEntry* entry) {
  const int64_t begin = behind ? args.offsets[args.groups.num_local] : 0;
  entry->m = (behind ? args.groups.m : args.offsets[0]) - begin;
  entry->n = args.n;
  entry->d = row_address(args.d, begin);
  entry->row_begin = begin;
}

/// The sum of the values before this thread's, over the block and the steps before, which `carried`
/// holds. All threads of the block call this together.
__device__ int64_t running_begin(int64_t value, int64_t* carried) {
  __shared__ int64_t total;
  constexpr int64_t kCap = int64_t{1} << 61;
  const cuda::BlockSums sums = cuda::capped_block_scan(value, kCap);
  const int64_t before = *carried;
  if (threadIdx.x == kScanThreads - 1) total = min(before + sums.inclusive, kCap);
  __syncthreads();
  *carried = total;
  __syncthreads();
  return min(before + sums.exclusive, kCap);
}

/// Where a group begins in column-wise copies, and its first line of scales.
struct ColumnPlace {
  int64_t column = 0, line = 0;
};

__device__ ColumnPlace column_room(const ColumnArguments& columns, int64_t rows) {
  const int64_t aligned = (rows + kColumnAlignment - 1) / kColumnAlignment * kColumnAlignment;
  return {aligned, columns.line_rows == 0 ? 1 : (rows + columns.line_rows - 1) / columns.line_rows};
}

/// What the groups before the local ones take. Where a size among them is bad, all local groups are
/// empty.
__device__ ColumnPlace foreign_columns(const PrepareArguments& args) {
  ColumnPlace carried;
  const int64_t first = cuda::first_local_group(args.groups);
  for (int64_t begin = 0; begin < first; begin += kScanThreads) {
    const int64_t group = begin + threadIdx.x;
    int64_t size = group < first ? cuda::read_size(args.groups, group) : 0;
    if (size < 0 || size > args.groups.m) size = 0;
    ColumnPlace room;
    if (group < first) room = column_room(args.columns, size);
    running_begin(room.column, &carried.column);
    running_begin(room.line, &carried.line);
  }
  return carried;
}

/// Moves the operands that are column-wise copies to their groups' columns, in a finished table. A
/// group that doesn't fit them is empty, and a fault.
__device__ void place_columns(const PrepareArguments& args) {
  ColumnPlace carried = foreign_columns(args);
  for (int64_t first = 0; first < args.groups.num_local; first += kScanThreads) {
    const int64_t group = first + threadIdx.x;
    const bool real = group < args.groups.num_local;
    GroupEntry& entry = args.table.entries[real ? group : 0];
    ColumnPlace room;
    if (real) room = column_room(args.columns, entry.k);
    const int64_t column = running_begin(room.column, &carried.column);
    const int64_t line = running_begin(room.line, &carried.line);
    if (!real) continue;
    if (column > args.columns.capacity - room.column || line > args.columns.lines - room.line) {
      if (entry.k > 0) cuda::report_fault(args.groups.fault, plan::DeviceFault::kExtent);
      entry.k = 0;
      continue;
    }
    if (args.columns.a) entry.a = args.a.data + column * args.a.col_stride;
    if (args.columns.b) entry.b = args.b.data + column * args.b.col_stride;
    entry.row_begin = line;
  }
}

__device__ void tgmm_entry(const PrepareArguments& args, int64_t group, GroupEntry* entry) {
  const int64_t begin = args.offsets[group];
  entry->m = args.k;
  entry->n = args.n;
  entry->k = args.offsets[group + 1] - begin;
  entry->a = row_address(args.a, args.by_index ? 0 : begin);
  entry->b = row_address(args.b, args.by_index ? 0 : begin);
  entry->c = address_of(args.c, group);
  entry->d = address_of(args.d, group);
  entry->row_begin = args.by_index ? begin : 0;
}

/// Where the groups of a packed tensor start, summed over the block; the positions carry on from
/// step to step.
__device__ int64_t packed_begin(const TensorArguments& tensor, const Matrix& matrix, int64_t group,
                                bool real, int64_t* carried) {
  const int64_t begin = running_begin(real ? packed_elements(tensor, matrix) : 0, carried);
  if (tensor.offsets.values == nullptr) return begin;
  return real ? value_of(tensor.offsets, group) : 0;
}

/// Address of a matrix of a grouped_gemm tensor; false when it doesn't fit its packed buffer.
__device__ bool place(const TensorArguments& tensor, int64_t begin, int64_t group, Matrix* matrix) {
  if (tensor.placement != Placement::kPacked) {
    matrix->data = address_of(tensor, group);
    return true;
  }
  const int64_t elements = packed_elements(tensor, *matrix);
  matrix->data = tensor.data + begin * tensor.element_bytes;
  return begin >= 0 && begin <= tensor.capacity && elements <= tensor.capacity - begin;
}

/// All threads of the block call this together; `real` says whether the thread has a group.
__device__ void grouped_gemm_entry(const PrepareArguments& args, int64_t group, bool real,
                                   int64_t (&carried)[4], GroupEntry* entry) {
  const TensorArguments* tensors[4] = {&args.a, &args.b, &args.d, &args.c};
  Matrix matrices[4] = {};
  bool good = true;
  const int used = args.reads_c ? 4 : 3;
  for (int i = 0; i < used; ++i) {
    if (real) good = read_dims(*tensors[i], group, &matrices[i]) && good;
    int64_t begin = 0;
    if (tensors[i]->placement == Placement::kPacked) {
      begin = packed_begin(*tensors[i], matrices[i], group, real, &carried[i]);
    }
    if (real) good = place(*tensors[i], begin, group, &matrices[i]) && good;
  }
  if (!real) return;
  const Matrix& a = matrices[0];
  const Matrix& b = matrices[1];
  const Matrix& d = matrices[2];
  const Matrix& c = matrices[3];
  const int64_t k = args.transpose_a ? a.rows : a.cols;
  good = good && (args.transpose_a ? a.cols : a.rows) == d.rows;
  good = good && (args.transpose_b ? b.rows : b.cols) == d.cols;
  good = good && (args.transpose_b ? b.cols : b.rows) == k;
  good = good && (!args.reads_c || (c.rows == d.rows && c.cols == d.cols));
  if (!good) cuda::report_fault(args.groups.fault, plan::DeviceFault::kExtent);
  entry->m = good ? d.rows : 0;
  entry->n = good ? d.cols : 0;
  entry->k = good ? k : 0;
  entry->a = a.data;
  entry->b = b.data;
  entry->c = c.data;
  entry->d = d.data;
  entry->a_row_stride = a.row_stride;
  entry->b_row_stride = b.row_stride;
  entry->c_row_stride = c.row_stride;
  entry->d_row_stride = d.row_stride;
  entry->row_begin = 0;
}

__global__ void __launch_bounds__(kScanThreads)
    prepare_kernel(const __grid_constant__ PrepareArguments args) {
  if (threadIdx.x == 0) *args.table.claimed = 0;
  if (args.only_if != nullptr && *args.only_if == 0) {
    const int64_t entries = table_groups(args.groups.num_local, args.zeroes_other_rows);
    for (int64_t i = threadIdx.x; i < entries; i += kScanThreads) {
      args.table.tile_ends[i] = 0;
    }
    // All rows count as covered: none is zeroed.
    if (threadIdx.x == 0) args.offsets[0] = 0;
    if (threadIdx.x == 0) args.offsets[args.groups.num_local] = args.groups.m;
    return;
  }
  const bool ragged = args.op != plan::Op::kGroupedGemm;
  if (ragged) {
    cuda::scan_groups(args.groups, args.offsets);
    __syncthreads();  // the block's own offsets are read below
  }
  // More tiles would be outputs of hundreds of gigabytes.
  constexpr int64_t kCap = kMaxTiles + 1;
  __shared__ int64_t tiles_so_far;
  if (threadIdx.x == 0) tiles_so_far = 0;
  int64_t carried[4] = {0, 0, 0, 0};
  const int64_t groups = args.groups.num_local;
  const int64_t entries = table_groups(groups, args.zeroes_other_rows);
  for (int64_t first = 0; first < entries; first += kScanThreads) {
    const int64_t group = first + threadIdx.x;
    const bool real = group < entries;
    const bool is_group = group < groups;
    GroupEntry entry{};
    entry.a_row_stride = args.a.row_stride;
    entry.b_row_stride = args.b.row_stride;
    entry.c_row_stride = args.c.row_stride;
    entry.d_row_stride = args.d.row_stride;
    if (!ragged) {
      grouped_gemm_entry(args, group, real, carried, &entry);
    } else if (is_group) {
      args.op == plan::Op::kGmm ? gmm_entry(args, group, &entry) : tgmm_entry(args, group, &entry);
    } else if (real) {
      outside_entry(args, group > groups, &entry);
    }
    int64_t tiles = 0;
    if (is_group) {
      entry.alpha = value_of(args.alpha, group);
      entry.beta = value_of(args.beta, group);
    }
    if (real) {
      if (is_group && args.bias.placement != Placement::kAbsent)
        entry.bias = address_of(args.bias, group);
      fill_flags(args, &entry);
      const int64_t row_tiles = (entry.m + args.tile_m - 1) / args.tile_m;
      const int64_t col_tiles = (entry.n + args.tile_n - 1) / args.tile_n;
      const bool countable = row_tiles < kCap && col_tiles < kCap && row_tiles * col_tiles < kCap;
      tiles = countable ? row_tiles * col_tiles : kCap;
      entry.row_tiles = static_cast<int32_t>(row_tiles);
      entry.col_tiles = static_cast<int32_t>(col_tiles);
      args.table.entries[group] = entry;
    }
    const cuda::BlockSums sums = cuda::capped_block_scan(tiles, kCap);
    const int64_t before = tiles_so_far;
    const int64_t end = min(before + sums.inclusive, kCap);
    // A group that can't be counted, and all behind it, have no tiles.
    if (real) args.table.tile_ends[group] = end < kCap ? static_cast<int32_t>(end) : 0;
    if (real && end == kCap) cuda::report_fault(args.groups.fault, plan::DeviceFault::kExtent);
    __syncthreads();
    if (threadIdx.x == kScanThreads - 1) tiles_so_far = end;
    __syncthreads();
  }
  if (args.columns.a || args.columns.b) place_columns(args);
}

}  // namespace

Status launch_prepare(const cuda::Launch& launch, const PrepareArguments& args) {
  return cuda::launch_kernel(launch, "sm80/prepare", prepare_kernel,
                             {.threads = static_cast<unsigned>(kScanThreads)}, args);
}

}  // namespace cadre::sm80
