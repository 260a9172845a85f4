// Host words carried into the workspace as kernel parameters.
#include "cuda/carried_words.h"

#include <algorithm>
#include <cstring>

namespace cadre::cuda {
namespace {

/// Kernel parameters may take 32764 bytes; small batches keep small launches small.
template <int kWords>
struct WordBatch {
  int64_t words[kWords];
};
constexpr int kSmallBatch = 60;
constexpr int kMediumBatch = 500;
constexpr int kLargeBatch = 4000;

template <int kWords>
__global__ void store_words(const __grid_constant__ WordBatch<kWords> batch, int64_t* destination,
                            int count) {
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    destination[i] = batch.words[i];
  }
}

template <int kWords>
Status send_batch(const Launch& launch, const int64_t* words, int count, int64_t* destination) {
  WordBatch<kWords> batch;
  std::memcpy(batch.words, words, static_cast<size_t>(count) * sizeof(int64_t));
  std::memset(batch.words + count, 0, static_cast<size_t>(kWords - count) * sizeof(int64_t));
  const GridShape shape{.threads = static_cast<unsigned>(std::min((count + 31) / 32 * 32, 512))};
  return launch_kernel(launch, "store_words", store_words<kWords>, shape, batch, destination,
                       count);
}

}  // namespace

const int64_t* CarriedWords::add(const int64_t* values, int64_t count) {
  const int64_t* address = launch_.workspace.words() + words_.size();
  words_.insert(words_.end(), values, values + count);
  return address;
}

void* const* CarriedWords::add(void* const* pointers, int64_t count) {
  static_assert(sizeof(void*) == sizeof(int64_t));
  const int64_t* address = launch_.workspace.words() + words_.size();
  const size_t begin = words_.size();
  words_.resize(begin + static_cast<size_t>(count));
  std::memcpy(words_.data() + begin, pointers, static_cast<size_t>(count) * sizeof(void*));
  return reinterpret_cast<void* const*>(address);
}

void* const* CarriedWords::add_list(const GroupedTensor& tensor) {
  if (tensor.placement != Placement::kList) return nullptr;
  if (tensor.pointers_device.kind == DeviceKind::kCuda) return tensor.pointers;
  return add(tensor.pointers, tensor.num_groups);
}

Status CarriedWords::send() const {
  if (words_.size() > launch_.workspace.words_capacity()) {
    return Status::internal(text(launch_.op, ": ", words_.size(),
                                 " words to carry, the workspace has room for ",
                                 launch_.workspace.words_capacity()));
  }
  for (size_t begin = 0; begin < words_.size();) {
    const auto left = static_cast<int64_t>(words_.size() - begin);
    const int count = static_cast<int>(std::min<int64_t>(left, kLargeBatch));
    const auto send = count <= kSmallBatch    ? send_batch<kSmallBatch>
                      : count <= kMediumBatch ? send_batch<kMediumBatch>
                                              : send_batch<kLargeBatch>;
    if (Status status =
            send(launch_, words_.data() + begin, count, launch_.workspace.words() + begin);
        !status.ok()) {
      return status;
    }
    begin += static_cast<size_t>(count);
  }
  return {};
}

}  // namespace cadre::cuda
