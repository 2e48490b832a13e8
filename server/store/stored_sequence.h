// What outlives the memory of a server, so that a restart finds the sequences again.
//
// A stored sequence is a log of entries numbered 0, 1, 2, ...; replaying it gives the sequence. A
// whole form may replace all entries before a number; entries from there on still count.
// docs/adr/0010-a-stored-sequence-is-a-log.md says why.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/block/block.h"

namespace sis {

// At most 256 bytes each: run_id and id.
struct SequenceIdentity {
  std::string run_id;
  uint64_t incarnation = 0;
  std::string id;
  uint32_t attempt = 0;

  friend auto operator<=>(const SequenceIdentity&, const SequenceIdentity&) = default;
};

// "sequence 'a' attempt 0 of run 'r' incarnation 1", for messages.
std::string ToString(const SequenceIdentity& sequence);

struct LogEntry {
  enum class Kind : uint8_t { kBlock = 1, kSeal = 2, kGap = 3 };
  Kind kind = Kind::kBlock;
  // Of a block or gap the first position, of a seal its length.
  uint32_t position = 0;
  // A block's bytes; of a gap its length and reason; of a seal its annotation, a serialised
  // v1::Annotation, or nothing. The store doesn't look into them. At most kMaxPayloadBytes.
  std::string payload = {};

  friend bool operator==(const LogEntry&, const LogEntry&) = default;
};

inline constexpr size_t kMaxPayloadBytes = kMaxBlockBytes;

struct StoredSequence {
  // Replaces the entries before first_entry; absent if they are all in the log.
  std::optional<std::string> whole_form = {};
  // The number of entries[0].
  uint32_t first_entry = 0;
  std::vector<LogEntry> entries = {};
  // Set, with nothing else, if the sequence was dropped: a v1::MissingReason.
  std::optional<uint8_t> dropped = {};
};

struct DroppedSequence {
  SequenceIdentity sequence;
  // A v1::MissingReason.
  uint8_t reason = 0;
};

struct StoredRun {
  std::string run_id = {};
  uint64_t incarnation = 0;
  uint64_t policy_version = 0;
  // A serialised v1::RunConfig; empty if this incarnation was deleted, and all before it.
  std::string config = {};

  bool deleted() const { return config.empty(); }

  friend bool operator==(const StoredRun&, const StoredRun&) = default;
};

// What can be listed of runs.
struct ListedRuns {
  std::vector<StoredRun> runs = {};
  // Of those whose record can't be read the ids, and why.
  std::vector<std::pair<std::string, absl::Status>> unreadable = {};
};

}  // namespace sis
