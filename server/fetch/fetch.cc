#include "server/fetch/fetch.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "server/messages/arrays.h"
#include "server/threads/side_by_side.h"

namespace sis {
namespace {

// Messages near this size move fastest over gRPC.
constexpr size_t kChunkBytes = size_t{1} << 20;
// Values that a worker is worth waking up for.
constexpr uint64_t kLaneValues = 1 << 16;

// Room for an array if it is wanted, else none.
template <typename T>
std::span<T> Resize(bool wanted, std::string& array, size_t count) {
  return wanted ? ResizeArray<T>(array, count) : std::span<T>();
}

template <typename T>
void Append(std::span<T> values, std::string& array) {
  array.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
}

}  // namespace

absl::StatusOr<Fetch> Fetch::Open(std::shared_ptr<Run> run, const v1::FetchTopKRequest& request,
                                  WorkerPool* workers) {
  Fetch fetch(workers);
  FetchSource& source = *fetch.source_;
  source.run = std::move(run);
  const absl::StatusOr<WantedRecords> wanted = WantedRecords::Parse(request);
  if (!wanted.ok()) return wanted.status();
  source.wanted = *wanted;
  source.ragged = request.ragged() && wanted->has_slots();
  absl::StatusOr<std::vector<SliceRange>> slices = ParseFetchSlices(*source.run, request.slices());
  if (!slices.ok()) return slices.status();
  absl::Status kept = KeepSequences(*source.run, *slices, request.keep_seconds());
  if (!kept.ok()) return kept;
  source.slices = *std::move(slices);
  source.oldest_fresh_version = source.run->oldest_fresh_version();
  fetch.rows_ = static_cast<uint64_t>(TotalPositions(source.slices));
  fetch.chunks_span_slices_ = request.chunks_span_slices();
  fetch.Summarize();
  fetch.reader_.emplace(source, 0, source.slices.size());
  return fetch;
}

void Fetch::Summarize() {
  FetchSource& source = *source_;
  source.summaries.resize(source.slices.size());
  const uint64_t values = rows_ * source.run->config().top_k;
  const size_t lanes = std::min<uint64_t>({values / kLaneValues, source.slices.size(), threads()});
  std::atomic<size_t> next = 0;
  SideBySide(workers_, source.run->id(), lanes, [&](size_t) {
    for (size_t i = next++; i < source.slices.size(); i = next++) {
      source.summaries[i] = sis::Summarize(source.slices[i], source.oldest_fresh_version);
    }
  });
}

bool Fetch::Next(v1::FetchTopKResponse& message) {
  message.Clear();
  if (!header_written_) {
    WriteHeader(*message.mutable_header());
    header_written_ = true;
    return true;
  }
  if (!reader_->SkipFullSlices()) return false;
  WriteChunk(*message.mutable_chunk());
  return true;
}

void Fetch::WriteHeader(v1::FetchTopKHeader& header) const {
  header.set_top_k(source_->run->config().top_k);
  for (size_t i = 0; i < source_->slices.size(); ++i) {
    const SliceRange& slice = source_->slices[i];
    v1::Slice& message = *header.add_slices();
    message.mutable_sequence()->set_id(slice.name.id);
    message.mutable_sequence()->set_attempt(slice.name.attempt);
    message.set_first_position(slice.first_position);
    message.set_length(slice.count);
    message.set_record_digest(source_->summaries[i].digest);
    AddMissingRanges(i, source_->summaries[i].missing, *header.mutable_missing());
  }
}

void Fetch::WriteChunk(v1::FetchTopKChunk& chunk) {
  chunk.set_slice(static_cast<uint32_t>(reader_->slice()));
  chunk.set_first_position(reader_->position());
  if (source_->ragged) {
    chunk.set_length(WriteRagged(chunk));
  } else {
    const uint32_t rows = reader_->CountRows(kChunkBytes, chunks_span_slices_);
    const size_t slots = size_t{rows} * source_->run->config().top_k;
    chunk.set_length(rows);
    reader_->Read({.sampled_ids = Resize<int32_t>(source_->wanted.Has(v1::SAMPLED_IDS),
                                                  *chunk.mutable_sampled_ids(), rows),
                   .sampled_log_probs = Resize<float>(source_->wanted.Has(v1::SAMPLED_LOG_PROBS),
                                                      *chunk.mutable_sampled_log_probs(), rows),
                   .counts = reader_->CountsScratch(rows),
                   .ids = Resize<int32_t>(source_->wanted.Has(v1::TOP_K_IDS),
                                          *chunk.mutable_top_k_ids(), slots),
                   .log_probs = Resize<float>(source_->wanted.Has(v1::TOP_K_LOG_PROBS),
                                              *chunk.mutable_top_k_log_probs(), slots)});
  }
}

uint32_t Fetch::WriteRagged(v1::FetchTopKChunk& chunk) {
  const size_t slice = reader_->slice();
  uint32_t rows = 0;
  size_t bytes = 0;
  constexpr size_t kPieceBytes = RowReader::kPieceBytes;
  do {  // CountRows leaves out the counts: 2 bytes beside at least 4
    const uint32_t count = reader_->CountRows(kPieceBytes, chunks_span_slices_);
    const FetchedRows next = reader_->ReadIntoScratch(count);
    Append(next.sampled_ids, *chunk.mutable_sampled_ids());
    Append(next.sampled_log_probs, *chunk.mutable_sampled_log_probs());
    Append(next.counts, *chunk.mutable_top_k_counts());
    Append(next.ids, *chunk.mutable_top_k_ids());
    Append(next.log_probs, *chunk.mutable_top_k_log_probs());
    rows += count;
    bytes += next.sampled_ids.size_bytes() + next.sampled_log_probs.size_bytes() +
             next.counts.size_bytes() + next.ids.size_bytes() + next.log_probs.size_bytes();
  } while (bytes + kPieceBytes + kPieceBytes / 2 <= kChunkBytes && reader_->SkipFullSlices() &&
           (chunks_span_slices_ || reader_->slice() == slice));
  return rows;
}

}  // namespace sis
