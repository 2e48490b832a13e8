#include "server/store/redis/redis_address.h"

#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace sis {
namespace {

using Pair = std::pair<absl::string_view, absl::string_view>;

// `what` holds no text of the address that a misplaced password may be in.
absl::Status Invalid(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(
      "redis address: ", what,
      "; must be redis[s]://[user@]host[:port][,host[:port]...][/database][?options]"));
}

// Sets all that follows '?'.
absl::Status ParseOptions(absl::string_view text, RedisAddress& address) {
  std::string timeout = absl::StrCat(absl::ToDoubleSeconds(address.timeout));
  const std::map<absl::string_view, std::string*> options = {
      {"password_file", &address.password_file},
      {"ca", &address.ca},
      {"cert", &address.cert},
      {"key", &address.key},
      {"timeout", &timeout},
  };
  for (const absl::string_view option : absl::StrSplit(text, '&', absl::SkipEmpty())) {
    const Pair named = absl::StrSplit(option, absl::MaxSplits('=', 1));
    const auto known = options.find(named.first);
    if (known == options.end()) {
      return Invalid("unknown option, known are password_file, ca, cert, key and timeout");
    }
    if (named.second.empty()) return Invalid("option without a value");
    *known->second = std::string(named.second);
  }
  double seconds = 0;
  if (!absl::SimpleAtod(timeout, &seconds) || !(seconds >= 0.01 && seconds <= 60)) {
    return Invalid("option timeout: must be in [0.01, 60] seconds");
  }
  address.timeout = absl::Seconds(seconds);
  if (!address.tls && !(address.ca + address.cert + address.key).empty()) {
    return Invalid("options ca, cert and key need rediss://");
  }
  if (address.cert.empty() != address.key.empty()) {
    return Invalid("options cert and key: one without the other");
  }
  return absl::OkStatus();
}

}  // namespace

std::string ToString(const RedisNode& node) {
  const bool v6 = absl::StrContains(node.host, ':');
  return absl::StrCat(v6 ? "[" : "", node.host, v6 ? "]:" : ":", node.port);
}

bool ParseRedisNode(absl::string_view text, RedisNode& node) {
  const bool has_port = absl::StrContains(text, ':') && !absl::EndsWith(text, "]");
  const size_t end = has_port ? text.rfind(':') : text.size();
  absl::string_view host = text.substr(0, end);
  if (absl::ConsumePrefix(&host, "[") != absl::ConsumeSuffix(&host, "]")) return false;
  uint32_t port = node.port;
  if (has_port && !absl::SimpleAtoi(text.substr(end + 1), &port)) return false;
  if (!host.empty()) node.host = std::string(host);
  node.port = static_cast<uint16_t>(port);
  return !node.host.empty() && port > 0 && port == node.port;
}

absl::StatusOr<RedisAddress> ParseRedisAddress(std::string_view text) {
  absl::string_view rest(text.data(), text.size());
  RedisAddress address;
  address.tls = absl::ConsumePrefix(&rest, "rediss://");
  if (!address.tls && !absl::ConsumePrefix(&rest, "redis://")) {
    return Invalid("neither redis:// nor rediss://");
  }
  const Pair parts = absl::StrSplit(rest, absl::MaxSplits('?', 1));
  // 0 if there is no '@'.
  const size_t place_begin = parts.first.rfind('@') + 1;
  if (place_begin > 0) address.user = std::string(parts.first.substr(0, place_begin - 1));
  if (absl::StrContains(address.user, ':')) {
    return Invalid("has a password, which other users of the machine can see; use password_file");
  }
  const Pair place = absl::StrSplit(parts.first.substr(place_begin), absl::MaxSplits('/', 1));
  for (const absl::string_view node : absl::StrSplit(place.first, ',')) {
    if (!ParseRedisNode(node, address.nodes.emplace_back())) {
      return Invalid(absl::StrCat("node ", address.nodes.size(), " is not host[:port]"));
    }
  }
  if (!place.second.empty() &&
      (!absl::SimpleAtoi(place.second, &address.database) || address.database < 0)) {
    return Invalid("the database is not a number");
  }
  if (absl::Status status = ParseOptions(parts.second, address); !status.ok()) return status;
  if (!address.user.empty() && address.password_file.empty()) {
    return Invalid("a user without a password_file");
  }
  return address;
}

}  // namespace sis
