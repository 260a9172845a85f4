// One case on a layer: its call through the public API, and the check of its result.
#pragma once

#include <string>
#include <vector>

#include "bench/cuda/layer.h"
#include "bench/cuda/measurement.h"
#include "cadre/gmm.h"
#include "cadre/tgmm.h"

namespace cadre::bench {

/// Registers the portable kernels as a backend of their own, once; its name.
std::string portable_backend();

class Product {
 public:
  /// The layer must outlive it.
  Product(const Layer& layer, const Case& wanted, Context& context, cudaStream_t stream);

  /// Throws when the call fails.
  void run() const;
  /// The kernel that the call gets.
  std::string kernel() const;
  /// Runs on a poisoned output (where it adds: on random values) and compares samples of every
  /// group with the product in double, by the tolerance of docs/numerics.md.
  Checked check() const;

  /// The parts of check(): poisons the output and gives what c holds at the samples; runs;
  /// compares.
  std::vector<SampledElement> prepare() const;
  Checked compare(const std::vector<SampledElement>& before) const;
  const DeviceBuffer& out() const { return out_; }

 private:
  /// Null: the library chooses.
  const char* pinned() const { return case_.kernel.empty() ? nullptr : case_.kernel.c_str(); }
  void make_gmm(cudaStream_t stream);
  void make_tgmm(cudaStream_t stream);
  /// The matrices of a stacked tensor, as a list.
  GroupedTensor listed(const TensorView& stacked);
  /// What the epilogue makes of an element's sum.
  void apply_epilogue(const Place& place, double c, double* value, double* magnitude) const;

  const Layer& layer_;
  Case case_;
  Context& context_;
  DeviceBuffer out_, c_, pointers_;
  std::vector<void*> host_pointers_;
  // Of the epilogue: on the device, and what the device holds as the host sees it.
  DeviceBuffer bias_, alpha_, bias_scale_, row_scale_;
  std::vector<double> bias_values_, alpha_values_, bias_scale_values_, row_scale_values_;
  GmmArgs gmm_{};
  TgmmArgs tgmm_{};
};

/// The check of a dense product in `memory`, which is poisoned first.
Checked check_dense(const Layer& layer, const DenseCublas& dense, const DeviceBuffer& memory,
                    cudaStream_t stream);

}  // namespace cadre::bench
