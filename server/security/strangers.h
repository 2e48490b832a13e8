// Connections of which nobody has said yet who they are, and what they may bring.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "server/threads/mutex.h"

namespace sis {

// What gRPC 1.51 keeps of headers that never end (CONTINUATION frames) is in none of its own
// limits. So a connection over TCP may bring no more than a message before it makes a call that is
// allowed, and all such connections together no more than a share of gRPC's memory. Others are cut,
// those that brought most first. Thread-safe.
class Strangers {
 public:
  struct Limits {
    int64_t each;      // bytes
    int64_t together;  // bytes
  };

  // As gRPC has a peer: ipv4:1.2.3.4:5, ipv6:%5B::1%5D:5 or, at the second interface,
  // ipv6:%5Bfe80::1%252%5D:5. Empty for what is left alone.
  static std::string PeerOf(int descriptor);

  // A connection that has been accepted. Others than over TCP are left alone.
  void Add(int descriptor) ABSL_LOCKS_EXCLUDED(mutex_);
  // Somebody who may has called from there: all connections of that address and port are known now.
  // There are several only where a client has connected one of its ports to several addresses of
  // the server.
  void Know(absl::string_view peer) ABSL_LOCKS_EXCLUDED(mutex_);
  // Forgets those that have ended, and cuts those that bring too much. To be called often.
  void Check(const Limits& limits) ABSL_LOCKS_EXCLUDED(mutex_);

  bool empty() const ABSL_LOCKS_EXCLUDED(mutex_) {
    ReaderLock lock(mutex_);
    return strangers_.empty();
  }
  // Since the start.
  int64_t cut() const ABSL_LOCKS_EXCLUDED(mutex_) {
    ReaderLock lock(mutex_);
    return cut_;
  }

 private:
  struct Stranger {
    int descriptor;   // gRPC's, which closes it
    uint64_t cookie;  // the socket's, as its descriptor may be another's by now
  };

  mutable Mutex mutex_;
  std::multimap<std::string, Stranger, std::less<>> strangers_ ABSL_GUARDED_BY(mutex_);  // by peer
  int64_t cut_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace sis
