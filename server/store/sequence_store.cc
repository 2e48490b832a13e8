#include "server/store/sequence_store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/numerics/crc32c.h"

namespace sis {
namespace {

// Entries asked for at once, and how many must be missing in a row to be the end of a log: a
// shorter stretch in its midst is a hole.
constexpr uint32_t kWindow = 64;
constexpr uint32_t kMissingAtEnd = 32;
// Fragments asked for, or removed, at once.
constexpr uint32_t kFragmentsAtOnce = 16;
// During a Read the whole form may be written; more often than this it may not.
constexpr int kReadAttempts = 4;

std::vector<std::string> EntryKeys(const std::string& prefix, uint32_t first, uint32_t last) {
  std::vector<std::string> keys;
  for (uint32_t n = first; n < last; ++n) keys.push_back(EntryKey(prefix, n));
  return keys;
}

// Those from `first` on, kFragmentsAtOnce at most.
std::vector<std::string> FragmentKeys(const std::string& prefix, const SequenceState& state,
                                      uint32_t first) {
  std::vector<std::string> keys;
  const uint32_t last = std::min(state.fragments, first + kFragmentsAtOnce);
  for (uint32_t n = first; n < last; ++n) keys.push_back(FragmentKey(prefix, state.form, n));
  return keys;
}

absl::Status Lost(std::string_view what) {
  return absl::DataLossError(absl::StrCat("the store has lost ", std::string(what)));
}

}  // namespace

absl::StatusOr<SequenceState> SequenceStore::GetState(const std::string& prefix,
                                                      absl::StatusOr<std::string>* as_stored) {
  const std::string key = StateKey(prefix);
  const absl::StatusOr<std::string> item = Get(key);
  if (as_stored != nullptr) *as_stored = item;
  if (!item.ok()) return item.status();
  return UnwrapItem(key, *item, ParseState);
}

absl::Status SequenceStore::Append(const SequenceIdentity& sequence, uint32_t first,
                                   std::span<const LogEntry> entries, absl::Time expires) {
  return Counted("append", [&]() -> absl::Status {
    const std::string prefix = SequencePrefix(sequence);
    std::vector<Item> items;
    int64_t bytes = 0;
    for (const LogEntry& entry : entries) {
      if (entry.payload.size() > kMaxPayloadBytes) {
        return absl::InvalidArgumentError(absl::StrCat(ToString(sequence), ": an entry of ",
                                                       entry.payload.size(), " bytes; at most ",
                                                       kMaxPayloadBytes, " are allowed"));
      }
      const uint32_t number = first + static_cast<uint32_t>(items.size());
      items.push_back(MakeItem(EntryKey(prefix, number), expires, EncodeEntry(entry)));
      bytes += static_cast<int64_t>(entry.payload.size());
    }
    if (absl::Status added = items_->Add(items); !added.ok()) return added;
    // Read after the entries are written: a drop at the same time finds them, or is found here.
    const absl::StatusOr<SequenceState> state = GetState(prefix);
    absl::Status status = absl::IsNotFound(state.status()) ? absl::OkStatus() : state.status();
    if (state.ok() && state->dropped != 0) {
      status = absl::FailedPreconditionError(
          absl::StrCat(ToString(sequence), " was dropped (", state->dropped, ")"));
    }
    if (status.ok()) {
      CountBytes(bytes, 0);
    } else {
      RemoveEntries(prefix, first, first + static_cast<uint32_t>(items.size())).IgnoreError();
    }
    return status;
  });
}

absl::StatusOr<std::string> SequenceStore::GetWholeForm(const std::string& prefix,
                                                        const SequenceState& state) {
  std::string form;
  uint32_t crc = 0;
  for (uint32_t first = 0; first < state.fragments; first += kFragmentsAtOnce) {
    const std::vector<std::string> keys = FragmentKeys(prefix, state, first);
    const std::vector<absl::StatusOr<std::string>> items = items_->Get(keys);
    for (size_t n = 0; n < keys.size(); ++n) {
      if (absl::IsNotFound(items[n].status())) return Lost("a part of the whole form");
      if (!items[n].ok()) return items[n].status();
      const absl::StatusOr<std::string_view> payload = UnwrapItem(keys[n], *items[n]);
      if (!payload.ok()) return payload.status();
      crc = ExtendCrc32c(crc, std::as_bytes(std::span(*payload)));
      form.append(*payload);
    }
  }
  if (form.size() != state.bytes || crc != state.form) {
    return absl::DataLossError("the whole form is not what its record says");
  }
  return form;
}

absl::StatusOr<std::vector<LogEntry>> SequenceStore::GetEntries(
    const std::string& prefix, uint32_t first, const absl::StatusOr<std::string>& state) {
  std::vector<LogEntry> entries;
  for (uint32_t missing = 0; missing < kMissingAtEnd; first += kWindow) {
    std::vector<std::string> keys = EntryKeys(prefix, first, first + kWindow);
    keys.push_back(StateKey(prefix));
    const std::vector<absl::StatusOr<std::string>> items = items_->Get(keys);
    // Read last, and written before any entry goes: if it is what it was, none of these is gone.
    const absl::StatusOr<std::string>& now = items.back();
    if (!now.ok() && !absl::IsNotFound(now.status())) return now.status();
    if (now.ok() != state.ok() || (now.ok() && *now != *state)) {
      return absl::AbortedError("sealed or dropped meanwhile");
    }
    for (size_t n = 0; n < kWindow; ++n) {
      if (absl::IsNotFound(items[n].status())) {
        ++missing;
        continue;
      }
      if (!items[n].ok()) return items[n].status();
      if (missing > 0) return Lost("an entry of the log");
      absl::StatusOr<LogEntry> entry = UnwrapItem(keys[n], *items[n], ParseEntry);
      if (!entry.ok()) return entry.status();
      entries.push_back(*std::move(entry));
    }
  }
  return entries;
}

absl::StatusOr<StoredSequence> SequenceStore::ReadOnce(const std::string& prefix) {
  StoredSequence sequence;
  absl::StatusOr<std::string> state_item;
  const absl::StatusOr<SequenceState> state = GetState(prefix, &state_item);
  if (!state.ok() && !absl::IsNotFound(state.status())) return state.status();
  if (state.ok() && state->dropped != 0) {
    sequence.dropped = state->dropped;
    return sequence;
  }
  if (state.ok()) {
    absl::StatusOr<std::string> form = GetWholeForm(prefix, *state);
    if (!form.ok()) return form.status();
    sequence.whole_form = *std::move(form);
    sequence.first_entry = state->entries;
  }
  absl::StatusOr<std::vector<LogEntry>> entries =
      GetEntries(prefix, sequence.first_entry, state_item);
  if (!entries.ok()) return entries.status();
  sequence.entries = *std::move(entries);
  if (!state.ok() && sequence.entries.empty()) return absl::NotFoundError("nothing is stored");
  return sequence;
}

absl::StatusOr<StoredSequence> SequenceStore::Read(const SequenceIdentity& sequence) {
  return Counted("read", [&]() -> absl::StatusOr<StoredSequence> {
    const std::string prefix = SequencePrefix(sequence);
    absl::StatusOr<StoredSequence> read = ReadOnce(prefix);
    // What looks lost may have been replaced while it was read.
    const auto may_have_moved = [&] {
      return absl::IsAborted(read.status()) || absl::IsDataLoss(read.status());
    };
    for (int attempt = 1; attempt < kReadAttempts && may_have_moved(); ++attempt) {
      read = ReadOnce(prefix);
    }
    if (read.ok()) {
      int64_t bytes = static_cast<int64_t>(read->whole_form.value_or("").size());
      for (const LogEntry& entry : read->entries) {
        bytes += static_cast<int64_t>(entry.payload.size());
      }
      CountBytes(0, bytes);
      return read;
    }
    if (absl::IsAborted(read.status())) return absl::UnavailableError(read.status().message());
    return absl::Status(read.status().code(),
                        absl::StrCat(ToString(sequence), ": ", read.status().message()));
  });
}

absl::Status SequenceStore::RemoveEntries(const std::string& prefix, uint32_t first,
                                          uint32_t last) {
  for (;; first += kWindow) {
    const uint32_t end = last == 0 ? first + kWindow : std::min(last, first + kWindow);
    if (end <= first) return absl::OkStatus();
    const absl::StatusOr<size_t> removed = items_->Remove(EntryKeys(prefix, first, end));
    if (!removed.ok()) return removed.status();
    if (last == 0 && *removed == 0) return absl::OkStatus();
  }
}

absl::Status SequenceStore::RemoveFragments(const std::string& prefix, const SequenceState& state) {
  for (uint32_t first = 0; first < state.fragments; first += kFragmentsAtOnce) {
    absl::Status removed = items_->Remove(FragmentKeys(prefix, state, first)).status();
    if (!removed.ok()) return removed;
  }
  return absl::OkStatus();
}

absl::Status SequenceStore::WriteWholeForm(const SequenceIdentity& sequence, uint32_t entries,
                                           std::string_view form, absl::Time expires) {
  absl::Status sealed = Counted("seal", [&]() -> absl::Status {
    const std::string prefix = SequencePrefix(sequence);
    WriterLock lock(states_);
    const absl::StatusOr<SequenceState> before = GetState(prefix);
    if (!before.ok() && !absl::IsNotFound(before.status())) return before.status();
    const SequenceState old = before.value_or(SequenceState());
    if (old.dropped != 0) {
      return absl::FailedPreconditionError(absl::StrCat(ToString(sequence), " was dropped"));
    }
    if (before.ok() && old.entries >= entries) return absl::OkStatus();
    const SequenceState state{.entries = entries,
                              .form = ExtendCrc32c(0, std::as_bytes(std::span(form))),
                              .fragments = static_cast<uint32_t>(FragmentsOf(form.size())),
                              .bytes = form.size()};
    for (uint32_t n = 0; n < state.fragments; ++n) {
      absl::Status written = Put(MakeItem(FragmentKey(prefix, state.form, n), expires,
                                          form.substr(n * kFragmentBytes, kFragmentBytes)));
      if (!written.ok()) return written;
    }
    absl::Status status = Put(MakeItem(StateKey(prefix), expires, EncodeState(state)));
    if (status.ok() && old.form != state.form) status = RemoveFragments(prefix, old);
    return status.ok() ? RemoveEntries(prefix, old.entries, entries) : status;
  });
  if (sealed.ok()) CountBytes(static_cast<int64_t>(form.size()), 0);
  return sealed;
}

absl::StatusOr<bool> SequenceStore::Has(const SequenceIdentity& sequence) {
  return Counted("has", [&]() -> absl::StatusOr<bool> {
    const std::string prefix = SequencePrefix(sequence);
    const absl::StatusOr<SequenceState> state = GetState(prefix);
    if (state.ok()) return state->dropped == 0;
    if (absl::IsDataLoss(state.status())) return true;
    if (!absl::IsNotFound(state.status())) return state.status();
    const absl::Status found = Get(EntryKey(prefix, 0)).status();
    if (absl::IsUnavailable(found)) return found;
    return !absl::IsNotFound(found);
  });
}

absl::Status SequenceStore::Drop(std::span<const DroppedSequence> sequences) {
  return Counted("drop", [&]() -> absl::Status {
    WriterLock lock(states_);
    std::vector<Item> records;
    for (const auto& [sequence, reason] : sequences) {
      const std::string prefix = SequencePrefix(sequence);
      const absl::StatusOr<SequenceState> present = GetState(prefix);
      if (absl::IsUnavailable(present.status())) {
        return absl::UnavailableError(
            absl::StrCat(ToString(sequence), ": ", present.status().message()));
      }
      SequenceState state = present.value_or(SequenceState());
      if (state.dropped != 0) continue;
      state.dropped = reason;
      // Until all else is removed the record stays, or what is left would count again.
      records.push_back(MakeItem(StateKey(prefix), absl::InfiniteFuture(), EncodeState(state)));
    }
    return records.empty() ? absl::OkStatus() : items_->Put(records);
  });
}

absl::Status SequenceStore::RemoveDropped(const SequenceIdentity& sequence, absl::Time expires) {
  return Counted("remove", [&]() -> absl::Status {
    const std::string prefix = SequencePrefix(sequence);
    absl::StatusOr<std::string> item;
    const absl::StatusOr<SequenceState> state = GetState(prefix, &item);
    if (absl::IsNotFound(state.status())) return absl::OkStatus();
    if (!state.ok()) return state.status();
    const bool removed_before = ItemExpires(*item) != absl::InfiniteFuture();
    if (state->dropped == 0 || removed_before) return absl::OkStatus();
    absl::Status removed = RemoveFragments(prefix, *state);
    if (removed.ok()) removed = RemoveEntries(prefix, state->entries, 0);
    if (!removed.ok()) return removed;
    return Put(
        MakeItem(StateKey(prefix), expires, EncodeState(SequenceState{.dropped = state->dropped})));
  });
}

}  // namespace sis
