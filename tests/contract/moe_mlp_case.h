// One MoeMlp with its data: made of a seed, run on a subject, and compared with sums made in
// double. Beside each sum runs the bound of what rounding can do to it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cadre/moe_mlp.h"
#include "tests/contract/contract.h"
#include "tests/contract/routing.h"
#include "verify/index_matrix.h"
#include "verify/placed_tensor.h"
#include "verify/random.h"
#include "verify/tolerance.h"

namespace cadre::contract {

/// Gradients that backward() may be asked for.
enum WantedGradient : unsigned {
  kWantDx = 1,
  kWantDweights = 2,
  kWantDw13 = 4,
  kWantDw2 = 8,
  kWantDbias13 = 16,
  kWantDbias2 = 32,
  kWantAll = 63
};

struct MoeCase {
  int64_t h = 24;
  int64_t i = 9;
  MoeMlpOptions options{};
  bool transposed = false;
  bool biases = false;
  bool weighted = true;
  bool shared = false;
  bool residual = false;
  bool lists = false;  ///< weights and their gradients
  bool saves = true;   ///< preact is given to forward()
  unsigned wanted = kWantAll;
  bool over_preact = false;  ///< d_preact takes the place of the pre-activation
  bool adds_to_zeros = false;
  bool accumulates = false;  ///< gradients of parameters are added to what is there
  bool host_sizes = false;
  bool sorted =
      false;  ///< the call has no indices; the routing must have one slot a token, in order
  DType index = DType::kI32;
  DType gradient = DType::kInvalid;  ///< of dw13 and dw2; default: the weights'
  // A shard of the experts: those from `first` on, `count` of them; -1: all.
  int64_t first = 0;
  int64_t count = -1;
  bool nan_in_dropped =
      false;  ///< tokens all of whose slots are dropped, and weights of such slots
  uint64_t seed = 3;
};

/// A sum and what it may be off by, element by element.
class Bounded {
 public:
  Bounded() = default;
  Bounded(int64_t rows, int64_t cols)
      : cols_(cols),
        value_(static_cast<size_t>(rows * cols)),
        bound_(static_cast<size_t>(rows * cols)) {}

  void add(int64_t row, int64_t col, double value, double bound) {
    value_[at(row, col)] += value;
    bound_[at(row, col)] += bound;
  }
  verify::Expected get(int64_t row, int64_t col) const {
    return {value_[at(row, col)], bound_[at(row, col)]};
  }

 private:
  size_t at(int64_t row, int64_t col) const { return static_cast<size_t>(row * cols_ + col); }

  int64_t cols_ = 0;
  std::vector<double> value_, bound_;
};

class MoeData {
 public:
  /// lhs: tokens and what is between; rhs: weights; out: results in token order.
  MoeData(const Subject& subject, const DTypes& types, const Routing& routing, const MoeCase& c);

  /// What was wrong with forward(), and, where the case saves, with backward() and backward_dw().
  Failures check();

  /// Results of a token after check().
  std::vector<std::byte> bits_of_token(int64_t t) const;
  /// All results of backward() after check().
  std::vector<std::byte> bits_of_gradients() const;
  /// "dx[0, 3, 4] = ...": the first element of a gradient that both were asked for and that has
  /// another value there. Empty: none.
  std::string first_difference(const MoeData& other) const;
  double out(int64_t t, int64_t col) const { return out_->after(0, t, col); }
  verify::Expected expected_out(int64_t t, int64_t col) const { return sum_.get(t, col); }
  /// Takes over tokens, router weights and the experts that both hold.
  void copy_layer(const MoeData& whole);
  /// Takes over what belongs to a token of another set of the same weights.
  void copy_token(const MoeData& from, int64_t there, int64_t here);

 private:
  using Tensor = std::unique_ptr<verify::PlacedTensor>;

  Tensor matrix(DType dtype, int64_t rows, int64_t cols);
  Tensor matrices(DType dtype, int64_t rows, int64_t cols);
  void fill(verify::PlacedTensor& tensor, double limit);
  void allow(verify::PlacedTensor& tensor);
  void poison_dropped();
  std::vector<verify::PlacedTensor*> inputs() const;
  std::vector<verify::PlacedTensor*> results() const;
  bool wants(WantedGradient gradient) const { return (c_.wanted & gradient) != 0; }
  struct Gradient {
    const char* name;
    const verify::PlacedTensor* tensor;
    bool asked;
  };
  std::vector<Gradient> gradients() const;

  double w13(int64_t e, int64_t n, int64_t k) const;
  double w2(int64_t e, int64_t k, int64_t n) const;
  int64_t expert_of(int64_t slot) const;  ///< local; -1: none here

  void expect_slot(int64_t slot);
  void expect_everything();
  Status run();
  MoeMlpRouting routing_args() const;
  void compare(const verify::PlacedTensor& got, const char* what, const Bounded& expected,
               int64_t matrix, bool turned, Failures* failures) const;
  void compare_gradients(Failures* failures) const;

  const Subject& subject_;
  DTypes types_;
  const Routing& routing_;
  MoeCase c_;
  verify::Random random_;
  int64_t full_;
  int64_t local_;
  double unit_;      ///< of what lies between the ops
  double sum_unit_;  ///< of sums
  double tiny_;      ///< the least number of that type
  Tensor x_, router_, w13_, w2_, bias13_, bias2_, shared_, residual_, dout_;
  Tensor out_, preact_, dx_, drouter_, dw13_, dw2_, dbias13_, dbias2_, d_preact_, activated_;
  std::unique_ptr<verify::IndexMatrix> slot_, source_;
  std::unique_ptr<verify::IndexArray> sizes_;
  Bounded sum_, pre_, dx_sum_, drouter_sum_;
  std::vector<Bounded> dw13_sum_, dw2_sum_, dbias13_sum_, dbias2_sum_;
};

}  // namespace cadre::contract
