// A store whose calls are counted and timed in the metrics.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

#include "server/metrics/metrics.h"
#include "server/store/sequence_store.h"
#include "server/threads/steady_now.h"

namespace sis {

class MeteredStore final : public SequenceStore {
 public:
  // The metrics must outlive the object.
  MeteredStore(std::unique_ptr<SequenceStore> store, Metrics& metrics)
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
    metrics_.CountStoreOperation("append", first_error.code(), SteadyNow() - start);
    metrics_.AddStoreBytes(bytes, 0);
    return statuses;
  }
  absl::StatusOr<StoredSequence> Read(const SequenceIdentity& sequence, uint32_t first) override {
    auto read = Counted("read", [&] { return store_->Read(sequence, first); });
    if (read.ok()) {
      int64_t bytes = static_cast<int64_t>(read->sealed_form.value_or("").size());
      for (const LogEntry& entry : read->entries) bytes += static_cast<int64_t>(entry.rows.size());
      metrics_.AddStoreBytes(0, bytes);
    }
    return read;
  }
  absl::Status WriteSealedForm(const SequenceIdentity& sequence, uint32_t entries,
                               std::string_view sealed_form, absl::Time expires) override {
    absl::Status status = Counted(
        "seal", [&] { return store_->WriteSealedForm(sequence, entries, sealed_form, expires); });
    if (status.ok()) metrics_.AddStoreBytes(static_cast<int64_t>(sealed_form.size()), 0);
    return status;
  }
  absl::StatusOr<bool> Has(const SequenceIdentity& sequence) override {
    return Counted("has", [&] { return store_->Has(sequence); });
  }
  // Counted once per call, with the first error.
  std::vector<absl::Status> Drop(std::span<const DroppedSequence> sequences) override {
    const absl::Time start = SteadyNow();
    std::vector<absl::Status> statuses = store_->Drop(sequences);
    absl::Status first_error;
    for (const absl::Status& status : statuses) first_error.Update(status);
    metrics_.CountStoreOperation("drop", first_error.code(), SteadyNow() - start);
    return statuses;
  }
  absl::Status RemoveDropped(const SequenceIdentity& sequence, absl::Time expires) override {
    return Counted("remove", [&] { return store_->RemoveDropped(sequence, expires); });
  }
  absl::Status DropIncarnationsBefore(const std::string& run_id, uint64_t incarnation) override {
    return Counted("drop_incarnations",
                   [&] { return store_->DropIncarnationsBefore(run_id, incarnation); });
  }
  absl::StatusOr<StoredRun> PutRun(const StoredRun& run) override {
    return Counted("put_run", [&] { return store_->PutRun(run); });
  }
  absl::StatusOr<StoredRun> GetRun(const std::string& run_id) override {
    return Counted("get_run", [&] { return store_->GetRun(run_id); });
  }
  absl::StatusOr<std::vector<StoredRun>> ListRuns() override { return store_->ListRuns(); }
  absl::StatusOr<ListedSequences> ListSequences(const std::string& run_id,
                                                uint64_t incarnation) override {
    return store_->ListSequences(run_id, incarnation);
  }

 private:
  static absl::StatusCode CodeOf(const absl::Status& status) { return status.code(); }
  template <typename T>
  static absl::StatusCode CodeOf(const absl::StatusOr<T>& result) {
    return result.status().code();
  }

  template <typename Call>
  std::invoke_result_t<Call> Counted(const char* operation, const Call& call) {
    const absl::Time start = SteadyNow();
    auto result = call();
    metrics_.CountStoreOperation(operation, CodeOf(result), SteadyNow() - start);
    return result;
  }

  const std::unique_ptr<SequenceStore> store_;
  Metrics& metrics_;
};

}  // namespace sis
