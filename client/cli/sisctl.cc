// sisctl: talks to a SIS ratio service; compares recordings.
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "client/api/client.h"
#include "client/cli/named_file.h"
#include "client/cli/subcommands.h"
#include "proto/version.h"

namespace sis {
namespace {

// Lists subcommands with their arguments, and those of two words in full.
class Formatter : public CLI::Formatter {
  std::string make_subcommand(const CLI::App* app) const override {
    std::string lines;
    for (const CLI::App* child : app->get_subcommands({})) lines += make_subcommand(child);
    if (!lines.empty()) return lines;
    std::string name = app->get_parent()->get_parent() == nullptr
                           ? app->get_name()
                           : app->get_parent()->get_name() + " " + app->get_name();
    for (const CLI::Option* option : app->get_options()) {
      if (option->get_positional()) name += " " + option->get_name();
    }
    return absl::StrFormat("  %-28s%s\n", name, app->get_description());
  }
};

// A token itself is no option: whoever lists processes would see it.
void AddCredentials(CLI::App& app, Credentials& credentials) {
  app.add_flag("--tls", credentials.tls, "Use TLS; $SIS_TLS=1.");
  app.add_option("--ca", credentials.ca,
                 "File of those whose certificates the service may have; $SIS_CA_FILE.");
  app.add_option("--certificate", credentials.certificate,
                 "File of the own certificate; $SIS_CERTIFICATE_FILE.");
  app.add_option("--key", credentials.key, "File of its key; $SIS_KEY_FILE.");
  app.add_option(
      "--token_file", credentials.token_file,
      "File of the token, -: standard input; $SIS_TOKEN_FILE, or $SIS_TOKEN with the token "
      "itself.");
  app.add_flag("--plaintext_token", credentials.plaintext_token,
               "Send the token to other machines without TLS too; $SIS_PLAINTEXT_TOKEN=1.");
}

ExitStatus Main(int argc, const char* const* argv) {
  CLI::App app("Talks to a SIS ratio service.", "sisctl");
  app.formatter(std::make_shared<Formatter>());
  app.footer(
      "Exit status: 0 done, 1 failed, or a server gave no answer, 2 wrong usage, 3 compare or "
      "diagnose found a fault, or the run that diagnose looks at is not healthy.");
  app.failure_message([](const CLI::App*, const CLI::Error& error) {
    return absl::StrCat("sisctl: ", error.what(), "\nsee sisctl --help\n");
  });
  app.set_help_flag("--help", "Show this, or what a subcommand does.");
  app.set_version_flag("--version", absl::StrCat("sisctl ", kVersion), "Show the version.");
  // Options may stand anywhere; of those given twice the last one counts.
  app.fallthrough();
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  std::string addresses = "localhost:50051";
  app.add_option("--server", addresses,
                 "Host and port of the service; of its replicas, with commas, as workers and "
                 "trainers name them.")
      ->capture_default_str();
  Credentials credentials = Credentials::FromEnvironment();
  AddCredentials(app, credentials);
  app.option_defaults()->always_capture_default();

  Action action;
  LocalAction local_action;
  app.require_subcommand(0, 1);
  AddRuns(app, action);
  AddStep(app, action);
  AddHistory(app, action);
  AddTop(app, action);
  AddSequences(app, action);
  AddShow(app, action);
  AddExport(app, action);
  bool fault_found = false;
  AddDiagnose(app, action, fault_found);
  AddCompare(app, local_action);
  AddCompletion(app, local_action);
  // Not require_subcommand(1), which would hide a misspelt name behind this message.
  app.final_callback([&] {
    if (!action && !local_action) throw CLI::RequiredError("A subcommand");
  });
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {  // how CLI11 reports wrong usage, and --help
    return app.exit(error) == 0 ? ExitStatus::kDone : ExitStatus::kWrongUsage;
  }

  const auto failed = [](const absl::Status& status) {
    std::cerr << "sisctl: " << status.message() << " (" << absl::StatusCodeToString(status.code())
              << ")\n";
    return ExitStatus::kFailed;
  };
  if (local_action) {
    const absl::StatusOr<ExitStatus> status = local_action();
    if (!status.ok()) return failed(status.status());
    return std::cout.flush() ? *status : ExitStatus::kFailed;
  }

  // What is said here stands in for what the environment says.
  if (app.count("--token_file") > 0) credentials.token.clear();
  if (credentials.token_file == "-") {
    const absl::StatusOr<std::string> text = ReadInput("-");
    credentials.token = text.ok() ? TokenIn(*text) : "";
    if (credentials.token.empty()) {
      return failed(absl::InvalidArgumentError(
          "credentials: standard input holds no token, which is visible ASCII"));
    }
    credentials.token_file.clear();
  }
  std::vector<std::string> replicas = absl::StrSplit(addresses, ',', absl::SkipEmpty());
  const absl::StatusOr<std::unique_ptr<Client>> client =
      Client::Connect(replicas, {.connect_timeout = absl::Seconds(3), .credentials = credentials});
  if (!client.ok()) return failed(client.status());
  const absl::Status status = action(**client);
  if (!status.ok()) return failed(status);
  if (!std::cout.flush()) return ExitStatus::kFailed;
  return fault_found ? ExitStatus::kFaultFound : ExitStatus::kDone;
}

}  // namespace
}  // namespace sis

int main(int argc, char** argv) { return static_cast<int>(sis::Main(argc, argv)); }
