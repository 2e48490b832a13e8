// A connection to one node of memcached, over its text protocol.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace sis {

// What a node says is taken for nothing that it need be: no line, no value and no answer is longer
// than what was asked for can have, each answer has a time as a whole, however it comes, and keys
// that nobody asked for are an error (docs/adr/0036-the-server-speaks-to-memcached-itself.md).
//
// For one thread at a time. After Unavailable it is of no more use: an answer may be under way that
// nobody waits for.
class MemcachedConnection {
 public:
  // Host and port, or the path of a Unix socket and 0. Nothing is waited for beyond `end`, which
  // must outlive the connection and may come nearer at any time: nanoseconds of SteadyNow().
  static absl::StatusOr<std::unique_ptr<MemcachedConnection>> Open(const std::string& host,
                                                                   uint16_t port,
                                                                   const std::atomic<int64_t>& end);
  ~MemcachedConnection();
  MemcachedConnection(const MemcachedConnection&) = delete;
  MemcachedConnection& operator=(const MemcachedConnection&) = delete;

  // Whether the node has neither ended it nor said anything that nobody asked for.
  bool IsQuiet() const;

  enum class Write { kAdd, kSet, kReplaceVersion };
  // AlreadyExists if there is one (kAdd), or one of another version (kReplaceVersion), NotFound if
  // there is none to replace. ResourceExhausted if the node has no room, InvalidArgument if it
  // takes none as large.
  absl::Status Store(Write how, std::string_view key, std::string_view value, int64_t expiration,
                     uint64_t version = 0);
  // NotFound if there is none.
  absl::Status Delete(std::string_view key);

  struct Found {
    std::string value;
    uint64_t version;
  };
  // Calls found(i, item) for those of the keys that there are. The keys must be different.
  absl::Status Get(std::span<const std::string> keys,
                   const std::function<void(size_t i, Found item)>& found);

  // An answer that takes longer is given up, but for a second more for each so many bytes.
  static constexpr absl::Duration kAnswerTime = absl::Seconds(1);
  static constexpr int64_t kSlowestBytesPerSecond = int64_t{4} << 20;
  // More than a line of an answer has.
  static constexpr size_t kMostLineBytes = 512;
  // More than what one Get is used for has: 64 entries, or 16 pieces of a sealed form.
  static constexpr int64_t kMostAnswerBytes = int64_t{64} << 20;

 private:
  MemcachedConnection(int descriptor, const std::atomic<int64_t>& end)
      : descriptor_(descriptor), end_(end) {}

  // Begins a question and its answer.
  void Begin();
  // Until the socket is ready for `events`. Unavailable if there is no time left.
  absl::Status Await(short events) const;
  absl::Status Send(std::string_view bytes);
  // Whatever has come into `into`, at least a byte.
  absl::StatusOr<size_t> Receive(std::span<char> into);
  // Without its end; valid until more is read.
  absl::StatusOr<std::string_view> ReadLine();
  absl::StatusOr<std::string> ReadValue(size_t size);
  // The answer to what changes an item.
  absl::Status ReadOutcome();

  const int descriptor_;
  const std::atomic<int64_t>& end_;
  absl::Time begin_ = absl::InfinitePast();
  int64_t moved_ = 0;  // bytes since
  std::array<char, size_t{16} << 10> buffer_;
  size_t first_ = 0;  // of the buffer [first, last) is not read yet
  size_t last_ = 0;
};

}  // namespace sis
