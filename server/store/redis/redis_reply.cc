#include "server/store/redis/redis_reply.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace sis {
namespace {

constexpr int kMaxDepth = 7;
constexpr size_t kMaxLineBytes = size_t{64} << 10;

absl::Status Malformed() { return absl::UnavailableError("no reply of Redis"); }

}  // namespace

absl::Status RedisError(absl::string_view text) {
  const std::string shown = absl::CHexEscape(text.substr(0, 200));
  const absl::string_view code = RedisErrorCode(text);
  if (code == "OOM") {
    return absl::ResourceExhaustedError(absl::StrCat("maxmemory is reached: ", shown));
  }
  if (code == "WRONGTYPE") {
    return absl::DataLossError(absl::StrCat("another program wrote to this key: ", shown));
  }
  const char* const meaning = code == "NOAUTH" || code == "WRONGPASS" || code == "NOPERM"
                                  ? "refuses user or password: "
                              : code == "READONLY"    ? "is a read-only replica: "
                              : code == "LOADING"     ? "is still loading its data: "
                              : code == "MISCONF"     ? "cannot write to its disk: "
                              : code == "CLUSTERDOWN" ? "the cluster is down: "
                                                      : "";
  return absl::UnavailableError(absl::StrCat(meaning, shown));
}

absl::StatusOr<RedisReply> RedisReplyReader::Next(size_t max_bytes, Receive receive) {
  RedisReply reply;
  absl::Status status = Read(receive, 0, max_bytes, reply);
  if (!status.ok()) return status;
  return reply;
}

absl::Status RedisReplyReader::Read(Receive receive, int depth, size_t& max_bytes,
                                    RedisReply& reply) {
  const auto more = [&] {
    bytes_.erase(0, std::exchange(begin_, 0));
    return receive(bytes_);
  };
  size_t end = 0;
  while ((end = bytes_.find("\r\n", begin_)) == std::string::npos) {
    const size_t size = bytes_.size() - begin_;
    const bool is_reply = size == 0 || absl::StrContains("+-:$*", bytes_[begin_]);
    if (!is_reply || size > kMaxLineBytes) return Malformed();
    if (absl::Status status = more(); !status.ok()) return status;
  }
  const char kind = bytes_[begin_];
  const std::string line = bytes_.substr(begin_ + 1, end - begin_ - 1);
  begin_ = end + 2;
  reply.kind = static_cast<RedisReply::Kind>(kind == '+' ? '$' : kind);
  const auto take = [&](uint64_t bytes) {
    if (bytes > max_bytes) return absl::UnavailableError("a reply that takes too much memory");
    max_bytes -= bytes;
    return absl::OkStatus();
  };
  if (kind == '+' || kind == '-') {
    reply.text = line;
    return take(line.size());
  }
  if (!absl::SimpleAtoi(line, &reply.integer)) return Malformed();
  const bool is_nil = line == "-1" && (kind == '$' || kind == '*');
  if (is_nil) reply = RedisReply();
  if (is_nil || kind == ':') return absl::OkStatus();
  if (reply.integer < 0) return Malformed();
  const auto size = static_cast<uint64_t>(std::exchange(reply.integer, 0));
  if (kind == '$') {
    if (absl::Status status = take(size); !status.ok()) return status;
    while (bytes_.size() - begin_ < size + 2) {
      if (absl::Status status = more(); !status.ok()) return status;
    }
    reply.text = bytes_.substr(begin_, size);
    begin_ += size + 2;
    return absl::OkStatus();
  }
  if (kind != '*' || depth == kMaxDepth || size > UINT32_MAX) return Malformed();
  if (absl::Status status = take(size * sizeof(RedisReply)); !status.ok()) return status;
  reply.elements.resize(size);
  for (RedisReply& element : reply.elements) {
    absl::Status status = Read(receive, depth + 1, max_bytes, element);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace sis
