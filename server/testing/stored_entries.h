// Short names for what tests of a store write: sequences of one run.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "server/store/sequence_store.h"

namespace sis {

inline constexpr uint8_t kReleased = 5;

inline SequenceIdentity Sequence(std::string id) { return {"run", 3, std::move(id), 1}; }

inline LogEntry Block(uint32_t position, std::string rows) {
  return {LogEntry::Kind::kBlock, position, std::move(rows)};
}

inline absl::Status AppendOne(SequenceStore& store, const SequenceIdentity& sequence,
                              uint32_t number, const LogEntry& entry) {
  return store.Append(sequence, number, {&entry, 1});
}

inline absl::Status DropOne(SequenceStore& store, const SequenceIdentity& sequence,
                            uint8_t reason) {
  const DroppedSequence dropped{.sequence = sequence, .reason = reason};
  return store.Drop({&dropped, 1});
}

}  // namespace sis
