// A received AppendRequest, its entries read where they arrived.
//
// Engines append a token at a time: with protobuf, the objects and strings of an entry cost more
// than all that is done with it. What protobuf's own writers make of a batch (every field once,
// none unknown, ids in ASCII) is read here without making any; whatever else a message may be is
// left to protobuf, so that every message means what protobuf says it means.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "server/wire/received_arrays.h"
#include "server/wire/scattered_bytes.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// One AppendEntry. Refers to what it was read from.
struct AppendEntryView {
  enum class Kind : uint8_t { kNone, kBlock, kSeal, kGap };

  Kind kind = Kind::kNone;
  uint32_t attempt = 0;
  std::string_view sequence_id;
  uint32_t first_position = 0;                 // of a block or gap
  uint32_t length = 0;                         // of a gap or seal
  int reason = 0;                              // of a gap: a v1::MissingReason
  const v1::Annotation* annotation = nullptr;  // of a seal that has one
  uint64_t policy_version = 0;
  ArrayField sampled_ids;
  ArrayField sampled_log_probs;
  ArrayField top_k_ids;
  ArrayField top_k_log_probs;
  ArrayField top_k_counts;  // not empty: the two before are ragged
  std::optional<uint32_t> crc32c;

  // Of its arrays together.
  size_t array_bytes() const;
};

// The entries of a batch, which must outlive them, as must the arrays that belong to it.
std::vector<AppendEntryView> EntriesOf(const v1::AppendBatch& batch,
                                       const ReceivedArrays& arrays = ReceivedArrays());

// Reused from message to message, it allocates nothing for small ones.
class ReceivedAppend {
 public:
  ReceivedAppend() = default;
  ReceivedAppend(const ReceivedAppend&) = delete;
  ReceivedAppend& operator=(const ReceivedAppend&) = delete;

  // Of one batch. More would be answered with many times their own bytes, as each has an ack.
  static constexpr size_t kMostEntries = size_t{1} << 16;

  // Whose memory must stay while what was read is used. InvalidArgument where protobuf would not
  // parse it, or beyond kMostEntries; ResourceExhausted if `charge` has no room for what is made of
  // it. It is then neither header nor batch. What is charged is also for all that is made of the
  // entries until they are acked.
  absl::Status Parse(ScatteredBytes bytes, ParsingCharge& charge);
  // Gives back what only large messages take.
  void Clear();

  bool is_header() const { return message_case_ == v1::AppendRequest::kHeader; }
  const v1::AppendHeader& header() const { return request_.header(); }

  bool is_batch() const { return message_case_ == v1::AppendRequest::kBatch; }
  std::span<const AppendEntryView> entries() const { return entries_; }

 private:
  friend class PlainBatchReader;

  absl::Status ParseByProtobuf(ParsingCharge& charge);

  ScatteredBytes bytes_;
  v1::AppendRequest::MessageCase message_case_ = v1::AppendRequest::MESSAGE_NOT_SET;
  std::vector<AppendEntryView> entries_;
  std::deque<std::string> cut_ids_;  // that lie in more than one piece
  v1::AppendRequest request_;        // if protobuf has read it
  ReceivedArrays arrays_;            // the same
};

}  // namespace sis
