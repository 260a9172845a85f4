// The frame of `cadre tune`: tune.cc chooses problems and keeps the file, tune_measure.cc times the
// candidates of one problem on its device.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/tuning_file.h"
#include "bench/cuda/runner.h"
#include "bench/shapes/shapes.h"
#include "cadre/context.h"
#include "plan/problem.h"

namespace cadre::cli {

/// A product to be tuned. For tgmm the shape is the layer whose weights' gradient it is.
struct TuneProblem {
  shapes::Shape shape;
  std::string op;  ///< gmm, gmm_nt (rhs stored [n, k]) or tgmm
  DType dtype;
};

struct TuneCandidate {
  std::string kernel;
  int32_t threads;
  double seconds;
  bool same_bits;  ///< as the first one; another is never kept
};

struct TuneMeasured {
  std::string machine{};
  backend::TuningKey key{};
  std::vector<TuneCandidate> candidates{};  ///< the library's own choice first
  std::string left_out{};                   ///< why there is nothing to choose
};

class Tuner {
 public:
  /// kUnsupported where the device isn't here.
  static Status make(Device device, double seconds_of_candidate, std::unique_ptr<Tuner>* tuner);
  Status measure(const TuneProblem& wanted, TuneMeasured* measured);

 private:
  Status measure_cpu(const TuneProblem& wanted, TuneMeasured* measured) const;
  Status measure_cuda(const TuneProblem& wanted, TuneMeasured* measured);

  Device device_{};
  double seconds_ = 0;
  std::unique_ptr<Context> context_;
  std::unique_ptr<bench::CudaRunner> runner_;  ///< of a GPU
};

/// The candidate to be kept: the first, unless another of the same bits is faster by more than the
/// noise of a measurement.
const TuneCandidate& best_of(const std::vector<TuneCandidate>& candidates);

/// Entries of `added` take the place of those in `kept` for the same problem on the same machine.
std::vector<backend::TuningEntry> merged(std::vector<backend::TuningEntry> kept,
                                         const std::vector<backend::TuningEntry>& added);

}  // namespace cadre::cli
