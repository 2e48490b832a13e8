#include "server/cache/step_ledger.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

#include "absl/container/inlined_vector.h"

namespace sis {
namespace {

using Range = StepLedger::Range;
// In ascending order. Ranges are disjoint, and neighbours are merged.
using Ranges = absl::InlinedVector<Range, 4>;
using RangeMap = absl::btree_map<uint32_t, uint32_t>;  // the same, first position -> end

int64_t PositionsIn(std::span<const Range> ranges) {
  int64_t positions = 0;
  for (const Range& range : ranges) positions += range.end - range.first;
  return positions;
}

// Returns the positions of `ranges` that are in none of `others`.
Ranges Without(std::span<const Range> ranges, std::span<const Range> others) {
  Ranges left;
  auto other = others.begin();
  for (const Range& range : ranges) {
    uint32_t next = range.first;
    while (other != others.end() && other->end <= next) ++other;
    for (auto cut = other; cut != others.end() && cut->first < range.end; ++cut) {
      if (next < cut->first) left.push_back({next, cut->first});
      next = cut->end;
    }
    if (next < range.end) left.push_back({next, range.end});
  }
  return left;
}

Ranges Union(std::span<const Range> a, std::span<const Range> b) {
  Ranges sorted;
  std::ranges::merge(a, b, std::back_inserter(sorted), {}, &Range::first, &Range::first);
  Ranges merged;
  for (const Range& range : sorted) {
    if (!merged.empty() && merged.back().end >= range.first) {
      merged.back().end = std::max(merged.back().end, range.end);
    } else {
      merged.push_back(range);
    }
  }
  return merged;
}

// Returns the ranges that overlap `range` or touch it.
Ranges Near(const RangeMap& ranges, const Range& range) {
  Ranges near;
  auto next = ranges.upper_bound(range.first);
  if (next != ranges.begin() && std::prev(next)->second >= range.first) --next;
  for (; next != ranges.end() && next->first <= range.end; ++next) {
    near.push_back({next->first, next->second});
  }
  return near;
}

void Replace(std::span<const Range> before, std::span<const Range> after, RangeMap& ranges) {
  for (const Range& range : before) ranges.erase(range.first);
  for (const Range& range : after) ranges.insert({range.first, range.end});
}

}  // namespace

StepLedger::Claimed StepLedger::Claim(uint64_t draw, uint64_t sequence_key, Range range,
                                      std::span<const Range> masked) {
  const Ranges unmasked = Without({&range, 1}, masked);
  WriterLock lock(mutex_);
  CountedStep* const step = Open(draw);
  if (step == nullptr) return {.fresh = {}, .uncounted = PositionsIn(unmasked)};
  RangeMap& all_counted = step->counted_ranges[sequence_key];
  RangeMap& all_masked = step->masked_ranges[sequence_key];
  const Ranges counted = Near(all_counted, range), counted_now = Union(counted, unmasked);
  const Ranges only_masked = Near(all_masked, range);
  const Ranges only_masked_now = Without(Union(only_masked, masked), counted_now);
  const Ranges fresh = Without(unmasked, counted);
  const auto added = static_cast<int64_t>(counted_now.size() + only_masked_now.size()) -
                     static_cast<int64_t>(counted.size() + only_masked.size());
  const bool has_room = MakeRoom(*step, added);
  if (has_room) {
    step->sequences += all_counted.empty() && !counted_now.empty();
    Replace(counted, counted_now, all_counted);
    Replace(only_masked, only_masked_now, all_masked);
  } else if (all_counted.empty() && all_masked.empty()) {
    step->counted_ranges.erase(sequence_key);
  }
  if (all_masked.empty()) step->masked_ranges.erase(sequence_key);
  if (!has_room) return {.fresh = {}, .uncounted = PositionsIn(fresh)};
  return {.fresh = {fresh.begin(), fresh.end()},
          .masked = PositionsIn(only_masked_now) - PositionsIn(only_masked)};
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

void StepLedger::Close() {
  WriterLock lock(mutex_);
  closed_ = true;
  while (DropOldestSums(nullptr)) continue;
}

StepLedger::CountedStep* StepLedger::Open(uint64_t draw) {
  if (closed_) return nullptr;
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
  step.counted_ranges = {};
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
