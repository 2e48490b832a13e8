#include <iostream>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "client/cli/json_output.h"
#include "client/cli/options.h"
#include "client/cli/subcommands.h"
#include "client/cli/unanswered.h"

namespace sis {
namespace {

template <typename T>
void PrintRow(absl::string_view name, const T& value) {
  std::cout << absl::StreamFormat("%-22s ", name) << value << '\n';
}

struct Options {
  std::string run_id;
  bool json = false;
};

absl::Status GetRun(Client& client, const Options& options) {
  const absl::StatusOr<v1::Run> run = client.GetRun(options.run_id);
  if (!run.ok()) return run.status();
  if (options.json) return PrintJson(*run);
  const v1::RunConfig& config = run->config();
  PrintRow("run", run->run_id());
  PrintRow("incarnation", run->incarnation());
  PrintRow("seed", config.seed());
  PrintRow("vocabulary size", config.vocabulary_size());
  PrintRow("top-K", config.top_k());
  PrintRow("time to live (s)", config.time_to_live_seconds());
  if (config.has_max_staleness()) PrintRow("maximum staleness", config.max_staleness());
  PrintRow("byte quota", config.byte_quota());
  PrintRow("evicts unread", config.evict_unread() ? "yes" : "no");
  PrintRow("log-prob encoding",
           absl::AsciiStrToLower(v1::LogProbEncoding_Name(config.log_prob_encoding())));
  PrintRow("task", config.task());
  PrintRow("algorithm", config.algorithm());
  PrintRow("model", config.model());
  if (!config.owner().empty()) PrintRow("owner", config.owner());
  PrintRow("policy version", run->policy_version());
  PrintRow("sequences", run->sequences());
  PrintRow("sealed sequences", run->sealed_sequences());
  PrintRow("unread sequences", run->unread_sequences());
  PrintRow("positions", run->positions());
  PrintRow("bytes", run->bytes());
  PrintRow("leases", run->leases());
  if (run->has_last_draw()) PrintRow("last draw", run->last_draw());
  return absl::OkStatus();
}

}  // namespace

void AddRunsGet(CLI::App& runs, Action& action) {
  CLI::App& app = *runs.add_subcommand("get", "Show one run.");
  const auto options = std::make_shared<Options>();
  app.add_option("RUN", options->run_id, "Its id.")->required();
  AddJson(app, options->json);
  app.callback([options, &action] {
    action = [options](Client& client) {
      return FromEveryServer(client, GetRun(client, *options));
    };
  });
}

}  // namespace sis
