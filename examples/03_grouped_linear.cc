// One training step of a layer of experts: forward, backward, and the weight gradient added to an
// f32 main_grad later, one buffer for each expert.
#include <cadre/cadre.h>

#include <cstdio>
#include <vector>

namespace {

constexpr int64_t kRows = 10, kIn = 8, kOut = 6, kExperts = 3;

cadre::TensorView view(const std::vector<float>& data, std::initializer_list<int64_t> shape) {
  return cadre::TensorView::contiguous(data.data(), cadre::DType::kF32, shape);
}

bool failed(const char* what, const cadre::Status& status) {
  if (!status.ok()) std::fprintf(stderr, "%s: %s\n", what, status.message().c_str());
  return !status.ok();
}

}  // namespace

int main() {
  // 9 of 10 rows belong to an expert; the last one is padding and comes out as zero.
  const std::vector<int64_t> splits = {4, 0, 5};
  const std::vector<float> x(kRows * kIn, 1.0f), dy(kRows * kOut, 1.0f);
  const std::vector<float> weight(kExperts * kOut * kIn, 0.25f), bias(kExperts * kOut, 1.0f);
  std::vector<float> y(kRows * kOut), dx(kRows * kIn), dbias(kExperts * kOut);
  std::vector<std::vector<float>> main_grad(kExperts, std::vector<float>(kOut * kIn, 100.0f));
  std::vector<void*> main_grad_pointers;
  for (std::vector<float>& buffer : main_grad) main_grad_pointers.push_back(buffer.data());

  cadre::Context context;
  cadre::GroupedLinear layer({.weight = view(weight, {kExperts, kOut, kIn}),
                              .bias = cadre::GroupedTensor::vectors(view(bias, {kExperts, kOut}))},
                             {.delay_wgrad = true, .accumulate_into_main_grad = true});

  cadre::GroupedLinearSaved saved;
  if (failed("forward", layer.forward(context,
                                      {.x = view(x, {kRows, kIn}),
                                       .splits = {splits.data(), cadre::DType::kI64, kExperts},
                                       .y = view(y, {kRows, kOut})},
                                      &saved))) {
    return 1;
  }
  const cadre::GroupedLinearBackwardArgs gradients{
      .dy = view(dy, {kRows, kOut}),
      .dx = view(dx, {kRows, kIn}),
      .main_grad = cadre::GroupedTensor::list(
          main_grad_pointers.data(), kExperts,
          cadre::TensorView::contiguous(nullptr, cadre::DType::kF32, {kOut, kIn})),
      .dbias = cadre::GroupedTensor::vectors(view(dbias, {kExperts, kOut}))};
  if (failed("backward", layer.backward(context, saved, gradients))) return 1;
  if (failed("backward_dw", layer.backward_dw(context))) return 1;

  // y = 8 * 0.25 + 1; dx = 6 * 0.25; each expert's gradient counts its rows.
  const bool right = y[0] == 3.0f && y[9 * kOut] == 0.0f && dx[0] == 1.5f && dx[9 * kIn] == 0.0f &&
                     main_grad[0][0] == 104.0f && main_grad[1][0] == 100.0f &&
                     main_grad[2][0] == 105.0f && dbias[0] == 4.0f && dbias[kOut] == 0.0f;
  std::printf("%s\n", right ? "forward and backward agree with the sums by hand" : "wrong");
  return right ? 0 : 1;
}
