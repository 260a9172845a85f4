#include <cadre/c_api.h>
#include <stdio.h>

int main(void) {
  int32_t sizes[3] = {2, 0, 4};
  float tokens[6 * 4], weights[3 * 4 * 5], result[6 * 5];
  for (int i = 0; i < 6 * 4; ++i) tokens[i] = 0.5f;
  for (int i = 0; i < 3 * 4 * 5; ++i) weights[i] = 2.0f;

  const cadre_device cpu = {CADRE_CPU, 0};
  const cadre_tensor lhs = cadre_tensor_contiguous(tokens, CADRE_F32, 2, (int64_t[]){6, 4}, cpu);
  const cadre_tensor w = cadre_tensor_contiguous(weights, CADRE_F32, 3, (int64_t[]){3, 4, 5}, cpu);
  const cadre_tensor y = cadre_tensor_contiguous(result, CADRE_F32, 2, (int64_t[]){6, 5}, cpu);
  const cadre_grouped_tensor rhs = cadre_grouped_from_tensor(&w);
  const cadre_grouped_tensor out = cadre_grouped_from_tensor(&y);

  cadre_context* context = NULL;
  cadre_status_code status = cadre_context_create(NULL, &context);
  cadre_gmm_args args;
  cadre_gmm_args_init(&args, sizeof(args));
  args.lhs = &lhs;
  args.rhs = &rhs;
  args.group_sizes = (cadre_sizes){.data = sizes, .dtype = CADRE_I32, .device = cpu, .count = 3};
  args.out = &out;
  if (status == CADRE_OK) status = cadre_gmm(context, &args);
  if (status != CADRE_OK) fprintf(stderr, "%s\n", cadre_status_message());
  if (status == CADRE_OK) printf("out[0][0] = %g\n", (double)result[0]);
  cadre_context_destroy(context);
  return status == CADRE_OK && result[0] == 4.0f ? 0 : 1;
}
