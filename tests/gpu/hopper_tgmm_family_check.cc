// Checks tgmm through the public API on a Hopper GPU: each call runs on a pinned Hopper kernel and
// on a portable one, and every bit of the output must agree. n that is no multiple of 16 bytes, and
// lists on the host and on the device with matrices at any address.
#include "cadre/tgmm.h"
#include "hopper_family_case.h"

namespace {

using namespace cadre;
using namespace cadre::testing;

constexpr int64_t kM = 700, kK = 200, kStride = 328, kGroups = 4;
constexpr int64_t kMatrix = kK * kStride;

struct Case {
  std::string name;
  int64_t n = kStride;
  bool accumulate = false;
  bool list = false;
  bool on_device = false;  // the list
  int64_t shift = 0;       // elements by which every second matrix is moved
};

struct Data {
  std::vector<uint16_t> lhs_values = random_bf16(kM * kK + 1, 1);
  uint16_t* lhs = upload(std::vector<uint16_t>(lhs_values.begin() + 1, lhs_values.end()));
  uint16_t* unaligned_lhs = upload(lhs_values) + 1;  // the copy engine can't read it
  uint16_t* rhs = upload(random_bf16(kM * kStride, 2));
  std::vector<uint16_t> c_values = random_bf16(kGroups * kMatrix, 3);
  int32_t* sizes = upload(std::vector<int32_t>{300, 0, 257, 130});
};

// All matrices of the result, padding columns included, one after the other.
std::vector<uint16_t> result(Context& context, const Data& data, const Case& test, bool portable) {
  std::vector<void*> matrices;
  for (int64_t g = 0; g < kGroups; ++g) {
    std::vector<uint16_t> values(data.c_values.begin() + g * kMatrix,
                                 data.c_values.begin() + (g + 1) * kMatrix);
    const int64_t shift = g % 2 == 1 ? test.shift : 0;
    values.insert(values.begin(), shift, 0);
    matrices.push_back(upload(values) + shift);
  }
  uint16_t* stacked = upload(data.c_values);
  TgmmArgs args;
  args.lhs = TensorView::contiguous(portable ? data.unaligned_lhs : data.lhs, DType::kBF16,
                                    {kM, kK}, kGpu);
  args.rhs = TensorView::strided(data.rhs, DType::kBF16, {kM, test.n}, {kStride, 1}, kGpu);
  args.group_sizes = GroupSizes(data.sizes, DType::kI32, kGroups, kGpu);
  args.accumulate = test.accumulate;
  if (test.list) {
    args.out = GroupedTensor::list(
        test.on_device ? upload(matrices) : matrices.data(), kGroups,
        TensorView::strided(nullptr, DType::kBF16, {kK, test.n}, {kStride, 1}, kGpu),
        test.on_device ? kGpu : Device{});
  } else {
    args.out = TensorView::strided(stacked, DType::kBF16, {kGroups, kK, test.n},
                                   {kMatrix, kStride, 1}, kGpu);
  }
  const bool refused = !test.on_device && test.shift % 8 != 0;  // the host sees it
  if (!portable && !refused) {
    args.options.config = test.accumulate ? "sm90/tgmm_128x192_c" : "sm90/tgmm_128x192";
  }
  const Status status = tgmm(context, args);
  require(status.ok(), test.name + ": " + status.message());
  require(cudaDeviceSynchronize(), "the kernel");
  const Status faults = context.check(kGpu);
  require(faults.ok(), faults.message());
  if (!test.list) return download(stacked, kGroups * kMatrix);
  std::vector<uint16_t> values;
  for (void* matrix : matrices) {
    const std::vector<uint16_t> one = download(static_cast<uint16_t*>(matrix), kMatrix);
    values.insert(values.end(), one.begin(), one.end());
  }
  return values;
}

}  // namespace

int main() {
  const Data data;
  Context context;
  std::vector<Case> cases;
  for (const bool accumulate : {false, true}) {
    const std::string suffix = accumulate ? ", accumulating" : "";
    for (const int64_t n : {328, 325, 5}) {
      cases.push_back(
          {.name = "n " + std::to_string(n) + suffix, .n = n, .accumulate = accumulate});
    }
    for (const bool on_device : {false, true}) {
      for (const int64_t shift : {0, 8, 5}) {
        cases.push_back({.name = std::string("list on the ") + (on_device ? "device" : "host") +
                                 ", shift " + std::to_string(shift) + suffix,
                         .n = 323,
                         .accumulate = accumulate,
                         .list = true,
                         .on_device = on_device,
                         .shift = shift});
      }
    }
  }
  for (const Case& test : cases) {
    compare(test.name, result(context, data, test, false), result(context, data, test, true),
            kStride);
  }
  std::printf("all right\n");
  return 0;
}
