// SequenceStore: run records, steps, and lists.
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/store/sequence_store.h"

namespace sis {
namespace {

// How long a later life of a deleted run is known to be one, and workers of the former to be late.
constexpr absl::Duration kDeletionKept = absl::Hours(30 * 24);

// Of two records of a run the one of the higher rank stays.
std::tuple<uint64_t, bool, uint64_t> Rank(const StoredRun& run) {
  return {run.incarnation, run.deleted(), run.policy_version};
}

}  // namespace

absl::Status SequenceStore::DropIncarnations(const std::string& run_id, uint64_t first,
                                             uint64_t last) {
  return Counted("drop_incarnations", [&]() -> absl::Status {
    return items_->RemoveRange(IncarnationPrefix(run_id, first), IncarnationPrefix(run_id, last));
  });
}

absl::StatusOr<StoredRun> SequenceStore::PutRun(const StoredRun& run) {
  return Counted("put_run", [&]() -> absl::StatusOr<StoredRun> {
    const absl::Time expires = run.deleted() ? absl::Now() + kDeletionKept : absl::InfiniteFuture();
    const std::string key = RunKey(run.run_id);
    WriterLock lock(states_);
    const absl::StatusOr<std::string> present = Get(key);
    if (present.ok()) {
      absl::StatusOr<StoredRun> there = UnwrapItem(key, *present, ParseRun);
      if (there.ok() && Rank(*there) >= Rank(run)) return there;
    } else if (!absl::IsNotFound(present.status())) {
      return present.status();
    }
    absl::Status written = Put(MakeItem(key, expires, EncodeRun(run)));
    if (!written.ok()) return written;
    return run;
  });
}

absl::StatusOr<StoredRun> SequenceStore::GetRun(const std::string& run_id) {
  return Counted("get_run", [&]() -> absl::StatusOr<StoredRun> {
    const std::string key = RunKey(run_id);
    const absl::StatusOr<std::string> item = Get(key);
    if (!item.ok()) return item.status();
    return UnwrapItem(key, *item, ParseRun);
  });
}

absl::Status SequenceStore::PutSteps(const std::string& run_id, uint64_t incarnation,
                                     const std::map<uint16_t, std::string>& by_slot) {
  return Counted("put_steps", [&]() -> absl::Status {
    std::vector<Item> items;
    items.reserve(by_slot.size());
    for (const auto& [slot, payload] : by_slot) {
      items.push_back(
          MakeItem(StepKey(run_id, incarnation, slot), absl::InfiniteFuture(), payload));
    }
    return items_->Put(items);
  });
}

absl::StatusOr<std::vector<absl::StatusOr<std::string>>> SequenceStore::GetSteps(
    const std::string& run_id, uint64_t incarnation) {
  using Payloads = std::vector<absl::StatusOr<std::string>>;
  return Counted("get_steps", [&]() -> absl::StatusOr<Payloads> {
    Payloads payloads;
    const std::string prefix = StepsPrefix(run_id, incarnation);
    absl::Status status =
        items_->Scan(prefix, [&](std::string_view key, std::string_view value) -> std::string {
          if (!key.starts_with(prefix)) return "";
          const absl::StatusOr<std::string_view> payload = UnwrapItem(key, value);
          if (payload.ok()) {
            payloads.emplace_back(std::string(*payload));
          } else {
            payloads.emplace_back(payload.status());
          }
          return std::string(key) + '\0';
        });
    if (!status.ok()) return status;
    return payloads;
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
          const auto of_step = IncarnationOfStep(key);
          if (!of_step.has_value()) return std::string(key) + '\0';
          enter(of_step->first, of_step->second);
          return EndOfPrefix(StepsPrefix(of_step->first, of_step->second));
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
