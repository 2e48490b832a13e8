#include "server/sequence.h"

#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"

namespace sis {
namespace {

uint32_t PageNumber(uint32_t position) { return position / Page::kPositions; }
uint32_t IndexInPage(uint32_t position) { return position % Page::kPositions; }

}  // namespace

int64_t Sequence::BytesWithBlock(int slots, uint32_t first_position, uint32_t count) {
  const int64_t pages = PageNumber(first_position + count - 1) - PageNumber(first_position) + 1;
  return kBaseBytes + kVersionSpanBytes + pages * Page::Bytes(slots);
}

Sequence::~Sequence() {
  const auto spans = static_cast<int64_t>(versions_.size());
  budget_.Refund(kBaseBytes + spans * kVersionSpanBytes);
}

absl::Status Sequence::CheckFits(uint32_t first_position, uint64_t policy_version,
                                 const RecordView& records) const {
  const size_t count = records.sampled_ids.size();
  if (sealed_length_.has_value() && first_position + count > *sealed_length_) {
    return absl::FailedPreconditionError(absl::StrCat("position ", first_position + count - 1,
                                                      " is beyond the seal at length ",
                                                      *sealed_length_));
  }
  for (size_t row = 0; row < count; ++row) {
    const auto position = static_cast<uint32_t>(first_position + row);
    const auto page = pages_.find(PageNumber(position));
    if (page == pages_.end()) continue;
    const uint32_t index = IndexInPage(position);
    if ((page->second.present() >> index & 1) == 0) continue;
    if (!page->second.Equals(index, records, row)) {
      return absl::AlreadyExistsError(
          absl::StrCat("position ", position, " is committed with other content"));
    }
    if (VersionAt(position) != policy_version) {
      return absl::AlreadyExistsError(absl::StrCat("position ", position,
                                                   " is committed with policy version ",
                                                   VersionAt(position), ", not ", policy_version));
    }
  }
  return absl::OkStatus();
}

absl::Status Sequence::Append(uint32_t first_position, uint64_t policy_version,
                              const RecordView& records, std::span<const uint8_t> ranks,
                              int64_t* positions_added) {
  const auto count = static_cast<uint32_t>(records.sampled_ids.size());
  const uint32_t end = first_position + count;
  WriterLock lock(mutex_);
  if (absl::Status status = CheckFits(first_position, policy_version, records); !status.ok()) {
    return status;
  }

  const int64_t bytes = NewBytes(first_position, count, policy_version);
  if (!budget_.TryCharge(bytes)) {
    return absl::ResourceExhaustedError(absl::StrCat(bytes, " bytes are not to be had"));
  }
  for (uint32_t number = PageNumber(first_position); number <= PageNumber(end - 1); ++number) {
    pages_.try_emplace(number, slots_, budget_);
  }

  int64_t added = 0;
  for (size_t row = 0; row < count; ++row) {
    const auto position = static_cast<uint32_t>(first_position + row);
    Page& page = pages_.find(PageNumber(position))->second;
    const uint32_t index = IndexInPage(position);
    if ((page.present() >> index & 1) != 0) continue;
    page.Store(index, position, records, row, ranks[row]);
    ++added;
  }
  SetVersion(first_position, end, policy_version);
  committed_length_ = std::max(committed_length_, end);
  positions_ += added;
  if (positions_added != nullptr) *positions_added = added;
  return absl::OkStatus();
}

int64_t Sequence::BytesToAppend(uint32_t first_position, uint32_t count,
                                uint64_t policy_version) const {
  ReaderLock lock(mutex_);
  return NewBytes(first_position, count, policy_version);
}

int64_t Sequence::NewBytes(uint32_t first_position, uint32_t count, uint64_t policy_version) const {
  int64_t pages = 0;
  for (uint32_t number = PageNumber(first_position);
       number <= PageNumber(first_position + count - 1); ++number) {
    pages += !pages_.contains(number);
  }
  const bool new_span = !TouchesSpan(first_position, first_position + count, policy_version);
  return pages * Page::Bytes(slots_) + (new_span ? kVersionSpanBytes : 0);
}

bool Sequence::TouchesSpan(uint32_t first, uint32_t end, uint64_t version) const {
  // Of those that begin at `end` or before, the last ones: any further back ends before `first`.
  for (auto span = versions_.upper_bound(end); span != versions_.begin();) {
    --span;
    if (span->second.end < first) return false;
    if (span->second.version == version) return true;
  }
  return false;
}

uint64_t Sequence::VersionAt(uint32_t position) const {
  const auto after = versions_.upper_bound(position);
  return std::prev(after)->second.version;
}

void Sequence::SetVersion(uint32_t first, uint32_t end, uint64_t version) {
  const size_t charged = versions_.size() + !TouchesSpan(first, end, version);
  // Spans that are there already within [first, end) have this version (CheckFits), so all of it
  // can become one.
  auto span = versions_.lower_bound(first);
  if (span != versions_.begin()) {
    const auto before = std::prev(span);
    if (before->second.end >= first && before->second.version == version) {
      first = before->first;
      span = before;
    }
  }
  while (span != versions_.end() &&
         (span->first < end || (span->first == end && span->second.version == version))) {
    end = std::max(end, span->second.end);
    span = versions_.erase(span);
  }
  versions_[first] = {end, version};
  budget_.Refund(static_cast<int64_t>(charged - versions_.size()) * kVersionSpanBytes);
}

absl::Status Sequence::Truncate(uint32_t length) {
  WriterLock lock(mutex_);
  if (sealed_length_.has_value()) {
    return absl::FailedPreconditionError(
        absl::StrCat("truncate to ", length, ": sealed at length ", *sealed_length_));
  }
  for (auto page = pages_.lower_bound(PageNumber(length)); page != pages_.end();) {
    const uint32_t base = page->first * Page::kPositions;
    for (uint32_t index = 0; index < Page::kPositions; ++index) {
      if (base + index < length || (page->second.present() >> index & 1) == 0) continue;
      page->second.Erase(index, base + index);
      --positions_;
    }
    page = page->second.present() == 0 ? pages_.erase(page) : std::next(page);
  }
  const size_t spans = versions_.size();
  for (auto span = versions_.begin(); span != versions_.end();) {
    span->second.end = std::min(span->second.end, length);
    span = span->first >= length ? versions_.erase(span) : std::next(span);
  }
  budget_.Refund(static_cast<int64_t>(spans - versions_.size()) * kVersionSpanBytes);
  committed_length_ = 0;
  if (!pages_.empty()) {
    const auto& [number, page] = *pages_.rbegin();
    committed_length_ = number * Page::kPositions + std::bit_width(page.present());
  }
  return absl::OkStatus();
}

absl::Status Sequence::Seal(uint32_t length) {
  WriterLock lock(mutex_);
  if (sealed_length_.has_value()) {
    if (*sealed_length_ == length) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("seal at ", length, ": sealed at length ", *sealed_length_));
  }
  if (length < committed_length_) {
    return absl::FailedPreconditionError(absl::StrCat("seal at ", length, ": committed up to ",
                                                      committed_length_, " (truncate first)"));
  }
  sealed_length_ = length;
  return absl::OkStatus();
}

uint32_t Sequence::committed_length() const {
  ReaderLock lock(mutex_);
  return committed_length_;
}

bool Sequence::sealed() const {
  ReaderLock lock(mutex_);
  return sealed_length_.has_value();
}

int64_t Sequence::positions() const {
  ReaderLock lock(mutex_);
  return positions_;
}

uint64_t Sequence::newest_version() const {
  ReaderLock lock(mutex_);
  uint64_t newest = 0;
  for (const auto& [first, span] : versions_) newest = std::max(newest, span.version);
  return newest;
}

uint32_t Sequence::Reader::committed_length() const {
  sequence_.mutex_.AssertReaderHeld();
  return sequence_.committed_length_;
}

void Sequence::Reader::ForEachPiece(uint32_t first, uint32_t count,
                                    const std::function<void(const Piece&)>& visit) const {
  sequence_.mutex_.AssertReaderHeld();
  const uint32_t end = first + count;
  for (uint32_t position = first; position < end;) {
    const auto page = sequence_.pages_.find(PageNumber(position));
    const uint32_t index = IndexInPage(position);
    if (page == sequence_.pages_.end()) {
      const auto next = sequence_.pages_.upper_bound(PageNumber(position));
      const uint32_t stop =
          next == sequence_.pages_.end() ? end : std::min(end, next->first * Page::kPositions);
      visit({position, stop - position, nullptr, 0, 0});
      position = stop;
      continue;
    }
    const uint64_t bits = page->second.present() >> index;
    const bool present = (bits & 1) != 0;
    uint32_t stop = position + std::countr_zero(present ? ~bits : bits);
    stop = std::min({stop, end, position - index + Page::kPositions});
    uint64_t version = 0;
    if (present) {
      const auto span = std::prev(sequence_.versions_.upper_bound(position));
      stop = std::min(stop, span->second.end);
      version = span->second.version;
    }
    visit({position, stop - position, present ? &page->second : nullptr, index, version});
    position = stop;
  }
}

uint64_t Sequence::Reader::Digest(uint32_t first, uint32_t count) const {
  sequence_.mutex_.AssertReaderHeld();
  uint64_t digest = 0;
  const uint32_t end = first + count;
  for (auto page = sequence_.pages_.lower_bound(PageNumber(first)); page != sequence_.pages_.end();
       ++page) {
    const uint32_t base = page->first * Page::kPositions;
    if (base >= end) break;
    if (base >= first && end - base >= Page::kPositions) {
      digest += page->second.digest();
      continue;
    }
    for (uint32_t index = 0; index < Page::kPositions; ++index) {
      const uint32_t position = base + index;
      if (position < first || position >= end || (page->second.present() >> index & 1) == 0) {
        continue;
      }
      digest += page->second.PositionDigestAt(index, position);
    }
  }
  return digest;
}

}  // namespace sis
