// Inference with fixed weights on a CPU: they are packed once, and every call uses the copy.
#include <cadre/cadre.h>

#include <cstdio>
#include <vector>

namespace {

constexpr int64_t kExperts = 4, kIn = 256, kOut = 96;

int fail(const cadre::Status& status) {
  std::printf("%s\n", status.message().c_str());
  return 1;
}

}  // namespace

int main() {
  using cadre::DType, cadre::TensorView;
  std::vector<float> weights(kExperts * kIn * kOut);  // [4, 256, 96]
  for (size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<float>(i % 17) - 8.0f;
  const TensorView rhs = TensorView::contiguous(weights.data(), DType::kF32, {kExperts, kIn, kOut});

  // When the model is loaded. The copy is for this machine's kernels; `kernel` names the one.
  cadre::Context context;
  cadre::PackedWeights packed;
  if (const auto status = cadre::pack_weights(context, {.rhs = rhs}, &packed); !status.ok()) {
    return fail(status);
  }
  std::printf("packed %zu bytes for %.*s\n", packed.size_bytes(),
              static_cast<int>(packed.kernel().size()), packed.kernel().data());

  // For every batch, whatever its rows. rhs still describes the weights.
  const std::vector<std::vector<int64_t>> batches = {{1, 0, 2, 1}, {64, 3, 0, 120}};
  for (const std::vector<int64_t>& group_sizes : batches) {
    int64_t rows = 0;
    for (const int64_t size : group_sizes) rows += size;
    std::vector<float> tokens(static_cast<size_t>(rows * kIn));
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<float>(i % 11) / 4.0f;
    std::vector<float> out(static_cast<size_t>(rows * kOut)), unpacked_out(out.size());
    cadre::GmmArgs args;
    args.lhs = TensorView::contiguous(tokens.data(), DType::kF32, {rows, kIn});
    args.rhs = rhs;
    args.group_sizes = {group_sizes.data(), DType::kI64, kExperts};
    args.out = TensorView::contiguous(out.data(), DType::kF32, {rows, kOut});
    args.packed_rhs = &packed;
    if (const auto status = cadre::gmm(context, args); !status.ok()) return fail(status);

    args.out = TensorView::contiguous(unpacked_out.data(), DType::kF32, {rows, kOut});
    args.packed_rhs = nullptr;
    if (const auto status = cadre::gmm(context, args); !status.ok()) return fail(status);
    if (out != unpacked_out) return 1;  // never: the bits are the same
    std::printf("%3lld rows: out[0][0] = %g, as without packing\n", static_cast<long long>(rows),
                static_cast<double>(out[0]));
  }
  return 0;
}
