// sis_server and the echo in the ingest benchmark, and their workers.
#pragma once

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/testing/server_process.h"
#include "sis/v1/ratio_service.grpc.pb.h"
#include "tests/bench/ingest_messages.h"

namespace sis {

inline grpc::ByteBuffer Buffer(const std::string& bytes) {
  const grpc::Slice slice(bytes.data(), bytes.size(), grpc::Slice::STATIC_SLICE);
  return grpc::ByteBuffer(&slice, 1);
}

// Counts what is left to do. Thread-safe.
class Countdown {
 public:
  explicit Countdown(int count) : count_(count) {}
  void Done() {
    const std::lock_guard lock(mutex_);
    if (--count_ == 0) zero_.notify_all();
  }
  void Wait() {
    std::unique_lock lock(mutex_);
    zero_.wait(lock, [this] { return count_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable zero_;
  int count_;
};

// One stream: sends the header if there is one, then its messages, and reads the answers.
class GrpcStream final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  GrpcStream(const std::shared_ptr<grpc::Channel>& channel, const std::string& header,
             const std::vector<std::string>& messages, Countdown& done)
      : stub_(channel), messages_(messages), done_(done) {
    const char* const method = header.empty() ? "/echo" : "/sis.v1.RatioService/Append";
    stub_.PrepareBidiStreamingCall(&context_, method, {}, this);
    write_ = Buffer(header.empty() ? messages_[sent_++] : header);
    AddHold();
    StartWrite(&write_);
    StartRead(&read_);
    StartCall();
  }

  void OnWriteDone(bool ok) override {
    const std::lock_guard lock(mutex_);
    writing_ = false;
    if (ok) WriteNext();
  }
  void OnReadDone(bool ok) override {
    if (!ok) return RemoveHold();
    const std::lock_guard lock(mutex_);
    ++acked_;
    WriteNext();
    StartRead(&read_);
  }
  void OnDone(const grpc::Status& status) override {
    if (!status.ok()) Fail(status.error_message());
    done_.Done();
  }

 private:
  void WriteNext() {
    if (writing_ || closed_ || sent_ - acked_ >= kBatchesInFlight) return;
    if (sent_ == messages_.size()) {
      closed_ = true;
      return StartWritesDone();
    }
    writing_ = true;
    write_ = Buffer(messages_[sent_++]);
    StartWrite(&write_);
  }

  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  const std::vector<std::string>& messages_;
  Countdown& done_;
  grpc::ByteBuffer write_, read_;

  std::mutex mutex_;  // guards what follows: reads and writes end on different threads
  bool writing_ = true;
  bool closed_ = false;
  size_t sent_ = 0;
  size_t acked_ = 0;
};

using Channels = std::vector<std::shared_ptr<grpc::Channel>>;

// Returns a connection for each stream.
inline Channels Connections(const std::string& address, int streams) {
  Channels channels;
  for (int i = 0; i < streams; ++i) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection of its own
    arguments.SetMaxReceiveMessageSize(-1);
    channels.push_back(
        grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
    const auto deadline = std::chrono::system_clock::now() + std::chrono::seconds(30);
    if (!channels.back()->WaitForConnected(deadline)) Fail("cannot connect to " + address);
  }
  return channels;
}

// Returns when all answers have come.
inline void SendAll(const Channels& channels, const std::string& header,
                    const std::vector<Messages>& streams) {
  Countdown done(static_cast<int>(streams.size()));
  std::vector<std::unique_ptr<GrpcStream>> reactors;
  for (size_t i = 0; i < streams.size(); ++i) {
    reactors.push_back(std::make_unique<GrpcStream>(channels[i], header, streams[i].sis, done));
  }
  done.Wait();
}

// The least that gRPC takes: a server answers the same messages with as many bytes as acks have.
class Echo {
 public:
  explicit Echo(const Case& c)
      : process_({"tests/bench/append_latency/echo_server", "127.0.0.1:0",
                  std::to_string(30 * c.sequences())}),
        channels_(Connections(process_.ReadLine(), c.streams)) {}
  const ChildProcess& process() const { return process_; }
  void Send(const std::vector<Messages>& streams) { SendAll(channels_, "", streams); }

 private:
  ChildProcess process_;
  const Channels channels_;
};

class Sis {
 public:
  const ChildProcess& process() const { return process_; }

  void Connect(int streams) { channels_ = Connections(process_.address(), streams); }

  // Another incarnation of the run, which is empty.
  void Clear(const Case& c) {
    v1::CreateRunRequest request;
    request.set_run_id("ingest");
    request.set_incarnation(++incarnation_);
    request.mutable_config()->set_top_k(c.top_k);
    request.mutable_config()->set_vocabulary_size(kVocabulary);
    grpc::ClientContext context;
    v1::CreateRunResponse response;
    const auto stub = v1::RatioService::NewStub(channels_[0]);
    const grpc::Status status = stub->CreateRun(&context, request, &response);
    if (!status.ok()) Fail(status.error_message());
  }

  void Send(const std::vector<Messages>& streams) {
    v1::AppendRequest header;
    header.mutable_header()->mutable_run()->set_run_id("ingest");
    header.mutable_header()->set_vocabulary_size(kVocabulary);
    header.mutable_header()->mutable_sampling()->set_log_probs(v1::Sampling::LOG_PROBS_RAW);
    header.mutable_header()->mutable_sampling()->set_temperature(1);
    SendAll(channels_, header.SerializeAsString(), streams);
  }

  void Check(int64_t tokens) {
    v1::GetRunRequest request;
    request.set_run_id("ingest");
    grpc::ClientContext context;
    v1::GetRunResponse response;
    const auto stub = v1::RatioService::NewStub(channels_[0]);
    const grpc::Status status = stub->GetRun(&context, request, &response);
    if (!status.ok()) Fail(status.error_message());
    const uint64_t stored = response.run().positions();
    if (stored != static_cast<uint64_t>(tokens)) {
      Fail(absl::StrCat("sis_server has ", stored, " of ", tokens));
    }
  }

 private:
  ServerProcess process_{{"--listen=127.0.0.1:0", "--cache_bytes=2147483648"}};
  uint64_t incarnation_ = 0;
  Channels channels_;
};

}  // namespace sis
