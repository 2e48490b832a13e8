// A small cache with one good sequence, for fuzz tests to throw input at.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>

#include "kernels/numerics/log_prob.h"
#include "server/testing/cache_fixture.h"
#include "server/testing/record_generator.h"

namespace sis {

class CacheWithOneRecord {
 public:
  static constexpr int64_t kCacheBytes = 64 << 10;

  CacheWithOneRecord() {
    const Records records{.slots = 2,
                          .sampled_ids = {4, 7},
                          .sampled_log_probs = {-0.5f, -3.0f},
                          .ids = {4, 2, 1, -1},
                          .log_probs = {-0.5f, -1.5f, -0.25f, kMinusInfinity},
                          .ranks = {0, kBlockRankOutside}};
    if (AppendBlock(cache_, *run_, records.Block("good")).code() != 0) std::abort();
  }

  absl::StatusOr<v1::AppendResponse> Apply(const v1::AppendBatch& batch) {
    absl::StatusOr<Ingest> ingest = Ingest::Open(cache_.runs, HeaderOf(*run_));
    if (!ingest.ok()) std::abort();
    return ApplyAtOnce(*ingest, batch);
  }

  RunRegistry& registry() { return cache_.registry; }
  const std::shared_ptr<Run>& run() { return run_; }

 private:
  static v1::RunConfig Config() {
    v1::RunConfig config;
    config.set_vocabulary_size(10);
    config.set_top_k(2);
    return config;
  }

  Cache cache_{kCacheBytes};
  const std::shared_ptr<Run> run_ = cache_.CreateRun("run", Config());
};

}  // namespace sis
