// Appending: from the entries of a stream to stored records.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/run_registry.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// One Append stream after its header. Used by one thread at a time.
class Ingest {
 public:
  // Checks the header. The registry must outlive the object.
  static absl::StatusOr<Ingest> Open(RunRegistry& registry, const v1::AppendHeader& header);

  // Applies entry after entry; a refused one changes nothing and says why in its ack. An error,
  // with nothing applied, if the run has been superseded.
  absl::StatusOr<v1::AppendResponse> Apply(const v1::AppendBatch& batch);

 private:
  Ingest(RunRegistry& registry, std::shared_ptr<Run> run)
      : registry_(&registry), run_(std::move(run)) {}

  v1::Ack ApplyEntry(const v1::AppendEntry& entry);
  absl::Status ApplyBlock(const SequenceName& name, const v1::Block& block);
  absl::Status ApplySeal(const SequenceName& name, uint32_t length);
  absl::Status ApplyTruncate(const SequenceName& name, uint32_t length);
  // Finds or makes the sequence, with room made for it if need be.
  absl::StatusOr<std::shared_ptr<Sequence>> Open(const SequenceName& name);

  RunRegistry* registry_;
  std::shared_ptr<Run> run_;
};

}  // namespace sis
