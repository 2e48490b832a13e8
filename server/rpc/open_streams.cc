#include "server/rpc/open_streams.h"

#include <algorithm>

#include "server/rpc/resources.h"
#include "server/threads/steady_now.h"

namespace sis {

OpenStreams::Stream::Stream(grpc::CallbackServerContext& context, const Resources& resources,
                            const char* method)
    : streams_(resources.streams),
      call_(resources.streams),
      method_(method),
      context_(context),
      resources_(resources),
      caller_(resources.authorize(context, method)),
      timer_(resources.metrics, method) {}

bool OpenStreams::Stream::IsAllowed() const {
  return resources_.authorize(context_, method_) == caller_;
}

void OpenStreams::Add(Stream& stream) {
  WriterLock lock(mutex_);
  streams_.insert(&stream);
  if (closed_) stream.Close();
}

void OpenStreams::Remove(Stream& stream) {
  WriterLock lock(mutex_);
  streams_.erase(&stream);
}

void OpenStreams::Close() {
  WriterLock lock(mutex_);
  closed_ = true;
  for (Stream* stream : streams_) stream->Close();
}

void OpenStreams::CancelStalled() {
  const int64_t latest = absl::ToUnixNanos(clock_() - kPatience);
  ReaderLock lock(mutex_);
  for (Stream* stream : streams_) {
    if (stream->write_began_ < latest) stream->Cancel();
  }
}

void OpenStreams::CallBegins() {
  WriterLock lock(calls_mutex_);
  ++calls_;
}

void OpenStreams::CallEnds() {
  WriterLock lock(calls_mutex_);
  if (--calls_ == 0) none_left_.notify_all();
}

bool OpenStreams::AwaitNone(absl::Time deadline) {
  WriterLock lock(calls_mutex_);
  while (calls_ > 0) {
    const absl::Duration left = deadline - SteadyNow();
    if (left <= absl::ZeroDuration()) return false;
    // Limits the wait to a duration that every clock can represent.
    none_left_.wait_for(calls_mutex_, absl::ToChronoNanoseconds(std::min(left, absl::Hours(1))));
  }
  return true;
}

void OpenStreams::CancelDisallowed() {
  ReaderLock lock(mutex_);
  for (Stream* stream : streams_) {
    if (!stream->IsAllowed()) stream->Cancel();
  }
}

}  // namespace sis
