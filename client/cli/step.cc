#include <cmath>
#include <iostream>
#include <memory>
#include <string>

#include "absl/flags/marshalling.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/asked_servers.h"
#include "client/cli/json_output.h"
#include "client/cli/options.h"
#include "client/cli/subcommands.h"
#include "client/cli/terminal.h"
#include "client/cli/top_frame.h"
#include "client/cli/verdict_text.h"

namespace sis {
namespace {

void PrintCount(absl::string_view name, uint64_t count, Colour colour = Colour::kNone) {
  const std::string number = absl::StrFormat("%12u", count);
  std::cout << absl::StreamFormat("%-32s %s\n", name,
                                  Terminal::OfStandardOutput().Painted(number, colour));
}

// Of a quotient; "-" where there was nothing to divide by.
std::string NumberText(double number) {
  return std::isfinite(number) ? absl::StrFormat("%.6g", number) : "-";
}

void PrintNumber(absl::string_view name, double number) {
  std::cout << absl::StreamFormat("%-32s %12s\n", name, NumberText(number));
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
        staleness.ahead()     ? "ahead"
        : !staleness.has_to() ? absl::StrFormat("%u or more", staleness.from())
        : staleness.from() == staleness.to()
            ? absl::StrFormat("%u", staleness.from())
            : absl::StrFormat("%u to %u", staleness.from(), staleness.to());
    std::cout << absl::StreamFormat("  %-23s %12u %12u %13u\n", versions, staleness.accepted(),
                                    staleness.rejected(), staleness.outside_top_k());
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
    std::cout << absl::StreamFormat("  %-10u %22s %21s %12u\n", point.top_k(),
                                    NumberText(point.expected_acceptance() / positions),
                                    NumberText(point.residual_mass() / positions),
                                    point.positions());
  }
}

constexpr char kLatest[] = "latest";

bool ParseDraw(const std::string& text, uint64_t& draw) {
  std::string error;
  return absl::ParseFlag(text, &draw, &error);
}

struct Options {
  std::string run_id;
  std::string draw;  // a number, or kLatest
  bool json = false;
};

absl::Status GetStep(Client& client, const Options& options) {
  uint64_t draw = 0;
  if (options.draw == kLatest) {
    const absl::StatusOr<v1::Run> run = FindRun(client, options.run_id);
    if (!run.ok()) return run.status();
    if (!run->has_last_draw()) {
      return absl::NotFoundError(
          absl::StrCat("run '", options.run_id, "': no draw has been evaluated"));
    }
    draw = run->last_draw();
  } else {
    ParseDraw(options.draw, draw);  // has been checked
  }
  const absl::StatusOr<v1::GetStepResponse> step = client.GetStep({options.run_id}, draw);
  if (!step.ok()) return step.status();
  if (options.json) return PrintJson(*step);
  PrintCount("draw", draw);
  const v1::Totals& totals = step->totals();
  const uint64_t scored = totals.accepted() + totals.rejected() + totals.outside_top_k();
  const auto mean = [&](double sum) { return sum / static_cast<double>(scored); };
  PrintCount("sequences", step->sequences());
  PrintCount("accepted", totals.accepted());
  PrintCount("rejected", totals.rejected());
  PrintCount("outside top-K", totals.outside_top_k());
  PrintCount("missing", totals.missing());
  PrintCount("envelope violations", totals.envelope_violations(),
             totals.envelope_violations() > 0 ? Colour::kRed : Colour::kNone);
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
  if (!step->corrections().empty()) {
    std::cout << '\n';
    CorrectionTable(*step, NumberText, NumberText).Print();
  }
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
      "\"clipped\" is w cut to [0.8, 1.2], \"applied\" the modified ratio; others were observed.\n"
      "ESS is the effective sample size, as a share of the positions; the others are means.");
  const auto options = std::make_shared<Options>();
  app.add_option("RUN", options->run_id, "The run's id.")->required();
  app.add_option("DRAW", options->draw,
                 "The number of the draw; latest: the one that was evaluated last.")
      ->required()
      ->default_str("")
      ->check(CLI::Validator(
          [](const std::string& text) {
            uint64_t draw = 0;
            if (text == kLatest || ParseDraw(text, draw)) return std::string();
            return "\"" + text + "\" is not a valid value";
          },
          ""));
  AddJson(app, options->json);
  app.callback([options, &action] {
    action = [options](Client& client) {
      return FromEveryServer(client, GetStep(client, *options));
    };
  });
}

}  // namespace sis
