#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "client/replicas/merged.h"

namespace sis {
namespace {

// As many as a server lists where a request does not say.
constexpr int kSequencesOfAPage = 1000;
// As many as a server names.
constexpr int kDeviations = 64;

// By how much the token is more frequent among the rejected than among the accepted; the totals of
// both are the same for every token.
double Odds(const v1::InspectRunResponse::TokenCounts& token) {
  return (static_cast<double>(token.rejected()) + 1) / (static_cast<double>(token.accepted()) + 1);
}

}  // namespace

v1::ListSequencesResponse Merged(const std::vector<v1::ListSequencesResponse>& parts) {
  std::map<std::pair<std::string, uint32_t>, v1::ListSequencesResponse::Sequence> by_name;
  v1::ListSequencesResponse merged;
  for (const v1::ListSequencesResponse& part : parts) {
    for (const auto& listed : part.sequences()) {
      by_name.try_emplace({listed.sequence().id(), listed.sequence().attempt()}, listed);
    }
    merged.set_more(merged.more() || part.more());
    merged.set_store_keeps_evicted(merged.store_keeps_evicted() || part.store_keeps_evicted());
  }
  for (auto& [name, listed] : by_name) {
    if (merged.sequences_size() == kSequencesOfAPage) {
      merged.set_more(true);
      break;
    }
    *merged.add_sequences() = std::move(listed);
  }
  return merged;
}

v1::InspectRunResponse Merged(const std::vector<v1::InspectRunResponse>& parts) {
  v1::InspectRunResponse merged;
  std::map<uint32_t, v1::InspectRunResponse::TokenCounts> tokens;
  for (const v1::InspectRunResponse& part : parts) {
    merged.mutable_sequences()->MergeFrom(part.sequences());
    merged.mutable_deviations()->MergeFrom(part.deviations());
    for (const auto& counts : part.tokens()) {
      auto& token = tokens[counts.token_id()];
      token.set_token_id(counts.token_id());
      token.set_accepted(token.accepted() + counts.accepted());
      token.set_rejected(token.rejected() + counts.rejected());
      token.set_max_error(token.max_error() + counts.max_error());
    }
  }
  const auto name = [](const auto& of) {
    return std::tuple<const std::string&, uint32_t>(of.sequence().id(), of.sequence().attempt());
  };
  std::stable_sort(merged.mutable_sequences()->begin(), merged.mutable_sequences()->end(),
                   [&](const auto& a, const auto& b) {
                     return std::tuple(name(a), b.draw()) < std::tuple(name(b), a.draw());
                   });
  const auto again =
      std::unique(merged.mutable_sequences()->begin(), merged.mutable_sequences()->end(),
                  [&](const auto& a, const auto& b) { return name(a) == name(b); });
  merged.mutable_sequences()->erase(again, merged.mutable_sequences()->end());
  std::stable_sort(merged.mutable_deviations()->begin(), merged.mutable_deviations()->end(),
                   [](const auto& a, const auto& b) {
                     return std::abs(a.log_ratio()) > std::abs(b.log_ratio());
                   });
  if (const int more = merged.deviations_size() - kDeviations; more > 0) {
    merged.mutable_deviations()->DeleteSubrange(kDeviations, more);
  }
  for (const auto& [id, token] : tokens) *merged.add_tokens() = token;
  std::stable_sort(merged.mutable_tokens()->begin(), merged.mutable_tokens()->end(),
                   [](const auto& a, const auto& b) { return Odds(a) > Odds(b); });
  return merged;
}

}  // namespace sis
