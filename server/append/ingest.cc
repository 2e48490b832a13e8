#include "server/append/ingest.h"

#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/block/check.h"
#include "server/append/annotation.h"
#include "server/append/sampling.h"
#include "server/cache/limits.h"
#include "server/messages/slices.h"
#include "server/store/sequence_parts.h"
#include "server/store/stored_parts.h"

namespace sis {
namespace {

// Trainers free memory whenever they finish a step: soon, but not immediately.
constexpr double kRetrySeconds = 0.5;

absl::Status InSequence(SequenceNameView name, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(ToString(name), ": ", status.message()));
}

// Returns OK if the block's header fits the run.
absl::Status CheckFits(const BlockHeader& header, const Run& run) {
  const auto refuse = [&](std::string_view field, uint64_t value, std::string_view own,
                          uint64_t of_run) {
    return absl::InvalidArgumentError(absl::StrCat("block, ", std::string(field), ": ", value,
                                                   ", but run '", run.id(), "' has ",
                                                   std::string(own), " ", of_run));
  };
  const RunConfig& config = run.config();
  if (header.slots != config.top_k) return refuse("slots", header.slots, "top_k", config.top_k);
  if (header.vocabulary_size != config.vocabulary_size) {
    return refuse("vocabulary_size", header.vocabulary_size, "vocabulary_size",
                  config.vocabulary_size);
  }
  if (int64_t{header.first_position} + header.positions > kMaxPositions) {
    return absl::InvalidArgumentError(absl::StrCat("block, first_position: ", header.first_position,
                                                   " + ", header.positions, " positions is beyond ",
                                                   kMaxPositions));
  }
  return absl::OkStatus();
}

SequenceName Copy(SequenceNameView name) { return {std::string(name.id), name.attempt}; }

}  // namespace

absl::StatusOr<Ingest> Ingest::Open(StoredRuns& runs, const v1::AppendHeader& header,
                                    const Caller& caller) {
  absl::StatusOr<std::shared_ptr<Run>> run = runs.Find(header.run(), caller);
  if (!run.ok()) return run.status();
  if (header.worker().size() > kMaxIdBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("header.worker: ", header.worker().size(), " bytes, more than ", kMaxIdBytes));
  }
  if (header.vocabulary_size() != (*run)->config().vocabulary_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("header.vocabulary_size: ", header.vocabulary_size(), ", but run '",
                     (*run)->id(), "' has ", (*run)->config().vocabulary_size));
  }
  if (absl::Status status = CheckSampling(header.sampling()); !status.ok()) return status;
  v1::Sampling sampling = header.sampling();
  sampling.DiscardUnknownFields();  // they may have any size
  (*run)->recent_events().NoteSampling(sampling.SerializeAsString());
  return Ingest(runs, *std::move(run));
}

absl::Status Ingest::Apply(const v1::AppendBatch& batch, std::vector<EntryAck>& acks) {
  absl::Status present = registry_->Find(run_->id(), run_->incarnation()).status();
  if (!present.ok()) return present;
  acks.reserve(batch.entries_size());
  for (int entry = 0; entry < batch.entries_size(); ++entry) {
    ahead_.Prepare(*run_, batch, entry);
    acks.push_back(ApplyEntry(batch.entries(entry)));
    ahead_.Advance();
  }
  ahead_.Forget();
  if (positions_added_ > 0) run_->recent_events().NoteAppend(run_->now());
  run_->counters().AddIngested(std::exchange(positions_added_, 0), std::exchange(slots_added_, 0),
                               std::exchange(bytes_accepted_, 0));
  return absl::OkStatus();
}

absl::Status Ingest::MakeRoom(SequenceNameView name, int64_t bytes) {
  ahead_.Forget();
  const int64_t own = run_->BytesOf(name);
  for (const ByteBudget* budget : {&std::as_const(run_->budget()), &registry_->budget()}) {
    // Other data can be evicted, but a sequence can't make room for its own blocks.
    if (own + bytes > budget->limit()) {
      return absl::ResourceExhaustedError(absl::StrCat("sequence: too large, got ", own + bytes,
                                                       " bytes with this entry; must be at most ",
                                                       budget->limit()));
    }
  }
  if (registry_->MakeRoom(*run_, bytes, Evict::kRead) == nullptr) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("no space for ", bytes, " bytes: all sequences are kept, in use or unread"));
}

absl::StatusOr<std::shared_ptr<Sequence>> Ingest::Open(SequenceNameView name,
                                                       absl::FunctionRef<int64_t()> bytes_if_new) {
  if (ahead_.next() != nullptr) return ahead_.next();
  const SequenceName own_name = Copy(name);
  absl::StatusOr<std::shared_ptr<Sequence>> sequence = run_->FindOrCreate(own_name);
  while (absl::IsResourceExhausted(sequence.status())) {
    if (absl::Status room = MakeRoom(name, bytes_if_new()); !room.ok()) return room;
    sequence = run_->FindOrCreate(own_name);
  }
  return sequence;
}

absl::Status Ingest::ApplyBlock(SequenceNameView name, std::string_view bytes) {
  const absl::StatusOr<BlockView> block = CheckBlock(std::as_bytes(std::span(bytes)));
  if (!block.ok()) return block.status();
  if (absl::Status fits = CheckFits(block->header, *run_); !fits.ok()) return fits;
  const absl::StatusOr<std::shared_ptr<Sequence>> sequence =
      Open(name, [&] { return run_->BaseBytes(name) + CachedBlock::Charge(bytes.size()); });
  if (!sequence.ok()) return sequence.status();
  const auto new_bytes = [&] { return (*sequence)->BytesToAppend(*block); };
  Sequence::Appended appended;
  const auto append = [&]() -> absl::StatusOr<std::vector<StoredPart>> {
    absl::Status added = (*sequence)->Append(*block, &appended);
    if (!added.ok()) return added;
    std::vector<StoredPart> parts;
    if (!has_store()) return parts;
    for (const Sequence::Range& range : appended.ranges) {
      parts.push_back(BlockPart(*block, range.index, range.count));
    }
    return parts;
  };
  const absl::Status status = ChangeWithRoom(name, *sequence, new_bytes, append);
  if (!status.ok()) return status;
  committed_length_ = appended.committed_length;
  positions_added_ += appended.positions;
  slots_added_ += appended.slots;
  bytes_accepted_ += static_cast<int64_t>(bytes.size());
  return absl::OkStatus();
}

absl::Status Ingest::ApplyGap(SequenceNameView name, const v1::Gap& gap) {
  if (!v1::MissingReason_IsValid(gap.reason()) ||
      !IsReasonOfGap(static_cast<MissingReason>(gap.reason()))) {
    return absl::InvalidArgumentError(
        absl::StrCat("gap.reason: ", static_cast<int>(gap.reason()),
                     "; must be INVALID_LOG_PROB (8), NO_LOG_PROB (9), INFINITE_LOG_PROB (10) or "
                     "UNKNOWN_VERSION (11)"));
  }
  if (gap.length() == 0 || int64_t{gap.first_position()} + gap.length() > kMaxPositions) {
    return absl::InvalidArgumentError(
        absl::StrCat("gap.length: ", gap.length(), " from position ", gap.first_position(),
                     "; must be at least 1, and end at ", kMaxPositions, " or before"));
  }
  const absl::StatusOr<std::shared_ptr<Sequence>> sequence =
      Open(name, [&] { return run_->BaseBytes(name) + Sequence::kGapBytes; });
  if (!sequence.ok()) return sequence.status();
  const Missing missing{gap.first_position(), gap.length(),
                        static_cast<MissingReason>(gap.reason())};
  const auto append = [&]() -> absl::StatusOr<std::vector<StoredPart>> {
    const absl::StatusOr<bool> added = (*sequence)->AppendGap(missing);
    if (!added.ok()) return added.status();
    std::vector<StoredPart> parts;
    if (*added) parts.push_back(GapPart(missing));
    return parts;
  };
  return ChangeWithRoom(
      name, *sequence, [] { return Sequence::kGapBytes; }, append);
}

absl::Status Ingest::ApplySeal(SequenceNameView name, const v1::Seal& seal) {
  const uint32_t length = seal.length();
  if (length > kMaxPositions) {
    return absl::InvalidArgumentError(
        absl::StrCat("seal.length ", length, " is beyond ", kMaxPositions));
  }
  if (seal.has_annotation()) {
    if (absl::Status status = CheckAnnotation(seal.annotation()); !status.ok()) return status;
  }
  const absl::StatusOr<std::shared_ptr<Sequence>> sequence =
      Open(name, [&] { return run_->BaseBytes(name); });
  if (!sequence.ok()) return sequence.status();
  const auto annotate = [&](const std::string& before) {
    return seal.has_annotation() ? Annotated(before, seal.annotation()) : before;
  };
  const auto new_bytes = [&] {
    const std::string before = (*sequence)->annotation();
    return Sequence::AnnotationBytes(annotate(before)) - Sequence::AnnotationBytes(before);
  };
  const auto apply = [&]() -> absl::StatusOr<std::vector<StoredPart>> {
    absl::StatusOr<Sequence::Sealed> sealed = (*sequence)->Seal(length, annotate);
    if (!sealed.ok()) return sealed.status();
    if (!sealed->first && !sealed->annotated) return std::vector<StoredPart>();
    if (sealed->first && has_store()) sealed_.push_back(Copy(name));
    return std::vector<StoredPart>{SealPart(length, sealed->annotation)};
  };
  return ChangeWithRoom(name, *sequence, new_bytes, apply);
}

absl::Status Ingest::Change(SequenceNameView name, const std::shared_ptr<Sequence>& sequence,
                            absl::FunctionRef<absl::StatusOr<std::vector<StoredPart>>()> change) {
  if (!has_store()) return change().status();
  const auto [held, is_first] = held_.try_emplace(Copy(name), sequence);
  if (held->second != sequence) {
    const absl::Status status = absl::UnavailableError(
        "another server stored a conflicting part during this batch, try again");
    unavailable_[held->first] = InSequence(name, status);
    return status;
  }
  SequenceParts& parts = PartsOf(*sequence);
  WriterLock order(parts.order);
  absl::StatusOr<std::vector<StoredPart>> changed = change();
  if (!changed.ok()) {
    if (is_first) held_.erase(held);
    return changed.status();
  }
  for (StoredPart& part : *changed) parts.unwritten.push_back(std::move(part));
  return absl::OkStatus();
}

absl::Status Ingest::ChangeWithRoom(
    SequenceNameView name, const std::shared_ptr<Sequence>& sequence,
    absl::FunctionRef<int64_t()> new_bytes,
    absl::FunctionRef<absl::StatusOr<std::vector<StoredPart>>()> change) {
  absl::Status status = Change(name, sequence, change);
  // Another thread may take the freed bytes, so this may need several rounds.
  while (absl::IsResourceExhausted(status)) {
    if (absl::Status room = MakeRoom(name, new_bytes()); !room.ok()) return room;
    status = Change(name, sequence, change);
  }
  return status;
}

void Ingest::BringIn(const v1::AppendBatch& batch) {
  for (const v1::AppendEntry& entry : batch.entries()) {
    if (!CheckSequenceId(entry.sequence().id()).ok()) continue;
    const SequenceName name = Copy(NameIn(entry));
    if (held_.contains(name) || unavailable_.contains(name)) continue;
    absl::StatusOr<std::shared_ptr<Sequence>> sequence = stored_->FindToAppend(*run_, name);
    if (!sequence.ok()) {
      unavailable_[name] = InSequence(name, sequence.status());
    } else if (*sequence != nullptr) {
      held_[name] = *std::move(sequence);
    }
  }
}

void Ingest::Store(const v1::AppendBatch& batch, std::vector<EntryAck>& acks) {
  for (const auto& [name, sequence] : held_) {
    absl::Status status = stored_->Write(*run_, name, *sequence);
    if (!status.ok()) unavailable_[name] = InSequence(name, status);
  }
  for (size_t i = 0; i < acks.size(); ++i) {
    const auto why = unavailable_.find(Copy(NameIn(batch.entries(static_cast<int>(i)))));
    if (why == unavailable_.end() || !acks[i].status.ok()) continue;
    const uint32_t committed_length = acks[i].committed_length;
    acks[i] = Refusal(why->second);
    acks[i].committed_length = committed_length;
  }
  for (const SequenceName& name : sealed_) {
    const auto held = held_.find(name);
    if (held != held_.end() && !unavailable_.contains(name)) {
      stored_->MergeBehind(run_, name, held->second);
    }
  }
  sealed_.clear();
  held_.clear();
  unavailable_.clear();
  // If the run was closed, its data was removed, maybe before this batch was written.
  const absl::Status present = registry_->Find(run_->id(), run_->incarnation()).status();
  if (!present.ok()) stored_->DropRunBehind(*run_);
}

EntryAck Ingest::Refusal(absl::Status status) {
  run_->counters().AddRefusedEntry(status.code());
  // Refusals for lack of room are normal while workers are ahead of the trainer, and no events.
  if (!absl::IsResourceExhausted(status)) {
    run_->recent_events().NoteRefusedEntry(status.code(), run_->now());
  }
  EntryAck ack{.status = std::move(status)};
  if (absl::IsResourceExhausted(ack.status) || absl::IsUnavailable(ack.status)) {
    ack.retry_seconds = kRetrySeconds;
  }
  return ack;
}

EntryAck Ingest::ApplyEntry(const v1::AppendEntry& entry) {
  committed_length_.reset();
  const SequenceNameView name = NameIn(entry);
  const absl::Status status = [&]() -> absl::Status {
    if (entry.entry_case() == v1::AppendEntry::ENTRY_NOT_SET) {
      return absl::InvalidArgumentError("entry: neither block, gap nor seal");
    }
    if (absl::Status id = CheckSequenceId(entry.sequence().id()); !id.ok()) return id;
    if (!unavailable_.empty()) {
      const auto why = unavailable_.find(Copy(name));
      if (why != unavailable_.end()) return why->second;
    }
    absl::Status applied;
    if (entry.has_block()) {
      applied = ApplyBlock(name, entry.block());
    } else if (entry.has_gap()) {
      applied = ApplyGap(name, entry.gap());
    } else {
      applied = ApplySeal(name, entry.seal());
    }
    if (applied.ok()) return applied;
    ahead_.Forget();
    run_->ForgetIfEmpty(name);
    return InSequence(name, applied);
  }();
  EntryAck ack;
  if (!status.ok()) ack = Refusal(status);
  ack.committed_length =
      committed_length_.has_value() ? *committed_length_ : run_->CommittedLength(name);
  return ack;
}

}  // namespace sis
