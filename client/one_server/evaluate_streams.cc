#include "client/one_server/evaluate_streams.h"

#include <grpcpp/generic/generic_stub.h>

#include <condition_variable>
#include <deque>
#include <utility>

#include "absl/time/clock.h"
#include "client/types/grpc_status.h"
#include "sis/v1/ratio_service.grpc.pb.h"  // how gRPC parses answers

namespace sis {
namespace {

constexpr int kConnections = 2;
constexpr size_t kInFlight = 3;  // requests of a stream that wait for their answers

using Stub = grpc::TemplatedGenericStub<grpc::ByteBuffer, v1::EvaluateResponse>;

// What the streams of one call share. Each takes the next request when it has room for it.
struct Work {
  Work(absl::FunctionRef<grpc::ByteBuffer(size_t)> make_request, size_t count)
      : make_request(make_request), answers(count) {}

  const absl::FunctionRef<grpc::ByteBuffer(size_t)> make_request;
  std::vector<v1::EvaluateResponse> answers;

  std::mutex mutex;
  std::condition_variable ended;
  size_t next = 0;
  size_t answered = 0;
  int open_streams = 0;
  absl::Status status;
};

class Stream final : public grpc::ClientBidiReactor<grpc::ByteBuffer, v1::EvaluateResponse> {
 public:
  Stream(Work& work, const std::shared_ptr<grpc::Channel>& channel, absl::Time deadline)
      : work_(work), stub_(channel) {
    context_.set_deadline(absl::ToChronoTime(deadline));
    stub_.PrepareBidiStreamingCall(&context_, "/sis.v1.RatioService/EvaluateStream", {}, this);
  }

  void Start() {
    {
      const std::lock_guard lock(work_.mutex);
      StartRead(&answer_);
      SendNext();
    }
    StartCall();
  }

  void Cancel() { context_.TryCancel(); }

  void OnWriteDone(bool ok) override {
    const std::lock_guard lock(work_.mutex);
    writing_ = false;
    if (ok) SendNext();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    const std::lock_guard lock(work_.mutex);
    if (sent_.empty()) return Cancel();  // an answer to nothing: no request is left unanswered
    work_.answers[sent_.front()] = std::move(answer_);
    answer_.Clear();
    sent_.pop_front();
    ++work_.answered;
    StartRead(&answer_);
    SendNext();
  }

  void OnDone(const grpc::Status& status) override {
    const std::lock_guard lock(work_.mutex);
    if (work_.status.ok()) work_.status = ToAbslStatus(status);
    --work_.open_streams;
    work_.ended.notify_all();
  }

 private:
  // With the work's mutex held.
  void SendNext() {
    if (writing_ || closed_) return;
    if (work_.next == work_.answers.size() || !work_.status.ok()) {
      closed_ = true;
      StartWritesDone();
    } else if (sent_.size() < kInFlight) {
      sent_.push_back(work_.next);
      writing_ = true;
      request_ = work_.make_request(work_.next++);
      StartWrite(&request_);
    }
  }

  Work& work_;
  Stub stub_;
  grpc::ClientContext context_;
  grpc::ByteBuffer request_;
  v1::EvaluateResponse answer_;
  // Guarded by the work's mutex.
  std::deque<size_t> sent_;  // not answered yet
  bool writing_ = false;
  bool closed_ = false;
};

}  // namespace

EvaluateStreams::EvaluateStreams(std::string address, Credentials credentials,
                                 TraceParentSource traceparent, absl::Duration timeout)
    : address_(std::move(address)),
      credentials_(std::move(credentials)),
      traceparent_(std::move(traceparent)),
      timeout_(timeout) {}

EvaluateStreams::Channels EvaluateStreams::Connect() {
  const std::lock_guard lock(mutex_);
  while (channels_.size() < kConnections) {
    channels_.push_back(MakeChannel(address_, credentials_, traceparent_, /*own_connection=*/true));
  }
  return channels_;
}

absl::StatusOr<std::vector<v1::EvaluateResponse>> EvaluateStreams::Evaluate(
    size_t count, absl::FunctionRef<grpc::ByteBuffer(size_t)> make_request) {
  const absl::Time deadline = absl::Now() + timeout_;
  Work work(make_request, count);
  {
    const Channels channels = Connect();
    std::vector<std::unique_ptr<Stream>> streams;
    for (const auto& channel : channels) {
      streams.push_back(std::make_unique<Stream>(work, channel, deadline));
    }
    work.open_streams = static_cast<int>(streams.size());
    for (const auto& stream : streams) stream->Start();
    std::unique_lock lock(work.mutex);
    work.ended.wait(lock, [&] { return work.open_streams == 0 || !work.status.ok(); });
    if (!work.status.ok()) {
      for (const auto& stream : streams) stream->Cancel();
      work.ended.wait(lock, [&] { return work.open_streams == 0; });
    }
  }
  if (work.status.ok() && work.answered < count) {
    work.status = absl::InternalError("the server left requests of an EvaluateStream unanswered");
  }
  if (!work.status.ok()) {
    const std::lock_guard lock(mutex_);
    channels_.clear();
    return work.status;
  }
  return std::move(work.answers);
}

}  // namespace sis
