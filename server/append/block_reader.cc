#include "server/append/block_reader.h"

#include <type_traits>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kernels/numerics/crc32c.h"
#include "kernels/records/validate.h"
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

}  // namespace

absl::StatusOr<RecordView> BlockReader::Read(const v1::Block& block, const Run& run) {
  const size_t count = block.sampled_ids().size() / sizeof(int32_t);
  if (block.sampled_ids().empty()) return absl::InvalidArgumentError("sampled_ids: empty");
  const int64_t max_positions = run.limits().max_positions;
  if (uint64_t{block.first_position()} + count > static_cast<uint64_t>(max_positions)) {
    return absl::InvalidArgumentError(absl::StrCat("first_position ", block.first_position(), " + ",
                                                   count, " positions is beyond ", max_positions));
  }
  const RunConfig& config = run.config();
  const size_t slots = config.top_k;
  absl::Status status;
  const bool ragged = !block.top_k_counts().empty();
  std::span<const uint16_t> counts;
  status.Update(ViewArray("top_k_counts", block.top_k_counts(), ragged ? count : 0, counts));
  if (!status.ok()) return status;
  size_t sent_slots = count * slots;
  if (ragged) {
    const size_t most = kMaxPaddedBytes / (slots * (sizeof(int32_t) + sizeof(float)));
    if (count > most) {
      return absl::InvalidArgumentError(absl::StrCat("top_k_counts: too many positions, got ",
                                                     count, "; must be at most ", most,
                                                     " with top_k ", slots));
    }
    const absl::StatusOr<size_t> sum = SumOfCounts(counts, block.first_position(), config.top_k);
    if (!sum.ok()) return sum.status();
    sent_slots = *sum;
  }
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
  ranks_.resize(count);
  MassCut cut;
  if (config.cuts_sets()) {
    kept_.resize(count);
    cut = {config.mass, kept_};
  }
  if (ragged) return padded_.Pad(records, counts, block.first_position(), config, ranks_, cut);
  status = ValidateRecords(records, static_cast<int>(slots),
                           static_cast<int32_t>(config.vocabulary_size), block.first_position(),
                           ranks_, cut);
  if (!status.ok()) return status;
  records.counts = cut.counts;
  return records;
}

void BlockReader::ForgetLarge() {
  constexpr size_t kKeptBytes = size_t{16} << 10;  // of each array
  const auto forget = [](auto& copy) {
    if (copy.capacity() * sizeof(copy[0]) > kKeptBytes) std::decay_t<decltype(copy)>().swap(copy);
  };
  forget(ranks_);
  forget(kept_);
  padded_.ForgetAbove(kKeptBytes);
}

}  // namespace sis
