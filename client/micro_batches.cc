#include "client/micro_batches.h"

#include <algorithm>
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

MicroBatches::MicroBatches(v1::EvaluateRequest request, std::vector<PositionArray> arrays,
                           const MappedSegments& segments, size_t bytes)
    : request_(std::move(request)), arrays_(std::move(arrays)), segments_(segments) {
  in_segment_ = AreInSegment();
  if (in_segment_ && bytes < SIZE_MAX / kSegmentFactor) bytes *= kSegmentFactor;
  slices_.Swap(request_.mutable_slices());
  size_t row_bytes = 0;
  for (const PositionArray& array : arrays_) row_bytes += array.row_bytes;
  size_t position = 0;
  batches_.push_back({});
  for (int i = 0; i < slices_.size(); ++i) {
    const size_t positions = batches_.back().positions;
    const uint32_t length = slices_[i].length();
    if (positions > 0 && (positions + length) * row_bytes > bytes && CanBegin(position)) {
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

bool MicroBatches::CanBegin(size_t position) const {
  return !in_segment_ || std::ranges::all_of(arrays_, [position](const PositionArray& array) {
    return position * array.row_bytes % MappedSegments::kAlignment == 0;
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
  return array.bytes.subspan(batch.first_position * array.row_bytes,
                             batch.positions * array.row_bytes);
}

v1::EvaluateRequest MicroBatches::Message(size_t i) const {
  v1::EvaluateRequest request = WithoutArrays(batches_[i]);
  std::vector<RequestArray> arrays;
  for (const PositionArray& array : arrays_) {
    google::protobuf::Message* message = &request;
    if (array.message != 0) {
      message = request.GetReflection()->MutableMessage(
          &request, request.GetDescriptor()->FindFieldByNumber(array.message));
    }
    arrays.push_back({message, array.field, Rows(array, batches_[i])});
  }
  WriteArrays(arrays, segments_, request);
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
    merged.mutable_surrogates()->append(answer.surrogates());
    merged.mutable_coefficients()->append(answer.coefficients());
    merged.mutable_slice_totals()->MergeFrom(answer.slice_totals());
    merged.mutable_log_ratio_sums()->MergeFrom(answer.log_ratio_sums());
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
