#include "server/store/hash_store.h"

#include <algorithm>
#include <random>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "server/cache/missing.h"

namespace sis {
namespace {

// Time for which the record of a deleted run is kept. Until then a run of the same id gets a later
// incarnation, and late workers of the deleted one are refused.
constexpr absl::Duration kDeletionKept = absl::Hours(30 * 24);
constexpr absl::string_view kRuns = "sis:runs";
constexpr int kMaxConflicts = 100;

// No '/', and nothing that SCAN patterns or slots of a cluster give a meaning to.
std::string Encode(absl::string_view name) {
  std::string encoded;
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (absl::ascii_isalnum(byte) || c == '-' || c == '_' || c == '.') {
      encoded += c;
    } else {
      absl::StrAppend(&encoded, "%", absl::Hex(byte, absl::kZeroPad2));
    }
  }
  return encoded;
}

std::string StepsKey(absl::string_view run_id, uint64_t incarnation, absl::string_view server) {
  return absl::StrCat(IncarnationPrefix(run_id, incarnation), ":", Encode(server));
}

std::string RunField(absl::string_view run_id) { return absl::StrCat("r", run_id); }

std::string FieldOf(const StoredPart& part) {
  return absl::StrCat(std::string(1, static_cast<char>(part.kind)),
                      absl::Hex(part.position, absl::kZeroPad8),
                      absl::Hex(part.count, absl::kZeroPad8));
}

// Sets all of `part` but its bytes. Returns false if FieldOf did not make `field`.
bool ParseField(absl::string_view field, StoredPart& part) {
  if (field.empty() || !absl::SimpleHexAtoi(field.substr(1, 8), &part.position) ||
      !absl::SimpleHexAtoi(field.substr(std::min(field.size(), size_t{9})), &part.count)) {
    return false;
  }
  part.kind = static_cast<StoredPart::Kind>(field[0]);
  const bool is_range =
      part.kind == StoredPart::Kind::kGap || part.kind == StoredPart::Kind::kBlock;
  const bool fits = is_range ? part.count > 0 && part.count <= UINT32_MAX - part.position
                             : part.kind == StoredPart::Kind::kSeal && part.count == 0;
  return fits && FieldOf(part) == field;
}

absl::Status Damaged(absl::string_view field) {
  return absl::DataLossError(
      absl::StrCat("field '", absl::CHexEscape(field.substr(0, 40)), "' is damaged"));
}

absl::Status Named(const SequenceIdentity& sequence, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(ToString(sequence), ": ", status.message()));
}

// Returns 0 if there is no revision.
absl::StatusOr<uint64_t> RevisionIn(const std::map<std::string, std::string>& fields) {
  const auto found = fields.find(std::string(kRevisionField));
  uint64_t revision = 0;
  if (found != fields.end() && !absl::SimpleAtoi(found->second, &revision)) {
    return Damaged(kRevisionField);
  }
  return revision;
}

std::string EncodeRun(const StoredRun& run) {
  const absl::Time expires = run.deleted() ? absl::Now() + kDeletionKept : absl::InfiniteFuture();
  const auto add_label = [](std::string* record, const auto& label) {
    absl::StrAppend(record, label.first, "=", absl::CHexEscape(label.second));
  };
  return absl::StrCat(run.incarnation, "\n", run.policy_version, "\n", absl::ToUnixSeconds(expires),
                      "\n", absl::StrJoin(run.labels, "\t", add_label), "\n", run.config);
}

// Returns NotFound for an expired record, DataLoss if EncodeRun did not make `record`.
absl::StatusOr<StoredRun> ParseRun(absl::string_view run_id, absl::string_view record) {
  const std::vector<absl::string_view> lines = absl::StrSplit(record, absl::MaxSplits('\n', 4));
  StoredRun run{.run_id = std::string(run_id)};
  int64_t expires = 0;
  bool is_record = lines.size() == 5 && absl::SimpleAtoi(lines[0], &run.incarnation) &&
                   absl::SimpleAtoi(lines[1], &run.policy_version) &&
                   absl::SimpleAtoi(lines[2], &expires);
  const absl::string_view labels = is_record ? lines[3] : "";
  for (const absl::string_view label : absl::StrSplit(labels, '\t', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> named =
        absl::StrSplit(label, absl::MaxSplits('=', 1));
    uint64_t version = 0;
    is_record &= absl::SimpleAtoi(named.first, &version) &&
                 absl::CUnescape(named.second, &run.labels[version]);
  }
  if (!is_record) {
    return absl::DataLossError(absl::StrCat("no record of a run, of ", record.size(), " bytes"));
  }
  if (absl::FromUnixSeconds(expires) < absl::Now()) return absl::NotFoundError("expired");
  run.config = std::string(lines[4]);
  return run;
}

}  // namespace

std::string IncarnationPrefix(absl::string_view run_id, uint64_t incarnation) {
  return absl::StrCat("sis:run/", Encode(run_id), "/", absl::Hex(incarnation, absl::kZeroPad16),
                      "/");
}

std::string SequenceKey(const SequenceIdentity& sequence) {
  return absl::StrCat(IncarnationPrefix(sequence.run_id, sequence.incarnation), Encode(sequence.id),
                      "/", sequence.attempt);
}

uint64_t HashStore::NewRevision() {
  std::random_device random;
  return uint64_t{random()} << 32 | random() | 1;
}

absl::StatusOr<uint64_t> HashStore::Put(const SequenceIdentity& sequence,
                                        const SequenceChange& change) {
  HashChange parts{.key = SequenceKey(sequence),
                   .revision = change.revision,
                   .expires = change.expires,
                   .when_full = false};
  for (const StoredPart& part : change.removed) parts.removed.push_back(FieldOf(part));
  for (const StoredPart& part : change.added) parts.put.emplace_back(FieldOf(part), part.bytes);
  absl::Status status = Change(parts);
  if (!status.ok()) return Named(sequence, status);
  return parts.next_revision;
}

absl::StatusOr<StoredSequence> HashStore::Load(const SequenceIdentity& sequence) {
  absl::StatusOr<Hash> hash = Read(SequenceKey(sequence));
  if (!hash.ok()) return Named(sequence, hash.status());
  if (hash->fields.empty() && hash->damaged.empty())
    return absl::NotFoundError("nothing is stored");
  StoredSequence stored;
  for (auto& [field, value] : hash->fields) {
    if (field == kRevisionField) continue;
    if (field == kDroppedField && value.size() == 1) {
      stored.dropped = static_cast<uint8_t>(value[0]);
    } else if (StoredPart part; ParseField(field, part)) {
      part.bytes = std::move(value);
      stored.parts.push_back(std::move(part));
    } else {
      return Named(sequence, Damaged(field));
    }
  }
  for (const std::string& field : hash->damaged) {
    StoredPart part;
    if (!ParseField(field, part) || part.kind != StoredPart::Kind::kBlock) {
      return Named(sequence, Damaged(field));
    }
    part.kind = StoredPart::Kind::kGap;
    part.bytes = std::string(1, static_cast<char>(MissingReason::kCorrupt));
    stored.parts.push_back(std::move(part));
  }
  const absl::StatusOr<uint64_t> revision = RevisionIn(hash->fields);
  if (!revision.ok() || *revision == 0 || stored.dropped.has_value() != stored.parts.empty()) {
    return Named(sequence, Damaged(kRevisionField));
  }
  stored.revision = *revision;
  return stored;
}

absl::StatusOr<uint64_t> HashStore::Revision(const SequenceIdentity& sequence) {
  const absl::StatusOr<Fields> fields = ReadFields(SequenceKey(sequence), {kRevisionField});
  return fields.ok() ? RevisionIn(*fields) : fields.status();
}

absl::StatusOr<StoredRun> HashStore::PutRun(const StoredRun& run) {
  const std::string field = RunField(run.run_id);
  for (int conflicts = 0; conflicts < kMaxConflicts; ++conflicts) {
    const absl::StatusOr<Fields> there = ReadFields(kRuns, {kRevisionField, field});
    if (!there.ok() && !absl::IsDataLoss(there.status())) return there.status();
    HashChange change{.key = std::string(kRuns)};
    StoredRun stays = run;
    if (there.ok()) {
      const absl::StatusOr<uint64_t> revision = RevisionIn(*there);
      if (revision.ok()) change.revision = *revision;
      const auto record = there->find(field);
      const absl::StatusOr<StoredRun> stored =
          record == there->end() ? absl::NotFoundError("") : ParseRun(run.run_id, record->second);
      if (stored.ok()) stays = Merged(*stored, run);
      if (stored.ok() && stays == *stored) return stays;
    }
    const std::string record = EncodeRun(stays);
    change.put.emplace_back(field, record);
    const absl::Status status = Change(change);
    if (status.ok()) return stays;
    if (!absl::IsAborted(status)) return status;
  }
  return absl::UnavailableError("the records of runs change all the time");
}

absl::StatusOr<StoredRun> HashStore::GetRun(const std::string& run_id) {
  const absl::StatusOr<Fields> fields = ReadFields(kRuns, {RunField(run_id)});
  if (!fields.ok()) return fields.status();
  if (fields->empty()) return absl::NotFoundError("no such run is stored");
  return ParseRun(run_id, fields->begin()->second);
}

absl::StatusOr<ListedRuns> HashStore::ListRuns() {
  absl::StatusOr<Hash> hash = Read(kRuns);
  if (!hash.ok()) return hash.status();
  if (!hash->damaged.empty()) return Damaged(hash->damaged.front());
  ListedRuns listed;
  HashChange expired{.key = std::string(kRuns)};
  for (const auto& [field, record] : hash->fields) {
    absl::string_view run_id = field;
    if (!absl::ConsumePrefix(&run_id, "r")) continue;
    absl::StatusOr<StoredRun> run = ParseRun(run_id, record);
    if (run.ok()) {
      listed.runs.push_back(*std::move(run));
    } else if (absl::IsNotFound(run.status())) {
      expired.removed.push_back(field);
    } else {
      listed.unreadable.emplace_back(run_id, run.status());
    }
  }
  const absl::StatusOr<uint64_t> read = RevisionIn(hash->fields);
  if (!expired.removed.empty() && read.ok()) {
    expired.revision = *read;
    Change(expired).IgnoreError();  // repeated by the next call
  }
  return listed;
}

absl::Status HashStore::PutSteps(const std::string& run_id, uint64_t incarnation,
                                 const std::map<uint16_t, std::string>& by_slot) {
  HashChange change{.key = StepsKey(run_id, incarnation, server_name_)};
  for (const auto& [slot, payload] : by_slot) change.put.emplace_back(absl::StrCat(slot), payload);
  return Change(change);
}

absl::StatusOr<std::vector<absl::StatusOr<std::string>>> HashStore::GetSteps(
    const std::string& run_id, uint64_t incarnation) {
  absl::StatusOr<Hash> hash = Read(StepsKey(run_id, incarnation, server_name_));
  if (!hash.ok()) return hash.status();
  std::vector<absl::StatusOr<std::string>> payloads;
  for (auto& [slot, payload] : hash->fields) {
    if (slot != kRevisionField) payloads.emplace_back(std::move(payload));
  }
  for (const std::string& slot : hash->damaged) payloads.emplace_back(Damaged(slot));
  return payloads;
}

}  // namespace sis
