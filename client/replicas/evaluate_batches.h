// A large Evaluate, cut into requests for one server or several, and their answers as one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
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

// Cuts between slices only: a slice stays what the server gave a digest of.
class EvaluateBatches {
 public:
  // `request` is all of the request but the arrays; those of one message stand side by side. The
  // arrays must outlive the object.
  EvaluateBatches(v1::EvaluateRequest request, std::vector<PositionArray> arrays);
  EvaluateBatches(const EvaluateBatches&) = delete;
  EvaluateBatches& operator=(const EvaluateBatches&) = delete;

  // But for its arrays and slices.
  const v1::EvaluateRequest& request() const { return request_; }
  const google::protobuf::RepeatedPtrField<v1::Slice>& slices() const { return slices_; }
  // Whether every array has a row for each position. If not, they go whole, to be refused.
  bool fit() const { return fit_; }

  // Adds batches of about so many bytes, of the slices with these numbers, which rise. They go to a
  // server that knows the lease as `lease_id`. Returns the numbers of the batches, at least one.
  std::vector<size_t> Cut(std::span<const size_t> slices, size_t bytes, uint64_t lease_id);

  size_t size() const { return batches_.size(); }
  v1::EvaluateRequest Message(size_t i) const;

  // The answers to all batches. Positions of slices without one are MISSING (STORE_DOWN):
  // FailedPrecondition if their ratios are wanted. Internal, naming the field, if one is not of the
  // right size.
  absl::StatusOr<Evaluation> Merge(
      std::span<const std::optional<v1::EvaluateResponse>> answers) const;

 private:
  // Positions one after the other.
  struct Rows {
    size_t first;
    size_t count;
  };
  struct Batch {
    uint64_t lease_id = 0;
    std::vector<size_t> slices = {};
    std::vector<Rows> rows = {};
    size_t positions = 0;
  };

  // Of the arrays at these positions.
  size_t Bytes(const Rows& rows) const;
  // The i-th, but for its arrays.
  v1::EvaluateRequest WithoutArrays(const Batch& batch) const;
  std::vector<std::span<const std::byte>> PartsOf(const PositionArray& array,
                                                  const Batch& batch) const;
  // Of all positions as if they were MISSING, but for what their slices count.
  Evaluation NothingDecided() const;
  // Adds what the answer to a batch says, but for what is summed over the batches.
  absl::Status Add(const v1::EvaluateResponse& answer, const Batch& batch,
                   Evaluation& merged) const;
  bool IsWanted(v1::Output output) const;
  // Puts a batch's part of an array into its places.
  template <typename T>
  absl::Status Place(v1::Output output, const Batch& batch, const std::string& part,
                     std::vector<T>& array) const;
  absl::Status PlaceBits(const Batch& batch, const std::string& part,
                         std::vector<uint8_t>& bits) const;
  // Adds a slice of a server that gave no answer.
  absl::Status AddStoreDown(size_t number, Evaluation& merged) const;

  v1::EvaluateRequest request_;  // without slices
  google::protobuf::RepeatedPtrField<v1::Slice> slices_;
  const std::vector<PositionArray> arrays_;
  std::vector<Rows> rows_;  // of each slice
  size_t positions_ = 0;
  bool fit_ = false;
  std::vector<Batch> batches_;
};

}  // namespace sis
