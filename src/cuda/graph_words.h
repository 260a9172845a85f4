// Words of device memory that belong to captured graphs. A graph may run beside the stream it was
// captured from and beside other graphs, so what its kernels count with must be its own.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cuda/device_block.h"

namespace cadre::cuda {

/// The words of one device. Its memory must outlive every replay of the graphs that hold words; the
/// graphs themselves may live longer.
class GraphWords {
 public:
  GraphWords();

  /// A word of the current device that is 0, for one kernel that is about to be captured from
  /// `stream` and leaves it at 0. The graph, its copies and what was instantiated from them keep
  /// it; when they are gone it is lent again. Thread-safe.
  cudaError_t take(cudaStream_t stream, uint32_t** word);

  /// Words that no graph holds.
  size_t available() const;

 private:
  struct Free;
  struct Loan;

  static void give_back(void* loan);
  cudaError_t grow();

  std::shared_ptr<Free> free_;  ///< lives on with the graphs, which give words back at any time
  std::vector<DeviceBlock> blocks_;
};

}  // namespace cadre::cuda
