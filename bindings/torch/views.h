// From torch tensors to the structs of cadre's C ABI, and from its status codes to exceptions.
// Only torch's stable ABI is used, so one binary serves every torch from 2.11 on.
#pragma once

#include <dlfcn.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "cadre/c_api.h"

namespace cadre_torch {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using OptionalTensor = std::optional<Tensor>;

/// The process's Context: the Python package makes it and hands it over right after loading.
inline cadre_context* g_context = nullptr;

/// The Python side turns "[cadre <code>] message" into the exception that belongs to the code.
[[noreturn]] inline void fail(cadre_status_code code, const std::string& message) {
  throw std::runtime_error("[cadre " + std::to_string(code) + "] " + message);
}

inline void check(cadre_status_code code) {
  if (code != CADRE_OK) fail(code, cadre_status_message());
}

/// For torch's own C functions; the headers' macro for this has one name in torch 2.11 and another
/// later.
inline void check_torch(AOTITorchError code) {
  if (code != AOTI_TORCH_SUCCESS) fail(CADRE_INTERNAL, "cadre: a call of libtorch failed");
}

inline std::string dims_text(const int64_t* dims, int64_t count) {
  std::string text = "[";
  for (int64_t i = 0; i < count; ++i) text += (i > 0 ? ", " : "") + std::to_string(dims[i]);
  return text + "]";
}

inline std::string shape_text(const Tensor& tensor) {
  return dims_text(tensor.sizes().data(), tensor.dim());
}

inline void expect_rank(const char* op, const std::string& argument, const Tensor& tensor,
                        int64_t rank) {
  if (tensor.dim() == rank) return;
  fail(CADRE_INVALID, std::string(op) + ": " + argument +
                          ".rank = " + std::to_string(tensor.dim()) + " (shape " +
                          shape_text(tensor) + "), expected " + std::to_string(rank));
}

/// A bias, one tensor of a vector for each group.
inline void expect_vectors(const char* op, const char* argument, const Tensor& tensor) {
  if (tensor.dim() == 2) return;
  fail(CADRE_INVALID, std::string(op) + ": " + argument +
                          ".rank = " + std::to_string(tensor.dim()) + " (shape " +
                          shape_text(tensor) + "), expected 2: [g, n]");
}

/// The number of groups of a new result.
inline void expect_groups(const char* op, int64_t num_groups) {
  if (num_groups >= 0) return;
  fail(CADRE_INVALID,
       std::string(op) + ": num_groups = " + std::to_string(num_groups) + ", expected 0 or more");
}

inline cadre_dtype dtype_of(ScalarType type) {
  switch (type) {
    case ScalarType::Double:
      return CADRE_F64;
    case ScalarType::Float:
      return CADRE_F32;
    case ScalarType::BFloat16:
      return CADRE_BF16;
    case ScalarType::Half:
      return CADRE_F16;
    case ScalarType::Char:
      return CADRE_I8;
    case ScalarType::Int:
      return CADRE_I32;
    case ScalarType::Long:
      return CADRE_I64;
    case ScalarType::UInt32:
      return CADRE_U32;
    case ScalarType::Short:
      return CADRE_I16;
    case ScalarType::Byte:
      return CADRE_U8;
    case ScalarType::UInt16:
      return CADRE_U16;
    case ScalarType::UInt64:
      return CADRE_U64;
    case ScalarType::Float8_e4m3fn:
      return CADRE_E4M3;
    case ScalarType::Float8_e5m2:
      return CADRE_E5M2;
    case ScalarType::Float8_e8m0fnu:
      return CADRE_E8M0;
    default:
      return 0;
  }
}

/// "e4m3 or e5m2": the types that multiply with this one.
inline std::string partners_of(cadre_dtype left) {
  std::string named, last;
  for (const auto type :
       {CADRE_F64, CADRE_F32, CADRE_BF16, CADRE_F16, CADRE_I8, CADRE_E4M3, CADRE_E5M2}) {
    if (cadre_default_output_dtype(left, type) == 0) continue;
    if (!last.empty()) named += (named.empty() ? "" : ", ") + last;
    last = cadre_dtype_name(type);
  }
  return named.empty() ? last : named + " or " + last;
}

inline ScalarType default_output(const char* op, const Tensor& lhs, const Tensor& rhs) {
  const cadre_dtype left = dtype_of(lhs.scalar_type());
  const cadre_dtype right = dtype_of(rhs.scalar_type());
  switch (cadre_default_output_dtype(left, right)) {
    case CADRE_F64:
      return ScalarType::Double;
    case CADRE_F32:
      return ScalarType::Float;
    case CADRE_BF16:
      return ScalarType::BFloat16;
    case CADRE_F16:
      return ScalarType::Half;
    case CADRE_I32:
      return ScalarType::Int;
    default:
      fail(CADRE_INVALID, std::string(op) + ": rhs.dtype = " + cadre_dtype_name(right) +
                              ", expected " + partners_of(left) +
                              " because lhs.dtype = " + cadre_dtype_name(left));
  }
}

inline cadre_device device_of(const Tensor& tensor) {
  if (!tensor.is_cuda()) return {CADRE_CPU, 0};
  return {CADRE_CUDA, tensor.get_device_index()};
}

inline cadre_tensor view(const Tensor& tensor) {
  cadre_tensor result{};
  result.data = tensor.data_ptr();
  result.dtype = dtype_of(tensor.scalar_type());
  result.device = device_of(tensor);
  const auto shape = tensor.sizes();
  const auto strides = tensor.strides();
  result.rank = static_cast<int32_t>(shape.size());
  const size_t kept = std::min<size_t>(shape.size(), 4);
  std::copy_n(shape.data(), kept, result.shape);
  std::copy_n(strides.data(), kept, result.strides);
  return result;
}

inline std::string element_name(const char* argument, size_t i) {
  return std::string(argument) + "[" + std::to_string(i) + "]";
}

inline bool same_kind(const cadre_tensor& a, const cadre_tensor& b) {
  return a.dtype == b.dtype && a.device.kind == b.device.kind && a.device.index == b.device.index;
}

/// One tensor of a list, for messages.
struct Element {
  size_t index;
  const cadre_tensor& view;
};

/// Fails, naming the first thing in which two tensors of a list differ: of `kinds` the last one is
/// taken for granted.
[[noreturn]] inline void differs(const char* op, const char* argument, Element received,
                                 Element expected, std::initializer_list<const char*> kinds) {
  const auto device = [](const cadre_tensor& view) {
    return view.device.kind == CADRE_CPU ? "cpu" : "cuda:" + std::to_string(view.device.index);
  };
  const auto text = [&device](const cadre_tensor& view, std::string_view kind) -> std::string {
    if (kind == "dtype") return cadre_dtype_name(view.dtype);
    if (kind == "device") return device(view);
    if (kind == "cols") return std::to_string(view.shape[1]);
    return dims_text(kind == "shape" ? view.shape : view.strides, view.rank);
  };
  std::string message;
  for (const char* kind : kinds) {
    const std::string here = text(received.view, kind);
    const std::string there = text(expected.view, kind);
    message = std::string(op) + ": " + element_name(argument, received.index) + "." + kind + " = " +
              here + ", expected " + element_name(argument, expected.index) + "." + kind + " = " +
              there;
    if (here != there) break;
  }
  fail(CADRE_INVALID, message);
}

/// A view that may be absent. The address that get() gives is this object's own.
class OptionalView {
 public:
  explicit OptionalView(const OptionalTensor& tensor) {
    if (tensor.has_value()) view_ = view(*tensor);
  }
  const cadre_tensor* get() const { return view_ ? &*view_ : nullptr; }

 private:
  std::optional<cadre_tensor> view_;
};

/// Element `at` of integers on the host; -1 for one above 2^63 - 1, and for what are no integers:
/// a size that the library refuses, as it does the type.
inline int64_t host_integer(const void* data, cadre_dtype dtype, int64_t at) {
  switch (dtype) {
    case CADRE_I8:
      return static_cast<const int8_t*>(data)[at];
    case CADRE_U8:
      return static_cast<const uint8_t*>(data)[at];
    case CADRE_I16:
      return static_cast<const int16_t*>(data)[at];
    case CADRE_U16:
      return static_cast<const uint16_t*>(data)[at];
    case CADRE_I32:
      return static_cast<const int32_t*>(data)[at];
    case CADRE_U32:
      return static_cast<const uint32_t*>(data)[at];
    case CADRE_I64:
      return static_cast<const int64_t*>(data)[at];
    case CADRE_U64:
      return std::max<int64_t>(-1, static_cast<int64_t>(static_cast<const uint64_t*>(data)[at]));
    default:
      return -1;
  }
}

inline bool is_integer(cadre_dtype dtype) {
  constexpr cadre_dtype kIntegers[] = {CADRE_I8,  CADRE_U8,  CADRE_I16, CADRE_U16,
                                       CADRE_I32, CADRE_U32, CADRE_I64, CADRE_U64};
  return std::find(std::begin(kIntegers), std::end(kIntegers), dtype) != std::end(kIntegers);
}

/// Integers of each group in place; a strided view of them is made contiguous first.
class SizesView {
 public:
  SizesView(const char* op, const std::string& argument, const Tensor& tensor,
            cadre_sizes_kind kind = CADRE_SIZES) {
    expect_rank(op, argument, tensor, 1);
    if (tensor.size(0) > 1 && tensor.stride(0) != 1) kept_ = torch::stable::contiguous(tensor);
    const Tensor& used = kept_ ? *kept_ : tensor;
    value_ = {used.data_ptr(), dtype_of(used.scalar_type()), device_of(used), used.size(0), kind};
  }
  const cadre_sizes& get() const { return value_; }

 private:
  OptionalTensor kept_;  // a Tensor made empty would allocate
  cadre_sizes value_{};
};

/// Which rows are whose: sizes of all groups, or their ends, and the first local group.
struct Groups {
  const Tensor& sizes;
  bool ends;
  const OptionalTensor& offset_tensor;
  int64_t offset;
};

inline cadre_sizes_kind kind_of(const Groups& groups) {
  return groups.ends ? CADRE_ENDS : CADRE_SIZES;
}

/// Fills an op's group offset: the number, or one integer in a tensor. A tensor on the host is
/// read.
template <typename Args>
void set_group_offset(Args& args, const char* op, const Groups& groups) {
  args.group_offset = groups.offset;
  const OptionalTensor& tensor = groups.offset_tensor;
  if (!tensor.has_value()) return;
  const cadre_dtype dtype = dtype_of(tensor->scalar_type());
  if (!is_integer(dtype)) {
    fail(CADRE_INVALID, std::string(op) + ": group_offset.dtype = " + cadre_dtype_name(dtype) +
                            ", expected an integer type");
  }
  if (tensor->numel() != 1) {
    fail(CADRE_INVALID, std::string(op) + ": group_offset.shape = " + shape_text(*tensor) +
                            ", expected one element");
  }
  if (tensor->is_cuda()) {
    args.group_offset_on_device = tensor->data_ptr();
    args.group_offset_dtype = dtype;
  } else {
    args.group_offset = host_integer(tensor->data_ptr(), dtype, 0);
  }
}

/// clamp: alpha, limit and up_offset of clamped swiglu.
inline cadre_activation activation_of(int64_t kind, bool interleaved,
                                      const std::vector<double>& clamp) {
  return {static_cast<int32_t>(kind),
          interleaved ? CADRE_GATE_INTERLEAVED : CADRE_GATE_CONCATENATED, clamp.at(0), clamp.at(1),
          clamp.at(2)};
}

inline Tensor empty(const Tensor& like, const std::vector<int64_t>& shape, ScalarType dtype) {
  std::vector<int64_t> strides(shape.size());
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= std::max<int64_t>(shape[i], 1);
  }
  int32_t device_type = 0;
  int32_t device_index = 0;
  check_torch(aoti_torch_get_device_type(like.get(), &device_type));
  check_torch(aoti_torch_get_device_index(like.get(), &device_index));
  const auto type = torch::stable::detail::to<int32_t>(torch::stable::detail::from(dtype));
  AtenTensorHandle handle = nullptr;
  check_torch(aoti_torch_empty_strided(static_cast<int64_t>(shape.size()), shape.data(),
                                       strides.data(), type, device_type, device_index, &handle));
  return Tensor(handle);
}

/// What is needed from CUDA, looked up in libtorch_cuda and not linked: a CPU build of torch has
/// none.
struct CudaCalls {
  int32_t (*current_stream)(int32_t device_index, void** stream) = nullptr;
  int32_t (*is_capturing)(void* stream, int32_t* status) = nullptr;

  static const CudaCalls& get() {
    static const CudaCalls calls = [] {
      CudaCalls found;
      void* library = dlopen("libtorch_cuda.so", RTLD_NOLOAD | RTLD_LAZY);
      if (library == nullptr) return found;
      found.current_stream = reinterpret_cast<decltype(found.current_stream)>(
          dlsym(library, "aoti_torch_get_current_cuda_stream"));
      // Of the CUDA runtime that libtorch_cuda itself depends on.
      found.is_capturing =
          reinterpret_cast<decltype(found.is_capturing)>(dlsym(library, "cudaStreamIsCapturing"));
      return found;
    }();
    return calls;
  }
};

inline void* current_stream(int32_t device_index) {
  const CudaCalls& cuda = CudaCalls::get();
  void* stream = nullptr;
  if (cuda.current_stream == nullptr || cuda.current_stream(device_index, &stream) != 0) {
    fail(CADRE_INTERNAL, "cadre: torch does not tell its current CUDA stream");
  }
  return stream;
}

/// True unless the stream is known not to be captured.
inline bool may_be_capturing(void* stream) {
  const CudaCalls& cuda = CudaCalls::get();
  int32_t status = 0;
  return cuda.is_capturing == nullptr || cuda.is_capturing(stream, &status) != 0 || status != 0;
}

template <typename Args>
using Call = cadre_status_code (*)(cadre_context*, const Args*);
template <typename Args>
using WorkspaceSize = cadre_status_code (*)(cadre_context*, const Args*, size_t*);

/// Runs an op on `like`'s device (libcadre makes it the current one) and torch's current stream. An
/// eager call uses the Context's workspace of the stream. A captured one gets a workspace of its
/// own from torch's allocator, which keeps it for the graph: graphs that were captured on one
/// stream may be replayed on several at once.
template <typename Args>
void run(Call<Args> call, WorkspaceSize<Args> workspace_size, Args& args, const Tensor& like,
         int64_t precision, bool fast_accumulation = false) {
  cadre_call_options options;
  cadre_call_options_init(&options, sizeof(options));
  options.precision = static_cast<int32_t>(precision);
  options.fast_accumulation = fast_accumulation ? 1 : 0;
  args.options = &options;
  if (!like.is_cuda()) {
    check(call(g_context, &args));
    return;
  }
  const int32_t device_index = like.get_device_index();
  options.stream = current_stream(device_index);
  OptionalTensor workspace;
  if (may_be_capturing(options.stream)) {
    size_t size_bytes = 0;
    check(workspace_size(g_context, &args, &size_bytes));
    if (size_bytes > 0) {
      workspace = empty(like, {static_cast<int64_t>(size_bytes)}, ScalarType::Byte);
      options.workspace = workspace->data_ptr();
      options.workspace_size_bytes = size_bytes;
    }
  }
  check(call(g_context, &args));
}

}  // namespace cadre_torch
