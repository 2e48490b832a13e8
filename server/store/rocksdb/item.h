// Keys and values of a RocksDbStore. Keys sort by run, incarnation, sequence, and then as a
// sequence is loaded. Every value says when it expires, and carries a CRC-32C over its key and
// itself.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/store/store.h"

namespace sis {

// --- Keys ---

// What all keys of run records begin with, and those of sequences and steps.
inline constexpr std::string_view kRunKeys = "R";
inline constexpr std::string_view kSequenceKeys = "S";

std::string RunKey(std::string_view run_id);

// What the keys of a sequence begin with; no such prefix begins another.
std::string SequencePrefix(const SequenceIdentity& sequence);
// What the keys of an incarnation's sequences and steps begin with.
std::string IncarnationPrefix(std::string_view run_id, uint64_t incarnation);
// Of such a key. Nullopt for other keys.
std::optional<std::pair<std::string, uint64_t>> IncarnationOfKey(std::string_view key);

// The reason why the sequence was dropped; sorts before all parts.
std::string TombstoneKey(std::string_view sequence_prefix);
std::string PartKey(std::string_view sequence_prefix, const StoredPart& part);
// Begins the keys of its blocks.
std::string BlocksPrefix(std::string_view sequence_prefix);

std::string StepsPrefix(std::string_view run_id, uint64_t incarnation);
// `slot` is the place in the ring of the steps that are kept.
std::string StepKey(std::string_view run_id, uint64_t incarnation, uint16_t slot);

// The first key behind all that begin with this prefix, which must not be all 0xff.
std::string EndOfPrefix(std::string prefix);

// --- Values ---

std::string WrapItem(std::string_view key, absl::Time expires, std::string_view payload);
// The payload, a view of `item`. DataLoss if the item is not what WrapItem made for this key.
absl::StatusOr<std::string_view> UnwrapItem(std::string_view key, std::string_view item);
// Unchecked but for the length; InfiniteFuture if it is too short to say.
absl::Time ItemExpires(std::string_view item);

// Parsers get DataLoss for bytes that the encoder did not make.
std::string EncodePart(const StoredPart& part);
absl::StatusOr<StoredPart> ParsePart(std::string_view payload);
// Without the run's id, which its key has.
std::string EncodeRun(const StoredRun& run);
absl::StatusOr<StoredRun> ParseRun(std::string_view payload);

}  // namespace sis
