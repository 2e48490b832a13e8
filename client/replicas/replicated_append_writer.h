// An append stream over several replicas: one stream to each, opened when an entry needs it.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "client/one_server/append_writer.h"
#include "client/one_server/server_append_writer.h"

namespace sis {

class ReplicatedAppendWriter final : public AppendWriter {
 public:
  // The replica that has a sequence.
  using ReplicaOf = std::function<size_t(const std::string& sequence_id)>;
  using OpenStream = std::function<std::unique_ptr<ServerAppendWriter>()>;

  // One function per replica to open its stream with.
  ReplicatedAppendWriter(ReplicaOf replica_of, const std::vector<OpenStream>& open_streams);

  absl::Status Put(OutgoingEntry entry) override;
  absl::StatusOr<std::vector<RefusedEntry>> Flush() override;
  absl::StatusOr<std::vector<RefusedEntry>> Finish() override;

 private:
  // The stream to one replica. When it breaks, what was under way is refused, and later another is
  // opened.
  class Lane {
   public:
    explicit Lane(OpenStream open_stream) : open_stream_(std::move(open_stream)) {}
    absl::Status Put(OutgoingEntry entry);
    absl::StatusOr<std::vector<RefusedEntry>> Flush();
    absl::StatusOr<std::vector<RefusedEntry>> Finish();

   private:
    using Clock = std::chrono::steady_clock;
    using End = absl::StatusOr<std::vector<RefusedEntry>> (ServerAppendWriter::*)();

    absl::StatusOr<std::vector<RefusedEntry>> Collect(End end);
    // Takes the entries of a broken stream; other errors than of a replica that is gone are handed
    // back.
    absl::Status Broken(ServerAppendWriter& stream, const absl::Status& status);

    const OpenStream open_stream_;
    std::mutex mutex_;
    // Guarded by mutex_. Shared with the calls that are on it.
    std::shared_ptr<ServerAppendWriter> stream_;
    bool broken_ = false;
    Clock::time_point reopen_time_;
    std::vector<RefusedEntry> refused_;
  };

  absl::StatusOr<std::vector<RefusedEntry>> CollectAll(
      absl::StatusOr<std::vector<RefusedEntry>> (Lane::*end)());

  const ReplicaOf replica_of_;
  std::vector<std::unique_ptr<Lane>> lanes_;
};

}  // namespace sis
