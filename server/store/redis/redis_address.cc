#include "server/store/redis/redis_address.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace sis {
namespace {

// `what` holds no text of the address that a misplaced password may be in.
absl::Status Invalid(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(
      "redis address: ", what,
      "; must be redis[s]://[user:password@]host[:port][,host[:port]...][/database][?options]"));
}

bool Decode(absl::string_view text, std::string& decoded) {
  decoded.clear();
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded += text[i];
      continue;
    }
    uint32_t byte = 0;
    if (text.size() - i < 3 || !absl::SimpleHexAtoi(text.substr(i + 1, 2), &byte)) return false;
    decoded += static_cast<char>(byte);
    i += 2;
  }
  return true;
}

bool ParseNode(absl::string_view text, RedisNode& node) {
  const size_t bracket = absl::StartsWith(text, "[") ? text.find(']') : 0;
  if (bracket == absl::string_view::npos) return false;
  const size_t colon = text.find(':', bracket);
  const absl::string_view host = text.substr(0, colon);
  node.host = std::string(bracket > 0 ? host.substr(1, host.size() - 2) : host);
  if (bracket > 0 && host.size() != bracket + 1) return false;
  uint32_t port = node.port;
  if (colon != absl::string_view::npos &&
      (!absl::SimpleAtoi(text.substr(colon + 1), &port) || port == 0 || port > UINT16_MAX)) {
    return false;
  }
  node.port = static_cast<uint16_t>(port);
  return !node.host.empty();
}

absl::Status ParseOption(absl::string_view name, std::string value, RedisAddress& address) {
  if (value.empty()) return Invalid("option without a value");
  if (name == "timeout") {
    double seconds = 0;
    if (!absl::SimpleAtod(value, &seconds) || !(seconds >= 0.01 && seconds <= 60)) {
      return Invalid("option timeout: must be in [0.01, 60] seconds");
    }
    address.timeout = absl::Seconds(seconds);
    return absl::OkStatus();
  }
  const std::pair<absl::string_view, std::string*> files[] = {
      {"password_file", &address.password_file},
      {"ca", &address.ca},
      {"cert", &address.cert},
      {"key", &address.key},
  };
  for (const auto& [option, file] : files) {
    if (name != option) continue;
    if (!address.tls && name != "password_file") {
      return Invalid("options ca, cert and key need rediss://");
    }
    *file = std::move(value);
    return absl::OkStatus();
  }
  return Invalid("unknown option, known are password_file, ca, cert, key and timeout");
}

}  // namespace

std::string ToString(const RedisNode& node) {
  const bool v6 = absl::StrContains(node.host, ':');
  return absl::StrCat(v6 ? "[" : "", node.host, v6 ? "]:" : ":", node.port);
}

absl::StatusOr<RedisAddress> ParseRedisAddress(std::string_view text) {
  absl::string_view rest(text.data(), text.size());
  RedisAddress address;
  address.tls = absl::ConsumePrefix(&rest, "rediss://");
  if (!address.tls && !absl::ConsumePrefix(&rest, "redis://")) {
    return Invalid("neither redis:// nor rediss://");
  }
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(rest, absl::MaxSplits('?', 1));
  if (const size_t at = parts.first.rfind('@'); at != absl::string_view::npos) {
    const std::pair<absl::string_view, absl::string_view> names =
        absl::StrSplit(parts.first.substr(0, at), absl::MaxSplits(':', 1));
    if (!Decode(names.first, address.user) || !Decode(names.second, address.password)) {
      return Invalid("user or password: '%' must be followed by two hexadecimal digits");
    }
  }
  const std::pair<absl::string_view, absl::string_view> place =
      absl::StrSplit(parts.first.substr(parts.first.rfind('@') + 1), absl::MaxSplits('/', 1));
  for (const absl::string_view node : absl::StrSplit(place.first, ',')) {
    if (!ParseNode(node, address.nodes.emplace_back())) {
      return Invalid(absl::StrCat("node ", address.nodes.size(), " is not host[:port]"));
    }
  }
  if (!place.second.empty() &&
      (!absl::SimpleAtoi(place.second, &address.database) || address.database < 0)) {
    return Invalid("the database is not a number");
  }
  for (const absl::string_view option : absl::StrSplit(parts.second, '&', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> named =
        absl::StrSplit(option, absl::MaxSplits('=', 1));
    std::string value;
    if (!Decode(named.second, value)) {
      return Invalid("option: '%' must be followed by two hexadecimal digits");
    }
    if (absl::Status status = ParseOption(named.first, std::move(value), address); !status.ok()) {
      return status;
    }
  }
  if (!address.password.empty() && !address.password_file.empty()) {
    return Invalid("a password and a password_file");
  }
  if (!address.user.empty() && address.password.empty() && address.password_file.empty()) {
    return Invalid("a user without a password or password_file");
  }
  if (address.cert.empty() != address.key.empty()) {
    return Invalid("options cert and key: one without the other");
  }
  return address;
}

}  // namespace sis
