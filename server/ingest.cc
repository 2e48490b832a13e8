#include "server/ingest.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/crc32c.h"
#include "kernels/validate.h"
#include "server/arrays.h"
#include "server/log_entries.h"
#include "server/slices.h"
#include "server/stored_cache.h"

namespace sis {
namespace {

// Memory comes back as trainers finish steps, so soon, but not at once.
constexpr double kRetrySeconds = 0.5;

absl::Status CheckSampling(const v1::Sampling& sampling) {
  using v1::Sampling;
  if (sampling.log_probs() != Sampling::RAW && sampling.log_probs() != Sampling::PROCESSED) {
    return absl::InvalidArgumentError(
        absl::StrCat("sampling.log_probs: ", static_cast<int>(sampling.log_probs()),
                     " is neither RAW nor PROCESSED"));
  }
  if (!(std::isfinite(sampling.temperature()) && sampling.temperature() > 0)) {
    return absl::InvalidArgumentError(absl::StrCat("sampling.temperature: ", sampling.temperature(),
                                                   " is not finite and above 0"));
  }
  if (sampling.has_top_p() && !(sampling.top_p() > 0 && sampling.top_p() <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("sampling.top_p: ", sampling.top_p(), " is not in (0, 1]"));
  }
  if (sampling.has_top_k() && sampling.top_k() < -1) {
    return absl::InvalidArgumentError(
        absl::StrCat("sampling.top_k: ", sampling.top_k(), " is below -1"));
  }
  if (sampling.has_min_p() && !(sampling.min_p() >= 0 && sampling.min_p() <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("sampling.min_p: ", sampling.min_p(), " is not in [0, 1]"));
  }
  if (sampling.log_probs() == Sampling::PROCESSED) return absl::OkStatus();

  const auto refuse = [](absl::string_view field, auto value) {
    return absl::InvalidArgumentError(
        absl::StrCat("sampling.", field, ": ", value,
                     " changes the distribution, so RAW log-probs are not the behaviour policy's"));
  };
  if (sampling.temperature() != 1) return refuse("temperature", sampling.temperature());
  if (sampling.has_top_p() && sampling.top_p() != 1) return refuse("top_p", sampling.top_p());
  if (sampling.top_k() > 0) return refuse("top_k", sampling.top_k());
  if (sampling.min_p() != 0) return refuse("min_p", sampling.min_p());
  if (sampling.presence_penalty() != 0) {
    return refuse("presence_penalty", sampling.presence_penalty());
  }
  if (sampling.frequency_penalty() != 0) {
    return refuse("frequency_penalty", sampling.frequency_penalty());
  }
  if (sampling.has_repetition_penalty() && sampling.repetition_penalty() != 1) {
    return refuse("repetition_penalty", sampling.repetition_penalty());
  }
  if (sampling.logit_bias()) return refuse("logit_bias", "true");
  if (sampling.grammar()) return refuse("grammar", "true");
  return absl::OkStatus();
}

uint32_t BlockCrc(const v1::Block& block) {
  uint32_t crc = 0;
  for (const std::string* array : {&block.sampled_ids(), &block.sampled_log_probs(),
                                   &block.top_k_ids(), &block.top_k_log_probs()}) {
    crc = ExtendCrc32c(crc, std::as_bytes(std::span(*array)));
  }
  return crc;
}

// The arrays of a block, with their lengths checked.
absl::StatusOr<RecordView> ParseRecords(const v1::Block& block, const Run& run) {
  const size_t count = block.sampled_ids().size() / sizeof(int32_t);
  const size_t slots = run.config().top_k();
  if (block.sampled_ids().empty()) return absl::InvalidArgumentError("sampled_ids: empty");
  if (uint64_t{block.first_position()} + count >
      static_cast<uint64_t>(run.limits().max_positions)) {
    return absl::InvalidArgumentError(absl::StrCat("first_position ", block.first_position(), " + ",
                                                   count, " positions is beyond ",
                                                   run.limits().max_positions));
  }
  const auto sampled_ids = ArrayOf<int32_t>("sampled_ids", block.sampled_ids(), count);
  if (!sampled_ids.ok()) return sampled_ids.status();
  const auto sampled = ArrayOf<float>("sampled_log_probs", block.sampled_log_probs(), count);
  if (!sampled.ok()) return sampled.status();
  const auto ids = ArrayOf<int32_t>("top_k_ids", block.top_k_ids(), count * slots);
  if (!ids.ok()) return ids.status();
  const auto log_probs = ArrayOf<float>("top_k_log_probs", block.top_k_log_probs(), count * slots);
  if (!log_probs.ok()) return log_probs.status();
  if (block.has_crc32c() && BlockCrc(block) != block.crc32c()) {
    return absl::InvalidArgumentError(
        absl::StrCat("crc32c: ", block.crc32c(), ", but the arrays have ", BlockCrc(block)));
  }
  return RecordView{*sampled_ids, *sampled, *ids, *log_probs};
}

absl::Status InSequence(const SequenceName& name, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(ToString(name), ": ", status.message()));
}

SequenceName NameOf(const v1::Ack& ack) { return {ack.sequence().id(), ack.sequence().attempt()}; }

// Refused because of what is there already.
bool IsConflict(const v1::Ack& ack) {
  const auto code = static_cast<absl::StatusCode>(ack.code());
  return code == absl::StatusCode::kAlreadyExists || code == absl::StatusCode::kFailedPrecondition;
}

int64_t ArrayBytes(const v1::Block& block) {
  return static_cast<int64_t>(block.sampled_ids().size() + block.sampled_log_probs().size() +
                              block.top_k_ids().size() + block.top_k_log_probs().size());
}

const v1::SequenceRef& SequenceOf(const v1::AppendEntry& entry) {
  switch (entry.entry_case()) {
    case v1::AppendEntry::kBlock:
      return entry.block().sequence();
    case v1::AppendEntry::kTruncate:
      return entry.truncate().sequence();
    case v1::AppendEntry::kSeal:
      return entry.seal().sequence();
    case v1::AppendEntry::ENTRY_NOT_SET:
      break;
  }
  return v1::SequenceRef::default_instance();
}

}  // namespace

absl::StatusOr<Ingest> Ingest::Open(RunRegistry& registry, const v1::AppendHeader& header) {
  absl::StatusOr<std::shared_ptr<Run>> run = registry.FindOrLearn(header.run());
  if (!run.ok()) return run.status();
  if (header.worker().size() > kMaxIdBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("header.worker: ", header.worker().size(), " bytes, more than ", kMaxIdBytes));
  }
  if (header.vocabulary_size() != (*run)->config().vocabulary_size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("header.vocabulary_size: ", header.vocabulary_size(), ", but run '",
                     (*run)->id(), "' has ", (*run)->config().vocabulary_size()));
  }
  if (absl::Status status = CheckSampling(header.sampling()); !status.ok()) return status;
  return Ingest(registry, *std::move(run));
}

absl::StatusOr<std::optional<RoomWanted>> Ingest::Apply(const v1::AppendBatch& batch, Turn turn,
                                                        v1::AppendResponse& response) {
  v1::RunRef ref;
  ref.set_run_id(run_->id());
  ref.set_incarnation(run_->incarnation());
  if (absl::Status status = registry_->Find(ref).status(); !status.ok()) return status;
  response.mutable_acks()->Reserve(batch.entries_size());
  turn_ = turn;
  while (response.acks_size() < batch.entries_size()) {
    const int entry = response.acks_size();
    ApplyEntry(batch.entries(entry), *response.add_acks());
    if (lacking_.has_value()) {
      lacking_->entry = entry;
      response.mutable_acks()->RemoveLast();
      break;
    }
    if (turn_ == Turn::kServed) turn_ = Turn::kArrived;
  }
  run_->metrics().AddIngested(std::exchange(positions_added_, 0),
                              std::exchange(bytes_accepted_, 0));
  return std::exchange(lacking_, std::nullopt);
}

absl::Status Ingest::MakeRoom(const SequenceName& name, int64_t bytes) {
  const int64_t own = run_->BytesOf(name);
  for (const ByteBudget* budget : {&std::as_const(run_->budget()), &registry_->budget()}) {
    // Whatever else is in the way will go, but the sequence itself can't make room for its own
    // blocks.
    if (own + bytes > budget->limit()) {
      return absl::ResourceExhaustedError(absl::StrCat("with ", bytes, " bytes more it would have ",
                                                       own + bytes, ", and ", budget->limit(),
                                                       " is the most"));
    }
  }
  const ByteBudget* shortage =
      turn_ == Turn::kArrived ? registry_->room_queue().Contested(*run_) : nullptr;
  if (shortage == nullptr) {
    // Where the bytes would fit already, the arena has no room of the right size.
    const bool arena_short =
        run_->budget().Lacking(bytes) == 0 && registry_->budget().Lacking(bytes) == 0;
    if (!arena_short) {
      shortage = registry_->Reclaim(*run_, bytes);
    } else if (!registry_->EvictOldest()) {
      shortage = &registry_->budget();
    }
  }
  if (shortage == nullptr) return absl::OkStatus();
  if (turn_ != Turn::kOutOfTime) lacking_ = {run_, bytes, shortage, 0};
  return absl::ResourceExhaustedError(absl::StrCat(bytes, " bytes are not to be had"));
}

absl::StatusOr<std::shared_ptr<Sequence>> Ingest::Open(const SequenceName& name,
                                                       int64_t bytes_if_new) {
  absl::StatusOr<std::shared_ptr<Sequence>> sequence = run_->FindOrCreate(name);
  while (absl::IsResourceExhausted(sequence.status())) {
    if (absl::Status room = MakeRoom(name, bytes_if_new); !room.ok()) return room;
    sequence = run_->FindOrCreate(name);
  }
  return sequence;
}

absl::Status Ingest::ApplyBlock(const SequenceName& name, const v1::Block& block) {
  const absl::StatusOr<RecordView> records = ParseRecords(block, *run_);
  if (!records.ok()) return records.status();
  ranks_.resize(records->sampled_ids.size());
  absl::Status status = ValidateRecords(*records, static_cast<int>(run_->config().top_k()),
                                        static_cast<int32_t>(run_->config().vocabulary_size()),
                                        block.first_position(), ranks_);
  if (!status.ok()) return status;

  const auto count = static_cast<uint32_t>(ranks_.size());
  const absl::StatusOr<std::shared_ptr<Sequence>> sequence =
      Open(name, Sequence::BytesWithBlock(FormatOf(run_->config()), block.first_position(), count));
  if (!sequence.ok()) return sequence.status();
  const auto new_bytes = [&] {
    return (*sequence)->BytesToAppend(block.first_position(), count, block.policy_version());
  };
  if (turn_ == Turn::kArrived && registry_->room_queue().Contested(*run_) != nullptr) {
    const int64_t bytes = new_bytes();
    if (bytes > 0) status = MakeRoom(name, bytes);
    if (!status.ok()) return status;
  }
  int64_t added = 0;
  const auto append = [&]() -> absl::StatusOr<std::vector<LogEntry>> {
    absl::Status appended = (*sequence)->Append(block.first_position(), block.policy_version(),
                                                *records, ranks_, &added);
    if (!appended.ok()) return appended;
    if (added == 0 || !has_store()) return std::vector<LogEntry>();
    return BlockEntries((*sequence)->format(), block.first_position(), block.policy_version(),
                        *records, ranks_);
  };
  status = Change(name, *sequence, append);
  // Another thread may take what was made free: then once more.
  while (absl::IsResourceExhausted(status)) {
    status = MakeRoom(name, new_bytes());
    if (!status.ok()) return status;
    status = Change(name, *sequence, append);
  }
  if (!status.ok()) return status;
  committed_length_ = (*sequence)->committed_length();
  positions_added_ += added;
  bytes_accepted_ += ArrayBytes(block);
  return status;
}

absl::Status Ingest::ApplySeal(const SequenceName& name, uint32_t length) {
  if (length > run_->limits().max_positions) {
    return absl::InvalidArgumentError(
        absl::StrCat("seal.length ", length, " is beyond ", run_->limits().max_positions));
  }
  const absl::StatusOr<std::shared_ptr<Sequence>> sequence = Open(name, Sequence::kBaseBytes);
  if (!sequence.ok()) return sequence.status();
  return Change(name, *sequence, [&]() -> absl::StatusOr<std::vector<LogEntry>> {
    const bool was_sealed = (*sequence)->sealed();
    if (absl::Status status = (*sequence)->Seal(length); !status.ok()) return status;
    if (was_sealed) return std::vector<LogEntry>();
    if (has_store()) sealed_.push_back(name);
    return std::vector<LogEntry>{{.kind = LogEntry::Kind::kSeal, .position = length}};
  });
}

absl::Status Ingest::ApplyTruncate(const SequenceName& name, uint32_t length) {
  const absl::StatusOr<std::shared_ptr<Sequence>> sequence = Open(name, Sequence::kBaseBytes);
  if (!sequence.ok()) return sequence.status();
  return Change(name, *sequence, [&]() -> absl::StatusOr<std::vector<LogEntry>> {
    const bool drops = (*sequence)->committed_length() > length;
    if (absl::Status status = (*sequence)->Truncate(length); !status.ok()) return status;
    if (!drops) return std::vector<LogEntry>();
    return std::vector<LogEntry>{{.kind = LogEntry::Kind::kTruncate, .position = length}};
  });
}

absl::Status Ingest::Change(const SequenceName& name, const std::shared_ptr<Sequence>& sequence,
                            absl::FunctionRef<absl::StatusOr<std::vector<LogEntry>>()> change) {
  SequenceLog& log = sequence->log();
  WriterLock order(log.order);
  absl::StatusOr<std::vector<LogEntry>> entries = change();
  if (!entries.ok()) return entries.status();
  if (has_store()) {
    held_[name] = sequence;
    if (entries->empty()) unchanged_.insert(name);
    for (LogEntry& entry : *entries) entry.mark = run_->stored()->NextMark();
    std::ranges::move(*entries, std::back_inserter(log.unwritten));
  }
  return absl::OkStatus();
}

void Ingest::BringIn(const v1::AppendBatch& batch) {
  for (const v1::AppendEntry& entry : batch.entries()) {
    const absl::StatusOr<SequenceName> name = ParseSequence(SequenceOf(entry));
    if (!name.ok() || held_.contains(*name) || unavailable_.contains(*name)) continue;
    absl::StatusOr<std::shared_ptr<Sequence>> sequence = run_->stored()->FindToAppend(*run_, *name);
    if (!sequence.ok()) {
      unavailable_[*name] = InSequence(*name, sequence.status());
    } else if (*sequence != nullptr) {
      held_[*name] = *std::move(sequence);
    }
  }
}

absl::flat_hash_set<SequenceName> Ingest::WriteHeld(const v1::AppendResponse& response) {
  absl::flat_hash_set<SequenceName> behind;
  for (const auto& [name, sequence] : held_) {
    absl::Status status = run_->stored()->Write(*run_, name, *sequence);
    if (absl::IsAborted(status)) behind.insert(name);
    if (!status.ok()) unavailable_[name] = InSequence(name, status);
  }
  for (const v1::Ack& ack : response.acks()) {
    if (IsConflict(ack)) unchanged_.insert(NameOf(ack));
  }
  // Decided by what memory has, and nothing was written that would have shown that the store is
  // ahead.
  for (const SequenceName& name : unchanged_) {
    const auto held = held_.find(name);
    if (held == held_.end() || unavailable_.contains(name)) continue;
    const absl::StatusOr<bool> moved = run_->stored()->Follow(*run_, name, *held->second);
    if (!moved.ok()) {
      unavailable_[name] = InSequence(name, moved.status());
    } else if (*moved) {
      behind.insert(name);
    }
  }
  unchanged_.clear();
  return behind;
}

void Ingest::Store(const v1::AppendBatch& batch, v1::AppendResponse& response) {
  const absl::flat_hash_set<SequenceName> behind = WriteHeld(response);
  if (!behind.empty()) {
    for (const SequenceName& name : behind) {
      held_.erase(name);
      unavailable_.erase(name);
    }
    BringIn(batch);
    turn_ = Turn::kOutOfTime;
    for (int i = 0; i < response.acks_size(); ++i) {
      if (!behind.contains(NameOf(response.acks(i)))) continue;
      response.mutable_acks(i)->Clear();
      ApplyEntry(batch.entries(i), *response.mutable_acks(i));
    }
    for (const SequenceName& name : WriteHeld(response)) {
      unavailable_[name] = absl::UnavailableError("other replicas change it: try again");
    }
  }
  for (v1::Ack& ack : *response.mutable_acks()) {
    const auto why = unavailable_.find(NameOf(ack));
    if (why == unavailable_.end() || (ack.code() != 0 && !IsConflict(ack))) continue;
    Refuse(why->second, ack);
  }
  for (const SequenceName& name : sealed_) {
    const auto held = held_.find(name);
    if (held != held_.end() && !unavailable_.contains(name)) {
      run_->stored()->SealBehind(run_, name, held->second);
    }
  }
  sealed_.clear();
  held_.clear();
  unavailable_.clear();
}

void Ingest::Refuse(const absl::Status& status, v1::Ack& ack) {
  ack.set_code(static_cast<int32_t>(status.code()));
  ack.set_message(std::string(status.message()));
  if (absl::IsResourceExhausted(status) || absl::IsUnavailable(status)) {
    ack.set_retry_seconds(kRetrySeconds);
  }
  run_->metrics().AddRefusedEntry(status.code());
}

void Ingest::ApplyEntry(const v1::AppendEntry& entry, v1::Ack& ack) {
  committed_length_.reset();
  *ack.mutable_sequence() = SequenceOf(entry);
  const absl::Status status = [&]() -> absl::Status {
    if (entry.entry_case() == v1::AppendEntry::ENTRY_NOT_SET) {
      return absl::InvalidArgumentError("entry: neither block, truncate nor seal");
    }
    const absl::StatusOr<SequenceName> name = ParseSequence(SequenceOf(entry));
    if (!name.ok()) return name.status();
    if (const auto why = unavailable_.find(*name); why != unavailable_.end()) return why->second;
    absl::Status applied;
    if (entry.has_block()) {
      applied = ApplyBlock(*name, entry.block());
    } else if (entry.has_seal()) {
      applied = ApplySeal(*name, entry.seal().length());
    } else {
      applied = ApplyTruncate(*name, entry.truncate().length());
    }
    if (!applied.ok() || entry.has_truncate()) run_->ForgetIfEmpty(*name);
    if (applied.ok()) return applied;
    return InSequence(*name, applied);
  }();
  if (lacking_.has_value()) return;
  if (!status.ok()) Refuse(status, ack);
  ack.set_committed_length(
      committed_length_.has_value()
          ? *committed_length_
          : run_->CommittedLength({ack.sequence().id(), ack.sequence().attempt()}));
}

}  // namespace sis
