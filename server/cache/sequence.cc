#include "server/cache/sequence.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "kernels/block/pack.h"

namespace sis {
namespace {

// Returns true if positions [first, end) are equal in both blocks.
bool Same(const BlockView& a, const BlockView& b, uint32_t first, uint32_t end) {
  const uint32_t count = end - first;
  return SliceBlock(a, first - a.header.first_position, count) ==
         SliceBlock(b, first - b.header.first_position, count);
}

size_t BytesOfSlice(const BlockView& block, uint32_t index, uint32_t count) {
  if (count == block.header.positions) return block.bytes.size();
  BlockHeader header = block.header;
  header.positions = count;
  header.used_slots = std::accumulate(block.counts + index, block.counts + index + count, 0u);
  return BlockLayout(header).end;
}

std::unique_ptr<const CachedBlock> CopySlice(const BlockView& block, uint32_t index,
                                             uint32_t count) {
  if (count == block.header.positions) return CachedBlock::Copy(block);
  return CachedBlock::Copy(*OpenBlock(SliceBlock(block, index, count), /*checksums=*/false));
}

constexpr uint32_t kFanOut = 16;

// Blocks are of similar size if their numbers of positions have as many digits to base 16.
int Digits(uint32_t positions) { return (std::bit_width(positions) + 3) / 4; }

bool IsSmall(const CachedBlock& block) { return block.positions() < Sequence::kSmallPositions; }

}  // namespace

Sequence::~Sequence() {
  int64_t charged = kBaseBytes + static_cast<int64_t>(gaps_.size()) * kGapBytes;
  for (const auto& [first, block] : blocks_) charged += CachedBlock::Charge(block->bytes().size());
  if (annotation_ != nullptr) charged += AnnotationBytes(*annotation_);
  budget_.Refund(charged);
}

int64_t Sequence::AnnotationBytes(std::string_view annotation) {
  return annotation.empty() ? 0 : static_cast<int64_t>(sizeof(std::string) + annotation.size());
}

absl::Status Sequence::CheckBelowSeal(uint32_t end) const {
  if (end <= sealed_length_.value_or(end)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("position ", end - 1, " is beyond the seal at length ", *sealed_length_));
}

Sequence::Blocks::const_iterator Sequence::FirstBehind(uint32_t position) const {
  const auto after = blocks_.upper_bound(position);
  if (after == blocks_.begin()) return after;
  const auto before = std::prev(after);
  return before->second->end() > position ? before : after;
}

absl::Status Sequence::CheckFits(const BlockView& block) const {
  const uint32_t end = block.header.first_position + block.header.positions;
  if (absl::Status status = CheckBelowSeal(end); !status.ok()) return status;
  for (auto found = FirstBehind(block.header.first_position);
       found != blocks_.end() && found->first < end; ++found) {
    const CachedBlock& stored = *found->second;
    if (absl::Status status = stored.Check(); !status.ok()) return status;
    uint32_t first = std::max(block.header.first_position, stored.first_position());
    const uint32_t last = std::min(end, stored.end());
    if (stored.policy_version() != block.header.policy_version) {
      return absl::AlreadyExistsError(
          absl::StrCat("position ", first, " is committed with policy version ",
                       stored.policy_version(), ", not ", block.header.policy_version));
    }
    const BlockView view = stored.view();
    if (Same(view, block, first, last)) continue;
    // Binary search for the first position that differs.
    for (uint32_t step = std::bit_floor(last - first); step > 0; step /= 2) {
      if (last - first > step && Same(view, block, first, first + step)) first += step;
    }
    return absl::AlreadyExistsError(
        absl::StrCat("position ", first, " is committed with other content"));
  }
  return absl::OkStatus();
}

Sequence::Ranges Sequence::NewRanges(const BlockView& block) const {
  const uint32_t first = block.header.first_position, end = first + block.header.positions;
  Ranges ranges;
  uint32_t position = first;
  const auto add_up_to = [&](uint32_t stop) {
    if (position >= stop) return;
    const uint32_t index = position - first, count = stop - position;
    ranges.push_back({index, count, BytesOfSlice(block, index, count)});
  };
  for (auto found = FirstBehind(first); found != blocks_.end() && found->first < end; ++found) {
    add_up_to(found->first);
    position = found->second->end();
  }
  add_up_to(end);
  return ranges;
}

int64_t Sequence::ChargeOf(const Ranges& ranges) {
  int64_t charge = 0;
  for (const Range& range : ranges) charge += CachedBlock::Charge(range.bytes);
  return charge;
}

int64_t Sequence::BytesToAppend(const BlockView& block) const {
  ReaderLock lock(mutex_);
  return ChargeOf(NewRanges(block));
}

absl::Status Sequence::Append(const BlockView& block, Appended* appended) {
  WriterLock lock(mutex_);
  if (absl::Status status = CheckFits(block); !status.ok()) return status;
  Ranges ranges = NewRanges(block);
  if (const int64_t charge = ChargeOf(ranges); !budget_.TryCharge(charge)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no space for ", charge, " bytes in quota or budget"));
  }
  Appended added;
  for (const Range& range : ranges) {
    const uint8_t* counts = block.counts + range.index;
    added.positions += range.count;
    added.slots += std::accumulate(counts, counts + range.count, int64_t{0});
    Insert(CopySlice(block, range.index, range.count));
  }
  positions_ += static_cast<uint32_t>(added.positions);
  committed_length_ =
      std::max(committed_length_, block.header.first_position + block.header.positions);
  if (positions_ == sealed_length_ && !ranges.empty()) MergeAll();
  added.committed_length = committed_length_;
  added.ranges = std::move(ranges);
  if (appended != nullptr) *appended = std::move(added);
  return absl::OkStatus();
}

void Sequence::Insert(std::unique_ptr<const CachedBlock> block) {
  const uint32_t first = block->first_position();
  auto inserted = blocks_.insert(blocks_.end(), {first, std::move(block)});
  if (std::next(inserted) == blocks_.end()) {
    MergeAtEnd();
    return;
  }
  const auto merge_small = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto next = std::next(inserted);
    if (next == blocks_.end() || !IsSmall(*inserted->second) || !IsSmall(*next->second)) return;
    Merge(inserted, std::next(next));
  };
  merge_small();
  if (inserted == blocks_.begin()) return;
  --inserted;
  merge_small();
}

bool Sequence::Merge(Blocks::iterator& first, Blocks::iterator last) {
  absl::InlinedVector<const CachedBlock*, kFanOut> blocks;
  for (auto block = first; block != last; ++block) blocks.push_back(block->second.get());
  CachedBlock::Merged merged = CachedBlock::Merge(blocks);
  if (merged.block == nullptr) return false;
  const auto charge = [](const CachedBlock& of) { return CachedBlock::Charge(of.bytes().size()); };
  int64_t freed = -charge(*merged.block);
  for (size_t i = 0; i < merged.count; ++i) freed += charge(*blocks[i]);
  budget_.Refund(freed);
  first->second = std::move(merged.block);
  const auto second = std::next(first);
  first = std::prev(blocks_.erase(second, std::next(first, static_cast<ptrdiff_t>(merged.count))));
  return true;
}

void Sequence::MergeAtEnd() {
  static_assert(kSmallPositions == kFanOut * kFanOut);
  for (;;) {
    auto first = std::prev(blocks_.end());
    const uint32_t end = first->second->end();
    const int digits = Digits(end - first->first);
    if (digits > 2) return;
    // The keys tell the sizes of blocks that follow each other, without a look at the blocks.
    for (uint32_t count = 1; end - first->first < kSmallPositions; ++count) {
      if (count == kFanOut) break;
      if (first == blocks_.begin()) return;
      const auto before = std::prev(first);
      if (Digits(first->first - before->first) > digits) return;
      first = before;
    }
    if (!Merge(first, blocks_.end()) || std::next(first) != blocks_.end()) return;
  }
}

void Sequence::MergeAll() {
  for (auto first = blocks_.begin(); first != blocks_.end();) {
    auto last = std::next(first);
    uint32_t positions = first->second->positions();
    while (last != blocks_.end() && (positions < kSmallPositions || IsSmall(*last->second)) &&
           positions < kMaxBlockPositions && last->second->Continues(*std::prev(last)->second)) {
      positions += last->second->positions();
      ++last;
    }
    if (std::next(first) == last || !Merge(first, last)) ++first;
  }
}

absl::Status Sequence::CheckUnrecorded(uint32_t first, uint32_t end) const {
  const auto found = FirstBehind(first);
  if (found == blocks_.end() || found->first >= end) return absl::OkStatus();
  return absl::AlreadyExistsError(
      absl::StrCat("position ", std::max(first, found->first), " has a record"));
}

absl::StatusOr<bool> Sequence::AppendGap(const Missing& gap) {
  uint32_t first = gap.first_position;
  uint32_t end = first + gap.count;
  WriterLock lock(mutex_);
  if (absl::Status status = CheckBelowSeal(end); !status.ok()) return status;
  // [from, to) are the gaps that merge with this one.
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
  } else if (!budget_.TryCharge(kGapBytes)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no space for ", kGapBytes, " bytes in quota or budget"));
  }
  const auto joined = static_cast<int64_t>(std::distance(from, to));
  budget_.Refund(std::max<int64_t>(joined - 1, 0) * kGapBytes);
  gaps_.erase(from, to);
  gaps_.insert({first, {end, gap.reason}});
  committed_length_ = std::max(committed_length_, end);
  return true;
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
        absl::StrCat("seal at ", length, ": committed up to ", committed_length_));
  }
  const std::string before = annotation_ == nullptr ? std::string() : *annotation_;
  Sealed sealed{.first = !sealed_length_.has_value(), .annotation = annotate(before)};
  if (sealed.annotation.empty()) sealed.annotation = before;
  sealed.annotated = sealed.annotation != before;
  if (sealed.annotated) {
    const int64_t bytes = AnnotationBytes(sealed.annotation) - AnnotationBytes(before);
    if (bytes > 0 && !budget_.TryCharge(bytes)) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no space for an annotation of ", sealed.annotation.size(), " bytes"));
    }
    budget_.Refund(std::max<int64_t>(-bytes, 0));
    annotation_ = std::make_unique<const std::string>(sealed.annotation);
  }
  if (sealed.first) {
    sealed_length_ = length;
    MergeAll();
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
  for (const auto& [first, block] : blocks_) {
    newest = std::max(newest, std::optional(block->policy_version()));
  }
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
  auto block = sequence_.FirstBehind(first);
  auto gap = sequence_.gaps_.upper_bound(first);
  if (gap != sequence_.gaps_.begin()) --gap;
  for (uint32_t position = first; position < end;) {
    Piece piece{.first_position = position, .count = 0, .block = nullptr, .index = 0};
    uint32_t stop = end;
    if (block != sequence_.blocks_.end() && block->first <= position) {
      piece.block = block->second.get();
      piece.index = position - block->first;
      stop = std::min(stop, piece.block->end());
      ++block;
    } else {
      if (block != sequence_.blocks_.end()) stop = std::min(stop, block->first);
      while (gap != sequence_.gaps_.end() && gap->second.end <= position) ++gap;
      if (gap != sequence_.gaps_.end()) {
        const bool inside = gap->first <= position;
        if (inside) piece.reason = gap->second.reason;
        stop = std::min(stop, inside ? gap->second.end : gap->first);
      }
    }
    piece.count = stop - position;
    visit(piece);
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

uint64_t Sequence::Reader::DigestOfPiece(const Piece& piece, Damage damage) {
  if (piece.block == nullptr) return 0;
  return damage == Damage::kUndone && piece.block->corrupt()
             ? piece.block->DigestBefore(piece.index, piece.count)
             : piece.block->Digest(piece.index, piece.count);
}

uint64_t Sequence::Reader::Digest(uint32_t first, uint32_t count, uint64_t oldest_fresh) const {
  uint64_t digest = 0;
  ForEachPiece(first, count, [&](const Piece& piece) {
    if (piece.block == nullptr || piece.block->policy_version() < oldest_fresh) return;
    digest += DigestOfPiece(piece, Damage::kLeftOut);
  });
  return digest;
}

std::optional<uint64_t> Sequence::Reader::OldestFetched(uint64_t digest, uint32_t first,
                                                        uint32_t count) const {
  for (const Damage damage : {Damage::kLeftOut, Damage::kUndone}) {
    if (damage == Damage::kUndone && !AnyCorrupt(first, count)) break;
    std::map<uint64_t, uint64_t> parts;  // by version
    uint64_t fetched = 0;
    ForEachPiece(first, count, [&](const Piece& piece) {
      if (piece.block == nullptr) return;
      const uint64_t part = DigestOfPiece(piece, damage);
      parts[piece.block->policy_version()] += part;
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
    any = any || (piece.block != nullptr && piece.block->corrupt());
  });
  return any;
}

}  // namespace sis
