// A store that fails on request, for tests.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "server/store/store.h"

namespace sis {

enum class Fault {
  kNone,
  kDown,         // all calls fail, and do nothing
  kFull,         // writes fail
  kAnswersLost,  // Put writes, but returns an error
};

struct Faults {
  std::atomic<Fault> fault = Fault::kNone;
  absl::Duration slowness;  // of every Load
  std::atomic<int> loads = 0;
  std::function<void()> after_next_load;
};

// Forwards all calls to `store` while there is no fault. For the store, kDown looks like the kill
// of the server. Several may share a store.
class FaultyStore final : public Store {
 public:
  FaultyStore(std::shared_ptr<Store> store, Faults& faults)
      : store_(std::move(store)), faults_(faults) {}

  bool shared() const override { return store_->shared(); }
  absl::Status CanPut() override { return CanWrite(); }
  absl::StatusOr<uint64_t> Put(const SequenceIdentity& sequence,
                               const SequenceChange& change) override {
    const absl::StatusOr<uint64_t> put = Write([&] { return store_->Put(sequence, change); });
    if (faults_.fault == Fault::kAnswersLost) return NoAnswer();
    return put;
  }
  absl::StatusOr<StoredSequence> Load(const SequenceIdentity& sequence) override {
    absl::SleepFor(faults_.slowness);
    ++faults_.loads;
    absl::StatusOr<StoredSequence> loaded = Read([&] { return store_->Load(sequence); });
    if (const auto after = std::exchange(faults_.after_next_load, nullptr)) after();
    return loaded;
  }
  absl::StatusOr<uint64_t> Revision(const SequenceIdentity& sequence) override {
    return Read([&] { return store_->Revision(sequence); });
  }
  absl::StatusOr<std::vector<std::string>> ExchangeNews(
      std::span<const std::string> news) override {
    return Write([&] { return store_->ExchangeNews(news); });
  }
  absl::StatusOr<std::vector<bool>> Drop(std::span<const DroppedSequence> sequences,
                                         absl::Time expires) override {
    return Write([&] { return store_->Drop(sequences, expires); });
  }
  absl::StatusOr<StoredRun> PutRun(const StoredRun& run) override {
    return Write([&] { return store_->PutRun(run); });
  }
  absl::StatusOr<StoredRun> GetRun(const std::string& run_id) override {
    return Read([&] { return store_->GetRun(run_id); });
  }
  absl::StatusOr<ListedRuns> ListRuns() override {
    return Read([&] { return store_->ListRuns(); });
  }
  absl::Status DropIncarnations(const std::string& run_id, uint64_t first, uint64_t last) override {
    return Write([&] { return store_->DropIncarnations(run_id, first, last); });
  }
  absl::Status PutSteps(const std::string& run_id, uint64_t incarnation,
                        const std::map<uint16_t, std::string>& by_slot) override {
    return Write([&] { return store_->PutSteps(run_id, incarnation, by_slot); });
  }
  absl::StatusOr<std::vector<absl::StatusOr<std::string>>> GetSteps(const std::string& run_id,
                                                                    uint64_t incarnation) override {
    return Read([&] { return store_->GetSteps(run_id, incarnation); });
  }

 private:
  static absl::Status NoAnswer() { return absl::UnavailableError("no answer"); }
  absl::Status CanWrite() const {
    if (faults_.fault == Fault::kDown) return NoAnswer();
    return faults_.fault == Fault::kFull ? absl::ResourceExhaustedError("full") : absl::OkStatus();
  }
  template <typename Call>
  auto Write(const Call& call) const -> decltype(call()) {
    if (absl::Status status = CanWrite(); !status.ok()) return status;
    return call();
  }
  template <typename Call>
  auto Read(const Call& call) const -> decltype(call()) {
    if (faults_.fault == Fault::kDown) return NoAnswer();
    return call();
  }

  const std::shared_ptr<Store> store_;
  Faults& faults_;
};

}  // namespace sis
