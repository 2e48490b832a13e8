// Any bytes as a batch of Append whose arrays lie in a segment: the acks and the records that the
// same arrays get in a message. Arrays that are not where their fields say: an answer to every
// entry, and nothing changed by those that are refused for it.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

#include "server/fetch/fetch.h"
#include "server/messages/cache_messages.h"
#include "tests/fuzz/cache_with_one_record.h"
#include "tests/fuzz/segment_mover.h"

namespace sis {
namespace {

constexpr uint64_t kSegmentBytes = 4096;

void Require(bool condition) {
  if (!condition) std::abort();
}

// The rows that the blocks of a batch are about, and how much there is in all.
std::string StateAt(const v1::AppendBatch& batch, CacheWithOneRecord& cache) {
  std::string state = ToMessage(cache.run()->Describe()).SerializeAsString();
  for (const v1::AppendEntry& entry : batch.entries()) {
    v1::FetchTopKRequest request;
    v1::Slice& slice = *request.add_slices();
    *slice.mutable_sequence() = entry.block().sequence();
    slice.set_first_position(entry.block().first_position());
    slice.set_length(static_cast<uint32_t>(entry.block().sampled_ids().size() / sizeof(int32_t)));
    absl::StatusOr<Fetch> fetch = Fetch::Open(cache.run(), request);
    if (!fetch.ok()) continue;  // the block names an impossible slice
    for (v1::FetchTopKResponse message; fetch->Next(message);) message.AppendToString(&state);
  }
  return state;
}

void CheckFaithful(const v1::AppendBatch& batch, const v1::AppendBatch& moved,
                   const std::shared_ptr<SharedSegment>& segment) {
  // What earlier inputs left behind is input too, until something would have to be evicted: which
  // sequence goes first depends on the clock.
  static auto in_message = std::make_unique<CacheWithOneRecord>();
  static auto in_segment = std::make_unique<CacheWithOneRecord>();
  if (in_message->registry().budget().used() > CacheWithOneRecord::kCacheBytes / 2) {
    in_message = std::make_unique<CacheWithOneRecord>();
    in_segment = std::make_unique<CacheWithOneRecord>();
  }
  const absl::StatusOr<v1::AppendResponse> expected = in_message->Apply(batch);
  const absl::StatusOr<v1::AppendResponse> response = in_segment->Apply(moved, segment);
  Require(expected.ok() && response.ok());
  Require(response->SerializeAsString() == expected->SerializeAsString());
  Require(StateAt(batch, *in_segment) == StateAt(batch, *in_message));
}

void CheckSpoiled(const v1::AppendBatch& moved, const std::shared_ptr<SharedSegment>& segment) {
  static CacheWithOneRecord cache;
  for (const v1::AppendEntry& entry : moved.entries()) {
    v1::AppendBatch alone;
    *alone.add_entries() = entry;
    const RunDescription before = cache.run()->Describe();
    const absl::StatusOr<v1::AppendResponse> response = cache.Apply(alone, segment);
    Require(response.ok() && response->acks_size() == 1);
    const v1::Ack& ack = response->acks(0);
    Require((ack.code() == 0) == ack.message().empty());
    if (ack.code() == static_cast<int>(absl::StatusCode::kInvalidArgument)) {
      Require(cache.run()->Describe() == before);
    }
  }
  Require(cache.registry().budget().used() <= CacheWithOneRecord::kCacheBytes);
}

}  // namespace
}  // namespace sis

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::shared_ptr<sis::SharedSegment> segment =
      *sis::SharedSegment::Make(sis::kSegmentBytes);
  sis::v1::AppendBatch batch;
  if (!batch.ParseFromArray(data, static_cast<int>(size))) return 0;
  sis::v1::AppendBatch moved = batch;
  sis::SegmentMover mover(*segment);
  mover.Move(moved);
  if (mover.faithful()) {
    sis::CheckFaithful(batch, moved, segment);
  } else {
    sis::CheckSpoiled(moved, segment);
  }
  return 0;
}
