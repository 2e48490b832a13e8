#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <functional>
#include <map>
#include <random>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "tests/bench/encodings/policy_pairs.h"

namespace sis {
namespace {

constexpr int kSlots = 5;

struct Recorded {
  int32_t sampled_id;
  std::vector<std::pair<float, int32_t>> top;  // most probable first
};

absl::StatusOr<std::vector<Recorded>> Read(const std::string& path) {
  std::ifstream file(path);
  const nlohmann::json json = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return absl::NotFoundError(absl::StrCat(path, " is no JSON file"));
  std::vector<Recorded> positions;
  for (const nlohmann::json& content : json["logprobs"]["content"]) {
    Recorded& position = positions.emplace_back();
    position.sampled_id = content["id"];
    for (const nlohmann::json& slot : content["top_logprobs"]) {
      position.top.emplace_back(slot["logprob"], slot["id"]);
    }
    std::ranges::sort(position.top, std::greater<>());
  }
  return positions;
}

}  // namespace

absl::StatusOr<PolicyPairs> RecordedPairs(std::string name, const std::string& cpu_path,
                                          const std::string& gpu_path) {
  const auto behavior = Read(cpu_path);
  if (!behavior.ok()) return behavior.status();
  const auto current = Read(gpu_path);
  if (!current.ok()) return current.status();
  PolicyPairs pairs{.name = std::move(name), .slots = kSlots, .positions = {}};
  for (size_t i = 0; i < std::min(behavior->size(), current->size()); ++i) {
    std::map<int32_t, float> current_log_probs;
    for (const auto& [log_prob, id] : (*current)[i].top) current_log_probs[id] = log_prob;
    PolicyPair pair;
    for (const auto& [log_prob, id] : (*behavior)[i].top) {
      const auto found = current_log_probs.find(id);
      if (found == current_log_probs.end()) break;
      pair.behavior.push_back(log_prob);
      pair.current.push_back(found->second);
    }
    if (pair.behavior.size() == kSlots) pairs.positions.push_back(std::move(pair));
    if ((*behavior)[i].sampled_id != (*current)[i].sampled_id) break;
  }
  return pairs;
}

absl::StatusOr<PolicyPairs> RecordedSetsWithDrift(std::string name, const std::string& path,
                                                  double drift) {
  const auto behavior = Read(path);
  if (!behavior.ok()) return behavior.status();
  PolicyPairs pairs{.name = std::move(name), .slots = kSlots, .positions = {}};
  std::mt19937 random(2);
  std::normal_distribution<double> normal;
  for (const Recorded& position : *behavior) {
    PolicyPair& pair = pairs.positions.emplace_back();
    double covered = 0;
    double sum = 0;
    for (const auto& [log_prob, id] : position.top) {
      pair.behavior.push_back(log_prob);
      pair.current.push_back(static_cast<float>(log_prob + drift * normal(random)));
      covered += std::exp(static_cast<double>(log_prob));
      sum += std::exp(static_cast<double>(pair.current.back()));
    }
    sum += std::max(0.0, 1 - covered);
    for (float& log_prob : pair.current) log_prob -= static_cast<float>(std::log(sum));
  }
  return pairs;
}

}  // namespace sis
