#include "client/api/micro_batches.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "client/types/messages.h"
#include "client/types/sum_totals.h"

namespace sis {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedOutputStream;

// So many times larger are batches of arrays in a segment: to say where they are costs as much as
// to send some 100 KiB.
constexpr size_t kSegmentFactor = 4;

// What comes before a field of so many bytes.
std::string FieldHeader(int number, size_t size) {
  uint8_t header[5 + 10];  // a tag and a varint at most
  uint8_t* end =
      WireFormatLite::WriteTagToArray(number, WireFormatLite::WIRETYPE_LENGTH_DELIMITED, header);
  end = CodedOutputStream::WriteVarint64ToArray(size, end);
  return std::string(header, end);
}

// `count` bits of `bits`, to stand behind the `before` bits of `into`.
void AppendBits(std::span<const uint8_t> bits, size_t count, size_t before,
                std::vector<uint8_t>& into) {
  into.resize((before + count + 7) / 8);
  if (before % 8 == 0) {
    std::ranges::copy(bits, into.begin() + static_cast<std::ptrdiff_t>(before / 8));
    return;
  }
  for (size_t i = 0; i < count; ++i) {
    if (bits[i / 8] >> (i % 8) & 1) {
      into[(before + i) / 8] |= static_cast<uint8_t>(1 << ((before + i) % 8));
    }
  }
}

}  // namespace

MicroBatches::MicroBatches(v1::EvaluateRequest request, std::vector<PositionArray> arrays,
                           const MappedSegments& segments, size_t bytes)
    : request_(std::move(request)), arrays_(std::move(arrays)), segments_(segments) {
  in_segment_ = AreInSegment();
  if (in_segment_ && bytes < SIZE_MAX / kSegmentFactor) bytes *= kSegmentFactor;
  slices_.Swap(request_.mutable_slices());
  size_t position = 0;
  batches_.push_back({});
  for (int i = 0; i < slices_.size(); ++i) {
    const size_t positions = batches_.back().positions;
    const uint32_t length = slices_[i].length();
    if (positions > 0 && bytes < SIZE_MAX && CanBegin(position) &&
        Bytes(position - positions, position + length) > bytes) {
      batches_.push_back({static_cast<size_t>(i), 0, position, 0});
    }
    ++batches_.back().slices;
    batches_.back().positions += length;
    position += length;
  }
}

bool MicroBatches::AreInSegment() const {
  std::vector<std::span<const std::byte>> arrays;
  for (const PositionArray& array : arrays_) arrays.push_back(array.bytes);
  return segments_.FindAll(arrays).has_value();
}

size_t MicroBatches::Bytes(size_t first, size_t end) const {
  size_t bytes = 0;
  for (const PositionArray& array : arrays_) bytes += array.Begin(end) - array.Begin(first);
  return bytes;
}

bool MicroBatches::CanBegin(size_t position) const {
  return !in_segment_ || std::ranges::all_of(arrays_, [position](const PositionArray& array) {
    return array.Begin(position) % MappedSegments::kAlignment == 0;
  });
}

MicroBatches::~MicroBatches() {
  std::unique_lock lock(mutex_);
  returned_.wait(lock, [this] { return lent_ == 0; });
}

grpc::Slice MicroBatches::Lend(std::span<const std::byte> bytes) {
  {
    const std::lock_guard lock(mutex_);
    ++lent_;
  }
  return grpc::Slice(const_cast<std::byte*>(bytes.data()), bytes.size(), &TakeBack, this);
}

void MicroBatches::TakeBack(void* batches) {
  auto& self = *static_cast<MicroBatches*>(batches);
  const std::lock_guard lock(self.mutex_);
  --self.lent_;
  self.returned_.notify_all();
}

v1::EvaluateRequest MicroBatches::WithoutArrays(const Batch& batch) const {
  v1::EvaluateRequest request = request_;
  for (size_t i = 0; i < batch.slices; ++i) {
    *request.add_slices() = slices_[static_cast<int>(batch.first_slice + i)];
  }
  return request;
}

std::span<const std::byte> MicroBatches::Rows(const PositionArray& array,
                                              const Batch& batch) const {
  if (batches_.size() == 1) return array.bytes;
  const size_t begin = array.Begin(batch.first_position);
  return array.bytes.subspan(begin, array.Begin(batch.first_position + batch.positions) - begin);
}

v1::EvaluateRequest MicroBatches::Message(size_t i) const {
  v1::EvaluateRequest request = WithoutArrays(batches_[i]);
  std::vector<std::span<const std::byte>> rows;
  for (const PositionArray& array : arrays_) rows.push_back(Rows(array, batches_[i]));
  std::optional<MappedSegments::Locations> parts = segments_.FindAll(rows);
  if (parts) request.set_segment(parts->segment);
  for (size_t n = 0; n < arrays_.size(); ++n) {
    google::protobuf::Message* message = &request;
    if (arrays_[n].message != 0) {
      message = request.GetReflection()->MutableMessage(
          &request, request.GetDescriptor()->FindFieldByNumber(arrays_[n].message));
    }
    message->GetReflection()->SetString(
        message, message->GetDescriptor()->FindFieldByNumber(arrays_[n].field),
        parts ? std::move(parts->fields[n]) : ToBytes(rows[n]));
  }
  return request;
}

grpc::ByteBuffer MicroBatches::Request(size_t i) {
  if (in_segment_) {
    const grpc::Slice message(Message(i).SerializeAsString());
    return {&message, 1};
  }
  const Batch& batch = batches_[i];
  // The form may occur twice then, first without arrays: protobuf takes the two as one.
  std::string head = WithoutArrays(batch).SerializeAsString();
  std::vector<grpc::Slice> pieces;
  for (auto array = arrays_.begin(); array != arrays_.end();) {
    const auto end = std::find_if(array, arrays_.end(), [&](const PositionArray& other) {
      return other.message != array->message;
    });
    if (array->message != 0) {
      size_t bytes = 0;
      for (auto inner = array; inner != end; ++inner) {
        const size_t size = Rows(*inner, batch).size();
        bytes += FieldHeader(inner->field, size).size() + size;
      }
      head += FieldHeader(array->message, bytes);
    }
    for (; array != end; ++array) {
      const std::span<const std::byte> rows = Rows(*array, batch);
      pieces.emplace_back(head + FieldHeader(array->field, rows.size()));
      pieces.push_back(Lend(rows));
      head.clear();
    }
  }
  return {pieces.data(), pieces.size()};
}

absl::Status MicroBatches::AddDivergences(const v1::EvaluateResponse& answer, size_t slices,
                                          Evaluation& merged) const {
  const auto regions = static_cast<size_t>(request_.trust_regions_size());
  if (regions == 0) return absl::OkStatus();
  if (static_cast<size_t>(answer.divergences_size()) != slices * regions ||
      static_cast<size_t>(answer.outside_trust_regions_size()) != slices) {
    return absl::InternalError(
        "the server's divergences do not fit the slices (a server older than trust_regions?)");
  }
  for (auto value = answer.divergences().begin(); value != answer.divergences().end();
       value += static_cast<std::ptrdiff_t>(regions)) {
    merged.divergences.emplace_back(value, value + static_cast<std::ptrdiff_t>(regions));
  }
  merged.outside_trust_regions.insert(merged.outside_trust_regions.end(),
                                      answer.outside_trust_regions().begin(),
                                      answer.outside_trust_regions().end());
  return absl::OkStatus();
}

absl::StatusOr<Evaluation> MicroBatches::Merge(std::span<const v1::EvaluateResponse> answers,
                                               std::span<const v1::Output> outputs) const {
  bool wanted[v1::Output_ARRAYSIZE] = {};
  for (const v1::Output output : outputs) {
    if (v1::Output_IsValid(output)) wanted[output] = true;
  }
  if (outputs.empty()) wanted[v1::ACCEPT_BITS] = true;
  const size_t all = batches_.back().first_position + batches_.back().positions;

  Evaluation merged;
  std::vector<v1::Totals> totals;
  v1::EvaluateResponse sums;
  for (size_t i = 0; i < answers.size(); ++i) {
    const v1::EvaluateResponse& answer = answers[i];
    const Batch& batch = batches_[i];
    absl::Status status;
    const auto read = [&]<typename T>(v1::Output output, absl::string_view field,
                                      const std::string& bytes, std::vector<T>& array) {
      if (wanted[output]) array.reserve(all);
      status.Update(AppendFromBytes(bytes, wanted[output] ? batch.positions : 0, field, array));
    };
    std::vector<uint8_t> bits;
    status.Update(AppendFromBytes(answer.accept_bits(),
                                  wanted[v1::ACCEPT_BITS] ? (batch.positions + 7) / 8 : 0,
                                  "accept_bits", bits));
    read(v1::DECISIONS, "decisions", answer.decisions(), merged.decisions);
    read(v1::RATIOS, "ratios", answer.ratios(), merged.ratios);
    read(v1::LOG_RATIOS, "log_ratios", answer.log_ratios(), merged.log_ratios);
    read(v1::ACCEPTANCE_PROBABILITIES, "acceptance_probabilities",
         answer.acceptance_probabilities(), merged.acceptance_probabilities);
    read(v1::SURROGATES, "surrogates", answer.surrogates(), merged.surrogates);
    read(v1::COEFFICIENTS, "coefficients", answer.coefficients(), merged.coefficients);
    if (!status.ok()) return status;
    if (!bits.empty()) {
      AppendBits(bits, batch.positions, batch.first_position, merged.accept_bits);
    }
    merged.slice_totals.insert(merged.slice_totals.end(), answer.slice_totals().begin(),
                               answer.slice_totals().end());
    for (const v1::LogRatioSum& sum : answer.log_ratio_sums()) {
      merged.log_ratio_sums.push_back({sum.log_ratio(), static_cast<int64_t>(sum.positions())});
    }
    if (absl::Status status = AddDivergences(answer, batch.slices, merged); !status.ok()) {
      return status;
    }
    totals.push_back(answer.totals());
    AddPrefixCurve(answer.prefix_curve(), *sums.mutable_prefix_curve());
    AddCorrections(answer.corrections(), *sums.mutable_corrections());
    for (const v1::MissingRange& range : answer.missing()) {
      merged.missing.push_back(range);
      merged.missing.back().set_slice(static_cast<uint32_t>(range.slice() + batch.first_slice));
    }
    merged.newly_counted += answer.newly_counted();
  }
  merged.prefix_curve.assign(sums.prefix_curve().begin(), sums.prefix_curve().end());
  merged.corrections.assign(sums.corrections().begin(), sums.corrections().end());
  merged.totals = SumTotals(totals);
  return merged;
}

}  // namespace sis
