// The cache of one server, over a store that outlives the server.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/append/ingest.h"
#include "server/store/store.h"
#include "server/store/stored_runs.h"
#include "server/testing/cache_fixture.h"

namespace sis {

class Replica {
 public:
  // Without a store (null), all data is in memory.
  explicit Replica(std::unique_ptr<Store> store, const Limits& limits = {})
      : store_(std::move(store)),
        registry_(int64_t{1} << 28, limits, [this] { return clock_.Now(); }) {
    clock_.Advance(absl::Hours(24 * 36500));  // so that nothing expires by the store's own clock
    if (store_ != nullptr) stored_.emplace(*store_, registry_, [this] { return clock_.Now(); });
    runs_.emplace(registry_, stored_.has_value() ? &*stored_ : nullptr);
  }
  // With a run.
  Replica(std::unique_ptr<Store> store, const v1::RunConfig& config,
          const std::string& run_id = "run")
      : Replica(std::move(store)) {
    const absl::StatusOr<RunRegistry::Created> created =
        runs_->Create(CreateRequest(run_id, config));
    EXPECT_TRUE(created.ok()) << created.status();
    run_ = created->run;
  }

  ManualClock& clock() { return clock_; }
  RunRegistry& registry() { return registry_; }
  StoredRuns& runs() { return *runs_; }
  Run& run() { return *run_; }
  const std::shared_ptr<Run>& shared_run() { return run_; }
  StoredCache& stored() { return *stored_; }

  v1::Ack Append(const v1::AppendEntry& entry) {
    v1::AppendBatch batch;
    *batch.add_entries() = entry;
    absl::StatusOr<Ingest> ingest = Ingest::Open(*runs_, HeaderOf(*run_));
    EXPECT_TRUE(ingest.ok()) << ingest.status();
    const absl::StatusOr<v1::AppendResponse> response = ApplyAtOnce(*ingest, batch);
    EXPECT_TRUE(response.ok()) << response.status();
    return response->acks(0);
  }
  v1::Ack AppendBlock(const RecordedBlock& block) { return Append(EntryOf(*run_, block)); }
  Run::Found Find(const std::string& id) {
    return stored_.has_value() ? stored_->Find(*run_, {id, 0}) : run_->Find({id, 0});
  }
  absl::StatusOr<int64_t> Release(const std::vector<std::string>& ids) {
    std::vector<SequenceName> names;
    for (const std::string& id : ids) names.push_back({id, 0});
    return runs_->Release(*run_, names);
  }
  absl::StatusOr<int64_t> AdvanceVersion(uint64_t version, const std::string& label = "") {
    return runs_->AdvanceVersion(*run_, version, label);
  }
  void Keep(const std::string& id, absl::Duration length) {
    const SequenceName name{id, 0};
    run_->Keep({&name, 1}, length);
  }

 private:
  ManualClock clock_;
  const std::unique_ptr<Store> store_;
  RunRegistry registry_;
  std::optional<StoredCache> stored_;
  std::optional<StoredRuns> runs_;
  std::shared_ptr<Run> run_;
};

}  // namespace sis
