// Checks gmm through the public API on a Hopper GPU: each call runs on the kernel the library
// chooses, on a pinned Hopper kernel and on a portable one, and every bit of the output must agree.
// Lists on the host and on the device, host sizes, views, shards, factors, graphs.
#include <algorithm>
#include <functional>

#include "cadre/gmm.h"
#include "hopper_family_case.h"

namespace {

using namespace cadre;
using namespace cadre::testing;

constexpr int64_t kM = 1500, kK = 328, kN = 264, kGroups = 5;

// Operands that several cases share.
struct Data {
  std::vector<uint16_t> lhs_values = random_bf16(kM * kK + 1, 1);
  uint16_t* lhs = upload(std::vector<uint16_t>(lhs_values.begin() + 1, lhs_values.end()));
  uint16_t* unaligned_lhs = upload(lhs_values) + 1;  // the copy engine can't read it
  uint16_t* rhs = upload(random_bf16(kGroups * kK * kN, 2));
  std::vector<uint16_t> c_values = random_bf16(kM * kN, 3);
  std::vector<int32_t> sizes = {300, 0, 257, 33, 700};
  std::vector<int32_t> other_sizes = {1, 500, 64, 900, 35};
  int32_t* device_sizes = upload(sizes);
  std::vector<float> scales = std::vector<float>(kM);
  std::vector<double> alphas = {1.5, -0.25, 2.0, 0.5, 1.0};
  std::vector<float> betas = {1.0f, 0.0f, 0.5f, 0.0f, -1.0f};

  GmmArgs plain(uint16_t* out) const {
    GmmArgs args;
    args.lhs = TensorView::contiguous(lhs, DType::kBF16, {kM, kK}, kGpu);
    args.rhs = TensorView::contiguous(rhs, DType::kBF16, {kGroups, kN, kK}, kGpu);
    args.transpose_rhs = true;
    args.group_sizes = GroupSizes(device_sizes, DType::kI32, kGroups, kGpu);
    args.out = TensorView::contiguous(out, DType::kBF16, {kM, kN}, kGpu);
    return args;
  }
};

enum class Kernel { kChosen, kHopper, kPortable };

using Change = std::function<void(GmmArgs&, uint16_t* out)>;

// Runs `change` of the plain call into a fresh copy of C, on the kernel that the library chooses,
// on a Hopper kernel that takes everything, or by an unaligned operand on a portable one.
std::vector<uint16_t> result(Context& context, const Data& data, Kernel kernel,
                             const Change& change) {
  static uint16_t* out = upload(data.c_values);
  require(cudaMemcpy(out, data.c_values.data(), kM * kN * 2, cudaMemcpyHostToDevice), "copy");
  GmmArgs args = data.plain(out);
  change(args, out);
  if (kernel == Kernel::kPortable) args.lhs.data = data.unaligned_lhs;
  if (kernel == Kernel::kHopper) args.options.config = "sm90/gmm_128x256";
  const Status status = gmm(context, args);
  require(status.ok(), status.message());
  require(cudaDeviceSynchronize(), "the kernel");
  const Status faults = context.check(kGpu);
  require(faults.ok(), faults.message());
  return download(out, kM * kN);
}

void check(Context& context, const Data& data, const std::string& name, const Change& change) {
  const std::vector<uint16_t> want = result(context, data, Kernel::kPortable, change);
  compare(name, result(context, data, Kernel::kChosen, change), want, kN);
  compare(name + ", pinned", result(context, data, Kernel::kHopper, change), want, kN);
}

enum class Place { kHost, kDevice };

// out (and so C) as one matrix for each group, all but the first one shifted by `shift` elements:
// the rows must be those of the call with one tensor.
void check_lists(Context& context, const Data& data, Place place, int64_t shift) {
  std::vector<uint16_t> want = result(context, data, Kernel::kPortable,
                                      [](GmmArgs& args, uint16_t*) { args.accumulate = true; });
  std::vector<void*> list;
  int64_t row = 0;
  for (const int32_t size : data.sizes) {
    const auto begin = data.c_values.begin() + row * kN;
    std::vector<uint16_t> rows(list.empty() ? 0 : shift, 0xffff);
    rows.insert(rows.end(), begin, begin + size * kN);
    rows.resize(kM * kN + shift, 0xffff);
    list.push_back(upload(rows) + (list.empty() ? 0 : shift));
    row += size;
  }
  const bool on_device = place == Place::kDevice;
  const GroupedTensor out = GroupedTensor::list(
      on_device ? upload(list) : list.data(), kGroups,
      TensorView::contiguous(nullptr, DType::kBF16, {kM, kN}, kGpu), on_device ? kGpu : Device{});
  const Kernel kernel = on_device || shift % 8 == 0 ? Kernel::kHopper : Kernel::kChosen;
  result(context, data, kernel, [&](GmmArgs& args, uint16_t*) {
    args.out = out;
    args.accumulate = true;
  });
  std::vector<uint16_t> got(want);
  row = 0;
  for (int64_t g = 0; g < kGroups; ++g) {
    const std::vector<uint16_t> rows = download(static_cast<uint16_t*>(list[g]), kM * kN);
    std::copy_n(rows.begin(), data.sizes[g] * kN, got.begin() + row * kN);
    for (size_t i = data.sizes[g] * kN; i < rows.size(); ++i) {
      require(rows[i] == 0xffff, "a list's matrix was written past its rows");
    }
    row += data.sizes[g];
  }
  compare(std::string("out and c lists on the ") + (on_device ? "device" : "host") + ", shift " +
              std::to_string(shift),
          got, want, kN);
}

// Replays of one captured call, with other sizes each time.
void check_graph(Context& context, Data& data) {
  uint16_t* out = upload(data.c_values);
  cudaStream_t stream;
  require(cudaStreamCreate(&stream), "stream");
  GmmArgs args = data.plain(out);
  args.options.stream = stream;
  require(gmm(context, args).ok(), "call before the capture");
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
  const Status status = gmm(context, args);
  require(cudaStreamEndCapture(stream, &graph), "end of capture");
  require(status.ok(), status.message());
  require(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
  for (int replay = 0; replay < 6; ++replay) {
    const std::vector<int32_t>& sizes = replay % 2 == 0 ? data.other_sizes : data.sizes;
    require(cudaMemcpy(data.device_sizes, sizes.data(), kGroups * 4, cudaMemcpyHostToDevice),
            "copy");
    require(cudaMemset(out, 0xff, kM * kN * 2), "poison");
    require(cudaGraphLaunch(executable, stream), "replay");
    require(cudaStreamSynchronize(stream), "replay");
    compare("graph replay " + std::to_string(replay), download(out, kM * kN),
            result(context, data, Kernel::kPortable, [](GmmArgs&, uint16_t*) {}), kN);
  }
}

}  // namespace

int main() {
  Data data;
  for (int64_t r = 0; r < kM; ++r) data.scales[r] = 0.5f + 0.001f * static_cast<float>(r % 700);
  Context context;
  float* scales = upload(data.scales);
  double* alphas = upload(data.alphas);
  float* betas = upload(data.betas);
  uint16_t* bias = upload(random_bf16(kGroups * kN, 4));
  std::vector<void*> rhs_list, bias_list;
  for (int64_t g = 0; g < kGroups; ++g) {
    rhs_list.push_back(data.rhs + (kGroups - 1 - g) * kK * kN);
    bias_list.push_back(bias + g * kN);
  }
  int64_t* offset = upload(std::vector<int64_t>{2});

  check(context, data, "plain", [](GmmArgs&, uint16_t*) {});
  check(context, data, "rhs [g,k,n]", [&](GmmArgs& args, uint16_t*) {
    args.rhs = TensorView::contiguous(data.rhs, DType::kBF16, {kGroups, kK, kN}, kGpu);
    args.transpose_rhs = false;
  });
  check(context, data, "rhs a transposed view", [&](GmmArgs& args, uint16_t*) {
    args.rhs =
        TensorView::strided(data.rhs, DType::kBF16, {kGroups, kK, kN}, {kK * kN, 1, kK}, kGpu);
    args.transpose_rhs = false;
  });
  check(context, data, "rhs a list", [&](GmmArgs& args, uint16_t*) {
    args.rhs = GroupedTensor::list(rhs_list.data(), kGroups,
                                   TensorView::contiguous(nullptr, DType::kBF16, {kN, kK}, kGpu));
  });
  check(context, data, "rhs a list on the device", [&](GmmArgs& args, uint16_t*) {
    args.rhs =
        GroupedTensor::list(upload(rhs_list), kGroups,
                            TensorView::contiguous(nullptr, DType::kBF16, {kN, kK}, kGpu), kGpu);
  });
  std::vector<void*> uneven = rhs_list;
  uneven[3] = upload(random_bf16(kK * kN + 1, 5)) + 1;
  check(context, data, "rhs a list on the device, one unaligned", [&](GmmArgs& args, uint16_t*) {
    args.rhs =
        GroupedTensor::list(upload(uneven), kGroups,
                            TensorView::contiguous(nullptr, DType::kBF16, {kN, kK}, kGpu), kGpu);
  });
  for (const int64_t shift : {0, 8, 3}) {
    check_lists(context, data, Place::kHost, shift);
    check_lists(context, data, Place::kDevice, shift);
  }
  check(context, data, "n no multiple of 16 bytes", [&](GmmArgs& args, uint16_t* out) {
    args.rhs =
        TensorView::strided(data.rhs, DType::kBF16, {kGroups, kN - 3, kK}, {kK * kN, kK, 1}, kGpu);
    args.out = TensorView::strided(out, DType::kBF16, {kM, kN - 3}, {kN, 1}, kGpu);
    args.accumulate = true;
  });
  check(context, data, "host sizes", [&](GmmArgs& args, uint16_t*) {
    args.group_sizes = GroupSizes(data.sizes.data(), DType::kI32, kGroups);
  });
  check(context, data, "every factor", [&](GmmArgs& args, uint16_t*) {
    args.alpha = TensorView::contiguous(alphas, DType::kF64, {kGroups}, kGpu);
    args.beta = TensorView::contiguous(betas, DType::kF32, {kGroups}, kGpu);
    args.row_scale = TensorView::contiguous(scales, DType::kF32, {kM}, kGpu);
  });
  check(context, data, "bias list", [&](GmmArgs& args, uint16_t*) {
    args.bias = GroupedTensor::list(bias_list.data(), kGroups,
                                    TensorView::contiguous(nullptr, DType::kBF16, {1, kN}, kGpu));
  });
  check(context, data, "shard with the offset on the device", [&](GmmArgs& args, uint16_t*) {
    args.rhs = TensorView::contiguous(data.rhs, DType::kBF16, {2, kN, kK}, kGpu);
    args.group_offset = GroupOffset(offset, DType::kI64, kGpu);
  });
  for (int i = 0; i < 20; ++i) check(context, data, "again", [](GmmArgs&, uint16_t*) {});
  check_graph(context, data);
  check(context, data, "after graphs", [](GmmArgs&, uint16_t*) {});
  std::printf("all right\n");
  return 0;
}
