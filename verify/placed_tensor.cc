// Lays matrices out in a guarded buffer.
#include "verify/placed_tensor.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "verify/element.h"

namespace cadre::verify {
IndexArray::IndexArray(Memory& memory, const std::vector<int64_t>& values, DType dtype,
                       GroupSizesKind kind)
    : buffer_(std::make_unique<GuardedBuffer>(memory, values.size() * size_of(dtype),
                                              poison_of(dtype))),
      dtype_(dtype),
      count_(static_cast<int64_t>(values.size())),
      device_(memory.device()),
      kind_(kind) {
  for (size_t i = 0; i < values.size(); ++i) {
    std::byte* at = buffer_->before() + i * size_of(dtype);
    std::memcpy(at, &values[i], size_of(dtype));  // little-endian: the low bytes of any integer
  }
  buffer_->upload();
}

GroupSizes IndexArray::sizes() const {
  GroupSizes sizes(buffer_->data(), dtype_, count_, device_);
  sizes.kind = kind_;
  return sizes;
}

PlacedTensor::PlacedTensor(Memory& memory, Memory& index_memory, DType dtype,
                           std::vector<MatrixShape> shapes, MatrixShape shape_of_none,
                           const Layout& layout, Random& random)
    : memory_(memory),
      index_memory_(index_memory),
      dtype_(dtype),
      shapes_(std::move(shapes)),
      shape_of_none_(shape_of_none),
      layout_(layout) {
  place(random);
  const size_t size_bytes = static_cast<size_t>(total_elements_) * size_of(dtype_);
  buffer_ = std::make_unique<GuardedBuffer>(memory_, size_bytes, poison_of(dtype_));
  if (layout_.form == Placement::kList) {
    pointers_ = std::make_unique<GuardedBuffer>(index_memory_, shapes_.size() * sizeof(void*),
                                                std::byte{0});
    for (size_t i = 0; i < shapes_.size(); ++i) {
      // An empty tensor of a framework has no memory: its pointer is null.
      const bool empty = shapes_[i].rows == 0 || shapes_[i].cols == 0;
      void* pointer = empty ? nullptr : address_of(static_cast<int64_t>(i));
      std::memcpy(pointers_->before() + i * sizeof(void*), &pointer, sizeof(void*));
    }
    pointers_->upload();
  }
}

bool PlacedTensor::uniform() const {
  return std::all_of(shapes_.begin(), shapes_.end(), [&](const MatrixShape& shape) {
    return shape.rows == shapes_[0].rows && shape.cols == shapes_[0].cols;
  });
}

int64_t PlacedTensor::row_stride(size_t matrix) const {
  return contiguous_ ? shapes_[matrix].cols : row_stride_;
}

void PlacedTensor::place(Random& random) {
  int64_t most_rows = shapes_.empty() ? shape_of_none_.rows : 0;
  int64_t most_cols = shapes_.empty() ? shape_of_none_.cols : 0;
  for (const MatrixShape& shape : shapes_) {
    most_rows = std::max(most_rows, shape.rows);
    most_cols = std::max(most_cols, shape.cols);
  }
  const bool own_strides = layout_.form == Placement::kList || layout_.form == Placement::kPacked;
  const bool plain = layout_.row_padding == 0 && layout_.col_stride == 1 && !layout_.column_major &&
                     !layout_.reverse_rows && !layout_.reverse_cols && !layout_.broadcast_rows &&
                     !layout_.broadcast_cols;
  col_stride_ = layout_.col_stride;
  row_stride_ = most_cols * layout_.col_stride + layout_.row_padding;
  contiguous_ = own_strides && plain;
  if (layout_.column_major) {
    row_stride_ = layout_.col_stride;
    col_stride_ = most_rows * layout_.col_stride + layout_.row_padding;
  }
  if (layout_.broadcast_rows) row_stride_ = 0;
  if (layout_.broadcast_cols) col_stride_ = 0;
  if (layout_.reverse_rows) row_stride_ = -row_stride_;
  if (layout_.reverse_cols) col_stride_ = -col_stride_;

  std::vector<size_t> order(shapes_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const bool packed = layout_.form == Placement::kPacked;
  if (layout_.form == Placement::kList || (packed && layout_.explicit_offsets)) {
    random.shuffle(order);
  }
  const int64_t gap = packed && !layout_.explicit_offsets ? 0 : layout_.gap_elements;
  begins_.assign(shapes_.size(), layout_.offset_elements);
  int64_t next = layout_.offset_elements;
  for (size_t i : order) {
    const MatrixShape& shape = shapes_[i];
    int64_t low = 0;
    int64_t high = -1;
    if (shape.rows > 0 && shape.cols > 0) {
      const int64_t down = (shape.rows - 1) * row_stride(i);
      const int64_t across = (shape.cols - 1) * col_stride_;
      low = std::min<int64_t>(down, 0) + std::min<int64_t>(across, 0);
      high = std::max<int64_t>(down, 0) + std::max<int64_t>(across, 0);
    }
    begins_[i] = next - low;
    const bool shared = layout_.broadcast_groups && layout_.form == Placement::kStacked;
    if (!shared || i + 1 == order.size()) next += high - low + 1 + gap;
  }
  if (shapes_.size() > 1) group_stride_ = begins_[1] - begins_[0];
  total_elements_ = next;

  if (packed && layout_.explicit_offsets) {
    std::vector<int64_t> offsets;
    for (int64_t begin : begins_) offsets.push_back(begin - layout_.offset_elements);
    offsets_ = std::make_unique<IndexArray>(index_memory_, offsets, DType::kI64);
  }
  if (own_strides && !uniform()) {
    std::vector<int64_t> rows;
    std::vector<int64_t> cols;
    for (const MatrixShape& shape : shapes_) {
      rows.push_back(shape.rows);
      cols.push_back(shape.cols);
    }
    rows_ = std::make_unique<IndexArray>(index_memory_, rows, DType::kI64);
    cols_ = std::make_unique<IndexArray>(index_memory_, cols, DType::kI32);
  }
}

int64_t PlacedTensor::index_of(int64_t matrix, int64_t row, int64_t col) const {
  const auto i = static_cast<size_t>(matrix);
  return begins_[i] + row * row_stride(i) + col * col_stride_;
}

void* PlacedTensor::address_of(int64_t matrix) const {
  return static_cast<std::byte*>(buffer_->data()) +
         begins_[static_cast<size_t>(matrix)] * static_cast<int64_t>(size_of(dtype_));
}

// Flattened, here and below: each factor of each term is read here. Without it the conversions are
// functions that the linker takes from any file, also from one compiled to see a use after return.
[[gnu::flatten]] void PlacedTensor::set(int64_t matrix, int64_t row, int64_t col, double value) {
  store_element(buffer_->before(), dtype_, index_of(matrix, row, col), value);
}

[[gnu::flatten]] double PlacedTensor::before(int64_t matrix, int64_t row, int64_t col) const {
  return load_element(buffer_->before(), dtype_, index_of(matrix, row, col));
}

[[gnu::flatten]] double PlacedTensor::after(int64_t matrix, int64_t row, int64_t col) const {
  return load_element(buffer_->after(), dtype_, index_of(matrix, row, col));
}

void PlacedTensor::allow_change(int64_t matrix, int64_t row, int64_t col) {
  if (may_change_.empty()) may_change_.resize(buffer_->size_bytes());
  const size_t size = size_of(dtype_);
  const size_t first = static_cast<size_t>(index_of(matrix, row, col)) * size;
  for (size_t i = 0; i < size; ++i) may_change_[first + i] = true;
}

bool PlacedTensor::untouched_elsewhere(int64_t* offset_bytes) const {
  return !buffer_->first_change(may_change_, offset_bytes);
}

std::vector<std::byte> PlacedTensor::bytes_after(int64_t matrix, int64_t row, int64_t col) const {
  const size_t size = size_of(dtype_);
  const std::byte* at = buffer_->after() + static_cast<size_t>(index_of(matrix, row, col)) * size;
  return {at, at + size};
}

void PlacedTensor::upload() { buffer_->upload(); }

GroupedTensor PlacedTensor::tensor(int64_t max_rows) const {
  GroupedTensor tensor;
  tensor.placement = layout_.form;
  tensor.dtype = dtype_;
  tensor.device = memory_.device();
  tensor.num_groups = layout_.form == Placement::kRows ? 0 : static_cast<int64_t>(shapes_.size());
  const MatrixShape& first = shapes_.empty() ? shape_of_none_ : shapes_[0];
  tensor.rows = first.rows;
  tensor.cols = first.cols;
  tensor.row_stride = contiguous_ ? 0 : row_stride_;
  tensor.contiguous = contiguous_;
  tensor.col_stride = col_stride_;
  tensor.group_stride = group_stride_;
  if (!shapes_.empty()) tensor.data = address_of(0);
  if (layout_.form == Placement::kList) {
    tensor.data = nullptr;
    tensor.pointers = static_cast<void* const*>(pointers_->data());
    tensor.pointers_device = index_memory_.device();
    tensor.group_stride = 0;
  }
  if (layout_.form == Placement::kPacked) {
    tensor.data = static_cast<std::byte*>(buffer_->data()) +
                  layout_.offset_elements * static_cast<int64_t>(size_of(dtype_));
    tensor.capacity = total_elements_ - layout_.offset_elements;
    tensor.group_stride = 0;
  }
  if (rows_) {
    int64_t most_rows = 0;
    int64_t most_cols = 0;
    for (const MatrixShape& shape : shapes_) {
      most_rows = std::max(most_rows, shape.rows);
      most_cols = std::max(most_cols, shape.cols);
    }
    tensor.rows = max_rows >= 0 ? Extent(max_rows) : Extent(rows_->sizes(), most_rows);
    tensor.cols = max_rows >= 0 ? Extent(most_cols) : Extent(cols_->sizes(), most_cols);
  }
  // A bound of 0 would mean that there is none.
  if (offsets_) tensor.offsets = Extent(offsets_->sizes(), std::max<int64_t>(tensor.capacity, 1));
  return tensor;
}

TensorView PlacedTensor::matrix_view() const {
  return TensorView::strided(address_of(0), dtype_, {shapes_[0].rows, shapes_[0].cols},
                             {row_stride_, col_stride_}, memory_.device());
}

TensorView PlacedTensor::vector_view() const {
  return TensorView::strided(address_of(0), dtype_, {shapes_[0].cols}, {col_stride_},
                             memory_.device());
}

}  // namespace cadre::verify
