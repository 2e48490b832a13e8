#include "client/api/fetched_records.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/types/messages.h"

namespace sis {
namespace {

using Array = FetchedChunk::Array;
using ByteRange = FetchedChunk::ByteRange;
using enum FetchedChunk::Array;

// Ids and log-probs alike; counts have two.
constexpr size_t kElementBytes = 4;

constexpr Array kAll[FetchedChunk::kArrays] = {kSampledIds, kSampledLogProbs, kTopKIds,
                                               kTopKLogProbs, kTopKCounts};

bool IsOfSlots(Array array) { return array == kTopKIds || array == kTopKLogProbs; }

size_t Sum(std::span<const uint16_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), size_t{0});
}

absl::Status WrongSize(absl::string_view name, size_t bytes, size_t wanted) {
  return absl::InternalError(
      absl::StrCat("the server's ", name, " holds ", bytes, " bytes, not ", wanted));
}

absl::Status WrongSize(Array array, size_t bytes, size_t wanted) {
  return WrongSize(FetchedChunk::kNames[array], bytes, wanted);
}

bool LiesIn(const v1::MissingRange& gap, std::span<const Slice> slices) {
  if (gap.slice() >= slices.size()) return false;
  const Slice& slice = slices[gap.slice()];
  return gap.first_position() >= slice.first_position &&
         uint64_t{gap.first_position()} + gap.length() <=
             uint64_t{slice.first_position} + slice.length;
}

template <typename T>
std::span<const T> Elements(const std::byte* first, size_t bytes) {
  return {reinterpret_cast<const T*>(first), bytes / sizeof(T)};
}

}  // namespace

size_t TopKRecords::positions() const {
  size_t positions = 0;
  for (const Slice& slice : slices) positions += slice.length;
  return positions;
}

RecordReader::RecordReader(const v1::FetchTopKRequest& request) {
  wanted_.fill(request.arrays().empty());
  for (const int array : request.arrays()) {
    // One that is none of the four the server refuses.
    const size_t index = static_cast<size_t>(array) - v1::SAMPLED_IDS;
    // Clang 14 finds no enumerator behind "using enum" here.
    if (index < FetchedChunk::kTopKCounts) wanted_[index] = true;
  }
  wanted_[kTopKCounts] = request.ragged() && (wanted_[kTopKIds] || wanted_[kTopKLogProbs]);
}

absl::Status RecordReader::Add(FetchedMessage message) {
  if (const auto* header = std::get_if<v1::FetchTopKHeader>(&message)) {
    if (has_header_) return absl::InternalError("the server sent a second FetchTopK header");
    return AddHeader(*header);
  }
  if (!has_header_) return absl::InternalError("the server's FetchTopK began without a header");
  FetchedChunk& chunk = std::get<FetchedChunk>(message);
  return Copy(std::move(chunk));
}

absl::Status RecordReader::AddHeader(const v1::FetchTopKHeader& header) {
  has_header_ = true;
  records_.lease_id = header.lease_id();
  records_.top_k = static_cast<int>(header.top_k());
  for (const v1::Slice& slice : header.slices()) records_.slices.push_back(FromMessage(slice));
  records_.missing.assign(header.missing().begin(), header.missing().end());
  positions_ = records_.positions();
  for (const v1::MissingRange& gap : records_.missing) {
    if (!LiesIn(gap, records_.slices)) {
      return absl::InternalError(absl::StrCat("the server's FetchTopK misses ", gap.length(),
                                              " positions from ", gap.first_position(),
                                              " on of slice ", gap.slice(), ", which lie in none"));
    }
  }
  if (!ragged()) Allocate();
  return absl::OkStatus();
}

void RecordReader::Allocate() {
  size_t bytes = 0;
  for (const Array array : kAll) bytes += Bytes(array);
  // Not zeroed, as a vector's would be.
  std::shared_ptr<std::byte[]> memory = std::make_unique_for_overwrite<std::byte[]>(bytes);
  std::byte* next = memory.get();
  for (const Array array : kAll) {
    arrays_[array] = next;
    next += Bytes(array);
  }
  SetArrays(std::move(memory));
}

absl::StatusOr<TopKRecords> RecordReader::Finish() && {
  if (!has_header_ || filled_ != positions_) {
    return absl::InternalError("the server's FetchTopK stream ended early");
  }
  if (ragged()) CopyKept();
  return std::move(records_);
}

size_t RecordReader::RowBytes(Array array) const {
  if (!wanted_[array]) return 0;
  if (array == kTopKCounts) return sizeof(uint16_t);
  if (!IsOfSlots(array)) return kElementBytes;
  return ragged() ? 0 : kElementBytes * static_cast<size_t>(records_.top_k);
}

size_t RecordReader::Bytes(Array array) const {
  if (!ragged() || !IsOfSlots(array)) return positions_ * RowBytes(array);
  return wanted_[array] ? slots_ * kElementBytes : 0;
}

void RecordReader::SetArrays(std::shared_ptr<const void> memory) {
  const auto elements_of = [this]<typename T>(Array array, std::span<const T>& elements) {
    elements = Elements<T>(arrays_[array], Bytes(array));
  };
  elements_of(kSampledIds, records_.sampled_ids);
  elements_of(kSampledLogProbs, records_.sampled_log_probs);
  elements_of(kTopKIds, records_.ids);
  elements_of(kTopKLogProbs, records_.log_probs);
  elements_of(kTopKCounts, records_.top_k_counts);
  records_.memory = std::move(memory);
}

absl::Status RecordReader::Copy(FetchedChunk chunk) {
  SkipFullSlices();
  const std::vector<Slice>& slices = records_.slices;
  if (slice_ >= slices.size() || chunk.slice != slice_ ||
      chunk.first_position != slices[slice_].first_position + row_ ||
      chunk.length > positions_ - filled_) {
    return absl::InternalError(absl::StrCat("the server's FetchTopK chunk of slice ", chunk.slice,
                                            " at position ", chunk.first_position,
                                            " is out of order"));
  }
  filled_ += chunk.length;
  row_ += chunk.length;
  if (ragged()) return Keep(std::move(chunk));
  for (const Array array : kAll) {
    const size_t bytes = chunk.length * RowBytes(array);
    const ByteRange& range = chunk.arrays[array];
    if (range.size != bytes) return WrongSize(array, range.size, bytes);
    chunk.Copy(range, arrays_[array] + (filled_ - chunk.length) * RowBytes(array));
  }
  return absl::OkStatus();
}

absl::Status RecordReader::Keep(FetchedChunk chunk) {
  size_t slots = 0;
  // The counts first: they say how many slots there are.
  for (const Array array : {kTopKCounts, kSampledIds, kSampledLogProbs, kTopKIds, kTopKLogProbs}) {
    const size_t bytes =
        IsOfSlots(array) && wanted_[array] ? slots * kElementBytes : chunk.length * RowBytes(array);
    const ByteRange& range = chunk.arrays[array];
    if (range.size != bytes) return WrongSize(array, range.size, bytes);
    if (array != kTopKCounts) continue;
    std::vector<uint16_t> counts(chunk.length);
    chunk.Copy(range, reinterpret_cast<std::byte*>(counts.data()));
    slots = Sum(counts);
  }
  slots_ += slots;
  kept_.push_back(std::move(chunk));
  return absl::OkStatus();
}

void RecordReader::CopyKept() {
  Allocate();
  std::array<std::byte*, FetchedChunk::kArrays> next = arrays_;
  for (const FetchedChunk& chunk : kept_) {
    for (const Array array : kAll) {
      chunk.Copy(chunk.arrays[array], next[array]);
      next[array] += chunk.arrays[array].size;
    }
  }
  kept_.clear();
}

void RecordReader::SkipFullSlices() {
  while (slice_ < records_.slices.size() && row_ >= records_.slices[slice_].length) {
    row_ -= records_.slices[slice_++].length;
  }
}

}  // namespace sis
