#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/cli/asked_servers.h"
#include "client/cli/json_output.h"
#include "client/cli/number_text.h"
#include "client/cli/options.h"
#include "client/cli/subcommands.h"
#include "client/cli/table.h"
#include "client/cli/token_means.h"

namespace sis {
namespace {

std::vector<Cell> RowOf(const v1::GetHistoryResponse::Stretch& stretch) {
  const TokenMeans means = MeansOf(stretch.totals());
  const std::string last = absl::StrCat(stretch.last_draw());
  const absl::Time ended = absl::UnixEpoch() + absl::Seconds(stretch.ended_at());
  return {{"DRAW",
           stretch.draws() == 1 ? last : absl::StrCat(stretch.first_draw(), "-", last),
           {.width = 12, .left = true}},
          {"TIME",
           absl::FormatTime("%m-%d %H:%M", ended, absl::LocalTimeZone()),
           {.width = 11, .left = true, .goes = 1}},
          {"ACCEPT", ShareText(means.accept_rate), {.width = 8}},
          {"D/TOKEN", NumberText(means.d), {.width = 8}},
          {"D_SIS", NumberText(means.d_sis), {.width = 8, .goes = 2}},
          {"RESIDUAL", ShareText(means.residual_mass), {.width = 8, .goes = 3}},
          {"MISSING", ShareText(means.missing), {.width = 8}},
          {"TOKENS", CountText(means.tokens), {.width = 8, .goes = 4}}};
}

struct Options {
  std::string run_id;
  bool json = false;
};

absl::Status GetHistory(Client& client, const Options& options) {
  const absl::StatusOr<v1::GetHistoryResponse> history = client.GetHistory({options.run_id});
  if (!history.ok()) return history.status();
  if (options.json) return PrintJson(*history);
  Table table(RowOf({}));
  for (const auto& stretch : history->stretches()) table.AddRow(RowOf(stretch));
  table.Print();
  return absl::OkStatus();
}

}  // namespace

void AddHistory(CLI::App& sisctl, Action& action) {
  CLI::App& app = *sisctl.add_subcommand(
      "history", "Show all draws of a run since it was opened, older ones together.");
  app.footer(
      "The last draws have a row each; older ones share rows, with the sums of all of them, so\n"
      "rates and means are exact. The time is that of a row's last evaluation.");
  const auto options = std::make_shared<Options>();
  app.add_option("RUN", options->run_id, "The run's id.")->required();
  AddJson(app, options->json);
  app.callback([options, &action] {
    action = [options](Client& client) {
      return FromEveryServer(client, GetHistory(client, *options));
    };
  });
}

}  // namespace sis
