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
// The reference has no blocks: there this is deep enough, and takes a tenth of the time.
constexpr int64_t kShallow = 64;
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
  int64_t rows = kRows;   ///< compared ones
  bool repeated = false;  ///< the compared rows all hold the same values, those of `alone`

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
  options.sm_count = state.sm_count;
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
  for (int64_t i = 0; i < company.rows; ++i) {
    if (company.repeated) shared = Random(seed);
    for (int64_t col = 0; col < shape.cols; ++col) {
      tensor.set(0, company.first_row + i * company.step, col,
                 random_value(tensor.dtype(), shared));
    }
  }
}

void append(Bits* bits, const Bits& more) { bits->insert(bits->end(), more.begin(), more.end()); }

/// The inner and the outer dimension of gmm; the two dimensions of tgmm's output.
struct Dims {
  int64_t k;
  int64_t n;
};

/// The compared rows of gmm, whose groups all have the same weights.
Status gmm_bits(const Subject& subject, const DTypes& types, const Dims& dims,
                const Company& company, Bits* bits) {
  const auto [depth, cols] = dims;
  Random random(1);
  PlacedTensor lhs = rows_tensor(subject, types.lhs, company.m(), depth, random);
  fill_rows(lhs, company, kSharedSeed);
  PlacedTensor rhs(subject.memory, verify::host_memory(), types.rhs,
                   std::vector(static_cast<size_t>(company.local()), MatrixShape{depth, cols}),
                   {depth, cols}, {.form = Placement::kStacked}, random);
  for (int64_t group = 0; group < company.local(); ++group) {
    Random weights(kSharedSeed + 1);
    for (int64_t i = 0; i < depth; ++i) {
      for (int64_t j = 0; j < cols; ++j) {
        rhs.set(group, i, j, random_value(types.rhs, weights));
      }
    }
  }
  PlacedTensor out = rows_tensor(subject, types.out, company.m(), cols, random);
  for (PlacedTensor* tensor : {&lhs, &rhs, &out}) tensor->upload();
  GmmArgs args;
  args.lhs = lhs.matrix_view();
  args.rhs = rhs.tensor();
  args.out = out.tensor();
  args.group_sizes =
      GroupSizes(company.sizes.data(), DType::kI64, static_cast<int64_t>(company.sizes.size()));
  args.group_offset = company.group_offset;
  if (!subject.kernel.empty()) args.options.config = subject.kernel.c_str();
  Context context = context_like(subject, company.num_threads);
  if (Status status = cadre::gmm(context, args); !status.ok()) return status;
  if (Status status = subject.memory.finish(context); !status.ok()) return status;
  out.download();
  for (int64_t i = 0; i < company.rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) {
      append(bits, out.bytes_after(0, company.first_row + i * company.step, j));
    }
  }
  return {};
}

/// The gradient of the group whose rows are the compared ones.
Status tgmm_bits(const Subject& subject, const DTypes& types, const Dims& dims,
                 const Company& company, Bits* bits) {
  const auto [k, n] = dims;
  Random random(1);
  PlacedTensor lhs = rows_tensor(subject, types.lhs, company.m(), k, random);
  fill_rows(lhs, company, kSharedSeed);
  PlacedTensor rhs = rows_tensor(subject, types.rhs, company.m(), n, random);
  fill_rows(rhs, company, kSharedSeed + 1);
  PlacedTensor out(subject.memory, verify::host_memory(), types.out,
                   std::vector(static_cast<size_t>(company.local()), MatrixShape{k, n}), {k, n},
                   {.form = Placement::kStacked}, random);
  for (PlacedTensor* tensor : {&lhs, &rhs, &out}) tensor->upload();
  TgmmArgs args;
  args.lhs = lhs.matrix_view();
  args.rhs = rhs.matrix_view();
  args.out = out.tensor();
  args.group_sizes =
      GroupSizes(company.sizes.data(), DType::kI64, static_cast<int64_t>(company.sizes.size()));
  args.group_offset = company.group_offset;
  if (!subject.kernel.empty()) args.options.config = subject.kernel.c_str();
  Context context = context_like(subject, company.num_threads);
  if (Status status = cadre::tgmm(context, args); !status.ok()) return status;
  if (Status status = subject.memory.finish(context); !status.ok()) return status;
  out.download();
  int64_t group = 0;
  for (int64_t row = 0; row < company.first_row; ++group) {
    row += company.sizes[static_cast<size_t>(group)];
  }
  while (company.sizes[static_cast<size_t>(group)] == 0) ++group;
  for (int64_t i = 0; i < k; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      append(bits, out.bytes_after(group - company.group_offset, i, j));
    }
  }
  return {};
}

using BitsOf = Status (*)(const Subject&, const DTypes&, const Dims&, const Company&, Bits*);

Bits repeated(const Bits& bits, int64_t times) {
  Bits all;
  for (int64_t i = 0; i < times; ++i) append(&all, bits);
  return all;
}

Failures compare(const Subject& subject, const DTypes& types, const Dims& dims, BitsOf bits_of,
                 const std::vector<Company>& companies) {
  Failures failures;
  Bits alone;
  for (const Company& company : companies) {
    Bits bits;
    if (const Status status = bits_of(subject, types, dims, company, &bits); !status.ok()) {
      failures.push_back(text(company.name, ": refused: ", status.message()));
    } else if (alone.empty()) {
      alone = bits;
    } else if (bits != (company.repeated ? repeated(alone, company.rows) : alone)) {
      failures.push_back(text(company.name, ": other bits than alone"));
    }
  }
  return failures;
}

bool has_blocks(const Subject& subject) { return subject.context.state().backend != "reference"; }

// Large, without and with one row.
const std::vector<int64_t> kSizesOf4096 = {3000, 0, 1, 1095};

}  // namespace

Failures gmm_row_of_one_and_of_4096(const Subject& subject, const DTypes& types) {
  // The order over k is a matter of the kernel, and kernels of mixed types add up like those of
  // equal ones: only these are deep.
  const bool deep = has_blocks(subject) && types.lhs == types.rhs;
  const Dims dims{.k = deep ? kDepth : kShallow, .n = 32};
  Company one{"m = 1", {1}, 0, 0, 1};
  one.rows = 1;
  Company many{"m = 4096", kSizesOf4096, 0, 0, 40};  // row 3000, the group of one row, among them
  many.rows = 4096 / 40 + 1;
  many.repeated = true;
  return compare(subject, types, dims, gmm_bits, {one, many});
}

Failures tgmm_group_of_one_row_and_of_4096(const Subject& subject, const DTypes& types) {
  Company one{"m = 1", {1}, 0, 0, 1};
  one.rows = 1;
  Company many{"m = 4096", kSizesOf4096, 0, 3000, 1};
  many.rows = 1;
  return compare(subject, types, {.k = 32, .n = 64}, tgmm_bits, {one, many});
}

Failures gmm_rows_are_batch_invariant(const Subject& subject, const DTypes& types) {
  return compare(subject, types, {.k = has_blocks(subject) ? kDepth : kShallow, .n = 96}, gmm_bits,
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
  return compare(subject, types, {.k = 96, .n = 128}, tgmm_bits,
                 {{"alone", {kRows}, 0, 0, 1},
                  {"alone, one thread", {kRows}, 0, 0, 1, 0, -1, 1},
                  {"first of three", {kRows, 3, 8}, 5, 0, 1},
                  {"behind a large group", {300, 0, kRows}, 1, 300, 1},
                  {"behind a large group, three threads", {300, 0, kRows}, 1, 300, 1, 0, -1, 3},
                  {"a shard of three", {11, kRows, 7}, 2, 11, 1, 1, 1}});
}

}  // namespace cadre::contract
