#include "server/fetch/records_in_segment.h"

#include <array>
#include <span>

namespace sis {
namespace {

// The arrays, in the order in which they lie there.
enum Array { kSampledIds, kSampledLogProbs, kIds, kLogProbs, kArrays };

constexpr uint64_t kElementBytes = 4;
static_assert(sizeof(int32_t) == kElementBytes && sizeof(float) == kElementBytes);

}  // namespace

absl::StatusOr<RecordsInSegment> RecordsInSegment::Parse(const v1::SegmentRange& range,
                                                         const ReceivedArrays& arrays,
                                                         const WantedRecords& wanted, uint64_t rows,
                                                         uint64_t slots) {
  const uint64_t narrow = rows * kElementBytes;
  const std::array<uint64_t, kArrays> sizes = {
      wanted.sampled_ids * narrow, wanted.sampled_log_probs * narrow, wanted.ids * narrow * slots,
      wanted.log_probs * narrow * slots};
  absl::StatusOr<AnswersInSegment> answers = AnswersInSegment::Parse(range, arrays, sizes);
  if (!answers.ok()) return answers.status();
  return RecordsInSegment(*std::move(answers), slots);
}

void RecordsInSegment::Write(uint64_t first, const RecordRows& rows) const {
  const uint64_t narrow = first * kElementBytes;
  answers_.Write(kSampledIds, narrow, std::as_bytes(rows.sampled_ids));
  answers_.Write(kSampledLogProbs, narrow, std::as_bytes(rows.sampled_log_probs));
  answers_.Write(kIds, narrow * slots_, std::as_bytes(rows.ids));
  answers_.Write(kLogProbs, narrow * slots_, std::as_bytes(rows.log_probs));
}

void RecordsInSegment::Describe(const WantedRecords& wanted, v1::FetchTopKChunk& chunk) const {
  if (wanted.sampled_ids) chunk.set_sampled_ids(answers_.part(kSampledIds).ToBytes());
  if (wanted.sampled_log_probs) {
    chunk.set_sampled_log_probs(answers_.part(kSampledLogProbs).ToBytes());
  }
  if (wanted.ids) chunk.set_top_k_ids(answers_.part(kIds).ToBytes());
  if (wanted.log_probs) chunk.set_top_k_log_probs(answers_.part(kLogProbs).ToBytes());
}

}  // namespace sis
