#include "client/compare/diagnosis_json.h"

#include <vector>

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
                    {"positions", row.differences.positions},
                    {"d", row.differences.d.mean()},
                    {"total_variation", row.differences.lists.mean()}});
  }
  return json;
}

}  // namespace

Json DiagnosisJson(const Diagnosis& diagnosis) {
  Json json;
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
  return json;
}

}  // namespace sis
