#include "client/replicas/replicated_append_writer.h"

#include <algorithm>
#include <future>
#include <iterator>
#include <utility>

#include "absl/time/clock.h"
#include "client/types/grpc_status.h"
#include "client/types/messages.h"

namespace sis {

absl::Status ReplicatedAppendWriter::Lane::Put(std::vector<OutgoingEntry>& entries) {
  std::shared_ptr<ServerAppendWriter> stream;
  {
    const std::lock_guard lock(mutex_);
    absl::StatusOr<std::shared_ptr<ServerAppendWriter>> opened = Opened();
    if (!opened.ok()) {
      Refuse(entries, opened.status());
      return absl::OkStatus();
    }
    stream = *std::move(opened);
  }
  const absl::Time began = absl::Now();
  const absl::Status status = stream->Put(entries);
  if (status.ok()) return status;
  if (absl::Status error = Broken(stream, status, began); !error.ok()) return error;
  const std::lock_guard lock(mutex_);
  Refuse(entries, status);
  return absl::OkStatus();
}

void ReplicatedAppendWriter::Lane::Refuse(const std::vector<OutgoingEntry>& entries,
                                          const absl::Status& status) {
  for (const OutgoingEntry& entry : entries) {
    refused_.push_back({FromMessage(SequenceOf(entry.message)), status});
  }
}

absl::StatusOr<std::shared_ptr<ServerAppendWriter>> ReplicatedAppendWriter::Lane::Opened() {
  if (stream_ == nullptr) {
    if (absl::Status status = server_->Admit(); !status.ok()) return status;
    stream_ = server_->OpenStream(header_, options_);
  }
  return stream_;
}

absl::Status ReplicatedAppendWriter::Lane::Broken(const std::shared_ptr<ServerAppendWriter>& stream,
                                                  const absl::Status& status, absl::Time began) {
  if (!IsUnreachable(status)) return status;
  std::vector<RefusedEntry> refused = stream->GiveUp();
  const std::lock_guard lock(mutex_);
  std::ranges::move(refused, std::back_inserter(refused_));
  if (stream_ == stream) {
    stream_ = nullptr;
    server_->Failed(status, absl::Now() - began);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<RefusedEntry>> ReplicatedAppendWriter::Lane::Collect(End end,
                                                                                bool open) {
  std::shared_ptr<ServerAppendWriter> stream;
  {
    const std::lock_guard lock(mutex_);
    if (open) Opened().IgnoreError();
    stream = stream_;
  }
  std::vector<RefusedEntry> refused;
  if (stream != nullptr) {
    const absl::Time began = absl::Now();
    absl::StatusOr<std::vector<RefusedEntry>> ended = ((*stream).*end)();
    if (ended.ok()) {
      refused = *std::move(ended);
    } else if (absl::Status error = Broken(stream, ended.status(), began); !error.ok()) {
      return error;
    }
  }
  const std::lock_guard lock(mutex_);
  std::ranges::move(std::exchange(refused_, {}), std::back_inserter(refused));
  return refused;
}

ReplicatedAppendWriter::ReplicatedAppendWriter(
    Placement placement, const std::vector<std::shared_ptr<SingleServer>>& servers,
    const v1::AppendHeader& header, const AppendOptions& options)
    : AppendWriter(options), placement_(std::move(placement)), run_id_(header.run().run_id()) {
  for (const std::shared_ptr<SingleServer>& server : servers) {
    lanes_.push_back(std::make_unique<Lane>(server, header, options));
  }
}

absl::Status ReplicatedAppendWriter::Put(std::vector<OutgoingEntry>& entries) {
  opened_ = true;
  std::vector<std::vector<OutgoingEntry>> parts(lanes_.size());
  for (OutgoingEntry& entry : entries) {
    parts[placement_.Replica(run_id_, SequenceOf(entry.message).id())].push_back(std::move(entry));
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].empty()) continue;
    if (absl::Status status = lanes_[i]->Put(parts[i]); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<RefusedEntry>> ReplicatedAppendWriter::CollectAll(End end) {
  // If no entry has opened a stream, nobody else would look at the header.
  const bool open = !opened_.exchange(true);
  std::vector<std::future<absl::StatusOr<std::vector<RefusedEntry>>>> ends;
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    ends.push_back(std::async(std::launch::async, &Lane::Collect, lane.get(), end, open));
  }
  std::vector<RefusedEntry> refused;
  absl::Status error;
  for (auto& each : ends) {
    absl::StatusOr<std::vector<RefusedEntry>> part = each.get();
    error.Update(part.status());
    if (!part.ok()) continue;
    std::ranges::move(*part, std::back_inserter(refused));
  }
  if (!error.ok()) return error;
  return refused;
}

absl::StatusOr<std::vector<RefusedEntry>> ReplicatedAppendWriter::Flush() {
  return CollectAll(&ServerAppendWriter::Flush);
}

absl::StatusOr<std::vector<RefusedEntry>> ReplicatedAppendWriter::Finish() {
  return CollectAll(&ServerAppendWriter::Finish);
}

}  // namespace sis
