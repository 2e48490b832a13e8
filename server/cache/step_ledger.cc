#include "server/cache/step_ledger.h"

#include <algorithm>

namespace sis {

std::vector<StepLedger::Range> StepLedger::Claim(uint64_t draw, uint64_t sequence_key,
                                                 Range range) {
  WriterLock lock(mutex_);
  OpenStep* const step = Use(draw);
  if (step == nullptr) return {};
  OpenStep& entry = *step;
  while (ranges_ >= kMaxRanges) {
    if (steps_.size() == 1) return {};
    ForgetLeastRecentlyUsed();
  }

  std::vector<Range>& counted = entry.counted[sequence_key];
  const auto touches = [&](const Range& other) {
    return other.first <= range.end && range.first <= other.end;
  };
  std::vector<Range> fresh;
  std::vector<Range> merged;
  Range whole = range;
  uint32_t next = range.first;  // what lies before it is counted, or fresh already
  for (const Range& other : counted) {
    if (!touches(other)) {
      merged.push_back(other);
      continue;
    }
    if (next < other.first) fresh.push_back({next, std::min(other.first, range.end)});
    next = std::max(next, other.end);
    whole = {std::min(whole.first, other.first), std::max(whole.end, other.end)};
  }
  if (next < range.end) fresh.push_back({next, range.end});
  merged.insert(std::ranges::upper_bound(merged, whole.first, {}, &Range::first), whole);
  const auto added = static_cast<int64_t>(merged.size()) - static_cast<int64_t>(counted.size());
  if (!Charge(entry, added * kRangeBytes)) {
    if (counted.empty()) entry.counted.erase(sequence_key);
    return {};
  }
  entry.ranges += added;
  ranges_ += added;
  counted = std::move(merged);
  return fresh;
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
    budget_.Refund(-bytes);
  } else {
    while (!budget_.TryCharge(bytes)) {
      if (steps_.size() == 1) return false;
      ForgetLeastRecentlyUsed();
    }
  }
  step.bytes += bytes;
  charged_ += bytes;
  return true;
}

void StepLedger::ForgetLeastRecentlyUsed() {
  const auto step = steps_.find(by_use_.front());
  ranges_ -= step->second.ranges;
  charged_ -= step->second.bytes;
  budget_.Refund(step->second.bytes);
  steps_.erase(step);
  by_use_.pop_front();
}

template <typename Entries>
void StepLedger::DropWithoutRoom(OpenStep& step, int64_t bytes, const Entries& held,
                                 Entries& from) {
  for (auto next = from.begin(); next != from.end();) {
    const bool has_room = held.contains(next->first) || Charge(step, bytes);
    next = has_room ? std::next(next) : from.erase(next);
  }
}

void StepLedger::Add(uint64_t draw, const Evaluated& evaluated) {
  WriterLock lock(mutex_);
  if (!steps_.contains(draw)) return;
  OpenStep& step = *Use(draw);
  Evaluated kept = evaluated;
  DropWithoutRoom(step, kPrefixPointBytes, step.evaluated.prefix_curve, kept.prefix_curve);
  DropWithoutRoom(step, kObservedBytes, step.evaluated.observed, kept.observed);
  step.evaluated += kept;
}

std::optional<StepLedger::Step> StepLedger::Find(uint64_t draw) const {
  WriterLock lock(mutex_);
  const auto step = steps_.find(draw);
  if (step == steps_.end()) return std::nullopt;
  return Step{step->second.evaluated, static_cast<int64_t>(step->second.counted.size())};
}

std::vector<StepLedger::NamedStep> StepLedger::List() const {
  WriterLock lock(mutex_);
  std::vector<NamedStep> steps;
  steps.reserve(steps_.size());
  for (const uint64_t draw : by_use_) {
    const OpenStep& step = steps_.at(draw);
    steps.push_back({draw, {step.evaluated, static_cast<int64_t>(step.counted.size())}});
  }
  return steps;
}

std::optional<uint64_t> StepLedger::last_draw() const {
  WriterLock lock(mutex_);
  if (by_use_.empty()) return std::nullopt;
  return by_use_.back();
}

}  // namespace sis
