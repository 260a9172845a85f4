// A late thread shares what is left of its unit: every row tile is done once, and the result has
// the bits that one thread gives.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cpu/gemm_unit.h"
#include "cpu/isa.h"
#include "cpu/kernel_table.h"
#include "tests/support/sanitized.h"

namespace cadre::cpu {
namespace {

TEST(CpuSharedBlock, EveryTileIsTakenOnce) {
  constexpr int kHelpers = 3, kHelpedTiles = 300;
  constexpr int64_t kTiles = 61;
  IdleThreads idle;
  SharedBlock shared(idle);
  EXPECT_FALSE(shared.is_wanted());
  EXPECT_FALSE(shared.is_open());
  idle.count = kHelpers;
  EXPECT_TRUE(shared.is_wanted());

  std::vector<std::atomic<int64_t>> last_block(kTiles);
  std::atomic<int> visits{0}, helped{0};
  const auto take_all = [&](bool helper) {
    for (;;) {
      const SharedBlock::Tiles tiles = shared.take();
      if (tiles.begin == tiles.end) return;
      for (int64_t i = tiles.begin; i < tiles.end; ++i, ++visits)
        last_block[static_cast<size_t>(i)] = shared.work().column_block;
      if (helper) ++helped;
      shared.finish(tiles);
    }
  };
  std::atomic<bool> over{false};
  std::vector<std::thread> helpers;
  for (int i = 0; i < kHelpers; ++i)
    helpers.emplace_back([&] {
      while (!over) take_all(true);
    });
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t block = 1; helped < kHelpedTiles; ++block) {
    if (std::chrono::steady_clock::now() - begin > std::chrono::minutes(1)) {
      ADD_FAILURE() << "no help in a minute";
      break;
    }
    visits = 0;
    shared.open({.column_block = block, .tiles = kTiles});
    take_all(false);
    shared.close();
    EXPECT_FALSE(shared.is_open());
    EXPECT_EQ(visits, kTiles);
    for (const auto& last : last_block) EXPECT_EQ(last, block);
  }
  over = true;
  for (std::thread& helper : helpers) helper.join();
}

struct Case {
  DType type, out;
  int64_t m, n, k;
  bool transposed;  ///< B is [n, k]
  bool options;     ///< bias, row scale, alpha, beta
  bool packed;      ///< B packed before
};

std::vector<char> random_bytes(int64_t count, DType type, std::mt19937* random) {
  std::vector<char> bytes(static_cast<size_t>(count) * size_of(type));
  std::uniform_int_distribution<int> values(-8, 8);
  for (int64_t i = 0; i < count; ++i) {
    const int x = values(*random);
    const auto f = static_cast<float>(x) * 1.37f;
    uint32_t bits = 0;
    std::memcpy(&bits, &f, 4);
    char* to = bytes.data() + static_cast<size_t>(i) * size_of(type);
    if (type == DType::kF32) {
      std::memcpy(to, &f, 4);
    } else if (type == DType::kBF16) {
      const auto top = static_cast<uint16_t>(bits >> 16);
      std::memcpy(to, &top, 2);
    } else {
      *to = static_cast<char>(x);
    }
  }
  return bytes;
}

/// The unit by one thread, then by an owner and a helper that comes and goes, so that sharing
/// begins at any row tile of any block.
void expect_equal_bits(const Case& c, Isa isa, bool always) {
  std::mt19937 random(7);
  std::vector<char> a = random_bytes(c.m * c.k, c.type, &random);
  std::vector<char> b = random_bytes(c.k * c.n, c.type, &random);
  std::vector<float> bias(static_cast<size_t>(c.n), 0.75f), scale(static_cast<size_t>(c.m), 1.5f);
  GemmItem item{.m = c.m, .n = c.n, .k = c.k};
  item.a = {a.data(), c.type, c.k, 1};
  item.b = c.transposed ? MatrixRef{b.data(), c.type, 1, c.k} : MatrixRef{b.data(), c.type, c.n, 1};
  if (c.options) {
    item.bias = {bias.data(), DType::kF32, 1};
    item.row_scale = {scale.data(), DType::kF32, 1};
    item.alpha = 0.5;
  }
  const DType compute = c.type == DType::kI8 ? DType::kI32 : DType::kF32;
  const GemmKernel* kernel = find_kernel(isa, c.type, c.type, compute);
  // Caches so small that a unit of few products has several blocks of columns and of k.
  CacheSizes caches = cache_sizes();
  caches.l2_bytes = 256 << 10;
  caches.l3_bytes = 32 << 20;
  const GemmPlan plan{.kernel = kernel, .blocking = make_blocking(*kernel, caches), .threads = 2};
  const PackedLayout layout = make_packed_layout(*kernel, plan.blocking, c.k, c.n);
  std::vector<char> panels(static_cast<size_t>(layout.size_bytes()));
  for (int64_t block = 0; block < layout.blocks(); ++block)
    for (int64_t panel = 0; panel < layout.panels(); ++panel)
      pack_panel(layout, item.b, block, panel, panels.data());
  const PackedMatrix packed{layout, panels.data()};

  const auto out_bytes = static_cast<size_t>(c.m * c.n) * size_of(c.out);
  std::vector<char> alone(out_bytes, 0x55), together(out_bytes, 0x2a);
  const WorkUnit unit{.item = &item,
                      .m_begin = 0,
                      .m_end = c.m,
                      .n_begin = 0,
                      .n_end = c.n,
                      .packed = c.packed ? &packed : nullptr,
                      .resident = false};
  item.d = {alone.data(), c.out, c.n, 1};
  ASSERT_TRUE(multiply_unit(unit, plan, nullptr));

  item.d.data = together.data();
  IdleThreads idle;
  idle.count = always ? 1 : 0;
  SharedBlock shared(idle);
  std::atomic<bool> over{false};
  std::thread helper([&] {
    std::uniform_int_distribution<int> microseconds(0, 300);
    while (!over) {
      std::this_thread::sleep_for(std::chrono::microseconds(microseconds(random)));
      idle.count = 1;
      const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(100);
      while (!over && std::chrono::steady_clock::now() < until) help_with_unit(unit, plan, &shared);
      idle.count = always ? 1 : 0;
    }
  });
  const bool done = multiply_unit(unit, plan, &shared);
  over = true;
  helper.join();
  ASSERT_TRUE(done);
  EXPECT_EQ(alone, together);
  if (always) {
    EXPECT_GT(shared.work().tiles, 0) << "nothing was shared";
  }
}

TEST(CpuSharedBlock, GivesTheBitsOfOneThread) {
  const Case cases[] = {
      {DType::kF32, DType::kF32, 200, 517, 1100, true, false, false},
      {DType::kF32, DType::kF32, 200, 512, 1100, false, false, false},
      {DType::kF32, DType::kF32, 200, 640, 96, true, false, false},  // one block of k
      {DType::kF32, DType::kF32, 200, 517, 1100, true, true, false},
      {DType::kF32, DType::kF32, 200, 517, 1100, true, true, true},
      {DType::kBF16, DType::kBF16, 200, 525, 2300, true, false, false},
      {DType::kBF16, DType::kBF16, 200, 1037, 300, false, true, true},
      {DType::kI8, DType::kI32, 200, 525, 4500, true, false, false},
      {DType::kI8, DType::kI32, 200, 525, 4500, false, false, true},
  };
  constexpr int64_t longest_scalar_k = tests::kSanitized ? 300 : 1100;
  for (const Isa isa : available_isas()) {
    for (const Case& c : cases) {
      SCOPED_TRACE(std::string(name_of(isa)) + ", case " + std::to_string(&c - cases));
      if (isa == Isa::kScalar && c.k > longest_scalar_k) continue;  // that would take its time
      for (const bool always : {true, false}) expect_equal_bits(c, isa, always);
    }
  }
}

}  // namespace
}  // namespace cadre::cpu
