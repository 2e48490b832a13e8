#include <iostream>
#include <memory>
#include <string>

#include "client/cli/json_output.h"
#include "client/cli/options.h"
#include "client/cli/subcommands.h"

namespace sis {
namespace {

struct Options {
  RunRef run;
  bool json = false;
};

absl::Status DeleteRun(Client& client, const Options& options) {
  const absl::StatusOr<bool> deleted = client.DeleteRun(options.run);
  if (!deleted.ok()) return deleted.status();
  if (options.json) {
    v1::DeleteRunResponse response;
    response.set_deleted(*deleted);
    return PrintJson(response);
  }
  std::cout << "run " << options.run.run_id << (*deleted ? ", deleted\n" : ", was not there\n");
  return absl::OkStatus();
}

}  // namespace

void AddRunsDelete(CLI::App& runs, Action& action) {
  CLI::App& app = *runs.add_subcommand("delete", "Forget a run with all that is held of it.");
  app.footer("Idempotent. With several replicas all must answer.");
  const auto options = std::make_shared<Options>();
  app.add_option("RUN", options->run.run_id, "Its id.")->required();
  AddInteger(app, "--incarnation", options->run.incarnation,
             "Only this one; 0: whichever is present.");
  AddJson(app, options->json);
  app.callback([options, &action] {
    action = [options](Client& client) { return DeleteRun(client, *options); };
  });
}

}  // namespace sis
