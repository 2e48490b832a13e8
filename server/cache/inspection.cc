#include "server/cache/inspection.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <set>

namespace sis {
namespace {

// Lowest hash limit while other runs have the space: it chooses one sequence in 1024.
constexpr uint64_t kFewest = std::numeric_limits<uint64_t>::max() >> 10;

// Returns the maximum number of positions of a sequence, so that at least two fit in `bytes`.
uint32_t KeptPositions(int64_t bytes, size_t slots) {
  const int64_t room = (bytes - Inspection::kTokenBytes) / 2 - Inspection::kSequenceBytes;
  const int64_t positions = room / InspectedPositions::BytesPerPosition(slots);
  const auto step = static_cast<int64_t>(Inspection::kStep);
  return static_cast<uint32_t>(std::max<int64_t>(0, positions / step * step));
}

// Returns the log of the ratio of the token's frequencies among the rejected and the accepted
// tokens. Counts one occurrence more on both sides, so that a rare token does not stand out.
double LogOdds(const Inspection::TokenCounts& counts, double accepted, double rejected) {
  return std::log((static_cast<double>(counts.rejected) + 1) / (rejected + 2)) -
         std::log((static_cast<double>(counts.accepted) + 1) / (accepted + 2));
}

// Sorts the deviations, and keeps as many as are shown.
void KeepLargest(std::vector<Inspection::Deviation>& deviations) {
  std::ranges::stable_sort(
      deviations, std::greater<>(),
      [](const Inspection::Deviation& deviation) { return std::abs(deviation.log_ratio); });
  if (deviations.size() > Inspection::kDeviationsShown) {
    deviations.erase(deviations.begin() + Inspection::kDeviationsShown, deviations.end());
  }
}

}  // namespace

// The finalizer of MurmurHash3: the high bits of an FNV-1a hash alone are not random enough.
uint64_t Inspection::Hash(uint64_t sequence_key) {
  uint64_t hash = sequence_key;
  hash = (hash ^ (hash >> 33)) * 0xFF51AFD7ED558CCDu;
  hash = (hash ^ (hash >> 33)) * 0xC4CEB9FE1A85EC53u;
  return (hash ^ (hash >> 33)) | 1;  // never 0, the limit that chooses nothing
}

Inspection::Inspection(int64_t bytes, int slots, ByteBudget& budget)
    : slots_(static_cast<size_t>(slots)),
      budget_(bytes, &budget),
      kept_positions_(KeptPositions(budget_.limit(), slots_)),
      max_hash_(kept_positions_ == 0 ? 0 : std::numeric_limits<uint64_t>::max()) {}

void Inspection::Erase(Table::iterator kept) {
  budget_.Refund(kept->second.bytes);
  by_use_.erase(kept->second.by_use);
  sequences_.erase(kept);
}

bool Inspection::MakeRoom(int64_t bytes, const Name& name, uint64_t hash, uint64_t draw) {
  while (!budget_.TryCharge(bytes)) {
    const auto earlier =
        std::ranges::find_if(by_use_, [&](const Name& other) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
          return other != name && sequences_.at(other).values.draw != draw;
        });
    if (earlier != by_use_.end()) {
      Erase(sequences_.find(*earlier));
      continue;
    }
    // Other runs have the space until they end. A few sequences still ask for it.
    if (budget_.Lacking(bytes) == 0) lacks_room_ = true;
    if (budget_.Lacking(bytes) == 0 && max_hash_.load(std::memory_order_relaxed) <= kFewest) {
      return false;
    }
    ChooseFewer(name);
    if (hash > max_hash_.load(std::memory_order_relaxed)) return false;
  }
  return true;
}

void Inspection::ChooseFewer(const Name& name) {
  const uint64_t most = max_hash_.load(std::memory_order_relaxed) / 2;
  max_hash_.store(most, std::memory_order_relaxed);
  for (auto kept = sequences_.begin(); kept != sequences_.end();) {
    const auto next = std::next(kept);
    if (kept->second.hash > most && kept->first != name) Erase(kept);
    kept = next;
  }
}

void Inspection::CountTokens(const InspectedPositions& positions, const Sequence& before,
                             uint32_t first_position) {
  const uint32_t offset = first_position - before.first_position;
  for (size_t i = 0; i < positions.size(); ++i) {
    if (before.positions.decisions[offset + i] != kNotEvaluated) continue;  // this draw counted it
    if (positions.decisions[i] == Decision::kAccepted) accepted_.Add(positions.sampled_ids[i]);
    if (positions.decisions[i] == Decision::kRejected) rejected_.Add(positions.sampled_ids[i]);
  }
}

void Inspection::Sequence::Cut(uint32_t begin, uint32_t end) {
  if (begin >= end) return;
  cut_begin = cut_end == 0 ? begin : std::min(cut_begin, begin);
  cut_end = std::max(cut_end, end);
}

void Inspection::Record(const Name& name, const Sequence& evaluated) {
  const auto& [key, draw, first_position, positions, cut_begin, cut_end, annotation] = evaluated;
  WriterLock lock(mutex_);
  const uint64_t hash = Hash(key);
  if (!Chosen(key)) return;
  if (!counts_tokens_) {
    if (!budget_.TryCharge(kTokenBytes)) {
      lacks_room_ = true;
      return;
    }
    counts_tokens_ = true;
  }
  auto kept = sequences_.find(name);
  if (kept != sequences_.end() && kept->second.values.draw != draw) {
    Erase(kept);
    kept = sequences_.end();
  }
  if (kept == sequences_.end()) {
    if (!MakeRoom(kSequenceBytes, name, hash, draw)) return;
    by_use_.push_back(name);
    Sequence empty{key, draw, first_position, InspectedPositions(slots_)};
    kept =
        sequences_
            .emplace(name, Kept{hash, std::move(empty), kSequenceBytes, std::prev(by_use_.end())})
            .first;
  }
  by_use_.splice(by_use_.end(), by_use_, kept->second.by_use);
  Sequence& values = kept->second.values;
  const uint32_t positions_end = first_position + static_cast<uint32_t>(positions.size());
  values.Cut(cut_begin, cut_end);
  if (!annotation.empty() && values.annotation != annotation) {
    const int64_t bytes = std::ssize(annotation) - std::ssize(values.annotation);
    if (bytes <= 0 || MakeRoom(bytes, name, hash, draw)) {
      budget_.Refund(std::max<int64_t>(-bytes, 0));
      kept->second.bytes += bytes;
      values.annotation = annotation;
    } else if (!Chosen(key)) {
      return Erase(kept);
    }
  }
  if (positions.size() == 0) return;
  // Rounds to whole steps, so that ranks that send small parts don't resize it for each one.
  uint32_t begin = first_position / kStep * kStep, end = positions_end;
  const size_t size_before = values.positions.size();
  if (size_before > 0) {
    begin = std::min(begin, values.first_position);
    end = std::max(end, values.first_position + static_cast<uint32_t>(size_before));
  }
  end = static_cast<uint32_t>((end + kStep - 1) / kStep * kStep);
  if (end - begin > size_before) {
    const int64_t bytes =
        (end - begin - size_before) * InspectedPositions::BytesPerPosition(slots_);
    if (!MakeRoom(bytes, name, hash, draw)) {
      values.Cut(first_position, positions_end);
      if (!Chosen(key)) Erase(kept);
      return;
    }
    kept->second.bytes += bytes;
    InspectedPositions grown(slots_);
    grown.Resize(end - begin);
    if (size_before > 0) {
      grown.Copy(values.first_position - begin, values.positions, 0, size_before);
    }
    values.first_position = begin;
    values.positions = std::move(grown);
  }
  CountTokens(positions, values, first_position);
  values.positions.Copy(first_position - values.first_position, positions, 0, positions.size());
}

void Inspection::Clear() {
  WriterLock lock(mutex_);
  while (!sequences_.empty()) Erase(sequences_.begin());
  if (counts_tokens_) budget_.Refund(kTokenBytes);
  counts_tokens_ = false;
  accepted_.Clear();
  rejected_.Clear();
}

void Inspection::TryAgain() {
  WriterLock lock(mutex_);
  lacks_room_ = false;
  // The limit 0 means closed, or without any space.
  if (max_hash_ != 0) max_hash_ = std::numeric_limits<uint64_t>::max();
}

void Inspection::Close() {
  {
    WriterLock lock(mutex_);  // a Record may be halving it
    max_hash_.store(0, std::memory_order_relaxed);
  }
  Clear();
}

std::optional<Inspection::Sequence> Inspection::Find(const Name& name) const {
  ReaderLock lock(mutex_);
  const auto kept = sequences_.find(name);
  if (kept == sequences_.end()) return std::nullopt;
  const Sequence& values = kept->second.values;
  const std::vector<Decision>& decisions = values.positions.decisions;
  size_t begin = 0, end = decisions.size();
  while (begin < end && decisions[begin] == kNotEvaluated) ++begin;
  while (begin < end && decisions[end - 1] == kNotEvaluated) --end;
  Sequence evaluated{values.key, values.draw, values.first_position + static_cast<uint32_t>(begin),
                     InspectedPositions(slots_)};
  evaluated.Cut(values.cut_begin, values.cut_end);
  evaluated.annotation = values.annotation;
  evaluated.positions.Resize(end - begin);
  evaluated.positions.Copy(0, values.positions, begin, end - begin);
  return evaluated;
}

std::vector<Inspection::TokenCounts> Inspection::Tokens() const {
  std::set<int32_t> named;
  for (const int32_t token : accepted_.tokens()) named.insert(token);
  for (const int32_t token : rejected_.tokens()) named.insert(token);
  std::vector<std::pair<double, TokenCounts>> ordered;
  const auto accepted_total = static_cast<double>(accepted_.total());
  const auto rejected_total = static_cast<double>(rejected_.total());
  for (const int32_t token : named) {
    const SpaceSaving::Count accepted = accepted_.Of(token), rejected = rejected_.Of(token);
    const TokenCounts counts{token, accepted.count, rejected.count,
                             std::max(accepted.error, rejected.error)};
    ordered.emplace_back(LogOdds(counts, accepted_total, rejected_total), counts);
  }
  std::ranges::sort(ordered, [](const auto& a, const auto& b) {
    return std::pair(-a.first, a.second.token) < std::pair(-b.first, b.second.token);
  });
  std::vector<TokenCounts> tokens;
  for (size_t i = 0; i < ordered.size(); ++i) {
    if (i < kTokensShown || i + kTokensShown >= ordered.size()) tokens.push_back(ordered[i].second);
  }
  return tokens;
}

Inspection::Overview Inspection::Describe() const {
  Overview overview;
  ReaderLock lock(mutex_);
  for (const auto& [name, kept] : sequences_) {
    const InspectedPositions& positions = kept.values.positions;
    Summary summary{
        name, kept.values.draw, 0, positions.Total(), kept.values.cut_begin, kept.values.cut_end};
    for (size_t i = 0; i < positions.size(); ++i) {
      summary.positions += positions.decisions[i] != kNotEvaluated;
      if (!IsScored(positions.decisions[i])) continue;
      overview.deviations.push_back({name, kept.values.first_position + static_cast<uint32_t>(i),
                                     positions.sampled_ids[i], kept.values.draw,
                                     positions.log_ratios[i]});
      // Collects up to twice as many as are shown, so that it seldom sorts.
      if (overview.deviations.size() < 2 * kDeviationsShown) continue;
      KeepLargest(overview.deviations);
    }
    overview.sequences.push_back(std::move(summary));
  }
  KeepLargest(overview.deviations);
  overview.tokens = Tokens();
  return overview;
}

}  // namespace sis
