#include "tests/conformance/recorded_pairs.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <map>
#include <random>
#include <stdexcept>
#include <utility>

#include "nlohmann/json.hpp"

namespace sis {
namespace {

struct Recorded {
  int32_t sampled_id;
  std::vector<std::pair<float, int32_t>> top;  // most probable first, ties by id
};

std::vector<Recorded> Read(const std::string& path) {
  std::ifstream file(path);
  const nlohmann::json json = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) throw std::runtime_error(path + " is no JSON file");
  std::vector<Recorded> positions;
  for (const nlohmann::json& content : json["logprobs"]["content"]) {
    Recorded& position = positions.emplace_back();
    position.sampled_id = content["id"];
    for (const nlohmann::json& slot : content["top_logprobs"]) {
      position.top.emplace_back(slot["logprob"], slot["id"]);
    }
    std::ranges::sort(position.top, [](const auto& left, const auto& right) {
      return left.first != right.first ? left.first > right.first : left.second < right.second;
    });
  }
  return positions;
}

PolicyPair PairOf(const Recorded& position, std::vector<float> current) {
  PolicyPair pair{.ids = {}, .behavior = {}, .current = std::move(current)};
  for (const auto& [log_prob, id] : position.top) {
    pair.ids.push_back(id);
    pair.behavior.push_back(log_prob);
  }
  return pair;
}

}  // namespace

std::vector<PolicyPair> RecordedPairs(const std::string& cpu_path, const std::string& gpu_path) {
  const std::vector<Recorded> behavior = Read(cpu_path), current = Read(gpu_path);
  std::vector<PolicyPair> pairs;
  for (size_t i = 0; i < std::min(behavior.size(), current.size()); ++i) {
    std::map<int32_t, float> log_probs;
    for (const auto& [log_prob, id] : current[i].top) log_probs[id] = log_prob;
    std::vector<float> values;
    for (const auto& [log_prob, id] : behavior[i].top) {
      if (log_probs.contains(id)) values.push_back(log_probs[id]);
    }
    if (values.size() == behavior[i].top.size()) {
      pairs.push_back(PairOf(behavior[i], std::move(values)));
    }
    if (behavior[i].sampled_id != current[i].sampled_id) break;
  }
  return pairs;
}

std::vector<PolicyPair> RecordedSetsWithDrift(const std::string& path, double drift) {
  std::vector<PolicyPair> pairs;
  std::mt19937 random(2);
  std::normal_distribution<double> normal;
  for (const Recorded& position : Read(path)) {
    std::vector<float> current;
    double covered = 0, sum = 0;
    for (const auto& [log_prob, id] : position.top) {
      current.push_back(static_cast<float>(log_prob + drift * normal(random)));
      covered += std::exp(static_cast<double>(log_prob));
      sum += std::exp(static_cast<double>(current.back()));
    }
    sum += std::max(0.0, 1 - covered);
    for (float& log_prob : current) log_prob -= static_cast<float>(std::log(sum));
    pairs.push_back(PairOf(position, std::move(current)));
  }
  return pairs;
}

}  // namespace sis
