#include "client/one_server/append_writer.h"

#include <array>
#include <iostream>
#include <optional>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/types/messages.h"
#include "kernels/numerics/crc32c.h"
#include "kernels/numerics/log_prob.h"
#include "kernels/records/mass_cut.h"

namespace sis {
namespace {

// In the order of the block's fields, but for its checksum.
using BlockArrays = std::array<std::span<const std::byte>, 5>;

BlockArrays ArraysOf(const BlockEntry& block) {
  const RecordView& records = block.records;
  return {std::as_bytes(records.sampled_ids), std::as_bytes(records.sampled_log_probs),
          std::as_bytes(records.ids), std::as_bytes(records.log_probs),
          std::as_bytes(block.top_k_counts)};
}

// Sets without what a run's mass leaves out.
struct CutSets {
  std::vector<int32_t> ids;
  std::vector<float> log_probs;
  std::vector<uint16_t> counts;  // [T]
};

// Of padded records; none where that would take no fewer bytes.
std::optional<CutSets> Cut(const RecordView& records, double mass) {
  const size_t rows = records.sampled_ids.size();
  const size_t slots = rows == 0 ? 0 : records.ids.size() / rows;
  // Arrays that don't fit each other the server refuses.
  if (slots == 0 || records.ids.size() != rows * slots ||
      records.log_probs.size() != rows * slots || slots > UINT16_MAX) {
    return std::nullopt;
  }
  CutSets cut;
  cut.counts.reserve(rows);
  for (size_t row = 0; row < rows; ++row) {
    const auto ids = records.ids.subspan(row * slots, slots);
    const auto log_probs = records.log_probs.subspan(row * slots, slots);
    size_t used = SlotsToMass(mass, log_probs);
    while (used > 0 && ids[used - 1] == -1 && log_probs[used - 1] == kMinusInfinity) --used;
    cut.ids.insert(cut.ids.end(), ids.begin(), ids.begin() + used);
    cut.log_probs.insert(cut.log_probs.end(), log_probs.begin(), log_probs.begin() + used);
    cut.counts.push_back(static_cast<uint16_t>(used));
  }
  const size_t slot_bytes = sizeof(int32_t) + sizeof(float);
  if (cut.ids.size() * slot_bytes + rows * sizeof(uint16_t) >= rows * slots * slot_bytes) {
    return std::nullopt;
  }
  return cut;
}

OutgoingEntry Made(const BlockEntry& from, double mass) {
  BlockArrays arrays = ArraysOf(from);
  OutgoingEntry entry;
  std::optional<CutSets> cut;
  if (mass > 0 && mass < 1 && from.top_k_counts.empty()) cut = Cut(from.records, mass);
  if (cut.has_value()) {
    arrays[2] = std::as_bytes(std::span(cut->ids));
    arrays[3] = std::as_bytes(std::span(cut->log_probs));
    arrays[4] = std::as_bytes(std::span(cut->counts));
  }
  v1::Block& block = *entry.message.mutable_block();
  ToMessage(from.sequence, *block.mutable_sequence());
  block.set_first_position(from.first_position);
  block.set_policy_version(from.policy_version);
  block.set_sampled_ids(ToBytes(arrays[0]));
  block.set_sampled_log_probs(ToBytes(arrays[1]));
  block.set_top_k_ids(ToBytes(arrays[2]));
  block.set_top_k_log_probs(ToBytes(arrays[3]));
  block.set_top_k_counts(ToBytes(arrays[4]));
  uint32_t crc = 0;
  for (const std::span<const std::byte> array : arrays) crc = ExtendCrc32c(crc, array);
  block.set_crc32c(crc);
  return entry;
}

OutgoingEntry Made(const SealEntry& from, double) {
  OutgoingEntry entry;
  ToMessage(from.sequence, *entry.message.mutable_seal()->mutable_sequence());
  entry.message.mutable_seal()->set_length(from.length);
  if (from.annotation.has_value()) {
    *entry.message.mutable_seal()->mutable_annotation() = *from.annotation;
  }
  return entry;
}

}  // namespace

const v1::SequenceRef& SequenceOf(const v1::AppendEntry& entry) {
  if (entry.has_seal()) return entry.seal().sequence();
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

absl::Status AppendWriter::Seal(const SequenceRef& sequence, uint32_t length,
                                std::optional<v1::Annotation> annotation) {
  const AppendEntry entry = SealEntry{sequence, length, std::move(annotation)};
  return AppendMany({&entry, 1});
}

absl::Status AppendWriter::AppendMany(std::span<const AppendEntry> entries) {
  const auto make = [this](const auto& entry) { return Made(entry, mass_); };
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
