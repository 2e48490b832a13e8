// A store that fails on request, for tests.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/store/store.h"

namespace sis {

enum class Fault {
  kNone,
  kDown,         // all calls fail, and do nothing
  kFull,         // writes fail
  kAnswersLost,  // Put writes, but returns an error
};

// Forwards all calls to `store` while there is no fault. For the store, kDown looks like the kill
// of the server.
class FaultyStore final : public Store {
 public:
  FaultyStore(std::unique_ptr<Store> store, const std::atomic<Fault>& fault)
      : store_(std::move(store)), fault_(fault) {}

  bool shared() const override { return store_->shared(); }
  absl::Status CanPut() override { return CanWrite(); }
  absl::Status Put(const SequenceIdentity& sequence, std::span<const StoredPart> parts,
                   absl::Time expires) override {
    if (absl::Status status = CanWrite(); !status.ok()) return status;
    const absl::Status status = store_->Put(sequence, parts, expires);
    return fault_ == Fault::kAnswersLost ? NoAnswer() : status;
  }
  absl::Status Merge(const SequenceIdentity& sequence, std::span<const StoredPart> blocks,
                     absl::Time expires) override {
    const absl::Status status = CanWrite();
    return status.ok() ? store_->Merge(sequence, blocks, expires) : status;
  }
  absl::StatusOr<StoredSequence> Load(const SequenceIdentity& sequence) override {
    if (fault_ == Fault::kDown) return NoAnswer();
    return store_->Load(sequence);
  }
  absl::StatusOr<uint64_t> Revision(const SequenceIdentity& sequence) override {
    if (fault_ == Fault::kDown) return NoAnswer();
    return store_->Revision(sequence);
  }
  absl::StatusOr<std::vector<std::string>> ExchangeNews(
      std::span<const std::string> news) override {
    if (absl::Status status = CanWrite(); !status.ok()) return status;
    return store_->ExchangeNews(news);
  }
  absl::StatusOr<std::vector<bool>> Drop(std::span<const DroppedSequence> sequences,
                                         absl::Time expires) override {
    if (absl::Status status = CanWrite(); !status.ok()) return status;
    return store_->Drop(sequences, expires);
  }
  absl::StatusOr<StoredRun> PutRun(const StoredRun& run) override {
    if (absl::Status status = CanWrite(); !status.ok()) return status;
    return store_->PutRun(run);
  }
  absl::StatusOr<StoredRun> GetRun(const std::string& run_id) override {
    if (fault_ == Fault::kDown) return NoAnswer();
    return store_->GetRun(run_id);
  }
  absl::StatusOr<ListedRuns> ListRuns() override {
    if (fault_ == Fault::kDown) return NoAnswer();
    return store_->ListRuns();
  }
  absl::Status DropIncarnations(const std::string& run_id, uint64_t first, uint64_t last) override {
    const absl::Status status = CanWrite();
    return status.ok() ? store_->DropIncarnations(run_id, first, last) : status;
  }
  absl::Status PutSteps(const std::string& run_id, uint64_t incarnation,
                        const std::map<uint16_t, std::string>& by_slot) override {
    const absl::Status status = CanWrite();
    return status.ok() ? store_->PutSteps(run_id, incarnation, by_slot) : status;
  }
  absl::StatusOr<std::vector<absl::StatusOr<std::string>>> GetSteps(const std::string& run_id,
                                                                    uint64_t incarnation) override {
    if (fault_ == Fault::kDown) return NoAnswer();
    return store_->GetSteps(run_id, incarnation);
  }

 private:
  static absl::Status NoAnswer() { return absl::UnavailableError("no answer"); }
  absl::Status CanWrite() const {
    if (fault_ == Fault::kDown) return NoAnswer();
    return fault_ == Fault::kFull ? absl::ResourceExhaustedError("full") : absl::OkStatus();
  }

  const std::unique_ptr<Store> store_;
  const std::atomic<Fault>& fault_;
};

}  // namespace sis
