#include "server/rpc/open_streams.h"

namespace sis {

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

void OpenStreams::CancelDisallowed() {
  ReaderLock lock(mutex_);
  for (Stream* stream : streams_) {
    if (!stream->IsAllowed()) stream->Cancel();
  }
}

}  // namespace sis
