#include "client/api/gather.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace sis {
namespace {

using ::testing::ElementsAre;

class GatherTest : public ::testing::Test {
 protected:
  // Three positions, the second without a record, the third with an unused slot.
  const std::vector<int32_t> ids_ = {2, 1, -1, -1, 0, -1}, sampled_ids_ = {1, -1, 3};
  const TopKRecords records_{
      .top_k = 2, .slices = {{{"a"}, 0, 3}}, .sampled_ids = sampled_ids_, .ids = ids_};
  const std::vector<float> log_softmax_ = {-0.0f, -0.1f, -0.2f, -0.3f,  //
                                           -1.0f, -1.1f, -1.2f, -1.3f,  //
                                           -2.0f, -2.1f, -2.2f, -2.3f};
};

TEST_F(GatherTest, ATokenThatNobodyNamesHasNoLogProb) {
  const auto gathered = Gather(records_, log_softmax_);
  ASSERT_TRUE(gathered.ok()) << gathered.status();
  EXPECT_THAT(gathered->log_probs, ElementsAre(-0.2f, -0.1f, -1.0f, -1.0f, -2.0f, -2.0f));
  EXPECT_EQ(gathered->sampled_log_probs[0], -0.1f);
  EXPECT_TRUE(std::isnan(gathered->sampled_log_probs[1]));
  EXPECT_EQ(gathered->sampled_log_probs[2], -2.3f);
  EXPECT_EQ(gathered->values().log_probs.data(), gathered->log_probs.data());
}

TEST_F(GatherTest, TheTrainersTokenStandsInWhereNoneIsRecorded) {
  const auto gathered = Gather(records_, log_softmax_, std::vector<int32_t>{2, 3, 0});
  ASSERT_TRUE(gathered.ok()) << gathered.status();
  EXPECT_THAT(gathered->sampled_log_probs, ElementsAre(-0.1f, -1.3f, -2.3f));
  const auto masked = Gather(records_, log_softmax_, std::vector<int32_t>{2, -1, 0});
  ASSERT_TRUE(masked.ok()) << masked.status();
  EXPECT_TRUE(std::isnan(masked->sampled_log_probs[1]));
}

TEST_F(GatherTest, ArraysThatDoNotFitAreRefused) {
  const auto refused = [&](std::span<const float> log_softmax, std::vector<int32_t> own) {
    return Gather(records_, log_softmax, own).status();
  };
  EXPECT_EQ(refused(std::span(log_softmax_).first(11), {}),
            absl::InvalidArgumentError("log_softmax: 11 elements are no rows of 3 positions"));
  EXPECT_EQ(refused(log_softmax_, {1}),
            absl::InvalidArgumentError("sampled_ids: 1 elements, must be 3"));
  EXPECT_EQ(refused(log_softmax_, {1, 4, 1}),
            absl::InvalidArgumentError("sampled_ids, position 1: 4 is not below 4"));
  EXPECT_EQ(refused(std::span(log_softmax_).first(6), {}),
            absl::InvalidArgumentError("ids, position 0: 2 is not below 2"));
  TopKRecords partial = records_;
  partial.sampled_ids = {};
  EXPECT_EQ(Gather(partial, log_softmax_).status(),
            absl::InvalidArgumentError("records: ids and sampled_ids were not fetched"));
  EXPECT_TRUE(Gather({}, {})->log_probs.empty());
}

}  // namespace
}  // namespace sis
