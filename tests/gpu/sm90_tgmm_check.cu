// Checks the Hopper tgmm kernels against a double-precision product: output types, alpha, beta, C,
// accumulation, pointer lists, ragged, empty and bad sizes, k and n that fill no tile, NaN outside
// the groups, memory around the result, and equal bits between instantiations and whatever the
// other groups are. Exits 1 at a mismatch. usage: sm90_tgmm_check [name of a case]
#include <cmath>
#include <cstring>
#include <string>

#include "cuda/sm90/tgmm_launch.h"
#include "plan/group_scan.h"
#include "sm90_check_device.h"

namespace cadre::sm90 {
namespace {

using bench::DeviceBuffer;

struct Case {
  const char* name;
  int64_t m, k, n;
  std::vector<int64_t> sizes;
  int64_t first = 0;   // group_offset
  int64_t locals = 0;  // 0: all
};

// How a result is asked for.
struct Mode {
  const char* name;
  bool has_c;
  float beta;
  bool separate_c;
  bool list;
  bool scaled;  // per-group alpha
};

constexpr Mode kModes[] = {
    {"plain", false, 0, false, false, false},
    {"list, alpha", false, 0, false, true, true},
    {"accumulate", true, 1, false, false, false},
    {"list accumulate, alpha", true, 1, false, true, true},
    {"beta with c", true, 0.5f, true, true, false},
    {"beta 0 with c", true, 0, true, false, false},
};

__device__ float load(const void* data, DType type, int64_t i) {
  if (type == DType::kF32) return static_cast<const float*>(data)[i];
  if (type == DType::kBF16) return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[i]);
  return __half2float(static_cast<const __half*>(data)[i]);
}

struct Reference {
  const void *lhs, *rhs, *c, *out;
  DType element, output;
  int64_t k, n, ld, group_stride;  // of out and c
  int64_t lhs_stride, rhs_stride;
  const int64_t* offsets;  // two for each local group
  const float* alpha;      // null: 1
  float beta;
};

struct Verdict {
  unsigned long long bad;
  unsigned long long touched;  // padding that changed
  double worst;
};

// A thread for each element of out, its padding columns included (they hold 0x55 bytes).
__global__ void verify(Reference ref, int64_t groups, Verdict* verdict) {
  const int64_t count = groups * ref.k * ref.ld;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t g = i / (ref.k * ref.ld);
    const int64_t row = i / ref.ld % ref.k;
    const int64_t column = i % ref.ld;
    const int64_t at = g * ref.group_stride + row * ref.ld + column;
    if (column >= ref.n) {
      const int size = ref.output == DType::kF32 ? 4 : 2;
      const auto* bytes = static_cast<const unsigned char*>(ref.out) + at * size;
      for (int b = 0; b < size; ++b) {
        if (bytes[b] != 0x55) atomicAdd(&verdict->touched, 1ull);
      }
      continue;
    }
    double sum = 0;
    double norm = 0;
    for (int64_t r = ref.offsets[2 * g]; r < ref.offsets[2 * g + 1]; ++r) {
      const double product = double{load(ref.lhs, ref.element, r * ref.lhs_stride + row)} *
                             load(ref.rhs, ref.element, r * ref.rhs_stride + column);
      sum += product;
      norm += product * product;
    }
    const double alpha = ref.alpha != nullptr ? ref.alpha[g] : 1;
    const double c = ref.beta != 0 ? load(ref.c, ref.output, at) : 0;
    const double want = alpha * sum + ref.beta * c;
    const double got = load(ref.out, ref.output, at);
    const double epsilon = ref.output == DType::kF32    ? 0x1p-23
                           : ref.output == DType::kBF16 ? 0x1p-8
                                                        : 0x1p-11;
    const double rows = static_cast<double>(ref.offsets[2 * g + 1] - ref.offsets[2 * g]);
    const double allowed = epsilon * fabs(want) + 0x1p-22 * sqrt(rows) * fabs(alpha) * sqrt(norm) +
                           0x1p-22 * fabs(ref.beta * c) + 0x1p-25;
    const double error = fabs(got - want) / allowed;
    if (!(error <= 1)) atomicAdd(&verdict->bad, 1ull);
  }
}

template <typename T>
__global__ void poison_rows(T* data, int64_t begin, int64_t end) {
  for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) data[i] = static_cast<T>(NAN);
}

// What the contract makes of the sizes: rows of each local group, empty from the first bad size on.
std::vector<int64_t> local_offsets(const Case& c, int64_t locals) {
  std::vector<int64_t> ranges;
  plan::GroupScan scan{.m = c.m};
  for (int64_t g = 0; g < c.first + locals; ++g) {
    const int64_t begin = scan.end;
    const int64_t rows = scan.add(c.sizes[g]);
    if (g >= c.first) ranges.insert(ranges.end(), {begin, begin + rows});
  }
  return ranges;
}

class Checker {
 public:
  bool run(const Case& c, DType element) {
    locals_ = c.locals > 0 ? c.locals : static_cast<int64_t>(c.sizes.size());
    ld_ = (c.n + 7) / 8 * 8 + 8;
    // Row strides of the operands: multiples of 16 bytes.
    const int64_t lhs_stride = (c.k + 7) / 8 * 8;
    const int64_t rhs_stride = (c.n + 7) / 8 * 8;
    DeviceBuffer lhs(c.m * lhs_stride * 2), rhs(c.m * rhs_stride * 2);
    fill(lhs, element, 1);
    fill(rhs, element, 2);
    const std::vector<int64_t> ranges = local_offsets(c, locals_);
    plan::GroupScan scan{.m = c.m};
    for (const int64_t size : c.sizes) scan.add(size);
    for (auto [buffer, width] : {std::pair{&lhs, lhs_stride}, std::pair{&rhs, rhs_stride}}) {
      if (element == DType::kBF16) {
        poison_rows<<<1, 256>>>(buffer->as<__nv_bfloat16>(), scan.end * width, c.m * width);
      } else {
        poison_rows<<<1, 256>>>(buffer->as<__half>(), scan.end * width, c.m * width);
      }
    }
    DeviceBuffer offsets(ranges.size() * 8), sizes(c.sizes.size() * 8), fault(4);
    offsets.upload(ranges);
    sizes.upload(c.sizes);
    fault.fill_byte(0);
    TgmmCall call;
    call.element = element;
    call.k = c.k;
    call.n = c.n;
    call.lhs = lhs.as();
    call.lhs_stride = lhs_stride;
    call.rhs = rhs.as();
    call.rhs_stride = rhs_stride;
    call.groups = {.sizes = sizes.as(),
                   .form = cuda::SizesForm::kI64,
                   .m = c.m,
                   .num_groups = static_cast<int64_t>(c.sizes.size()),
                   .num_local = locals_,
                   .group_offset = c.first,
                   .fault = fault.as<int32_t>()};
    bool right = true;
    for (const DType output : {element, DType::kF32}) {
      plain_bits_.clear();
      for (const Mode& mode : kModes) {
        for (const TgmmInstance& instance : tgmm_instances_of(element)) {
          if (instance.with_c != mode.has_c) continue;
          call.output = output;
          right = run_mode(c, call, mode, instance, offsets.as<int64_t>()) && right;
        }
      }
      right = run_alone(c, call, output) && right;
    }
    const bool faulty = fault.download<int32_t>()[0] != 0;
    if (faulty != scan.bad) {
      std::printf("%s: fault word %d, sizes bad %d\n", c.name, faulty, scan.bad);
      right = false;
    }
    return right;
  }

  int calls() const { return calls_; }

 private:
  // Every second call claims its tiles from a counter, which it must leave at 0.
  void launch(const TgmmCall& call, const TgmmConfig& config, TgmmWorkspace workspace) {
    if (calls_ == 0) counter_.fill_byte(0);
    if (calls_ % 2 == 0) workspace.tile_counter = counter_.as<uint32_t>();
    cuda::Launch launch;
    launch.op = "tgmm";
    launch.sm_count = 132;
    const Status status = launch_tgmm(launch, call, config, workspace);
    if (!status.ok()) std::printf("launch: %s\n", status.message().c_str());
    const uint32_t left = counter_.download<uint32_t>()[0];
    if (left != 0) std::printf("the tile counter was left at %u\n", left);
    if (!status.ok() || left != 0) std::exit(1);
  }

  static void fill(DeviceBuffer& buffer, DType type, uint32_t seed) {
    if (type == DType::kF32) bench::randomize<float>(buffer, seed, 1.0f);
    if (type == DType::kBF16) bench::randomize<__nv_bfloat16>(buffer, seed, 1.0f);
    if (type == DType::kF16) bench::randomize<__half>(buffer, seed, 1.0f);
  }

  bool run_mode(const Case& c, TgmmCall call, const Mode& mode, const TgmmInstance& instance,
                const int64_t* offsets) {
    const DType output = call.output;
    const int64_t size = output == DType::kF32 ? 4 : 2;
    const int64_t group_stride = c.k * ld_;
    const int64_t bytes = locals_ * group_stride * size;
    DeviceBuffer out(bytes), given(bytes), verdict(sizeof(Verdict)), pointers(locals_ * 8),
        c_pointers(locals_ * 8), alphas(locals_ * 4), sums((locals_ + 1) * 8),
        plan(tgmm_plan_bytes(locals_));
    fill(given, output, 3);
    if (mode.beta == 0) given.fill_byte(0xff);  // NaN: never read
    std::vector<float> alpha_values;
    std::vector<uint64_t> out_list, c_list;
    for (int64_t g = 0; g < locals_; ++g) {
      alpha_values.push_back(0.25f * static_cast<float>(g % 7) - 0.5f);
      out_list.push_back(reinterpret_cast<uint64_t>(out.as<char>() + g * group_stride * size));
      c_list.push_back(reinterpret_cast<uint64_t>(given.as<char>() + g * group_stride * size));
    }
    alphas.upload(alpha_values);
    pointers.upload(out_list);
    c_pointers.upload(c_list);
    call.out = {.base = out.as(), .group_stride = group_stride, .row_stride = ld_};
    call.c = call.out;
    if (mode.separate_c) call.c.base = given.as();
    if (mode.list) {
      call.out.pointers = pointers.as<void*>();
      call.c.pointers = mode.separate_c ? c_pointers.as<void*>() : pointers.as<void*>();
    }
    call.beta.value = mode.beta;
    if (mode.scaled) call.alpha.data = alphas.as();
    out.fill_byte(0x55);
    if (mode.beta != 0 && !mode.separate_c) {  // out starts as C, with padding kept
      BENCH_CUDA(cudaMemcpy2D(out.as(), ld_ * size, given.as(), ld_ * size, c.n * size,
                              locals_ * c.k, cudaMemcpyDeviceToDevice));
    }
    const TgmmConfig config{.instance = &instance};
    launch(call, config, {sums.as<int64_t>(), plan.as<TgmmPlan>()});
    BENCH_CUDA(cudaDeviceSynchronize());
    verdict.fill_byte(0);
    verify<<<1024, 128>>>({.lhs = call.lhs,
                           .rhs = call.rhs,
                           .c = given.as(),
                           .out = out.as(),
                           .element = call.element,
                           .output = output,
                           .k = c.k,
                           .n = c.n,
                           .ld = ld_,
                           .group_stride = group_stride,
                           .lhs_stride = call.lhs_stride,
                           .rhs_stride = call.rhs_stride,
                           .offsets = offsets,
                           .alpha = mode.scaled ? alphas.as<float>() : nullptr,
                           .beta = mode.beta},
                          locals_, verdict.as<Verdict>());
    BENCH_CUDA(cudaDeviceSynchronize());
    const Verdict seen = verdict.download<Verdict>()[0];
    const std::vector<unsigned char> bits = out.download<unsigned char>();
    ++calls_;
    // Without alpha and beta all instantiations give the same bits.
    const bool comparable = mode.beta == 0 && !mode.scaled;
    const bool same = !comparable || plain_bits_.empty() || bits == plain_bits_;
    if (comparable && plain_bits_.empty()) plain_bits_ = bits;
    if (seen.bad == 0 && seen.touched == 0 && same) return true;
    std::printf("WRONG %s, %s, %s -> %s, %s: %llu wrong, %llu padding bytes touched, bits %s\n",
                c.name, std::string(instance.name).c_str(),
                std::string(name_of(call.element)).c_str(), std::string(name_of(output)).c_str(),
                mode.name, seen.bad, seen.touched, same ? "equal" : "differ");
    return false;
  }

  // A group's bits don't depend on the groups around it: each one by itself, the others foreign.
  bool run_alone(const Case& c, TgmmCall call, DType output) {
    const int64_t bytes = c.k * ld_ * (output == DType::kF32 ? 4 : 2);
    DeviceBuffer out(bytes), sums(2 * 8), plan(tgmm_plan_bytes(1));
    call.output = output;
    call.out = {.base = out.as(), .row_stride = ld_};
    call.groups.num_local = 1;
    const TgmmConfig config = choose_tgmm_config(call.element, TgmmBeta::kAbsent);
    for (int64_t g = 0; g < locals_; ++g) {
      out.fill_byte(0x55);
      call.groups.group_offset = c.first + g;
      launch(call, config, {sums.as<int64_t>(), plan.as<TgmmPlan>()});
      const std::vector<unsigned char> bits = out.download<unsigned char>();
      ++calls_;
      if (std::equal(bits.begin(), bits.end(), plain_bits_.begin() + g * bytes)) continue;
      std::printf("WRONG %s: bits of group %lld depend on the others\n", c.name,
                  static_cast<long long>(g));
      return false;
    }
    return true;
  }

  int64_t locals_ = 0;
  int64_t ld_ = 0;
  std::vector<unsigned char> plain_bits_;  // of the current case and output type
  int calls_ = 0;
  DeviceBuffer counter_{4};
};

int run(const std::string& only) {
  std::vector<int64_t> many;
  int64_t rows = 0;
  for (int64_t g = 0; g < 40; ++g) {
    many.push_back(g % 5 == 0 ? 0 : (g * 37) % 101);
    rows += many.back();
  }
  const std::vector<Case> cases = {
      {"ragged", 804, 192, 320, {1, 0, 127, 128, 129, 300, 64, 5}},
      {"tails of k and n", 260, 136, 200, {17, 0, 33, 160, 50}},
      {"one row and one column of tiles", 600, 64, 64, {600}},
      {"more than a window, foreign groups", rows + 9, 256, 384, many, 3, 35},
      {"many tiles", 300, 1024, 1536, {100, 72, 128}},
      {"n that is no multiple of 16 bytes", 300, 72, 333, {100, 0, 72, 128}},
      {"n below 16 bytes", 150, 200, 3, {50, 37, 63}},
      {"all empty", 8, 128, 256, {0, 0, 0}},
      {"negative size", 100, 128, 256, {10, -5, 20}},
      {"sum above m", 100, 128, 256, {60, 30, 20, 5}},
  };
  Checker checker;
  bool right = true;
  for (const Case& c : cases) {
    if (!only.empty() && only != c.name) continue;
    for (const DType element : {DType::kBF16, DType::kF16})
      right = checker.run(c, element) && right;
  }
  std::printf("tgmm on sm90: %d calls, %s\n", checker.calls(), right ? "all right" : "WRONG");
  return right && checker.calls() > 0 ? 0 : 1;
}

}  // namespace
}  // namespace cadre::sm90

int main(int argc, char** argv) { return cadre::sm90::run(argc > 1 ? argv[1] : ""); }
