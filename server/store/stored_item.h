// The bytes of stored items. Every value carries its own key, when it expires, and a CRC-32C over
// all of it, so that a wrong value is never taken for the right one. Numbers in values are
// little-endian, in keys big-endian, so that keys sort by run, incarnation, sequence and number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/store/stored_sequence.h"

namespace sis {

// --- Keys ---

// What all keys of a run record, or of a sequence, begin with; no such prefix begins another.
std::string RunKey(std::string_view run_id);
std::string SequencePrefix(const SequenceIdentity& sequence);
// What the prefixes of an incarnation's sequences begin with.
std::string IncarnationPrefix(std::string_view run_id, uint64_t incarnation);

// Whether the sequence is sealed or dropped; absent while it is neither.
std::string StateKey(std::string_view sequence_prefix);
std::string EntryKey(std::string_view sequence_prefix, uint32_t number);
// `form` names the contents, so that fragments of two forms never mix.
std::string FragmentKey(std::string_view sequence_prefix, uint32_t form, uint32_t number);

// What the keys of an incarnation's steps begin with: behind all of its sequences, and dropped with
// them.
std::string StepsPrefix(std::string_view run_id, uint64_t incarnation);
// `slot` is the place in the ring of the draws that are kept.
std::string StepKey(std::string_view run_id, uint64_t incarnation, uint16_t slot);

// What all keys of run records, and of sequences, begin with.
inline constexpr std::string_view kRunKeys = "R";
inline constexpr std::string_view kSequenceKeys = "S";
// Of the key of a run record; of another key, that key.
std::string RunOfKey(std::string_view key);
// Of a key of a sequence; nullopt if it is none.
std::optional<SequenceIdentity> SequenceOfKey(std::string_view key);
// Returns the run id and incarnation of a step's key; nullopt for other keys.
std::optional<std::pair<std::string, uint64_t>> IncarnationOfStep(std::string_view key);
// The first key behind all that begin with this prefix, which must not be all 0xff.
std::string EndOfPrefix(std::string prefix);

// --- Values ---

std::string WrapItem(std::string_view key, absl::Time expires, std::string_view payload);
// The payload, a view of `item`. DataLoss if the item is not what WrapItem made for this key.
absl::StatusOr<std::string_view> UnwrapItem(std::string_view key, std::string_view item);
// The same, parsed by one of the parsers below.
template <typename T>
absl::StatusOr<T> UnwrapItem(std::string_view key, std::string_view item,
                             absl::StatusOr<T> (*parse)(std::string_view payload)) {
  const absl::StatusOr<std::string_view> payload = UnwrapItem(key, item);
  return payload.ok() ? parse(*payload) : payload.status();
}
// Unchecked but for the length; InfiniteFuture if it is too short to say.
absl::Time ItemExpires(std::string_view item);

// Of a whole form, each but the last.
inline constexpr size_t kFragmentBytes = size_t{512} << 10;
// More than any whole form has.
inline constexpr uint64_t kMostFormBytes = uint64_t{16} << 30;
constexpr uint64_t FragmentsOf(uint64_t form_bytes) {
  return (form_bytes + kFragmentBytes - 1) / kFragmentBytes;
}

struct SequenceState {
  // Set if it was dropped: a v1::MissingReason. The rest is what is to be removed then.
  uint8_t dropped = 0;
  // The whole form replaces the entries before this.
  uint32_t entries = 0;
  // Its CRC-32C, and its name in the keys of its fragments.
  uint32_t form = 0;
  // As many as its bytes take.
  uint32_t fragments = 0;
  uint64_t bytes = 0;

  friend bool operator==(const SequenceState&, const SequenceState&) = default;
};

// Parsers get DataLoss for bytes that the encoder did not make.
std::string EncodeEntry(const LogEntry& entry);
absl::StatusOr<LogEntry> ParseEntry(std::string_view payload);
std::string EncodeState(const SequenceState& state);
absl::StatusOr<SequenceState> ParseState(std::string_view payload);
std::string EncodeRun(const StoredRun& run);
absl::StatusOr<StoredRun> ParseRun(std::string_view payload);

}  // namespace sis
