// Short helpers for tests of stores, which write parts of sequences of one run.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "server/store/store.h"

namespace sis {

inline constexpr uint8_t kReleased = 5;

inline SequenceIdentity Sequence(std::string id) { return {"run", 3, std::move(id), 1}; }

inline StoredPart Block(uint32_t position, uint32_t count, std::string bytes) {
  return {StoredPart::Kind::kBlock, position, count, std::move(bytes)};
}
inline StoredPart Gap(uint32_t position, uint32_t count) {
  return {StoredPart::Kind::kGap, position, count, "\x08"};
}
inline StoredPart Seal(uint32_t length, std::string annotation = "") {
  return {StoredPart::Kind::kSeal, length, 0, std::move(annotation)};
}

// Puts parts whatever is stored.
inline absl::Status PutParts(Store& store, const SequenceIdentity& sequence,
                             std::span<const StoredPart> parts,
                             absl::Time expires = absl::InfiniteFuture()) {
  const absl::StatusOr<uint64_t> revision = store.Revision(sequence);
  if (!revision.ok()) return revision.status();
  return store.Put(sequence, {.revision = *revision, .added = parts, .expires = expires}).status();
}
inline absl::Status PutOne(Store& store, const SequenceIdentity& sequence, const StoredPart& part,
                           absl::Time expires = absl::InfiniteFuture()) {
  return PutParts(store, sequence, {&part, 1}, expires);
}

// Returns true if the sequence had parts.
inline absl::StatusOr<bool> DropOne(Store& store, const SequenceIdentity& sequence, uint8_t reason,
                                    absl::Time expires = absl::InfiniteFuture()) {
  const DroppedSequence dropped{.sequence = sequence, .reason = reason};
  const auto had_parts = store.Drop({&dropped, 1}, expires);
  if (!had_parts.ok()) return had_parts.status();
  return (*had_parts)[0];
}

}  // namespace sis
