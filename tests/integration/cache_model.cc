#include "tests/integration/cache_model.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/decide/scalar_backend.h"
#include "kernels/numerics/sequence_key.h"
#include "server/evaluate/evaluate.h"
#include "server/messages/arrays.h"

namespace sis {
namespace {

SequenceName NameOf(const v1::Slice& slice) {
  return {slice.sequence().id(), slice.sequence().attempt()};
}

// Adds a position of the slice, to the range before if it goes on.
template <typename Message>
void AddMissing(Message& message, int slice, uint32_t position, uint32_t count,
                v1::MissingReason reason) {
  if (message.missing_size() > 0) {
    v1::MissingRange& last = *message.mutable_missing(message.missing_size() - 1);
    if (last.slice() == slice && last.reason() == reason &&
        last.first_position() + last.length() == position) {
      last.set_length(last.length() + count);
      return;
    }
  }
  v1::MissingRange& range = *message.add_missing();
  range.set_slice(slice);
  range.set_first_position(position);
  range.set_length(count);
  range.set_reason(reason);
}

std::span<const float> Floats(const std::string& bytes) {
  return {reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float)};
}

// The values of all positions of a request.
CurrentView CurrentOf(const v1::EvaluateRequest& request) {
  CurrentView current;
  if (request.has_gathered()) {
    current.log_probs = Floats(request.gathered().log_probs());
    current.sampled_log_probs = Floats(request.gathered().sampled_log_probs());
  } else {
    current.sampled_log_probs = Floats(request.reduced().sampled_log_probs());
    current.log_envelopes = Floats(request.reduced().log_envelopes());
    current.covered_masses = Floats(request.reduced().covered_masses());
  }
  return current;
}

template <typename T>
std::span<T> Part(std::span<T> array, size_t row) {
  return array.empty() ? array : array.subspan(row, 1);
}

// `log_probs` are those of the row; empty if REDUCED.
CurrentView Row(const CurrentView& current, size_t row, std::span<const float> log_probs) {
  CurrentView part;
  part.sampled_log_probs = Part(current.sampled_log_probs, row);
  part.log_probs = log_probs;
  part.log_envelopes = Part(current.log_envelopes, row);
  part.covered_masses = Part(current.covered_masses, row);
  return part;
}

OutputView Row(const OutputView& output, size_t row) {
  return {.decisions = Part(output.decisions, row),
          .acceptance_probabilities = Part(output.acceptance_probabilities, row),
          .modified_ratios = Part(output.modified_ratios, row)};
}

}  // namespace

CacheModel::CacheModel(const RecordPool& pool, const v1::RunConfig& config, bool durable)
    : pool_(pool),
      config_(config),
      durable_(durable),
      time_to_live_(config.time_to_live_seconds() > 0 ? absl::Seconds(config.time_to_live_seconds())
                                                      : absl::InfiniteDuration()) {}

// --- Coming and going -------------------------------------------------------------------------

uint64_t CacheModel::OldestFreshVersion() const {
  const uint64_t most = config_.max_staleness();
  return config_.has_max_staleness() && policy_version_ > most ? policy_version_ - most : 0;
}

bool CacheModel::IsStale(const Sequence& sequence) const {
  return !sequence.positions.empty() &&
         std::ranges::all_of(sequence.positions, [&](const auto& position) {
           return position.second.version < OldestFreshVersion();
         });
}

bool CacheModel::IsExpired(const Sequence& sequence) const {
  return now_ - sequence.last_used > time_to_live_;
}

bool CacheModel::GoesLast(const Sequence& sequence) const {
  return sequence.unread && !config_.evict_unread() && !durable_;
}

void CacheModel::Enter(const SequenceName& name) {
  Sequence& sequence = sequences_[name];
  sequence.in_memory = true;
  sequence.unread = true;
  sequence.last_used = now_;
  sequence.by_age = by_age_.insert(by_age_.end(), name);
}

void CacheModel::Leave(Sequence& sequence) {
  by_age_.erase(sequence.by_age);
  sequence.in_memory = false;
  ForgetDeadline(sequence);
  if (sequence.stored) return;
  sequence.positions.clear();
  sequence.sealed.reset();
}

void CacheModel::Drop(Sequence& sequence, v1::MissingReason reason) {
  const bool still_stored = durable_ && reason == v1::MISSING_REASON_EVICTED;
  if (!still_stored) {
    sequence.dropped = reason;
    sequence.stored = false;
    if (durable_ && !sequence.stored_reason.has_value()) sequence.stored_reason = reason;
  }
  Leave(sequence);
}

CacheModel::Sequence* CacheModel::Touch(const SequenceName& name) {
  const auto found = sequences_.find(name);
  if (found == sequences_.end() || !found->second.in_memory) return nullptr;
  Sequence& sequence = found->second;
  if (!sequence.deadline.has_value() && IsExpired(sequence)) {
    Drop(sequence, v1::MISSING_REASON_EXPIRED);
    return nullptr;
  }
  Use(sequence);
  return &sequence;
}

void CacheModel::Use(Sequence& sequence) {
  sequence.last_used = now_;
  by_age_.splice(by_age_.end(), by_age_, sequence.by_age);
}

std::optional<v1::MissingReason> CacheModel::Find(const SequenceName& name) {
  if (Sequence* sequence = Touch(name)) {
    sequence->unread = false;
    return std::nullopt;
  }
  const auto found = sequences_.find(name);
  if (found == sequences_.end()) return v1::MISSING_REASON_NEVER_ARRIVED;
  Sequence& sequence = found->second;
  if (!sequence.dropped.has_value()) sequence.dropped = sequence.stored_reason;
  if (sequence.dropped.has_value()) return sequence.dropped;
  if (!sequence.stored) return v1::MISSING_REASON_NEVER_ARRIVED;
  Enter(name);
  return std::nullopt;
}

void CacheModel::BringIn(const SequenceName& name) {
  if (durable_) Find(name);
}

CacheModel::Sequence* CacheModel::Open(const SequenceName& name) {
  if (Sequence* sequence = Touch(name)) return sequence;
  if (sequences_[name].dropped.has_value()) return nullptr;
  Enter(name);
  return &sequences_[name];
}

void CacheModel::ForgetIfEmpty(Sequence& sequence) {
  const bool held = durable_ || sequence.deadline.has_value();  // with a store, the batch holds it
  if (!held && sequence.positions.empty() && !sequence.sealed.has_value()) Leave(sequence);
}

bool CacheModel::Release(const SequenceName& name) {
  const auto found = sequences_.find(name);
  if (found != sequences_.end() && found->second.in_memory) {
    Drop(found->second, v1::MISSING_REASON_RELEASED);
    return true;
  }
  if (found == sequences_.end() || !found->second.stored) return false;
  Sequence& sequence = found->second;
  if (sequence.dropped.has_value() || sequence.stored_reason.has_value()) return false;
  sequence.dropped = v1::MISSING_REASON_RELEASED;
  sequence.stored_reason = v1::MISSING_REASON_RELEASED;
  sequence.stored = false;
  sequence.positions.clear();
  sequence.sealed.reset();
  return true;
}

void CacheModel::ForgetDeadline(Sequence& sequence) {
  if (sequence.deadline.has_value()) deadlines_.erase(*sequence.deadline);
  sequence.deadline.reset();
}

void CacheModel::Keep(const google::protobuf::RepeatedPtrField<v1::Slice>& slices,
                      double keep_seconds) {
  if (keep_seconds == 0) return;
  const absl::Time until = now_ + absl::Seconds(keep_seconds);
  for (const v1::Slice& slice : slices) {
    const SequenceName name = NameOf(slice);
    Sequence* sequence = Touch(name);
    if (sequence == nullptr) continue;
    if (sequence->deadline.has_value() && (*sequence->deadline)->first >= until) continue;
    ForgetDeadline(*sequence);
    sequence->deadline = deadlines_.emplace(until, name);
  }
}

std::optional<int64_t> CacheModel::AdvanceVersion(uint64_t version) {
  if (version < policy_version_) return std::nullopt;
  policy_version_ = version;
  int64_t dropped = 0;
  for (auto& [name, sequence] : sequences_) {
    if (!sequence.in_memory || sequence.deadline.has_value() || !IsStale(sequence)) continue;
    Drop(sequence, v1::MISSING_REASON_STALE);
    ++dropped;
  }
  return dropped;
}

bool CacheModel::Overdue() const {
  return DeadlineHasPassed() || std::ranges::any_of(by_age_, [&](const SequenceName& name) {
           const Sequence& sequence = sequences_.at(name);
           return !sequence.deadline.has_value() && (IsExpired(sequence) || IsStale(sequence));
         });
}

void CacheModel::DropExpired() {
  while (DeadlineHasPassed()) {
    Sequence& sequence = sequences_.at(deadlines_.begin()->second);
    ForgetDeadline(sequence);
    Use(sequence);
  }
  for (auto name = by_age_.begin(); name != by_age_.end();) {
    const SequenceName current = *name++;
    Sequence& sequence = sequences_.at(current);
    if (sequence.deadline.has_value() || in_use_.contains(current)) continue;
    if (IsStale(sequence)) {
      Drop(sequence, v1::MISSING_REASON_STALE);
    } else if (IsExpired(sequence)) {
      Drop(sequence, v1::MISSING_REASON_EXPIRED);
    }
  }
}

void CacheModel::OpenIncarnation() {
  policy_version_ = 0;
  sequences_.clear();
  by_age_.clear();
  deadlines_.clear();
}

void CacheModel::Restart() {
  if (!durable_) return OpenIncarnation();  // the first incarnation
  for (auto& [name, sequence] : sequences_) {
    if (sequence.in_memory) Leave(sequence);
    sequence.dropped.reset();
  }
}

std::optional<std::string> CacheModel::Settle(const Run& run, const std::set<SequenceName>& used) {
  const auto gone = [&](const SequenceName& name) { return run.BytesOf(name) == 0; };
  in_use_ = used;
  bool dropped_overdue = false;
  if (DeadlineHasPassed()) {
    dropped_overdue = run.Describe().kept_sequences != kept();
  } else {
    for (const SequenceName& name : by_age_) {
      const Sequence& sequence = sequences_.at(name);
      if (sequence.deadline.has_value() || used.contains(name)) continue;
      if (!IsStale(sequence) && !IsExpired(sequence)) continue;
      dropped_overdue = gone(name);
      break;
    }
  }
  if (dropped_overdue) DropExpired();
  in_use_.clear();

  evicted_ = 0;
  bool more = true;
  for (const bool last : {false, true}) {
    for (auto name = by_age_.begin(); more && name != by_age_.end();) {
      const SequenceName current = *name++;
      Sequence& sequence = sequences_.at(current);
      if (sequence.deadline.has_value() || used.contains(current)) continue;
      if (GoesLast(sequence) != last) continue;
      more = gone(current);  // else those that go later must be there
      if (!more) break;
      Drop(sequence, v1::MISSING_REASON_EVICTED);
      ++evicted_;
    }
  }
  for (const SequenceName& name : used) {
    const auto found = sequences_.find(name);
    const bool in_memory = found != sequences_.end() && found->second.in_memory;
    if (in_memory == gone(name)) {
      return absl::StrCat(ToString(name), in_memory ? " is not in memory" : " is in memory");
    }
  }
  return std::nullopt;
}

int64_t CacheModel::BytesNotKept(const Run& run) const {
  int64_t bytes = 0;
  for (const SequenceName& name : by_age_) {
    if (!sequences_.at(name).deadline.has_value()) bytes += run.BytesOf(name);
  }
  return bytes;
}

std::string CacheModel::Compare(const v1::Run& described) const {
  v1::Run expected = described;  // the bytes, and what only the run knows
  uint64_t sealed = 0;
  uint64_t unread = 0;
  uint64_t positions = 0;
  for (const SequenceName& name : by_age_) {
    unread += !durable_ && sequences_.at(name).unread;
    sealed += sequences_.at(name).sealed.has_value();
    positions += sequences_.at(name).positions.size();
  }
  expected.set_policy_version(policy_version_);
  expected.set_sequences(by_age_.size());
  expected.set_unread_sequences(unread);
  expected.set_sealed_sequences(sealed);
  expected.set_positions(positions);
  expected.set_kept_sequences(kept());
  if (expected.SerializeAsString() == described.SerializeAsString()) return "";
  return absl::StrCat("is ", described.ShortDebugString(), ", not ", expected.ShortDebugString());
}

// --- Appending --------------------------------------------------------------------------------

absl::StatusCode CacheModel::Append(const SequenceName& name, uint32_t first_position,
                                    uint64_t policy_version, std::span<const uint32_t> rows) {
  Sequence* sequence = Open(name);
  if (sequence == nullptr) return absl::StatusCode::kFailedPrecondition;
  if (sequence->sealed.has_value() && first_position + rows.size() > *sequence->sealed) {
    return absl::StatusCode::kFailedPrecondition;
  }
  for (uint32_t i = 0; i < rows.size(); ++i) {
    const auto there = sequence->positions.find(first_position + i);
    if (there == sequence->positions.end()) continue;
    if (!pool_.Same(there->second.row, rows[i]) || there->second.version != policy_version) {
      return absl::StatusCode::kAlreadyExists;
    }
  }
  for (uint32_t i = 0; i < rows.size(); ++i) {
    const uint32_t position = first_position + i;
    if (sequence->positions.contains(position)) continue;
    sequence->positions[position] = {rows[i], policy_version, pool_.Digest(rows[i], position)};
    sequence->stored = durable_;
  }
  return absl::StatusCode::kOk;
}

absl::StatusCode CacheModel::AppendInvalid(const SequenceName& name) {
  if (Sequence* sequence = Touch(name)) ForgetIfEmpty(*sequence);
  return absl::StatusCode::kInvalidArgument;
}

absl::StatusCode CacheModel::Seal(const SequenceName& name, uint32_t length) {
  Sequence* sequence = Open(name);
  if (sequence == nullptr) return absl::StatusCode::kFailedPrecondition;
  const bool fits =
      sequence->sealed.has_value() ? *sequence->sealed == length : length >= LengthOf(*sequence);
  if (!fits) return absl::StatusCode::kFailedPrecondition;
  sequence->sealed = length;
  sequence->stored = durable_;
  return absl::StatusCode::kOk;
}

uint32_t CacheModel::CommittedLength(const SequenceName& name) const {
  const auto found = sequences_.find(name);
  return found == sequences_.end() || !found->second.in_memory ? 0 : LengthOf(found->second);
}

// --- Reading ----------------------------------------------------------------------------------

uint32_t CacheModel::Length(const SequenceName& name) const {
  const auto found = sequences_.find(name);
  return found == sequences_.end() ? 0 : LengthOf(found->second);
}

std::optional<CacheModel::Recorded> CacheModel::At(const SequenceName& name,
                                                   uint32_t position) const {
  const auto found = sequences_.find(name);
  if (found == sequences_.end()) return std::nullopt;
  const auto there = found->second.positions.find(position);
  if (there == found->second.positions.end()) return std::nullopt;
  return there->second;
}

uint64_t CacheModel::Digest(const SequenceName& name, uint32_t first, uint32_t count,
                            uint64_t oldest_fresh) const {
  const auto found = sequences_.find(name);
  if (found == sequences_.end()) return 0;
  const std::map<uint32_t, Recorded>& positions = found->second.positions;
  uint64_t digest = 0;
  for (auto position = positions.lower_bound(first);
       position != positions.end() && position->first < first + count; ++position) {
    if (position->second.version >= oldest_fresh) digest += position->second.digest;
  }
  return digest;
}

bool CacheModel::HadDigest(uint64_t digest, const SequenceName& name, uint32_t first,
                           uint32_t count) const {
  std::set<uint64_t> bounds = {OldestFreshVersion()};
  for (uint32_t position = first; digest != 0 && position < first + count; ++position) {
    const auto recorded = At(name, position);
    if (recorded.has_value()) bounds.insert(std::min(OldestFreshVersion(), recorded->version));
  }
  return std::ranges::any_of(
      bounds, [&](uint64_t bound) { return Digest(name, first, count, bound) == digest; });
}

std::optional<v1::MissingReason> CacheModel::MissingAt(const Sequence& sequence,
                                                       uint32_t position) const {
  const auto there = sequence.positions.find(position);
  if (there == sequence.positions.end()) return v1::MISSING_REASON_NEVER_ARRIVED;
  if (there->second.version < OldestFreshVersion()) return v1::MISSING_REASON_STALE;
  return std::nullopt;
}

std::vector<v1::FetchedSlice> CacheModel::Fetch(const v1::FetchTopKRequest& request) {
  std::vector<std::optional<v1::MissingReason>> reasons;
  for (const v1::Slice& slice : request.slices()) reasons.push_back(Find(NameOf(slice)));
  Keep(request.slices(), request.keep_seconds());

  std::vector<v1::FetchedSlice> fetched(request.slices_size());
  for (int i = 0; i < request.slices_size(); ++i) {
    const v1::Slice& slice = request.slices(i);
    const SequenceName name = NameOf(slice);
    uint32_t length = slice.length();
    fetched[i].set_slice(i);
    if (reasons[i].has_value()) {
      fetched[i].set_length(length);
      fetched[i].set_record_digest(0);
      AddMissing(fetched[i], i, slice.first_position(), length, *reasons[i]);
      continue;
    }
    const Sequence& sequence = sequences_.at(name);
    if (length == 0) {
      const uint32_t end = sequence.sealed.value_or(LengthOf(sequence));
      length = end - std::min(end, slice.first_position());
    }
    fetched[i].set_length(length);
    fetched[i].set_record_digest(Digest(name, slice.first_position(), length));
    for (uint32_t j = 0; j < length; ++j) {
      const uint32_t position = slice.first_position() + j;
      const auto reason = MissingAt(sequence, position);
      if (reason.has_value()) AddMissing(fetched[i], i, position, 1, *reason);
    }
  }
  return fetched;
}

absl::StatusOr<v1::EvaluateResponse> CacheModel::Evaluate(const v1::EvaluateRequest& request) {
  std::vector<std::optional<v1::MissingReason>> reasons;
  size_t count = 0;
  for (const v1::Slice& slice : request.slices()) {
    reasons.push_back(Find(NameOf(slice)));
    count += slice.length();
  }
  Keep(request.slices(), request.keep_seconds());

  EvaluateParameters parameters{.top_k = static_cast<int>(request.top_k()), .draw = request.draw()};
  if (parameters.top_k == 0) parameters.top_k = static_cast<int>(config_.top_k());
  const CurrentView current = CurrentOf(request);
  const bool ratios = std::ranges::count(request.outputs(), v1::OUTPUT_RATIOS) > 0;

  v1::EvaluateResponse response;
  OutputView output;
  output.decisions = ResizeArray<Decision>(*response.mutable_decisions(), count);
  output.acceptance_probabilities =
      ResizeArray<float>(*response.mutable_acceptance_probabilities(), count);
  if (ratios) output.modified_ratios = ResizeArray<float>(*response.mutable_ratios(), count);
  Sums all;
  size_t offset = 0;
  size_t value = 0;
  for (int i = 0; i < request.slices_size(); ++i) {
    const v1::Slice& slice = request.slices(i);
    const SequenceName name = NameOf(slice);
    std::optional<v1::MissingReason> whole = reasons[i];
    if (!whole.has_value() && slice.has_record_digest() &&
        !HadDigest(slice.record_digest(), name, slice.first_position(), slice.length())) {
      if (!durable_ || slice.record_digest() != 0) return absl::FailedPreconditionError("digest");
      whole = v1::MISSING_REASON_STORE_DOWN;
    }
    Sums sums;
    for (uint32_t j = 0; j < slice.length(); ++j, ++offset) {
      const uint32_t position = slice.first_position() + j;
      const size_t values = current.reduced() ? 0 : request.gathered().counts()[offset];
      const auto log_probs = current.log_probs.subspan(value, values);
      value += values;
      const auto reason = whole.has_value() ? whole : MissingAt(sequences_.at(name), position);
      if (reason.has_value()) {
        output.decisions[offset] = Decision::kMissing;
        ++sums.missing;
        AddMissing(response, i, position, 1, *reason);
      } else {
        Score(parameters, name, position, Row(current, offset, log_probs), Row(output, offset),
              sums);
      }
    }
    *response.add_slice_totals() = ToTotals(sums);
    all += sums;
  }
  if (ratios && all.missing > 0) return absl::FailedPreconditionError("ratios");
  *response.mutable_totals() = ToTotals(all);
  response.set_newly_counted(count);
  return response;
}

void CacheModel::Score(const EvaluateParameters& parameters, const SequenceName& name,
                       uint32_t position, const CurrentView& current, const OutputView& output,
                       Sums& sums) const {
  const uint32_t row = sequences_.at(name).positions.at(position).row;
  const BackendRange range{.sequence_key = SequenceKey(config_.seed(), name.attempt, name.id),
                           .first_position = position,
                           .behavior = pool_.Behavior(row),
                           .current = current,
                           .output = output,
                           .sums = &sums};
  ScalarBackend().Evaluate(parameters, {&range, 1});
}

}  // namespace sis
