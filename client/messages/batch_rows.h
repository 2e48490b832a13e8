// The rows of a batch's arrays, in requests and responses of Evaluate: split over replicas and put
// together again.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

class BatchRows {
 public:
  explicit BatchRows(const google::protobuf::RepeatedPtrField<v1::Slice>& slices);

  // Copies the rows of the slices with these numbers from form to form. Arrays that do not divide
  // into rows go as they are, to be refused.
  void SplitForm(const v1::EvaluateRequest& request, std::span<const int> numbers,
                 v1::EvaluateRequest& part) const;
  // The same of the optional arrays: mask, own log-probs, current log-probs, advantages.
  void SplitOptions(const v1::EvaluateRequest& request, std::span<const int> numbers,
                    v1::EvaluateRequest& part) const;

  // What a slice counts without an answer: masked positions, the others missing.
  v1::Totals MissingTotals(const v1::EvaluateRequest& request, int number) const;

  // The outputs asked for, of all rows as if all were missing.
  void SetMissing(const v1::EvaluateRequest& request, v1::EvaluateResponse& merged) const;
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
  absl::Status MergeArray(const std::string& part, size_t element_bytes,
                          std::span<const int> numbers, std::string& merged) const;
  absl::Status MergeBits(const std::string& part, std::span<const int> numbers,
                         std::string& merged) const;

  std::vector<Range> rows_;  // one per slice
  size_t count_ = 0;
};

// The sum, to the last bit what one server computes: all addends are whole multiples of 2^-30.
v1::Totals SumTotals(std::span<const v1::Totals> parts);

// The same of the prefix curve: adds that of one replica's answer.
void AddPrefixCurve(const v1::EvaluateResponse& part, v1::EvaluateResponse& merged);

}  // namespace sis
