#include "client/api/gather.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace sis {
namespace {

absl::Status NotBelow(absl::string_view field, size_t position, int32_t id, size_t vocabulary) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, ", position ", position, ": ", id, " is not below ", vocabulary));
}

}  // namespace

absl::StatusOr<GatheredColumns> Gather(const TopKRecords& records,
                                       std::span<const float> log_softmax,
                                       std::span<const int32_t> sampled_ids) {
  const size_t positions = records.positions();
  const size_t slots = records.top_k;
  const std::span<const uint16_t> counts = records.top_k_counts;
  const size_t all_slots =
      counts.empty() ? positions * slots : std::accumulate(counts.begin(), counts.end(), size_t{0});
  if (records.ids.size() != all_slots || records.sampled_ids.size() != positions) {
    return absl::InvalidArgumentError("records: ids and sampled_ids were not fetched");
  }
  GatheredColumns gathered;
  if (positions == 0) return gathered;
  const size_t vocabulary = log_softmax.size() / positions;
  if (vocabulary == 0 || log_softmax.size() % positions != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "log_softmax: ", log_softmax.size(), " elements are no rows of ", positions, " positions"));
  }
  if (!sampled_ids.empty() && sampled_ids.size() != positions) {
    return absl::InvalidArgumentError(
        absl::StrCat("sampled_ids: ", sampled_ids.size(), " elements, must be ", positions));
  }
  gathered.log_probs.reserve(all_slots);
  gathered.top_k_counts.assign(counts.begin(), counts.end());
  gathered.sampled_log_probs.reserve(positions);
  size_t next = 0;
  for (size_t i = 0; i < positions; ++i) {
    const std::span<const float> row = log_softmax.subspan(i * vocabulary, vocabulary);
    const size_t own = counts.empty() ? slots : counts[i];
    for (const int32_t id : records.ids.subspan(next, own)) {
      if (id >= static_cast<int64_t>(vocabulary)) return NotBelow("ids", i, id, vocabulary);
      gathered.log_probs.push_back(row[std::max(id, 0)]);
    }
    next += own;
    int32_t token = records.sampled_ids[i];
    if (token < 0 && !sampled_ids.empty()) token = sampled_ids[i];
    if (token >= static_cast<int64_t>(vocabulary)) {
      return NotBelow("sampled_ids", i, token, vocabulary);
    }
    gathered.sampled_log_probs.push_back(token < 0 ? std::numeric_limits<float>::quiet_NaN()
                                                   : row[token]);
  }
  return gathered;
}

}  // namespace sis
