#include "client/replicas/evaluate_batches.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "client/replicas/store_down.h"
#include "client/replicas/sums.h"

namespace sis {
namespace {

absl::Status WrongSize(v1::Output output, size_t bytes, size_t wanted) {
  return absl::InternalError(absl::StrCat("the server's ",
                                          absl::AsciiStrToLower(v1::Output_Name(output)), " holds ",
                                          bytes, " bytes, not ", wanted));
}

// Shows the arrays of an answer, each with its place among all rows.
template <typename Visitor>
void VisitArrays(const v1::EvaluateResponse& answer, Evaluation& all, Visitor visit) {
  visit(v1::DECISIONS, answer.decisions(), all.decisions);
  visit(v1::RATIOS, answer.ratios(), all.ratios);
  visit(v1::LOG_RATIOS, answer.log_ratios(), all.log_ratios);
  visit(v1::ACCEPTANCE_PROBABILITIES, answer.acceptance_probabilities(),
        all.acceptance_probabilities);
  visit(v1::SURROGATES, answer.surrogates(), all.surrogates);
  visit(v1::COEFFICIENTS, answer.coefficients(), all.coefficients);
}

}  // namespace

EvaluateBatches::EvaluateBatches(v1::EvaluateRequest request, std::vector<PositionArray> arrays)
    : request_(std::move(request)), arrays_(std::move(arrays)) {
  slices_.Swap(request_.mutable_slices());
  for (const v1::Slice& slice : slices_) {
    rows_.push_back({positions_, slice.length()});
    positions_ += slice.length();
  }
  fit_ = std::ranges::all_of(
      arrays_, [this](const PositionArray& array) { return array.Holds(positions_); });
}

std::vector<size_t> EvaluateBatches::Cut(std::span<const size_t> slices, size_t bytes,
                                         uint64_t lease_id) {
  std::vector<size_t> numbers = {batches_.size()};
  batches_.push_back({lease_id});
  size_t batch_bytes = 0;
  for (const size_t slice : slices) {
    const Rows rows = rows_[slice];
    const size_t slice_bytes = fit_ ? Bytes(rows) : 0;
    if (!batches_.back().slices.empty() && batch_bytes + slice_bytes > bytes) {
      numbers.push_back(batches_.size());
      batches_.push_back({lease_id});
      batch_bytes = 0;
    }
    Batch& batch = batches_.back();
    batch.slices.push_back(slice);
    batch.positions += rows.count;
    batch_bytes += slice_bytes;
    if (!batch.rows.empty() && batch.rows.back().first + batch.rows.back().count == rows.first) {
      batch.rows.back().count += rows.count;
    } else {
      batch.rows.push_back(rows);
    }
  }
  return numbers;
}

size_t EvaluateBatches::Bytes(const Rows& rows) const {
  size_t bytes = 0;
  for (const PositionArray& array : arrays_) {
    bytes += array.Begin(rows.first + rows.count) - array.Begin(rows.first);
  }
  return bytes;
}

v1::EvaluateRequest EvaluateBatches::WithoutArrays(const Batch& batch) const {
  v1::EvaluateRequest request = request_;
  for (const size_t slice : batch.slices) *request.add_slices() = slices_[static_cast<int>(slice)];
  request.set_lease_id(batch.lease_id);
  return request;
}

std::vector<std::span<const std::byte>> EvaluateBatches::PartsOf(const PositionArray& array,
                                                                 const Batch& batch) const {
  if (!fit_ || batch.rows.empty()) return {array.bytes};
  std::vector<std::span<const std::byte>> parts;
  for (const Rows& rows : batch.rows) {
    const size_t begin = array.Begin(rows.first);
    parts.push_back(array.bytes.subspan(begin, array.Begin(rows.first + rows.count) - begin));
  }
  return parts;
}

v1::EvaluateRequest EvaluateBatches::Message(size_t i) const {
  v1::EvaluateRequest request = WithoutArrays(batches_[i]);
  for (const PositionArray& array : arrays_) {
    google::protobuf::Message* message = &request;
    if (array.message != 0) {
      message = request.GetReflection()->MutableMessage(
          &request, request.GetDescriptor()->FindFieldByNumber(array.message));
    }
    const std::vector<std::span<const std::byte>> parts = PartsOf(array, batches_[i]);
    size_t bytes = 0;
    for (const auto part : parts) bytes += part.size();
    std::string field;
    field.reserve(bytes);
    for (const auto part : parts) {
      field.append(reinterpret_cast<const char*>(part.data()), part.size());
    }
    message->GetReflection()->SetString(
        message, message->GetDescriptor()->FindFieldByNumber(array.field), std::move(field));
  }
  return request;
}

bool EvaluateBatches::IsWanted(v1::Output output) const {
  if (request_.outputs().empty()) return output == v1::ACCEPT_BITS;
  return std::ranges::find(request_.outputs(), output) != request_.outputs().end();
}

Evaluation EvaluateBatches::NothingDecided() const {
  Evaluation evaluation;
  if (IsWanted(v1::ACCEPT_BITS)) evaluation.accept_bits.resize((positions_ + 7) / 8);
  VisitArrays({}, evaluation, [&](v1::Output output, const std::string&, auto& array) {
    if (IsWanted(output)) array.resize(positions_);
  });
  std::ranges::fill(evaluation.decisions, Decision::kMissing);
  evaluation.slice_totals.resize(rows_.size());
  if (request_.algorithm().has_gspo()) evaluation.log_ratio_sums.resize(rows_.size());
  return evaluation;
}

template <typename T>
absl::Status EvaluateBatches::Place(v1::Output output, const Batch& batch, const std::string& part,
                                    std::vector<T>& array) const {
  const size_t bytes = IsWanted(output) ? batch.positions * sizeof(T) : 0;
  if (part.size() != bytes) return WrongSize(output, part.size(), bytes);
  if (bytes == 0) return absl::OkStatus();
  const char* from = part.data();
  for (const Rows& rows : batch.rows) {
    std::memcpy(&array[rows.first], from, rows.count * sizeof(T));
    from += rows.count * sizeof(T);
  }
  return absl::OkStatus();
}

absl::Status EvaluateBatches::PlaceBits(const Batch& batch, const std::string& part,
                                        std::vector<uint8_t>& bits) const {
  const size_t bytes = IsWanted(v1::ACCEPT_BITS) ? (batch.positions + 7) / 8 : 0;
  if (part.size() != bytes) return WrongSize(v1::ACCEPT_BITS, part.size(), bytes);
  if (bytes == 0) return absl::OkStatus();
  size_t bit = 0;
  for (const Rows& rows : batch.rows) {
    size_t row = rows.first;
    const size_t end = row + rows.count;
    if (bit % 8 == 0 && row % 8 == 0) {
      for (; row + 8 <= end; row += 8, bit += 8)
        bits[row / 8] = static_cast<uint8_t>(part[bit / 8]);
    }
    for (; row < end; ++row, ++bit) {
      bits[row / 8] |= static_cast<uint8_t>((part[bit / 8] >> (bit % 8) & 1) << (row % 8));
    }
  }
  return absl::OkStatus();
}

absl::Status EvaluateBatches::Add(const v1::EvaluateResponse& answer, const Batch& batch,
                                  Evaluation& merged) const {
  absl::Status status = PlaceBits(batch, answer.accept_bits(), merged.accept_bits);
  VisitArrays(answer, merged, [&](v1::Output output, const std::string& part, auto& array) {
    status.Update(Place(output, batch, part, array));
  });
  if (!status.ok()) return status;

  const auto check = [&](absl::string_view field, int count, size_t wanted) {
    if (static_cast<size_t>(count) == wanted) return;
    status.Update(
        absl::InternalError(absl::StrCat("the server's ", field, " do not fit the slices: ", count,
                                         ", not ", wanted, " (is it older than this client?)")));
  };
  const size_t slices = batch.slices.size();
  check("slice_totals", answer.slice_totals_size(), slices);
  check("log_ratio_sums", answer.log_ratio_sums_size(), merged.log_ratio_sums.empty() ? 0 : slices);
  if (!status.ok()) return status;
  for (size_t i = 0; i < slices; ++i) {
    const size_t slice = batch.slices[i];
    const int at = static_cast<int>(i);
    merged.slice_totals[slice] = answer.slice_totals(at);
    if (!merged.log_ratio_sums.empty()) {
      const v1::LogRatioSum& sum = answer.log_ratio_sums(at);
      merged.log_ratio_sums[slice] = {sum.log_ratio(), static_cast<int64_t>(sum.positions())};
    }
  }
  merged.newly_counted += answer.newly_counted();
  return AddRenumbered(answer.missing(), batch.slices, merged.missing);
}

absl::Status EvaluateBatches::AddStoreDown(size_t number, Evaluation& merged) const {
  const v1::Slice& slice = slices_[static_cast<int>(number)];
  if (IsWanted(v1::RATIOS) || IsWanted(v1::LOG_RATIOS) || IsWanted(v1::SURROGATES) ||
      IsWanted(v1::COEFFICIENTS) || request_.has_algorithm()) {
    return absl::FailedPreconditionError(
        absl::StrCat("ratios of missing positions: sequence '", slice.sequence().id(), "' attempt ",
                     slice.sequence().attempt(), " position ", slice.first_position(),
                     " is missing (store_down)"));
  }
  const Rows& rows = rows_[number];
  v1::Totals& totals = merged.slice_totals[number];
  for (const PositionArray& mask : arrays_) {
    if (mask.message != 0 || mask.field != v1::EvaluateRequest::kMaskFieldNumber) continue;
    for (size_t i = rows.first; i < rows.first + rows.count; ++i) {
      if (mask.bytes[i] != std::byte{0}) continue;
      totals.set_masked(totals.masked() + 1);
      if (!merged.decisions.empty()) merged.decisions[i] = Decision::kMasked;
    }
  }
  totals.set_missing(rows.count - totals.masked());
  merged.missing.push_back(StoreDown(number, slice));
  return absl::OkStatus();
}

absl::StatusOr<Evaluation> EvaluateBatches::Merge(
    std::span<const std::optional<v1::EvaluateResponse>> answers) const {
  Evaluation merged = NothingDecided();
  std::vector<bool> answered(rows_.size());
  std::vector<v1::Totals> totals;
  v1::EvaluateResponse sums;
  for (const uint32_t top_k : request_.prefix_curve()) sums.add_prefix_curve()->set_top_k(top_k);
  for (size_t i = 0; i < answers.size(); ++i) {
    if (!answers[i].has_value()) continue;
    const v1::EvaluateResponse& answer = *answers[i];
    if (absl::Status status = Add(answer, batches_[i], merged); !status.ok()) return status;
    for (const size_t slice : batches_[i].slices) answered[slice] = true;
    totals.push_back(answer.totals());
    AddPrefixCurve(answer.prefix_curve(), *sums.mutable_prefix_curve());
    AddCorrections(answer.corrections(), *sums.mutable_corrections());
  }
  for (size_t slice = 0; slice < rows_.size(); ++slice) {
    if (answered[slice] || rows_[slice].count == 0) continue;
    if (absl::Status status = AddStoreDown(slice, merged); !status.ok()) return status;
    totals.push_back(merged.slice_totals[slice]);
  }
  merged.prefix_curve.assign(sums.prefix_curve().begin(), sums.prefix_curve().end());
  merged.corrections.assign(sums.corrections().begin(), sums.corrections().end());
  merged.totals = SumTotals(totals);
  SortBySlice(merged.missing);
  return merged;
}

}  // namespace sis
