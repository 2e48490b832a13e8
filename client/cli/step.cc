#include <iostream>

#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/flags.h"
#include "client/cli/json_output.h"
#include "client/cli/subcommand.h"

namespace sis {
namespace {

void PrintCount(absl::string_view name, uint64_t count) {
  std::cout << absl::StreamFormat("%-32s %12u\n", name, count);
}

void PrintNumber(absl::string_view name, double number) {
  std::cout << absl::StreamFormat("%-32s %12.6g\n", name, number);
}

absl::Status CheckDraw(std::span<const std::string> arguments) {
  uint64_t draw;
  if (absl::SimpleAtoi(arguments[1], &draw)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("DRAW is not a number: ", arguments[1]));
}

absl::Status GetStep(Client& client, std::span<const std::string> arguments) {
  uint64_t draw = 0;
  if (!absl::SimpleAtoi(arguments[1], &draw)) return CheckDraw(arguments);
  const absl::StatusOr<v1::GetStepResponse> step = client.GetStep({arguments[0]}, draw);
  if (!step.ok()) return step.status();
  if (absl::GetFlag(FLAGS_json)) return PrintJson(*step);
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

const Subcommand kStep = {
    .name = "step",
    .arguments = {"RUN", "DRAW"},
    .summary = "Show the totals of one draw (an optimiser step) over all ranks.",
    .details =
        "Means are over the scored positions: accepted, rejected or outside top-K. "
        "k3 estimates KL(behaviour || current).",
    .flags = {"json"},
    .check = CheckDraw,
    .run = GetStep,
};

}  // namespace sis
