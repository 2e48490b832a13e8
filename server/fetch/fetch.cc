#include "server/fetch/fetch.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/wire/arrays.h"

namespace sis {
namespace {

// Messages near this size move fastest over gRPC.
constexpr size_t kChunkBytes = size_t{1} << 20;
// What is decoded into the cache before it is copied to a segment.
constexpr size_t kCopyBytes = size_t{128} << 10;
// Rows for that if they are ragged and without columns: mostly they have much less than all slots.
constexpr uint32_t kCopyRaggedRows = 1024;

// Of an array among the answers.
constexpr size_t IndexOf(v1::RecordArray array) { return array - v1::SAMPLED_IDS; }
// The same if they are ragged.
constexpr size_t kCountsIndex = IndexOf(v1::TOP_K_IDS);
constexpr size_t RaggedIndexOf(v1::RecordArray array) {
  return IndexOf(array) + (array >= v1::TOP_K_IDS ? 1 : 0);
}

// Room for an array if it is wanted, else none.
template <typename T>
std::span<T> Resize(bool wanted, std::vector<T>& array, size_t count) {
  array.resize(wanted ? count : 0);
  return array;
}

template <typename T>
std::span<T> Resize(bool wanted, std::string& array, size_t count) {
  return wanted ? ResizeArray<T>(array, count) : std::span<T>();
}

// The part of an array that may be left out, empty.
template <typename T>
std::span<T> SubArray(std::span<T> array, size_t first, size_t count) {
  return array.empty() ? array : array.subspan(first, count);
}

template <typename T>
void Append(std::span<T> values, std::string& array) {
  array.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
}

}  // namespace

Fetch::Fetch(std::shared_ptr<Run> run, std::vector<SliceRange> slices,
             std::vector<SliceSummary> summaries, const WantedRecords& wanted,
             WantedColumns columns, uint64_t oldest_fresh_version,
             std::optional<AnswersInSegment> answers, bool chunks_span_slices, bool ragged,
             uint64_t lease_id)
    : run_(std::move(run)),
      slices_(std::move(slices)),
      summaries_(std::move(summaries)),
      wanted_(wanted),
      columns_(std::move(columns)),
      lease_id_(lease_id),
      oldest_fresh_version_(oldest_fresh_version),
      answers_(std::move(answers)),
      chunks_span_slices_(chunks_span_slices),
      ragged_(ragged),
      rows_(static_cast<uint64_t>(TotalPositions(slices_))) {}

absl::StatusOr<Fetch> Fetch::Open(std::shared_ptr<Run> run, const v1::FetchTopKRequest& request,
                                  const ReceivedArrays& arrays) {
  const double max_lease = absl::ToDoubleSeconds(run->limits().max_lease);
  if (!(request.lease_seconds() >= 0 && request.lease_seconds() <= max_lease)) {
    return absl::InvalidArgumentError(absl::StrCat("lease_seconds: ", request.lease_seconds(),
                                                   " is not in [0, ", max_lease, "]"));
  }
  const absl::StatusOr<WantedRecords> wanted = WantedRecords::Parse(request);
  if (!wanted.ok()) return wanted.status();
  absl::StatusOr<WantedColumns> columns = WantedColumns::Parse(request, run->config());
  if (!columns.ok()) return columns.status();
  absl::StatusOr<std::vector<SliceRange>> slices =
      ParseFetchSlices(*run, request.slices(), columns->numbers());
  if (!slices.ok()) return slices.status();
  const bool ragged = request.ragged() && wanted->has_slots();
  const uint64_t oldest_fresh_version = run->oldest_fresh_version();
  std::vector<SliceSummary> summaries;
  summaries.reserve(slices->size());
  uint64_t used_slots = 0;
  for (const SliceRange& slice : *slices) {
    summaries.push_back(Summarize(slice, oldest_fresh_version, ragged && request.has_answers()));
    used_slots += summaries.back().used_slots;
  }
  std::optional<AnswersInSegment> answers;
  if (request.has_answers()) {
    const auto rows = static_cast<uint64_t>(TotalPositions(*slices));
    std::vector<uint64_t> sizes;
    const auto add = [&sizes](const auto& of_records) {
      sizes.assign(of_records.begin(), of_records.end());
    };
    if (ragged) {
      add(wanted->RaggedSizes(rows, used_slots));
    } else {
      add(wanted->Sizes(rows, run->config().top_k));
    }
    columns->AddSizes(rows, sizes);
    absl::StatusOr<AnswersInSegment> parsed =
        AnswersInSegment::Parse(request.answers(), arrays, sizes);
    if (!parsed.ok()) return parsed.status();
    answers = *std::move(parsed);
  }
  uint64_t lease_id = 0;
  if (request.lease_seconds() > 0) {
    std::vector<SequenceName> names;
    names.reserve(slices->size());
    for (const SliceRange& slice : *slices) names.push_back(slice.name);
    std::ranges::sort(names);
    names.erase(std::unique(names.begin(), names.end()), names.end());
    const absl::StatusOr<uint64_t> lease =
        run->Lease(names, absl::Seconds(request.lease_seconds()));
    if (!lease.ok()) return lease.status();
    lease_id = *lease;
  }
  return Fetch(std::move(run), *std::move(slices), std::move(summaries), *wanted,
               *std::move(columns), oldest_fresh_version, std::move(answers),
               request.chunks_span_slices(), ragged, lease_id);
}

bool Fetch::Next(v1::FetchTopKResponse& message) {
  message.Clear();
  if (!header_written_) {
    WriteHeader(*message.mutable_header());
    header_written_ = true;
    return true;
  }
  if (answers_.has_value()) {
    while (CopySome()) {
    }
    if (std::exchange(answered_, true)) return false;
    v1::FetchTopKChunk& chunk = *message.mutable_chunk();
    chunk.set_length(static_cast<uint32_t>(rows_done_));
    const auto where = [this](v1::RecordArray array) {
      if (!wanted_.Has(array)) return std::string();
      if (!ragged_) return answers_->part(IndexOf(array)).ToBytes();
      SegmentRange part = answers_->part(RaggedIndexOf(array));
      if (array >= v1::TOP_K_IDS) part.size = slots_done_ * sizeof(float);
      return part.ToBytes();
    };
    if (ragged_) chunk.set_top_k_counts(answers_->part(kCountsIndex).ToBytes());
    chunk.set_sampled_ids(where(v1::SAMPLED_IDS));
    chunk.set_sampled_log_probs(where(v1::SAMPLED_LOG_PROBS));
    chunk.set_top_k_ids(where(v1::TOP_K_IDS));
    chunk.set_top_k_log_probs(where(v1::TOP_K_LOG_PROBS));
    columns_.Locate(*answers_, ColumnsIndex(), chunk);
    return true;
  }
  if (!SkipFullSlices()) return false;
  if (ragged_) {
    WriteRaggedChunk(*message.mutable_chunk());
  } else {
    WriteChunk(*message.mutable_chunk());
  }
  return true;
}

bool Fetch::SkipFullSlices() {
  while (slice_ < slices_.size() && row_ >= slices_[slice_].count) {
    summaries_[slice_] = {};
    slices_[slice_++].found = std::shared_ptr<Sequence>();
    row_ = 0;
  }
  return slice_ < slices_.size();
}

uint32_t Fetch::CountRows(size_t bytes, bool spans_slices) const {
  const auto sizes = wanted_.Sizes(1, run_->config().top_k);
  const size_t row_bytes =
      std::accumulate(sizes.begin(), sizes.end(), size_t{0}) + columns_.RowBytes();
  const uint64_t left = spans_slices ? rows_ - rows_done_ : slices_[slice_].count - row_;
  return static_cast<uint32_t>(std::min<uint64_t>(std::max<size_t>(1, bytes / row_bytes), left));
}

bool Fetch::CopySome() {
  if (!answers_.has_value() || !header_written_ || !SkipFullSlices()) return false;
  if (ragged_) {
    const uint32_t most = CountRows(columns_.empty() ? kChunkBytes : kCopyBytes, true);
    CopyRagged(std::min(kCopyRaggedRows, most));
    return true;
  }
  const uint32_t rows = CountRows(kCopyBytes, true);
  const size_t slots = run_->config().top_k;
  scratch_.ranks.resize(rows);
  const RecordRows to{
      .sampled_ids = Resize(wanted_.Has(v1::SAMPLED_IDS), scratch_.sampled_ids, rows),
      .sampled_log_probs =
          Resize(wanted_.Has(v1::SAMPLED_LOG_PROBS), scratch_.sampled_log_probs, rows),
      .ids = Resize(wanted_.Has(v1::TOP_K_IDS), scratch_.ids, rows * slots),
      .log_probs = Resize(wanted_.Has(v1::TOP_K_LOG_PROBS), scratch_.log_probs, rows * slots),
      .ranks = scratch_.ranks};
  const uint64_t first = rows_done_;
  const uint64_t offset = first * sizeof(float);
  ReadNext(to);
  answers_->Write(IndexOf(v1::SAMPLED_IDS), offset, std::as_bytes(to.sampled_ids));
  answers_->Write(IndexOf(v1::SAMPLED_LOG_PROBS), offset, std::as_bytes(to.sampled_log_probs));
  answers_->Write(IndexOf(v1::TOP_K_IDS), offset * slots, std::as_bytes(to.ids));
  answers_->Write(IndexOf(v1::TOP_K_LOG_PROBS), offset * slots, std::as_bytes(to.log_probs));
  columns_.Write(*answers_, ColumnsIndex(), first);
  return true;
}

void Fetch::WriteHeader(v1::FetchTopKHeader& header) const {
  header.set_lease_id(lease_id_);
  header.set_top_k(run_->config().top_k);
  for (size_t i = 0; i < slices_.size(); ++i) {
    const SliceRange& slice = slices_[i];
    v1::Slice& message = *header.add_slices();
    message.mutable_sequence()->set_id(slice.name.id);
    message.mutable_sequence()->set_attempt(slice.name.attempt);
    message.set_first_position(slice.first_position);
    message.set_length(slice.count);
    message.set_record_digest(summaries_[i].digest);
    AddMissingRanges(i, summaries_[i].missing, *header.mutable_missing());
  }
}

void Fetch::WriteChunk(v1::FetchTopKChunk& chunk) {
  const uint32_t rows = CountRows(kChunkBytes, chunks_span_slices_);
  const size_t slots = run_->config().top_k;
  chunk.set_slice(static_cast<uint32_t>(slice_));
  chunk.set_first_position(slices_[slice_].first_position + row_);
  chunk.set_length(rows);
  scratch_.ranks.resize(rows);
  ReadNext(
      {.sampled_ids =
           Resize<int32_t>(wanted_.Has(v1::SAMPLED_IDS), *chunk.mutable_sampled_ids(), rows),
       .sampled_log_probs = Resize<float>(wanted_.Has(v1::SAMPLED_LOG_PROBS),
                                          *chunk.mutable_sampled_log_probs(), rows),
       .ids = Resize<int32_t>(wanted_.Has(v1::TOP_K_IDS), *chunk.mutable_top_k_ids(), rows * slots),
       .log_probs = Resize<float>(wanted_.Has(v1::TOP_K_LOG_PROBS),
                                  *chunk.mutable_top_k_log_probs(), rows * slots),
       .ranks = scratch_.ranks});
  columns_.Move(chunk);
}

void Fetch::WriteRaggedChunk(v1::FetchTopKChunk& chunk) {
  chunk.set_slice(static_cast<uint32_t>(slice_));
  chunk.set_first_position(slices_[slice_].first_position + row_);
  const size_t slice = slice_;
  uint32_t rows = 0;
  size_t bytes = 0;
  do {  // CountRows leaves out the counts: 2 bytes beside at least 4
    const uint32_t count =
        CountRows(columns_.empty() ? kCopyBytes : kChunkBytes, chunks_span_slices_);
    const UsedRows next = ReadNextUsed(count);
    Append(next.sampled_ids, *chunk.mutable_sampled_ids());
    Append(next.sampled_log_probs, *chunk.mutable_sampled_log_probs());
    Append(next.counts, *chunk.mutable_top_k_counts());
    Append(next.ids, *chunk.mutable_top_k_ids());
    Append(next.log_probs, *chunk.mutable_top_k_log_probs());
    rows += count;
    bytes += next.sampled_ids.size_bytes() + next.sampled_log_probs.size_bytes() +
             next.counts.size_bytes() + next.ids.size_bytes() + next.log_probs.size_bytes();
  } while (columns_.empty() && bytes + kCopyBytes + kCopyBytes / 2 <= kChunkBytes &&
           SkipFullSlices() && (chunks_span_slices_ || slice_ == slice));
  chunk.set_length(rows);
  columns_.Move(chunk);
}

void Fetch::CopyRagged(uint32_t rows) {
  const uint64_t first = rows_done_;
  UsedRows next = ReadNextUsed(rows);
  const size_t slots = std::max(next.ids.size(), next.log_probs.size());
  const SegmentRange& room =
      answers_->part(RaggedIndexOf(next.ids.empty() ? v1::TOP_K_LOG_PROBS : v1::TOP_K_IDS));
  if ((slots_done_ + slots) * sizeof(float) > room.size) {
    // Others came in place of some that were truncated: the header's digest is not theirs.
    std::ranges::fill(next.counts, uint16_t{0});
    next.ids = {};
    next.log_probs = {};
  }
  const uint64_t offset = first * sizeof(float);
  const uint64_t slot_offset = slots_done_ * sizeof(float);
  answers_->Write(RaggedIndexOf(v1::SAMPLED_IDS), offset, std::as_bytes(next.sampled_ids));
  answers_->Write(RaggedIndexOf(v1::SAMPLED_LOG_PROBS), offset,
                  std::as_bytes(next.sampled_log_probs));
  answers_->Write(kCountsIndex, first * sizeof(uint16_t), std::as_bytes(next.counts));
  answers_->Write(RaggedIndexOf(v1::TOP_K_IDS), slot_offset, std::as_bytes(next.ids));
  answers_->Write(RaggedIndexOf(v1::TOP_K_LOG_PROBS), slot_offset, std::as_bytes(next.log_probs));
  slots_done_ += std::max(next.ids.size(), next.log_probs.size());
  columns_.Write(*answers_, ColumnsIndex(), first);
}

UsedRows Fetch::ReadNextUsed(uint32_t count) {
  const size_t most = size_t{count} * run_->config().top_k;
  UsedRows rows{.sampled_ids = Resize(wanted_.Has(v1::SAMPLED_IDS), scratch_.sampled_ids, count),
                .sampled_log_probs =
                    Resize(wanted_.Has(v1::SAMPLED_LOG_PROBS), scratch_.sampled_log_probs, count),
                .counts = Resize(true, scratch_.counts, count),
                .ids = Resize(wanted_.Has(v1::TOP_K_IDS), scratch_.ids, most),
                .log_probs = Resize(wanted_.Has(v1::TOP_K_LOG_PROBS), scratch_.log_probs, most)};
  columns_.Resize(count);
  size_t slots = 0;
  for (uint32_t done = 0; done < count;) {
    const SliceRange& slice = slices_[slice_];
    const uint32_t part = std::min(count - done, slice.count - row_);
    const size_t left = (size_t{count} - done) * run_->config().top_k;
    slots += ReadUsed(slice.first_position + row_,
                      {.sampled_ids = SubArray(rows.sampled_ids, done, part),
                       .sampled_log_probs = SubArray(rows.sampled_log_probs, done, part),
                       .counts = rows.counts.subspan(done, part),
                       .ids = SubArray(rows.ids, slots, left),
                       .log_probs = SubArray(rows.log_probs, slots, left)},
                      done);
    done += part;
    row_ += part;
    SkipFullSlices();
  }
  rows_done_ += count;
  rows.ids = SubArray(rows.ids, 0, slots);
  rows.log_probs = SubArray(rows.log_probs, 0, slots);
  return rows;
}

size_t Fetch::ReadUsed(uint32_t first_position, const UsedRows& rows, uint32_t row) {
  const SliceRange& slice = slices_[slice_];
  const auto write_absent = [](const UsedRows& part) {
    WriteAbsent({.sampled_ids = part.sampled_ids,
                 .sampled_log_probs = part.sampled_log_probs,
                 .ids = {},
                 .log_probs = {},
                 .ranks = {}});
    std::ranges::fill(part.counts, uint16_t{0});
  };
  if (slice.sequence() == nullptr) {
    write_absent(rows);
    return 0;
  }
  size_t slots = 0;
  const Sequence::Reader reader(*slice.sequence());  // checked for the header
  ForEachPiece(reader, summaries_[slice_], first_position,
               static_cast<uint32_t>(rows.counts.size()),
               [&](const Sequence::Reader::Piece& piece) {
                 const size_t first = piece.first_position - first_position;
                 const UsedRows part{
                     .sampled_ids = SubArray(rows.sampled_ids, first, piece.count),
                     .sampled_log_probs = SubArray(rows.sampled_log_probs, first, piece.count),
                     .counts = rows.counts.subspan(first, piece.count),
                     .ids = SubArray(rows.ids, slots, rows.ids.size() - slots),
                     .log_probs = SubArray(rows.log_probs, slots, rows.log_probs.size() - slots)};
                 if (ReasonMissing(piece, oldest_fresh_version_).has_value()) {
                   write_absent(part);
                 } else {
                   slots += piece.page->ReadUsed(piece.index, part, rows_buffer_);
                   columns_.Read(reader, piece, row + static_cast<uint32_t>(first));
                 }
               });
  return slots;
}

void Fetch::ReadNext(const RecordRows& rows) {
  columns_.Resize(static_cast<uint32_t>(rows.ranks.size()));
  for (size_t done = 0; done < rows.ranks.size();) {
    const SliceRange& slice = slices_[slice_];
    const auto count =
        static_cast<uint32_t>(std::min<size_t>(rows.ranks.size() - done, slice.count - row_));
    ReadRows(slice.first_position + row_, SubRows(rows, done, count, run_->config().top_k),
             static_cast<uint32_t>(done));
    done += count;
    row_ += count;
    SkipFullSlices();
  }
  rows_done_ += rows.ranks.size();
}

void Fetch::ReadRows(uint32_t first_position, const RecordRows& rows, uint32_t row) {
  const SliceRange& slice = slices_[slice_];
  if (slice.sequence() == nullptr) return WriteAbsent(rows);
  const auto count = static_cast<uint32_t>(rows.ranks.size());
  const size_t slots = run_->config().top_k;
  const Sequence::Reader reader(*slice.sequence());  // checked for the header
  ForEachPiece(reader, summaries_[slice_], first_position, count,
               [&](const Sequence::Reader::Piece& piece) {
                 const uint32_t first = piece.first_position - first_position;
                 const RecordRows part = SubRows(rows, first, piece.count, slots);
                 if (ReasonMissing(piece, oldest_fresh_version_).has_value()) {
                   WriteAbsent(part);
                 } else {
                   piece.page->Read(piece.index, part);
                   columns_.Read(reader, piece, row + first);
                 }
               });
}

}  // namespace sis
