#include "client/one_server/append_writer.h"

#include <array>
#include <iostream>
#include <optional>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/types/messages.h"
#include "kernels/numerics/crc32c.h"

namespace sis {
namespace {

// In the order of the block's fields.
std::array<std::span<const std::byte>, 4> ArraysOf(const RecordView& records) {
  return {std::as_bytes(records.sampled_ids), std::as_bytes(records.sampled_log_probs),
          std::as_bytes(records.ids), std::as_bytes(records.log_probs)};
}

OutgoingEntry Made(const BlockEntry& from, const MappedSegments* segments) {
  const std::array<std::span<const std::byte>, 4> arrays = ArraysOf(from.records);
  OutgoingEntry entry;
  std::vector<std::string> fields;
  if (std::optional<MappedSegments::Locations> parts =
          segments && from.columns.empty() ? segments->FindAll(arrays) : std::nullopt) {
    entry.segment = std::move(parts->segment);
    fields = std::move(parts->fields);
    for (const std::span<const std::byte> array : arrays) entry.array_bytes += array.size();
  } else {
    for (const std::span<const std::byte> array : arrays) fields.push_back(ToBytes(array));
  }
  v1::Block& block = *entry.message.mutable_block();
  ToMessage(from.sequence, *block.mutable_sequence());
  block.set_first_position(from.first_position);
  block.set_policy_version(from.policy_version);
  block.set_sampled_ids(std::move(fields[0]));
  block.set_sampled_log_probs(std::move(fields[1]));
  block.set_top_k_ids(std::move(fields[2]));
  block.set_top_k_log_probs(std::move(fields[3]));
  uint32_t crc = 0;
  for (const std::span<const std::byte> array : arrays) crc = ExtendCrc32c(crc, array);
  block.set_crc32c(crc);
  for (const std::span<const std::byte> column : from.columns) {
    block.add_columns(ToBytes(column));
  }
  return entry;
}

OutgoingEntry Made(const ColumnEntry& from, const MappedSegments*) {
  OutgoingEntry entry;
  v1::ColumnBlock& block = *entry.message.mutable_column();
  ToMessage(from.sequence, *block.mutable_sequence());
  block.set_first_position(from.first_position);
  block.set_length(from.length);
  block.set_column(from.column);
  block.set_values(ToBytes(from.values));
  block.set_crc32c(ExtendCrc32c(0, from.values));
  return entry;
}

OutgoingEntry Made(const TruncateEntry& from, const MappedSegments*) {
  OutgoingEntry entry;
  ToMessage(from.sequence, *entry.message.mutable_truncate()->mutable_sequence());
  entry.message.mutable_truncate()->set_length(from.length);
  return entry;
}

OutgoingEntry Made(const SealEntry& from, const MappedSegments*) {
  OutgoingEntry entry;
  ToMessage(from.sequence, *entry.message.mutable_seal()->mutable_sequence());
  entry.message.mutable_seal()->set_length(from.length);
  return entry;
}

}  // namespace

const v1::SequenceRef& SequenceOf(const v1::AppendEntry& entry) {
  if (entry.has_truncate()) return entry.truncate().sequence();
  if (entry.has_seal()) return entry.seal().sequence();
  if (entry.has_column()) return entry.column().sequence();
  return entry.block().sequence();
}

void WarnOfUnflushed(size_t entries) {
  if (entries == 0) return;
  std::cerr << absl::StrCat("sis: an append stream ended with ", entries,
                            " entries that were not flushed: they may be lost\n");
}

absl::Status AppendWriter::Block(const SequenceRef& sequence, uint32_t first_position,
                                 uint64_t policy_version, const RecordView& records) {
  const AppendEntry entry = BlockEntry{sequence, first_position, policy_version, records};
  return AppendMany({&entry, 1});
}

absl::Status AppendWriter::Column(const SequenceRef& sequence, uint32_t first_position,
                                  uint32_t length, const std::string& column,
                                  std::span<const std::byte> values) {
  const AppendEntry entry = ColumnEntry{sequence, first_position, length, column, values};
  return AppendMany({&entry, 1});
}

absl::Status AppendWriter::Truncate(const SequenceRef& sequence, uint32_t length) {
  const AppendEntry entry = TruncateEntry{sequence, length};
  return AppendMany({&entry, 1});
}

absl::Status AppendWriter::Seal(const SequenceRef& sequence, uint32_t length) {
  const AppendEntry entry = SealEntry{sequence, length};
  return AppendMany({&entry, 1});
}

absl::Status AppendWriter::AppendMany(std::span<const AppendEntry> entries) {
  const auto make = [this](const auto& entry) { return Made(entry, segments_.get()); };
  std::vector<OutgoingEntry> made;
  size_t bytes = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    made.push_back(std::visit(make, entries[i]));
    bytes += made.back().bytes();
    // A batch leaves while the next is made: so copies of arrays are never many.
    if (bytes < batch_bytes_ && i + 1 < entries.size()) continue;
    if (absl::Status status = Put(made); !status.ok()) return status;
    made.clear();
    bytes = 0;
  }
  return absl::OkStatus();
}

}  // namespace sis
