// What a call through the C API costs the host: many calls in a row without a wait.
#include "bench/cuda/host_cost.h"

#include <chrono>
#include <functional>
#include <memory>
#include <stdexcept>

#include "bench/cuda/device_buffer.h"
#include "bench/cuda/kernels.h"
#include "cadre/c_api.h"
#include "core/text.h"

namespace cadre::bench {
namespace {

constexpr int64_t kGroups = 8;
constexpr int64_t kRows = 64;
constexpr int64_t kWidth = 64;
constexpr int kRounds = 41;
constexpr int kCallsOfRound = 100;  // few enough that the launch queue never fills
constexpr cadre_device kDevice = {CADRE_CUDA, 0};

void require_ok(cadre_status_code code) {
  if (code != CADRE_OK) throw std::runtime_error(cadre_status_message());
}

Times time_calls(const std::function<void()>& call, cudaStream_t stream) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> seconds;
  for (int round = 0; round < kRounds + 3; ++round) {
    require(cudaStreamSynchronize(stream), "the small layer");
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < kCallsOfRound; ++i) call();
    const std::chrono::duration<double> taken = Clock::now() - start;
    if (round >= 3) seconds.push_back(taken.count() / kCallsOfRound);
  }
  require(cudaStreamSynchronize(stream), "the small layer");
  return times_of(seconds);
}

}  // namespace

std::vector<HostCost> measure_host_cost(cudaStream_t stream) {
  const auto bf16 = [](int64_t elements) {
    DeviceBuffer buffer(static_cast<size_t>(elements) * 2);
    fill_random(buffer.get(), DType::kBF16, elements, 1, 1.0f);
    return buffer;
  };
  const DeviceBuffer x = bf16(kRows * kWidth);
  const DeviceBuffer y = bf16(kRows * kWidth);
  const DeviceBuffer w = bf16(kGroups * kWidth * kWidth);
  const DeviceBuffer dw = bf16(kGroups * kWidth * kWidth);
  const DeviceBuffer sizes = DeviceBuffer::holding(std::vector<int32_t>(kGroups, kRows / kGroups));
  require(cudaDeviceSynchronize(), "the small layer");

  const int64_t flat[] = {kRows, kWidth};
  const int64_t stacked[] = {kGroups, kWidth, kWidth};
  const auto tensor = [](const DeviceBuffer& memory, int32_t rank, const int64_t* shape) {
    return cadre_tensor_contiguous(memory.get(), CADRE_BF16, rank, shape, kDevice);
  };
  const cadre_tensor lhs = tensor(x, 2, flat);
  const cadre_tensor out_rows = tensor(y, 2, flat);
  const cadre_tensor weights = tensor(w, 3, stacked);
  const cadre_tensor gradients = tensor(dw, 3, stacked);
  const cadre_grouped_tensor rhs = cadre_grouped_from_tensor(&weights);
  const cadre_grouped_tensor gmm_out = cadre_grouped_from_tensor(&out_rows);
  const cadre_grouped_tensor tgmm_out = cadre_grouped_from_tensor(&gradients);
  const cadre_sizes group_sizes = {sizes.get(), CADRE_I32, kDevice, kGroups, CADRE_SIZES};
  cadre_call_options options;
  cadre_call_options_init(&options, sizeof(options));
  options.stream = stream;

  cadre_gmm_args gmm;
  cadre_gmm_args_init(&gmm, sizeof(gmm));
  gmm.lhs = &lhs;
  gmm.rhs = &rhs;
  gmm.group_sizes = group_sizes;
  gmm.out = &gmm_out;
  gmm.transpose_rhs = 1;
  gmm.options = &options;
  cadre_tgmm_args tgmm;
  cadre_tgmm_args_init(&tgmm, sizeof(tgmm));
  tgmm.lhs = &out_rows;
  tgmm.rhs = &lhs;
  tgmm.group_sizes = group_sizes;
  tgmm.out = &tgmm_out;
  tgmm.options = &options;

  cadre_context_options settings;
  cadre_context_options_init(&settings, sizeof(settings));
  settings.backend = "cuda";
  cadre_context* created = nullptr;
  require_ok(cadre_context_create(&settings, &created));
  const std::unique_ptr<cadre_context, decltype(&cadre_context_destroy)> context(
      created, &cadre_context_destroy);
  return {{"gmm_nt", time_calls([&] { require_ok(cadre_gmm(created, &gmm)); }, stream)},
          {"tgmm", time_calls([&] { require_ok(cadre_tgmm(created, &tgmm)); }, stream)},
          {"empty kernel", time_calls([&] { launch_empty(stream); }, stream)}};
}

}  // namespace cadre::bench
