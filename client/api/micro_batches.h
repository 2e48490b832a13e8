// A large Evaluate, cut into many of about 1 MiB.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "client/shared_memory/mapped_segments.h"
#include "client/types/types.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// An array with a row of `row_bytes` per position.
struct PositionArray {
  int message;  // the number of the request's field that holds it; 0: the request itself
  int field;    // its number there
  std::span<const std::byte> bytes;
  size_t row_bytes;
  // If its rows are of differing lengths: where each position's begins, in bytes, and the end.
  std::vector<size_t> begins = {};

  // Whether it has a row for each of so many positions.
  bool Holds(size_t positions) const {
    return begins.empty() ? bytes.size() == positions * row_bytes
                          : begins.size() == positions + 1 && begins.back() == bytes.size();
  }
  size_t Begin(size_t position) const {
    return begins.empty() ? position * row_bytes : begins[position];
  }
};

// Cuts between slices only: a slice stays what the server gave a digest of. The arrays are not
// copied: gRPC reads them where they lie. Arrays that all lie in one segment do not travel; they
// are cut where messages can say where the parts begin.
class MicroBatches {
 public:
  // `request` is all of the request but the arrays; those of one message stand side by side. Arrays
  // and segments must outlive the object. At least one batch; if it is only one, the arrays may be
  // of any size.
  MicroBatches(v1::EvaluateRequest request, std::vector<PositionArray> arrays,
               const MappedSegments& segments, size_t bytes);
  // Returns when gRPC has let go of the arrays.
  ~MicroBatches();
  MicroBatches(const MicroBatches&) = delete;
  MicroBatches& operator=(const MicroBatches&) = delete;

  size_t size() const { return batches_.size(); }
  v1::EvaluateRequest Message(size_t i) const;
  // The same as protobuf would write it, but for the order of its fields.
  grpc::ByteBuffer Request(size_t i);
  // The answers to all, as one. Internal, naming the field, if an array is not of the right size.
  absl::StatusOr<Evaluation> Merge(std::span<const v1::EvaluateResponse> answers,
                                   std::span<const v1::Output> outputs) const;

 private:
  struct Batch {
    size_t first_slice;
    size_t slices;
    size_t first_position;
    size_t positions;
  };

  // Whether all arrays lie in one.
  bool AreInSegment() const;
  // Of the arrays at positions [first, end).
  size_t Bytes(size_t first, size_t end) const;
  // Whether a batch can begin at this position.
  bool CanBegin(size_t position) const;
  // The i-th, but for its arrays.
  v1::EvaluateRequest WithoutArrays(const Batch& batch) const;
  std::span<const std::byte> Rows(const PositionArray& array, const Batch& batch) const;
  // Internal if there is not one of each region and slice.
  absl::Status AddDivergences(const v1::EvaluateResponse& answer, size_t slices,
                              Evaluation& merged) const;
  grpc::Slice Lend(std::span<const std::byte> bytes);
  static void TakeBack(void* batches);

  v1::EvaluateRequest request_;  // without slices
  google::protobuf::RepeatedPtrField<v1::Slice> slices_;
  const std::vector<PositionArray> arrays_;
  const MappedSegments& segments_;
  bool in_segment_ = false;
  std::vector<Batch> batches_;

  std::mutex mutex_;
  std::condition_variable returned_;
  size_t lent_ = 0;  // guarded by mutex_
};

}  // namespace sis
