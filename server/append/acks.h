// Acks of Append entries.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// The outcome of one entry.
struct EntryAck {
  uint32_t committed_length = 0;
  double retry_seconds = 0;
  absl::Status status;  // the reason if the entry was refused
};

// Maximum size of all messages of a response, in bytes, beyond the ids and blocks of its batch. It
// bounds the answer to many small entries that are refused.
inline constexpr size_t kMoreMessageBytes = size_t{64} << 10;

// Adds one ack per element of `acks` to `response`; acks [n] belong to the first entries of
// `batch`. Cuts messages to kMaxMessageBytes each, and to kMoreMessageBytes in total.
void AddAcks(const v1::AppendBatch& batch, std::span<const EntryAck> acks,
             v1::AppendResponse& response);

}  // namespace sis
