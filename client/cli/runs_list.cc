#include <iostream>
#include <memory>

#include "absl/strings/str_format.h"
#include "client/cli/json_output.h"
#include "client/cli/options.h"
#include "client/cli/subcommands.h"
#include "client/cli/unanswered.h"

namespace sis {
namespace {

absl::Status ListRuns(Client& client, bool json) {
  const absl::StatusOr<v1::ListRunsResponse> response = client.ListRuns();
  if (!response.ok()) return response.status();
  if (json) return PrintJson(*response);
  constexpr auto kRow = "%-32s %11s %8s %10s %12s %14s %9s  %-16s %s\n";
  std::cout << absl::StreamFormat(kRow, "RUN", "INCARNATION", "VERSION", "SEQUENCES", "POSITIONS",
                                  "BYTES", "LAST DRAW", "OWNER", "TASK");
  for (const v1::Run& run : response->runs()) {
    std::cout << absl::StreamFormat(
        kRow, run.run_id(), std::to_string(run.incarnation()), std::to_string(run.policy_version()),
        std::to_string(run.sequences()), std::to_string(run.positions()),
        std::to_string(run.bytes()), run.has_last_draw() ? std::to_string(run.last_draw()) : "-",
        run.config().owner().empty() ? "-" : run.config().owner(), run.config().task());
  }
  return absl::OkStatus();
}

}  // namespace

void AddRunsList(CLI::App& runs, Action& action) {
  CLI::App& app = *runs.add_subcommand("list", "List the runs and what they hold.");
  const auto json = std::make_shared<bool>(false);
  AddJson(app, *json);
  app.callback([json, &action] {
    action = [json](Client& client) { return FromEveryServer(client, ListRuns(client, *json)); };
  });
}

}  // namespace sis
