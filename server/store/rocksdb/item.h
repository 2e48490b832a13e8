// Keys and values of a RocksDbStore. Keys sort by run, incarnation, sequence, and then in the order
// of loading. Every value has its time of expiry, and a CRC-32C over key and value.
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

// Prefixes of the keys of run records, and of the keys of sequences and steps.
inline constexpr std::string_view kRunKeys = "R";
inline constexpr std::string_view kSequenceKeys = "S";

std::string RunKey(std::string_view run_id);

// Returns the prefix of a sequence's keys. No such prefix is the beginning of another.
std::string SequencePrefix(const SequenceIdentity& sequence);
// Returns the prefix of the keys of an incarnation's sequences and steps.
std::string IncarnationPrefix(std::string_view run_id, uint64_t incarnation);
// Returns run id and incarnation of a key of a sequence or step; nullopt for other keys.
std::optional<std::pair<std::string, uint64_t>> IncarnationOfKey(std::string_view key);

// Returns the key of the reason why a sequence was dropped. Sorts before all parts.
std::string TombstoneKey(std::string_view sequence_prefix);
std::string PartKey(std::string_view sequence_prefix, const StoredPart& part);
// Returns the prefix of the keys of a sequence's blocks.
std::string BlocksPrefix(std::string_view sequence_prefix);

std::string StepsPrefix(std::string_view run_id, uint64_t incarnation);
// `slot` is the index in the ring of the stored steps.
std::string StepKey(std::string_view run_id, uint64_t incarnation, uint16_t slot);

// Returns the first key after all keys with this prefix, which must have a byte other than 0xff.
std::string EndOfPrefix(std::string prefix);

// --- Values ---

std::string WrapItem(std::string_view key, absl::Time expires, std::string_view payload);
// Returns the payload, a view of `item`. Returns DataLoss if WrapItem did not make `item` for this
// key.
absl::StatusOr<std::string_view> UnwrapItem(std::string_view key, std::string_view item);
// Returns the time of expiry, without a check of the CRC; InfiniteFuture if `item` is too short.
absl::Time ItemExpires(std::string_view item);

// The parsers return DataLoss for bytes that the encoders did not make.
std::string EncodePart(const StoredPart& part);
absl::StatusOr<StoredPart> ParsePart(std::string_view payload);
// Encodes a run without its id, which is in the key.
std::string EncodeRun(const StoredRun& run);
absl::StatusOr<StoredRun> ParseRun(std::string_view payload);

}  // namespace sis
