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

}  // namespace sis
