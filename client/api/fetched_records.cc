#include "client/api/fetched_records.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/shared_memory/mapped_segments.h"
#include "client/types/messages.h"

namespace sis {
namespace {

using Array = FetchedChunk::Array;

// Ids and log-probs alike.
constexpr size_t kElementBytes = 4;

constexpr Array kAll[FetchedChunk::kArrays] = {FetchedChunk::kSampledIds,
                                               FetchedChunk::kSampledLogProbs,
                                               FetchedChunk::kTopKIds, FetchedChunk::kTopKLogProbs};

absl::Status WrongSize(Array array, size_t bytes, size_t wanted) {
  return absl::InternalError(absl::StrCat("the server's ", FetchedChunk::kNames[array], " holds ",
                                          bytes, " bytes, not ", wanted));
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
  static_assert(sizeof(T) == kElementBytes);
  return {reinterpret_cast<const T*>(first), bytes / sizeof(T)};
}

}  // namespace

size_t TopKRecords::positions() const {
  size_t positions = 0;
  for (const Slice& slice : slices) positions += slice.length;
  return positions;
}

RecordReader::RecordReader(const v1::FetchTopKRequest& request,
                           std::shared_ptr<SegmentAllocation> range)
    : range_(std::move(range)),
      columns_(request.columns_size()),
      column_values_(columns_),
      column_presence_(columns_) {
  wanted_.fill(request.arrays().empty());
  for (const int array : request.arrays()) {
    // One that is none of the four the server refuses.
    const size_t index = static_cast<size_t>(array) - v1::SAMPLED_IDS;
    if (index < wanted_.size()) wanted_[index] = true;
  }
}

absl::Status RecordReader::Add(FetchedMessage message) {
  if (const auto* header = std::get_if<v1::FetchTopKHeader>(&message)) {
    if (has_header_) return absl::InternalError("the server sent a second FetchTopK header");
    return AddHeader(*header);
  }
  if (!has_header_) return absl::InternalError("the server's FetchTopK began without a header");
  const FetchedChunk& chunk = std::get<FetchedChunk>(message);
  return range_ == nullptr ? Copy(chunk) : Locate(chunk);
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
  records_.columns.resize(columns_);
  if (range_ != nullptr) return absl::OkStatus();
  for (size_t i = 0; i < columns_; ++i) {
    auto present = std::make_shared<std::vector<uint8_t>>(positions_);
    records_.columns[i].present = *present;
    column_presence_[i] = reinterpret_cast<std::byte*>(present->data());
    records_.columns[i].memory = std::move(present);
  }
  size_t bytes = 0;
  for (const Array array : kAll) bytes += positions_ * RowBytes(array);
  // Not zeroed, as a vector's would be.
  std::shared_ptr<std::byte[]> memory = std::make_unique_for_overwrite<std::byte[]>(bytes);
  std::byte* next = memory.get();
  for (const Array array : kAll) {
    arrays_[array] = next;
    next += positions_ * RowBytes(array);
  }
  SetArrays(std::move(memory));
  return absl::OkStatus();
}

absl::StatusOr<TopKRecords> RecordReader::Finish() && {
  const bool complete = range_ == nullptr ? filled_ == positions_ : located_;
  if (!has_header_ || !complete) {
    return absl::InternalError("the server's FetchTopK stream ended early");
  }
  return std::move(records_);
}

size_t RecordReader::RowBytes(Array array) const {
  const bool per_slot = array == FetchedChunk::kTopKIds || array == FetchedChunk::kTopKLogProbs;
  return wanted_[array] ? kElementBytes * (per_slot ? records_.top_k : 1) : 0;
}

void RecordReader::SetArrays(std::shared_ptr<const void> memory) {
  const auto bytes = [this](Array array) { return positions_ * RowBytes(array); };
  records_.sampled_ids =
      Elements<int32_t>(arrays_[FetchedChunk::kSampledIds], bytes(FetchedChunk::kSampledIds));
  records_.sampled_log_probs = Elements<float>(arrays_[FetchedChunk::kSampledLogProbs],
                                               bytes(FetchedChunk::kSampledLogProbs));
  records_.ids = Elements<int32_t>(arrays_[FetchedChunk::kTopKIds], bytes(FetchedChunk::kTopKIds));
  records_.log_probs =
      Elements<float>(arrays_[FetchedChunk::kTopKLogProbs], bytes(FetchedChunk::kTopKLogProbs));
  records_.memory = std::move(memory);
}

absl::Status RecordReader::Copy(const FetchedChunk& chunk) {
  SkipFullSlices();
  const std::vector<Slice>& slices = records_.slices;
  if (slice_ >= slices.size() || chunk.slice != slice_ ||
      chunk.first_position != slices[slice_].first_position + row_ ||
      chunk.length > positions_ - filled_) {
    return absl::InternalError(absl::StrCat("the server's FetchTopK chunk of slice ", chunk.slice,
                                            " at position ", chunk.first_position,
                                            " is out of order"));
  }
  for (const Array array : kAll) {
    const size_t bytes = chunk.length * RowBytes(array);
    if (chunk.size(array) != bytes) return WrongSize(array, chunk.size(array), bytes);
    chunk.Copy(array, arrays_[array] + filled_ * RowBytes(array));
  }
  if (absl::Status status = CopyColumns(chunk); !status.ok()) return status;
  filled_ += chunk.length;
  row_ += chunk.length;
  return absl::OkStatus();
}

absl::Status RecordReader::CopyColumns(const FetchedChunk& chunk) {
  if (chunk.columns() != columns_ || chunk.columns_with_presence() != columns_) {
    return absl::InternalError(absl::StrCat("the server's FetchTopK chunk has ", chunk.columns(),
                                            " columns, not ", columns_));
  }
  for (size_t i = 0; i < columns_; ++i) {
    FetchedColumn& column = records_.columns[i];
    const size_t bytes = chunk.column_size(i);
    if (column.width == 0 && bytes > 0 && chunk.length > 0) {
      column.width = bytes / chunk.length;
      auto arrays =
          std::make_shared<std::pair<std::shared_ptr<const void>, std::vector<std::byte>>>(
              std::move(column.memory), std::vector<std::byte>(positions_ * column.width));
      column_values_[i] = arrays->second.data();
      column.values = arrays->second;
      column.memory = std::move(arrays);
    }
    // A server that gave no answer has no values.
    if ((bytes != 0 && bytes != column.width * chunk.length) ||
        chunk.presence_size(i) != chunk.length) {
      return absl::InternalError(absl::StrCat("the server's columns[", i, "] holds ", bytes,
                                              " bytes for ", chunk.length, " positions"));
    }
    if (bytes > 0) chunk.CopyColumn(i, column_values_[i] + filled_ * column.width);
    chunk.CopyPresence(i, column_presence_[i] + filled_);
  }
  return absl::OkStatus();
}

void RecordReader::SkipFullSlices() {
  while (slice_ < records_.slices.size() && row_ >= records_.slices[slice_].length) {
    row_ -= records_.slices[slice_++].length;
  }
}

absl::Status RecordReader::Locate(const FetchedChunk& chunk) {
  if (located_ || chunk.length != positions_) {
    return absl::InternalError(absl::StrCat("the server's FetchTopK put ", chunk.length, " of ",
                                            positions_, " positions into shared memory"));
  }
  size_t used = 0;
  for (const Array array : kAll) {
    if (!wanted_[array]) continue;
    const size_t bytes = positions_ * RowBytes(array);
    uint64_t part[2] = {};  // offset and size
    if (chunk.size(array) != sizeof(part)) return WrongSize(array, chunk.size(array), sizeof(part));
    chunk.Copy(array, reinterpret_cast<std::byte*>(part));
    const std::span<std::byte> room = range_->bytes();
    const uint64_t begin = part[0] - range_->offset();
    if (part[0] < range_->offset() || begin > room.size() || bytes > room.size() - begin ||
        part[1] != bytes || begin % MappedSegments::kAlignment != 0) {
      return absl::InternalError(absl::StrCat("the server's ", FetchedChunk::kNames[array],
                                              " do not lie where they were asked to"));
    }
    arrays_[array] = room.data() + begin;
    used = std::max<size_t>(used, begin + bytes);
  }
  range_->Shrink(used);
  SetArrays(range_);
  located_ = true;
  return absl::OkStatus();
}

}  // namespace sis
