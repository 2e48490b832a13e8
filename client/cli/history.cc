#include <iostream>
#include <limits>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "client/cli/json_output.h"
#include "client/cli/number_text.h"
#include "client/cli/options.h"
#include "client/cli/subcommands.h"
#include "client/cli/unanswered.h"

namespace sis {
namespace {

constexpr auto kRow = "%-17s %-11s %8s %9s %9s %9s %8s %8s\n";

void Print(const v1::GetHistoryResponse::Stretch& stretch) {
  const v1::Totals& totals = stretch.totals();
  const auto scored =
      static_cast<double>(totals.accepted() + totals.rejected() + totals.outside_top_k());
  const auto missing = static_cast<double>(totals.missing());
  const auto mean = [](double sum, double positions) {
    return positions > 0 ? sum / positions : std::numeric_limits<double>::quiet_NaN();
  };
  const std::string draws = stretch.draws() == 1
                                ? absl::StrCat(stretch.last_draw())
                                : absl::StrCat(stretch.first_draw(), "-", stretch.last_draw());
  const absl::Time ended = absl::UnixEpoch() + absl::Seconds(stretch.ended_at());
  std::cout << absl::StreamFormat(
      kRow, draws, absl::FormatTime("%m-%d %H:%M", ended, absl::LocalTimeZone()),
      ShareText(mean(static_cast<double>(totals.accepted()), scored)),
      NumberText(mean(totals.d(), scored)), NumberText(mean(totals.d_sis(), scored)),
      ShareText(mean(totals.residual_mass(), scored)), ShareText(mean(missing, scored + missing)),
      CountText(scored + missing));
}

struct Options {
  std::string run_id;
  bool json = false;
};

absl::Status GetHistory(Client& client, const Options& options) {
  const absl::StatusOr<v1::GetHistoryResponse> history = client.GetHistory({options.run_id});
  if (!history.ok()) return history.status();
  if (options.json) return PrintJson(*history);
  std::cout << absl::StreamFormat(kRow, "DRAW", "TIME", "ACCEPT", "D/TOKEN", "D_SIS", "RESIDUAL",
                                  "MISSING", "TOKENS");
  for (const auto& stretch : history->stretches()) Print(stretch);
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
