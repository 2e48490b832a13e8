// Messages of statuses and acks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace sis {

// Maximum size of the message of a status or an ack, in bytes. Longer messages are rare, as names
// are bounded; gRPC clients can't read statuses of more than about 8 KiB.
inline constexpr size_t kMaxMessageBytes = 1024;

// Returns the longest beginning of `text`, which is UTF-8, that has at most `most` bytes and ends
// with a whole character.
inline std::string_view Beginning(std::string_view text, size_t most) {
  if (text.size() <= most) return text;
  const auto continues = [](char c) { return (static_cast<uint8_t>(c) & 0xc0) == 0x80; };
  while (most > 0 && continues(text[most])) --most;
  return text.substr(0, most);
}

}  // namespace sis
