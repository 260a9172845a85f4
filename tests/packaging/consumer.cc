// A user's program, compiled against an installed or embedded cadre: two groups, one of them empty.
#include <cadre/cadre.h>
#include <cadre/version.h>

#include <cstdint>
#include <cstdio>
#include <cstring>

int main() {
  using cadre::DType;
  using cadre::TensorView;
  const float lhs[2][3] = {{1, 2, 3}, {4, 5, 6}};
  const float rhs[2][3][1] = {{{9}, {9}, {9}}, {{1}, {10}, {100}}};
  const int32_t sizes[2] = {0, 2};
  float out[2][1] = {};

  cadre::GmmArgs args;
  args.lhs = TensorView::contiguous(lhs, DType::kF32, {2, 3});
  args.rhs = TensorView::contiguous(rhs, DType::kF32, {2, 3, 1});
  args.group_sizes = {sizes, DType::kI32, 2};
  args.out = TensorView::contiguous(out, DType::kF32, {2, 1});
  cadre::Context context;
  const cadre::Status status = cadre::gmm(context, args);

  std::printf("cadre %s: %g %g %s\n", cadre::version(), out[0][0], out[1][0],
              status.message().c_str());
  const bool right = status.ok() && out[0][0] == 321.0f && out[1][0] == 654.0f;
  return right && std::strcmp(cadre::version(), CADRE_VERSION_STRING) == 0 ? 0 : 1;
}
