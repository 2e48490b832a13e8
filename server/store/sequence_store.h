// A store of sequences: logs, whole forms and run records as items of a database.
//
// A sequence has a state item (sealed or dropped; absent if it is neither), the entries of its log,
// and the fragments of its whole form.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/store/items/item_store.h"
#include "server/store/store_metrics.h"
#include "server/store/stored_item.h"
#include "server/store/stored_sequence.h"
#include "server/threads/mutex.h"
#include "server/threads/steady_now.h"

namespace sis {

// Thread-safe. Every call may block on a disk: hold no lock that others wait for.
//
// Errors, wherever a Status is: Unavailable if the database fails (a write may have been done),
// DataLoss if an item is damaged or lost, ResourceExhausted if there is no space to write.
class SequenceStore {
 public:
  explicit SequenceStore(std::unique_ptr<ItemStore> items) : items_(std::move(items)) {}

  // Counts and times all later calls in `metrics`, except those that only list. Must be called
  // before others use the store. `metrics` must outlive the object.
  void CountIn(StoreMetrics& metrics) { metrics_ = &metrics; }

  // OK, or why nothing can be appended at present: ResourceExhausted. To be called now and then;
  // makes the store go on once there is room again.
  absl::Status CanAppend() { return items_->CanAdd(); }

  // Writes entries `first`, `first` + 1, ... of the sequence's log, all or none, over any that have
  // the same numbers. FailedPrecondition if the sequence was dropped, InvalidArgument if a payload
  // is longer than kMaxPayloadBytes.
  absl::Status Append(const SequenceIdentity& sequence, uint32_t first,
                      std::span<const LogEntry> entries,
                      absl::Time expires = absl::InfiniteFuture());

  // The whole form, if there is one, and the entries behind it. NotFound if nothing is stored.
  absl::StatusOr<StoredSequence> Read(const SequenceIdentity& sequence);

  // Writes a whole form, which replaces the entries before `entries`, then removes those. Does
  // nothing if a stored one replaces as many. FailedPrecondition if the sequence was dropped.
  absl::Status WriteWholeForm(const SequenceIdentity& sequence, uint32_t entries,
                              std::string_view whole_form, absl::Time expires)
      ABSL_LOCKS_EXCLUDED(states_);

  // Whether there is anything to drop.
  absl::StatusOr<bool> Has(const SequenceIdentity& sequence);
  // Marks all sequences as dropped, whether or not anything of them is stored. From then on only
  // the reason is read, and nothing more is written. The first reason stays.
  absl::Status Drop(std::span<const DroppedSequence> sequences) ABSL_LOCKS_EXCLUDED(states_);
  // Removes everything of a dropped sequence except the reason, which is kept until `expires`. Does
  // nothing if the sequence isn't dropped, or was removed before.
  absl::Status RemoveDropped(const SequenceIdentity& sequence, absl::Time expires);
  // Removes what is stored of the run's incarnations [first, last).
  absl::Status DropIncarnations(const std::string& run_id, uint64_t first, uint64_t last);

  // Of two records of a run the one with the larger (incarnation, deleted, policy_version) stays;
  // of one that can't be read nothing. Returns the one that is there afterwards. That of a deleted
  // run is kept for 30 days.
  absl::StatusOr<StoredRun> PutRun(const StoredRun& run) ABSL_LOCKS_EXCLUDED(states_);
  // NotFound if there is none.
  absl::StatusOr<StoredRun> GetRun(const std::string& run_id);

  // Writes steps of an incarnation, all or none, over those in the same slots. The store doesn't
  // read the payloads. DropIncarnations removes them.
  absl::Status PutSteps(const std::string& run_id, uint64_t incarnation,
                        const std::map<uint16_t, std::string>& by_slot);
  // Returns the payloads of all steps of the incarnation, or DataLoss in their place.
  absl::StatusOr<std::vector<absl::StatusOr<std::string>>> GetSteps(const std::string& run_id,
                                                                    uint64_t incarnation);

  absl::StatusOr<ListedRuns> ListRuns();
  // All sequences, incarnation by incarnation: those that are present, and those that are dropped
  // but not removed yet. `enter` says whether those of this incarnation are wanted.
  absl::Status ListSequences(
      const std::function<bool(const std::string& run_id, uint64_t incarnation)>& enter,
      const std::function<void(const SequenceIdentity& sequence, bool is_dropped)>& visit);

 private:
  static Item MakeItem(std::string key, absl::Time expires, std::string_view payload) {
    std::string value = WrapItem(key, expires, payload);
    return {std::move(key), std::move(value)};
  }
  absl::StatusOr<std::string> Get(const std::string& key) { return items_->Get({&key, 1})[0]; }
  absl::Status Put(const Item& item) { return items_->Put({&item, 1}); }
  // NotFound if the sequence is neither sealed nor dropped.
  absl::StatusOr<SequenceState> GetState(const std::string& prefix,
                                         absl::StatusOr<std::string>* as_stored = nullptr);
  absl::StatusOr<std::string> GetWholeForm(const std::string& prefix, const SequenceState& state);
  // The entries from `first` up to the first that is missing. DataLoss if others follow behind it;
  // Aborted if the state item is no longer `state`.
  absl::StatusOr<std::vector<LogEntry>> GetEntries(const std::string& prefix, uint32_t first,
                                                   const absl::StatusOr<std::string>& state);
  absl::StatusOr<StoredSequence> ReadOnce(const std::string& prefix);
  // Entries [first, last), or if last is 0 until a stretch of numbers isn't there.
  absl::Status RemoveEntries(const std::string& prefix, uint32_t first, uint32_t last);
  // Of the whole form that this says.
  absl::Status RemoveFragments(const std::string& prefix, const SequenceState& state);

  static const absl::Status& ErrorOf(const absl::Status& status) { return status; }
  template <typename T>
  static const absl::Status& ErrorOf(const absl::StatusOr<T>& result) {
    return result.status();
  }
  // What the call returns. It is counted once, with its error.
  template <typename Call>
  std::invoke_result_t<Call> Counted(const char* operation, const Call& call) {
    const absl::Time start = SteadyNow();
    auto result = call();
    if (metrics_ != nullptr) {
      metrics_->CountOperation(operation, ErrorOf(result).code(), SteadyNow() - start);
    }
    return result;
  }
  void CountBytes(int64_t written, int64_t read) {
    if (metrics_ != nullptr) metrics_->AddBytes(written, read);
  }

  const std::unique_ptr<ItemStore> items_;
  StoreMetrics* metrics_ = nullptr;
  // Held while a state item or a run record is read and written again.
  Mutex states_;
};

}  // namespace sis
