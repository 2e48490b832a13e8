#include "client/micro_batches.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "client/batch_rows.h"
#include "client/wire.h"

namespace sis {
namespace {

// So many times larger are batches of arrays in a segment: to say where they are costs as much as
// to send some 100 KiB.
constexpr size_t kSegmentFactor = 4;

void WriteVarint(uint64_t value, std::string& into) {
  for (; value >= 0x80; value >>= 7) into.push_back(static_cast<char>(value | 0x80));
  into.push_back(static_cast<char>(value));
}

// What comes before a field of so many bytes.
std::string FieldHeader(int number, size_t size) {
  constexpr uint32_t kDelimited = 2;
  std::string header;
  WriteVarint(static_cast<uint32_t>(number) << 3 | kDelimited, header);
  WriteVarint(size, header);
  return header;
}

// `count` bits of `bits`, to stand behind the `before` bits of `into`.
void AppendBits(const std::string& bits, size_t count, size_t before, std::string& into) {
  into.resize((before + count + 7) / 8);
  if (before % 8 == 0) {
    into.replace(before / 8, bits.size(), bits);
    return;
  }
  for (size_t i = 0; i < count; ++i) {
    if (bits[i / 8] >> (i % 8) & 1) {
      into[(before + i) / 8] |= static_cast<char>(1 << ((before + i) % 8));
    }
  }
}

}  // namespace

MicroBatches::MicroBatches(const v1::EvaluateRequest& request, std::span<const Slice> slices,
                           int form, std::vector<CurrentArray> arrays,
                           const MappedSegments& segments, size_t bytes)
    : request_(request),
      slices_(slices),
      form_(form),
      arrays_(std::move(arrays)),
      segments_(segments) {
  size_t position_bytes = 0;
  std::string segment;
  for (const CurrentArray& array : arrays_) position_bytes += array.width;
  for (const CurrentArray& array : arrays_) {
    const std::optional<MappedSegments::Part> part = segments_.Find(array.bytes);
    in_segment_ = part && (segment.empty() || part->segment == segment);
    if (!in_segment_) break;
    segment = part->segment;
  }
  // Where the arrays of a next batch could begin.
  const auto can_begin = [&](size_t position) {
    return !in_segment_ || std::ranges::all_of(arrays_, [position](const CurrentArray& array) {
      return position * array.width % MappedSegments::kAlignment == 0;
    });
  };
  const size_t batch_bytes =
      in_segment_ && bytes < SIZE_MAX / kSegmentFactor ? kSegmentFactor * bytes : bytes;
  size_t position = 0;
  batches_.push_back({});
  for (size_t i = 0; i < slices.size(); ++i) {
    const size_t positions = batches_.back().positions;
    if (positions > 0 && (positions + slices[i].length) * position_bytes > batch_bytes &&
        can_begin(position)) {
      batches_.push_back({i, 0, position, 0});
    }
    ++batches_.back().slices;
    batches_.back().positions += slices[i].length;
    position += slices[i].length;
  }
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
  for (const Slice& slice : slices_.subspan(batch.first_slice, batch.slices)) {
    ToMessage(slice, *request.add_slices());
  }
  return request;
}

std::span<const std::byte> MicroBatches::Rows(const CurrentArray& array, const Batch& batch) const {
  if (batches_.size() == 1) return array.bytes;
  return array.bytes.subspan(batch.first_position * array.width, batch.positions * array.width);
}

v1::EvaluateRequest MicroBatches::Message(size_t i) const {
  v1::EvaluateRequest request = WithoutArrays(batches_[i]);
  google::protobuf::Message& form = *request.GetReflection()->MutableMessage(
      &request, request.GetDescriptor()->FindFieldByNumber(form_));
  std::vector<RequestArray> arrays;
  for (const CurrentArray& array : arrays_) {
    arrays.push_back({&form, array.field, Rows(array, batches_[i])});
  }
  WriteArrays(arrays, segments_, request);
  return request;
}

grpc::ByteBuffer MicroBatches::Request(size_t i) {
  if (in_segment_) {
    const grpc::Slice message(Message(i).SerializeAsString());
    return {&message, 1};
  }
  const v1::EvaluateRequest request = WithoutArrays(batches_[i]);
  std::vector<std::pair<std::string, std::span<const std::byte>>> fields;
  size_t form_bytes = 0;
  for (const CurrentArray& array : arrays_) {
    const std::span<const std::byte> bytes = Rows(array, batches_[i]);
    fields.emplace_back(FieldHeader(array.field, bytes.size()), bytes);
    form_bytes += fields.back().first.size() + bytes.size();
  }
  // The form occurs twice then, first without arrays: protobuf takes the two as one.
  std::string head = request.SerializeAsString() + FieldHeader(form_, form_bytes);
  std::vector<grpc::Slice> pieces;
  for (const auto& [header, bytes] : fields) {
    pieces.emplace_back(head + header);
    pieces.push_back(Lend(bytes));
    head.clear();
  }
  return {pieces.data(), pieces.size()};
}

v1::EvaluateResponse MicroBatches::Merge(std::span<const v1::EvaluateResponse> answers) const {
  v1::EvaluateResponse merged;
  std::vector<v1::Totals> totals;
  for (size_t i = 0; i < answers.size(); ++i) {
    const v1::EvaluateResponse& answer = answers[i];
    const Batch& batch = batches_[i];
    if (answer.accept_bits().size() == (batch.positions + 7) / 8) {
      AppendBits(answer.accept_bits(), batch.positions, batch.first_position,
                 *merged.mutable_accept_bits());
    }
    merged.mutable_decisions()->append(answer.decisions());
    merged.mutable_ratios()->append(answer.ratios());
    merged.mutable_log_ratios()->append(answer.log_ratios());
    merged.mutable_acceptance_probabilities()->append(answer.acceptance_probabilities());
    merged.mutable_slice_totals()->MergeFrom(answer.slice_totals());
    totals.push_back(answer.totals());
    AddPrefixCurve(answer, merged);
    for (v1::MissingRange range : answer.missing()) {
      range.set_slice(range.slice() + static_cast<uint32_t>(batch.first_slice));
      *merged.add_missing() = std::move(range);
    }
    merged.set_newly_counted(merged.newly_counted() + answer.newly_counted());
  }
  *merged.mutable_totals() = SumTotals(totals);
  return merged;
}

}  // namespace sis
