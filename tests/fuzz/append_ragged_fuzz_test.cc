// Any bytes as a batch of Append, of runs with and without a mass: a ragged block whose arrays are
// as long as its counts say gets the ack, and leaves the records, of the same block padded.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "server/fetch/fetch.h"
#include "server/messages/cache_messages.h"
#include "tests/fuzz/cache_with_one_record.h"

namespace sis {
namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

template <typename T>
std::string Bytes(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

// None if the arrays aren't as long as the counts say; or if a slot that is counted is unused,
// which a padded block may have.
std::optional<v1::Block> Padded(const v1::Block& ragged) {
  constexpr size_t kSlots = 2;
  const size_t rows = ragged.top_k_counts().size() / sizeof(uint16_t);
  v1::Block padded = ragged;
  padded.clear_top_k_counts();
  padded.clear_top_k_ids();
  padded.clear_top_k_log_probs();
  padded.clear_crc32c();
  size_t slot = 0;
  for (size_t row = 0; row < rows; ++row) {
    uint16_t count;
    std::memcpy(&count, ragged.top_k_counts().data() + row * sizeof(count), sizeof(count));
    if (count > kSlots) return std::nullopt;
    const size_t bytes = count * sizeof(int32_t);
    if ((slot + count) * sizeof(int32_t) > ragged.top_k_ids().size()) return std::nullopt;
    if ((slot + count) * sizeof(float) > ragged.top_k_log_probs().size()) return std::nullopt;
    *padded.mutable_top_k_ids() += ragged.top_k_ids().substr(slot * sizeof(int32_t), bytes);
    *padded.mutable_top_k_log_probs() +=
        ragged.top_k_log_probs().substr(slot * sizeof(float), bytes);
    slot += count;
    for (size_t counted = slot - count; counted < slot; ++counted) {
      int32_t id;
      std::memcpy(&id, ragged.top_k_ids().data() + counted * sizeof(id), sizeof(id));
      if (id == -1) return std::nullopt;
    }
    for (size_t unused = count; unused < kSlots; ++unused) {
      *padded.mutable_top_k_ids() += Bytes<int32_t>(-1);
      *padded.mutable_top_k_log_probs() += Bytes(-std::numeric_limits<float>::infinity());
    }
  }
  const bool whole = slot * sizeof(int32_t) == ragged.top_k_ids().size() &&
                     slot * sizeof(float) == ragged.top_k_log_probs().size() &&
                     rows * sizeof(int32_t) == ragged.sampled_ids().size() &&
                     rows * sizeof(uint16_t) == ragged.top_k_counts().size();
  return whole ? std::optional(padded) : std::nullopt;
}

// The rows that the block is about, and how much there is in all.
std::string StateAt(const v1::Block& block, CacheWithOneRecord& cache) {
  std::string state = ToMessage(cache.run()->Describe()).SerializeAsString();
  v1::FetchTopKRequest request;
  request.set_whole_blocks(true);
  v1::Slice& slice = *request.add_slices();
  *slice.mutable_sequence() = block.sequence();
  slice.set_first_position(block.first_position());
  slice.set_length(static_cast<uint32_t>(block.sampled_ids().size() / sizeof(int32_t)));
  absl::StatusOr<Fetch> fetch = Fetch::Open(cache.run(), request);
  if (!fetch.ok()) return state;  // the block names an impossible slice
  for (v1::FetchTopKResponse message; fetch->Next(message);) message.AppendToString(&state);
  return state;
}

// Two that got the same so far.
struct Pair {
  std::unique_ptr<CacheWithOneRecord> as_ragged, as_padded;
};

void Check(const v1::AppendBatch& batch, double mass, Pair& caches) {
  // Which sequence is evicted first depends on the clock.
  if (caches.as_ragged == nullptr ||
      caches.as_ragged->registry().budget().used() > CacheWithOneRecord::kCacheBytes / 2) {
    caches.as_ragged = std::make_unique<CacheWithOneRecord>(mass);
    caches.as_padded = std::make_unique<CacheWithOneRecord>(mass);
  }
  for (const v1::AppendEntry& entry : batch.entries()) {
    if (entry.block().top_k_counts().empty()) continue;
    v1::AppendBatch ragged, padded;
    *ragged.add_entries() = entry;
    ragged.mutable_entries(0)->mutable_block()->clear_crc32c();
    const std::optional<v1::Block> same = Padded(entry.block());
    if (!same.has_value()) {
      const RunDescription before = caches.as_ragged->run()->Describe();
      const absl::StatusOr<v1::AppendResponse> response = caches.as_ragged->Apply(ragged);
      Require(response.ok());
      // INVALID_ARGUMENT, but of a sequence's name or the like.
      Require(response->acks(0).code() != 0);
      Require(caches.as_ragged->run()->Describe() == before);
      continue;
    }
    *padded.add_entries()->mutable_block() = *same;
    const absl::StatusOr<v1::AppendResponse> response = caches.as_ragged->Apply(ragged);
    const absl::StatusOr<v1::AppendResponse> expected = caches.as_padded->Apply(padded);
    Require(response.ok() && expected.ok());
    Require(response->SerializeAsString() == expected->SerializeAsString());
    Require(StateAt(entry.block(), *caches.as_ragged) == StateAt(entry.block(), *caches.as_padded));
  }
}

}  // namespace
}  // namespace sis

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  sis::v1::AppendBatch batch;
  if (!batch.ParseFromArray(data, static_cast<int>(size))) return 0;
  static sis::Pair whole, cut;
  sis::Check(batch, 0, whole);
  sis::Check(batch, 0.7, cut);
  return 0;
}
