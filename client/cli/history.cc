#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/cli/json_output.h"
#include "client/cli/number_text.h"
#include "client/cli/options.h"
#include "client/cli/subcommands.h"
#include "client/cli/table.h"
#include "client/cli/token_means.h"
#include "client/cli/unanswered.h"

namespace sis {
namespace {

void Add(const v1::GetHistoryResponse::Stretch& stretch, Table& table) {
  const TokenMeans means = MeansOf(stretch.totals());
  const absl::Time ended = absl::UnixEpoch() + absl::Seconds(stretch.ended_at());
  table.AddRow(
      {{stretch.draws() == 1 ? absl::StrCat(stretch.last_draw())
                             : absl::StrCat(stretch.first_draw(), "-", stretch.last_draw())},
       {absl::FormatTime("%m-%d %H:%M", ended, absl::LocalTimeZone())},
       {ShareText(means.accept_rate)},
       {NumberText(means.d)},
       {NumberText(means.d_sis)},
       {ShareText(means.residual_mass)},
       {ShareText(means.missing)},
       {CountText(means.tokens)}});
}

struct Options {
  std::string run_id;
  bool json = false;
};

absl::Status GetHistory(Client& client, const Options& options) {
  const absl::StatusOr<v1::GetHistoryResponse> history = client.GetHistory({options.run_id});
  if (!history.ok()) return history.status();
  if (options.json) return PrintJson(*history);
  Table table({{.heading = "DRAW", .width = 12, .left = true},
               {.heading = "TIME", .width = 11, .left = true, .goes = 1},
               {.heading = "ACCEPT", .width = 8},
               {.heading = "D/TOKEN", .width = 8},
               {.heading = "D_SIS", .width = 8, .goes = 2},
               {.heading = "RESIDUAL", .width = 8, .goes = 3},
               {.heading = "MISSING", .width = 8},
               {.heading = "TOKENS", .width = 8, .goes = 4}});
  for (const auto& stretch : history->stretches()) Add(stretch, table);
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
