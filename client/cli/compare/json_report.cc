#include <nlohmann/json.hpp>
#include <string>

#include "client/cli/compare/reports.h"
#include "client/compare/diagnosis_json.h"

namespace sis {
namespace {

using Json = nlohmann::ordered_json;

std::string Text(const Json& json) {
  return json.dump(/*indent=*/-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

Json SummaryJson(const Decisions& decisions) {
  Json json;
  for (const SummaryRow& row : Summarise(decisions)) {
    if (row.is_count) {
      json[row.field] = static_cast<uint64_t>(row.value);
    } else {
      json[row.field] = row.value;
    }
  }
  return json;
}

Json DecidedJson(const DecidedPosition& decided) {
  return {{"decision", DecisionName(decided.decision)},
          {"log_ratio", decided.log_ratio},
          {"acceptance_probability", decided.acceptance_probability},
          {"log_envelope", decided.log_envelope},
          {"residual_mass", decided.residual_mass}};
}

Json PositionJson(const Comparison& comparison, const ComparedPosition& position) {
  return {{"sequence", position.sequence},
          {"position", position.position},
          {"token", comparison.TextOf(position.a->sampled_id)},
          {"a_sampled_log_prob", position.a->sampled_log_prob},
          {"b_sampled_log_prob", position.b->sampled_log_prob},
          {"total_variation", position.total_variation},
          {"a_to_b", DecidedJson(*position.decided)},
          {"b_to_a", DecidedJson(comparison.b_to_a_at(position))}};
}

}  // namespace

std::string JsonReport(const Comparison& comparison) {
  Json positions = Json::array();
  for (const ComparedPosition& position : comparison.whole.positions) {
    positions.push_back(PositionJson(comparison, position));
  }
  Json json = {{"a", comparison.a_name}, {"b", comparison.b_name}};
  json.update(DiagnosisJson(comparison.diagnosis));
  json["a_to_b"] = SummaryJson(comparison.a_to_b);
  json["b_to_a"] = SummaryJson(comparison.b_to_a);
  json["notes"] = NotesOnTopK(comparison);
  json["positions"] = positions;
  return Text(json);
}

}  // namespace sis
