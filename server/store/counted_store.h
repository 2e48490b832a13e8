// Counts and times the calls of a store for Prometheus. docs/metrics.md describes the metrics.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/store/store.h"

namespace sis {

// Forwards all calls to another store.
class CountedStore final : public Store {
 public:
  // The registry must outlive the object.
  CountedStore(std::unique_ptr<Store> store, prometheus::Registry& registry);

  bool shared() const override { return store_->shared(); }
  absl::Status CanPut() override { return store_->CanPut(); }
  absl::StatusOr<uint64_t> Put(const SequenceIdentity& sequence,
                               const SequenceChange& change) override;
  absl::StatusOr<StoredSequence> Load(const SequenceIdentity& sequence) override;
  absl::StatusOr<uint64_t> Revision(const SequenceIdentity& sequence) override;
  absl::StatusOr<std::vector<std::string>> ExchangeNews(std::span<const std::string> news) override;
  absl::StatusOr<std::vector<bool>> Drop(std::span<const DroppedSequence> sequences,
                                         absl::Time expires) override;
  absl::StatusOr<StoredRun> PutRun(const StoredRun& run) override;
  absl::StatusOr<StoredRun> GetRun(const std::string& run_id) override;
  absl::StatusOr<ListedRuns> ListRuns() override;
  absl::Status DropIncarnations(const std::string& run_id, uint64_t first, uint64_t last) override;
  absl::Status PutSteps(const std::string& run_id, uint64_t incarnation,
                        const std::map<uint16_t, std::string>& by_slot) override;
  absl::StatusOr<std::vector<absl::StatusOr<std::string>>> GetSteps(const std::string& run_id,
                                                                    uint64_t incarnation) override;

 private:
  // Counts the call, and returns its result.
  template <typename Call>
  auto Counted(const char* operation, const Call& call);

  const std::unique_ptr<Store> store_;
  prometheus::Family<prometheus::Counter>& operations_;
  prometheus::Family<prometheus::Histogram>& seconds_;
  prometheus::Counter& written_bytes_;
  prometheus::Counter& read_bytes_;
};

}  // namespace sis
