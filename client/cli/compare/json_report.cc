#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "client/cli/compare/reports.h"

namespace sis {
namespace {

using Json = nlohmann::ordered_json;

const char* OutcomeName(Check::Outcome outcome) {
  switch (outcome) {
    case Check::Outcome::kClear:
      return "clear";
    case Check::Outcome::kFault:
      return "fault";
    case Check::Outcome::kUntested:
      break;
  }
  return "untested";
}

Json CheckJson(const Check& check) {
  return {{"name", check.name},
          {"outcome", OutcomeName(check.outcome)},
          {"value", check.value},
          {"limit", check.limit},
          {"fault_if", check.side == Check::Side::kAbove ? "at_least" : "at_most"},
          {"question", check.question},
          {"statistic", check.statistic},
          {"reason", check.reason},
          {"finding", check.finding},
          {"setting", check.setting},
          {"sequences", check.sequences}};
}

Json RowsJson(const std::vector<Profile::Row>& rows) {
  Json json = Json::array();
  for (const Profile::Row& row : rows) {
    json.push_back({{"first", row.first},
                    {"last", row.last},
                    {"positions", row.positions},
                    {"d", row.d},
                    {"total_variation", row.lists}});
  }
  return json;
}

// What both reports say of a diagnosis, added to `json`.
void AddDiagnosis(const Diagnosis& diagnosis, Json& json) {
  Json checks = Json::array(), left_out = Json::array();
  for (const Check& check : diagnosis.checks) checks.push_back(CheckJson(check));
  for (const LeftOut& part : diagnosis.left_out) {
    left_out.push_back(
        {{"name", part.name}, {"positions", part.positions}, {"reason", part.reason}});
  }
  json["fault"] = diagnosis.fault;
  json["undecided"] = diagnosis.undecided;
  json["verdict"] = diagnosis.verdict;
  json["checks"] = checks;
  json["left_out"] = left_out;
  json["d"] = {
      {"mean", diagnosis.size.mean},           {"standard_error", diagnosis.size.standard_error},
      {"positions", diagnosis.size.positions}, {"total_variation", diagnosis.size.lists},
      {"level", diagnosis.size.level},         {"meaning", diagnosis.size.meaning}};
  json["profile"] = {{"sequences", RowsJson(diagnosis.profile.sequences)},
                     {"positions", RowsJson(diagnosis.profile.positions)}};
}

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
          {"total_variation", TotalVariation(*position.a, *position.b)},
          {"a_to_b", DecidedJson(comparison.a_to_b_at(position))},
          {"b_to_a", DecidedJson(comparison.b_to_a_at(position))}};
}

}  // namespace

std::string JsonReport(const Comparison& comparison) {
  Json positions = Json::array();
  for (const ComparedPosition& position : comparison.positions) {
    positions.push_back(PositionJson(comparison, position));
  }
  Json json = {{"a", comparison.a_name}, {"b", comparison.b_name}};
  AddDiagnosis(comparison.diagnosis, json);
  json["a_to_b"] = SummaryJson(comparison.a_to_b);
  json["b_to_a"] = SummaryJson(comparison.b_to_a);
  json["notes"] = NotesOnTopK(comparison);
  json["positions"] = positions;
  return Text(json);
}

std::string DiagnosisJson(const Diagnosis& diagnosis, const std::string& run,
                          const std::vector<std::string>& sequences) {
  Json json = {{"run", run}, {"sequences", sequences}};
  AddDiagnosis(diagnosis, json);
  return Text(json);
}

}  // namespace sis
