#include "server/cache/sequence.h"

#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"

namespace sis {
namespace {

uint32_t PageNumber(uint32_t position) { return position / Page::kPositions; }
uint32_t IndexInPage(uint32_t position) { return position % Page::kPositions; }

int64_t Charge(size_t block_bytes) {
  return static_cast<int64_t>(Arena::CellBytes(block_bytes)) + Page::kIndexBytes;
}

// For a page that gets `count` rows first, those from `row` on.
size_t NewPageBytes(const RecordFormat& format, const RecordView& records, size_t row,
                    uint32_t count, std::span<const uint16_t> ranks) {
  return count == Page::kPositions ? PackedBytes(format, records, row, ranks) : TailBytes(format);
}

template <typename Numbers>
void Forget(Numbers& numbers, uint32_t number) {
  numbers.erase(std::remove(numbers.begin(), numbers.end(), number), numbers.end());
}

}  // namespace

int64_t Sequence::BytesOfFirstBlock(const RecordFormat& format, uint32_t first_position,
                                    const RecordView& records, std::span<const uint16_t> ranks) {
  int64_t bytes = kVersionSpanBytes;
  const uint32_t end = first_position + static_cast<uint32_t>(ranks.size());
  ForEachPart(first_position, end, [&](const PagePart& part) {
    bytes += Charge(NewPageBytes(format, records, part.row, part.count, ranks));
  });
  return bytes;
}

Sequence::~Sequence() {
  const auto spans = static_cast<int64_t>(versions_.size());
  const auto gaps = static_cast<int64_t>(gaps_.size());
  owner_.budget.Refund(kBaseBytes + spans * kVersionSpanBytes + gaps * kGapBytes +
                       (annotation_ == nullptr ? 0 : AnnotationBytes(*annotation_)));
}

int64_t Sequence::AnnotationBytes(std::string_view annotation) {
  return annotation.empty() ? 0 : static_cast<int64_t>(sizeof(std::string) + annotation.size());
}

absl::Status Sequence::CheckBelowSeal(uint32_t end) const {
  if (end <= sealed_length_.value_or(end)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("position ", end - 1, " is beyond the seal at length ", *sealed_length_));
}

absl::Status Sequence::CheckFits(uint32_t first_position, uint64_t policy_version,
                                 const RecordView& records) const {
  const auto end = first_position + static_cast<uint32_t>(records.sampled_ids.size());
  RowBuffer buffer;
  absl::Status status = CheckBelowSeal(end);
  if (!status.ok()) return status;
  ForEachPart(first_position, end, [&](const PagePart& part) ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    if (status.ok()) status = CheckFitsPage(part, policy_version, records, buffer);
  });
  return status;
}

absl::Status Sequence::CheckFitsPage(const PagePart& part, uint64_t policy_version,
                                     const RecordView& records, RowBuffer& buffer) const {
  const auto found = pages_.find(part.number);
  if (found == pages_.end()) return absl::OkStatus();
  const Page& page = found->second;
  if (absl::Status status = page.Check(); !status.ok()) return status;
  const RecordRows stored = page.Rows(buffer);
  for (uint32_t i = 0; i < part.count; ++i) {
    const uint32_t index = part.index + i;
    if ((page.present() >> index & 1) == 0) continue;
    const uint32_t position = part.number * Page::kPositions + index;
    if (!SameRecord(owner_.format, records, part.row + i, stored, index)) {
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
                              const RecordView& records, std::span<const uint16_t> ranks,
                              Appended* appended) {
  const auto count = static_cast<uint32_t>(records.sampled_ids.size());
  const uint32_t end = first_position + count;
  WriterLock lock(mutex_);
  if (AddToLastTail(first_position, policy_version, records, ranks)) {
    if (appended != nullptr) {
      *appended = {.positions = count, .committed_length = committed_length_};
    }
    return absl::OkStatus();
  }
  if (absl::Status status = CheckFits(first_position, policy_version, records); !status.ok()) {
    return status;
  }

  const NewBlocks needed = NeedOf(first_position, policy_version, records, ranks);
  if (!owner_.budget.TryCharge(needed.charge)) {
    return absl::ResourceExhaustedError(absl::StrCat(needed.charge, " bytes are not to be had"));
  }
  absl::InlinedVector<Arena::Allocation, 2> blocks;
  bool room = true;
  for (const size_t block_bytes : needed.bytes) {
    blocks.push_back(block_bytes > 0 && room ? arena_.Allocate(block_bytes) : Arena::Allocation());
    room = room && (block_bytes == 0 || !blocks.back().empty());
  }
  if (!room) {
    owner_.budget.Refund(needed.charge);
    return absl::ResourceExhaustedError(
        absl::StrCat(needed.charge, " bytes are not to be had in one piece"));
  }

  int64_t added = 0;
  auto block = blocks.begin();
  ForEachPart(first_position, end, [&](const PagePart& part) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    added += AddToPage(part, records, ranks, std::move(*block++));
  });
  // Not before: a page counted on as a tail must still be one when its turn comes.
  PackTails();
  SetVersion(first_position, end, policy_version);
  committed_length_ = std::max(committed_length_.load(), end);
  positions_ += added;
  NoteEnd();
  if (appended != nullptr) *appended = {added, committed_length_};
  return absl::OkStatus();
}

absl::Status Sequence::CheckUnrecorded(uint32_t first, uint32_t end) const {
  absl::Status status;
  ForEachPart(first, end, [&](const PagePart& part) ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    const auto found = pages_.find(part.number);
    if (!status.ok() || found == pages_.end()) return;
    const uint64_t recorded = found->second.present() & Page::Mask(part.index, part.count);
    if (recorded == 0) return;
    const auto position =
        part.number * Page::kPositions + static_cast<uint32_t>(std::countr_zero(recorded));
    status = absl::AlreadyExistsError(absl::StrCat("position ", position, " has a record"));
  });
  return status;
}

absl::StatusOr<bool> Sequence::AppendGap(const Missing& gap) {
  uint32_t first = gap.first_position;
  uint32_t end = first + gap.count;
  WriterLock lock(mutex_);
  if (absl::Status status = CheckBelowSeal(end); !status.ok()) return status;
  // [from, to): the gaps that become one with this one.
  const auto joins = [&](const Gap& other, bool overlaps, bool touches) {
    return overlaps || (touches && other.reason == gap.reason);
  };
  auto from = gaps_.lower_bound(first);
  if (from != gaps_.begin()) {
    const auto before = std::prev(from);
    const uint32_t its_end = before->second.end;
    if (joins(before->second, its_end > first, its_end == first)) from = before;
  }
  absl::Status status;
  uint32_t unnoted = first;
  auto to = from;
  for (; to != gaps_.end() && joins(to->second, to->first < end, to->first == end); ++to) {
    if (to->second.reason != gap.reason) {
      return absl::AlreadyExistsError(absl::StrCat("position ", std::max(first, to->first),
                                                   " is missing for another reason, ",
                                                   std::string(Name(to->second.reason))));
    }
    if (unnoted < to->first) status.Update(CheckUnrecorded(unnoted, to->first));
    unnoted = std::max(unnoted, to->second.end);
  }
  if (unnoted < end) status.Update(CheckUnrecorded(unnoted, end));
  if (!status.ok()) return status;
  if (from != to) {
    if (from->first <= first && from->second.end >= end) return false;
    first = std::min(first, from->first);
    end = std::max(end, std::prev(to)->second.end);
  } else if (!owner_.budget.TryCharge(kGapBytes)) {
    return absl::ResourceExhaustedError(absl::StrCat(kGapBytes, " bytes are not to be had"));
  }
  const auto joined = static_cast<int64_t>(std::distance(from, to));
  owner_.budget.Refund(std::max<int64_t>(joined - 1, 0) * kGapBytes);
  gaps_.erase(from, to);
  gaps_.insert({first, {end, gap.reason}});
  committed_length_ = std::max(committed_length_.load(), end);
  return true;
}

bool Sequence::AddToLastTail(uint32_t first_position, uint64_t policy_version,
                             const RecordView& records, std::span<const uint16_t> ranks) {
  const auto count = static_cast<uint32_t>(records.sampled_ids.size());
  const uint32_t index = IndexInPage(first_position);
  if (sealed_length_.has_value() || pages_.empty() || versions_.empty()) return false;
  auto& [number, page] = *pages_.rbegin();
  VersionSpan& span = versions_.rbegin()->second;
  if (number != PageNumber(first_position) || page.packed() || open_tails_.empty() ||
      open_tails_.back() != number || span.end != first_position ||
      span.version != policy_version || count > Page::kPositions - index) {
    return false;
  }
  page.Add(index, records, 0, count, ranks, {});
  if (page.present() == Page::kAll) {
    open_tails_.pop_back();
    page.Pack(arena_);
  }
  span.end = first_position + count;
  committed_length_.store(std::max(committed_length_.load(std::memory_order_relaxed), span.end),
                          std::memory_order_relaxed);
  positions_ += count;
  return true;
}

void Sequence::NoteEnd() {
  const Page& page = pages_.rbegin()->second;
  end_.page.store(&page, std::memory_order_relaxed);
  end_.span.store(&versions_.rbegin()->second, std::memory_order_relaxed);
  end_.tail.store(page.packed() ? nullptr : page.block().data(), std::memory_order_relaxed);
}

void Sequence::PrefetchEnd() const {
  const std::byte* tail = end_.tail.load(std::memory_order_relaxed);
  if (tail == nullptr) return;
  __builtin_prefetch(end_.page.load(std::memory_order_relaxed), 1);
  __builtin_prefetch(end_.span.load(std::memory_order_relaxed), 1);
  PrefetchTailRow(owner_.format, tail,
                  IndexInPage(committed_length_.load(std::memory_order_relaxed)));
}

int64_t Sequence::AddToPage(const PagePart& part, const RecordView& records,
                            std::span<const uint16_t> ranks, Arena::Allocation block) {
  auto found = pages_.find(part.number);
  if (found == pages_.end()) {
    const uint32_t first_position = part.number * Page::kPositions;
    found = pages_.try_emplace(part.number, owner_, first_position, std::move(block)).first;
  }
  Page& page = found->second;
  const int before = std::popcount(page.present());
  page.Add(part.index, records, part.row, part.count, ranks, std::move(block));
  const int after = std::popcount(page.present());
  if (after == before) return 0;
  Forget(open_tails_, part.number);
  if (after == Page::kPositions) {
    page.Pack(arena_);
  } else {
    open_tails_.push_back(part.number);
  }
  return after - before;
}

void Sequence::PackTails() {
  if (sealed_length_.has_value()) {
    for (auto& [number, page] : pages_) page.Pack(arena_);
    open_tails_.clear();
  }
  while (open_tails_.size() > kOpenTails) {
    pages_.at(open_tails_.front()).Pack(arena_);
    open_tails_.erase(open_tails_.begin());
  }
}

int64_t Sequence::BytesToAppend(uint32_t first_position, uint64_t policy_version,
                                const RecordView& records, std::span<const uint16_t> ranks) const {
  ReaderLock lock(mutex_);
  return NeedOf(first_position, policy_version, records, ranks).charge;
}

Sequence::NewBlocks Sequence::NeedOf(uint32_t first_position, uint64_t policy_version,
                                     const RecordView& records,
                                     std::span<const uint16_t> ranks) const {
  const uint32_t end = first_position + static_cast<uint32_t>(ranks.size());
  NewBlocks needed;
  if (!TouchesSpan(first_position, end, policy_version)) needed.charge = kVersionSpanBytes;
  ForEachPart(first_position, end, [&](const PagePart& part) ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    const PageNeed need = NeedOf(part, records, ranks);
    needed.charge += need.charge;
    needed.bytes.push_back(need.block_bytes);
  });
  return needed;
}

Sequence::PageNeed Sequence::NeedOf(const PagePart& part, const RecordView& records,
                                    std::span<const uint16_t> ranks) const {
  const uint64_t mask = Page::Mask(part.index, part.count);
  const auto found = pages_.find(part.number);
  if (found == pages_.end()) {
    const size_t bytes = NewPageBytes(owner_.format, records, part.row, part.count, ranks);
    return {.charge = Charge(bytes), .block_bytes = bytes};
  }
  const Page& page = found->second;
  const uint64_t after = page.present() | mask;
  if (!page.packed() || after == page.present()) return {};
  // What a ragged page takes is known when all of it is there.
  const bool stays_packed = after == Page::kAll && !owner_.format.ragged();
  if (stays_packed && page.packed_positions() == Page::kPositions) return {};
  const size_t bytes =
      stays_packed ? PackedBytes(owner_.format, Page::kPositions) : TailBytes(owner_.format);
  return {.charge = Charge(bytes) - Charge(page.block().size()), .block_bytes = bytes};
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
  // can become one. One that goes on is made longer in place.
  auto after = versions_.lower_bound(first);
  auto span = after == versions_.begin() ? versions_.end() : std::prev(after);
  if (span == versions_.end() || span->second.end < first || span->second.version != version) {
    span = versions_.try_emplace(after, first, VersionSpan{end, version});
    after = std::next(span);
  }
  end = std::max(end, span->second.end);
  while (after != versions_.end() &&
         (after->first < end || (after->first == end && after->second.version == version))) {
    end = std::max(end, (after++)->second.end);
  }
  span->second.end = end;
  versions_.erase(std::next(span), after);
  owner_.budget.Refund(static_cast<int64_t>(charged - versions_.size()) * kVersionSpanBytes);
}

absl::Status Sequence::Seal(uint32_t length, std::string_view annotation) {
  return Seal(length, [&](const std::string&) { return std::string(annotation); }).status();
}

absl::StatusOr<Sequence::Sealed> Sequence::Seal(
    uint32_t length, absl::FunctionRef<std::string(const std::string& before)> annotate) {
  WriterLock lock(mutex_);
  if (sealed_length_.value_or(length) != length) {
    return absl::FailedPreconditionError(
        absl::StrCat("seal at ", length, ": sealed at length ", *sealed_length_));
  }
  if (length < committed_length_) {
    return absl::FailedPreconditionError(
        absl::StrCat("seal at ", length, ": committed up to ", committed_length_.load()));
  }
  const std::string before = annotation_ == nullptr ? std::string() : *annotation_;
  Sealed sealed{.first = !sealed_length_.has_value(), .annotation = annotate(before)};
  if (sealed.annotation.empty()) sealed.annotation = before;
  sealed.annotated = sealed.annotation != before;
  if (sealed.annotated) {
    const int64_t bytes = AnnotationBytes(sealed.annotation) - AnnotationBytes(before);
    if (bytes > 0 && !owner_.budget.TryCharge(bytes)) {
      return absl::ResourceExhaustedError(
          absl::StrCat("an annotation of ", sealed.annotation.size(), " bytes has no room"));
    }
    owner_.budget.Refund(std::max<int64_t>(-bytes, 0));
    annotation_ = std::make_unique<const std::string>(sealed.annotation);
  }
  if (sealed.first) {
    sealed_length_ = length;
    PackTails();
  }
  return sealed;
}

std::string Sequence::annotation() const {
  ReaderLock lock(mutex_);
  return annotation_ == nullptr ? std::string() : *annotation_;
}

uint32_t Sequence::committed_length() const {
  ReaderLock lock(mutex_);
  return committed_length_;
}

bool Sequence::sealed() const {
  ReaderLock lock(mutex_);
  return sealed_length_.has_value();
}

std::optional<uint32_t> Sequence::sealed_length() const {
  ReaderLock lock(mutex_);
  return sealed_length_;
}

int64_t Sequence::positions() const {
  ReaderLock lock(mutex_);
  return positions_;
}

std::optional<uint64_t> Sequence::newest_version() const {
  ReaderLock lock(mutex_);
  std::optional<uint64_t> newest;
  for (const auto& [first, span] : versions_)
    newest = std::max(newest, std::optional(span.version));
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
    const auto visit_missing = [&](uint32_t stop) {
      sequence_.mutex_.AssertReaderHeld();
      MissingReason reason = MissingReason::kNeverArrived;
      const auto after = sequence_.gaps_.upper_bound(position);
      if (after != sequence_.gaps_.end()) stop = std::min(stop, after->first);
      if (after != sequence_.gaps_.begin() && std::prev(after)->second.end > position) {
        stop = std::min(stop, std::prev(after)->second.end);
        reason = std::prev(after)->second.reason;
      }
      visit({position, stop - position, nullptr, index, 0, reason});
      position = stop;
    };
    if (page == sequence_.pages_.end()) {
      const auto next = sequence_.pages_.upper_bound(PageNumber(position));
      visit_missing(next == sequence_.pages_.end() ? end
                                                   : std::min(end, next->first * Page::kPositions));
      continue;
    }
    const uint64_t bits = page->second.present() >> index;
    const bool present = (bits & 1) != 0;
    uint32_t stop = position + std::countr_zero(present ? ~bits : bits);
    stop = std::min({stop, end, position - index + Page::kPositions});
    if (!present) {
      visit_missing(stop);
      continue;
    }
    const auto span = std::prev(sequence_.versions_.upper_bound(position));
    stop = std::min(stop, span->second.end);
    visit({position, stop - position, &page->second, index, span->second.version});
    position = stop;
  }
}

std::vector<Missing> Sequence::Reader::Gaps() const {
  sequence_.mutex_.AssertReaderHeld();
  std::vector<Missing> gaps;
  for (const auto& [first, gap] : sequence_.gaps_) {
    gaps.push_back({first, gap.end - first, gap.reason});
  }
  return gaps;
}

void Sequence::Reader::Check(uint32_t first, uint32_t count) const {
  sequence_.mutex_.AssertReaderHeld();
  const auto end = sequence_.pages_.lower_bound(PageNumber(first + count + Page::kPositions - 1));
  for (auto page = sequence_.pages_.lower_bound(PageNumber(first)); page != end; ++page) {
    page->second.Check().IgnoreError();  // the page remembers
  }
}

template <typename Visit>
void Sequence::Reader::ForEachVersion(uint32_t first, uint32_t count, const Visit& visit) const {
  sequence_.mutex_.AssertReaderHeld();
  const uint32_t end = first + count;
  auto span = sequence_.versions_.upper_bound(first);
  if (span != sequence_.versions_.begin()) --span;
  for (; span != sequence_.versions_.end() && span->first < end; ++span) {
    const uint32_t from = std::max(first, span->first);
    const uint32_t to = std::min(end, span->second.end);
    if (from < to) visit(span->second.version, from, to - from);
  }
}

uint64_t Sequence::Reader::Digest(uint32_t first, uint32_t count, uint64_t oldest_fresh) const {
  uint64_t digest = DigestOfAnyVersion(first, count);
  if (oldest_fresh == 0) return digest;
  ForEachVersion(first, count, [&](uint64_t version, uint32_t from, uint32_t length) {
    if (version < oldest_fresh) digest -= DigestOfAnyVersion(from, length);
  });
  return digest;
}

std::optional<uint64_t> Sequence::Reader::OldestFetched(uint64_t digest, uint32_t first,
                                                        uint32_t count) const {
  for (const Damage damage : {Damage::kLeftOut, Damage::kUndone}) {
    if (damage == Damage::kUndone && !AnyCorrupt(first, count)) break;
    std::map<uint64_t, uint64_t> parts;  // by version
    uint64_t fetched = 0;
    ForEachVersion(first, count, [&](uint64_t version, uint32_t from, uint32_t length) {
      const uint64_t part = DigestOfAnyVersion(from, length, damage);
      parts[version] += part;
      fetched += part;
    });
    uint64_t oldest_fresh = 0;
    for (const auto& [version, part] : parts) {
      if (fetched == digest) return oldest_fresh;
      fetched -= part;
      oldest_fresh = version + 1;
    }
  }
  return std::nullopt;
}

bool Sequence::Reader::AnyCorrupt(uint32_t first, uint32_t count) const {
  bool any = false;
  ForEachPiece(first, count, [&](const Piece& piece) {
    any = any || (piece.page != nullptr && piece.page->corrupt());
  });
  return any;
}

uint64_t Sequence::Reader::DigestOfAnyVersion(uint32_t first, uint32_t count, Damage damage) const {
  sequence_.mutex_.AssertReaderHeld();
  uint64_t digest = 0;
  ForEachPart(first, first + count, [&](const PagePart& part) {
    sequence_.mutex_.AssertReaderHeld();
    const auto found = sequence_.pages_.find(part.number);
    if (found == sequence_.pages_.end()) return;
    const Page& page = found->second;
    if (damage == Damage::kUndone && page.corrupt()) {
      digest += page.DigestBefore(part.index, part.count);
    } else {
      digest +=
          part.count == Page::kPositions ? page.digest() : page.Digest(part.index, part.count);
    }
  });
  return digest;
}

}  // namespace sis
