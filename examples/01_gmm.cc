#include <cadre/cadre.h>

#include <cstdio>
#include <vector>

int main() {
  using cadre::DType, cadre::TensorView;
  // 6 tokens sorted by expert: two for expert 0, none for expert 1, four for expert 2.
  const std::vector<int32_t> group_sizes = {2, 0, 4};
  const std::vector<float> tokens(24, 0.5f), weights(60, 2.0f);  // [6, 4] and [3, 4, 5]
  std::vector<float> out(30);                                    // [6, 5]
  cadre::Context context;
  const cadre::Status status =
      cadre::gmm(context, {.lhs = TensorView::contiguous(tokens.data(), DType::kF32, {6, 4}),
                           .rhs = TensorView::contiguous(weights.data(), DType::kF32, {3, 4, 5}),
                           .group_sizes = {group_sizes.data(), DType::kI32, 3},
                           .out = TensorView::contiguous(out.data(), DType::kF32, {6, 5})});
  if (!status.ok()) std::printf("%s\n", status.message().c_str());
  std::printf("out[0][0] = %g\n", static_cast<double>(out[0]));
  return status.ok() && out[0] == 4.0f ? 0 : 1;  // 4 * (0.5 * 2)
}
