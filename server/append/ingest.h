// Appending: from the entries of a stream to stored records.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/append/acks.h"
#include "server/append/sequences_ahead.h"
#include "server/store/stored_runs.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// One Append stream after its header. Used by one thread at a time.
class Ingest {
 public:
  // Checks the header. The runs must outlive the object.
  static absl::StatusOr<Ingest> Open(StoredRuns& runs, const v1::AppendHeader& header,
                                     const Caller& caller = Caller());

  const std::string& run_id() const { return run_->id(); }

  // Applies the entries one by one and adds their acks. A refused entry changes nothing; its ack
  // has the reason, and a delay if it can be sent again. Returns an error, and applies nothing, if
  // the run was superseded.
  absl::Status Apply(const v1::AppendBatch& batch, std::vector<EntryAck>& acks);

  // With a durable store an entry is acked only when it is stored. Then call BringIn, Apply and
  // Store, in this order. BringIn loads the sequences; Store writes them, and revokes the acks of
  // entries that could not be stored. Both wait for the store.
  bool has_store() const { return stored_ != nullptr; }
  void BringIn(const v1::AppendBatch& batch);
  void Store(const v1::AppendBatch& batch, std::vector<EntryAck>& acks);

 private:
  Ingest(StoredRuns& runs, std::shared_ptr<Run> run)
      : registry_(&runs.registry()),
        stored_(runs.stored()),
        run_(std::move(run)),
        open_(run_->recent_events().OpenAppend()) {}

  EntryAck Refusal(absl::Status status);
  EntryAck ApplyEntry(const v1::AppendEntry& entry);
  absl::Status ApplyBlock(SequenceNameView name, std::string_view bytes);
  absl::Status ApplyGap(SequenceNameView name, const v1::Gap& gap);
  absl::Status ApplySeal(SequenceNameView name, const v1::Seal& seal);
  // Finds or creates the sequence. Evicts to make room for `bytes_if_new` if necessary.
  absl::StatusOr<std::shared_ptr<Sequence>> Open(SequenceNameView name,
                                                 absl::FunctionRef<int64_t()> bytes_if_new);
  // Returns OK if there may be room now for `bytes` of the sequence, otherwise ResourceExhausted.
  absl::Status MakeRoom(SequenceNameView name, int64_t bytes);

  // Applies an entry to its sequence: `change` returns the new parts, which must be stored.
  absl::Status Change(SequenceNameView name, const std::shared_ptr<Sequence>& sequence,
                      absl::FunctionRef<absl::StatusOr<std::vector<StoredPart>>()> change);
  // Like Change, for a change that takes `new_bytes`. Evicts to make room if necessary.
  absl::Status ChangeWithRoom(SequenceNameView name, const std::shared_ptr<Sequence>& sequence,
                              absl::FunctionRef<int64_t()> new_bytes,
                              absl::FunctionRef<absl::StatusOr<std::vector<StoredPart>>()> change);

  RunRegistry* registry_;
  StoredCache* stored_;  // null without a store
  std::shared_ptr<Run> run_;
  std::shared_ptr<const void> open_;          // counts as one of the run's open streams
  std::optional<uint32_t> committed_length_;  // set if the current entry is a block and stored
  int64_t positions_added_ = 0;               // by the current call, like the next
  int64_t slots_added_ = 0;
  int64_t bytes_accepted_ = 0;
  SequencesAhead ahead_;  // from the current entry on
  // With a store, for the current batch: sequences that must not leave memory, and sequences that
  // could not be loaded.
  absl::flat_hash_map<SequenceName, std::shared_ptr<Sequence>> held_;
  absl::flat_hash_map<SequenceName, absl::Status> unavailable_;
  std::vector<SequenceName> sealed_;  // by this batch
};

}  // namespace sis
