// Threads pack what is shared and take units from one counter until there are none.
#include "cpu/gemm_driver.h"

#include <algorithm>
#include <atomic>

#include "cpu/scratch.h"
#include "cpu/threads.h"
#include "cpu/unit.h"
#include "cpu/work_units.h"

namespace cadre::cpu {
namespace {

/// Below this many multiply-adds starting threads costs more than it saves.
constexpr double kMinParallelWork = 200e3;
/// Shared packed matrices take at most this much memory; experts beyond it pack for themselves.
constexpr int64_t kMaxSharedBytes = int64_t{512} << 20;

/// The matrices B that several units need, packed once by all threads together.
class SharedPanels {
 public:
  /// Notes what to pack and points `packed` at it; false when there is no memory.
  bool plan(const std::vector<GemmItem>& items, const GemmPlan& plan,
            std::vector<const PackedMatrix*>* packed) {
    const double total = total_work(items);
    int64_t bytes = 0;
    std::vector<size_t> chosen;
    for (size_t i = 0; i < items.size(); ++i) {
      if ((*packed)[i] || !shares_packed_b(items[i], total, plan)) continue;
      const PackedLayout layout =
          make_packed_layout(*plan.kernel, plan.blocking, items[i].k, items[i].n);
      if (bytes + layout.size_bytes() > kMaxSharedBytes) break;
      matrices_.push_back({.layout = layout, .item = &items[i], .offset_bytes = bytes});
      bytes += (layout.size_bytes() + 63) / 64 * 64;
      chosen.push_back(i);
    }
    if (matrices_.empty()) return true;
    Scratch* const scratch = Scratch::of_this_thread();
    if (scratch == nullptr) return false;
    data_ = static_cast<char*>(scratch->reserve_shared(static_cast<size_t>(bytes)));
    if (!data_) return false;
    views_.reserve(matrices_.size());
    for (size_t i = 0; i < matrices_.size(); ++i) {
      views_.push_back({matrices_[i].layout, data_ + matrices_[i].offset_bytes});
      (*packed)[chosen[i]] = &views_.back();
      first_panel_.push_back(panels_);
      panels_ += matrices_[i].layout.blocks() * matrices_[i].layout.panels();
    }
    return true;
  }

  /// Panels of all matrices, numbered from 0.
  int64_t panels() const { return panels_; }

  void pack(int64_t number) const {
    const auto next = std::upper_bound(first_panel_.begin(), first_panel_.end(), number);
    const auto index = static_cast<size_t>(next - first_panel_.begin()) - 1;
    const Matrix& matrix = matrices_[index];
    const int64_t inside = number - first_panel_[index];
    pack_panel(matrix.layout, matrix.item->b, matrix.item->b_rows, inside / matrix.layout.panels(),
               inside % matrix.layout.panels(), data_ + matrix.offset_bytes);
  }

 private:
  struct Matrix {
    PackedLayout layout;
    const GemmItem* item;
    int64_t offset_bytes;
  };
  std::vector<Matrix> matrices_;
  std::vector<PackedMatrix> views_;
  std::vector<int64_t> first_panel_;
  int64_t panels_ = 0;
  char* data_ = nullptr;
};

}  // namespace

Status multiply_items(const std::vector<GemmItem>& items, const GemmPlan& plan,
                      std::vector<const PackedMatrix*> packed) {
  GemmPlan used = plan;
  if (total_work(items) < kMinParallelWork) used.threads = 1;
  used.units_per_thread = choose_units_per_thread(items, used);
  packed.resize(items.size(), nullptr);
  SharedPanels shared;
  const Status no_memory = Status::internal("cpu: no memory for packed panels");
  if (!shared.plan(items, used, &packed)) return no_memory;
  const std::vector<WorkUnit> units = make_work_units(items, packed, used);

  const auto panels = static_cast<uint32_t>(shared.panels());  // of kMaxSharedBytes at most
  std::atomic<int64_t> next_panel{0};
  std::atomic<uint32_t> packed_panels{0};
  std::atomic<int64_t> next_unit{0};
  std::atomic<bool> out_of_memory{false};
  const auto pack_panels = [&] {
    for (;;) {
      const int64_t number = next_panel.fetch_add(1, std::memory_order_relaxed);
      if (number >= panels) return;
      shared.pack(number);
      if (packed_panels.fetch_add(1, std::memory_order_acq_rel) + 1 == panels) {
        packed_panels.notify_all();
      }
    }
  };
  const auto wait_for_panels = [&] {
    for (;;) {
      const uint32_t done = packed_panels.load(std::memory_order_acquire);
      if (done == panels) return;
      wait_for_change(packed_panels, done);
    }
  };
  const auto take_units = [&] {
    for (;;) {
      const int64_t index = next_unit.fetch_add(1, std::memory_order_relaxed);
      if (index >= static_cast<int64_t>(units.size())) return;
      if (!multiply_unit(units[static_cast<size_t>(index)], used)) out_of_memory = true;
    }
  };
  if (used.threads == 1 || units.size() <= 1) {
    pack_panels();
    take_units();
  } else {
    run_on_threads(used.threads, [&] {
      pack_panels();
      wait_for_panels();
      take_units();
    });
  }
  return out_of_memory ? no_memory : Status();
}

}  // namespace cadre::cpu
