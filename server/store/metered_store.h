// A store whose calls are counted and timed in the metrics.
#pragma once

#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

#include "server/store/sequence_store.h"
#include "server/store/store_metrics.h"
#include "server/threads/steady_now.h"

namespace sis {

class MeteredStore final : public SequenceStore {
 public:
  // The metrics must outlive the object.
  MeteredStore(std::unique_ptr<SequenceStore> store, StoreMetrics& metrics)
      : store_(std::move(store)), metrics_(metrics) {}

  std::string_view name() const override { return store_->name(); }
  bool shared() const override { return store_->shared(); }
  absl::Status CanAppend() override { return store_->CanAppend(); }
  void EndWaits(absl::Time end) override { store_->EndWaits(end); }

  // Counted once per call, with the first error.
  std::vector<absl::Status> Append(std::span<const NewEntry> entries) override {
    const absl::Time start = SteadyNow();
    std::vector<absl::Status> statuses = store_->Append(entries);
    absl::Status first_error;
    int64_t bytes = 0;
    for (size_t i = 0; i < entries.size(); ++i) {
      first_error.Update(statuses[i]);
      if (statuses[i].ok()) bytes += static_cast<int64_t>(entries[i].entry.rows.size());
    }
    metrics_.CountOperation("append", first_error.code(), SteadyNow() - start);
    metrics_.AddBytes(bytes, 0);
    return statuses;
  }
  absl::StatusOr<StoredSequence> Read(const SequenceIdentity& sequence, uint32_t first) override {
    auto read = Counted("read", [&] { return store_->Read(sequence, first); });
    if (read.ok()) {
      int64_t bytes = static_cast<int64_t>(read->whole_form.value_or("").size());
      for (const LogEntry& entry : read->entries) bytes += static_cast<int64_t>(entry.rows.size());
      metrics_.AddBytes(0, bytes);
    }
    return read;
  }
  absl::Status WriteWholeForm(const SequenceIdentity& sequence, uint32_t entries,
                              std::string_view whole_form, absl::Time expires) override {
    absl::Status status = Counted(
        "seal", [&] { return store_->WriteWholeForm(sequence, entries, whole_form, expires); });
    if (status.ok()) metrics_.AddBytes(static_cast<int64_t>(whole_form.size()), 0);
    return status;
  }
  absl::StatusOr<bool> Has(const SequenceIdentity& sequence) override {
    return Counted("has", [&] { return store_->Has(sequence); });
  }
  std::vector<absl::Status> Drop(std::span<const DroppedSequence> sequences) override {
    return CountedOnce("drop", [&] { return store_->Drop(sequences); });
  }
  std::vector<absl::StatusOr<std::optional<uint8_t>>> WhyDropped(
      std::span<const SequenceIdentity> sequences) override {
    return CountedOnce("why_dropped", [&] { return store_->WhyDropped(sequences); });
  }
  absl::Status RemoveDropped(const SequenceIdentity& sequence, absl::Time expires) override {
    return Counted("remove", [&] { return store_->RemoveDropped(sequence, expires); });
  }
  absl::Status DropIncarnations(const std::string& run_id, uint64_t first, uint64_t last) override {
    return Counted("drop_incarnations",
                   [&] { return store_->DropIncarnations(run_id, first, last); });
  }
  std::vector<absl::Status> EndLeases(std::span<const LeaseIdentity> leases,
                                      absl::Time expires) override {
    return CountedOnce("end_leases", [&] { return store_->EndLeases(leases, expires); });
  }
  std::vector<absl::StatusOr<bool>> HaveEnded(std::span<const LeaseIdentity> leases) override {
    return CountedOnce("have_ended", [&] { return store_->HaveEnded(leases); });
  }
  absl::StatusOr<StoredRun> PutRun(const StoredRun& run) override {
    return Counted("put_run", [&] { return store_->PutRun(run); });
  }
  absl::StatusOr<StoredRun> GetRun(const std::string& run_id) override {
    return Counted("get_run", [&] { return store_->GetRun(run_id); });
  }
  absl::StatusOr<ListedRuns> ListRuns() override { return store_->ListRuns(); }
  absl::Status ListSequences(
      const std::function<bool(const std::string&, uint64_t)>& enter,
      const std::function<void(const SequenceIdentity&, bool)>& visit) override {
    return store_->ListSequences(enter, visit);
  }

 private:
  static const absl::Status& StatusOf(const absl::Status& status) { return status; }
  template <typename T>
  static const absl::Status& StatusOf(const absl::StatusOr<T>& result) {
    return result.status();
  }

  template <typename Call>
  std::invoke_result_t<Call> Counted(const char* operation, const Call& call) {
    const absl::Time start = SteadyNow();
    auto result = call();
    metrics_.CountOperation(operation, StatusOf(result).code(), SteadyNow() - start);
    return result;
  }
  // A call about several things, with the first error.
  template <typename Call>
  std::invoke_result_t<Call> CountedOnce(const char* operation, const Call& call) {
    const absl::Time start = SteadyNow();
    auto results = call();
    absl::Status first_error;
    for (const auto& result : results) first_error.Update(StatusOf(result));
    metrics_.CountOperation(operation, first_error.code(), SteadyNow() - start);
    return results;
  }

  const std::unique_ptr<SequenceStore> store_;
  StoreMetrics& metrics_;
};

}  // namespace sis
