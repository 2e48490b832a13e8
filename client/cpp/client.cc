#include "client/cpp/client.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"

namespace sis {
namespace {

// The codes have the same numbers.
absl::Status FromGrpc(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

}  // namespace

Client::Client(const std::string& address, ClientOptions options)
    : options_(std::move(options)), stub_([&] {
        grpc::ChannelArguments arguments;
        arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection of its own
        arguments.SetMaxReceiveMessageSize(-1);
        return v1::RatioService::NewStub(
            grpc::CreateCustomChannel(address, options_.credentials, arguments));
      }()) {}

void Client::Prepare(grpc::ClientContext& context, absl::Time deadline) const {
  context.set_deadline(absl::ToChronoTime(deadline));
  if (!options_.token.empty()) context.AddMetadata("authorization", "Bearer " + options_.token);
}

absl::StatusOr<v1::CreateRunResponse> Client::CreateRun(const v1::CreateRunRequest& request) const {
  grpc::ClientContext context;
  Prepare(context, absl::Now() + options_.timeout);
  v1::CreateRunResponse response;
  const grpc::Status status = stub_->CreateRun(&context, request, &response);
  if (!status.ok()) return FromGrpc(status);
  return response;
}

std::unique_ptr<AppendStream> Client::OpenAppend(const v1::AppendHeader& header) const {
  return std::unique_ptr<AppendStream>(new AppendStream(*this, header));
}

AppendStream::~AppendStream() {
  if (stream_ == nullptr) return;
  context_->TryCancel();
  Close().IgnoreError();
}

absl::Status AppendStream::AddBlock(const v1::SequenceRef& sequence, const RecordView& records,
                                    const PackOptions& options) {
  auto& entries = *request_.mutable_batch()->mutable_entries();
  v1::AppendEntry& entry = *entries.Add();
  std::string& block = *entry.mutable_block();
  size_t size = 0;
  absl::Status packed = PackBlock(records, options, [&](size_t bytes) {
    size = bytes;
    block.resize(bytes + kBlockSlack);
    return reinterpret_cast<std::byte*>(block.data());
  });
  if (!packed.ok()) {
    entries.RemoveLast();
    return packed;
  }
  block.resize(size);
  *entry.mutable_sequence() = sequence;
  return packed;
}

void AppendStream::AddGap(const v1::SequenceRef& sequence, const v1::Gap& gap) {
  v1::AppendEntry& entry = *request_.mutable_batch()->add_entries();
  *entry.mutable_sequence() = sequence;
  *entry.mutable_gap() = gap;
}

void AppendStream::AddSeal(const v1::SequenceRef& sequence, const v1::Seal& seal) {
  v1::AppendEntry& entry = *request_.mutable_batch()->add_entries();
  *entry.mutable_sequence() = sequence;
  *entry.mutable_seal() = seal;
}

absl::Status AppendStream::Open(absl::Time deadline) {
  if (stream_ != nullptr) return absl::OkStatus();
  context_ = std::make_unique<grpc::ClientContext>();
  client_.Prepare(*context_, absl::InfiniteFuture());
  stream_ = client_.stub_->AsyncAppend(context_.get(), &queue_, nullptr);
  bool opened = Done(deadline);
  if (opened) {
    v1::AppendRequest opening;
    *opening.mutable_header() = header_;
    stream_->Write(opening, nullptr);
    opened = Done(deadline);
  }
  return opened ? absl::OkStatus() : Close();
}

absl::Status AppendStream::Exchange(v1::AppendResponse& response, absl::Time deadline) {
  if (absl::Status opened = Open(deadline); !opened.ok()) return opened;
  stream_->Write(request_, nullptr);
  bool done = Done(deadline);
  if (done) {
    stream_->Read(&response, nullptr);
    done = Done(deadline);
  }
  if (!done) return Close();
  if (response.acks_size() == request_.batch().entries_size()) return absl::OkStatus();
  context_->TryCancel();
  Close().IgnoreError();
  return absl::InternalError("append: not as many acks as entries");
}

absl::Status AppendStream::Flush() {
  const absl::Time deadline = absl::Now() + client_.options_.timeout;
  absl::Status refused;
  while (request_.batch().entries_size() > 0) {
    v1::AppendResponse response;
    if (absl::Status sent = Exchange(response, deadline); !sent.ok()) return sent;
    double delay = 0;
    v1::AppendBatch again;
    for (int i = 0; i < response.acks_size(); ++i) {
      const v1::Ack& ack = response.acks(i);
      if (ack.code() == 0) continue;
      const absl::Status why(static_cast<absl::StatusCode>(ack.code()), ack.message());
      if (ack.retry_seconds() > 0) {
        delay = std::max(delay, ack.retry_seconds());
        again.add_entries()->Swap(request_.mutable_batch()->mutable_entries(i));
        if (absl::Now() + absl::Seconds(delay) >= deadline) refused.Update(why);
      } else {
        refused.Update(why);
      }
    }
    // Without entries to resend, the batch keeps its memory for the next.
    request_.mutable_batch()->clear_entries();
    if (again.entries_size() > 0) request_.mutable_batch()->Swap(&again);
    if (delay == 0) break;
    if (absl::Now() + absl::Seconds(delay) >= deadline) break;
    absl::SleepFor(absl::Seconds(delay));
  }
  return refused;
}

bool AppendStream::Done(absl::Time deadline) {
  void* tag = nullptr;
  bool ok = false;
  if (queue_.AsyncNext(&tag, &ok, absl::ToChronoTime(deadline)) ==
      grpc::CompletionQueue::GOT_EVENT) {
    return ok;
  }
  timed_out_ = true;
  context_->TryCancel();
  queue_.Next(&tag, &ok);
  return false;
}

absl::Status AppendStream::Close() {
  grpc::Status status;
  stream_->Finish(&status, nullptr);
  Done(absl::InfiniteFuture());
  stream_.reset();
  if (std::exchange(timed_out_, false)) {
    return absl::DeadlineExceededError("append: no answer within the timeout");
  }
  if (status.ok()) return absl::UnavailableError("append: the server has ended the stream");
  return FromGrpc(status);
}

}  // namespace sis
