// A small cache with one good sequence, for fuzz tests to throw input at.
#pragma once

#include <cstdlib>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "server/append/ingest.h"
#include "server/cache/run_registry.h"
#include "server/store/stored_runs.h"

namespace sis {

class CacheWithOneRecord {
 public:
  static constexpr int64_t kCacheBytes = 64 << 10;

  // Of a run with this mass.
  explicit CacheWithOneRecord(double mass = 0) : registry_(kCacheBytes, {}, absl::Now) {
    v1::CreateRunRequest request;
    request.set_run_id("run");
    request.mutable_config()->set_vocabulary_size(10);
    request.mutable_config()->set_top_k(2);
    request.mutable_config()->set_mass(mass);
    if (!runs_.Create(request).ok()) std::abort();
    v1::AppendBatch batch;
    v1::Block& block = *batch.add_entries()->mutable_block();
    block.mutable_sequence()->set_id("good");
    block.set_sampled_ids(Bytes<int32_t>({4, 7}));
    block.set_sampled_log_probs(Bytes<float>({-0.5f, -3.0f}));
    block.set_top_k_ids(Bytes<int32_t>({4, 2, 1, -1}));
    block.set_top_k_log_probs(
        Bytes<float>({-0.5f, -1.5f, -0.25f, -std::numeric_limits<float>::infinity()}));
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
    header.mutable_sampling()->set_log_probs(v1::Sampling::RAW);
    header.mutable_sampling()->set_temperature(1);
    absl::StatusOr<Ingest> ingest = Ingest::Open(runs_, header);
    if (!ingest.ok()) std::abort();
    return *std::move(ingest);
  }

  RunRegistry& registry() { return registry_; }
  std::shared_ptr<Run> run() { return *registry_.Find("run"); }

 private:
  template <typename T>
  static std::string Bytes(const std::vector<T>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
  }

  RunRegistry registry_;
  StoredRuns runs_{registry_, nullptr};
};

}  // namespace sis
