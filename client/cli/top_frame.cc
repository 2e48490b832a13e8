#include "client/cli/top_frame.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/number_text.h"
#include "client/cli/token_means.h"
#include "client/cli/verdict_text.h"

namespace sis {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
// Rates are over so long.
constexpr double kRateSeconds = 10;
constexpr size_t kCurveDraws = 64;
constexpr size_t kCurveBegins = 38;  // characters before a curve

// One character per value, from the smallest to the largest of them.
std::string Curve(const std::vector<double>& values) {
  static constexpr const char* kLevels[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  double least = std::numeric_limits<double>::infinity();
  double most = -least;
  for (const double value : values) {
    if (!std::isfinite(value)) continue;
    least = std::min(least, value);
    most = std::max(most, value);
  }
  std::string curve;
  for (const double value : values) {
    if (!std::isfinite(value)) {
      curve += " ";
    } else {
      const double height = most > least ? (value - least) / (most - least) : 0;
      curve += kLevels[static_cast<int>(std::lround(7 * height))];
    }
  }
  return curve;
}

struct Rates {
  double positions = 0, bytes = 0, evaluated = 0, calls = 0, failed = 0;
};

Rates RatesNow(const v1::GetServerResponse& server) {
  const auto& history = server.history();
  if (history.size() < 2) return {kNone, kNone, kNone, kNone, kNone};
  const auto& last = history[history.size() - 1];
  int before = history.size() - 2;
  while (before > 0 && history[before].at() > last.at() - kRateSeconds) --before;
  const auto& first = history[before];
  const double seconds = last.at() - first.at();
  const auto rate = [&](uint64_t from, uint64_t to) {
    return seconds > 0 ? (static_cast<double>(to) - static_cast<double>(from)) / seconds : kNone;
  };
  return {rate(first.ingested_positions(), last.ingested_positions()),
          rate(first.ingested_bytes(), last.ingested_bytes()),
          rate(first.evaluated_positions(), last.evaluated_positions()),
          rate(first.rpcs(), last.rpcs()), rate(first.failed_rpcs(), last.failed_rpcs())};
}

double MissingOf(const v1::GetStepResponse& step, v1::MissingReason reason) {
  for (const v1::MissingTotals& missing : step.missing()) {
    if (missing.reason() == reason) return static_cast<double>(missing.positions());
  }
  return 0;
}

// The reasons that occur in any of the draws.
std::set<v1::MissingReason> MissingReasons(const v1::ListStepsResponse& steps) {
  std::set<v1::MissingReason> reasons;
  for (const auto& step : steps.steps()) {
    for (const v1::MissingTotals& missing : step.step().missing()) {
      if (missing.positions() > 0) reasons.insert(missing.reason());
    }
  }
  return reasons;
}

std::string QuantityLine(const std::string& name, const std::string& last, const char* unit,
                         const std::vector<double>& drawn) {
  return absl::StrFormat("%-15s %10s%-11s %s", name, last, unit, Curve(drawn));
}

// Of the last draw that has one.
std::vector<std::string> PrefixCurveLines(const v1::ListStepsResponse& steps) {
  const auto last = std::find_if(
      steps.steps().rbegin(), steps.steps().rend(),
      [](const v1::ListStepsResponse::Step& step) { return !step.step().prefix_curve().empty(); });
  if (last == steps.steps().rend()) {
    return {"",
            "Accept rate against k: ask for it in an evaluation, prefix_curve=(1, 2, 4, 8), say."};
  }
  constexpr auto kRow = "%12s %8s %8s %8s";
  std::vector<std::string> lines = {"",
                                    absl::StrCat("Accept rate against k, draw ", last->draw(), ":"),
                                    absl::StrFormat(kRow, "K", "EXPECTED", "RESIDUAL", "TOKENS")};
  for (const v1::PrefixPoint& point : last->step().prefix_curve()) {
    const auto positions = static_cast<double>(point.positions());
    const auto mean = [&](double sum) { return Mean(sum, positions); };
    lines.push_back(absl::StrFormat(kRow, absl::StrCat(point.top_k()),
                                    ShareText(mean(point.expected_acceptance())),
                                    ShareText(mean(point.residual_mass())), CountText(positions)));
  }
  return lines;
}

std::string Labels(const v1::RunConfig& config) {
  std::vector<std::string> labels;
  for (const std::string& label : {config.task(), config.algorithm(), config.model()}) {
    if (!label.empty()) labels.push_back(label);
  }
  return absl::StrJoin(labels, ", ");
}

std::vector<Cell> RowOf(const v1::Run& run) {
  const TokenMeans last = MeansOf(run.last_totals());
  return {
      {"RUN", run.run_id(), {.left = true}},
      {"VERDICT", VerdictText(run.verdict()), {.width = 9, .left = true}, ColourOf(run.verdict())},
      {"VERSION", absl::StrCat(run.policy_version()), {.width = 8, .goes = 3}},
      {"DRAW", run.has_last_draw() ? absl::StrCat(run.last_draw()) : "-", {.width = 7}},
      {"ACCEPT", ShareText(last.accept_rate), {.width = 7}},
      {"EXPECTED", ShareText(last.expected), {.width = 8, .goes = 5}},
      {"D/TOKEN", NumberText(last.d), {.width = 8}},
      {"D_SIS", NumberText(last.d_sis), {.width = 8, .goes = 1}},
      {"MISSING", ShareText(last.missing), {.width = 8}},
      {"SEQUENCES", CountText(static_cast<double>(run.sequences())), {.goes = 6}},
      {"TOKENS", CountText(static_cast<double>(run.positions())), {.width = 8, .goes = 2}},
      {"MEMORY", BytesText(static_cast<double>(run.bytes())), {.width = 9, .goes = 4}},
      {" TASK, ALGORITHM, MODEL",
       absl::StrCat(" ", Labels(run.config())),
       {.left = true, .goes = 7}}};
}

std::vector<Cell> RowOf(uint64_t draw, const TokenMeans& means) {
  return {{"DRAW", absl::StrCat(draw), {.width = 12}},
          {"TOKENS", CountText(means.tokens), {.width = 8}},
          {"ACCEPT", ShareText(means.accept_rate), {.width = 8}},
          {"EXPECTED", ShareText(means.expected), {.width = 8, .goes = 2}},
          {"D/TOKEN", NumberText(means.d), {.width = 8}},
          {"D_SIS", NumberText(means.d_sis), {.width = 8}},
          {"LOG_M", NumberText(means.log_envelope), {.width = 8, .goes = 3}},
          {"RESIDUAL", ShareText(means.residual_mass), {.width = 8}},
          {"K3", NumberText(means.k3), {.width = 8, .goes = 1}},
          {"MISSING", ShareText(means.missing), {.width = 8}}};
}

}  // namespace

Table CorrectionTable(const v1::GetStepResponse& step, NumberFormat share, NumberFormat number) {
  const auto row = [&](const v1::CorrectionTotals& totals) -> std::vector<Cell> {
    const auto positions = static_cast<double>(totals.positions());
    const auto mean = [&](double sum) { return Mean(sum, positions); };
    const double size = totals.weight() * totals.weight() / (totals.weight_squared() * positions);
    return {{"CORRECTION", totals.correction(), {.width = 24, .left = true}},
            {"ESS", share(size), {.width = 8}},
            {"TOUCHED", share(mean(static_cast<double>(totals.touched()))), {.width = 8}},
            {"ZEROED", share(mean(static_cast<double>(totals.zeroed()))), {.width = 8}},
            {"WEIGHT", number(mean(totals.weight())), {.width = 8}},
            {"|LOG WEIGHT|", number(mean(totals.abs_log_weight())), {.goes = 2}},
            {"GRADIENT", number(mean(totals.gradient_mass())), {.width = 12, .goes = 1}}};
  };
  Table table(row({}));
  for (const v1::CorrectionTotals& totals : step.corrections()) table.AddRow(row(totals));
  return table;
}

std::vector<std::string> ServerLines(
    const std::vector<absl::StatusOr<v1::GetServerResponse>>& servers,
    const std::vector<std::string>& addresses, const Terminal& terminal) {
  std::vector<std::string> lines;
  const auto add = [&](std::string line) {
    std::ranges::move(Wrapped(std::move(line), terminal, 4), std::back_inserter(lines));
  };
  for (size_t i = 0; i < servers.size(); ++i) {
    const std::string name = i < addresses.size() ? addresses[i] + "  " : "";
    if (!servers[i].ok()) {
      add(absl::StrCat(name, terminal.Painted("no answer", Colour::kRed), ": ",
                       servers[i].status().message()));
      add("  What it holds is not shown.");
      continue;
    }
    const v1::GetServerResponse& server = *servers[i];
    const double now = server.history().empty() ? kNone : server.history().rbegin()->at();
    const Rates rates = RatesNow(server);
    const auto held = static_cast<double>(server.cache_bytes());
    const auto budget = static_cast<double>(server.cache_budget_bytes());
    add(absl::StrCat(name, "sis_server ", server.version(), "  ",
                     server.ready() ? "serving" : terminal.Painted("not serving", Colour::kRed),
                     "  for ", DurationText(now - server.started_at()), "  backend ",
                     server.backend(), "  store ", server.store()));
    add(absl::StrFormat("  cache %s, %s of %s", ShareText(held / budget), BytesText(held),
                        BytesText(budget)));
    const std::string failed = absl::StrCat("failed ", CountText(rates.failed), "/s");
    add(absl::StrCat("  recorded ", CountText(rates.positions), " tokens/s, ",
                     BytesText(rates.bytes), "/s   evaluated ", CountText(rates.evaluated),
                     " tokens/s   calls ", CountText(rates.calls), "/s, ",
                     terminal.Painted(failed, rates.failed > 0 ? Colour::kRed : Colour::kNone)));
  }
  return lines;
}

std::vector<std::string> RunsLines(const std::vector<v1::Run>& runs, const Terminal& terminal) {
  if (runs.empty()) {
    return {"No runs yet. A trainer opens one, or you do: sisctl runs create."};
  }
  Table table(RowOf(v1::Run()));
  for (const v1::Run& run : runs) {
    table.AddRow(RowOf(run));
    if (run.findings().empty()) continue;
    for (const std::string& line :
         Wrapped(absl::StrCat("    ", run.findings(0).reason()), terminal, 4)) {
      table.AddLine(line);
    }
  }
  return table.TakeLines(terminal);
}

std::vector<std::string> RunLines(const v1::Run& run, const v1::ListStepsResponse& steps,
                                  size_t rows, const Terminal& terminal) {
  std::vector<std::string> lines = {
      absl::StrCat("run ", run.run_id(), "  ", Labels(run.config())),
      absl::StrCat("  top-K ", run.config().top_k(), "   incarnation ", run.incarnation(),
                   "   policy version ", run.policy_version(), "   ",
                   CountText(static_cast<double>(run.sequences())), " sequences, ",
                   CountText(static_cast<double>(run.positions())), " tokens, ",
                   BytesText(static_cast<double>(run.bytes()))),
      ""};
  for (const std::string& line : FindingLines(run, terminal)) lines.push_back(line);
  if (!run.findings().empty()) lines.push_back("");
  if (steps.steps().empty()) {
    lines.push_back("Nothing evaluated yet.");
    return lines;
  }
  std::vector<TokenMeans> values;
  for (const auto& step : steps.steps()) values.push_back(MeansOf(step.step().totals()));

  struct Quantity {
    const char* name;
    const char* unit;
    double TokenMeans::*value;
    std::string (*text)(double);
  };
  static constexpr Quantity kQuantities[] = {
      {"accept rate", "", &TokenMeans::accept_rate, ShareText},
      {"expected", "", &TokenMeans::expected, ShareText},
      {"D", " nats/token", &TokenMeans::d, NumberText},
      {"D_SIS", " nats/token", &TokenMeans::d_sis, NumberText},
      {"log-envelope", " nats", &TokenMeans::log_envelope, NumberText},
      {"residual mass", "", &TokenMeans::residual_mass, ShareText},
      {"k3", " nats/token", &TokenMeans::k3, NumberText},
      {"missing", "", &TokenMeans::missing, ShareText}};
  // Beside name, value and unit.
  const size_t draws = std::min(
      kCurveDraws, std::max(terminal.width.value_or(kCurveDraws + kCurveBegins), kCurveBegins + 1) -
                       kCurveBegins);
  const size_t first = values.size() > draws ? values.size() - draws : 0;
  for (const Quantity& quantity : kQuantities) {
    std::vector<double> drawn;
    for (size_t i = first; i < values.size(); ++i) drawn.push_back(values[i].*quantity.value);
    lines.push_back(QuantityLine(quantity.name, quantity.text(drawn.back()), quantity.unit, drawn));
  }
  for (const v1::MissingReason reason : MissingReasons(steps)) {
    std::vector<double> drawn;
    for (size_t i = first; i < values.size(); ++i) {
      const double missing = MissingOf(steps.steps(static_cast<int>(i)).step(), reason);
      drawn.push_back(Mean(missing, values[i].tokens));
    }
    lines.push_back(QuantityLine("  " + ReasonText(reason), ShareText(drawn.back()), "", drawn));
  }

  Table table(RowOf(0, TokenMeans()));
  for (size_t i = values.size(); i-- > values.size() - std::min(rows, values.size());) {
    table.AddRow(RowOf(steps.steps(static_cast<int>(i)).draw(), values[i]));
  }
  lines.push_back("");
  std::ranges::move(table.TakeLines(terminal), std::back_inserter(lines));

  const v1::GetStepResponse& last = steps.steps().rbegin()->step();
  if (!last.corrections().empty()) {
    lines.push_back("");
    std::ranges::move(CorrectionTable(last, ShareText, NumberText).TakeLines(terminal),
                      std::back_inserter(lines));
  }
  std::ranges::move(PrefixCurveLines(steps), std::back_inserter(lines));
  return lines;
}

}  // namespace sis
