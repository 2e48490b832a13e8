// Any bytes as an Evaluate whose arrays lie in a segment: no crash, the answer that the same arrays
// get in a message, and INVALID_ARGUMENT where the segment has no such part.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>

#include "kernels/decide/scalar_backend.h"
#include "server/shared_memory/shared_segment.h"
#include "server/testing/evaluate_at_once.h"
#include "server/wire/segment_range.h"
#include "tests/fuzz/cache_with_one_record.h"
#include "tests/fuzz/segment_mover.h"

namespace sis {
namespace {

constexpr uint64_t kSegmentBytes = 4096;

absl::StatusOr<v1::EvaluateResponse> EvaluateIn(Run& run, const Backend& backend,
                                                const v1::EvaluateRequest& request,
                                                const ReceivedArrays& arrays) {
  absl::StatusOr<v1::EvaluateResponse> response = EvaluateAtOnce(run, backend, request, arrays);
  if (response.ok()) response->set_newly_counted(0);
  return response;
}

void Check(const uint8_t* data, size_t size) {
  v1::EvaluateRequest request;
  if (!request.ParseFromArray(data, static_cast<int>(size))) return;
  static CacheWithOneRecord cache;
  static const ScalarBackend backend;
  static const std::shared_ptr<SharedSegment> segment = *SharedSegment::Make(kSegmentBytes);
  Run& run = *cache.run();

  const v1::SegmentRange answers = request.answers();
  const bool answers_in_segment = request.has_answers();
  request.clear_answers();
  v1::EvaluateRequest moved = request;
  SegmentMover mover(*segment);
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

  // Answers go once where the input says, and once into the free bytes behind the arrays.
  v1::EvaluateRequest with_answers = moved;
  *with_answers.mutable_answers() = answers;
  if (answers_in_segment) EvaluateIn(run, backend, with_answers, arrays).IgnoreError();
  with_answers.mutable_answers()->set_offset(mover.end());
  with_answers.mutable_answers()->set_bytes(kSegmentBytes - mover.end());
  const auto answered = EvaluateIn(run, backend, with_answers, arrays);
  if (mover.faithful() && answered.ok() && in_segment.ok()) {
    for (const auto& [part, array] :
         {std::pair(answered->accept_bits(), in_segment->accept_bits()),
          std::pair(answered->coefficients(), in_segment->coefficients())}) {
      if (array.empty() && part.empty()) continue;
      const auto range = SegmentRange::Parse(part, kSegmentBytes);
      if (!range.ok()) std::abort();
      std::string read(range->size, '\0');
      segment->Read(range->offset, range->size, read.data());
      if (read != array) std::abort();
    }
  }
  if (run.Describe().positions != 2) std::abort();
}

}  // namespace
}  // namespace sis

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  sis::Check(data, size);
  return 0;
}
