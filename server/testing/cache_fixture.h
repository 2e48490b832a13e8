// A cache without a server around it, for tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/block/digest.h"
#include "kernels/block/pack.h"
#include "server/append/ingest.h"
#include "server/cache/run_registry.h"
#include "server/messages/cache_messages.h"
#include "server/store/stored_runs.h"
#include "server/testing/record_generator.h"

namespace sis {

// A clock that only Advance moves. Thread-safe.
class ManualClock {
 public:
  absl::Time Now() const { return absl::FromUnixNanos(nanos_); }
  void Advance(absl::Duration by) { nanos_ += absl::ToInt64Nanoseconds(by); }

 private:
  std::atomic<int64_t> nanos_ = int64_t{1'000'000'000'000'000'000};
};

inline v1::RunConfig SmallConfig(int top_k = 4) {
  v1::RunConfig config;
  config.set_seed(7);
  config.set_vocabulary_size(1000);
  config.set_top_k(top_k);
  return config;
}

// Returns a config whose records are read back bit by bit as they were sent.
inline v1::RunConfig LosslessConfig(int top_k = 4) {
  v1::RunConfig config = SmallConfig(top_k);
  config.set_log_prob_encoding(v1::LOG_PROB_ENCODING_FLOAT32);
  return config;
}

// Returns the maximum bytes charged for a block of `positions` positions of a LosslessConfig.
inline int64_t BlockCharge(int slots, uint32_t positions) {
  const BlockHeader header = {.encoding = BlockEncoding::kFloat32,
                              .id_bytes = 2,
                              .positions = positions,
                              .used_slots = positions * static_cast<uint32_t>(slots)};
  return CachedBlock::Charge(BlockLayout(header).end);
}

inline v1::CreateRunRequest CreateRequest(const std::string& id, const v1::RunConfig& config,
                                          uint64_t incarnation = 0) {
  v1::CreateRunRequest request;
  request.set_run_id(id);
  *request.mutable_config() = config;
  request.set_incarnation(incarnation);
  return request;
}

inline v1::RunRef RefOf(const std::string& id, uint64_t incarnation = 0) {
  v1::RunRef ref;
  ref.set_run_id(id);
  ref.set_incarnation(incarnation);
  return ref;
}

struct Cache {
  explicit Cache(int64_t bytes = int64_t{64} << 20, const Limits& limits = {})
      : registry(bytes, limits, [this] { return clock.Now(); }), runs(registry, nullptr) {}

  std::shared_ptr<Run> CreateRun(const std::string& id, const v1::RunConfig& config,
                                 uint64_t incarnation = 0) {
    absl::StatusOr<RunRegistry::Created> created =
        runs.Create(CreateRequest(id, config, incarnation));
    EXPECT_TRUE(created.ok()) << created.status();
    return created.ok() ? created->run : nullptr;
  }

  ManualClock clock;
  RunRegistry registry;
  StoredRuns runs;
};

inline v1::AppendHeader HeaderOf(const Run& run) {
  v1::AppendHeader header;
  header.mutable_run()->set_run_id(run.id());
  header.mutable_sampling()->set_log_probs(v1::Sampling::LOG_PROBS_RAW);
  header.mutable_sampling()->set_temperature(1);
  header.set_vocabulary_size(run.config().vocabulary_size);
  return header;
}

// Applies the batch; with a store, stores it.
inline absl::StatusOr<v1::AppendResponse> ApplyAtOnce(Ingest& ingest,
                                                      const v1::AppendBatch& batch) {
  std::vector<EntryAck> acks;
  if (ingest.has_store()) ingest.BringIn(batch);
  if (absl::Status status = ingest.Apply(batch, acks); !status.ok()) return status;
  if (ingest.has_store()) ingest.Store(batch, acks);
  v1::AppendResponse response;
  AddAcks(batch, acks, response);
  return response;
}

inline v1::Ack IngestEntry(Cache& cache, const Run& run, v1::AppendEntry entry) {
  absl::StatusOr<Ingest> ingest = Ingest::Open(cache.runs, HeaderOf(run));
  EXPECT_TRUE(ingest.ok()) << ingest.status();
  v1::AppendBatch batch;
  *batch.add_entries() = std::move(entry);
  const absl::StatusOr<v1::AppendResponse> response = ApplyAtOnce(*ingest, batch);
  EXPECT_TRUE(response.ok()) << response.status();
  return response->acks(0);
}

inline v1::AppendEntry SealEntry(const std::string& id, uint32_t length) {
  v1::AppendEntry entry;
  entry.mutable_sequence()->set_id(id);
  entry.mutable_seal()->set_length(length);
  return entry;
}

inline v1::AppendEntry GapEntry(const std::string& id, uint32_t first, uint32_t length,
                                v1::MissingReason reason = v1::MISSING_REASON_INVALID_LOG_PROB) {
  v1::AppendEntry entry;
  entry.mutable_sequence()->set_id(id);
  entry.mutable_gap()->set_first_position(first);
  entry.mutable_gap()->set_length(length);
  entry.mutable_gap()->set_reason(reason);
  return entry;
}

inline v1::AppendEntry EntryOf(const Run& run, const RecordedBlock& block) {
  return block.Entry(ToMessage(run.config()));
}

// Appends the records, in several blocks if one would be too large. Returns the ack of the first
// refused block, or of the last.
inline v1::Ack AppendBlock(Cache& cache, const Run& run, const RecordedBlock& block) {
  v1::Ack ack;
  for (uint32_t first = 0; first < block.records.size() && ack.code() == 0;
       first += kMaxBlockPositions) {
    const uint32_t count = std::min(kMaxBlockPositions, block.records.size() - first);
    const RecordedBlock part = block.records.Block(block.sequence, block.first_position + first,
                                                   block.policy_version, first, count);
    ack = IngestEntry(cache, run, EntryOf(run, part));
  }
  return ack;
}

// Returns the digest of one of the records alone, as the record of a position.
inline uint64_t DigestOf(const Records& records, uint32_t row, uint32_t position) {
  const auto block = PackBlock(records.View(row, 1), {.encoding = BlockEncoding::kFloat32,
                                                      .slots = records.slots,
                                                      .vocabulary_size = 1000,
                                                      .first_position = position});
  return DigestOf(*OpenBlock(*block, /*checksums=*/false), 0, 1);
}

}  // namespace sis
