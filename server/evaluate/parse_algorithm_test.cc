#include "server/evaluate/parse_algorithm.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sis {
namespace {

using ::testing::ElementsAreArray;

std::vector<std::string> FieldsOf(const google::protobuf::Descriptor& message) {
  std::vector<std::string> names;
  for (int i = 0; i < message.field_count(); ++i) names.emplace_back(message.field(i)->name());
  return names;
}

TEST(ParseAlgorithmTest, TheApiHasEachAlgorithmWithItsParameters) {
  const google::protobuf::Descriptor& api = *v1::Algorithm::descriptor();
  std::vector<std::string> names;
  for (Algorithm& algorithm : AllAlgorithms()) {
    names.emplace_back(AlgorithmName(algorithm));
    std::vector<std::string> parameters;
    for (const Parameter& parameter : ParametersOf(algorithm)) {
      parameters.emplace_back(parameter.name);
    }
    const auto* const field = api.FindFieldByName(names.back());
    ASSERT_NE(field, nullptr) << names.back();
    EXPECT_THAT(FieldsOf(*field->message_type()), ElementsAreArray(parameters)) << names.back();
  }
  EXPECT_THAT(FieldsOf(api), ElementsAreArray(names));
}

TEST(ParseAlgorithmTest, UnsetParametersKeepTheirDefaults) {
  v1::Algorithm message;
  message.mutable_tis()->set_epsilon_low(0.0f);
  const absl::StatusOr<Algorithm> algorithm = ParseAlgorithm(message);
  ASSERT_TRUE(algorithm.ok()) << algorithm.status();
  const auto& tis = std::get<Tis>(*algorithm);
  EXPECT_EQ(tis.truncation, 2.0f);
  EXPECT_EQ(tis.epsilon_low, 0.0f);
  EXPECT_EQ(tis.epsilon_high, 0.2f);
}

}  // namespace
}  // namespace sis
