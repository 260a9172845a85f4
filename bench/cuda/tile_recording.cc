// See tile_recording.h.
#include "bench/cuda/tile_recording.h"

#include <algorithm>
#include <stdexcept>

#include "bench/cuda/device_buffer.h"
#include "bench/cuda/product.h"
#include "core/text.h"
#include "cuda/sm90/schedule/tile_records.h"

namespace cadre::bench {
namespace {

#ifdef CADRE_RECORD_SCHEDULE

constexpr int kWarmUpCalls = 20;
constexpr uint32_t kWarpgroups = 2;

/// Groups of tiles that name only the rows they sum over.
class GroupOfRows {
 public:
  explicit GroupOfRows(const std::vector<int64_t>& sizes) : sizes_(sizes) {
    int64_t row = 0;
    for (const int64_t size : sizes) {
      first_.push_back(row);
      row += size;
    }
  }
  int64_t operator()(const sm90::TileRecord& record) const {
    if (record.group >= 0) return record.group;
    for (size_t group = 0; group < sizes_.size(); ++group) {
      if (first_[group] == record.row && sizes_[group] == record.rows) {
        return static_cast<int64_t>(group);
      }
    }
    return 0;  // an empty group, which names any row
  }

 private:
  const std::vector<int64_t>& sizes_;
  std::vector<int64_t> first_{};
};

/// Lets kernels record while it lives.
class Recorder {
 public:
  Recorder(int32_t sms, int64_t most_tiles)
      : sections_(kWarpgroups * static_cast<uint32_t>(sms)),
        room_(static_cast<uint32_t>(std::min<int64_t>(most_tiles, 1 << 14))),
        tiles_(sizeof(sm90::TileRecord) * sections_ * room_),
        counts_(sizeof(uint32_t) * sections_) {
    counts_.fill_bytes(0);
    sm90::tile_recorder() = {static_cast<sm90::TileRecord*>(tiles_.get()),
                             static_cast<uint32_t*>(counts_.get()), room_};
  }
  ~Recorder() { sm90::tile_recorder() = {}; }
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  std::vector<RecordedTile> tiles(const GroupOfRows& group_of) const {
    const auto records = tiles_.download<sm90::TileRecord>();
    const auto counts = counts_.download<uint32_t>();
    std::vector<RecordedTile> found;
    uint64_t first_ns = UINT64_MAX;
    for (uint32_t section = 0; section < sections_; ++section) {
      if (counts[section] > room_) {
        throw std::runtime_error(
            text("an SM ran ", counts[section], " tiles, and ", room_, " can be recorded"));
      }
      for (uint32_t i = 0; i < counts[section]; ++i) {
        first_ns = std::min(first_ns, records[section * room_ + i].start_ns);
      }
    }
    for (uint32_t section = 0; section < sections_; ++section) {
      for (uint32_t i = 0; i < counts[section]; ++i) {
        const sm90::TileRecord& record = records[section * room_ + i];
        found.push_back({record.sm, static_cast<int32_t>(section % kWarpgroups), group_of(record),
                         static_cast<int64_t>(record.start_ns - first_ns),
                         static_cast<int64_t>(record.end_ns - first_ns)});
      }
    }
    std::sort(found.begin(), found.end(),
              [](const RecordedTile& a, const RecordedTile& b) { return a.start_ns < b.start_ns; });
    return found;
  }

 private:
  uint32_t sections_, room_;
  DeviceBuffer tiles_, counts_;
};

Status record_or_throw(const shapes::Shape& shape, double skew, Pass pass, DType dtype,
                       TileRecording* recording) {
  cudaDeviceProp properties{};
  require(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  recording->device = properties.name;
  recording->sms = properties.multiProcessorCount;
  const Layer layer(shape, skew, pass, dtype);
  Context context{ContextOptions{.backend = "cuda"}};
  const Product product(layer, {.name = "recorded", .dtype = dtype}, context, nullptr);
  recording->kernel = product.kernel();
  const Checked checked = product.check();
  if (!checked.passed()) {
    return Status::internal(text(recording->kernel, " is wrong at ", checked.where));
  }
  for (int call = 0; call < kWarmUpCalls; ++call) product.run();
  const auto sizes = shapes::router_group_sizes(shape.num_groups, shape.m(), skew, 1);
  // A tile is at least 64 x 64 of out, and every group may have some that aren't whole.
  const int64_t rows = pass == Pass::kWgrad ? shape.num_groups * shape.n : shape.m();
  const int64_t columns = layer.columns();
  const Recorder recorder(recording->sms, (rows / 64 + shape.num_groups) * (columns / 64 + 1));
  product.run();
  require(cudaDeviceSynchronize(), "the recorded call");
  recording->tiles = recorder.tiles(GroupOfRows(sizes));
  if (recording->tiles.empty()) {
    return Status::unsupported(text("kernel ", recording->kernel, " records no tiles"));
  }
  return {};
}

#endif

}  // namespace

#ifdef CADRE_RECORD_SCHEDULE

Status record_tiles(const shapes::Shape& shape, double skew, Pass pass, DType dtype,
                    TileRecording* recording) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    return Status::unsupported("--record needs a GPU, and there is none");
  }
  try {
    return record_or_throw(shape, skew, pass, dtype, recording);
  } catch (const std::exception& error) {
    return Status::internal(text(shape.name, ", ", op_of(pass), ": ", error.what()));
  }
}

#else

Status record_tiles(const shapes::Shape& /*shape*/, double /*skew*/, Pass /*pass*/, DType /*dtype*/,
                    TileRecording* /*recording*/) {
  return Status::unsupported(
      "--record, but the kernels of this build don't record: configure with "
      "-DCADRE_CUDA_RECORD=ON");
}

#endif

}  // namespace cadre::bench
