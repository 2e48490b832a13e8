#include "server/fetch/segment_rows.h"

#include <algorithm>
#include <atomic>
#include <numeric>

#include "server/threads/side_by_side.h"

namespace sis {
namespace {

// What is read at most for a piece if rows are ragged: mostly they have much less than all slots.
constexpr size_t kRaggedBytes = size_t{1} << 20;
constexpr uint32_t kRaggedRows = 1024;
// Pieces that are copied in a turn, by all workers: a millisecond or so of one.
constexpr size_t kPiecesInTurn = 32;
// What a worker is worth waking up for.
constexpr uint64_t kStretchBytes = uint64_t{256} << 10;

}  // namespace

absl::StatusOr<SegmentRows> SegmentRows::Open(FetchSource& source,
                                              const v1::FetchTopKRequest& request,
                                              const ReceivedArrays& arrays, size_t most_stretches) {
  const uint64_t top_k = source.run->config().top_k;
  const auto slots_of = [&](size_t slice) {
    return source.ragged ? source.summaries[slice].used_slots : source.slices[slice].count * top_k;
  };
  const auto rows = static_cast<uint64_t>(TotalPositions(source.slices));
  uint64_t slots = 0;
  for (size_t i = 0; i < source.slices.size(); ++i) slots += slots_of(i);
  std::vector<uint64_t> sizes = source.wanted.Sizes(rows, slots, source.ragged);
  absl::StatusOr<AnswersInSegment> answers =
      AnswersInSegment::Parse(request.answers(), arrays, sizes);
  if (!answers.ok()) return answers.status();
  SegmentRows made(source, *std::move(answers));

  const uint64_t bytes = std::reduce(sizes.begin(), sizes.end());
  const uint64_t stretches = std::clamp<uint64_t>(bytes / kStretchBytes, 1, most_stretches);
  uint64_t row = 0, slot = 0;
  uint64_t first_row = 0, first_slot = 0;
  size_t begin = 0;
  for (size_t end = 1; end <= source.slices.size(); ++end) {
    row += source.slices[end - 1].count;
    slot += slots_of(end - 1);
    const uint64_t own = made.stretches_.size() + 1;
    const bool full = own < stretches && row >= rows * own / stretches;
    if (!full && end < source.slices.size()) continue;
    made.stretches_.push_back(
        {RowReader(source, begin, end), first_row, first_slot, first_slot, slot});
    begin = end;
    first_row = row;
    first_slot = slot;
  }
  return made;
}

bool SegmentRows::CopySome(WorkerPool* workers) {
  if (std::ranges::all_of(stretches_, IsCopied)) return false;  // nobody is woken
  const size_t pieces = std::max<size_t>(1, kPiecesInTurn / stretches_.size());
  std::atomic<size_t> next = 0;
  SideBySide(workers, source_->run->id(), stretches_.size(), [&](size_t) {
    for (size_t i = next++; i < stretches_.size(); i = next++) {
      Stretch& stretch = stretches_[i];
      for (size_t piece = 0; piece < pieces && !IsCopied(stretch); ++piece) CopyNext(stretch);
    }
  });
  return !std::ranges::all_of(stretches_, IsCopied);
}

void SegmentRows::CopyNext(Stretch& stretch) {
  RowReader& reader = stretch.reader;
  reader.SkipFullSlices();
  const uint32_t most =
      reader.CountRows(source_->ragged ? kRaggedBytes : RowReader::kPieceBytes, true);
  const uint32_t count = source_->ragged ? std::min(kRaggedRows, most) : most;
  UsedRows rows = reader.ReadIntoScratch(count);
  const size_t slots = std::max(rows.ids.size(), rows.log_probs.size());
  if (stretch.next_slot + slots > stretch.end_slot) {
    // More came since the summary: the header's digest is not theirs.
    std::ranges::fill(rows.counts, uint16_t{0});
    rows.ids = {};
    rows.log_probs = {};
  }
  const auto write = [this](v1::RecordArray array, uint64_t element, const auto& values) {
    answers_.Write(IndexOf(array), element * sizeof(float), std::as_bytes(values));
  };
  write(v1::SAMPLED_IDS, stretch.row, rows.sampled_ids);
  write(v1::SAMPLED_LOG_PROBS, stretch.row, rows.sampled_log_probs);
  if (source_->ragged) {
    answers_.Write(kCountsIndex, stretch.row * sizeof(uint16_t), std::as_bytes(rows.counts));
  }
  write(v1::TOP_K_IDS, stretch.next_slot, rows.ids);
  write(v1::TOP_K_LOG_PROBS, stretch.next_slot, rows.log_probs);
  stretch.row += count;
  stretch.next_slot += std::max(rows.ids.size(), rows.log_probs.size());
}

uint64_t SegmentRows::CloseGaps() {
  uint64_t end = 0;
  for (const Stretch& stretch : stretches_) {
    const uint64_t slots = stretch.next_slot - stretch.first_slot;
    for (const v1::RecordArray array : {v1::TOP_K_IDS, v1::TOP_K_LOG_PROBS}) {
      if (end == stretch.first_slot || !source_->wanted.Has(array)) continue;
      answers_.MoveUp(IndexOf(array), stretch.first_slot * sizeof(float), slots * sizeof(float),
                      end * sizeof(float));
    }
    end += slots;
  }
  return end;
}

void SegmentRows::Locate(v1::FetchTopKChunk& chunk) {
  const uint64_t slots = CloseGaps();
  chunk.set_length(static_cast<uint32_t>(stretches_.back().row));
  const auto where = [&](v1::RecordArray array) {
    if (!source_->wanted.Has(array)) return std::string();
    SegmentRange part = answers_.part(IndexOf(array));
    if (array >= v1::TOP_K_IDS) part.size = slots * sizeof(float);
    return part.ToBytes();
  };
  if (source_->ragged) chunk.set_top_k_counts(answers_.part(kCountsIndex).ToBytes());
  chunk.set_sampled_ids(where(v1::SAMPLED_IDS));
  chunk.set_sampled_log_probs(where(v1::SAMPLED_LOG_PROBS));
  chunk.set_top_k_ids(where(v1::TOP_K_IDS));
  chunk.set_top_k_log_probs(where(v1::TOP_K_LOG_PROBS));
}

}  // namespace sis
