// A small cache with one good sequence, for fuzz tests to throw input at.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "kernels/block/pack.h"
#include "kernels/numerics/log_prob.h"
#include "server/append/ingest.h"
#include "server/cache/run_registry.h"
#include "server/store/stored_runs.h"

namespace sis {

class CacheWithOneRecord {
 public:
  static constexpr int64_t kCacheBytes = 64 << 10;

  CacheWithOneRecord() : registry_(kCacheBytes, {}, absl::Now) {
    v1::CreateRunRequest request;
    request.set_run_id("run");
    request.mutable_config()->set_vocabulary_size(10);
    request.mutable_config()->set_top_k(2);
    if (!runs_.Create(request).ok()) std::abort();
    const std::vector<int32_t> sampled_ids = {4, 7}, ids = {4, 2, 1, -1};
    const std::vector<float> sampled = {-0.5f, -3.0f};
    const std::vector<float> log_probs = {-0.5f, -1.5f, -0.25f, kMinusInfinity};
    const std::vector<std::byte> block = *PackBlock({.sampled_ids = sampled_ids,
                                                     .sampled_log_probs = sampled,
                                                     .ids = ids,
                                                     .log_probs = log_probs},
                                                    {.slots = 2, .vocabulary_size = 10});
    v1::AppendBatch batch;
    v1::AppendEntry& entry = *batch.add_entries();
    entry.mutable_sequence()->set_id("good");
    entry.set_block(std::string(reinterpret_cast<const char*>(block.data()), block.size()));
    const absl::StatusOr<v1::AppendResponse> response = Apply(batch);
    if (!response.ok() || response->acks(0).code() != 0) std::abort();
  }

  absl::StatusOr<v1::AppendResponse> Apply(const v1::AppendBatch& batch) {
    std::vector<EntryAck> acks;
    Ingest ingest = OpenIngest();
    if (absl::Status status = ingest.Apply(batch, acks); !status.ok()) return status;
    v1::AppendResponse response;
    AddAcks(batch, acks, response);
    return response;
  }

  Ingest OpenIngest() {
    v1::AppendHeader header;
    header.mutable_run()->set_run_id("run");
    header.set_vocabulary_size(10);
    header.mutable_sampling()->set_log_probs(v1::Sampling::LOG_PROBS_RAW);
    header.mutable_sampling()->set_temperature(1);
    absl::StatusOr<Ingest> ingest = Ingest::Open(runs_, header);
    if (!ingest.ok()) std::abort();
    return *std::move(ingest);
  }

  RunRegistry& registry() { return registry_; }
  std::shared_ptr<Run> run() { return *registry_.Find("run"); }

 private:
  RunRegistry registry_;
  StoredRuns runs_{registry_, nullptr};
};

}  // namespace sis
