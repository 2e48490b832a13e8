#include <iostream>
#include <memory>
#include <optional>
#include <string>

#include "client/cli/asked_servers.h"
#include "client/cli/json_output.h"
#include "client/cli/options.h"
#include "client/cli/subcommands.h"
#include "client/cli/table.h"

namespace sis {
namespace {

struct Options {
  std::string run_id;
  bool json = false;
};

std::vector<Cell> RowOf(const v1::ListSequencesResponse::Sequence& listed) {
  return {{"SEQUENCE", listed.sequence().id(), {.width = 24, .left = true}},
          {"ATTEMPT", std::to_string(listed.sequence().attempt())},
          {"LENGTH", std::to_string(listed.committed_length()), {.width = 8}},
          {"POSITIONS", std::to_string(listed.positions())},
          {"SEALED", listed.sealed() ? "yes" : "no"},
          {"READ", listed.unread() ? "no" : "yes", {.width = 5}},
          {"VERSION", std::to_string(listed.policy_version()), {.width = 8, .goes = 1}},
          {"BYTES", std::to_string(listed.bytes()), {.width = 10, .goes = 2}}};
}

// Page by page; as JSON all in one.
absl::Status ListSequences(Client& client, const Options& options) {
  v1::ListSequencesResponse all;
  std::optional<SequenceRef> after;
  Table table(RowOf({}));  // its pages have the same columns
  for (;;) {
    const absl::StatusOr<v1::ListSequencesResponse> page =
        client.ListSequences({options.run_id}, after);
    if (!page.ok()) return page.status();
    if (options.json) {
      all.MergeFrom(*page);
    } else {
      for (const auto& listed : page->sequences()) table.AddRow(RowOf(listed));
      table.Print();
    }
    if (!options.json && !page->more() && page->store_keeps_evicted()) {
      std::cout << "These are in memory; others may have been evicted, and be in the store.\n";
    }
    if (!page->more() || !std::cout) break;  // there are no more, or nobody reads on
    const v1::SequenceRef& last = page->sequences().rbegin()->sequence();
    after = {last.id(), last.attempt()};
  }
  all.set_more(false);
  return options.json ? PrintJson(all) : absl::OkStatus();
}

}  // namespace

void AddSequences(CLI::App& sisctl, Action& action) {
  CLI::App& app =
      *sisctl.add_subcommand("sequences", "List what a run has in memory, sequence by sequence.");
  app.footer(
      "LENGTH is one past the highest position. Fewer POSITIONS: blocks have not come. READ: a\n"
      "trainer has fetched or evaluated it. VERSION is the newest policy version. What only a\n"
      "store has is not among them; where there is one, a last line says so (in JSON\n"
      "store_keeps_evicted).");
  const auto options = std::make_shared<Options>();
  app.add_option("RUN", options->run_id, "The run's id.")->required();
  AddJson(app, options->json);
  app.callback([options, &action] {
    action = [options](Client& client) {
      return FromEveryServer(client, ListSequences(client, *options));
    };
  });
}

}  // namespace sis
