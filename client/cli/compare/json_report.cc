#include <nlohmann/json.hpp>
#include <string>

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
          {"finding", check.finding}};
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
  const Diagnosis& diagnosis = comparison.diagnosis;
  Json checks = Json::array(), left_out = Json::array(), positions = Json::array();
  for (const Check& check : diagnosis.checks) checks.push_back(CheckJson(check));
  for (const LeftOut& part : diagnosis.left_out) {
    left_out.push_back(
        {{"name", part.name}, {"positions", part.positions}, {"reason", part.reason}});
  }
  for (const ComparedPosition& position : comparison.positions) {
    positions.push_back(PositionJson(comparison, position));
  }
  const Json json = {{"a", comparison.a_name},
                     {"b", comparison.b_name},
                     {"fault", diagnosis.fault},
                     {"undecided", diagnosis.undecided},
                     {"verdict", diagnosis.verdict},
                     {"checks", checks},
                     {"left_out", left_out},
                     {"d",
                      {{"mean", diagnosis.size.mean},
                       {"standard_error", diagnosis.size.standard_error},
                       {"positions", diagnosis.size.positions},
                       {"meaning", diagnosis.size.meaning}}},
                     {"a_to_b", SummaryJson(comparison.a_to_b)},
                     {"b_to_a", SummaryJson(comparison.b_to_a)},
                     {"notes", NotesOnTopK(comparison)},
                     {"positions", positions}};
  return json.dump(/*indent=*/-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

}  // namespace sis
