// cadre explain: which kernel a problem gets, and why each other one refused.
#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "backend/explain.h"
#include "command.h"
#include "described_problem.h"

namespace cadre::cli {
namespace {

nlohmann::json json_of(const backend::Explanation& result) {
  const plan::Problem& p = result.problem;
  const plan::Config& c = result.config;
  nlohmann::json document = {{"problem",
                              {{"text", to_string(p)},
                               {"op", plan::name_of(p.op)},
                               {"m", p.m},
                               {"k", p.k},
                               {"n", p.n},
                               {"num_groups", p.num_groups},
                               {"num_local_groups", p.num_local_groups},
                               {"average_rows", p.average_rows},
                               {"compute", name_of(p.compute)},
                               {"hash", hash_of(p)}}},
                             {"backend", nullptr},
                             {"config", nullptr},
                             {"tuning", result.tuning},
                             {"workspace_bytes", result.workspace_bytes}};
  if (!result.chosen_backend.empty()) {
    document["backend"] = result.chosen_backend;
    document["config"] = {{"text", to_string(c)}, {"kernel", c.kernel}, {"tile_m", c.tile_m},
                          {"tile_n", c.tile_n},   {"tile_k", c.tile_k}, {"stages", c.stages},
                          {"threads", c.threads}};
  }
  nlohmann::json answers = nlohmann::json::array();
  for (const backend::Answer& answer : result.answers) {
    answers.push_back({{"backend", answer.backend},
                       {"kernel", answer.kernel},
                       {"takes", answer.takes},
                       {"config", answer.config},
                       {"reason", answer.reason}});
  }
  document["kernels"] = answers;
  return document;
}

int run(const ProblemDescription& description, const std::string& backend_name,
        const std::string& kernel, bool json) {
  const Context context(ContextOptions{.backend = backend_name});
  if (!context.status().ok()) return report("explain", context.status());
  plan::Problem problem;
  if (Status status = make_problem(description, &problem); !status.ok()) {
    return report("explain", status);
  }
  const backend::Explanation result =
      backend::explain(context.state(), problem, kernel.empty() ? nullptr : kernel.c_str());
  if (json) {
    print_json(json_of(result));
  } else {
    fmt::print("{}", to_string(result));
  }
  return result.chosen_backend.empty() ? kUnavailable : kOk;
}

void add_problem_options(CLI::App* command, ProblemDescription* d) {
  command->add_option("--op", d->op, "The operation")
      ->check(CLI::IsMember({"gmm", "tgmm", "grouped_gemm", "bias_grad"}))
      ->capture_default_str();
  const CLI::Validator dimension = whole_number(0, 1000000000000);
  command->add_option("--m", d->m, "Rows (tokens) of all groups")->required()->check(dimension);
  command->add_option("--k", d->k, "Inner dimension (not for bias_grad)")->check(dimension);
  command->add_option("--n", d->n, "Outer dimension")->required()->check(dimension);
  command->add_option("--groups", d->num_groups, "Number of groups (experts)")
      ->required()
      ->check(whole_number(0, kMaxGroups));
  command
      ->add_option("--local-groups", d->num_local_groups,
                   "Groups whose weights are here (default: all)")
      ->check(whole_number(0, kMaxGroups));
  command->add_option("--dtype", d->lhs_dtype, "Type of lhs: f64 f32 bf16 f16 i8 e4m3 e5m2")
      ->capture_default_str();
  command->add_option("--rhs-dtype", d->rhs_dtype, "Type of rhs (default: that of lhs)");
  command->add_option("--out-dtype", d->out_dtype, "Type of the result (default: promoted)");
  command->add_flag("--transpose-lhs", d->transpose_lhs, "grouped_gemm: A is stored [k, m]");
  command->add_flag("--transpose-rhs", d->transpose_rhs, "rhs is stored [g, n, k]");
  command->add_flag("--list-rhs", d->list_rhs, "rhs is a list of pointers, one for each group");
  command->add_flag("--list-out", d->list_out, "out is a list of pointers, one for each group");
  command->add_flag("--bias", d->bias, "gmm adds a bias");
  command->add_flag("--row-scale", d->row_scale, "gmm scales every row");
  command->add_flag("--accumulate", d->accumulate, "Add to what the output holds");
  command->add_option("--alpha", d->alpha, "Scale of the product")->capture_default_str();
  command->add_option("--tail", d->tail, "gmm: rows behind the last group")
      ->check(CLI::IsMember({"zero", "untouched", "forbid"}))
      ->capture_default_str();
  command->add_option("--precision", d->precision, "default, or tf32 for f32 operands")
      ->check(CLI::IsMember({"default", "tf32"}))
      ->capture_default_str();
  command->add_option("--average-rows", d->average_rows, "Hint: rows of a typical group")
      ->check(dimension);
  command->add_option("--align", d->alignment_bytes, "Alignment of every base pointer in bytes")
      ->check(CLI::IsMember({1, 2, 4, 8, 16, 32, 64, 128}))
      ->capture_default_str();
  command->add_option("--lhs-row-stride", d->lhs_row_stride, "In elements (default: no gaps)")
      ->check(whole_number(-1000000000000, 1000000000000));
  command
      ->add_option("--lhs-rows", d->lhs_rows,
                   "Rows of lhs; those of the product are taken by index (default: --m)")
      ->check(dimension);
  command->add_option("--device", d->device, "cpu, cuda or cuda:INDEX")->capture_default_str();
  command->add_flag("--device-sizes", d->device_sizes, "Group sizes lie on the device");
}

}  // namespace

void add_explain(CLI::App& app, int* exit_code) {
  struct Options {
    ProblemDescription description;
    std::string backend;
    std::string kernel;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "explain", "Show which kernel a problem gets, and why each other one refuses it");
  add_problem_options(command, &options->description);
  command->add_option("--backend", options->backend, "Ask this backend alone");
  command->add_option("--kernel", options->kernel, "Pin a kernel by name");
  command->add_flag("--json", options->json, "Print one JSON object");
  command->footer(
      "No memory is allocated: any size may be asked about. Exit code 4 when every kernel "
      "refuses.\n"
      "Examples:\n"
      "  cadre explain --m 4096 --k 2048 --n 1536 --groups 8 --dtype bf16\n"
      "  cadre explain --op tgmm --m 4096 --k 2048 --n 1536 --groups 8 --dtype bf16 \\\n"
      "    --out-dtype f32 --accumulate --list-out\n"
      "  cadre explain --m 4096 --k 2048 --n 1536 --groups 8 --device cuda --device-sizes");
  command->callback([options, exit_code] {
    *exit_code = run(options->description, options->backend, options->kernel, options->json);
  });
}

}  // namespace cadre::cli
