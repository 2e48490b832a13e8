// What clients are told in words.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace sis {

// The longest message of a status or an ack. Ours are shorter, as names are bounded; but whatever
// a message is made of, the client can read it: gRPC refuses statuses of more than some 8 KiB.
inline constexpr size_t kMaxMessageBytes = 1024;

// The beginning of a text in UTF-8, of at most so many bytes, which ends with a whole character.
inline std::string_view Beginning(std::string_view text, size_t most) {
  if (text.size() <= most) return text;
  const auto continues = [](char c) { return (static_cast<uint8_t>(c) & 0xc0) == 0x80; };
  while (most > 0 && continues(text[most])) --most;
  return text.substr(0, most);
}

}  // namespace sis
