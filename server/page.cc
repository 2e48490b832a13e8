#include "server/page.h"

#include <algorithm>
#include <cstring>

#include "kernels/record_digest.h"

namespace sis {
namespace {

constexpr int64_t kSampledBytes = sizeof(int32_t) + sizeof(float) + sizeof(uint8_t);

int64_t ArrayBytes(int64_t slots) {
  return Page::kPositions * (slots * (sizeof(int32_t) + sizeof(float)) + kSampledBytes);
}

// Hands out consecutive pieces of the page's memory, widest type first so that all are aligned.
class Carver {
 public:
  explicit Carver(std::byte* memory) : next_(memory) {}
  template <typename T>
  std::span<T> Take(size_t count) {
    std::span<T> piece(reinterpret_cast<T*>(next_), count);
    next_ += piece.size_bytes();
    return piece;
  }

 private:
  std::byte* next_;
};

template <typename T>
bool SameBits(std::span<const T> a, std::span<const T> b) {
  return std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

}  // namespace

int64_t Page::Bytes(int slots) { return static_cast<int64_t>(sizeof(Page)) + ArrayBytes(slots); }

Page::Page(int slots, ByteBudget& budget)
    : slots_(slots),
      budget_(budget),
      memory_(std::make_unique_for_overwrite<std::byte[]>(ArrayBytes(slots))) {
  Carver carver(memory_.get());
  ids_ = carver.Take<int32_t>(kPositions * slots_);
  log_probs_ = carver.Take<float>(kPositions * slots_);
  sampled_ids_ = carver.Take<int32_t>(kPositions);
  sampled_log_probs_ = carver.Take<float>(kPositions);
  ranks_ = carver.Take<uint8_t>(kPositions);
}

Page::~Page() { budget_.Refund(Bytes(static_cast<int>(slots_))); }

void Page::Store(uint32_t index, uint32_t position, const RecordView& records, size_t row,
                 uint8_t rank) {
  std::ranges::copy(records.ids.subspan(row * slots_, slots_), ids_.begin() + index * slots_);
  std::ranges::copy(records.log_probs.subspan(row * slots_, slots_),
                    log_probs_.begin() + index * slots_);
  sampled_ids_[index] = records.sampled_ids[row];
  sampled_log_probs_[index] = records.sampled_log_probs[row];
  ranks_[index] = rank;
  present_ |= uint64_t{1} << index;
  digest_ += PositionDigestAt(index, position);
}

bool Page::Equals(uint32_t index, const RecordView& records, size_t row) const {
  const RecordView mine = Records(index, 1);
  return SameBits(mine.sampled_ids, records.sampled_ids.subspan(row, 1)) &&
         SameBits(mine.sampled_log_probs, records.sampled_log_probs.subspan(row, 1)) &&
         SameBits(mine.ids, records.ids.subspan(row * slots_, slots_)) &&
         SameBits(mine.log_probs, records.log_probs.subspan(row * slots_, slots_));
}

void Page::Erase(uint32_t index, uint32_t position) {
  const uint64_t bit = uint64_t{1} << index;
  if ((present_ & bit) == 0) return;
  digest_ -= PositionDigestAt(index, position);
  present_ &= ~bit;
}

BehaviorView Page::Behavior(uint32_t index, uint32_t count) const {
  return {.log_probs = log_probs_.subspan(index * slots_, count * slots_),
          .sampled_log_probs = sampled_log_probs_.subspan(index, count),
          .sampled_ranks = ranks_.subspan(index, count)};
}

RecordView Page::Records(uint32_t index, uint32_t count) const {
  return {.sampled_ids = sampled_ids_.subspan(index, count),
          .sampled_log_probs = sampled_log_probs_.subspan(index, count),
          .ids = ids_.subspan(index * slots_, count * slots_),
          .log_probs = log_probs_.subspan(index * slots_, count * slots_)};
}

uint64_t Page::PositionDigestAt(uint32_t index, uint32_t position) const {
  const RecordView record = Records(index, 1);
  return PositionDigest(position, record.sampled_ids[0], record.sampled_log_probs[0], record.ids,
                        record.log_probs);
}

}  // namespace sis
