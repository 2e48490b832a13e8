// Random valid records for the tests of pages.
#pragma once

#include <algorithm>
#include <cmath>
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
  std::vector<uint8_t> ranks;

  RecordView view() const { return {sampled_ids, sampled_log_probs, ids, log_probs}; }
};

// Some positions are absent; the vocabulary must be larger than the slots.
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
                            : inside ? static_cast<uint8_t>(drawn)
                                     : kRankOutside);
    ids.resize(header.slots, -1);
    records.ids.insert(records.ids.end(), ids.begin(), ids.end());
    records.log_probs.insert(records.log_probs.end(), position.behavior.begin(),
                             position.behavior.end());
  }
  return records;
}

inline std::vector<std::byte> Encode(const PageHeader& header, const Records& records) {
  std::vector<std::byte> page(PageBytes(header));
  EncodePage(header, records.view(), records.ranks, page);
  return page;
}

}  // namespace sis
