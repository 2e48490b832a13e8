#include "server/observe/inspection_messages.h"

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/numerics/philox.h"
#include "server/cache/inspection.h"
#include "server/messages/slices.h"
#include "server/messages/step_message.h"

namespace sis {
namespace {

template <typename T>
std::string Bytes(const std::vector<T>& array) {
  const auto bytes = std::as_bytes(std::span(array));
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

v1::SequenceRef ToRef(const Inspection::Name& name) {
  v1::SequenceRef ref;
  ref.set_id(name.first);
  ref.set_attempt(name.second);
  return ref;
}

// Returns the uniform number of each decision.
std::vector<uint32_t> UniformsOf(const Inspection::Sequence& sequence) {
  std::vector<uint32_t> uniforms;
  for (size_t i = 0; i < sequence.positions.size(); ++i) {
    const uint32_t position = sequence.first_position + static_cast<uint32_t>(i);
    const PhiloxBlock block = AcceptanceUniforms(sequence.key, position / 4, sequence.draw);
    uniforms.push_back(block.word[position % 4]);
  }
  return uniforms;
}

}  // namespace

void InspectRun(const Run& run, v1::InspectRunResponse& response) {
  const Inspection::Overview overview = run.inspection().Describe();
  for (const Inspection::Summary& summary : overview.sequences) {
    v1::InspectRunResponse::InspectedSequence& sequence = *response.add_sequences();
    *sequence.mutable_sequence() = ToRef(summary.name);
    sequence.set_draw(summary.draw);
    sequence.set_positions(summary.positions);
    *sequence.mutable_totals() = ToTotals(summary.sums);
    sequence.set_cut_begin(summary.cut_begin);
    sequence.set_cut_end(summary.cut_end);
  }
  for (const Inspection::TokenCounts& counts : overview.tokens) {
    v1::InspectRunResponse::TokenCounts& token = *response.add_tokens();
    token.set_token_id(static_cast<uint32_t>(counts.token));
    token.set_accepted(counts.accepted);
    token.set_rejected(counts.rejected);
    token.set_max_error(counts.max_error);
  }
  for (const Inspection::Deviation& found : overview.deviations) {
    v1::InspectRunResponse::Deviation& deviation = *response.add_deviations();
    *deviation.mutable_sequence() = ToRef(found.name);
    deviation.set_position(found.position);
    deviation.set_token_id(static_cast<uint32_t>(found.token));
    deviation.set_draw(found.draw);
    deviation.set_log_ratio(found.log_ratio);
  }
}

absl::Status InspectSequence(const Run& run, const v1::InspectSequenceRequest& request,
                             v1::InspectSequenceResponse& response) {
  const absl::StatusOr<SequenceName> name = ParseSequence(request.sequence());
  if (!name.ok()) return name.status();
  const std::optional<Inspection::Sequence> found =
      run.inspection().Find({name->id, name->attempt});
  if (!found.has_value()) {
    return absl::NotFoundError(absl::StrCat(
        ToString(*name), " of run '", run.id(),
        "': no evaluated values are kept; InspectRun lists the sequences that have some"));
  }
  const InspectedPositions& positions = found->positions;
  response.set_draw(found->draw);
  response.set_first_position(found->first_position);
  response.set_top_k(static_cast<uint32_t>(positions.slots));
  response.set_cut_begin(found->cut_begin);
  response.set_cut_end(found->cut_end);
  response.set_decisions(Bytes(positions.decisions));
  response.set_missing_reasons(Bytes(positions.missing_reasons));
  response.set_sampled_ids(Bytes(positions.sampled_ids));
  response.set_sampled_log_probs(Bytes(positions.sampled_log_probs));
  response.set_log_ratios(Bytes(positions.log_ratios));
  response.set_acceptance_probabilities(Bytes(positions.acceptance_probabilities));
  response.set_log_envelopes(Bytes(positions.log_envelopes));
  std::vector<float> residual_masses;
  for (size_t i = 0; i < positions.size(); ++i) {
    residual_masses.push_back(
        ResidualMass({positions.log_envelopes[i], positions.covered_masses[i]}));
  }
  response.set_residual_masses(Bytes(residual_masses));
  response.set_uniforms(Bytes(UniformsOf(*found)));
  response.set_staleness(Bytes(positions.staleness));
  response.set_top_k_ids(Bytes(positions.top_k_ids));
  response.set_top_k_log_probs(Bytes(positions.top_k_log_probs));
  response.set_current_log_probs(Bytes(positions.current_log_probs));
  if (!found->annotation.empty()) {
    response.mutable_annotation()->ParseFromString(
        found->annotation);  // always valid: we serialised it
  }
  return absl::OkStatus();
}

}  // namespace sis
