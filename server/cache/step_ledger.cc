#include "server/cache/step_ledger.h"

#include <algorithm>
#include <iterator>

namespace sis {
namespace {

using Range = StepLedger::Range;

int64_t PositionsIn(std::span<const Range> ranges) {
  int64_t positions = 0;
  for (const Range& range : ranges) positions += range.end - range.first;
  return positions;
}

// In rising order, those that touch each other as one.
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

// The parts of `range` that lie in none of the others, which are in rising order.
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

// What lies in both; each is in rising order.
std::vector<Range> Common(std::span<const Range> a, std::span<const Range> b) {
  std::vector<Range> parts;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const Range part{std::max(a[i].first, b[j].first), std::min(a[i].end, b[j].end)};
    if (part.first < part.end) parts.push_back(part);
    ++(a[i].end < b[j].end ? i : j);
  }
  return parts;
}

// The whole ranges that have positions in common with `range`.
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
  OpenStep* const step = Use(draw);
  if (step == nullptr) {
    return {.fresh = {}, .uncounted = PositionsIn(Without(masked, range))};
  }
  OpenStep& entry = *step;
  Ranges& evaluated = entry.evaluated_ranges[sequence_key];
  // Those that touch `range`: from the last that begins no later, or the one after it.
  auto first = evaluated.upper_bound(range.first);
  if (first != evaluated.begin() && std::prev(first)->second >= range.first) --first;
  Claimed claimed;
  Range whole = range;
  uint32_t next = range.first;  // what lies before it is evaluated, or fresh already
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
  if (masked_before + masked_now > 0) {
    Ranges& ranges = entry.masked_ranges[sequence_key];
    for (const Range& part : Overlapping(ranges, range)) ranges.erase(part.first);
    for (const Range& part : still_masked) ranges.insert({part.first, part.end});
    if (ranges.empty()) entry.masked_ranges.erase(sequence_key);
  }
  return claimed;
}

bool StepLedger::MakeRoom(OpenStep& step, int64_t ranges) {
  while (ranges > 0 && ranges_ >= kMaxRanges) {
    if (steps_.size() == 1) return false;
    ForgetLeastRecentlyUsed();
  }
  if (!Charge(step, ranges * kRangeBytes)) return false;
  step.ranges += ranges;
  ranges_ += ranges;
  return true;
}

StepLedger::OpenStep* StepLedger::Use(uint64_t draw) {
  if (const auto found = steps_.find(draw); found != steps_.end()) {
    by_use_.splice(by_use_.end(), by_use_, found->second.by_use);
    return &found->second;
  }
  if (static_cast<int>(steps_.size()) >= kept_) ForgetLeastRecentlyUsed();
  by_use_.push_back(draw);
  OpenStep& step = steps_[draw];
  step.by_use = std::prev(by_use_.end());
  if (Charge(step, kStepBytes)) return &step;
  steps_.erase(draw);
  by_use_.pop_back();
  return nullptr;
}

bool StepLedger::Charge(OpenStep& step, int64_t bytes) {
  if (bytes < 0) {
    Refund(-bytes);
  } else {
    while (!budget_.TryCharge(bytes)) {
      if (steps_.size() > 1) {
        ForgetLeastRecentlyUsed();
      } else if (!ThinHistory()) {
        return false;
      }
    }
    charged_ += bytes;
  }
  step.bytes += bytes;
  return true;
}

void StepLedger::Refund(int64_t bytes) {
  charged_ -= bytes;
  budget_.Refund(bytes);
}

bool StepLedger::ThinHistory() {
  const int64_t before = history_.bytes();
  if (!history_.Thin()) return false;
  Refund(before - history_.bytes());
  return true;
}

void StepLedger::ForgetLeastRecentlyUsed() {
  const auto step = steps_.find(by_use_.front());
  ranges_ -= step->second.ranges;
  int64_t freed = step->second.bytes + history_.bytes();
  if (step->second.ended != absl::InfinitePast()) {
    history_.Add(ToStretch(step->first, step->second));
  }
  freed -= history_.bytes();
  Refund(freed);
  steps_.erase(step);
  by_use_.pop_front();
}

template <typename Entries>
int64_t StepLedger::DropWithoutRoom(OpenStep& step, int64_t bytes, const Entries& held,
                                    Entries& from) {
  int64_t positions = 0;
  for (auto next = from.begin(); next != from.end();) {
    const bool has_room = held.contains(next->first) || Charge(step, bytes);
    if (!has_room) positions += next->second.positions;
    next = has_room ? std::next(next) : from.erase(next);
  }
  return positions;
}

StepLedger::Uncounted StepLedger::Add(uint64_t draw, const Evaluated& evaluated, absl::Time now,
                                      int64_t unclaimed) {
  WriterLock lock(mutex_);
  Uncounted uncounted{.positions = unclaimed};
  if (!steps_.contains(draw)) {  // forgotten since it was claimed
    uncounted.positions += evaluated.sums.scored() + evaluated.sums.missing;
    return uncounted;
  }
  OpenStep& step = *Use(draw);
  Evaluated kept = evaluated;
  uncounted.prefix_curve =
      DropWithoutRoom(step, kPrefixPointBytes, step.evaluated.prefix_curve, kept.prefix_curve);
  uncounted.corrections =
      DropWithoutRoom(step, kObservedBytes, step.evaluated.observed, kept.observed);
  step.begun = std::min(step.begun, now);
  step.ended = std::max(step.ended, now);
  step.evaluated += kept;
  step.uncounted += uncounted;
  ++additions_;
  return uncounted;
}

StepLedger::Step StepLedger::ToStep(const OpenStep& step) {
  return {step.evaluated, static_cast<int64_t>(step.evaluated_ranges.size()), step.uncounted,
          step.ended};
}

DrawStretch StepLedger::ToStretch(uint64_t draw, const OpenStep& step) {
  const Statistics& statistics = step.evaluated.statistics;
  DrawStretch stretch{.first_draw = draw,
                      .last_draw = draw,
                      .draws = 1,
                      .begun = step.begun,
                      .ended = step.ended,
                      .sequences = static_cast<int64_t>(step.evaluated_ranges.size()),
                      .sums = LongSums(step.evaluated.sums),
                      .missing = step.evaluated.missing,
                      .uncounted = step.uncounted.positions};
  stretch.plain += statistics.plain;
  stretch.clipped += statistics.clipped;
  stretch.applied += statistics.applied;
  return stretch;
}

std::optional<StepLedger::Step> StepLedger::Find(uint64_t draw) const {
  WriterLock lock(mutex_);
  const auto step = steps_.find(draw);
  if (step == steps_.end()) return std::nullopt;
  return ToStep(step->second);
}

std::vector<StepLedger::NamedStep> StepLedger::List() const {
  WriterLock lock(mutex_);
  std::vector<NamedStep> steps;
  steps.reserve(steps_.size());
  for (const uint64_t draw : by_use_) {
    steps.push_back({draw, ToStep(steps_.at(draw))});
  }
  return steps;
}

std::vector<DrawStretch> StepLedger::History() const {
  WriterLock lock(mutex_);
  std::vector<DrawStretch> history(history_.stretches().begin(), history_.stretches().end());
  for (const uint64_t draw : by_use_) {
    const OpenStep& step = steps_.at(draw);
    if (step.ended != absl::InfinitePast()) history.push_back(ToStretch(draw, step));
  }
  return history;
}

void StepLedger::Restore(const StepHistory& history) {
  WriterLock lock(mutex_);
  for (const DrawStretch& stretch : history.stretches()) {
    int64_t more = -history_.bytes();
    history_.Add(stretch);
    more += history_.bytes();
    if (budget_.TryCharge(more)) {
      charged_ += more;
    } else {
      history_.Thin();
    }
  }
}

int64_t StepLedger::additions() const {
  WriterLock lock(mutex_);
  return additions_;
}

void StepLedger::ForEach(absl::FunctionRef<void(const Evaluated&)> take) const {
  WriterLock lock(mutex_);
  for (auto draw = by_use_.rbegin(); draw != by_use_.rend(); ++draw) {
    take(steps_.at(*draw).evaluated);
  }
}

std::optional<uint64_t> StepLedger::last_draw() const {
  WriterLock lock(mutex_);
  if (by_use_.empty()) return std::nullopt;
  return by_use_.back();
}

}  // namespace sis
