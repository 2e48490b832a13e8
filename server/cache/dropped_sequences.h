// The reasons why sequences of a run were dropped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "absl/hash/hash.h"
#include "server/cache/limits.h"
#include "server/cache/missing.h"
#include "server/cache/sequence_name.h"

namespace sis {

// Remembers the last kDroppedKept sequences by a 64-bit hash, which differs from process to
// process. An entry takes about 40 bytes, whatever the length of the name. Another name is mistaken
// for an entry with a probability of 2^-48. Not thread-safe.
class DroppedSequences {
 public:
  std::optional<MissingReason> Find(SequenceNameView name) const {
    const auto found = reasons_.find(Hash(name));
    return found == reasons_.end() ? std::nullopt : std::optional(found->second);
  }
  // Returns false, and keeps the earlier reason, if the sequence has one.
  bool Add(SequenceNameView name, MissingReason reason) {
    if (!reasons_.emplace(Hash(name), reason).second) return false;
    in_order_.push_back(Hash(name));
    if (in_order_.size() > kDroppedKept) {
      reasons_.erase(in_order_.front());
      in_order_.pop_front();
    }
    return true;
  }

 private:
  static uint64_t Hash(SequenceNameView name) { return absl::Hash<SequenceNameView>()(name); }

  absl::flat_hash_map<uint64_t, MissingReason> reasons_;
  std::deque<uint64_t> in_order_;
};

}  // namespace sis
