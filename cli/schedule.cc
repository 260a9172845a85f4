// cadre schedule: which multiprocessor takes which tile of a product when; computed from the tile
// walk that runs on the GPU, with modelled times, or recorded there (--record). python -m
// cadre.report draws the result.
#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <queue>

#include "bench/cuda/tile_recording.h"
#include "bench/shapes/shapes.h"
#include "cadre/version.h"
#include "command.h"
#include "core/text.h"
#include "cuda/sm90/shapes.h"
#include "plan/even_cut.h"
#include "plan/tile_walk.h"
#include "result_file.h"

namespace cadre::cli {
namespace {

constexpr int32_t kBandTiles = 10;  // that of sm90/schedule/gmm_tiles.cuh

struct ScheduleOptions {
  std::string shape = "qwen3-30b-w13";
  double skew = 0;
  int32_t features = 256;  ///< of a tile
  int32_t tokens = 192;    ///< of the widest tile
  int sms = 132;
  bool record = false;
  std::string op = "gmm_nt";  ///< these of a recorded one
  std::string dtype = "bf16";
  std::string json_path;
};

struct ScheduledTile {
  int sm;
  int64_t group;
  int64_t start;
  int64_t end;
};

/// Tiles in the order of the walk, each taken by whoever is free first. A tile takes as long as it
/// has tokens, rounded up to what the tensor cores multiply.
std::vector<ScheduledTile> schedule_of(const std::vector<int64_t>& group_sizes, int64_t n,
                                       const ScheduleOptions& options) {
  using Free = std::pair<int64_t, int>;  // when, who
  std::priority_queue<Free, std::vector<Free>, std::greater<>> free;
  for (int sm = 0; sm < options.sms; ++sm) free.emplace(0, sm);
  const auto feature_tiles = static_cast<int32_t>((n + options.features - 1) / options.features);
  std::vector<ScheduledTile> tiles;
  for (size_t group = 0; group < group_sizes.size(); ++group) {
    const int64_t rows = group_sizes[group];
    if (rows == 0) continue;
    const auto token_tiles = static_cast<int32_t>((rows + options.tokens - 1) / options.tokens);
    const plan::BandedTiles order{token_tiles, feature_tiles,
                                  plan::even_band(token_tiles, kBandTiles)};
    const plan::EvenCut widths{
        static_cast<uint32_t>((rows + sm90::kTokenStep - 1) / sm90::kTokenStep),
        static_cast<uint32_t>(token_tiles)};
    for (int32_t index = 0; index < token_tiles * feature_tiles; ++index) {
      int32_t token_tile = 0, feature_tile = 0, first = 0, steps = 0;
      order.tile_at(index, &token_tile, &feature_tile);
      widths.tile_at(token_tile, &first, &steps);
      const auto [start, sm] = free.top();
      free.pop();
      const int64_t end = start + int64_t{steps} * sm90::kTokenStep;
      tiles.push_back({sm, static_cast<int64_t>(group), start, end});
      free.emplace(end, sm);
    }
  }
  return tiles;
}

/// What both kinds of schedule say of themselves.
nlohmann::json common_row(const shapes::Shape& shape, const ScheduleOptions& options) {
  return {{"case", "tile schedule"},
          {"recorded", options.record},
          {"m", shape.m()},
          {"k", shape.k},
          {"n", shape.n},
          {"num_groups", shape.num_groups},
          {"skew", options.skew},
          {"shape", text(shape.name, ", skew ", options.skew)}};
}

int write(const ScheduleOptions& options, const std::string& device, const std::string& command,
          nlohmann::json row) {
  if (options.json_path.empty()) return kOk;
  const nlohmann::json document = {{"schema", 2},
                                   {"cadre", version()},
                                   {"command", command + " --json FILE"},
                                   {"machine", {{"device", device}}},
                                   {"results", nlohmann::json::array({std::move(row)})}};
  if (Status status = replace_file(options.json_path, result_text(document)); !status.ok()) {
    return report("schedule", status);
  }
  fmt::print("wrote {}\n", options.json_path);
  return kOk;
}

int compute(const shapes::Shape& shape, const ScheduleOptions& options) {
  const std::vector<int64_t> sizes =
      shapes::router_group_sizes(shape.num_groups, shape.m(), options.skew, 1);
  const std::vector<ScheduledTile> tiles = schedule_of(sizes, shape.n, options);
  int64_t last = 0, work = 0;
  nlohmann::json listed = nlohmann::json::array();
  for (const ScheduledTile& tile : tiles) {
    last = std::max(last, tile.end);
    work += tile.end - tile.start;
    listed.push_back({tile.sm, tile.group, tile.start, tile.end});
  }
  const std::string tile = fmt::format("{} x {}", options.features, options.tokens);
  fmt::print("{}, skew {}: {} tiles of up to {} (features x tokens) on {} SMs, busy {:.1f} %\n",
             shape.name, options.skew, tiles.size(), tile, options.sms,
             100.0 * static_cast<double>(work) / static_cast<double>(last * options.sms));
  nlohmann::json row = common_row(shape, options);
  row["source"] = "computed, not recorded";
  row["how"] =
      "tiles in the order of the tile walk, each taken by the SM that is free first; a tile takes "
      "as long as it has tokens, rounded up to 16.";
  row["time_unit"] = "tokens";
  row["sms"] = options.sms;
  row["tile"] = tile;
  row["tiles"] = std::move(listed);
  return write(options, fmt::format("GPU with {} SMs", options.sms),
               fmt::format("cadre schedule --shape {} --skew {} --features {} --tokens {} --sms {}",
                           shape.name, options.skew, options.features, options.tokens, options.sms),
               std::move(row));
}

int record(const shapes::Shape& shape, const ScheduleOptions& options) {
  const bench::Pass pass = options.op == "tgmm"  ? bench::Pass::kWgrad
                           : options.op == "gmm" ? bench::Pass::kDgrad
                                                 : bench::Pass::kForward;
  bench::TileRecording recording;
  if (Status status =
          record_tiles(shape, options.skew, pass, dtype_from_name(options.dtype), &recording);
      !status.ok()) {
    return report("schedule", status);
  }
  int64_t last_ns = 0;
  nlohmann::json listed = nlohmann::json::array();
  const auto microseconds = [](int64_t ns) { return static_cast<double>(ns) / 1000; };
  for (const bench::RecordedTile& tile : recording.tiles) {
    last_ns = std::max(last_ns, tile.end_ns);
    listed.push_back({tile.sm, tile.group, microseconds(tile.start_ns), microseconds(tile.end_ns),
                      tile.warpgroup});
  }
  fmt::print("{}, skew {}, {} {}: {} tiles of {} on {} SMs of {} in {:.1f} us\n", shape.name,
             options.skew, options.op, options.dtype, recording.tiles.size(), recording.kernel,
             recording.sms, recording.device, microseconds(last_ns));
  nlohmann::json row = common_row(shape, options);
  row["source"] = text("recorded on ", recording.device);
  row["how"] = text(options.op, " in ", options.dtype,
                    " after 20 calls, by the clock of the GPU; from a tile's first product until "
                    "its results are in shared memory.");
  row["time_unit"] = "µs";
  row["op"] = options.op;
  row["dtype"] = options.dtype;
  row["kernel"] = recording.kernel;
  row["sms"] = recording.sms;
  row["tile"] = recording.kernel;
  row["tiles"] = std::move(listed);
  return write(options, recording.device,
               fmt::format("cadre schedule --record --shape {} --skew {} --op {} --dtype {}",
                           shape.name, options.skew, options.op, options.dtype),
               std::move(row));
}

int run(const ScheduleOptions& options) {
  const shapes::Shape* shape = shapes::find(options.shape);
  if (shape == nullptr) {
    std::string names;
    for (const shapes::Shape& each : shapes::all()) {
      names += text(names.empty() ? "" : ", ", each.name);
    }
    return report("schedule",
                  Status::invalid(text("--shape = ", options.shape, ", expected one of ", names)));
  }
  return options.record ? record(*shape, options) : compute(*shape, options);
}

}  // namespace

void add_schedule(CLI::App& app, int* exit_code) {
  auto options = std::make_shared<ScheduleOptions>();
  CLI::App* command = app.add_subcommand(
      "schedule", "Which multiprocessor of a GPU takes which tile of a product when");
  command->add_option("--shape", options->shape, "A shape of bench/shapes")->capture_default_str();
  command->add_option("--skew", options->skew, "Of the router: 0 balanced, 1 Zipf")
      ->check(number(0, 4))
      ->capture_default_str();
  CLI::Option* features = command->add_option("--features", options->features, "Columns of a tile")
                              ->check(whole_number(1, 4096))
                              ->capture_default_str();
  CLI::Option* tokens = command->add_option("--tokens", options->tokens, "Rows of the widest tile")
                            ->check(whole_number(1, 4096))
                            ->capture_default_str();
  CLI::Option* sms = command->add_option("--sms", options->sms, "Multiprocessors")
                         ->check(whole_number(1, 4096))
                         ->capture_default_str();
  CLI::Option* record =
      command
          ->add_flag("--record", options->record,
                     "Run it on this GPU and record it (a build with CADRE_CUDA_RECORD)")
          ->excludes(features)
          ->excludes(tokens)
          ->excludes(sms);
  command->add_option("--op", options->op, "Recorded: gmm_nt (weights [n, k]), gmm or tgmm")
      ->check(CLI::IsMember({"gmm_nt", "gmm", "tgmm"}))
      ->needs(record)
      ->capture_default_str();
  command->add_option("--dtype", options->dtype, "Recorded: bf16 or f16")
      ->check(CLI::IsMember({"bf16", "f16"}))
      ->needs(record)
      ->capture_default_str();
  command->add_option("--json", options->json_path, "Write the schedule to this file")
      ->type_name("FILE");
  command->footer(
      "Without --record it is computed and needs no GPU. python -m cadre.report FILE draws it.\n"
      "Examples:\n"
      "  cadre schedule --shape qwen3-30b-w13 --skew 1 --json schedule.json\n"
      "  cadre schedule --record --shape qwen3-30b-w13 --op gmm_nt --json recorded.json");
  command->callback([options, exit_code] { *exit_code = run(*options); });
}

}  // namespace cadre::cli
