// Lends words to captured graphs; a user object of the graph gives them back.
#include "cuda/graph_words.h"

#include <mutex>

namespace cadre::cuda {
namespace {

// Kernels that run at once count in different lines of L2.
constexpr size_t kSpacing = 128 / sizeof(uint32_t);
constexpr size_t kWordsOfBlock = 256;

cudaError_t captured_graph(cudaStream_t stream, cudaGraph_t* graph) {
  auto status = cudaStreamCaptureStatusNone;
#if CUDART_VERSION >= 13000
  const cudaError_t error = cudaStreamGetCaptureInfo(stream, &status, nullptr, graph);
#else
  const cudaError_t error = cudaStreamGetCaptureInfo_v2(stream, &status, nullptr, graph);
#endif
  if (error != cudaSuccess) return error;
  return status == cudaStreamCaptureStatusActive ? cudaSuccess : cudaErrorIllegalState;
}

}  // namespace

struct GraphWords::Free {
  std::mutex mutex;
  std::vector<uint32_t*> words;
};

struct GraphWords::Loan {
  std::shared_ptr<Free> free;
  uint32_t* word;
};

GraphWords::GraphWords() : free_(std::make_shared<Free>()) {}

// Called by the driver, which allows no CUDA call here.
void GraphWords::give_back(void* loan) {
  const std::unique_ptr<Loan> ended(static_cast<Loan*>(loan));
  const std::scoped_lock lock(ended->free->mutex);
  ended->free->words.push_back(ended->word);
}

cudaError_t GraphWords::grow() {
  DeviceBlock block;
  const cudaError_t error = block.allocate(kWordsOfBlock * kSpacing * sizeof(uint32_t));
  if (error != cudaSuccess) return error;
  auto* words = static_cast<uint32_t*>(block.data());
  // Room for all of them, so that giving one back never allocates.
  free_->words.reserve((blocks_.size() + 1) * kWordsOfBlock);
  for (size_t i = 0; i < kWordsOfBlock; ++i) free_->words.push_back(words + i * kSpacing);
  blocks_.push_back(std::move(block));
  return cudaSuccess;
}

cudaError_t GraphWords::take(cudaStream_t stream, uint32_t** word) {
  cudaGraph_t graph = nullptr;
  if (const cudaError_t error = captured_graph(stream, &graph); error != cudaSuccess) return error;
  auto loan = std::make_unique<Loan>();
  loan->free = free_;
  {
    const std::scoped_lock lock(free_->mutex);
    if (free_->words.empty()) {
      if (const cudaError_t error = grow(); error != cudaSuccess) return error;
    }
    loan->word = free_->words.back();
    free_->words.pop_back();
  }
  uint32_t* const lent = loan->word;
  cudaUserObject_t object = nullptr;
  cudaError_t error =
      cudaUserObjectCreate(&object, loan.get(), &give_back, 1, cudaUserObjectNoDestructorSync);
  if (error != cudaSuccess) {
    give_back(loan.release());
    return error;
  }
  static_cast<void>(loan.release());  // the object's now
  error = cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove);
  if (error != cudaSuccess) {
    cudaUserObjectRelease(object, 1);
    return error;
  }
  *word = lent;
  return cudaSuccess;
}

size_t GraphWords::available() const {
  const std::scoped_lock lock(free_->mutex);
  return free_->words.size();
}

}  // namespace cadre::cuda
