// The command line tool: parses, runs one subcommand, returns its exit code.
#include <fmt/core.h>

#include <algorithm>
#include <exception>

#include "cadre/version.h"
#include "command.h"

namespace {

int run(int argc, char** argv) {
  CLI::App app{"cadre: grouped matrix multiplication for mixture-of-experts models"};
  app.name("cadre");
  app.require_subcommand(1);
  app.set_version_flag("--version", cadre::version());
  app.footer(std::string("Examples:\n"
                         "  cadre demo\n"
                         "  cadre verify --cases 10000\n"
                         "  cadre info --json\n"
                         "  cadre explain --m 4096 --k 2048 --n 1536 --groups 8 --dtype bf16\n\n") +
             std::string(cadre::cli::kExitCodes));

  int exit_code = cadre::cli::kOk;
  cadre::cli::add_info(app, &exit_code);
  cadre::cli::add_demo(app, &exit_code);
  cadre::cli::add_verify(app, &exit_code);
  cadre::cli::add_explain(app, &exit_code);
  cadre::cli::add_schedule(app, &exit_code);
  cadre::cli::add_bench(app, &exit_code);
  cadre::cli::add_tune(app, &exit_code);
  const auto known = app.get_subcommands([](const CLI::App*) { return true; });
  const auto is_named = [argv](const CLI::App* command) { return command->get_name() == argv[1]; };
  if (argc > 1 && argv[1][0] != '-' && std::none_of(known.begin(), known.end(), is_named)) {
    fmt::print(stderr, "cadre: unknown command \"{}\"\nRun with --help for more information.\n",
               argv[1]);
    return cadre::cli::kUsage;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // Help and version end here too, with code 0.
    return app.exit(error) == 0 ? cadre::cli::kOk : cadre::cli::kUsage;
  }
  return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "cadre: internal error: {}\n", error.what());
    return cadre::cli::kInternal;
  }
}
