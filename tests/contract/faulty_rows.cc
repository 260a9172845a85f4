// The planted faults of the row ops.
#include <cmath>
#include <vector>

#include "backend/registry.h"
#include "cpu/row_indices.h"
#include "tests/contract/faulty_backend.h"

namespace cadre::contract {
namespace {

using cpu::index_at;

void swap_rows_of_an_expert(const RouteArgs& args) {
  for (int64_t row = 1; row < args.source_row.shape[0]; ++row) {
    const int64_t here = index_at(args.source_row, row);
    const int64_t before = index_at(args.source_row, row - 1);
    if (before < 0 || here <= before) continue;  // ascending tokens: of one expert
    cpu::set_index(args.source_row, row * args.source_row.strides[0], before);
    cpu::set_index(args.source_row, (row - 1) * args.source_row.strides[0], here);
    return;
  }
}

void add_first_row_for_dropped(const CombineArgs& args) {
  for (int64_t t = 0; t < args.out.shape[0]; ++t) {
    for (int64_t j = 0; j < args.slot_row.shape[1]; ++j) {
      if (index_at(args.slot_row, t, j) >= 0 || args.y.shape[0] == 0) continue;
      const int64_t last = args.y.shape[0] - 1;
      for (int64_t col = 0; col < args.out.shape[1]; ++col) {
        cpu::set_value(args.out, t, col,
                       cpu::value_at(args.out, t, col) + 0 * cpu::value_at(args.y, last, col));
      }
    }
  }
}

/// Whatever the reference makes of a call, with a fault in its arguments or its results.
class QuantizeFault {
 public:
  QuantizeFault(Fault fault, const plan::RowCall& call) : fault_(fault) {
    const auto* args = std::get_if<const QuantizeArgs*>(&call);
    if (args == nullptr) return;
    args_ = **args;
    given_ = true;
    if (fault == Fault::kBlocksAcrossGroups) args_.group_sizes = {};
    keep();
  }

  const QuantizeArgs* args() const { return given_ ? &args_ : nullptr; }

  void spoil() {
    if (!given_) return;
    if (fault_ == Fault::kScaleRoundedDown) each_scale([](double scale) { return scale / 2; });
    if (fault_ == Fault::kInfinitySaturates) saturate();
    if (fault_ == Fault::kQuantizedTailUnwritten && args_.rows.given()) put_back(last_row());
    if (fault_ == Fault::kColumnPaddingUnwritten && args_.columns.given()) {
      put_back(padding());
    }
  }

 private:
  struct Byte {
    char* at;
    char before;
  };

  void keep() {
    if (args_.rows.given()) add(last_row());
    if (args_.columns.given() && args_.columns.columns) add(padding());
  }
  void add(char* at) {
    if (at != nullptr) kept_.push_back({at, *at});
  }
  void put_back(const char* at) {
    for (const Byte& byte : kept_) {
      if (byte.at == at) *byte.at = byte.before;
    }
  }

  /// A byte of the last row of rows; null where there is none.
  char* last_row() const {
    const TensorView& rows = args_.rows;
    if (rows.rank != 2 || rows.shape[0] == 0 || rows.shape[1] == 0) return nullptr;
    return cpu::address_at(rows, rows.shape[0] - 1, 0);
  }
  /// Behind the rows of the first group: the second column of a group of one row.
  char* padding() const {
    const TensorView& columns = args_.columns;
    if (columns.shape[0] == 0 || columns.shape[1] < 2) return nullptr;
    return cpu::address_at(columns, 0, 1);
  }

  template <typename Change>
  void each_scale(const Change& change) {
    const TensorView& scales =
        args_.rows.given() ? args_.rows.scales.values : args_.columns.scales.values;
    if (scales.rank > 2) return;
    const int64_t cols = scales.rank == 2 ? scales.shape[1] : 1;
    for (int64_t i = 0; i < scales.shape[0]; ++i) {
      for (int64_t j = 0; j < cols; ++j) {
        const int64_t at = i * scales.strides[0] + (scales.rank == 2 ? j * scales.strides[1] : 0);
        store_rounded(scales.data, scales.dtype, at,
                      change(load_as_double(scales.data, scales.dtype, at)));
      }
    }
  }

  void saturate() {
    const TensorView& rows = args_.rows;
    for (int64_t i = 0; rows.rank == 2 && i < rows.shape[0]; ++i) {
      for (int64_t j = 0; j < rows.shape[1]; ++j) {
        if (!std::isfinite(cpu::value_at(rows, i, j))) cpu::set_value(rows, i, j, 448);
      }
    }
  }

  Fault fault_;
  bool given_ = false;
  QuantizeArgs args_;
  std::vector<Byte> kept_;
};

}  // namespace

Status FaultyBackend::run_rows(detail::ContextState& context, const plan::Problem& problem,
                               const plan::Config& config, const plan::RowCall& call,
                               const CallOptions& options) const {
  if (fault_ == Fault::kThrows) throw std::bad_alloc();
  plan::RowCall used = call;
  CombineGradArgs grad;
  if (const auto* args = std::get_if<const CombineGradArgs*>(&call);
      args != nullptr && fault_ == Fault::kCombineGradKeepsDropped && (*args)->dy.given()) {
    grad = **args;
    while (grad.dy.shape[0] > 0 && index_at(grad.source_row, grad.dy.shape[0] - 1) < 0) {
      --grad.dy.shape[0];
    }
    used = &grad;
  }
  ActivateArgs activate;
  if (const auto* args = std::get_if<const ActivateArgs*>(&call);
      args != nullptr && fault_ == Fault::kGateLayoutIgnored) {
    activate = **args;
    activate.activation.layout = GateLayout::kConcatenated;
    used = &activate;
  }
  ActivateGradArgs activate_grad;
  if (const auto* args = std::get_if<const ActivateGradArgs*>(&call)) {
    activate_grad = **args;
    if (fault_ == Fault::kGateLayoutIgnored) {
      activate_grad.activation.layout = GateLayout::kConcatenated;
    }
    if (fault_ == Fault::kActivateGradUnscaled) activate_grad.row_scale = {};
    used = &activate_grad;
  }
  QuantizeFault quantize(fault_, call);
  if (quantize.args() != nullptr) used = quantize.args();
  const plan::Backend* reference = backend::Registry::instance().find("reference");
  Status status = reference->run_rows(context, problem, config, used, options);
  quantize.spoil();
  if (fault_ == Fault::kRouteUnstable) {
    if (const auto* args = std::get_if<const RouteArgs*>(&call)) swap_rows_of_an_expert(**args);
  }
  if (fault_ == Fault::kCombineReadsDropped) {
    if (const auto* args = std::get_if<const CombineArgs*>(&call)) {
      add_first_row_for_dropped(**args);
    }
  }
  if (fault_ == Fault::kRoutePadsSource) {
    if (const auto* args = std::get_if<const RouteArgs*>(&call)) {
      const TensorView& source = (*args)->source_row;
      for (int64_t row = 0; row < source.shape[0]; ++row) {
        if (index_at(source, row) < 0) cpu::set_index(source, row * source.strides[0], 0);
      }
    }
  }
  if (fault_ == Fault::kRowDotOfScaled) {
    const TensorView& scale = activate_grad.row_scale;
    for (int64_t row = 0; scale.given() && row < scale.shape[0]; ++row) {
      cpu::set_number(activate_grad.row_dot, row,
                      cpu::number_at(activate_grad.row_dot, row) * cpu::number_at(scale, row));
    }
  }
  return status;
}

}  // namespace cadre::contract
