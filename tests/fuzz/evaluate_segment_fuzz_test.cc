// Any bytes as an Evaluate whose arrays lie in a segment: no crash, the answer that the same arrays
// get in a message, and INVALID_ARGUMENT where the segment has no such part.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "kernels/scalar_backend.h"
#include "server/evaluate.h"
#include "server/segments/shared_segment.h"
#include "server/wire/segment_part.h"
#include "tests/fuzz/cache_with_one_record.h"

namespace sis {
namespace {

constexpr uint64_t kSegmentBytes = 4096;

// Moves the arrays of a message into the segment, but for some, which stay as they are: something
// that is no part of a segment, or only by chance.
class Mover {
 public:
  explicit Mover(SharedSegment& segment) : segment_(segment) {}

  void Move(google::protobuf::Message& message) {
    using google::protobuf::FieldDescriptor;
    const google::protobuf::Reflection& reflection = *message.GetReflection();
    std::vector<const FieldDescriptor*> fields;
    reflection.ListFields(message, &fields);
    for (const FieldDescriptor* field : fields) {
      if (field->type() == FieldDescriptor::TYPE_BYTES) {
        reflection.SetString(&message, field, Move(reflection.GetString(message, field)));
      } else if (field->type() == FieldDescriptor::TYPE_MESSAGE && !field->is_repeated()) {
        Move(*reflection.MutableMessage(&message, field));
      }
    }
  }

  // Whether all arrays are in the segment as they were in the message.
  bool faithful() const { return faithful_; }
  // Where the next one would be.
  uint64_t next() const { return next_; }

 private:
  std::string Move(const std::string& array) {
    if (array.empty()) return array;
    if (array.size() > segment_.size() - next_ || array.back() == 7) {
      faithful_ = false;
      return array;
    }
    SegmentPart part{next_, array.size()};
    segment_.Write(part.offset, part.size, array.data());
    next_ = (next_ + array.size() + 63) / 64 * 64;
    if (array.back() == 9) {
      // Elsewhere, inside and outside.
      faithful_ = false;
      uint64_t shift = 0;
      std::memcpy(&shift, array.data(), std::min(array.size(), sizeof(shift)));
      part.offset += shift;
      part.size ^= shift >> 32;
    }
    return part.ToBytes();
  }

  SharedSegment& segment_;
  uint64_t next_ = 0;
  bool faithful_ = true;
};

absl::StatusOr<v1::EvaluateResponse> EvaluateIn(Run& run, const Backend& backend,
                                                const v1::EvaluateRequest& request,
                                                const ReceivedArrays& arrays) {
  absl::StatusOr<EvaluateCall> call = EvaluateCall::Start(run, backend, request, arrays);
  if (!call.ok()) return call.status();
  while (!call->done()) {
    if (absl::Status status = call->EvaluateSlice(); !status.ok()) return status;
  }
  v1::EvaluateResponse response = *call->Finish();
  response.set_newly_counted(0);
  return response;
}

void Check(const uint8_t* data, size_t size) {
  v1::EvaluateRequest request;
  if (!request.ParseFromArray(data, static_cast<int>(size))) return;
  static CacheWithOneRecord cache;
  static const ScalarBackend backend;
  static const std::shared_ptr<SharedSegment> segment = *SharedSegment::Make(kSegmentBytes);
  Run& run = cache.run();

  const v1::SegmentRange answers = request.answers();
  const bool answers_in_segment = request.has_answers();
  request.clear_answers();
  v1::EvaluateRequest moved = request;
  Mover mover(*segment);
  mover.Move(moved);
  ReceivedArrays arrays;
  arrays.LieIn(segment);
  const auto in_segment = EvaluateIn(run, backend, moved, arrays);
  if (mover.faithful()) {
    const auto in_message = EvaluateIn(run, backend, request, ReceivedArrays());
    if (in_segment.status() != in_message.status()) std::abort();
    if (in_segment.ok() && in_segment->SerializeAsString() != in_message->SerializeAsString()) {
      std::abort();
    }
  }
  if (!in_segment.ok() && in_segment.status().message().empty()) std::abort();

  // Once as they come, and once where they should be.
  v1::EvaluateRequest with_answers = moved;
  *with_answers.mutable_answers() = answers;
  if (answers_in_segment) EvaluateIn(run, backend, with_answers, arrays).IgnoreError();
  with_answers.mutable_answers()->set_offset(mover.next());
  with_answers.mutable_answers()->set_bytes(kSegmentBytes - mover.next());
  const auto answered = EvaluateIn(run, backend, with_answers, arrays);
  if (mover.faithful() && answered.ok() && in_segment.ok()) {
    for (const auto& [part, array] :
         {std::pair(answered->accept_bits(), in_segment->accept_bits()),
          std::pair(answered->coefficients(), in_segment->coefficients())}) {
      if (array.empty() && part.empty()) continue;
      const auto range = SegmentPart::Parse(part, kSegmentBytes);
      if (!range.ok()) std::abort();
      std::string read(range->size, '\0');
      segment->Read(range->offset, range->size, read.data());
      if (read != array) std::abort();
    }
  }
  if (run.Describe().positions() != 2) std::abort();
}

}  // namespace
}  // namespace sis

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  sis::Check(data, size);
  return 0;
}
