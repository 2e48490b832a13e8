// Appending: from the entries of a stream to stored records.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/room_queue.h"
#include "server/run_registry.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// One Append stream after its header. Used by one thread at a time.
class Ingest {
 public:
  // Checks the header. The registry must outlive the object.
  static absl::StatusOr<Ingest> Open(RunRegistry& registry, const v1::AppendHeader& header);

  // Applies the entries that the response has no acks for yet, one by one, and acks them; a refused
  // one changes nothing and says why in its ack. Stops at an entry that should wait for room:
  // returns what it lacks, and is to be called again when that may be there. An error, with nothing
  // applied, if the run has been superseded.
  absl::StatusOr<std::optional<RoomWanted>> Apply(const v1::AppendBatch& batch, Turn turn,
                                                  v1::AppendResponse& response);

 private:
  Ingest(RunRegistry& registry, std::shared_ptr<Run> run)
      : registry_(&registry), run_(std::move(run)) {}

  // Nothing if it is to wait.
  std::optional<v1::Ack> ApplyEntry(const v1::AppendEntry& entry);
  absl::Status ApplyBlock(const SequenceName& name, const v1::Block& block);
  absl::Status ApplySeal(const SequenceName& name, uint32_t length);
  absl::Status ApplyTruncate(const SequenceName& name, uint32_t length);
  // Finds or makes the sequence, with room made for `bytes_if_new` if need be.
  absl::StatusOr<std::shared_ptr<Sequence>> Open(const SequenceName& name, int64_t bytes_if_new);
  // OK if there may be room now for so many bytes of the sequence. Else ResourceExhausted, and if
  // it should wait for them, lacking_ is set.
  absl::Status MakeRoom(const SequenceName& name, int64_t bytes);

  RunRegistry* registry_;
  std::shared_ptr<Run> run_;
  Turn turn_ = Turn::kArrived;         // of the present entry
  std::optional<RoomWanted> lacking_;  // by the present entry
};

}  // namespace sis
