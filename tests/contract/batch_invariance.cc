// The same row, or the same group, in other company: every bit must stay the same.
#include <numeric>

#include "core/text.h"
#include "plan/context_state.h"
#include "tests/contract/contract.h"
#include "verify/placed_tensor.h"

namespace cadre::contract {
namespace {

using verify::MatrixShape;
using verify::PlacedTensor;
using verify::Random;
using Bits = std::vector<std::byte>;

// Deep enough for several blocks of k, with matrices that keep the alignment of their neighbours.
constexpr int64_t kDepth = 704;
constexpr int64_t kCols = 96;
constexpr int64_t kRows = 29;
constexpr uint64_t kSharedSeed = 21;

double random_value(DType dtype, Random& random) {
  return dtype == DType::kI8 ? static_cast<double>(random.between(-128, 127))
                             : random.uniform(-1, 1);
}

/// Where the rows that are compared stand: among the rows of these groups.
struct Company {
  const char* name;
  std::vector<int64_t> sizes;
  int64_t tail;
  int64_t first_row;  ///< of the compared rows, or of the compared group
  int64_t step;       ///< from one compared row to the next
  int64_t group_offset = 0;
  int64_t num_local = -1;
  int32_t num_threads = 0;

  int64_t m() const { return std::accumulate(sizes.begin(), sizes.end(), tail); }
  int64_t local() const { return num_local < 0 ? static_cast<int64_t>(sizes.size()) : num_local; }
};

/// The subject's backend and instruction set, with another number of threads.
Context context_like(const Subject& subject, int32_t num_threads) {
  const detail::ContextState& state = subject.context.state();
  ContextOptions options;
  options.backend = state.backend;
  options.isa = state.isa;
  options.num_threads = num_threads == 0 ? state.num_threads : num_threads;
  return Context(options);
}

PlacedTensor rows_tensor(const Subject& subject, DType dtype, int64_t rows, int64_t cols,
                         Random& random) {
  return PlacedTensor(subject.memory, verify::host_memory(), dtype, {MatrixShape{rows, cols}},
                      {0, 0}, {.form = Placement::kRows}, random);
}

/// Fills everything with values of its own, then the compared rows with the shared ones.
void fill_rows(PlacedTensor& tensor, const Company& company, uint64_t seed) {
  Random others(seed + static_cast<uint64_t>(company.m()));
  Random shared(seed);
  const MatrixShape shape = tensor.shapes()[0];
  for (int64_t row = 0; row < shape.rows; ++row) {
    for (int64_t col = 0; col < shape.cols; ++col) {
      tensor.set(0, row, col, random_value(tensor.dtype(), others));
    }
  }
  for (int64_t i = 0; i < kRows; ++i) {
    for (int64_t col = 0; col < shape.cols; ++col) {
      tensor.set(0, company.first_row + i * company.step, col,
                 random_value(tensor.dtype(), shared));
    }
  }
}

void append(Bits* bits, const Bits& more) { bits->insert(bits->end(), more.begin(), more.end()); }

/// The compared rows of gmm, whose groups all have the same weights.
Status gmm_bits(const Subject& subject, const DTypes& types, const Company& company, Bits* bits) {
  Random random(1);
  PlacedTensor lhs = rows_tensor(subject, types.lhs, company.m(), kDepth, random);
  fill_rows(lhs, company, kSharedSeed);
  PlacedTensor rhs(subject.memory, verify::host_memory(), types.rhs,
                   std::vector(static_cast<size_t>(company.local()), MatrixShape{kDepth, kCols}),
                   {kDepth, kCols}, {.form = Placement::kStacked}, random);
  for (int64_t group = 0; group < company.local(); ++group) {
    Random weights(kSharedSeed + 1);
    for (int64_t i = 0; i < kDepth; ++i) {
      for (int64_t j = 0; j < kCols; ++j) {
        rhs.set(group, i, j, random_value(types.rhs, weights));
      }
    }
  }
  PlacedTensor out = rows_tensor(subject, types.out, company.m(), kCols, random);
  for (PlacedTensor* tensor : {&lhs, &rhs, &out}) tensor->upload();
  GmmArgs args;
  args.lhs = lhs.matrix_view();
  args.rhs = rhs.tensor();
  args.out = out.tensor();
  args.group_sizes =
      GroupSizes(company.sizes.data(), DType::kI64, static_cast<int64_t>(company.sizes.size()));
  args.group_offset = company.group_offset;
  Context context = context_like(subject, company.num_threads);
  if (Status status = cadre::gmm(context, args); !status.ok()) return status;
  if (Status status = subject.memory.finish(context); !status.ok()) return status;
  out.download();
  for (int64_t i = 0; i < kRows; ++i) {
    for (int64_t j = 0; j < kCols; ++j) {
      append(bits, out.bytes_after(0, company.first_row + i * company.step, j));
    }
  }
  return {};
}

/// The gradient of the group whose rows are the compared ones.
Status tgmm_bits(const Subject& subject, const DTypes& types, const Company& company, Bits* bits) {
  Random random(1);
  PlacedTensor lhs = rows_tensor(subject, types.lhs, company.m(), kCols, random);
  fill_rows(lhs, company, kSharedSeed);
  PlacedTensor rhs = rows_tensor(subject, types.rhs, company.m(), kCols + 32, random);
  fill_rows(rhs, company, kSharedSeed + 1);
  PlacedTensor out(
      subject.memory, verify::host_memory(), types.out,
      std::vector(static_cast<size_t>(company.local()), MatrixShape{kCols, kCols + 32}),
      {kCols, kCols + 32}, {.form = Placement::kStacked}, random);
  for (PlacedTensor* tensor : {&lhs, &rhs, &out}) tensor->upload();
  TgmmArgs args;
  args.lhs = lhs.matrix_view();
  args.rhs = rhs.matrix_view();
  args.out = out.tensor();
  args.group_sizes =
      GroupSizes(company.sizes.data(), DType::kI64, static_cast<int64_t>(company.sizes.size()));
  args.group_offset = company.group_offset;
  Context context = context_like(subject, company.num_threads);
  if (Status status = cadre::tgmm(context, args); !status.ok()) return status;
  if (Status status = subject.memory.finish(context); !status.ok()) return status;
  out.download();
  int64_t group = 0;
  for (int64_t row = 0; row < company.first_row; ++group) {
    row += company.sizes[static_cast<size_t>(group)];
  }
  while (company.sizes[static_cast<size_t>(group)] == 0) ++group;
  for (int64_t i = 0; i < kCols; ++i) {
    for (int64_t j = 0; j < kCols + 32; ++j) {
      append(bits, out.bytes_after(group - company.group_offset, i, j));
    }
  }
  return {};
}

using BitsOf = Status (*)(const Subject&, const DTypes&, const Company&, Bits*);

Failures compare(const Subject& subject, const DTypes& types, BitsOf bits_of,
                 const std::vector<Company>& companies) {
  Failures failures;
  Bits alone;
  for (const Company& company : companies) {
    Bits bits;
    if (const Status status = bits_of(subject, types, company, &bits); !status.ok()) {
      failures.push_back(text(company.name, ": refused: ", status.message()));
    } else if (alone.empty()) {
      alone = bits;
    } else if (bits != alone) {
      failures.push_back(text(company.name, ": other bits than alone"));
    }
  }
  return failures;
}

}  // namespace

Failures gmm_rows_are_batch_invariant(const Subject& subject, const DTypes& types) {
  return compare(subject, types, gmm_bits,
                 {{"alone", {kRows}, 0, 0, 1},
                  {"alone, one thread", {kRows}, 0, 0, 1, 0, -1, 1},
                  {"alone, three threads", {kRows}, 0, 0, 1, 0, -1, 3},
                  {"split over groups", {5, 0, 1, 20, 3}, 6, 0, 1},
                  {"one row a group", std::vector<int64_t>(kRows, 1), 0, 0, 1},
                  {"among many rows", {100, 64, 0, 217}, 0, 9, 13},
                  {"among many rows, three threads", {100, 64, 0, 217}, 0, 9, 13, 0, -1, 3},
                  {"a shard of three", {10, kRows, 7}, 2, 10, 1, 1, 1}});
}

Failures tgmm_groups_are_batch_invariant(const Subject& subject, const DTypes& types) {
  return compare(subject, types, tgmm_bits,
                 {{"alone", {kRows}, 0, 0, 1},
                  {"alone, one thread", {kRows}, 0, 0, 1, 0, -1, 1},
                  {"first of three", {kRows, 3, 8}, 5, 0, 1},
                  {"behind a large group", {300, 0, kRows}, 1, 300, 1},
                  {"behind a large group, three threads", {300, 0, kRows}, 1, 300, 1, 0, -1, 3},
                  {"a shard of three", {11, kRows, 7}, 2, 11, 1, 1, 1}});
}

}  // namespace cadre::contract
