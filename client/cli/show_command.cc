#include <iostream>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/cli/asked_servers.h"
#include "client/cli/json_output.h"
#include "client/cli/named_file.h"
#include "client/cli/options.h"
#include "client/cli/show_html.h"
#include "client/cli/show_text.h"
#include "client/cli/subcommands.h"
#include "client/cli/terminal.h"
#include "client/compare/inspected_sequence.h"

namespace sis {
namespace {

struct Options {
  std::string run_id;
  SequenceRef sequence;  // no id: the whole run
  int64_t position = -1;
  std::string html;
  std::string tokenizer;
  bool json = false;
};

absl::Status Write(const std::string& path, const std::string& contents) {
  if (const absl::Status status = WriteFile(path, contents); !status.ok()) {
    return absl::Status(status.code(), absl::StrCat("--html: ", status.message()));
  }
  std::cout << "wrote " << path << '\n';
  return absl::OkStatus();
}

// Sequences that are forgotten between the two calls are left out.
absl::StatusOr<InspectedRun> WholeRun(Client& client, const std::string& run_id,
                                      const v1::InspectRunResponse& overview) {
  InspectedRun run{run_id, overview, {}};
  for (const auto& kept : overview.sequences()) {
    const SequenceRef sequence{kept.sequence().id(), kept.sequence().attempt()};
    const auto response = client.InspectSequence({run_id}, sequence);
    if (absl::IsNotFound(response.status())) continue;
    if (!response.ok()) return response.status();
    run.sequences.emplace_back(kept.sequence(), *response);
  }
  return run;
}

absl::Status ShowRun(Client& client, const Options& options, const TokenTexts& texts) {
  const absl::StatusOr<v1::InspectRunResponse> overview = client.InspectRun({options.run_id});
  if (!overview.ok()) return overview.status();
  if (!options.html.empty()) {
    const absl::StatusOr<InspectedRun> run = WholeRun(client, options.run_id, *overview);
    if (!run.ok()) return run.status();
    return Write(options.html, RunAsHtml(*run, texts));
  }
  if (options.json) return PrintJson(*overview);
  std::cout << RunAsText(*overview, texts, Terminal::OfStandardOutput());
  return absl::OkStatus();
}

absl::Status ShowSequence(Client& client, const Options& options, const TokenTexts& texts) {
  const absl::StatusOr<v1::InspectSequenceResponse> response =
      client.InspectSequence({options.run_id}, options.sequence);
  if (!response.ok()) return response.status();
  if (!options.html.empty()) {
    v1::SequenceRef name;
    name.set_id(options.sequence.id);
    name.set_attempt(options.sequence.attempt);
    return Write(options.html,
                 RunAsHtml({options.run_id, std::nullopt, {{name, *response}}}, texts));
  }
  if (options.json) return PrintJson(*response);
  if (absl::Status status = CheckArrays(*response); !status.ok()) return status;
  if (options.position < 0) {
    std::cout << SequenceAsText(*response, texts);
    return absl::OkStatus();
  }
  const absl::StatusOr<std::string> text =
      PositionAsText(*response, static_cast<uint32_t>(options.position), texts);
  if (text.ok()) std::cout << *text;
  return text.status();
}

absl::StatusOr<TokenTexts> TextsIn(const std::string& file) {
  if (file != "-") return ReadTokenTexts(file);
  const absl::StatusOr<std::string> json = ReadInput(file);
  if (!json.ok()) return json.status();
  return ParseTokenTexts(*json);
}

absl::Status Show(Client& client, const Options& options) {
  TokenTexts texts;
  if (!options.tokenizer.empty()) {
    absl::StatusOr<TokenTexts> read = TextsIn(options.tokenizer);
    if (!read.ok()) return read.status();
    texts = *std::move(read);
  }
  return options.sequence.id.empty() ? FromEveryServer(client, ShowRun(client, options, texts))
                                     : ShowSequence(client, options, texts);
}

}  // namespace

void AddShow(CLI::App& sisctl, Action& action) {
  CLI::App& app = *sisctl.add_subcommand(
      "show", "Show single tokens: their ratios and decisions, as last evaluated.");
  app.footer(
      "The server keeps the last evaluated values of a sample of sequences (--inspected_bytes).\n"
      "Without SEQUENCE: which these are, and the tokens and positions that stand out.\n"
      "LOG W is log p - log q of the sampled token, nats; A the probability that the draw "
      "accepts;\n"
      "RESIDUAL the current policy's mass outside the recorded tokens; BEHIND policy versions; "
      "NOT\n"
      "KEPT positions that were evaluated, but had no room.");
  const auto options = std::make_shared<Options>();
  app.add_option("RUN", options->run_id, "The run's id.")->required();
  CLI::Option* const sequence =
      app.add_option("SEQUENCE", options->sequence.id, "The sequence's id.")->default_str("");
  AddInteger(app, "--attempt", options->sequence.attempt, "The sequence's attempt.")
      ->needs(sequence);
  CLI::Option* const position =
      AddInteger(app, "--position", options->position, "Open one position.")
          ->needs(sequence)
          ->check(CLI::NonNegativeNumber)
          ->default_str("");
  app.add_option("--tokenizer", options->tokenizer,
                 "A Hugging Face tokenizer.json, for the texts of tokens; -: standard input.");
  CLI::Option* const html = app.add_option(
      "--html", options->html, "Write one HTML file to look at in a browser, which needs no more.");
  html->excludes(position);
  AddJson(app, options->json);
  app.callback([options, &action] {
    action = [options](Client& client) { return Show(client, *options); };
  });
}

}  // namespace sis
