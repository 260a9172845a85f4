// One case for the Hopper gmm kernel: its data with poison and guards, the launch, and the
// comparison with the reference. sm90_gmm_check.cu lists the cases.
#pragma once

#include <cmath>
#include <cstring>
#include <memory>
#include <string>

#include "cuda/sm90/launch_gmm.h"
#include "gmm_reference.cuh"
#include "plan/group_scan.h"
#include "sm90_check_device.h"

namespace cadre::testing {

using bench::DeviceBuffer;
using sm90::ElementKind;

// CTAs claim their tiles from one counter, which every launch must leave at 0.
inline DeviceBuffer& tile_counter() {
  static DeviceBuffer counter(4);
  static const bool cleared = (counter.fill_byte(0), true);
  static_cast<void>(cleared);
  return counter;
}

inline void launch(sm90::GmmCall call, const sm90::GmmConfig& config) {
  call.tile_counter = tile_counter().as<uint32_t>();
  cuda::Launch launch;
  launch.op = "gmm";
  const Status status = sm90::launch_gmm(launch, call, config);
  if (status.ok()) return;
  std::printf("FAIL launch: %s\n", status.message().c_str());
  std::exit(1);
}

struct Case {
  std::string name;
  std::vector<int64_t> sizes;
  int n = 0;
  int k = 0;
  int tail = 0;  // rows after the last group
  bool transposed_rhs = true;
  ElementKind element = ElementKind::kBf16;
  ElementKind out = ElementKind::kBf16;
  bool alpha = false, bias = false, row_scale = false, bias_scale = false, c = false,
       c_is_out = false;
  bool beta_by_group = false;  // every third group has beta 0, and C holds NaN there
  bool keep_tail = false;      // tail = untouched
  int padding = 0;             // extra elements in each row stride, filled with NaN
  cuda::SizesForm kind = cuda::SizesForm::kI32;
  int first_local = 0;
  int num_local = -1;  // -1: all
  sm90::GmmShapeKind shape = sm90::GmmShapeKind::kGeneral;
  int ctas = 132;
};

inline DeviceBuffer* pack_sizes(const Case& test, std::vector<int64_t>& sizes) {
  const size_t count = sizes.size();
  if (test.kind == cuda::SizesForm::kOffsets) {
    std::vector<int64_t> offsets(1, 0);
    for (const int64_t size : sizes) offsets.push_back(offsets.back() + size);
    auto* buffer = new DeviceBuffer((count + 1) * 8);
    buffer->upload(offsets);
    return buffer;
  }
  const bool wide = test.kind == cuda::SizesForm::kI64;
  auto* buffer = new DeviceBuffer(count * (wide ? 8 : 4));
  if (wide) {
    buffer->upload(sizes);
  } else {
    buffer->upload(std::vector<int32_t>(sizes.begin(), sizes.end()));
  }
  return buffer;
}

__global__ void set_nan_columns(uint16_t* data, int64_t rows, int64_t stride, int64_t from) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < rows * stride;
       i += int64_t{gridDim.x} * blockDim.x) {
    if (i % stride >= from) data[i] = 0xffff;
  }
}

inline double to_double(const std::vector<unsigned char>& bytes, int64_t index, ElementKind kind) {
  if (kind == ElementKind::kF32) {
    float value;
    std::memcpy(&value, &bytes[index * 4], 4);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, &bytes[index * 2], 2);
  if (kind == ElementKind::kBf16) {
    const uint32_t wide = uint32_t{bits} << 16;
    float value;
    std::memcpy(&value, &wide, 4);
    return value;
  }
  __half_raw raw;
  raw.x = bits;
  return __half2float(__half(raw));
}

// Runs one case; the bytes of out come back for bitwise comparisons.
template <typename T, typename Out>
inline bool run(const Case& test, std::vector<unsigned char>* bytes) {
  std::vector<int64_t> sizes = test.sizes;
  const int groups = static_cast<int>(sizes.size());
  const int local = test.num_local < 0 ? groups : test.num_local;
  // The true extent: bad sizes end the walk.
  int64_t capacity = test.tail;
  for (const int64_t size : sizes) capacity += size > 0 && size < 100000 ? size : 0;
  const int m = static_cast<int>(capacity);
  plan::GroupScan scan{m};
  std::vector<int> group_of_row(m, -1);
  bool bad = false;
  for (int g = 0; g < groups; ++g) {
    const int64_t begin = scan.end;
    const int64_t rows = scan.add(sizes[g]);
    const int index = g - test.first_local;
    for (int64_t r = begin; r < begin + rows; ++r)
      group_of_row[r] = index >= 0 && index < local ? index : -1;
  }
  bad = scan.bad;

  const int64_t lhs_stride = (test.k + 7) / 8 * 8 + test.padding;
  const int64_t rhs_rows = test.transposed_rhs ? test.n : test.k;
  const int64_t rhs_columns = test.transposed_rhs ? test.k : test.n;
  const int64_t rhs_stride = (rhs_columns + 7) / 8 * 8 + test.padding;
  const int64_t out_stride = (test.n + 7) / 8 * 8 + test.padding;
  constexpr int kGuardRows = 300;  // the copy engine would reach at most a tile past the end
  DeviceBuffer lhs(std::max(m, 1) * lhs_stride * 2);
  DeviceBuffer rhs(local * rhs_rows * rhs_stride * 2);
  DeviceBuffer out((m + kGuardRows) * out_stride * sizeof(Out));
  DeviceBuffer c((m + kGuardRows) * out_stride * sizeof(Out));
  bench::randomize<T>(lhs, 1, 1.0f);
  bench::randomize<T>(rhs, 2, 1.0f / std::sqrt(static_cast<float>(test.k)));
  bench::randomize<Out>(c, 3, 1.0f);
  set_nan_columns<<<64, 256>>>(lhs.as<uint16_t>(), m, lhs_stride, test.k);
  set_nan_columns<<<64, 256>>>(rhs.as<uint16_t>(), local * rhs_rows, rhs_stride, rhs_columns);
  for (int r = 0; r < m; ++r) {
    if (group_of_row[r] >= 0) continue;
    BENCH_CUDA(cudaMemset(lhs.as<T>() + r * lhs_stride, 0xff, lhs_stride * 2));
  }
  DeviceBuffer alpha(local * 4), beta(local * 4), bias(local * test.n * 4), row_scale(m * 4 + 4),
      bias_scale(m * 4 + 4);
  bench::randomize<float>(alpha, 4, 1.0f);
  bench::randomize<float>(bias, 5, 1.0f);
  bench::randomize<float>(row_scale, 6, 1.0f);
  bench::randomize<float>(bias_scale, 7, 1.0f);
  std::vector<float> betas(local, 0.5f);
  for (int g = 0; test.beta_by_group && g < local; g += 3) betas[g] = 0.0f;
  beta.upload(betas);
  for (int r = 0; r < m; ++r) {
    if (group_of_row[r] >= 0 && betas[group_of_row[r]] == 0.0f) {
      BENCH_CUDA(cudaMemset(c.as<Out>() + r * out_stride, 0xff, out_stride * sizeof(Out)));
    }
  }
  out.fill_byte(0xff);
  if (test.c_is_out)
    BENCH_CUDA(cudaMemcpy(out.as(), c.as(), out.size_bytes(), cudaMemcpyDeviceToDevice));
  const std::vector<unsigned char> before = out.download<unsigned char>();
  DeviceBuffer status(4);
  status.fill_byte(0);
  const std::unique_ptr<DeviceBuffer> device_sizes(pack_sizes(test, sizes));

  sm90::GmmCall call;
  call.element = test.element;
  call.transposed_rhs = test.transposed_rhs;
  call.m = m;
  call.n = test.n;
  call.k = test.k;
  call.lhs = lhs.as();
  call.lhs_stride = lhs_stride;
  call.rhs = rhs.as();
  call.rhs_group_stride = rhs_rows * rhs_stride;
  call.rhs_row_stride = rhs_stride;
  call.out = out.as();
  call.out_stride = out_stride;
  const bool reads_c = test.c || test.c_is_out;
  if (reads_c) {
    call.c = test.c_is_out ? out.as() : c.as();
    call.c_stride = out_stride;
  }
  call.groups.sizes = device_sizes->as();
  call.groups.form = test.kind;
  call.groups.num_groups = groups;
  call.groups.num_local = local;
  call.groups.group_offset = test.first_local;
  call.zero_other_rows = !test.keep_tail && !reads_c;
  call.groups.fault = status.as<int32_t>();
  call.epilogue.out = test.out;
  if (test.alpha) call.epilogue.alpha.data = alpha.as();
  if (reads_c) call.epilogue.beta.data = beta.as();
  if (test.bias) {
    call.epilogue.bias.data = bias.as();
    call.epilogue.bias_group_stride = test.n;
  }
  if (test.row_scale) call.epilogue.row_scale.data = row_scale.as();
  if (test.bias_scale) call.epilogue.bias_scale.data = bias_scale.as();
  call.epilogue.has_c = reads_c;
  launch(call, {.shape = test.shape, .ctas = test.ctas});
  BENCH_CUDA(cudaDeviceSynchronize());

  DeviceBuffer device_groups(m * 4 + 4), reference(int64_t{m} * test.n * 4),
      magnitude(int64_t{m} * test.n * 4);
  device_groups.upload(group_of_row);
  const ReferenceCall ref = {device_groups.as<int>(),
                             m,
                             test.n,
                             test.k,
                             lhs.as(),
                             lhs_stride,
                             rhs.as(),
                             call.rhs_group_stride,
                             rhs_stride,
                             test.transposed_rhs,
                             test.alpha ? alpha.as<float>() : nullptr,
                             beta.as<float>(),
                             test.bias ? bias.as<float>() : nullptr,
                             test.row_scale ? row_scale.as<float>() : nullptr,
                             test.bias_scale ? bias_scale.as<float>() : nullptr,
                             reads_c ? c.as() : nullptr,
                             out_stride};
  const int64_t count = int64_t{m} * test.n;
  gmm_reference<T, Out><<<static_cast<unsigned>((count + 255) / 256 + 1), 256>>>(
      ref, reference.as<float>(), magnitude.as<float>());
  BENCH_CUDA(cudaDeviceSynchronize());
  const std::vector<float> expected = reference.download<float>();
  const std::vector<float> sizes_of_sums = magnitude.download<float>();
  *bytes = out.download<unsigned char>();

  // One rounding to the output type, and fp32 sums of k products.
  const double unit = test.out == ElementKind::kBf16  ? 0x1p-8
                      : test.out == ElementKind::kF16 ? 0x1p-11
                                                      : 0x1p-24;
  int64_t wrong = 0;
  double worst = 0;
  std::string where;
  const int64_t element = sizeof(Out);
  for (int64_t r = 0; r < m + kGuardRows; ++r) {
    const bool covered = r < m && group_of_row[r] >= 0;
    const bool zeroed = r < m && !covered && call.zero_other_rows;
    for (int64_t j = 0; j < out_stride; ++j) {
      const int64_t at = r * out_stride + j;
      bool fine;
      if (j >= test.n || !(covered || zeroed)) {
        fine = std::memcmp(&before[at * element], &(*bytes)[at * element], element) == 0;
      } else if (zeroed) {
        fine = to_double(*bytes, at, test.out) == 0;
      } else {
        const double want = expected[r * test.n + j];
        const double bound = unit * std::fabs(want) +
                             0x1p-21 * std::sqrt(test.k) * sizes_of_sums[r * test.n + j] / 8 + 1e-7;
        const double error = std::fabs(to_double(*bytes, at, test.out) - want);
        fine = error <= bound;
        if (fine) worst = std::max(worst, error / bound);
      }
      if (!fine && wrong++ == 0) {
        where = "row " + std::to_string(r) + " column " + std::to_string(j) + " is " +
                std::to_string(to_double(*bytes, at, test.out)) +
                (covered && j < test.n ? " wanted " + std::to_string(expected[r * test.n + j])
                                       : " should be kept or zero");
      }
    }
  }
  if (tile_counter().download<uint32_t>()[0] != 0) {
    std::printf("FAIL %s: the tile counter was left at %u\n", test.name.c_str(),
                tile_counter().download<uint32_t>()[0]);
    return false;
  }
  const int32_t fault = status.download<int32_t>()[0];
  if ((fault != 0) != bad) {
    std::printf("FAIL %s: status word %d, bad sizes: %d\n", test.name.c_str(), fault, bad);
    return false;
  }
  if (wrong != 0) {
    std::printf("FAIL %s (m %d n %d k %d, %d tokens): %lld wrong, first %s\n", test.name.c_str(), m,
                test.n, test.k, sm90::max_tokens(test.shape), static_cast<long long>(wrong),
                where.c_str());
    return false;
  }
  std::printf("ok   %s (m %d n %d k %d, %d tokens) worst %.2f of the bound\n", test.name.c_str(), m,
              test.n, test.k, sm90::max_tokens(test.shape), worst);
  return true;
}

inline bool run(const Case& test, std::vector<unsigned char>* bytes) {
  const bool wide = test.out == ElementKind::kF32;
  if (test.element == ElementKind::kBf16) {
    return wide ? run<__nv_bfloat16, float>(test, bytes)
                : run<__nv_bfloat16, __nv_bfloat16>(test, bytes);
  }
  return wide ? run<__half, float>(test, bytes) : run<__half, __half>(test, bytes);
}

}  // namespace cadre::testing
