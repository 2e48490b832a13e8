// Ranks of sampled tokens as they lie: bytes in pages of version 1 (docs/page_format.md), else of
// 16 bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <type_traits>

#include "kernels/records/record_view.h"

namespace sis {

// Where ranks are bytes K is at most this, and the bytes from here on are the low ones of
// kRankAbsent and kRankOutside.
inline constexpr int kMaxTopKOfByteRanks = 254;

// The rank that a byte stands for.
constexpr uint16_t RankOfByte(uint8_t byte) {
  return byte < kMaxTopKOfByteRanks ? byte : static_cast<uint16_t>(0xff00 | byte);
}

class RankSpan {
 public:
  RankSpan() = default;
  RankSpan(const uint16_t* ranks, size_t size) : ranks_(ranks), size_(size) {}
  RankSpan(const uint8_t* bytes, size_t size) : bytes_(bytes), size_(size) {}
  template <class Ranks>
  requires std::is_convertible_v<const Ranks&, std::span<const uint16_t>> RankSpan(
      const Ranks& ranks)
      : ranks_(std::data(ranks)), size_(std::size(ranks)) {}

  size_t size() const { return size_; }
  uint16_t operator[](size_t i) const {
    return bytes_ != nullptr ? RankOfByte(bytes_[i]) : ranks_[i];
  }
  RankSpan subspan(size_t first, size_t count) const {
    return bytes_ != nullptr ? RankSpan(bytes_ + first, count) : RankSpan(ranks_ + first, count);
  }

  // One of the two is null.
  const uint8_t* bytes() const { return bytes_; }
  const uint16_t* halves() const { return ranks_; }
  // As they lie in memory.
  std::span<const std::byte> memory() const {
    return bytes_ != nullptr ? std::as_bytes(std::span(bytes_, size_))
                             : std::as_bytes(std::span(ranks_, size_));
  }

 private:
  const uint8_t* bytes_ = nullptr;
  const uint16_t* ranks_ = nullptr;
  size_t size_ = 0;
};

}  // namespace sis
