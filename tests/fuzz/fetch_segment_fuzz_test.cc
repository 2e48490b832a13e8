// Any bytes as a FetchTopK into a segment: the rows that come in messages without one, and not a
// byte beside its range; or INVALID_ARGUMENT, and not a byte.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

#include "server/fetch/fetch.h"
#include "server/shared_memory/shared_segment.h"
#include "server/wire/segment_range.h"
#include "tests/fuzz/cache_with_one_record.h"

namespace sis {
namespace {

constexpr uint64_t kSegmentBytes = 4096;
// Rows that fill a segment many times over. Positions that nobody recorded can be fetched, too.
constexpr uint64_t kMostRows = 1000;

void Require(bool condition) {
  if (!condition) std::abort();
}

std::string Read(const SharedSegment& segment, uint64_t offset, uint64_t size) {
  std::string bytes(size, '\0');
  segment.Read(offset, size, bytes.data());
  return bytes;
}

std::string Get(const SharedSegment& segment, const std::string& field) {
  const absl::StatusOr<SegmentRange> part = SegmentRange::Parse(field, kSegmentBytes);
  Require(part.ok());
  return Read(segment, part->offset, part->size);
}

struct Fetched {
  std::string header;
  v1::FetchTopKChunk rows;  // all, side by side
};

absl::StatusOr<Fetched> FetchAll(const std::shared_ptr<Run>& run,
                                 const v1::FetchTopKRequest& request,
                                 const ReceivedArrays& arrays) {
  absl::StatusOr<Fetch> fetch = Fetch::Open(run, request, arrays);
  if (!fetch.ok()) return fetch.status();
  Fetched fetched;
  v1::FetchTopKResponse message;
  Require(fetch->Next(message));
  fetched.header = message.header().SerializeAsString();
  while (fetch->Next(message)) {
    v1::FetchTopKChunk& rows = fetched.rows;
    const v1::FetchTopKChunk& chunk = message.chunk();
    rows.set_length(rows.length() + chunk.length());
    rows.mutable_sampled_ids()->append(chunk.sampled_ids());
    rows.mutable_sampled_log_probs()->append(chunk.sampled_log_probs());
    rows.mutable_top_k_ids()->append(chunk.top_k_ids());
    rows.mutable_top_k_log_probs()->append(chunk.top_k_log_probs());
    rows.mutable_top_k_counts()->append(chunk.top_k_counts());
  }
  return fetched;
}

void Check(v1::FetchTopKRequest request) {
  uint64_t rows = 0;
  for (const v1::Slice& slice : request.slices()) rows += slice.length();
  if (rows > kMostRows) return;
  request.clear_lease_seconds();  // leases would add up
  static CacheWithOneRecord cache;
  static const std::shared_ptr<SharedSegment> segment = *SharedSegment::Make(kSegmentBytes);
  static const std::string pattern(kSegmentBytes, '\xa5');
  segment->Write(0, kSegmentBytes, pattern.data());
  ReceivedArrays arrays;
  arrays.LieIn(segment);

  const absl::StatusOr<Fetched> in_segment = FetchAll(cache.run(), request, arrays);
  const v1::SegmentRange answers = request.answers();
  if (!in_segment.ok() || !request.has_answers()) {
    Require(in_segment.ok() || !in_segment.status().message().empty());
    Require(Read(*segment, 0, kSegmentBytes) == pattern);
    return;
  }
  request.clear_answers();
  const absl::StatusOr<Fetched> in_message = FetchAll(cache.run(), request, {});
  Require(in_message.ok());
  Require(in_segment->header == in_message->header);
  v1::FetchTopKChunk copied = in_segment->rows;
  for (std::string* field : {copied.mutable_sampled_ids(), copied.mutable_sampled_log_probs(),
                             copied.mutable_top_k_ids(), copied.mutable_top_k_log_probs(),
                             copied.mutable_top_k_counts()}) {
    // Arrays that aren't wanted are empty either way.
    if (!field->empty()) *field = Get(*segment, *field);
  }
  Require(copied.SerializeAsString() == in_message->rows.SerializeAsString());
  const uint64_t end = answers.offset() + answers.bytes();
  Require(Read(*segment, 0, answers.offset()) == pattern.substr(0, answers.offset()));
  Require(Read(*segment, end, kSegmentBytes - end) == pattern.substr(end));
}

}  // namespace
}  // namespace sis

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  sis::v1::FetchTopKRequest request;
  if (request.ParseFromArray(data, static_cast<int>(size))) sis::Check(std::move(request));
  return 0;
}
