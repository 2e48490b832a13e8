#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "client/cli/asked_servers.h"
#include "client/cli/subcommands.h"
#include "client/compare/inspected_sequence.h"

namespace sis {
namespace {

// Read from the service at once.
constexpr uint32_t kPositionsAtOnce = 1 << 14;

constexpr char kDetails[] =
    R"(A line of JSON for each position that the servers have in memory: sequence, attempt, position,
newest_policy_version (of the sequence), missing (the reason why there is no record), sampled_id,
sampled_log_prob, ids, log_probs (the set, most probable first, in nats). Of the last evaluation, where
its values are kept (see sisctl show): draw, decision, log_ratio, acceptance_probability,
log_envelope, residual_mass, staleness, current_log_probs. What isn't known
is null.

Records are read, and so leave their place among the unread ones. The same as Parquet, from Python:
sis.Client.export.)";

using Name = std::pair<std::string, uint32_t>;

struct Part {
  Slice slice;
  uint64_t newest_policy_version = 0;
};

// In the order in which they are set; of a float the shortest that is read as the same. What is not
// finite becomes null.
using Json = nlohmann::basic_json<nlohmann::ordered_map, std::vector, std::string, bool, int64_t,
                                  uint64_t, float>;

Json Word(const std::string& name) { return absl::AsciiStrToLower(name); }

class Exporter {
 public:
  Exporter(Client& client, std::string run_id) : client_(client), run_{std::move(run_id)} {}

  absl::Status Export() {
    const absl::StatusOr<v1::Run> run = FindRun(client_, run_.run_id);
    if (!run.ok()) return run.status();
    const absl::StatusOr<v1::InspectRunResponse> inspected = client_.InspectRun(run_);
    if (!inspected.ok()) return inspected.status();
    for (const auto& kept : inspected->sequences()) {
      kept_.emplace(kept.sequence().id(), kept.sequence().attempt());
    }
    std::optional<SequenceRef> after;
    for (;;) {
      const absl::StatusOr<v1::ListSequencesResponse> page = client_.ListSequences(run_, after);
      if (!page.ok()) return page.status();
      for (const auto& listed : page->sequences()) {
        if (absl::Status status = Add(listed); !status.ok()) return status;
      }
      if (!page->more() || !std::cout) break;  // there are no more, or nobody reads on
      const v1::SequenceRef& last = page->sequences().rbegin()->sequence();
      after = {last.id(), last.attempt()};
    }
    return Flush();
  }

 private:
  absl::Status Add(const v1::ListSequencesResponse::Sequence& listed) {
    const SequenceRef sequence{listed.sequence().id(), listed.sequence().attempt()};
    for (uint32_t first = 0; first < listed.committed_length();) {
      const uint32_t length = std::min(room_, listed.committed_length() - first);
      parts_.push_back({{sequence, first, length}, listed.policy_version()});
      first += length;
      room_ -= length;
      if (room_ > 0) continue;
      if (absl::Status status = Flush(); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status Flush() {
    std::vector<Slice> slices;
    for (const Part& part : parts_) slices.push_back(part.slice);
    const std::vector<Part> parts = std::exchange(parts_, {});
    room_ = kPositionsAtOnce;
    if (slices.empty()) return absl::OkStatus();
    // What is gone since it was listed is missing.
    const absl::StatusOr<TopKRecords> records = client_.FetchTopK(run_, slices);
    if (!records.ok()) return records.status();
    slices = records->slices;
    if (slices.size() != parts.size()) {
      return absl::InternalError(absl::StrCat("the server's FetchTopK header has ", slices.size(),
                                              " slices, not ", parts.size()));
    }
    // By its number in the batch.
    std::vector<Json> missing(records->positions());
    std::vector<size_t> begins = {0};
    for (const Slice& slice : slices) begins.push_back(begins.back() + slice.length);
    for (const v1::MissingRange& gap : records->missing) {
      const size_t begin =
          begins[gap.slice()] + gap.first_position() - slices[gap.slice()].first_position;
      std::fill_n(missing.begin() + static_cast<ptrdiff_t>(begin), gap.length(),
                  Word(v1::MissingReason_Name(gap.reason())));
    }
    for (size_t i = 0; i < parts.size(); ++i) {
      if (absl::Status status = Inspect(parts[i].slice.sequence); !status.ok()) return status;
      for (uint32_t offset = 0; offset < slices[i].length; ++offset) {
        const uint32_t position = slices[i].first_position + offset;
        Json row = {{"sequence", parts[i].slice.sequence.id},
                    {"attempt", parts[i].slice.sequence.attempt},
                    {"position", position},
                    {"newest_policy_version", parts[i].newest_policy_version}};
        AddRecord(*records, begins[i] + offset, missing[begins[i] + offset], row);
        AddEvaluated(position, row);
        std::cout << row.dump(/*indent=*/-1, ' ', /*ensure_ascii=*/false,
                              Json::error_handler_t::replace)
                  << '\n';
      }
    }
    return absl::OkStatus();
  }

  static void AddRecord(const TopKRecords& records, size_t i, const Json& missing, Json& row) {
    row["missing"] = missing;
    for (const char* name : {"sampled_id", "sampled_log_prob", "ids", "log_probs"})
      row[name] = nullptr;
    if (!missing.is_null()) return;
    row["sampled_id"] = records.sampled_ids[i];
    row["sampled_log_prob"] = records.sampled_log_probs[i];
    Json ids = Json::array(), log_probs = Json::array();
    const size_t slots = records.top_k;
    for (size_t k = i * slots; k < (i + 1) * slots && records.ids[k] >= 0; ++k) {
      ids.push_back(records.ids[k]);
      log_probs.push_back(records.log_probs[k]);
    }
    row["ids"] = std::move(ids);
    row["log_probs"] = std::move(log_probs);
  }

  // Into inspection_, unless it is there.
  absl::Status Inspect(const SequenceRef& sequence) {
    Name name{sequence.id, sequence.attempt};
    if (name == inspected_) return absl::OkStatus();
    inspected_ = std::move(name);
    inspection_.Clear();
    if (!kept_.contains(inspected_)) return absl::OkStatus();
    absl::StatusOr<v1::InspectSequenceResponse> response = client_.InspectSequence(run_, sequence);
    if (absl::IsNotFound(response.status())) return absl::OkStatus();  // forgotten meanwhile
    if (!response.ok()) return response.status();
    inspection_ = *std::move(response);
    return CheckArrays(inspection_);
  }

  // The values of the last evaluation.
  void AddEvaluated(uint32_t position, Json& row) const {
    for (const char* name : {"draw", "decision", "log_ratio", "acceptance_probability",
                             "log_envelope", "residual_mass", "staleness", "current_log_probs"}) {
      row[name] = nullptr;
    }
    const v1::InspectSequenceResponse& kept = inspection_;
    const size_t i = position - kept.first_position();
    if (position < kept.first_position() || i >= kept.decisions().size()) return;
    const char decision = kept.decisions()[i];
    if (decision == v1::DECISION_UNSPECIFIED) return;
    row["draw"] = kept.draw();
    row["decision"] = Word(v1::Decision_Name(static_cast<v1::Decision>(decision)));
    if (!IsScored(decision)) return;
    row["log_ratio"] = At<float>(kept.log_ratios(), i);
    row["acceptance_probability"] = At<float>(kept.acceptance_probabilities(), i);
    row["log_envelope"] = At<float>(kept.log_envelopes(), i);
    row["residual_mass"] = At<float>(kept.residual_masses(), i);
    row["staleness"] = At<int64_t>(kept.staleness(), i);
    Json current = Json::array();
    const size_t slots = kept.top_k();
    for (size_t k = i * slots; k < (i + 1) * slots && At<int32_t>(kept.top_k_ids(), k) >= 0; ++k) {
      current.push_back(At<float>(kept.current_log_probs(), k));
    }
    row["current_log_probs"] = std::move(current);
  }

  Client& client_;
  const RunRef run_;
  // Those of which evaluated values are kept.
  std::set<Name> kept_;
  std::vector<Part> parts_;
  uint32_t room_ = kPositionsAtOnce;
  // The sequence looked at last, with what is kept of it.
  Name inspected_;
  v1::InspectSequenceResponse inspection_;
};

}  // namespace

void AddExport(CLI::App& sisctl, Action& action) {
  CLI::App& app = *sisctl.add_subcommand(
      "export", "Print what a run has in memory, position by position, as lines of JSON.");
  app.footer(kDetails);
  const auto run_id = std::make_shared<std::string>();
  app.add_option("RUN", *run_id, "The run's id.")->required();
  app.callback([run_id, &action] {
    action = [run_id](Client& client) {
      return FromEveryServer(client, Exporter(client, *run_id).Export());
    };
  });
}

}  // namespace sis
