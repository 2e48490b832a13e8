// The rows of a batch's arrays, in requests and responses of Evaluate: split over replicas and put
// together again.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "google/protobuf/message.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

class BatchRows {
 public:
  explicit BatchRows(const google::protobuf::RepeatedPtrField<v1::Slice>& slices);

  // Moves the arrays of a request, and of the messages in it, to another one that holds nothing.
  static void TakeArrays(google::protobuf::Message& message, google::protobuf::Message& arrays);
  // Copies of these arrays the rows of the slices with these numbers. Arrays that do not divide
  // into rows go as they are, to be refused.
  void Split(const google::protobuf::Message& arrays, std::span<const int> numbers,
             google::protobuf::Message& part) const;

  // What a slice counts without an answer: masked positions, the others missing.
  v1::Totals MissingTotals(const std::string& mask, int number) const;

  // The outputs asked for, of all rows as if all were missing.
  void SetMissing(const google::protobuf::RepeatedField<int>& outputs, const std::string& mask,
                  v1::EvaluateResponse& merged) const;
  // Puts the outputs of these slices into their places. Internal if they are not of the right size.
  absl::Status MergeOutputs(const v1::EvaluateResponse& part, std::span<const int> numbers,
                            v1::EvaluateResponse& merged) const;

 private:
  struct Range {
    size_t first;
    size_t count;
  };
  size_t CountRows(std::span<const int> numbers) const;
  std::string SplitArray(const std::string& array, std::span<const int> numbers) const;
  // The same of one with as many values of each position as the counts say.
  std::string SplitRagged(const std::string& array, const std::string& counts,
                          std::span<const int> numbers) const;
  absl::Status MergeArray(const std::string& part, std::span<const int> numbers,
                          std::string& merged) const;
  absl::Status MergeBits(const std::string& part, std::span<const int> numbers,
                         std::string& merged) const;

  std::vector<Range> rows_;  // one per slice
  size_t count_ = 0;
};

}  // namespace sis
