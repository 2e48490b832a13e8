#include "server/cache/step_ledger.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

namespace sis {
namespace {

using Range = StepLedger::Range;

int64_t PositionsIn(std::span<const Range> ranges) {
  int64_t positions = 0;
  for (const Range& range : ranges) positions += range.end - range.first;
  return positions;
}

// Returns the ranges in ascending order, with touching ones merged.
std::vector<Range> Merged(std::vector<Range> ranges) {
  std::ranges::sort(ranges, {}, &Range::first);
  std::vector<Range> merged;
  for (const Range& range : ranges) {
    if (!merged.empty() && merged.back().end >= range.first) {
      merged.back().end = std::max(merged.back().end, range.end);
    } else {
      merged.push_back(range);
    }
  }
  return merged;
}

// Returns the parts of `range` that are in none of `others`, which are in ascending order.
std::vector<Range> Without(std::span<const Range> others, const Range& range) {
  std::vector<Range> parts;
  uint32_t next = range.first;
  const auto first = std::ranges::upper_bound(others, range.first, {}, &Range::end);
  for (auto other = first; other != others.end() && other->first < range.end; ++other) {
    if (next < other->first) parts.push_back({next, other->first});
    next = other->end;
  }
  if (next < range.end) parts.push_back({next, range.end});
  return parts;
}

// Returns the intersection of `a` and `b`, which are in ascending order.
std::vector<Range> Common(std::span<const Range> a, std::span<const Range> b) {
  std::vector<Range> parts;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const Range part{std::max(a[i].first, b[j].first), std::min(a[i].end, b[j].end)};
    if (part.first < part.end) parts.push_back(part);
    ++(a[i].end < b[j].end ? i : j);
  }
  return parts;
}

// Returns the complete ranges that share positions with `range`.
std::vector<Range> Overlapping(const absl::btree_map<uint32_t, uint32_t>& ranges,
                               const Range& range) {
  std::vector<Range> overlapping;
  auto next = ranges.upper_bound(range.first);
  if (next != ranges.begin() && std::prev(next)->second > range.first) --next;
  for (; next != ranges.end() && next->first < range.end; ++next) {
    overlapping.push_back({next->first, next->second});
  }
  return overlapping;
}

}  // namespace

StepLedger::Claimed StepLedger::Claim(uint64_t draw, uint64_t sequence_key, Range range,
                                      std::span<const Range> masked) {
  WriterLock lock(mutex_);
  CountedStep* const step = Open(draw);
  if (step == nullptr) {
    return {.fresh = {}, .uncounted = PositionsIn(Without(masked, range))};
  }
  CountedStep& entry = *step;
  Ranges& evaluated = entry.evaluated_ranges[sequence_key];
  // Finds the ranges that touch `range`, from the last one that begins no later on.
  auto first = evaluated.upper_bound(range.first);
  if (first != evaluated.begin() && std::prev(first)->second >= range.first) --first;
  Claimed claimed;
  Range whole = range;
  uint32_t next = range.first;  // all positions before it are evaluated, or fresh already
  auto last = first;
  int64_t added = 1;
  for (; last != evaluated.end() && last->first <= range.end; ++last, --added) {
    if (next < last->first) claimed.fresh.push_back({next, last->first});
    next = std::max(next, last->second);
    whole = {std::min(whole.first, last->first), std::max(whole.end, last->second)};
  }
  if (next < range.end) claimed.fresh.push_back({next, range.end});
  const bool evaluates_more = !claimed.fresh.empty();

  const auto held = entry.masked_ranges.find(sequence_key);
  std::vector<Range> still_masked;
  int64_t masked_before = 0;  // ranges
  if (!masked.empty() || held != entry.masked_ranges.end()) {
    const std::vector<Range> unmasked = Without(masked, range);
    std::vector<Range> before;
    if (held != entry.masked_ranges.end()) before = Overlapping(held->second, range);
    masked_before = static_cast<int64_t>(before.size());
    const std::vector<Range> counted_now = Common(before, unmasked);
    still_masked = Common(claimed.fresh, masked);
    claimed.masked = PositionsIn(still_masked) - PositionsIn(counted_now);
    for (const Range& part : before) {
      const std::vector<Range> stays = Without(counted_now, part);
      still_masked.insert(still_masked.end(), stays.begin(), stays.end());
    }
    still_masked = Merged(std::move(still_masked));
    claimed.fresh = Common(claimed.fresh, unmasked);
    claimed.fresh.insert(claimed.fresh.end(), counted_now.begin(), counted_now.end());
    claimed.fresh = Merged(std::move(claimed.fresh));
  }
  if (!evaluates_more && claimed.fresh.empty()) return claimed;

  const int64_t masked_now = static_cast<int64_t>(still_masked.size());
  if (!MakeRoom(entry, (evaluates_more ? added : 0) + masked_now - masked_before)) {
    if (evaluated.empty()) entry.evaluated_ranges.erase(sequence_key);
    return {.fresh = {}, .uncounted = PositionsIn(claimed.fresh)};
  }
  if (evaluates_more) evaluated.insert(evaluated.erase(first, last), {whole.first, whole.end});
  entry.sequences = static_cast<int64_t>(entry.evaluated_ranges.size());
  if (masked_before + masked_now > 0) {
    Ranges& ranges = entry.masked_ranges[sequence_key];
    for (const Range& part : Overlapping(ranges, range)) ranges.erase(part.first);
    for (const Range& part : still_masked) ranges.insert({part.first, part.end});
    if (ranges.empty()) entry.masked_ranges.erase(sequence_key);
  }
  return claimed;
}

bool StepLedger::MakeRoom(CountedStep& step, int64_t ranges) {
  while (ranges > 0 && ranges_ >= kMaxRanges) {
    if (!DropOldestClaims(&step)) return false;
  }
  if (!Charge(step, ranges * kRangeBytes)) return false;
  step.ranges += ranges;
  ranges_ += ranges;
  return true;
}

StepLedger::CountedStep* StepLedger::Open(uint64_t draw) {
  if (const auto found = numbers_.find(draw); found != numbers_.end()) {
    const uint64_t number = found->second;
    if (std::ranges::binary_search(claimed_, number)) return &steps_.at(number);
    if (number >= first_number_ && number + kept_.claims >= next_number_) return nullptr;
    Drop(number);
  }
  const uint64_t number = next_number_++;
  while (!steps_.empty() && steps_.begin()->first + kept_.sums <= number) DropOldestSums(nullptr);
  if (claimed_.size() >= kept_.claims) DropOldestClaims(nullptr);
  // Drops two for each new one, so that active runs make room for other runs.
  for (int i = 0; i < 2; ++i) {
    if (steps_.size() >= kept_.claims && budget_.used() > budget_.limit() / 2) {
      DropOldestSums(nullptr);
    }
  }
  CountedStep& step = steps_[number];
  step.draw = draw;
  step.number = number;
  if (!Charge(step, kStepBytes)) {
    steps_.erase(number);
    return nullptr;
  }
  step.bytes = kStepBytes;
  numbers_[draw] = number;
  claimed_.push_back(number);
  return &step;
}

bool StepLedger::Charge(const CountedStep& step, int64_t bytes) {
  if (bytes < 0) {
    Refund(-bytes);
    return true;
  }
  while (!budget_.TryCharge(bytes)) {
    if (!DropOldestClaims(&step) && !DropOldestSums(&step)) return false;
  }
  charged_ += bytes;
  return true;
}

void StepLedger::Refund(int64_t bytes) {
  charged_ -= bytes;
  budget_.Refund(bytes);
}

bool StepLedger::DropOldestClaims(const CountedStep* step) {
  const auto oldest = std::ranges::find_if(
      claimed_, [&](uint64_t number) { return step == nullptr || number != step->number; });
  if (oldest == claimed_.end()) return false;
  DropClaims(steps_.at(*oldest));
  return true;
}

bool StepLedger::DropOldestSums(const CountedStep* step) {
  for (const auto& [number, oldest] : steps_) {
    if (&oldest == step) continue;
    Drop(number);
    return true;
  }
  return false;
}

void StepLedger::DropClaims(CountedStep& step) {
  ranges_ -= step.ranges;
  Refund(step.ranges * kRangeBytes);
  step.ranges = 0;
  step.evaluated_ranges = {};
  step.masked_ranges = {};
  std::erase(claimed_, step.number);
}

void StepLedger::Drop(uint64_t number) {
  CountedStep& step = steps_.at(number);
  DropClaims(step);
  Refund(step.bytes);
  numbers_.erase(step.draw);
  steps_.erase(number);
}

template <typename Entries>
int64_t StepLedger::DropWithoutRoom(CountedStep& step, int64_t bytes, const Entries& held,
                                    Entries& from) {
  int64_t positions = 0;
  for (auto next = from.begin(); next != from.end();) {
    bool has_room = held.contains(next->first);
    if (!has_room && Charge(step, bytes)) {
      has_room = true;
      step.bytes += bytes;
    }
    if (!has_room) positions += next->second.positions;
    next = has_room ? std::next(next) : from.erase(next);
  }
  return positions;
}

StepLedger::Uncounted StepLedger::Add(uint64_t draw, const Evaluated& evaluated, absl::Time now,
                                      int64_t unclaimed) {
  WriterLock lock(mutex_);
  Uncounted uncounted{.positions = unclaimed};
  const auto found = numbers_.find(draw);
  if (found == numbers_.end()) {  // dropped since it was claimed
    uncounted.positions += evaluated.sums.scored() + evaluated.sums.missing;
    return uncounted;
  }
  CountedStep& step = steps_.at(found->second);
  Evaluated kept = evaluated;
  uncounted.prefix_curve =
      DropWithoutRoom(step, kPrefixPointBytes, step.evaluated.prefix_curve, kept.prefix_curve);
  uncounted.corrections =
      DropWithoutRoom(step, kObservedBytes, step.evaluated.observed, kept.observed);
  step.begun = std::min(step.begun, now);
  step.ended = std::max(step.ended, now);
  step.evaluated += kept;
  step.uncounted += uncounted;
  step.addition = ++additions_;
  return uncounted;
}

std::optional<StepLedger::Step> StepLedger::Find(uint64_t draw) const {
  WriterLock lock(mutex_);
  const auto found = numbers_.find(draw);
  if (found == numbers_.end()) return std::nullopt;
  return steps_.at(found->second);
}

std::vector<StepLedger::Step> StepLedger::List(std::optional<uint64_t> after, size_t limit) const {
  WriterLock lock(mutex_);
  auto next = steps_.begin();
  if (after.has_value()) {
    if (const auto found = numbers_.find(*after); found != numbers_.end()) {
      next = steps_.upper_bound(found->second);
    }
  }
  std::vector<Step> listed;
  for (; next != steps_.end() && listed.size() < limit; ++next) {
    if (next->second.ended != absl::InfinitePast()) listed.push_back(next->second);
  }
  return listed;
}

std::vector<StepLedger::Step> StepLedger::AddedSince(int64_t additions) const {
  WriterLock lock(mutex_);
  std::vector<Step> added;
  for (const auto& [number, step] : steps_) {
    if (step.addition > additions) added.push_back(step);
  }
  return added;
}

void StepLedger::Restore(std::vector<Step> steps) {
  WriterLock lock(mutex_);
  std::ranges::sort(steps, std::greater(), &Step::number);
  if (!steps.empty()) first_number_ = next_number_ = steps.front().number + 1;
  for (Step& step : steps) {
    if (steps_.size() >= kept_.sums || budget_.used() > budget_.limit() / 2) return;
    if (!numbers_.try_emplace(step.draw, step.number).second) continue;
    const int64_t bytes =
        kStepBytes + kPrefixPointBytes * static_cast<int64_t>(step.evaluated.prefix_curve.size()) +
        kObservedBytes * static_cast<int64_t>(step.evaluated.observed.size());
    if (!budget_.TryCharge(bytes)) {
      numbers_.erase(step.draw);
      return;
    }
    charged_ += bytes;
    step.addition = 0;
    CountedStep& restored = steps_[step.number];
    static_cast<Step&>(restored) = std::move(step);
    restored.bytes = bytes;
  }
}

int64_t StepLedger::additions() const {
  WriterLock lock(mutex_);
  return additions_;
}

void StepLedger::ForEach(absl::FunctionRef<void(const Evaluated&)> take) const {
  WriterLock lock(mutex_);
  uint64_t left = kept_.claims;
  for (auto step = steps_.rbegin(); step != steps_.rend() && left > 0; ++step, --left) {
    take(step->second.evaluated);
  }
}

std::optional<uint64_t> StepLedger::last_draw() const {
  WriterLock lock(mutex_);
  if (steps_.empty()) return std::nullopt;
  return steps_.rbegin()->second.draw;
}

}  // namespace sis
