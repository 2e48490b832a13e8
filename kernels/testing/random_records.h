// Random valid records for the tests of pages.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/numerics/log_prob.h"
#include "kernels/page/encoded_page.h"
#include "kernels/testing/random_positions.h"

namespace sis {

struct Records {
  std::vector<int32_t> sampled_ids;
  std::vector<float> sampled_log_probs;
  std::vector<int32_t> ids;
  std::vector<float> log_probs;
  std::vector<uint16_t> ranks;

  RecordView view() const { return {sampled_ids, sampled_log_probs, ids, log_probs}; }
};

// Ends each set somewhere, as a mass target does.
inline void CutSomewhere(RandomPositions& random, size_t slots, Records& records) {
  for (size_t i = 0; i < records.ranks.size(); ++i) {
    const size_t used = random.Below(slots + 1);
    const auto from = static_cast<std::ptrdiff_t>(i * slots + used);
    const auto to = static_cast<std::ptrdiff_t>((i + 1) * slots);
    std::fill(records.ids.begin() + from, records.ids.begin() + to, -1);
    std::fill(records.log_probs.begin() + from, records.log_probs.begin() + to, kMinusInfinity);
    if (records.ranks[i] < slots && records.ranks[i] >= used) records.ranks[i] = kRankOutside;
  }
}

// Some positions are absent; the vocabulary must be larger than the slots. Those of ragged pages
// have sets of any length.
inline Records RandomRecords(const PageHeader& header, uint32_t seed) {
  RandomPositions random(seed);
  Records records;
  for (uint32_t i = 0; i < header.positions; ++i) {
    const RandomPosition position = random.Next(header.slots);
    std::vector<int32_t> ids;
    while (ids.size() <= position.used) {
      const auto id = static_cast<int32_t>(random.Below(header.vocabulary_size));
      if (std::ranges::find(ids, id) == ids.end()) ids.push_back(id);
    }
    const int32_t other_id = ids.back();
    ids.pop_back();
    for (size_t slot = 0; slot < position.used;) {  // ties go by id
      size_t end = slot + 1;
      while (end < position.used && position.behavior[end] == position.behavior[slot]) ++end;
      std::ranges::sort(std::span(ids).subspan(slot, end - slot));
      slot = end;
    }
    const size_t drawn = random.Below(position.used + 1);
    const bool inside = drawn < position.used;
    const bool absent = random.Below(10) == 0;
    records.sampled_ids.push_back(inside ? ids[drawn] : other_id);
    records.sampled_log_probs.push_back(inside ? position.behavior[drawn] : -12.3456789f);
    records.ranks.push_back(absent   ? kRankAbsent
                            : inside ? static_cast<uint16_t>(drawn)
                                     : kRankOutside);
    ids.resize(header.slots, -1);
    records.ids.insert(records.ids.end(), ids.begin(), ids.end());
    records.log_probs.insert(records.log_probs.end(), position.behavior.begin(),
                             position.behavior.end());
  }
  if (header.ragged()) CutSomewhere(random, static_cast<size_t>(header.slots), records);
  return records;
}

inline std::vector<std::byte> Encode(const PageHeader& header, const Records& records) {
  const PageHeader counted = HeaderOf(header, records.view(), records.ranks);
  std::vector<std::byte> page(PageBytes(counted));
  EncodePage(counted, records.view(), records.ranks, page);
  return page;
}

}  // namespace sis
