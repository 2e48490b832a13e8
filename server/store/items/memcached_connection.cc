#include "server/store/items/memcached_connection.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/store/items/item_store.h"
#include "server/threads/steady_now.h"

namespace sis {
namespace {

constexpr absl::Duration kConnectTime = absl::Milliseconds(250);  // for each address
constexpr int kMostAddresses = 4;
// How often it is looked whether the end has come nearer.
constexpr absl::Duration kLook = absl::Milliseconds(100);
constexpr std::string_view kLineEnd = "\r\n";

absl::Status Unavailable(absl::string_view why) {
  return absl::UnavailableError(absl::StrCat("memcached: ", why));
}

absl::Status FromErrno(absl::string_view call) {
  return Unavailable(absl::StrCat(call, ": ", std::strerror(errno)));
}

// What a line says is shown as far as it can be.
absl::Status NoAnswer(absl::string_view line) {
  return Unavailable(absl::StrCat("no answer to what was asked: '", line.substr(0, 100), "'"));
}

absl::Time End(const std::atomic<int64_t>& end) { return absl::FromUnixNanos(end.load()); }

// Until `descriptor` is ready for `events`; false if that isn't before `deadline`, or `end`.
bool Ready(int descriptor, short events, absl::Time deadline, const std::atomic<int64_t>& end) {
  for (;;) {
    const absl::Duration left = std::min(deadline, End(end)) - SteadyNow();
    if (left <= absl::ZeroDuration()) return false;
    pollfd polled = {descriptor, events, 0};
    const auto milliseconds =
        static_cast<int>(absl::ToInt64Milliseconds(std::min(left, kLook)) + 1);
    if (poll(&polled, 1, milliseconds) > 0) return true;
  }
}

absl::StatusOr<int> ConnectTo(const sockaddr* address, socklen_t size,
                              const std::atomic<int64_t>& end) {
  const int descriptor = socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (descriptor < 0) return FromErrno("socket");
  absl::Cleanup give_up = [descriptor] { close(descriptor); };
  if (address->sa_family != AF_UNIX) {
    const int on = 1;
    setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(descriptor, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  }
  if (connect(descriptor, address, size) != 0) {
    if (errno != EINPROGRESS) return FromErrno("connect");
    if (!Ready(descriptor, POLLOUT, SteadyNow() + kConnectTime, end)) {
      return Unavailable("connect: no answer");
    }
    int error = 0;
    socklen_t error_size = sizeof(error);
    getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &error, &error_size);
    if (error != 0) return Unavailable(absl::StrCat("connect: ", std::strerror(error)));
  }
  std::move(give_up).Cancel();
  return descriptor;
}

absl::StatusOr<int> ConnectToPath(const std::string& path, const std::atomic<int64_t>& end) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return Unavailable("the socket's path is too long");
  std::memcpy(address.sun_path, path.data(), path.size());
  return ConnectTo(reinterpret_cast<const sockaddr*>(&address), sizeof(address), end);
}

absl::StatusOr<int> ConnectToHost(const std::string& host, uint16_t port,
                                  const std::atomic<int64_t>& end) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), absl::StrCat(port).c_str(), &hints, &found);
  if (error != 0) return Unavailable(absl::StrCat(host, ": ", gai_strerror(error)));
  const absl::Cleanup free_found = [found] { freeaddrinfo(found); };
  absl::Status problem;
  int tried = 0;
  for (const addrinfo* each = found; each != nullptr && tried < kMostAddresses;
       each = each->ai_next, ++tried) {
    absl::StatusOr<int> descriptor = ConnectTo(each->ai_addr, each->ai_addrlen, end);
    if (descriptor.ok()) return descriptor;
    problem = descriptor.status();
  }
  return problem;
}

template <typename Number>
bool Parse(absl::string_view text, Number& number) {
  const char* const end = text.data() + text.size();
  const auto [parsed, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && parsed == end;
}

}  // namespace

absl::StatusOr<std::unique_ptr<MemcachedConnection>> MemcachedConnection::Open(
    const std::string& host, uint16_t port, const std::atomic<int64_t>& end) {
  if (End(end) <= SteadyNow()) return Unavailable("the server shuts down");
  const absl::StatusOr<int> descriptor =
      port == 0 ? ConnectToPath(host, end) : ConnectToHost(host, port, end);
  if (!descriptor.ok()) return descriptor.status();
  return std::unique_ptr<MemcachedConnection>(new MemcachedConnection(*descriptor, end));
}

MemcachedConnection::~MemcachedConnection() { close(descriptor_); }

bool MemcachedConnection::IsQuiet() const {
  char byte;
  return first_ == last_ && recv(descriptor_, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 &&
         errno == EAGAIN;
}

void MemcachedConnection::Begin() {
  begin_ = SteadyNow();
  moved_ = 0;
}

absl::Status MemcachedConnection::Await(short events) const {
  const absl::Duration more =
      absl::Seconds(static_cast<double>(moved_) / static_cast<double>(kSlowestBytesPerSecond));
  if (Ready(descriptor_, events, begin_ + kAnswerTime + more, end_)) return absl::OkStatus();
  return Unavailable("no answer in time");
}

absl::Status MemcachedConnection::Send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t size = send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (size >= 0) {
      bytes.remove_prefix(static_cast<size_t>(size));
      moved_ += size;
    } else if (errno == EAGAIN) {
      if (absl::Status ready = Await(POLLOUT); !ready.ok()) return ready;
    } else if (errno != EINTR) {
      return FromErrno("send");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<size_t> MemcachedConnection::Receive(std::span<char> into) {
  for (;;) {
    // First, so that what comes without a pause is given up too when its time is over.
    if (absl::Status ready = Await(POLLIN); !ready.ok()) return ready;
    const ssize_t size = recv(descriptor_, into.data(), into.size(), 0);
    if (size > 0) {
      moved_ += size;
      return static_cast<size_t>(size);
    }
    if (size == 0) return Unavailable("the node has ended the connection");
    if (errno != EAGAIN && errno != EINTR) return FromErrno("recv");
  }
}

absl::StatusOr<std::string_view> MemcachedConnection::ReadLine() {
  for (;;) {
    const std::string_view unread(buffer_.data() + first_, last_ - first_);
    const size_t end = unread.substr(0, kMostLineBytes).find(kLineEnd);
    if (end != std::string_view::npos) {
      first_ += end + kLineEnd.size();
      return unread.substr(0, end);
    }
    if (unread.size() >= kMostLineBytes) return NoAnswer({unread.data(), unread.size()});
    std::memmove(buffer_.data(), unread.data(), unread.size());
    first_ = 0;
    last_ = unread.size();
    const absl::StatusOr<size_t> size = Receive(std::span(buffer_).subspan(last_));
    if (!size.ok()) return size.status();
    last_ += *size;
  }
}

absl::StatusOr<std::string> MemcachedConnection::ReadValue(size_t size) {
  std::string value(size + kLineEnd.size(), '\0');
  size_t have = std::min(value.size(), last_ - first_);
  std::memcpy(value.data(), buffer_.data() + first_, have);
  first_ += have;
  while (have < value.size()) {
    const absl::StatusOr<size_t> more = Receive(std::span(value).subspan(have));
    if (!more.ok()) return more.status();
    have += *more;
  }
  if (!std::string_view(value).ends_with(kLineEnd)) return NoAnswer("a value of another size");
  value.resize(size);
  return value;
}

absl::Status MemcachedConnection::ReadOutcome() {
  const absl::StatusOr<std::string_view> line = ReadLine();
  if (!line.ok()) return line.status();
  if (*line == "STORED" || *line == "DELETED") return absl::OkStatus();
  if (*line == "NOT_STORED" || *line == "EXISTS") {
    return absl::AlreadyExistsError("stored already");
  }
  if (*line == "NOT_FOUND") return absl::NotFoundError("nothing is stored");
  const absl::string_view text(line->data(), line->size());
  if (absl::StartsWith(text, "SERVER_ERROR") && absl::StrContains(text, "too large")) {
    return absl::InvalidArgumentError("memcached: larger than the node's largest item");
  }
  if (absl::StartsWith(text, "SERVER_ERROR") && absl::StrContains(text, "ut of memory")) {
    return absl::ResourceExhaustedError("memcached: the node has no room");
  }
  return NoAnswer(text);
}

absl::Status MemcachedConnection::Store(Write how, std::string_view key, std::string_view value,
                                        int64_t expiration, uint64_t version) {
  Begin();
  const bool versioned = how == Write::kReplaceVersion;
  const char* const command = how == Write::kAdd ? "add " : (versioned ? "cas " : "set ");
  absl::Status sent =
      Send(absl::StrCat(command, absl::string_view(key.data(), key.size()), " 0 ", expiration, " ",
                        value.size(), versioned ? absl::StrCat(" ", version) : "", "\r\n",
                        absl::string_view(value.data(), value.size()), "\r\n"));
  if (!sent.ok()) return sent;
  return ReadOutcome();
}

absl::Status MemcachedConnection::Delete(std::string_view key) {
  Begin();
  absl::Status sent =
      Send(absl::StrCat("delete ", absl::string_view(key.data(), key.size()), "\r\n"));
  return sent.ok() ? ReadOutcome() : sent;
}

absl::Status MemcachedConnection::Get(std::span<const std::string> keys,
                                      const std::function<void(size_t i, Found item)>& found) {
  Begin();
  absl::flat_hash_map<std::string_view, size_t> asked;
  std::string command = "gets";
  for (size_t i = 0; i < keys.size(); ++i) {
    asked.emplace(keys[i], i);
    absl::StrAppend(&command, " ", keys[i]);
  }
  if (absl::Status sent = Send(command + "\r\n"); !sent.ok()) return sent;
  for (int64_t bytes = 0;;) {
    const absl::StatusOr<std::string_view> line = ReadLine();
    if (!line.ok()) return line.status();
    const absl::string_view text(line->data(), line->size());
    if (text == "END") return absl::OkStatus();
    // VALUE key flags size version
    const std::vector<absl::string_view> words = absl::StrSplit(text, ' ');
    Found item;
    size_t size = 0;
    if (words.size() != 5 || words[0] != "VALUE" || !Parse(words[3], size) ||
        !Parse(words[4], item.version)) {
      return NoAnswer(text);
    }
    const auto key = asked.find({words[1].data(), words[1].size()});
    if (key == asked.end()) return NoAnswer(text);
    if (size > kMostItemBytes) return NoAnswer(text);
    bytes += static_cast<int64_t>(size);
    if (bytes > kMostAnswerBytes) return Unavailable("an answer that is longer than any can be");
    const size_t i = key->second;
    asked.erase(key);  // no key has two values
    absl::StatusOr<std::string> value = ReadValue(size);
    if (!value.ok()) return value.status();
    item.value = *std::move(value);
    found(i, std::move(item));
  }
}

}  // namespace sis
