#include "server/append/acks.h"

#include <algorithm>
#include <string>

#include "server/messages/message_text.h"

namespace sis {

void AddAcks(const v1::AppendBatch& batch, std::span<const EntryAck> acks,
             v1::AppendResponse& response) {
  size_t free_bytes = kMoreMessageBytes;
  response.mutable_acks()->Reserve(static_cast<int>(acks.size()));
  for (size_t i = 0; i < acks.size(); ++i) {
    const v1::AppendEntry& entry = batch.entries(static_cast<int>(i));
    free_bytes += entry.sequence().id().size() + entry.block().size();
    v1::Ack& ack = *response.add_acks();
    *ack.mutable_sequence() = entry.sequence();
    ack.set_committed_length(acks[i].committed_length);
    if (acks[i].status.ok()) continue;
    const absl::string_view whole = acks[i].status.message();
    const std::string_view message =
        Beginning({whole.data(), whole.size()}, std::min(free_bytes, kMaxMessageBytes));
    free_bytes -= message.size();
    ack.set_code(static_cast<int>(acks[i].status.code()));
    ack.set_message(std::string(message));
    ack.set_retry_seconds(acks[i].retry_seconds);
  }
}

}  // namespace sis
