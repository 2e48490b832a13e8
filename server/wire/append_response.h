// The answer to a batch of Append, written without an object per ack.
#pragma once

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
// entries [n].
void WriteAppendResponse(std::span<const AppendEntryView> entries, std::span<const EntryAck> acks,
                         std::string& bytes);

}  // namespace sis
