#include "client/compare/run_diagnosis.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/compare/diagnosis_json.h"
#include "client/compare/inspected_sequence.h"
#include "client/compare/inspected_tokens.h"

namespace sis {
namespace {

struct Inspected {
  std::vector<std::string> names;
  std::vector<v1::InspectSequenceResponse> sequences;
  size_t not_asked = 0;  // positions of sequences beyond kMostPositions
};

// The filters of a sampling, like "top_p 0.8, min_p 0.1". Empty if none changes anything.
std::string FilterOf(const v1::Sampling& sampling) {
  std::vector<std::string> filters;
  if (sampling.has_top_p() && sampling.top_p() < 1) {
    filters.push_back(absl::StrCat("top_p ", sampling.top_p()));
  }
  if (sampling.top_k() > 0) filters.push_back(absl::StrCat("top_k ", sampling.top_k()));
  if (sampling.min_p() > 0) filters.push_back(absl::StrCat("min_p ", sampling.min_p()));
  return absl::StrJoin(filters, ", ");
}

absl::StatusOr<Inspected> Inspect(const RunCalls& calls, uint64_t last_draw) {
  constexpr uint64_t kEnoughPositions = 4000;
  // With those before the first one kept, which take room as well: some 20 MB.
  constexpr uint64_t kMostPositions = 1 << 17;
  const absl::StatusOr<v1::InspectRunResponse> overview = calls.inspect_run();
  if (!overview.ok()) return overview.status();
  std::vector<v1::InspectRunResponse::InspectedSequence> kept(overview->sequences().begin(),
                                                              overview->sequences().end());
  // The last draw need not have the highest number: a training goes on from an earlier step.
  const auto is_last = [&](const auto& sequence) { return sequence.draw() == last_draw; };
  std::stable_sort(kept.begin(), kept.end(), [&](const auto& a, const auto& b) {
    return std::pair(is_last(a), a.draw()) > std::pair(is_last(b), b.draw());
  });
  Inspected inspected;
  uint64_t positions = 0, held = 0;
  for (const auto& sequence : kept) {
    if (positions >= kEnoughPositions && !is_last(sequence)) break;
    absl::StatusOr<v1::InspectSequenceResponse> response =
        calls.inspect_sequence(sequence.sequence());
    if (absl::IsNotFound(response.status())) continue;
    if (!response.ok()) return response.status();
    const uint64_t more = response->first_position() + response->decisions().size();
    if (more > kMostPositions - held) {
      inspected.not_asked += sequence.positions();
      continue;
    }
    held += more;
    positions += sequence.positions();
    inspected.names.push_back(NameOf(sequence.sequence()));
    inspected.sequences.push_back(*std::move(response));
  }
  return inspected;
}

}  // namespace

absl::StatusOr<RunDiagnosis> DiagnoseRun(const RunCalls& calls) {
  absl::StatusOr<v1::Run> run = calls.get_run();
  if (!run.ok()) return run.status();
  absl::StatusOr<Inspected> inspected = Inspect(calls, run->last_draw());
  if (!inspected.ok()) return inspected.status();
  RunDiagnosis diagnosis{.run = *std::move(run), .sequences = std::move(inspected->names)};
  if (diagnosis.sequences.empty()) {
    const std::string nothing =
        inspected->not_asked > 0
            ? absl::StrCat("of run ", diagnosis.run.run_id(),
                           " only positions too far into their sequences are kept")
            : absl::StrCat("of run ", diagnosis.run.run_id(),
                           " nothing has been evaluated, or nothing is kept (--inspected_bytes)");
    if (!diagnosis.fault()) return absl::NotFoundError(nothing);
    diagnosis.tokens.undecided = true;
    diagnosis.tokens.verdict.push_back(absl::StrCat("Its tokens tell nothing: ", nothing, "."));
    return diagnosis;
  }
  absl::StatusOr<InspectedTokens> tokens = ReadInspectedTokens(inspected->sequences);
  if (!tokens.ok()) return tokens.status();
  if (inspected->not_asked > 0) {
    tokens->left_out.push_back(
        {"not_asked", inspected->not_asked, "of sequences beyond what is asked at once"});
  }
  diagnosis.tokens = DiagnoseRun(tokens->pair, tokens->decisions, std::move(tokens->left_out),
                                 FilterOf(diagnosis.run.sampling()));
  return diagnosis;
}

std::string RunDiagnosisJson(const RunDiagnosis& diagnosis) {
  using Json = nlohmann::ordered_json;
  Json findings = Json::array();
  for (const v1::Finding& finding : diagnosis.run.findings()) {
    findings.push_back({{"rule", finding.rule()},
                        {"verdict", v1::Verdict_Name(finding.verdict())},
                        {"reason", finding.reason()},
                        {"action", finding.action()}});
  }
  Json json = {{"run", diagnosis.run.run_id()},
               {"run_verdict", v1::Verdict_Name(diagnosis.run.verdict())},
               {"findings", findings},
               {"sequences", diagnosis.sequences}};
  json.update(DiagnosisJson(diagnosis.tokens));
  json["fault"] = diagnosis.fault();
  json["undecided"] = diagnosis.tokens.undecided && !diagnosis.fault();
  return json.dump(/*indent=*/-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

}  // namespace sis
