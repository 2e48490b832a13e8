// Whatever the files hold, reading them ends in a status or in sets that keep their promises.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <set>

#include "client/recorded/recorded_log_probs.h"
#include "client/recorded/recorded_sets.h"
#include "kernels/records/record_view.h"

namespace {

void Check(bool holds) {
  if (!holds) std::abort();
}

void CheckSets(const sis::RecordedSets& sets, int32_t vocabulary_size) {
  for (const sis::RecordedSet& set : sets) {
    Check(set.top.size() <= static_cast<size_t>(sis::kMaxTopK));
    Check(set.sampled_id >= 0 && set.sampled_id < vocabulary_size);
    Check(!std::isnan(set.sampled_log_prob));
    std::set<int32_t> ids;
    for (size_t slot = 0; slot < set.top.size(); ++slot) {
      const sis::ListedToken& token = set.top[slot];
      Check(token.id >= 0 && token.id < vocabulary_size && ids.insert(token.id).second);
      Check(std::isfinite(token.log_prob));
      Check(slot == 0 || token.log_prob <= set.top[slot - 1].log_prob);
      if (token.id == set.sampled_id) Check(token.log_prob == set.sampled_log_prob);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  const auto sequences = sis::ParseRecordedLogProbs(text, "input");
  if (!sequences.ok()) return 0;
  const auto pair = sis::PairRecordings(*sequences, "input", *sequences, "input");
  if (!pair.ok()) return 0;
  for (const sis::Recording& recording : {pair->a, pair->b}) {
    for (const sis::RecordedSets& sets : recording.sequences) {
      CheckSets(sets, pair->vocabulary_size);
    }
  }
  return 0;
}
