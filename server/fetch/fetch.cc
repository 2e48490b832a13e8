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

// Of an array among the answers.
constexpr size_t IndexOf(v1::RecordArray array) { return array - v1::SAMPLED_IDS; }

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

}  // namespace

Fetch::Fetch(std::shared_ptr<Run> run, std::vector<SliceRange> slices, const WantedRecords& wanted,
             WantedColumns columns, std::optional<AnswersInSegment> answers,
             bool chunks_span_slices, uint64_t lease_id)
    : run_(std::move(run)),
      slices_(std::move(slices)),
      wanted_(wanted),
      columns_(std::move(columns)),
      lease_id_(lease_id),
      oldest_fresh_version_(run_->oldest_fresh_version()),
      answers_(std::move(answers)),
      chunks_span_slices_(chunks_span_slices),
      rows_(static_cast<uint64_t>(TotalPositions(slices_))) {}

absl::StatusOr<Fetch> Fetch::Open(std::shared_ptr<Run> run, const v1::FetchTopKRequest& request,
                                  const ReceivedArrays& arrays) {
  const double max_lease = absl::ToDoubleSeconds(run->limits().max_lease);
  if (!(request.lease_seconds() >= 0 && request.lease_seconds() <= max_lease)) {
    return absl::InvalidArgumentError(absl::StrCat("lease_seconds: ", request.lease_seconds(),
                                                   " is not in [0, ", max_lease, "]"));
  }
  absl::StatusOr<std::vector<SliceRange>> slices = ParseFetchSlices(*run, request.slices());
  if (!slices.ok()) return slices.status();
  const absl::StatusOr<WantedRecords> wanted = WantedRecords::Parse(request);
  if (!wanted.ok()) return wanted.status();
  absl::StatusOr<WantedColumns> columns = WantedColumns::Parse(request, run->config());
  if (!columns.ok()) return columns.status();
  std::optional<AnswersInSegment> answers;
  if (request.has_answers()) {
    const auto of_records = wanted->Sizes(TotalPositions(*slices), run->config().top_k);
    std::vector<uint64_t> sizes(of_records.begin(), of_records.end());
    columns->AddSizes(TotalPositions(*slices), sizes);
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
  return Fetch(std::move(run), *std::move(slices), *wanted, *std::move(columns), std::move(answers),
               request.chunks_span_slices(), lease_id);
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
      return wanted_.Has(array) ? answers_->part(IndexOf(array)).ToBytes() : std::string();
    };
    chunk.set_sampled_ids(where(v1::SAMPLED_IDS));
    chunk.set_sampled_log_probs(where(v1::SAMPLED_LOG_PROBS));
    chunk.set_top_k_ids(where(v1::TOP_K_IDS));
    chunk.set_top_k_log_probs(where(v1::TOP_K_LOG_PROBS));
    columns_.Locate(*answers_, WantedRecords::kArrays, chunk);
    return true;
  }
  if (!SkipFullSlices()) return false;
  WriteChunk(*message.mutable_chunk());
  return true;
}

bool Fetch::SkipFullSlices() {
  while (slice_ < slices_.size() && row_ >= slices_[slice_].count) {
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
  const uint64_t offset = rows_done_ * sizeof(float);
  ReadNext(to);
  answers_->Write(IndexOf(v1::SAMPLED_IDS), offset, std::as_bytes(to.sampled_ids));
  answers_->Write(IndexOf(v1::SAMPLED_LOG_PROBS), offset, std::as_bytes(to.sampled_log_probs));
  answers_->Write(IndexOf(v1::TOP_K_IDS), offset * slots, std::as_bytes(to.ids));
  answers_->Write(IndexOf(v1::TOP_K_LOG_PROBS), offset * slots, std::as_bytes(to.log_probs));
  columns_.Write(*answers_, WantedRecords::kArrays, offset / sizeof(float));
  return true;
}

Fetch::Summary Fetch::Summarize(const SliceRange& slice) const {
  Summary summary{.digest = 0, .missing = {}};
  if (slice.sequence() == nullptr) {
    summary.missing.push_back(
        {slice.first_position, slice.count, std::get<MissingReason>(slice.found)});
    return summary;
  }
  const Sequence::Reader reader(*slice.sequence());
  reader.Check(slice.first_position, slice.count);
  summary.digest = reader.Digest(slice.first_position, slice.count, oldest_fresh_version_);
  reader.ForEachPiece(slice.first_position, slice.count, [&](const Sequence::Reader::Piece& piece) {
    if (const auto reason = ReasonMissing(piece, oldest_fresh_version_); reason.has_value()) {
      AddMissing(summary.missing, {piece.first_position, piece.count, *reason});
    }
  });
  return summary;
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
    const Summary summary = Summarize(slice);
    message.set_record_digest(summary.digest);
    AddMissingRanges(i, summary.missing, *header.mutable_missing());
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

void Fetch::ReadNext(const RecordRows& rows) {
  columns_.Resize(static_cast<uint32_t>(rows.ranks.size()));
  for (size_t done = 0; done < rows.ranks.size();) {
    const SliceRange& slice = slices_[slice_];
    const auto count =
        static_cast<uint32_t>(std::min<size_t>(rows.ranks.size() - done, slice.count - row_));
    ReadRows(slice.first_position + row_, SubRows(rows, done, count, run_->config().top_k));
    if (!columns_.empty()) {
      columns_.Read(slice, slice.first_position + row_, count, oldest_fresh_version_,
                    static_cast<uint32_t>(done));
    }
    done += count;
    row_ += count;
    SkipFullSlices();
  }
  rows_done_ += rows.ranks.size();
}

void Fetch::ReadRows(uint32_t first_position, const RecordRows& rows) const {
  const SliceRange& slice = slices_[slice_];
  if (slice.sequence() == nullptr) return WriteAbsent(rows);
  const auto count = static_cast<uint32_t>(rows.ranks.size());
  const size_t slots = run_->config().top_k;
  // Checked for the header.
  const Sequence::Reader reader(*slice.sequence());
  reader.ForEachPiece(first_position, count, [&](const Sequence::Reader::Piece& piece) {
    const RecordRows part =
        SubRows(rows, piece.first_position - first_position, piece.count, slots);
    if (ReasonMissing(piece, oldest_fresh_version_).has_value()) {
      WriteAbsent(part);
    } else {
      piece.page->Read(piece.index, part);
    }
  });
}

}  // namespace sis
