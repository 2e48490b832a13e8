#include "server/fetch/records_in_segment.h"

#include <array>
#include <span>
#include <utility>

#include "server/wire/answers_in_segment.h"

namespace sis {
namespace {

// Ids and log-probs alike.
constexpr uint64_t kElementBytes = 4;

// So many bytes after `before`.
SegmentPart After(const SegmentPart& before, uint64_t size) {
  const uint64_t end = before.offset + before.size;
  return {(end + SegmentPart::kAlignment - 1) / SegmentPart::kAlignment * SegmentPart::kAlignment,
          size};
}

template <typename T>
void WriteAt(SharedSegment& segment, const SegmentPart& array, uint64_t first,
             std::span<const T> elements) {
  static_assert(sizeof(T) == kElementBytes);
  segment.Write(array.offset + first * kElementBytes, elements.size_bytes(), elements.data());
}

}  // namespace

absl::StatusOr<RecordsInSegment> RecordsInSegment::Parse(const v1::SegmentRange& range,
                                                         const ReceivedArrays& arrays,
                                                         const WantedRecords& wanted, uint64_t rows,
                                                         uint64_t slots) {
  const uint64_t narrow = rows * kElementBytes;
  const std::array<uint64_t, 4> sizes = {
      wanted.sampled_ids * narrow, wanted.sampled_log_probs * narrow, wanted.ids * narrow * slots,
      wanted.log_probs * narrow * slots};
  const absl::StatusOr<AnswersInSegment> answers = AnswersInSegment::Parse(range, arrays, sizes);
  if (!answers.ok()) return answers.status();
  return RecordsInSegment(arrays.segment(), range.offset(), sizes, slots);
}

RecordsInSegment::RecordsInSegment(std::shared_ptr<SharedSegment> segment, uint64_t offset,
                                   std::span<const uint64_t, 4> sizes, uint64_t slots)
    : segment_(std::move(segment)),
      slots_(slots),
      sampled_ids_{offset, sizes[0]},
      sampled_log_probs_(After(sampled_ids_, sizes[1])),
      ids_(After(sampled_log_probs_, sizes[2])),
      log_probs_(After(ids_, sizes[3])) {}

void RecordsInSegment::Write(uint64_t first, const RecordRows& rows) const {
  WriteAt<int32_t>(*segment_, sampled_ids_, first, rows.sampled_ids);
  WriteAt<float>(*segment_, sampled_log_probs_, first, rows.sampled_log_probs);
  WriteAt<int32_t>(*segment_, ids_, first * slots_, rows.ids);
  WriteAt<float>(*segment_, log_probs_, first * slots_, rows.log_probs);
}

void RecordsInSegment::Describe(const WantedRecords& wanted, v1::FetchTopKChunk& chunk) const {
  if (wanted.sampled_ids) chunk.set_sampled_ids(sampled_ids_.ToBytes());
  if (wanted.sampled_log_probs) chunk.set_sampled_log_probs(sampled_log_probs_.ToBytes());
  if (wanted.ids) chunk.set_top_k_ids(ids_.ToBytes());
  if (wanted.log_probs) chunk.set_top_k_log_probs(log_probs_.ToBytes());
}

}  // namespace sis
