// An append stream over several replicas: one stream to each, opened when an entry needs it.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "client/one_server/append_writer.h"
#include "client/one_server/server_append_writer.h"
#include "client/one_server/single_server.h"
#include "client/replicas/placement.h"

namespace sis {

class ReplicatedAppendWriter final : public AppendWriter {
 public:
  ReplicatedAppendWriter(Placement placement,
                         const std::vector<std::shared_ptr<SingleServer>>& servers,
                         const v1::AppendHeader& header, const AppendOptions& options);

  absl::Status Put(std::vector<OutgoingEntry>& entries) override;
  absl::StatusOr<std::vector<RefusedEntry>> Flush() override;
  absl::StatusOr<std::vector<RefusedEntry>> Finish() override;

 private:
  // Flush or Finish.
  using End = absl::StatusOr<std::vector<RefusedEntry>> (ServerAppendWriter::*)();

  // The stream to one replica. When it breaks, what was under way is refused, and later another is
  // opened.
  class Lane {
   public:
    Lane(std::shared_ptr<SingleServer> server, v1::AppendHeader header, AppendOptions options)
        : server_(std::move(server)), header_(std::move(header)), options_(std::move(options)) {}
    ~Lane() { WarnOfUnflushed(refused_.size()); }
    absl::Status Put(std::vector<OutgoingEntry>& entries);
    // Flushes or finishes the stream, which is opened before if there is none and `open`, unless
    // the replica is left alone; what was refused, here or there.
    absl::StatusOr<std::vector<RefusedEntry>> Collect(End end, bool open);

   private:
    // With mutex_ held.
    void Refuse(const std::vector<OutgoingEntry>& entries, const absl::Status& status);
    // The stream, opened if there is none, with mutex_ held. Unavailable while the replica is left
    // alone.
    absl::StatusOr<std::shared_ptr<ServerAppendWriter>> Opened();
    // Takes the entries of a stream that broke in a call which began then; other errors than of a
    // replica that is gone are handed back.
    absl::Status Broken(const std::shared_ptr<ServerAppendWriter>& stream,
                        const absl::Status& status, absl::Time began);

    const std::shared_ptr<SingleServer> server_;
    const v1::AppendHeader header_;
    const AppendOptions options_;
    std::mutex mutex_;
    // Guarded by mutex_. Shared with the calls that are on it. Null: there is none yet, or it is
    // broken.
    std::shared_ptr<ServerAppendWriter> stream_;
    std::vector<RefusedEntry> refused_;
  };

  absl::StatusOr<std::vector<RefusedEntry>> CollectAll(End end);

  const Placement placement_;
  const std::string run_id_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  // Whether a stream was opened.
  std::atomic<bool> opened_ = false;
};

}  // namespace sis
