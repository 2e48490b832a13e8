#include <iostream>
#include <memory>
#include <string>

#include "absl/strings/str_format.h"
#include "client/cli/json_output.h"
#include "client/cli/options.h"
#include "client/cli/reason_text.h"
#include "client/cli/subcommands.h"
#include "client/cli/unanswered.h"

namespace sis {
namespace {

void PrintCount(absl::string_view name, uint64_t count) {
  std::cout << absl::StreamFormat("%-32s %12u\n", name, count);
}

void PrintNumber(absl::string_view name, double number) {
  std::cout << absl::StreamFormat("%-32s %12.6g\n", name, number);
}

// Upper bounds as they are, of buckets that hold something.
void PrintHistogram(absl::string_view name, const v1::Histogram& histogram) {
  uint64_t all = 0;
  for (const uint64_t count : histogram.counts()) all += count;
  if (all == 0) return;
  std::cout << '\n' << name << '\n';
  for (int i = 0; i < histogram.counts_size(); ++i) {
    if (histogram.counts(i) == 0) continue;
    const double share = static_cast<double>(histogram.counts(i)) / static_cast<double>(all);
    const std::string bound = i < histogram.upper_bounds_size()
                                  ? absl::StrFormat("<= %.6g", histogram.upper_bounds(i))
                                  : "above";
    std::cout << absl::StreamFormat("  %-14s %12u %7.2f%%\n", bound, histogram.counts(i),
                                    100 * share);
  }
}

void PrintDistributions(const v1::Distributions& distributions) {
  PrintHistogram("|log w| (nats)", distributions.abs_log_ratio());
  PrintHistogram("log-envelope (nats)", distributions.log_envelope());
  PrintHistogram("residual mass", distributions.residual_mass());
  PrintHistogram("acceptance probability", distributions.acceptance_probability());
  std::cout << "\nratios\n";
  for (const auto& beyond : distributions.ratios_beyond()) {
    std::cout << absl::StreamFormat("  %s %-12.6g %12u\n", beyond.bound() < 1 ? "<" : ">",
                                    beyond.bound(), beyond.positions());
  }
  std::cout << "\npolicy versions behind        accepted     rejected outside top-K\n";
  for (const auto& staleness : distributions.staleness()) {
    const std::string versions =
        !staleness.has_to() ? absl::StrFormat("%u or more", staleness.from())
        : staleness.from() == staleness.to()
            ? absl::StrFormat("%u", staleness.from())
            : absl::StrFormat("%u to %u", staleness.from(), staleness.to());
    std::cout << absl::StreamFormat("  %-23s %12u %12u %13u\n", versions, staleness.accepted(),
                                    staleness.rejected(), staleness.outside_top_k());
  }
}

// Per position; the effective sample size as a share of the positions.
void PrintCorrections(const v1::GetStepResponse& step) {
  std::cout << "\ncorrection             effective size   touched    zeroed mean weight "
               "mean |log weight|  gradient mass\n";
  for (const v1::CorrectionTotals& totals : step.corrections()) {
    const auto positions = static_cast<double>(totals.positions());
    std::cout << absl::StreamFormat(
        "  %-20s %14.4f %9.4f %9.4f %11.6g %17.6g %14.6g\n", totals.correction(),
        totals.weight() * totals.weight() / (totals.weight_squared() * positions),
        static_cast<double>(totals.touched()) / positions,
        static_cast<double>(totals.zeroed()) / positions, totals.weight() / positions,
        totals.abs_log_weight() / positions, totals.gradient_mass());
  }
}

void PrintMissing(const v1::GetStepResponse& step) {
  if (step.missing().empty()) return;
  std::cout << "\nmissing\n";
  for (const v1::MissingTotals& missing : step.missing()) {
    std::cout << absl::StreamFormat("  %-14s %12u\n", ReasonText(missing.reason()),
                                    missing.positions());
  }
}

void PrintPrefixCurve(const v1::GetStepResponse& step) {
  if (step.prefix_curve().empty()) return;
  std::cout << "\ntop-K          expected accept rate    mean residual mass       tokens\n";
  for (const v1::PrefixPoint& point : step.prefix_curve()) {
    const auto positions = static_cast<double>(point.positions());
    std::cout << absl::StreamFormat("  %-10u %22.6g %21.6g %12u\n", point.top_k(),
                                    point.expected_acceptance() / positions,
                                    point.residual_mass() / positions, point.positions());
  }
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
  PrintMissing(*step);
  PrintPrefixCurve(*step);
  PrintCorrections(*step);
  PrintDistributions(step->distributions());
  return absl::OkStatus();
}

}  // namespace

void AddStep(CLI::App& sisctl, Action& action) {
  CLI::App& app = *sisctl.add_subcommand(
      "step", "Show the totals of one draw (an optimiser step) over all ranks.");
  app.footer(
      "Means are over the scored positions: accepted, rejected or outside top-K.\n"
      "k3 estimates KL(behaviour || current).\n"
      "A correction's weight is what multiplies advantage * grad log p: \"plain\" is the ratio w,\n"
      "\"clipped\" is w cut to [0.8, 1.2], \"applied\" the modified ratio; others were observed.");
  const auto options = std::make_shared<Options>();
  app.add_option("RUN", options->run_id, "The run's id.")->required();
  AddInteger(app, "DRAW", options->draw, "The number of the draw.")->required()->default_str("");
  AddJson(app, options->json);
  app.callback([options, &action] {
    action = [options](Client& client) {
      return FromEveryServer(client, GetStep(client, *options));
    };
  });
}

}  // namespace sis
