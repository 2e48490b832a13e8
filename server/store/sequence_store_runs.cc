// Of a SequenceStore: run records and leases, and what can be listed.
#include <optional>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/store/sequence_store.h"

namespace sis {
namespace {

// Of a run that others change all the time.
constexpr int kSwapAttempts = 100;
// How long a later life of a deleted run is known to be one, and workers of the former to be late.
constexpr absl::Duration kDeletionKept = absl::Hours(30 * 24);

ItemKey KeyOfRun(const std::string& run_id) { return {RunKey(run_id), RunKey(run_id)}; }

ItemKey KeyOfHistory(const std::string& run_id, uint64_t incarnation) {
  return {IncarnationPrefix(run_id, incarnation), HistoryKey(run_id, incarnation)};
}

ItemKey KeyOfLease(const LeaseIdentity& lease) { return {LeaseKey(lease), LeaseKey(lease)}; }

// Of two records of a run the one of the higher rank stays.
std::tuple<uint64_t, bool, uint64_t> Rank(const StoredRun& run) {
  return {run.incarnation, run.deleted(), run.policy_version};
}

}  // namespace

std::vector<absl::Status> SequenceStore::EndLeases(std::span<const LeaseIdentity> leases,
                                                   absl::Time expires) {
  return Counted("end_leases", [&]() -> std::vector<absl::Status> {
    std::vector<Item> items;
    for (const LeaseIdentity& lease : leases) {
      items.push_back(MakeItem(KeyOfLease(lease), expires, ""));
    }
    return items_->Put(items);
  });
}

std::vector<absl::StatusOr<bool>> SequenceStore::HaveEnded(std::span<const LeaseIdentity> leases) {
  return Counted("have_ended", [&]() -> std::vector<absl::StatusOr<bool>> {
    std::vector<ItemKey> keys;
    for (const LeaseIdentity& lease : leases) keys.push_back(KeyOfLease(lease));
    return GetEach(keys, false, [](auto) { return true; });
  });
}

absl::Status SequenceStore::DropIncarnations(const std::string& run_id, uint64_t first,
                                             uint64_t last) {
  return Counted("drop_incarnations", [&]() -> absl::Status {
    return items_->RemoveRange(IncarnationPrefix(run_id, first), IncarnationPrefix(run_id, last));
  });
}

absl::StatusOr<StoredRun> SequenceStore::PutRun(const StoredRun& run) {
  return Counted("put_run", [&]() -> absl::StatusOr<StoredRun> {
    const absl::Time expires = run.deleted() ? absl::Now() + kDeletionKept : absl::InfiniteFuture();
    const Item item = MakeItem(KeyOfRun(run.run_id), expires, EncodeRun(run));
    for (int attempt = 0; attempt < kSwapAttempts; ++attempt) {
      const absl::StatusOr<std::string> present = Get(item.key);
      std::optional<std::string> expected;
      if (present.ok()) {
        absl::StatusOr<StoredRun> there = UnwrapItem(item.key.key, *present, ParseRun);
        if (there.ok() && Rank(*there) >= Rank(run)) return there;
        expected = *present;
      } else if (!absl::IsNotFound(present.status())) {
        return present.status();
      }
      const absl::Status status = items_->Swap(item, expected);
      if (status.ok()) return run;
      if (!absl::IsAborted(status)) return status;
    }
    return absl::UnavailableError(
        absl::StrCat("the record of run '", run.run_id, "' changes all the time: try again"));
  });
}

absl::StatusOr<StoredRun> SequenceStore::GetRun(const std::string& run_id) {
  return Counted("get_run", [&]() -> absl::StatusOr<StoredRun> {
    const ItemKey key = KeyOfRun(run_id);
    const absl::StatusOr<std::string> item = Get(key);
    if (!item.ok()) return item.status();
    return UnwrapItem(key.key, *item, ParseRun);
  });
}

absl::Status SequenceStore::PutHistory(const std::string& run_id, uint64_t incarnation,
                                       std::string_view history) {
  return Counted("put_history", [&]() -> absl::Status {
    return Put(MakeItem(KeyOfHistory(run_id, incarnation), absl::InfiniteFuture(), history));
  });
}

absl::StatusOr<std::string> SequenceStore::GetHistory(const std::string& run_id,
                                                      uint64_t incarnation) {
  return Counted("get_history", [&]() -> absl::StatusOr<std::string> {
    const ItemKey key = KeyOfHistory(run_id, incarnation);
    const absl::StatusOr<std::string> item = Get(key);
    if (!item.ok()) return item.status();
    const absl::StatusOr<std::string_view> payload = UnwrapItem(key.key, *item);
    if (!payload.ok()) return payload.status();
    return std::string(*payload);
  });
}

absl::StatusOr<ListedRuns> SequenceStore::ListRuns() {
  ListedRuns listed;
  absl::Status status = items_->Scan(
      std::string(kRunKeys), [&](std::string_view key, std::string_view value) -> std::string {
        if (!key.starts_with(kRunKeys)) return "";
        absl::StatusOr<StoredRun> run = UnwrapItem(key, value, ParseRun);
        if (run.ok()) {
          listed.runs.push_back(*std::move(run));
        } else {
          listed.unreadable.emplace_back(RunOfKey(key), run.status());
        }
        return std::string(key) + '\0';
      });
  if (!status.ok()) return status;
  return listed;
}

absl::Status SequenceStore::ListSequences(
    const std::function<bool(const std::string&, uint64_t)>& enter,
    const std::function<void(const SequenceIdentity&, bool)>& visit) {
  std::string incarnation;  // the prefix of the one that was entered last
  // Something of it was found, but not its state, which sorts behind fragments and entries.
  std::optional<SequenceIdentity> open;
  const auto close = [&] {
    if (open.has_value()) visit(*std::exchange(open, std::nullopt), false);
  };
  absl::Status status = items_->Scan(
      std::string(kSequenceKeys), [&](std::string_view key, std::string_view value) -> std::string {
        if (!key.starts_with(kSequenceKeys)) return "";
        const std::optional<SequenceIdentity> sequence = SequenceOfKey(key);
        if (!sequence.has_value()) {
          // Of an incarnation that may have no sequences.
          if (const auto history = IncarnationOfHistory(key); history.has_value()) {
            enter(history->first, history->second);
          }
          return std::string(key) + '\0';
        }
        const bool is_same = open == sequence;
        if (!is_same) close();
        if (std::string its = IncarnationPrefix(sequence->run_id, sequence->incarnation);
            its != incarnation) {
          if (!enter(sequence->run_id, sequence->incarnation)) return EndOfPrefix(std::move(its));
          incarnation = std::move(its);
        }
        const std::string prefix = SequencePrefix(*sequence);
        if (key != StateKey(prefix)) {
          open = sequence;
          return is_same ? EndOfPrefix(prefix) : StateKey(prefix);
        }
        open.reset();
        const absl::StatusOr<SequenceState> state = UnwrapItem(key, value, ParseState);
        if (!state.ok() || state->dropped == 0) {
          visit(*sequence, false);
        } else if (is_same || ItemExpires(value) == absl::InfiniteFuture()) {
          visit(*sequence, true);
        }
        return EndOfPrefix(prefix);
      });
  close();
  return status;
}

}  // namespace sis
