/* A user's C11 program against the installed header: a product, and an error that says what is
 * wrong. */
#include <cadre/c_api.h>
#include <cadre/version.h>
#include <stdio.h>
#include <string.h>

static int fail(const char* what) {
  fprintf(stderr, "%s: '%s'\n", what, cadre_status_message());
  return 1;
}

int main(void) {
  float lhs[2][3] = {{1, 2, 3}, {4, 5, 6}};
  float rhs[2][3][1] = {{{9}, {9}, {9}}, {{1}, {10}, {100}}};
  const int32_t sizes[2] = {0, 2};
  float out[2] = {0, 0};
  const cadre_device cpu = {CADRE_CPU, 0};
  const int64_t lhs_shape[2] = {2, 3}, rhs_shape[3] = {2, 3, 1}, out_shape[2] = {2, 1};
  const int64_t short_shape[3] = {2, 2, 1};

  const cadre_tensor lhs_view = cadre_tensor_contiguous(lhs, CADRE_F32, 2, lhs_shape, cpu);
  const cadre_tensor rhs_view = cadre_tensor_contiguous(rhs, CADRE_F32, 3, rhs_shape, cpu);
  const cadre_tensor out_view = cadre_tensor_contiguous(out, CADRE_F32, 2, out_shape, cpu);
  const cadre_tensor short_view = cadre_tensor_contiguous(rhs, CADRE_F32, 3, short_shape, cpu);
  cadre_grouped_tensor weights = cadre_grouped_from_tensor(&rhs_view);
  const cadre_grouped_tensor result = cadre_grouped_from_tensor(&out_view);

  cadre_gmm_args args;
  cadre_gmm_args_init(&args, sizeof args);
  args.lhs = &lhs_view;
  args.rhs = &weights;
  args.group_sizes = (cadre_sizes){.data = sizes, .dtype = CADRE_I32, .device = cpu, .count = 2};
  args.out = &result;

  cadre_context* context = NULL;
  if (cadre_context_create(NULL, &context) != CADRE_OK) return fail("cadre_context_create");
  if (cadre_gmm(context, &args) != CADRE_OK) return fail("cadre_gmm");
  if (out[0] != 321.0f || out[1] != 654.0f) return fail("cadre_gmm: wrong result");

  weights = cadre_grouped_from_tensor(&short_view);
  if (cadre_gmm(context, &args) != CADRE_INVALID) return fail("k mismatch accepted");
  if (strstr(cadre_status_message(), "rhs.k = 2, expected lhs.k = 3") == NULL)
    return fail("message");
  cadre_context_destroy(context);

  if (strcmp(cadre_version(), CADRE_VERSION_STRING) != 0) return fail("version");
  printf("cadre %s: %g %g\n", cadre_version(), out[0], out[1]);
  return 0;
}
