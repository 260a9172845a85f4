// The cache of tensor maps: hits, a bounded size, threads. An encoder of our own shows all of it
// without a GPU; the driver's is asked where there is one.
#include "cuda/tensor_map_cache.h"

#include <array>
#include <atomic>
#include <cstring>
#include <thread>

#include "tests/gpu/gpu_fixture.h"

namespace cadre::cuda {
namespace {

std::atomic<int> encoded = 0;

/// A map that tells every field of its spec.
CUtensorMap told(const TensorMapSpec& spec) {
  std::array<uint64_t, 16> words{};
  words[0] = reinterpret_cast<uintptr_t>(spec.base);
  words[1] = (uint64_t{static_cast<uint32_t>(spec.type)} << 32) |
             (uint64_t{spec.fetches_more} << 16) | spec.rank;
  for (size_t i = 0; i < 5; ++i) words[2 + i] = spec.dims[i];
  for (size_t i = 0; i < 4; ++i) words[7 + i] = spec.strides_bytes[i];
  for (size_t i = 0; i < 5; ++i) words[11 + i] = spec.box[i];
  CUtensorMap map;
  static_assert(sizeof map == sizeof words);
  std::memcpy(&map, words.data(), sizeof map);
  return map;
}

bool tell(const TensorMapSpec& spec, CUtensorMap* map) {
  ++encoded;
  *map = told(spec);
  return true;
}

TensorMapSpec spec_at(uintptr_t address) {
  return matrix_map(reinterpret_cast<const void*>(address), CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                    {128, 64}, 64, {64, 64});
}

bool same(const CUtensorMap& a, const CUtensorMap& b) { return std::memcmp(&a, &b, sizeof a) == 0; }

TEST(TensorMapCache, EncodesAMapOnce) {
  TensorMapCache cache(tell, 64, 4);
  encoded = 0;
  for (int i = 0; i < 3; ++i) {
    CUtensorMap map{};
    ASSERT_TRUE(cache.find_or_encode(spec_at(4096), &map));
    EXPECT_TRUE(same(map, told(spec_at(4096))));
  }
  EXPECT_EQ(encoded, 1);
}

TEST(TensorMapCache, TellsMapsApartByEveryField) {
  // One slot: every spec meets the one before it.
  TensorMapCache cache(tell, 1, 4);
  std::vector<TensorMapSpec> specs(1, spec_at(4096));
  const auto change = [&](auto edit) {
    TensorMapSpec spec = spec_at(4096);
    edit(spec);
    specs.push_back(spec);
  };
  change([](TensorMapSpec& spec) { spec.base = reinterpret_cast<const void*>(uintptr_t{8192}); });
  change([](TensorMapSpec& spec) { spec.type = CU_TENSOR_MAP_DATA_TYPE_FLOAT16; });
  change([](TensorMapSpec& spec) { spec.rank = 3; });
  change([](TensorMapSpec& spec) { spec.fetches_more = false; });
  for (size_t i = 0; i < 5; ++i) {
    change([i](TensorMapSpec& spec) { ++spec.dims[i]; });
    change([i](TensorMapSpec& spec) { ++spec.box[i]; });
    if (i < 4) change([i](TensorMapSpec& spec) { ++spec.strides_bytes[i]; });
  }
  for (const TensorMapSpec& spec : specs) {
    for (const TensorMapSpec& each : {specs[0], spec}) {
      CUtensorMap map{};
      ASSERT_TRUE(cache.find_or_encode(each, &map));
      EXPECT_TRUE(same(map, told(each)));
    }
  }
}

TEST(TensorMapCache, KeepsABoundedNumber) {
  constexpr int kSize = 32, kMaps = 1000;
  TensorMapCache cache(tell, kSize, 4);
  const auto visit_all = [&] {
    encoded = 0;
    for (int i = 1; i <= kMaps; ++i) {
      const TensorMapSpec spec = spec_at(static_cast<uintptr_t>(i) * 256);
      CUtensorMap map{};
      ASSERT_TRUE(cache.find_or_encode(spec, &map));
      ASSERT_TRUE(same(map, told(spec)));
    }
  };
  visit_all();
  EXPECT_EQ(encoded, kMaps);
  visit_all();
  EXPECT_GE(encoded, kMaps - kSize);  // at most kSize of the first round were still there
}

TEST(TensorMapCache, SpreadsAlignedAddresses) {
  // 64 tensors at multiples of 2 MiB, where large allocations lie: few meet in a slot.
  TensorMapCache cache(tell, kTensorMapCacheSize, 4);
  for (int round = 0; round < 2; ++round) {
    encoded = 0;
    for (uintptr_t i = 1; i <= 64; ++i) {
      CUtensorMap map{};
      ASSERT_TRUE(cache.find_or_encode(spec_at(i << 21), &map));
    }
  }
  EXPECT_LE(encoded, 16);
}

TEST(TensorMapCache, KeepsSetsOfBoxes) {
  TensorMapCache cache(tell, 4, 2);  // two slots for twelve sets
  for (int round = 0; round < 2; ++round) {
    for (uintptr_t i = 1; i <= 12; ++i) {
      const BoxHeights boxes = {static_cast<uint32_t>(16 * (i % 3 + 1)), 32, 48, 64};
      encoded = 0;
      for (int call = 0; call < 2; ++call) {
        CUtensorMap maps[4] = {};
        ASSERT_TRUE(cache.find_or_encode(spec_at(i / 3 * 256 + 256), boxes, maps));
        for (size_t box = 0; box < 4; ++box) {
          TensorMapSpec one = spec_at(i / 3 * 256 + 256);
          one.box[1] = boxes[box];
          EXPECT_TRUE(same(maps[box], told(one)));
        }
      }
      EXPECT_LE(encoded, 4);
    }
  }
}

TEST(TensorMapCache, KeepsNothingThatFailed) {
  static bool works;
  works = false;
  TensorMapCache cache(
      [](const TensorMapSpec& spec, CUtensorMap* map) { return works && tell(spec, map); }, 64, 4);
  CUtensorMap map{};
  EXPECT_FALSE(cache.find_or_encode(spec_at(4096), &map));
  works = true;
  ASSERT_TRUE(cache.find_or_encode(spec_at(4096), &map));
  EXPECT_TRUE(same(map, told(spec_at(4096))));
}

TEST(TensorMapCache, ThreadsGetTheirOwnMaps) {
  // As encode_tensor_map keeps them; far fewer than maps.
  const auto cache = []() -> TensorMapCache& {
    thread_local TensorMapCache own(tell, 8, 4);
    return own;
  };
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (uintptr_t thread = 0; thread < 8; ++thread) {
    threads.emplace_back([&, thread] {
      for (uintptr_t i = 1; i <= 20000; ++i) {
        const TensorMapSpec spec = spec_at((i * 7 + thread) % 24 * 256 + 256);
        CUtensorMap map{};
        if (!cache().find_or_encode(spec, &map) || !same(map, told(spec))) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

class TensorMapDriver : public tests::HopperTest {};

TEST_F(TensorMapDriver, GivesTheSameMapAgain) {
  tests::GpuArray array(DType::kBF16, {128, 64});
  const TensorMapSpec spec =
      matrix_map(array.data(), CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, {128, 64}, 64, {64, 64});
  TensorMapSpec narrow = spec;
  narrow.box[0] = 32;
  CUtensorMap first{}, again{}, other{};
  ASSERT_TRUE(encode_tensor_map(spec, &first));
  ASSERT_TRUE(encode_tensor_map(narrow, &other));
  ASSERT_TRUE(encode_tensor_map(spec, &again));
  EXPECT_TRUE(same(first, again));
  EXPECT_FALSE(same(first, other));
  TensorMapSpec bad = spec;
  bad.strides_bytes[0] = 130;
  EXPECT_FALSE(encode_tensor_map(bad, &other));
}

}  // namespace
}  // namespace cadre::cuda
