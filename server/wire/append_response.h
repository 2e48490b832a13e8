// The answer to a batch of Append, written without an object per ack.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "server/wire/append_request.h"

namespace sis {

// What became of an entry.
struct EntryAck {
  uint32_t committed_length = 0;
  double retry_seconds = 0;
  absl::Status status;  // why it was refused, if it was
};

// Puts what protobuf would write of an AppendResponse into `bytes`: acks [n] name the sequences of
// entries [n]. Messages are cut to kMaxMessageBytes; all together they take at most
// kMoreMessageBytes more than the ids and arrays of the entries, so that many small entries that
// are refused don't get an answer many times as large as themselves.
inline constexpr size_t kMoreMessageBytes = size_t{64} << 10;
void WriteAppendResponse(std::span<const AppendEntryView> entries, std::span<const EntryAck> acks,
                         std::string& bytes);

}  // namespace sis
