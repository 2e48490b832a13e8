#include "client/append_writer.h"

#include <span>
#include <utility>

#include "client/wire.h"
#include "kernels/crc32c.h"

namespace sis {
namespace {

uint32_t BlockCrc32c(const RecordView& records) {
  uint32_t crc = ExtendCrc32c(0, std::as_bytes(records.sampled_ids));
  crc = ExtendCrc32c(crc, std::as_bytes(records.sampled_log_probs));
  crc = ExtendCrc32c(crc, std::as_bytes(records.ids));
  return ExtendCrc32c(crc, std::as_bytes(records.log_probs));
}

}  // namespace

const v1::SequenceRef& SequenceOf(const v1::AppendEntry& entry) {
  if (entry.has_truncate()) return entry.truncate().sequence();
  if (entry.has_seal()) return entry.seal().sequence();
  return entry.block().sequence();
}

absl::Status AppendWriter::Block(const SequenceRef& sequence, uint32_t first_position,
                                 uint64_t policy_version, const RecordView& records) {
  v1::AppendEntry entry;
  v1::Block& block = *entry.mutable_block();
  ToMessage(sequence, *block.mutable_sequence());
  block.set_first_position(first_position);
  block.set_policy_version(policy_version);
  block.set_sampled_ids(ToBytes(records.sampled_ids));
  block.set_sampled_log_probs(ToBytes(records.sampled_log_probs));
  block.set_top_k_ids(ToBytes(records.ids));
  block.set_top_k_log_probs(ToBytes(records.log_probs));
  block.set_crc32c(BlockCrc32c(records));
  return Put(std::move(entry));
}

absl::Status AppendWriter::Truncate(const SequenceRef& sequence, uint32_t length) {
  v1::AppendEntry entry;
  ToMessage(sequence, *entry.mutable_truncate()->mutable_sequence());
  entry.mutable_truncate()->set_length(length);
  return Put(std::move(entry));
}

absl::Status AppendWriter::Seal(const SequenceRef& sequence, uint32_t length) {
  v1::AppendEntry entry;
  ToMessage(sequence, *entry.mutable_seal()->mutable_sequence());
  entry.mutable_seal()->set_length(length);
  return Put(std::move(entry));
}

}  // namespace sis
