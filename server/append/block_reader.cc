#include "server/append/block_reader.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/block/pack.h"
#include "kernels/block/slot_checker.h"
#include "kernels/numerics/crc32c.h"
#include "kernels/numerics/log_prob.h"
#include "server/messages/arrays.h"

namespace sis {
namespace {

// Maximum size of the padded sets of a ragged block, in bytes. Without it, a block of short sets
// could take hundreds of times its own bytes.
constexpr size_t kMaxPaddedBytes = size_t{64} << 20;

int64_t BytesOf(const RecordView& records) {
  return static_cast<int64_t>(records.sampled_ids.size_bytes() +
                              records.sampled_log_probs.size_bytes() + records.ids.size_bytes() +
                              records.log_probs.size_bytes());
}

uint32_t CrcOf(const RecordView& records, std::span<const uint16_t> counts) {
  uint32_t crc = ExtendCrc32c(0, std::as_bytes(records.sampled_ids));
  crc = ExtendCrc32c(crc, std::as_bytes(records.sampled_log_probs));
  crc = ExtendCrc32c(crc, std::as_bytes(records.ids));
  crc = ExtendCrc32c(crc, std::as_bytes(records.log_probs));
  return ExtendCrc32c(crc, std::as_bytes(counts));
}

// How many positions fit into a block, whatever they use.
size_t PositionsOfBlock(size_t slots) {
  constexpr size_t kMostBytesOfSlot = sizeof(float) + 3;
  constexpr size_t kMostBytesBesidesSlots = 1 + 1 + sizeof(float) + 1 + 3;
  constexpr size_t kMostBytesOfPositions = kMaxBlockBytes - sizeof(BlockHeader) - 2 * 7;
  return std::min<size_t>(kMaxBlockPositions, kMostBytesOfPositions / (slots * kMostBytesOfSlot +
                                                                       kMostBytesBesidesSlots));
}

absl::Status CheckCounts(std::span<const uint16_t> counts, uint32_t first_position, size_t slots) {
  const size_t most = kMaxPaddedBytes / (slots * (sizeof(int32_t) + sizeof(float)));
  if (counts.size() > most) {
    return absl::InvalidArgumentError(absl::StrCat("top_k_counts: too many positions, got ",
                                                   counts.size(), "; must be at most ", most,
                                                   " with top_k ", slots));
  }
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] > slots) {
      return InvalidPosition("top_k_counts", static_cast<uint32_t>(first_position + i),
                             absl::StrCat(counts[i], ", more than top_k ", slots));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::span<const BlockView>> BlockReader::Read(const v1::Block& block,
                                                             const Run& run) {
  const size_t count = block.sampled_ids().size() / sizeof(int32_t);
  if (block.sampled_ids().empty()) return absl::InvalidArgumentError("sampled_ids: empty");
  const int64_t max_positions = run.limits().max_positions;
  if (uint64_t{block.first_position()} + count > static_cast<uint64_t>(max_positions)) {
    return absl::InvalidArgumentError(absl::StrCat("first_position ", block.first_position(), " + ",
                                                   count, " positions is beyond ", max_positions));
  }
  const RunConfig& config = run.config();
  const size_t slots = config.top_k;
  const bool ragged = !block.top_k_counts().empty();
  std::span<const uint16_t> counts;
  absl::Status status = ViewArray("top_k_counts", block.top_k_counts(), ragged ? count : 0, counts);
  if (!status.ok()) return status;
  if (ragged) {
    if (absl::Status fit = CheckCounts(counts, block.first_position(), slots); !fit.ok())
      return fit;
  }
  const size_t sent_slots =
      ragged ? std::accumulate(counts.begin(), counts.end(), size_t{0}) : count * slots;
  RecordView records;
  status.Update(ViewArray("sampled_ids", block.sampled_ids(), count, records.sampled_ids));
  status.Update(
      ViewArray("sampled_log_probs", block.sampled_log_probs(), count, records.sampled_log_probs));
  status.Update(ViewArray("top_k_ids", block.top_k_ids(), sent_slots, records.ids));
  status.Update(
      ViewArray("top_k_log_probs", block.top_k_log_probs(), sent_slots, records.log_probs));
  if (!status.ok()) return status;
  if (block.has_crc32c()) {
    if (const uint32_t crc = CrcOf(records, counts); crc != block.crc32c()) {
      return absl::InvalidArgumentError(
          absl::StrCat("crc32c: ", block.crc32c(), ", but the arrays have ", crc));
    }
  }
  bytes_ = BytesOf(records) + static_cast<int64_t>(counts.size_bytes());
  if (ragged) {
    const absl::StatusOr<RecordView> padded = Pad(records, counts, block.first_position(), slots);
    if (!padded.ok()) return padded.status();
    records = *padded;
  }

  packed_.clear();
  views_.clear();
  const size_t most = PositionsOfBlock(slots);
  for (size_t first = 0; first < count; first += most) {
    const size_t part = std::min(most, count - first);
    const RecordView view{.sampled_ids = records.sampled_ids.subspan(first, part),
                          .sampled_log_probs = records.sampled_log_probs.subspan(first, part),
                          .ids = records.ids.subspan(first * slots, part * slots),
                          .log_probs = records.log_probs.subspan(first * slots, part * slots)};
    absl::StatusOr<std::vector<std::byte>> packed =
        PackBlock(view, {.encoding = config.log_prob_encoding,
                         .slots = static_cast<int>(slots),
                         .vocabulary_size = static_cast<int32_t>(config.vocabulary_size),
                         .first_position = block.first_position() + static_cast<uint32_t>(first),
                         .policy_version = block.policy_version(),
                         .mass = config.mass});
    if (!packed.ok()) return packed.status();
    packed_.push_back(*std::move(packed));
    views_.push_back(*OpenBlock(packed_.back(), /*checksums=*/false));
  }
  return views_;
}

absl::StatusOr<RecordView> BlockReader::Pad(const RecordView& sent,
                                            std::span<const uint16_t> counts,
                                            uint32_t first_position, size_t slots) {
  ids_.assign(counts.size() * slots, -1);
  log_probs_.assign(counts.size() * slots, kMinusInfinity);
  size_t next = 0;  // of the slots that were sent
  for (size_t i = 0; i < counts.size(); ++i) {
    const auto position = first_position + static_cast<uint32_t>(i);
    for (size_t slot = 0; slot < counts[i]; ++slot, ++next) {
      if (sent.ids[next] == -1) {
        return InvalidSlot("top_k_ids", position, slot,
                           absl::StrCat("-1, but top_k_counts is ", counts[i]));
      }
      ids_[i * slots + slot] = sent.ids[next];
      log_probs_[i * slots + slot] = sent.log_probs[next];
    }
  }
  RecordView padded = sent;
  padded.ids = ids_;
  padded.log_probs = log_probs_;
  return padded;
}

void BlockReader::ForgetLarge() {
  constexpr size_t kKeptBytes = size_t{16} << 10;
  if (ids_.capacity() * sizeof(int32_t) > kKeptBytes) {
    std::vector<int32_t>().swap(ids_);
    std::vector<float>().swap(log_probs_);
  }
  packed_.clear();
  views_.clear();
}

}  // namespace sis
