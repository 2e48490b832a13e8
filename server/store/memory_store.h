// The store of a server that keeps everything in its own memory: it takes all and gives nothing
// back.
#pragma once

#include "server/store/sequence_store.h"

namespace sis {

class MemoryStore final : public SequenceStore {
 public:
  std::string_view name() const override { return "memory"; }
  bool durable() const override { return false; }
  bool shared() const override { return false; }

  std::vector<absl::Status> Append(std::span<const NewEntry> entries) override {
    return std::vector<absl::Status>(entries.size());
  }
  absl::StatusOr<StoredSequence> Read(const SequenceIdentity& sequence, uint32_t) override {
    return absl::NotFoundError(ToString(sequence));
  }
  absl::Status WriteSealedForm(const SequenceIdentity&, uint32_t, std::string_view,
                               absl::Time) override {
    return absl::OkStatus();
  }
  absl::Status Drop(const SequenceIdentity&, uint8_t, absl::Time) override {
    return absl::OkStatus();
  }
  absl::Status DropIncarnationsBefore(const std::string&, uint64_t) override {
    return absl::OkStatus();
  }
  absl::StatusOr<StoredRun> PutRun(const StoredRun& run) override { return run; }
  absl::StatusOr<StoredRun> GetRun(const std::string& run_id) override {
    return absl::NotFoundError(run_id);
  }
  absl::StatusOr<std::vector<StoredRun>> ListRuns() override { return std::vector<StoredRun>(); }
  absl::StatusOr<std::vector<SequenceIdentity>> ListSequences(const std::string&,
                                                              uint64_t) override {
    return std::vector<SequenceIdentity>();
  }
};

}  // namespace sis
