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

// The rows [first, first + count), and what comes from this slot on.
UsedRows SubRows(const UsedRows& rows, size_t first, size_t count, size_t slot) {
  const auto part = [](auto array, size_t begin, size_t size) {
    return array.empty() ? array : array.subspan(begin, size);
  };
  return {.sampled_ids = part(rows.sampled_ids, first, count),
          .sampled_log_probs = part(rows.sampled_log_probs, first, count),
          .counts = rows.counts.subspan(first, count),
          .ids = part(rows.ids, slot, std::dynamic_extent),
          .log_probs = part(rows.log_probs, slot, std::dynamic_extent)};
}

template <typename T>
void Append(std::span<T> values, std::string& array) {
  array.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
}

}  // namespace

absl::StatusOr<Fetch> Fetch::Open(std::shared_ptr<Run> run, const v1::FetchTopKRequest& request,
                                  const ReceivedArrays& arrays) {
  Fetch fetch(std::move(run));
  const RunConfig& config = fetch.run_->config();
  const double max_lease = absl::ToDoubleSeconds(fetch.run_->limits().max_lease);
  if (!(request.lease_seconds() >= 0 && request.lease_seconds() <= max_lease)) {
    return absl::InvalidArgumentError(absl::StrCat("lease_seconds: ", request.lease_seconds(),
                                                   " is not in [0, ", max_lease, "]"));
  }
  const absl::StatusOr<WantedRecords> wanted = WantedRecords::Parse(request);
  if (!wanted.ok()) return wanted.status();
  fetch.wanted_ = *wanted;
  absl::StatusOr<WantedColumns> columns = WantedColumns::Parse(request, config);
  if (!columns.ok()) return columns.status();
  fetch.columns_ = *std::move(columns);
  absl::StatusOr<std::vector<SliceRange>> slices =
      ParseFetchSlices(*fetch.run_, request.slices(), fetch.columns_.numbers());
  if (!slices.ok()) return slices.status();
  fetch.slices_ = *std::move(slices);
  fetch.rows_ = static_cast<uint64_t>(TotalPositions(fetch.slices_));
  fetch.chunks_span_slices_ = request.chunks_span_slices();
  fetch.ragged_ = request.ragged() && wanted->has_slots();
  fetch.oldest_fresh_version_ = fetch.run_->oldest_fresh_version();
  fetch.summaries_.reserve(fetch.slices_.size());
  uint64_t used_slots = 0;
  for (const SliceRange& slice : fetch.slices_) {
    fetch.summaries_.push_back(
        Summarize(slice, fetch.oldest_fresh_version_, fetch.ragged_ && request.has_answers()));
    used_slots += fetch.summaries_.back().used_slots;
  }
  if (request.has_answers()) {
    std::vector<uint64_t> sizes = wanted->Sizes(
        fetch.rows_, fetch.ragged_ ? used_slots : fetch.rows_ * config.top_k, fetch.ragged_);
    fetch.columns_.AddSizes(fetch.rows_, sizes);
    absl::StatusOr<AnswersInSegment> answers =
        AnswersInSegment::Parse(request.answers(), arrays, sizes);
    if (!answers.ok()) return answers.status();
    fetch.answers_ = *std::move(answers);
  }
  if (request.lease_seconds() > 0) {
    std::vector<SequenceName> names;
    names.reserve(fetch.slices_.size());
    for (const SliceRange& slice : fetch.slices_) names.push_back(slice.name);
    std::ranges::sort(names);
    names.erase(std::unique(names.begin(), names.end()), names.end());
    const absl::StatusOr<uint64_t> lease =
        fetch.run_->Lease(names, absl::Seconds(request.lease_seconds()));
    if (!lease.ok()) return lease.status();
    fetch.lease_id_ = *lease;
  }
  return fetch;
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
      SegmentRange part = answers_->part(IndexOf(array));
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
  WriteChunk(*message.mutable_chunk());
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
  const std::vector<uint64_t> sizes = wanted_.Sizes(1, run_->config().top_k, /*ragged=*/false);
  const size_t row_bytes =
      std::accumulate(sizes.begin(), sizes.end(), size_t{0}) + columns_.RowBytes();
  const uint64_t left = spans_slices ? rows_ - rows_done_ : slices_[slice_].count - row_;
  return static_cast<uint32_t>(std::min<uint64_t>(std::max<size_t>(1, bytes / row_bytes), left));
}

bool Fetch::CopySome() {
  if (!answers_.has_value() || !header_written_ || !SkipFullSlices()) return false;
  const uint32_t rows =
      ragged_
          ? std::min(kCopyRaggedRows, CountRows(columns_.empty() ? kChunkBytes : kCopyBytes, true))
          : CountRows(kCopyBytes, true);
  const uint64_t first = rows_done_;
  UsedRows next = ReadIntoScratch(rows);
  const size_t slots = std::max(next.ids.size(), next.log_probs.size());
  const SegmentRange& room =
      answers_->part(IndexOf(next.ids.empty() ? v1::TOP_K_LOG_PROBS : v1::TOP_K_IDS));
  if ((slots_done_ + slots) * sizeof(float) > room.size) {
    // Others came in place of some that were truncated: the header's digest is not theirs.
    std::ranges::fill(next.counts, uint16_t{0});
    next.ids = {};
    next.log_probs = {};
  }
  const auto write = [this](v1::RecordArray array, uint64_t element, const auto& values) {
    answers_->Write(IndexOf(array), element * sizeof(float), std::as_bytes(values));
  };
  write(v1::SAMPLED_IDS, first, next.sampled_ids);
  write(v1::SAMPLED_LOG_PROBS, first, next.sampled_log_probs);
  if (ragged_) {
    answers_->Write(kCountsIndex, first * sizeof(uint16_t), std::as_bytes(next.counts));
  }
  write(v1::TOP_K_IDS, slots_done_, next.ids);
  write(v1::TOP_K_LOG_PROBS, slots_done_, next.log_probs);
  slots_done_ += std::max(next.ids.size(), next.log_probs.size());
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
  chunk.set_slice(static_cast<uint32_t>(slice_));
  chunk.set_first_position(slices_[slice_].first_position + row_);
  if (ragged_) {
    chunk.set_length(WriteRagged(chunk));
  } else {
    const uint32_t rows = CountRows(kChunkBytes, chunks_span_slices_);
    const size_t slots = rows * run_->config().top_k;
    chunk.set_length(rows);
    ReadNext({.sampled_ids =
                  Resize<int32_t>(wanted_.Has(v1::SAMPLED_IDS), *chunk.mutable_sampled_ids(), rows),
              .sampled_log_probs = Resize<float>(wanted_.Has(v1::SAMPLED_LOG_PROBS),
                                                 *chunk.mutable_sampled_log_probs(), rows),
              .counts = Resize(true, scratch_.counts, rows),
              .ids = Resize<int32_t>(wanted_.Has(v1::TOP_K_IDS), *chunk.mutable_top_k_ids(), slots),
              .log_probs = Resize<float>(wanted_.Has(v1::TOP_K_LOG_PROBS),
                                         *chunk.mutable_top_k_log_probs(), slots)});
  }
  columns_.Move(chunk);
}

uint32_t Fetch::WriteRagged(v1::FetchTopKChunk& chunk) {
  const size_t slice = slice_;
  uint32_t rows = 0;
  size_t bytes = 0;
  do {  // CountRows leaves out the counts: 2 bytes beside at least 4
    const uint32_t count =
        CountRows(columns_.empty() ? kCopyBytes : kChunkBytes, chunks_span_slices_);
    const UsedRows next = ReadIntoScratch(count);
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
  return rows;
}

UsedRows Fetch::ReadIntoScratch(uint32_t count) {
  const size_t most = size_t{count} * run_->config().top_k;
  UsedRows rows{.sampled_ids = Resize(wanted_.Has(v1::SAMPLED_IDS), scratch_.sampled_ids, count),
                .sampled_log_probs =
                    Resize(wanted_.Has(v1::SAMPLED_LOG_PROBS), scratch_.sampled_log_probs, count),
                .counts = Resize(true, scratch_.counts, count),
                .ids = Resize(wanted_.Has(v1::TOP_K_IDS), scratch_.ids, most),
                .log_probs = Resize(wanted_.Has(v1::TOP_K_LOG_PROBS), scratch_.log_probs, most)};
  const size_t slots = ReadNext(rows);
  rows.ids = rows.ids.first(std::min(slots, rows.ids.size()));
  rows.log_probs = rows.log_probs.first(std::min(slots, rows.log_probs.size()));
  return rows;
}

size_t Fetch::ReadNext(const UsedRows& rows) {
  const auto count = static_cast<uint32_t>(rows.counts.size());
  columns_.Resize(count);
  size_t slots = 0;
  for (uint32_t done = 0; done < count;) {
    const SliceRange& slice = slices_[slice_];
    const uint32_t part = std::min(count - done, slice.count - row_);
    slots += ReadRows(slice.first_position + row_, SubRows(rows, done, part, slots), done);
    done += part;
    row_ += part;
    SkipFullSlices();
  }
  rows_done_ += count;
  return slots;
}

size_t Fetch::ReadRows(uint32_t first_position, const UsedRows& rows, uint32_t row) {
  const SliceRange& slice = slices_[slice_];
  if (slice.sequence() == nullptr) return WriteMissing(rows);
  const Sequence::Reader reader(*slice.sequence());  // checked for the header
  size_t slots = 0;
  ForEachPiece(reader, summaries_[slice_], first_position,
               static_cast<uint32_t>(rows.counts.size()),
               [&](const Sequence::Reader::Piece& piece) {
                 const uint32_t first = piece.first_position - first_position;
                 const UsedRows part = SubRows(rows, first, piece.count, slots);
                 if (ReasonMissing(piece, oldest_fresh_version_).has_value()) {
                   slots += WriteMissing(part);
                   return;
                 }
                 if (ragged_) {
                   slots += piece.page->ReadUsed(piece.index, part, rows_buffer_);
                 } else {
                   piece.page->Read(piece.index, Padded(part));
                   slots += size_t{piece.count} * run_->config().top_k;
                 }
                 columns_.Read(reader, piece, row + first);
               });
  return slots;
}

size_t Fetch::WriteMissing(const UsedRows& rows) {
  RecordRows absent = Padded(rows);
  if (!ragged_) {
    WriteAbsent(absent);
    return rows.counts.size() * run_->config().top_k;
  }
  absent.ids = {};
  absent.log_probs = {};
  WriteAbsent(absent);
  std::ranges::fill(rows.counts, uint16_t{0});
  return 0;
}

RecordRows Fetch::Padded(const UsedRows& rows) {
  const size_t slots = rows.counts.size() * run_->config().top_k;
  scratch_.ranks.resize(rows.counts.size());
  return {.sampled_ids = rows.sampled_ids,
          .sampled_log_probs = rows.sampled_log_probs,
          .ids = rows.ids.first(std::min(slots, rows.ids.size())),
          .log_probs = rows.log_probs.first(std::min(slots, rows.log_probs.size())),
          .ranks = scratch_.ranks};
}

}  // namespace sis
