#include "client/compare/inspected_sequence.h"

#include <gtest/gtest.h>

#include <string>

namespace sis {
namespace {

constexpr size_t kPositions = 3, kSlots = 2;

// Arrays of zeros, as long as they must be.
v1::InspectSequenceResponse Response() {
  v1::InspectSequenceResponse response;
  response.set_top_k(kSlots);
  response.set_decisions(std::string(kPositions, static_cast<char>(v1::ACCEPTED)));
  const std::string of_four(4 * kPositions, '\0'), of_slots(4 * kPositions * kSlots, '\0');
  response.set_missing_reasons(std::string(kPositions, '\0'));
  response.set_sampled_ids(of_four);
  response.set_sampled_log_probs(of_four);
  response.set_log_ratios(of_four);
  response.set_acceptance_probabilities(of_four);
  response.set_log_envelopes(of_four);
  response.set_residual_masses(of_four);
  response.set_uniforms(of_four);
  response.set_staleness(std::string(8 * kPositions, '\0'));
  response.set_top_k_ids(of_slots);
  response.set_top_k_log_probs(of_slots);
  response.set_current_log_probs(of_slots);
  return response;
}

TEST(InspectedSequenceTest, EveryArrayIsAsLongAsThePositionsAre) {
  const v1::InspectSequenceResponse whole = Response();
  ASSERT_TRUE(CheckArrays(whole).ok()) << CheckArrays(whole);
  int arrays = 0;
  for (int i = 0; i < whole.GetDescriptor()->field_count(); ++i) {
    const google::protobuf::FieldDescriptor* field = whole.GetDescriptor()->field(i);
    if (field->type() != google::protobuf::FieldDescriptor::TYPE_BYTES) continue;
    ++arrays;
    const std::string bytes = whole.GetReflection()->GetString(whole, field);
    for (const size_t size : {size_t{0}, bytes.size() - 1, bytes.size() + 1}) {
      v1::InspectSequenceResponse wrong = whole;
      std::string resized = bytes;
      resized.resize(size);
      wrong.GetReflection()->SetString(&wrong, field, resized);
      EXPECT_TRUE(absl::IsInternal(CheckArrays(wrong))) << field->name() << " of " << size;
    }
  }
  EXPECT_EQ(arrays, 13);
}

}  // namespace
}  // namespace sis
