// A page: the records of 64 consecutive positions of one sequence, at fixed places, in one
// allocation.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "kernels/backend.h"
#include "kernels/validate.h"
#include "server/byte_budget.h"

namespace sis {

// Not thread-safe; the sequence that owns it locks.
class Page {
 public:
  static constexpr uint32_t kPositions = 64;

  // What a page of K = slots costs, as charged.
  static int64_t Bytes(int slots);

  // The bytes must have been charged to the budget, which gets them back when the page goes.
  Page(int slots, ByteBudget& budget);
  ~Page();
  Page(const Page&) = delete;
  Page& operator=(const Page&) = delete;

  // Bit i is set if the i-th position has a record.
  uint64_t present() const { return present_; }

  // Positions are given as an index in [0, kPositions) and an absolute position, which enters the
  // digest. Row `row` of the view is meant.
  void Store(uint32_t index, uint32_t position, const RecordView& records, size_t row,
             uint8_t rank);
  // Whether a present record is bit by bit the same.
  bool Equals(uint32_t index, const RecordView& records, size_t row) const;
  // Drops a record, present or not.
  void Erase(uint32_t index, uint32_t position);

  BehaviorView Behavior(uint32_t index, uint32_t count) const;
  RecordView Records(uint32_t index, uint32_t count) const;

  // The digests of all records, or of one, which must be present.
  uint64_t digest() const { return digest_; }
  uint64_t PositionDigestAt(uint32_t index, uint32_t position) const;

 private:
  const size_t slots_;
  ByteBudget& budget_;
  uint64_t present_ = 0;
  uint64_t digest_ = 0;
  std::unique_ptr<std::byte[]> memory_;  // the arrays below, one after the other
  std::span<int32_t> ids_;               // [64, K]
  std::span<float> log_probs_;           // [64, K]
  std::span<int32_t> sampled_ids_;       // [64]
  std::span<float> sampled_log_probs_;   // [64]
  std::span<uint8_t> ranks_;             // [64]
};

}  // namespace sis
