#include "kernels/block/validate.h"

#include <cstdint>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sis {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr float kUnused = -std::numeric_limits<float>::infinity();
constexpr int kVocabularySize = 100;
constexpr int kSlots = 3;
constexpr uint32_t kFirstPosition = 40;

// Two positions, 40 and 41; the tests spoil the second.
struct Record {
  std::vector<int32_t> sampled_ids = {7, 99};
  std::vector<float> sampled_log_probs = {-0.5f, -1.5f};
  std::vector<int32_t> ids = {7, 0, -1, 3, 99, 5};
  std::vector<float> log_probs = {-0.5f, -2.0f, kUnused, -0.75f, -1.5f, -2.5f};
  std::vector<uint8_t> counts = {77, 77}, ranks = {77, 77};

  absl::Status Validate() {
    return ValidateRecords({sampled_ids, sampled_log_probs, ids, log_probs}, kSlots,
                           kVocabularySize, kFirstPosition, /*mass=*/0, counts, ranks);
  }
};

MATCHER_P(IsInvalid, message, "") {
  return ExplainMatchResult(absl::StatusCode::kInvalidArgument, arg.code(), result_listener) &&
         ExplainMatchResult(message, std::string(arg.message()), result_listener);
}

auto Names(const char* field, const char* value) {
  return IsInvalid(AllOf(HasSubstr(field), HasSubstr("position 41"), HasSubstr(value)));
}

auto NamesSlot(const char* field, const char* slot, const char* value) {
  return IsInvalid(
      AllOf(HasSubstr(field), HasSubstr("position 41"), HasSubstr(slot), HasSubstr(value)));
}

TEST(ValidateRecordsTest, AcceptsTheSlackOfRounding) {
  Record record;
  record.ids = {7, -1, -1, 99, -1, -1};
  record.log_probs = {0.0f, kUnused, kUnused, 0x1p-7f, kUnused, kUnused};
  record.sampled_log_probs = {0.0f, 0x1p-7f};
  EXPECT_TRUE(record.Validate().ok()) << record.Validate();
}

TEST(ValidateRecordsTest, ZerosOfEitherSignTie) {
  Record record;
  record.sampled_ids[1] = 42;
  record.log_probs = {-0.5f, -2.0f, kUnused, -0.0f, 0.0f, -8.0f};
  record.ids = {7, 0, -1, 99, 3, 5};
  EXPECT_THAT(record.Validate(), NamesSlot("top_k_ids", "slot 1", "id 3"));
}

TEST(ValidateRecordsTest, RefusesZerosOfDifferentSignAsSampledLogProbAndSlot) {
  Record record;
  record.ids = {7, 0, -1, 99, -1, -1};
  record.log_probs = {-0.5f, -2.0f, kUnused, 0.0f, kUnused, kUnused};
  record.sampled_log_probs[1] = -0.0f;
  EXPECT_THAT(record.Validate(), Names("sampled_log_probs", "slot 0"));
}

}  // namespace
}  // namespace sis
