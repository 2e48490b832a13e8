#include "server/evaluate/dense_logits.h"

#include "absl/strings/str_cat.h"
#include "server/wire/arrays.h"

namespace sis {

absl::StatusOr<DenseLogits> DenseLogits::Parse(const v1::Dense& dense, const ReceivedArrays& arrays,
                                               size_t count, int32_t vocabulary_size) {
  DenseLogits logits;
  logits.vocabulary_size_ = vocabulary_size;
  logits.logits_ = arrays.Of(dense.logits());
  const size_t elements = count * static_cast<size_t>(vocabulary_size);
  absl::Status status;
  switch (dense.values()) {
    case v1::Dense::LOGITS:
      logits.type_ = LogitType::kFloat32;
      status = CheckLength<float>("dense.logits", logits.logits_.size(), elements);
      break;
    case v1::Dense::BFLOAT16_LOGITS:
      logits.type_ = LogitType::kBfloat16;
      status = CheckLength<uint16_t>("dense.logits", logits.logits_.size(), elements);
      break;
    default:
      status = absl::InvalidArgumentError(
          absl::StrCat("dense.values: ", static_cast<int>(dense.values()), " is not one of them"));
  }
  if (!status.ok()) return status;
  logits.sampled_ids_ = arrays.Of(dense.sampled_ids());
  if (logits.has_sampled_ids()) {
    status = CheckLength<int32_t>("dense.sampled_ids", logits.sampled_ids_.size(), count);
    if (!status.ok()) return status;
  }
  return logits;
}

absl::Status DenseLogits::Gather(const PositionRange& positions,
                                 std::span<const int32_t> recorded_sampled_ids,
                                 std::span<const int32_t> recorded_ids, int slots,
                                 const GatherOutput& output, Scratch& scratch) const {
  std::span<const int32_t> told;
  if (has_sampled_ids()) {
    told = sampled_ids_.Read<int32_t>(positions.offset, positions.count, scratch.sampled_ids);
  }
  for (size_t i = 0; i < positions.count; ++i) {
    const auto position = static_cast<uint32_t>(positions.first_position + i);
    if (!told.empty() && told[i] != recorded_sampled_ids[i]) {
      return absl::FailedPreconditionError(
          absl::StrCat("dense.sampled_ids at position ", position, ": ", told[i], ", but token ",
                       recorded_sampled_ids[i], " is recorded: is the batch shifted or permuted?"));
    }
    absl::Status status = GatherRow(
        positions.offset + i, position, recorded_sampled_ids.subspan(i, 1),
        recorded_ids.subspan(i * slots, slots),
        {output.sampled_log_probs.subspan(i, 1), output.log_probs.subspan(i * slots, slots)},
        scratch);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status DenseLogits::GatherSampled(const PositionRange& positions,
                                        std::span<float> sampled_log_probs,
                                        Scratch& scratch) const {
  const std::span<const int32_t> ids =
      sampled_ids_.Read<int32_t>(positions.offset, positions.count, scratch.sampled_ids);
  for (size_t i = 0; i < positions.count; ++i) {
    const auto position = static_cast<uint32_t>(positions.first_position + i);
    if (ids[i] < 0 || ids[i] >= vocabulary_size_) {
      return absl::InvalidArgumentError(absl::StrCat("dense.sampled_ids at position ", position,
                                                     ": ", ids[i], " is not in [0, ",
                                                     vocabulary_size_, ")"));
    }
    absl::Status status = GatherRow(positions.offset + i, position, ids.subspan(i, 1), {},
                                    {sampled_log_probs.subspan(i, 1), {}}, scratch);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status DenseLogits::GatherRow(size_t offset, uint32_t position,
                                    std::span<const int32_t> sampled_id,
                                    std::span<const int32_t> ids, const GatherOutput& output,
                                    Scratch& scratch) const {
  const size_t width = vocabulary_size_;
  const std::byte* row =
      type_ == LogitType::kFloat32
          ? std::as_bytes(logits_.Read<float>(offset * width, width, scratch.floats)).data()
          : std::as_bytes(logits_.Read<uint16_t>(offset * width, width, scratch.halves)).data();
  const LogitsView logits{.type = type_,
                          .data = row,
                          .width = vocabulary_size_,
                          .vocabulary_offset = 0,
                          .row_stride_bytes = 0};
  absl::Status status =
      GatherLogits(logits, sampled_id, ids, static_cast<int>(ids.size()), position, output);
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("dense.", status.message()));
}

}  // namespace sis
