#include "server/store/sequence_store.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/numerics/crc32c.h"
#include "server/cache/missing.h"

namespace sis {
namespace {

// Entries asked for at once, and how many must be missing in a row to be the end of a log: a
// shorter stretch in its midst is a hole.
constexpr uint32_t kWindow = 64;
constexpr uint32_t kMissingAtEnd = 32;
// Fragments asked for, or removed, at once.
constexpr uint32_t kFragmentsAtOnce = 16;
// Between two reads of one Read another replica may append or seal; more often it may not.
constexpr int kReadAttempts = 4;
// The same of a drop.
constexpr int kDropAttempts = 4;

constexpr auto kStale = static_cast<uint8_t>(MissingReason::kStale);

ItemKey InGroup(const std::string& prefix, std::string key) { return {prefix, std::move(key)}; }

ItemKey KeyOfState(const std::string& prefix) { return InGroup(prefix, StateKey(prefix)); }

ItemKey Witness(const std::string& prefix) {
  return {.group = prefix, .key = WitnessKey(prefix), .elsewhere = true};
}

std::vector<ItemKey> EntryKeys(const std::string& prefix, uint32_t first, uint32_t last) {
  std::vector<ItemKey> keys;
  for (uint32_t n = first; n < last; ++n) keys.push_back(InGroup(prefix, EntryKey(prefix, n)));
  return keys;
}

// Those from `first` on, kFragmentsAtOnce at most.
std::vector<ItemKey> FragmentKeys(const std::string& prefix, const SequenceState& state,
                                  uint32_t first) {
  std::vector<ItemKey> keys;
  const uint32_t last = std::min(state.fragments, first + kFragmentsAtOnce);
  for (uint32_t n = first; n < last; ++n) {
    keys.push_back(InGroup(prefix, FragmentKey(prefix, state.form, n)));
  }
  return keys;
}

absl::Status Lost(std::string_view what) {
  return absl::ResourceExhaustedError(absl::StrCat("the store has lost ", std::string(what)));
}

}  // namespace

bool SequenceStore::IsDropped(const SequenceState& state) const {
  // As DropStale says it; a drop of all, of which no whole form was written, says 0.
  const bool is_of_entries = state.dropped == kStale && state.entries > 0 && shared();
  return state.dropped != 0 && !is_of_entries;
}

absl::StatusOr<SequenceState> SequenceStore::GetState(const std::string& prefix,
                                                      absl::StatusOr<std::string>* as_stored) {
  const ItemKey key = KeyOfState(prefix);
  const absl::StatusOr<std::string> item = Get(key);
  if (as_stored != nullptr) *as_stored = item;
  if (!item.ok()) return item.status();
  return UnwrapItem(key.key, *item, ParseState);
}

std::vector<absl::Status> SequenceStore::Append(std::span<const NewEntry> entries) {
  return Counted("append", [&] {
    std::vector<absl::Status> statuses(entries.size());
    std::map<SequenceIdentity, std::vector<int>> by_sequence;
    for (int i = 0; i < static_cast<int>(entries.size()); ++i) {
      by_sequence[entries[i].sequence].push_back(i);
    }
    // In turns, each with the next entry of every sequence that had no error yet.
    for (size_t turn = 0; !by_sequence.empty(); ++turn) {
      std::vector<int> chosen;
      for (const auto& [sequence, indices] : by_sequence) chosen.push_back(indices[turn]);
      AppendDifferent(entries, chosen, statuses);
      std::erase_if(by_sequence, [&](const auto& sequence) {
        const std::vector<int>& indices = sequence.second;
        const absl::Status& status = statuses[indices[turn]];
        if (status.ok()) return turn + 1 == indices.size();
        for (const int rest : std::span(indices).subspan(turn + 1)) statuses[rest] = status;
        return true;
      });
    }
    int64_t bytes = 0;
    for (size_t i = 0; i < entries.size(); ++i) {
      if (statuses[i].ok()) bytes += static_cast<int64_t>(entries[i].entry.payload.size());
    }
    CountBytes(bytes, 0);
    return statuses;
  });
}

void SequenceStore::AppendDifferent(std::span<const NewEntry> entries, std::span<const int> chosen,
                                    std::vector<absl::Status>& statuses) {
  std::vector<int> added;
  std::vector<Item> items, witnesses;
  for (const int i : chosen) {
    const NewEntry& entry = entries[i];
    if (entry.entry.payload.size() > kMaxRowBytes) {
      statuses[i] = absl::InvalidArgumentError(absl::StrCat(
          ToString(entry.sequence), ": an entry of ", entry.entry.payload.size(), " bytes"));
      continue;
    }
    const std::string prefix = SequencePrefix(entry.sequence);
    items.push_back(MakeItem(InGroup(prefix, EntryKey(prefix, entry.number)), entry.expires,
                             EncodeEntry(entry.entry)));
    added.push_back(i);
    if (entry.number == 0 && items_->forgets()) {
      witnesses.push_back(MakeItem(Witness(prefix), entry.expires, ""));
    }
  }
  // Its node may be down: that makes a loss harder to see, but loses nothing.
  if (!witnesses.empty()) items_->Add(witnesses);

  const std::vector<absl::Status> results = items_->Add(items);
  std::vector<ItemKey> states;
  std::vector<int> checked;
  for (size_t n = 0; n < added.size(); ++n) {
    statuses[added[n]] = results[n];
    if (!results[n].ok()) continue;
    states.push_back(KeyOfState(items[n].key.group));
    checked.push_back(static_cast<int>(n));
  }
  const std::vector<absl::StatusOr<std::string>> found = items_->Get(states);
  for (size_t c = 0; c < checked.size(); ++c) {
    if (absl::IsNotFound(found[c].status())) continue;  // neither sealed nor dropped
    absl::Status& status = statuses[added[checked[c]]];
    if (!found[c].ok()) {
      status = found[c].status();
      continue;
    }
    const NewEntry& entry = entries[added[checked[c]]];
    const absl::StatusOr<SequenceState> state = UnwrapItem(states[c].key, *found[c], ParseState);
    if (!state.ok()) {
      status = state.status();
    } else if (IsDropped(*state)) {
      status = absl::FailedPreconditionError(
          absl::StrCat(ToString(entry.sequence), " was dropped (", state->dropped, ")"));
    } else if (entry.number < state->entries) {
      status = absl::AlreadyExistsError(
          absl::StrCat(ToString(entry.sequence), ": a whole form stands for entry ", entry.number));
    }
    // What has no meaning any more must not stay; if its node is gone by now it is not read either.
    if (!status.ok()) items_->Remove({&items[checked[c]].key, 1}).IgnoreError();
  }
}

absl::StatusOr<std::string> SequenceStore::GetWholeForm(const std::string& prefix,
                                                        const SequenceState& state) {
  std::string form;
  uint32_t crc = 0;
  for (uint32_t first = 0; first < state.fragments; first += kFragmentsAtOnce) {
    const std::vector<ItemKey> keys = FragmentKeys(prefix, state, first);
    const std::vector<absl::StatusOr<std::string>> items = items_->Get(keys);
    for (size_t n = 0; n < keys.size(); ++n) {
      if (absl::IsNotFound(items[n].status())) return Lost("a part of the whole form");
      if (!items[n].ok()) return items[n].status();
      const absl::StatusOr<std::string_view> payload = UnwrapItem(keys[n].key, *items[n]);
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
    std::vector<ItemKey> keys = EntryKeys(prefix, first, first + kWindow);
    keys.push_back(KeyOfState(prefix));
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
      absl::StatusOr<LogEntry> entry = UnwrapItem(keys[n].key, *items[n], ParseEntry);
      if (!entry.ok()) return entry.status();
      entries.push_back(*std::move(entry));
    }
  }
  return entries;
}

absl::StatusOr<StoredSequence> SequenceStore::ReadOnce(const std::string& prefix, uint32_t first) {
  StoredSequence sequence{.first_entry = first};
  absl::StatusOr<std::string> state_item;
  const absl::StatusOr<SequenceState> state = GetState(prefix, &state_item);
  if (!state.ok() && !absl::IsNotFound(state.status())) return state.status();
  if (state.ok() && IsDropped(*state)) {
    sequence.dropped = state->dropped;
    return sequence;
  }
  const bool stale = state.ok() && state->dropped != 0;  // the entries before those that count
  if (state.ok() && first < state->entries) {
    absl::StatusOr<std::string> form = stale ? std::string() : GetWholeForm(prefix, *state);
    if (!form.ok()) return form.status();
    sequence.whole_form = *std::move(form);
    sequence.first_entry = state->entries;
  }
  absl::StatusOr<std::vector<LogEntry>> entries =
      GetEntries(prefix, sequence.first_entry, state_item);
  if (!entries.ok()) return entries.status();
  sequence.entries = *std::move(entries);
  if (stale && sequence.entries.empty() && first <= state->entries) {
    return StoredSequence{.dropped = state->dropped};
  }
  if (first == 0 && !sequence.whole_form.has_value() && sequence.entries.empty()) {
    return WhyNothing(prefix);
  }
  return sequence;
}

absl::Status SequenceStore::WhyNothing(const std::string& prefix) {
  const absl::Status nothing = absl::NotFoundError("nothing is stored");
  if (!items_->forgets()) return nothing;
  const ItemKey witness = Witness(prefix);
  const absl::StatusOr<std::string> item = Get(witness);
  if (!item.ok()) return absl::IsNotFound(item.status()) ? nothing : item.status();
  const absl::Status genuine = UnwrapItem(witness.key, *item).status();
  return genuine.ok() ? Lost("the sequence") : genuine;
}

absl::StatusOr<StoredSequence> SequenceStore::Read(const SequenceIdentity& sequence,
                                                   uint32_t first) {
  return Counted("read", [&]() -> absl::StatusOr<StoredSequence> {
    const std::string prefix = SequencePrefix(sequence);
    absl::StatusOr<StoredSequence> read = ReadOnce(prefix, first);
    // What looks lost may have been written or moved while it was looked for.
    for (int attempt = 1; attempt < kReadAttempts; ++attempt) {
      const bool gone = absl::IsNotFound(read.status()) && attempt == 1;
      const bool moved = absl::IsAborted(read.status()) || absl::IsResourceExhausted(read.status());
      if (!moved && !gone) break;
      read = ReadOnce(prefix, first);
    }
    if (read.ok()) {
      int64_t bytes = static_cast<int64_t>(read->whole_form.value_or("").size());
      for (const LogEntry& entry : read->entries)
        bytes += static_cast<int64_t>(entry.payload.size());
      CountBytes(0, bytes);
      return read;
    }
    if (absl::IsAborted(read.status())) return absl::UnavailableError(read.status().message());
    absl::StatusCode code = read.status().code();
    // What forgets nothing has lost it by damage.
    if (code == absl::StatusCode::kResourceExhausted && !items_->forgets()) {
      code = absl::StatusCode::kDataLoss;
    }
    return absl::Status(code, absl::StrCat(ToString(sequence), ": ", read.status().message()));
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
    absl::StatusOr<std::string> item;
    const absl::StatusOr<SequenceState> before = GetState(prefix, &item);
    if (!before.ok() && !absl::IsNotFound(before.status())) return before.status();
    const bool dropped = before.ok() && IsDropped(*before);
    if (before.ok() && !dropped && before->entries >= entries) return absl::OkStatus();
    const SequenceState state{.entries = entries,
                              .form = ExtendCrc32c(0, std::as_bytes(std::span(form))),
                              .fragments = static_cast<uint32_t>(FragmentsOf(form.size())),
                              .bytes = form.size()};
    absl::Status written;
    if (dropped) written = absl::AbortedError("dropped");
    for (uint32_t n = 0; n < state.fragments && written.ok(); ++n) {
      written = Put(MakeItem(InGroup(prefix, FragmentKey(prefix, state.form, n)), expires,
                             form.substr(n * kFragmentBytes, kFragmentBytes)));
    }
    const Item record = MakeItem(KeyOfState(prefix), expires, EncodeState(state));
    if (written.ok()) {
      written = items_->Swap(record, item.ok() ? std::optional(*item) : std::nullopt);
    }
    if (written.ok()) {
      const SequenceState old = before.value_or(SequenceState());
      if (old.form != state.form) written = RemoveFragments(prefix, old);
      if (written.ok()) written = RemoveEntries(prefix, old.entries, entries);
    }
    if (!written.ok() && !absl::IsAborted(written)) return written;
    // Also if it was written: who dropped the sequence at the same time may not know of it.
    const absl::StatusOr<SequenceState> present = GetState(prefix);
    if (!present.ok()) return present.status();
    if (*present == state) return absl::OkStatus();
    if (present->form != state.form) {
      if (absl::Status status = RemoveFragments(prefix, state); !status.ok()) return status;
    }
    if (!IsDropped(*present)) return absl::OkStatus();  // another replica's stands for it
    if (absl::Status status = RemoveEntries(prefix, entries, 0); !status.ok()) return status;
    return absl::FailedPreconditionError(absl::StrCat(ToString(sequence), " was dropped"));
  });
  if (sealed.ok()) CountBytes(static_cast<int64_t>(form.size()), 0);
  return sealed;
}

absl::StatusOr<bool> SequenceStore::Has(const SequenceIdentity& sequence) {
  return Counted("has", [&]() -> absl::StatusOr<bool> {
    const std::string prefix = SequencePrefix(sequence);
    const absl::StatusOr<SequenceState> state = GetState(prefix);
    const bool stale = state.ok() && state->dropped != 0 && !IsDropped(*state);
    if (state.ok() && !stale) return state->dropped == 0;
    if (absl::IsDataLoss(state.status())) return true;
    if (!stale && !absl::IsNotFound(state.status())) return state.status();
    absl::Status found =
        Get(InGroup(prefix, EntryKey(prefix, stale ? state->entries : 0))).status();
    if (absl::IsNotFound(found) && !stale) found = WhyNothing(prefix);
    if (absl::IsUnavailable(found)) return found;
    return !absl::IsNotFound(found);
  });
}

std::vector<absl::Status> SequenceStore::Drop(std::span<const DroppedSequence> sequences) {
  return Counted("drop", [&]() -> std::vector<absl::Status> {
    std::vector<absl::Status> statuses(sequences.size());
    std::vector<size_t> left(sequences.size());
    std::iota(left.begin(), left.end(), 0);
    for (int attempt = 0; attempt < kDropAttempts && !left.empty(); ++attempt) {
      left = DropThose(left, sequences, statuses);
    }
    for (const size_t i : left) {
      statuses[i] = absl::UnavailableError(
          absl::StrCat(ToString(sequences[i].sequence), " changes all the time: try again"));
    }
    return statuses;
  });
}

std::vector<size_t> SequenceStore::DropThose(std::span<const size_t> indices,
                                             std::span<const DroppedSequence> sequences,
                                             std::vector<absl::Status>& statuses) {
  std::vector<ItemKey> keys;
  for (const size_t i : indices) {
    keys.push_back(KeyOfState(SequencePrefix(sequences[i].sequence)));
  }
  const std::vector<absl::StatusOr<std::string>> present = items_->Get(keys);
  std::vector<size_t> put, again;
  std::vector<Item> records;  // to put
  for (size_t n = 0; n < indices.size(); ++n) {
    const size_t i = indices[n];
    statuses[i] = absl::OkStatus();
    SequenceState state;
    if (present[n].ok()) {
      const auto parsed = UnwrapItem(keys[n].key, *present[n], ParseState);
      if (parsed.ok()) state = *parsed;
    } else if (absl::IsUnavailable(present[n].status())) {
      statuses[i] = present[n].status();
      continue;
    }
    if (IsDropped(state)) continue;
    state.dropped = sequences[i].reason;
    // Until all else is removed the record stays, or what is left would count again.
    Item record = MakeItem(std::move(keys[n]), absl::InfiniteFuture(), EncodeState(state));
    if (!absl::IsNotFound(present[n].status())) {
      put.push_back(i);
      records.push_back(std::move(record));
      continue;
    }
    // Of a whole form that was written since the look above the record would not know.
    statuses[i] = items_->Swap(record, std::nullopt);
    if (absl::IsAborted(statuses[i])) again.push_back(i);
  }
  const std::vector<absl::Status> results = items_->Put(records);
  for (size_t n = 0; n < put.size(); ++n) statuses[put[n]] = results[n];
  return again;
}

std::vector<absl::StatusOr<std::optional<uint8_t>>> SequenceStore::WhyDropped(
    std::span<const SequenceIdentity> sequences) {
  return Counted("why_dropped", [&]() -> std::vector<absl::StatusOr<std::optional<uint8_t>>> {
    std::vector<ItemKey> keys;
    for (const SequenceIdentity& sequence : sequences) {
      keys.push_back(KeyOfState(SequencePrefix(sequence)));
    }
    using Reason = std::optional<uint8_t>;
    return GetEach<Reason>(keys, std::nullopt, [&](auto payload) -> absl::StatusOr<Reason> {
      const absl::StatusOr<SequenceState> state = ParseState(payload);
      if (!state.ok()) return state.status();
      return IsDropped(*state) ? Reason(state->dropped) : std::nullopt;
    });
  });
}

absl::Status SequenceStore::DropStale(const SequenceIdentity& sequence, uint32_t entries,
                                      absl::Time expires) {
  return Counted("drop", [&]() -> absl::Status {
    const std::string prefix = SequencePrefix(sequence);
    absl::StatusOr<std::string> item;
    SequenceState state = GetState(prefix, &item).value_or(SequenceState());
    if (!item.ok() && !absl::IsNotFound(item.status())) return item.status();
    if (IsDropped(state) || state.entries > entries) return absl::OkStatus();
    uint32_t first = state.entries;
    if (state.dropped != 0 && state.entries == entries) {
      first = 0;  // said before, but perhaps not all is removed
    } else {
      absl::Status more = Get(InGroup(prefix, EntryKey(prefix, entries))).status();
      if (!absl::IsNotFound(more)) return more;
      state.dropped = kStale;
      state.entries = entries;
      absl::Status said = items_->Swap(MakeItem(KeyOfState(prefix), expires, EncodeState(state)),
                                       item.ok() ? std::optional(*item) : std::nullopt);
      if (absl::IsAborted(said)) {
        // Another has sealed it; or it is said already, by another or by us, whose answer was lost.
        state = GetState(prefix, &item).value_or(SequenceState());
        if (state.dropped == 0 || IsDropped(state) || state.entries != entries) {
          return absl::OkStatus();
        }
        first = 0;
      } else if (!said.ok()) {
        return said;
      }
    }
    absl::Status removed = RemoveFragments(prefix, state);
    return removed.ok() ? RemoveEntries(prefix, first, entries) : removed;
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
    if (!IsDropped(*state) || removed_before) return absl::OkStatus();
    absl::Status removed = RemoveFragments(prefix, *state);
    if (removed.ok()) removed = RemoveEntries(prefix, state->entries, 0);
    if (!removed.ok()) return removed;
    return Put(MakeItem(KeyOfState(prefix), expires,
                        EncodeState(SequenceState{.dropped = state->dropped})));
  });
}

}  // namespace sis
