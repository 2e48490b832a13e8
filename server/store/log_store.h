// Logs, whole forms and run records as items of a database.
//
// Per sequence: a state item (sealed or dropped; absent while neither), the entries of the log, the
// fragments of the whole form, and a witness on another node, by which a sequence whose node lost
// everything is told from one that never was.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/store/items/item_store.h"
#include "server/store/sequence_store.h"
#include "server/store/stored_item.h"

namespace sis {

class LogStore final : public SequenceStore {
 public:
  explicit LogStore(std::unique_ptr<ItemStore> items) : items_(std::move(items)) {}

  std::string_view name() const override { return items_->name(); }
  bool shared() const override { return items_->shared(); }
  absl::Status CanAppend() override { return items_->CanAdd(); }
  void EndWaits(absl::Time end) override { items_->EndWaits(end); }
  std::vector<absl::Status> Append(std::span<const NewEntry> entries) override;
  absl::StatusOr<StoredSequence> Read(const SequenceIdentity& sequence, uint32_t first) override;
  absl::Status WriteWholeForm(const SequenceIdentity& sequence, uint32_t entries,
                              std::string_view whole_form, absl::Time expires) override;
  absl::StatusOr<bool> Has(const SequenceIdentity& sequence) override;
  std::vector<absl::Status> Drop(std::span<const DroppedSequence> sequences) override;
  std::vector<absl::StatusOr<std::optional<uint8_t>>> WhyDropped(
      std::span<const SequenceIdentity> sequences) override;
  absl::Status RemoveDropped(const SequenceIdentity& sequence, absl::Time expires) override;
  absl::Status DropIncarnations(const std::string& run_id, uint64_t first, uint64_t last) override;
  std::vector<absl::Status> EndLeases(std::span<const LeaseIdentity> leases,
                                      absl::Time expires) override;
  std::vector<absl::StatusOr<bool>> HaveEnded(std::span<const LeaseIdentity> leases) override;
  absl::StatusOr<StoredRun> PutRun(const StoredRun& run) override;
  absl::StatusOr<StoredRun> GetRun(const std::string& run_id) override;
  absl::StatusOr<ListedRuns> ListRuns() override;
  absl::Status ListSequences(
      const std::function<bool(const std::string&, uint64_t)>& enter,
      const std::function<void(const SequenceIdentity&, bool)>& visit) override;

 private:
  static Item MakeItem(ItemKey key, absl::Time expires, std::string_view payload) {
    std::string value = WrapItem(key.key, expires, payload);
    return {std::move(key), std::move(value), expires};
  }
  // Of the sequences with these indices. Returns those of which another has written a state since
  // this looked.
  std::vector<size_t> DropThose(std::span<const size_t> indices,
                                std::span<const DroppedSequence> sequences,
                                std::vector<absl::Status>& statuses);
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

  const std::unique_ptr<ItemStore> items_;
};

}  // namespace sis
