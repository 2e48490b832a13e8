#include "kernels/decide/dense/dense.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "kernels/decide/dense/dense_row.h"

namespace sis {
namespace {

LogitRow RowAt(const LogitsView& logits, size_t i) {
  return {logits.type, logits.row(i), logits.width, logits.vocabulary_offset};
}

// -inf for an id that lies in another shard, or is -1.
float LogitOfId(const LogitRow& row, int32_t id) {
  const int64_t column = int64_t{id} - row.vocabulary_offset;
  if (column < 0 || column >= row.width) return kMinusInfinity;
  return LogitAt(row, static_cast<int32_t>(column));
}

absl::Status BadLogit(const LogitRow& row, uint32_t position) {
  for (int32_t column = 0; column < row.width; ++column) {
    const float logit = LogitAt(row, column);
    if (logit < std::numeric_limits<float>::infinity()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("logits at position ", position, ", vocabulary id ",
                     row.vocabulary_offset + column, ": ", logit, " is neither finite nor -inf"));
  }
  return absl::InternalError(absl::StrCat("logits at position ", position, " changed meanwhile"));
}

// Of a row without NaN and +inf.
absl::StatusOr<double> FiniteLogSumExp(const ExpSum& sum, uint32_t position) {
  const double log_sum_exp = LogSumExp(sum);
  if (!std::isinf(log_sum_exp)) return log_sum_exp;
  return absl::InvalidArgumentError(
      absl::StrCat("logits at position ", position, ": all are -inf"));
}

// slot_logits are those of the position, at least k.
absl::Status FinishPosition(const ExpSum& sum, std::span<const float> slot_logits,
                            float sampled_logit, const DenseRecordView& records,
                            const DenseParameters& parameters, size_t i,
                            const DenseOutput& output) {
  const absl::StatusOr<double> log_sum_exp =
      FiniteLogSumExp(sum, static_cast<uint32_t>(parameters.first_position + i));
  if (!log_sum_exp.ok()) return log_sum_exp.status();
  const size_t begin = i * parameters.slots;
  EnvelopeAccumulator accumulator;
  for (int slot = 0; slot < parameters.top_k; ++slot) {
    accumulator.Add(records.log_probs[begin + slot],
                    LogProbOfLogit(slot_logits[slot], *log_sum_exp));
  }
  const Envelope envelope = accumulator.Finish();
  output.sampled_log_probs[i] = LogProbOfLogit(sampled_logit, *log_sum_exp);
  output.log_envelopes[i] = envelope.log_envelope;
  output.covered_masses[i] = envelope.covered_mass;
  if (!output.log_sum_exps.empty()) output.log_sum_exps[i] = *log_sum_exp;
  return absl::OkStatus();
}

}  // namespace

absl::Status ReduceLogits(const LogitsView& logits, const DenseRecordView& records,
                          const DenseParameters& parameters, const DenseOutput& output) {
  for (size_t i = 0; i < records.sampled_ids.size(); ++i) {
    const LogitRow row = RowAt(logits, i);
    ExpSum sum;
    if (!SumRowSimd(row, sum)) {
      return BadLogit(row, static_cast<uint32_t>(parameters.first_position + i));
    }
    float slot_logits[kMaxTopK];
    for (int slot = 0; slot < parameters.top_k; ++slot) {
      slot_logits[slot] = LogitOfId(row, records.ids[i * parameters.slots + slot]);
    }
    absl::Status status = FinishPosition(sum, slot_logits, LogitOfId(row, records.sampled_ids[i]),
                                         records, parameters, i, output);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status GatherLogits(const LogitsView& logits, std::span<const int32_t> sampled_ids,
                          std::span<const int32_t> ids, int slots, uint32_t first_position,
                          const GatherOutput& output) {
  for (size_t i = 0; i < sampled_ids.size(); ++i) {
    const auto position = static_cast<uint32_t>(first_position + i);
    const LogitRow row = RowAt(logits, i);
    ExpSum sum;
    if (!SumRowSimd(row, sum)) return BadLogit(row, position);
    const absl::StatusOr<double> log_sum_exp = FiniteLogSumExp(sum, position);
    if (!log_sum_exp.ok()) return log_sum_exp.status();
    const auto log_prob = [&](int32_t id) {
      return LogProbOfLogit(LogitOfId(row, id), *log_sum_exp);
    };
    for (size_t slot = i * slots; slot < (i + 1) * slots; ++slot) {
      output.log_probs[slot] = log_prob(ids[slot]);
    }
    output.sampled_log_probs[i] = log_prob(sampled_ids[i]);
  }
  return absl::OkStatus();
}

absl::Status ReduceShard(const LogitsView& logits, const DenseRecordView& records,
                         const DenseParameters& parameters, DensePartial& partial) {
  const size_t slots = parameters.slots;
  partial.width = logits.width;
  for (size_t i = 0; i < records.sampled_ids.size(); ++i) {
    const LogitRow row = RowAt(logits, i);
    if (!SumRowSimd(row, partial.exp_sums[i])) {
      return BadLogit(row, static_cast<uint32_t>(parameters.first_position + i));
    }
    for (size_t slot = i * slots; slot < (i + 1) * slots; ++slot) {
      partial.slot_logits[slot] = LogitOfId(row, records.ids[slot]);
    }
    partial.sampled_logits[i] = LogitOfId(row, records.sampled_ids[i]);
  }
  return absl::OkStatus();
}

void MergeShard(const DensePartial& from, DensePartial& into) {
  // An id lies in one shard at most, so the maximum selects it.
  const auto select = [](std::span<const float> source, std::span<float> target) {
    for (size_t i = 0; i < target.size(); ++i) target[i] = std::max(target[i], source[i]);
  };
  into.width += from.width;
  for (size_t i = 0; i < into.exp_sums.size(); ++i) into.exp_sums[i].Merge(from.exp_sums[i]);
  select(from.slot_logits, into.slot_logits);
  select(from.sampled_logits, into.sampled_logits);
}

absl::Status FinishShards(const DensePartial& partial, int32_t vocabulary_size,
                          const DenseRecordView& records, const DenseParameters& parameters,
                          const DenseOutput& output) {
  if (partial.width != vocabulary_size) {
    return absl::InvalidArgumentError(absl::StrCat("logits: the shards have ", partial.width,
                                                   " columns, the vocabulary ", vocabulary_size));
  }
  for (size_t i = 0; i < records.sampled_ids.size(); ++i) {
    absl::Status status = FinishPosition(
        partial.exp_sums[i], partial.slot_logits.subspan(i * parameters.slots, parameters.slots),
        partial.sampled_logits[i], records, parameters, i, output);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace sis
