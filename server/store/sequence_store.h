// A store of sequences: logs, whole forms and run records as items of a database.
//
// Per sequence: a state item (sealed or dropped; absent while neither), the entries of the log, the
// fragments of the whole form, and a witness on another node, by which a sequence whose node lost
// everything is told from one that never was.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/store/items/item_store.h"
#include "server/store/store_metrics.h"
#include "server/store/stored_item.h"
#include "server/store/stored_sequence.h"
#include "server/threads/steady_now.h"

namespace sis {

// Thread-safe. Every call may block on a disk or a network: hold no lock that others wait for.
//
// Errors, wherever a Status is: Unavailable if what is asked for lies on a node that doesn't answer
// (nothing is known then: a write may have been done), DataLoss if it is damaged: not as it was
// written, or lost by a store that forgets nothing; ResourceExhausted if the store has lost it for
// want of room, or has no room for it.
class SequenceStore {
 public:
  explicit SequenceStore(std::unique_ptr<ItemStore> items) : items_(std::move(items)) {}

  // From now on calls are counted and timed there, unless they only list. To be called before
  // others have the store. The metrics must outlive the object.
  void CountIn(StoreMetrics& metrics) { metrics_ = &metrics; }

  // "rocksdb", "memcached", for messages and metrics.
  std::string_view name() const { return items_->name(); }
  // Whether other processes may write to it at the same time.
  bool shared() const { return items_->shared(); }

  // OK, or why nothing can be appended at present: ResourceExhausted. To be called now and then;
  // makes the store go on once there is room again.
  absl::Status CanAppend() { return items_->CanAdd(); }

  // From `end` on (SteadyNow's) nothing is waited for: Unavailable. A later call may only bring it
  // nearer. Stores that wait for nobody do nothing.
  void EndWaits(absl::Time end) { items_->EndWaits(end); }

  // Adds each entry unless its number is taken. Of one sequence, numbers must be consecutive and in
  // order; after the first that fails the rest get its status and are not written, so that a log
  // has no holes. One status per entry: AlreadyExists if the number is taken or a whole form
  // stands for it, FailedPrecondition if the sequence was dropped, InvalidArgument beyond
  // kMaxRowBytes.
  std::vector<absl::Status> Append(std::span<const NewEntry> entries);

  // The entries from `first` on, and the whole form if it stands for any of them. NotFound if
  // nothing was ever stored. No entries beyond the last is no error, for `first` > 0.
  absl::StatusOr<StoredSequence> Read(const SequenceIdentity& sequence, uint32_t first = 0);

  // Writes a whole form, which stands for the entries before `entries`, then removes those. Does
  // nothing if one is there that stands for as many. FailedPrecondition if the sequence was
  // dropped.
  absl::Status WriteWholeForm(const SequenceIdentity& sequence, uint32_t entries,
                              std::string_view whole_form, absl::Time expires);

  // Whether there is anything to drop: it is stored, or was and is lost.
  absl::StatusOr<bool> Has(const SequenceIdentity& sequence);
  // Says that the sequences are dropped, whether or not anything of them is stored. From then on
  // only the reason is read, and nothing more is written. The first reason stays. One status per
  // sequence.
  std::vector<absl::Status> Drop(std::span<const DroppedSequence> sequences);
  // Of each sequence why it was dropped; nothing if it wasn't.
  std::vector<absl::StatusOr<std::optional<uint8_t>>> WhyDropped(
      std::span<const SequenceIdentity> sequences);
  // Where other servers write, too: of a sequence whose first `entries` entries are all stale says
  // so, and removes these, unless there are more. Entries that come at the same time or later
  // count, as behind a whole form; while there are none the sequence is dropped, as long as the
  // reason is kept.
  absl::Status DropStale(const SequenceIdentity& sequence, uint32_t entries, absl::Time expires);
  // Removes everything of a dropped sequence but the reason, which is kept until `expires`. What
  // isn't dropped, or was removed before, stays as it is.
  absl::Status RemoveDropped(const SequenceIdentity& sequence, absl::Time expires);
  // Removes what is stored of the run's incarnations [first, last), where the store can find it.
  absl::Status DropIncarnations(const std::string& run_id, uint64_t first, uint64_t last);

  // In a store that is shared: that leases have ended which other servers may have granted. It is
  // remembered until `expires`. One status per lease.
  std::vector<absl::Status> EndLeases(std::span<const LeaseIdentity> leases, absl::Time expires);
  // Of each lease whether that was said.
  std::vector<absl::StatusOr<bool>> HaveEnded(std::span<const LeaseIdentity> leases);

  // Of two records of a run the one with the larger (incarnation, deleted, policy_version) stays;
  // of one that can't be read nothing. Returns the one that is there afterwards. That of a deleted
  // run is kept for 30 days.
  absl::StatusOr<StoredRun> PutRun(const StoredRun& run);
  // NotFound if there is none.
  absl::StatusOr<StoredRun> GetRun(const std::string& run_id);

  // The history of an incarnation's draws, of at most kMostItemBytes, which the store doesn't look
  // into. Put overwrites. DropIncarnations removes it.
  absl::Status PutHistory(const std::string& run_id, uint64_t incarnation,
                          std::string_view history);
  // NotFound if there is none.
  absl::StatusOr<std::string> GetHistory(const std::string& run_id, uint64_t incarnation);

  // What can be listed: nothing where the store can't (memcached).
  absl::StatusOr<ListedRuns> ListRuns();
  // All sequences, incarnation by incarnation: those that are present, and those that are dropped
  // but not removed yet. `enter` says whether those of this incarnation are wanted.
  absl::Status ListSequences(
      const std::function<bool(const std::string& run_id, uint64_t incarnation)>& enter,
      const std::function<void(const SequenceIdentity& sequence, bool is_dropped)>& visit);

 private:
  static Item MakeItem(ItemKey key, absl::Time expires, std::string_view payload) {
    std::string value = WrapItem(key.key, expires, payload);
    return {std::move(key), std::move(value), expires};
  }
  // Whether nothing of the sequence counts any more, whatever is stored.
  bool IsDropped(const SequenceState& state) const;
  // Of the sequences with these indices. Returns those of which another has written a state since
  // this looked.
  std::vector<size_t> DropThose(std::span<const size_t> indices,
                                std::span<const DroppedSequence> sequences,
                                std::vector<absl::Status>& statuses);
  absl::StatusOr<std::string> Get(const ItemKey& key) { return items_->Get({&key, 1})[0]; }
  // Of each what `parse` makes of its payload, or `absent`.
  template <typename T, typename Parse>
  std::vector<absl::StatusOr<T>> GetEach(std::span<const ItemKey> keys, const T& absent,
                                         const Parse& parse) {
    const std::vector<absl::StatusOr<std::string>> items = items_->Get(keys);
    std::vector<absl::StatusOr<T>> results(keys.size(), absent);
    for (size_t i = 0; i < items.size(); ++i) {
      if (absl::IsNotFound(items[i].status())) continue;
      const absl::StatusOr<std::string_view> payload =
          items[i].ok() ? UnwrapItem(keys[i].key, *items[i]) : items[i].status();
      if (payload.ok()) {
        results[i] = parse(*payload);
      } else {
        results[i] = payload.status();
      }
    }
    return results;
  }
  // NotFound if the sequence is neither sealed nor dropped.
  absl::StatusOr<SequenceState> GetState(const std::string& prefix,
                                         absl::StatusOr<std::string>* as_stored = nullptr);
  absl::StatusOr<std::string> GetWholeForm(const std::string& prefix, const SequenceState& state);
  // The entries from `first` up to the first that is missing. ResourceExhausted if others follow
  // behind it; Aborted if the state item is no longer `state`.
  absl::StatusOr<std::vector<LogEntry>> GetEntries(const std::string& prefix, uint32_t first,
                                                   const absl::StatusOr<std::string>& state);
  absl::StatusOr<StoredSequence> ReadOnce(const std::string& prefix, uint32_t first);
  // NotFound, or ResourceExhausted if the sequence has been there.
  absl::Status WhyNothing(const std::string& prefix);
  // Overwrites.
  absl::Status Put(const Item& item) { return items_->Put({&item, 1})[0]; }
  // Entries [first, last), or if last is 0 until a stretch of numbers isn't there.
  absl::Status RemoveEntries(const std::string& prefix, uint32_t first, uint32_t last);
  // Of the whole form that this says.
  absl::Status RemoveFragments(const std::string& prefix, const SequenceState& state);
  // Adds entries of different sequences. Takes those back whose sequence another replica has sealed
  // or dropped meanwhile.
  void AppendDifferent(std::span<const NewEntry> entries, std::span<const int> chosen,
                       std::vector<absl::Status>& statuses);

  static const absl::Status& FirstError(const absl::Status& status) { return status; }
  template <typename T>
  static const absl::Status& FirstError(const absl::StatusOr<T>& result) {
    return result.status();
  }
  template <typename Result>
  static absl::Status FirstError(const std::vector<Result>& results) {
    absl::Status first;
    for (const Result& result : results) first.Update(FirstError(result));
    return first;
  }
  // What the call returns. It is counted once, with its first error.
  template <typename Call>
  std::invoke_result_t<Call> Counted(const char* operation, const Call& call) {
    const absl::Time start = SteadyNow();
    auto result = call();
    if (metrics_ != nullptr) {
      metrics_->CountOperation(operation, FirstError(result).code(), SteadyNow() - start);
    }
    return result;
  }
  void CountBytes(int64_t written, int64_t read) {
    if (metrics_ != nullptr) metrics_->AddBytes(written, read);
  }

  const std::unique_ptr<ItemStore> items_;
  StoreMetrics* metrics_ = nullptr;
};

}  // namespace sis
