#include <iostream>
#include <memory>

#include "absl/strings/str_format.h"
#include "client/cli/json_output.h"
#include "client/cli/options.h"
#include "client/cli/subcommands.h"

namespace sis {
namespace {

void PrintCount(absl::string_view name, uint64_t count) {
  std::cout << absl::StreamFormat("%-32s %12u\n", name, count);
}

void PrintNumber(absl::string_view name, double number) {
  std::cout << absl::StreamFormat("%-32s %12.6g\n", name, number);
}

struct Options {
  std::string run_id;
  uint64_t draw = 0;
  bool json = false;
};

absl::Status GetStep(Client& client, const Options& options) {
  const absl::StatusOr<v1::GetStepResponse> step = client.GetStep({options.run_id}, options.draw);
  if (!step.ok()) return step.status();
  if (options.json) return PrintJson(*step);
  const v1::Totals& totals = step->totals();
  const uint64_t scored = totals.accepted() + totals.rejected() + totals.outside_top_k();
  const auto mean = [&](double sum) { return sum / static_cast<double>(scored); };
  PrintCount("sequences", step->sequences());
  PrintCount("accepted", totals.accepted());
  PrintCount("rejected", totals.rejected());
  PrintCount("outside top-K", totals.outside_top_k());
  PrintCount("missing", totals.missing());
  PrintCount("envelope violations", totals.envelope_violations());
  PrintNumber("accept rate", mean(static_cast<double>(totals.accepted())));
  PrintNumber("expected accept rate", mean(totals.expected_acceptance()));
  PrintNumber("mean acceptance probability", mean(totals.acceptance_probability()));
  PrintNumber("D (nats)", totals.d());
  PrintNumber("D_SIS (nats)", totals.d_sis());
  PrintNumber("mean k3 (nats)", mean(totals.k3()));
  PrintNumber("mean log-envelope (nats)", mean(totals.log_envelope()));
  PrintNumber("mean residual mass", mean(totals.residual_mass()));
  return absl::OkStatus();
}

}  // namespace

void AddStep(CLI::App& sisctl, Action& action) {
  CLI::App& app = *sisctl.add_subcommand(
      "step", "Show the totals of one draw (an optimiser step) over all ranks.");
  app.footer(
      "Means are over the scored positions: accepted, rejected or outside top-K.\n"
      "k3 estimates KL(behaviour || current).");
  const auto options = std::make_shared<Options>();
  app.add_option("RUN", options->run_id, "The run's id.")->required();
  AddInteger(app, "DRAW", options->draw, "The number of the draw.")->required()->default_str("");
  AddJson(app, options->json);
  app.callback([options, &action] {
    action = [options](Client& client) { return GetStep(client, *options); };
  });
}

}  // namespace sis
