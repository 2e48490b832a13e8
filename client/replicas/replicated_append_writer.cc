#include "client/replicas/replicated_append_writer.h"

#include <future>
#include <iterator>
#include <utility>

#include "client/messages/grpc_status.h"
#include "client/messages/wire.h"

namespace sis {
namespace {

// After a replica has failed, its entries are refused for so long before it is asked again.
constexpr std::chrono::seconds kReopenDelay{1};

}  // namespace

absl::Status ReplicatedAppendWriter::Lane::Put(OutgoingEntry entry) {
  std::shared_ptr<ServerAppendWriter> stream;
  {
    const std::lock_guard lock(mutex_);
    if (stream_ == nullptr || (broken_ && Clock::now() >= reopen_time_)) {
      stream_ = open_stream_();
      broken_ = false;
    }
    stream = stream_;
  }
  const SequenceRef sequence = FromMessage(SequenceOf(entry.message));
  const absl::Status status = stream->Put(std::move(entry));
  if (status.ok()) return status;
  if (absl::Status error = Broken(*stream, status); !error.ok()) return error;
  const std::lock_guard lock(mutex_);
  refused_.push_back({sequence, status});
  return absl::OkStatus();
}

absl::Status ReplicatedAppendWriter::Lane::Broken(ServerAppendWriter& stream,
                                                  const absl::Status& status) {
  if (!IsUnreachable(status)) return status;
  std::vector<RefusedEntry> refused = stream.GiveUp();
  const std::lock_guard lock(mutex_);
  refused_.insert(refused_.end(), std::make_move_iterator(refused.begin()),
                  std::make_move_iterator(refused.end()));
  if (stream_.get() == &stream && !broken_) {
    broken_ = true;
    reopen_time_ = Clock::now() + kReopenDelay;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<RefusedEntry>> ReplicatedAppendWriter::Lane::Collect(End end) {
  std::shared_ptr<ServerAppendWriter> stream;
  {
    const std::lock_guard lock(mutex_);
    if (!broken_) stream = stream_;
  }
  std::vector<RefusedEntry> refused;
  if (stream != nullptr) {
    absl::StatusOr<std::vector<RefusedEntry>> ended = ((*stream).*end)();
    if (ended.ok()) {
      refused = *std::move(ended);
    } else if (absl::Status error = Broken(*stream, ended.status()); !error.ok()) {
      return error;
    }
  }
  const std::lock_guard lock(mutex_);
  refused.insert(refused.end(), std::make_move_iterator(refused_.begin()),
                 std::make_move_iterator(refused_.end()));
  refused_.clear();
  return refused;
}

absl::StatusOr<std::vector<RefusedEntry>> ReplicatedAppendWriter::Lane::Flush() {
  return Collect(&ServerAppendWriter::Flush);
}

absl::StatusOr<std::vector<RefusedEntry>> ReplicatedAppendWriter::Lane::Finish() {
  return Collect(&ServerAppendWriter::Finish);
}

ReplicatedAppendWriter::ReplicatedAppendWriter(ReplicaOf replica_of,
                                               const std::vector<OpenStream>& open_streams)
    : AppendWriter(/*segments=*/nullptr), replica_of_(std::move(replica_of)) {
  for (const OpenStream& open_stream : open_streams) {
    lanes_.push_back(std::make_unique<Lane>(open_stream));
  }
}

absl::Status ReplicatedAppendWriter::Put(OutgoingEntry entry) {
  Lane& lane = *lanes_[replica_of_(SequenceOf(entry.message).id())];
  return lane.Put(std::move(entry));
}

absl::StatusOr<std::vector<RefusedEntry>> ReplicatedAppendWriter::CollectAll(
    absl::StatusOr<std::vector<RefusedEntry>> (Lane::*end)()) {
  std::vector<std::future<absl::StatusOr<std::vector<RefusedEntry>>>> ends;
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    ends.push_back(std::async(std::launch::async, end, lane.get()));
  }
  std::vector<RefusedEntry> refused;
  absl::Status error;
  for (auto& each : ends) {
    absl::StatusOr<std::vector<RefusedEntry>> part = each.get();
    error.Update(part.status());
    if (!part.ok()) continue;
    refused.insert(refused.end(), std::make_move_iterator(part->begin()),
                   std::make_move_iterator(part->end()));
  }
  if (!error.ok()) return error;
  return refused;
}

absl::StatusOr<std::vector<RefusedEntry>> ReplicatedAppendWriter::Flush() {
  return CollectAll(&Lane::Flush);
}

absl::StatusOr<std::vector<RefusedEntry>> ReplicatedAppendWriter::Finish() {
  return CollectAll(&Lane::Finish);
}

}  // namespace sis
