#include <iostream>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/cli/asked_servers.h"
#include "client/cli/quit_key.h"
#include "client/cli/subcommands.h"
#include "client/cli/terminal.h"
#include "client/cli/top_frame.h"
#include "client/cli/verdict_text.h"

namespace sis {
namespace {

constexpr size_t kRowsOfDraws = 12;

struct Options {
  std::string run_id;
  bool once = false;
  double interval = 2;
};

absl::StatusOr<std::vector<std::string>> Runs(Client& client, const Terminal& terminal) {
  const absl::StatusOr<v1::ListRunsResponse> runs = client.ListRuns();
  if (!runs.ok()) return runs.status();
  return RunsLines(WorstFirst(*runs), terminal);
}

absl::StatusOr<std::vector<std::string>> OneRun(Client& client, const std::string& run_id,
                                                const Terminal& terminal) {
  const absl::StatusOr<v1::Run> run = FindRun(client, run_id);
  if (!run.ok()) return run.status();
  const absl::StatusOr<v1::ListStepsResponse> steps = client.ListSteps({run_id});
  if (!steps.ok()) return steps.status();
  return RunLines(*run, *steps, kRowsOfDraws, terminal);
}

absl::StatusOr<std::vector<std::string>> Frame(Client& client, const Options& options,
                                               const Terminal& terminal) {
  const auto servers = client.GetServers();
  std::vector<std::string> names;
  for (size_t i = 0; servers.size() > 1 && i < servers.size(); ++i) {
    names.push_back(absl::StrCat("server ", i + 1));
  }
  absl::StatusOr<std::vector<std::string>> runs =
      options.run_id.empty() ? Runs(client, terminal) : OneRun(client, options.run_id, terminal);
  if (!runs.ok()) return runs.status();
  std::vector<std::string> lines = ServerLines(servers, names, terminal);
  lines.push_back("");
  lines.insert(lines.end(), runs->begin(), runs->end());
  return lines;
}

void Print(const std::vector<std::string>& lines, const Terminal& terminal) {
  if (terminal.height < 2) {
    for (const std::string& line : lines) std::cout << line << '\n';
    std::cout << std::flush;
    return;
  }
  // From the top left corner; the rest of each line, and of the screen, is cleared.
  std::cout << "\x1b[H";
  for (const std::string& line : Cropped(lines, *terminal.width, terminal.height - 1)) {
    std::cout << line << "\x1b[K\n";
  }
  std::cout << "\x1b[J" << std::flush;
}

absl::Status Top(Client& client, const Options& options) {
  std::vector<std::string> shown;
  absl::Time answered = absl::Now();
  std::optional<QuitKey> quit_key;
  if (!options.once) quit_key.emplace();
  for (;;) {
    const Terminal terminal = Terminal::OfStandardOutput();  // its size may change
    absl::StatusOr<std::vector<std::string>> frame = Frame(client, options, terminal);
    if (options.once) {
      if (!frame.ok()) return frame.status();
      for (const std::string& line : *frame) std::cout << line << '\n';
      return FromEveryServer(client, absl::OkStatus());
    }
    if (frame.ok()) {
      shown = *std::move(frame);
      answered = absl::Now();
      Print(shown, terminal);
    } else if (shown.empty()) {
      return frame.status();
    } else {
      const std::string since = absl::FormatTime("%H:%M:%S", answered, absl::LocalTimeZone());
      std::vector<std::string> lines = Wrapped(
          absl::StrCat(terminal.Painted(absl::StrCat("No answer since ", since), Colour::kRed),
                       ": ", frame.status().message()),
          terminal, 2);
      lines.push_back("");
      lines.insert(lines.end(), shown.begin(), shown.end());
      Print(lines, terminal);
    }
    if (!std::cout) return absl::OkStatus();  // nobody reads on
    absl::SleepFor(absl::Seconds(options.interval));
  }
}

}  // namespace

void AddTop(CLI::App& sisctl, Action& action) {
  CLI::App& app = *sisctl.add_subcommand(
      "top", "Watch the server and its runs, or one run, until you press q.");
  app.footer(
      "Without RUN: all runs, the worst first, with the draw that was evaluated last and what is\n"
      "most wrong. With RUN: its last draws, and all that is wrong.\n"
      "D, D_SIS, LOG_M and K3 are means over scored tokens, in nats; D_SIS is what accepting "
      "leaves\n"
      "of D. ESS is the effective sample size, as a share of the tokens. The same in a browser: "
      "the\n"
      "server's admin port.");
  const auto options = std::make_shared<Options>();
  app.add_option("RUN", options->run_id, "The run's id.")->default_str("");
  app.add_flag("--once", options->once, "Print what there is now, and end.");
  app.add_option("--interval", options->interval, "Seconds between two looks.")
      ->check(CLI::Range(0.1, 3600.0));
  app.callback(
      [options, &action] { action = [options](Client& client) { return Top(client, *options); }; });
}

}  // namespace sis
