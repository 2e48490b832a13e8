#include "client/recorded/recorded_sets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

namespace sis {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

RecordedToken Id(int32_t id, float log_prob) { return {id, std::nullopt, log_prob}; }
RecordedToken Text(const char* text, float log_prob) { return {std::nullopt, text, log_prob}; }

std::vector<int32_t> Ids(const RecordedSet& set) {
  std::vector<int32_t> ids;
  for (const ListedToken& token : set.top) ids.push_back(token.id);
  return ids;
}

absl::StatusOr<RecordedPair> Pair(const std::vector<RecordedPosition>& a,
                                  const std::vector<RecordedPosition>& b) {
  return PairRecordings(std::vector<RecordedSequence>{{a}}, "a.json",
                        std::vector<RecordedSequence>{{b}}, "b.json");
}

// The sets of both files of a pair of equal ones, and their K.
struct ReadSets {
  RecordedSets positions;
  int top_k;
};
ReadSets Read(const std::vector<RecordedPosition>& positions) {
  const auto pair = Pair(positions, positions);
  EXPECT_TRUE(pair.ok()) << pair.status();
  return {pair->a.sequences[0], pair->a.top_k};
}

TEST(RecordedSetsTest, SortsByLogProbThenId) {
  const ReadSets recording = Read({{Id(5, -3), {Id(9, -2), Id(7, -3), Id(5, -3), Id(8, -0.5f)}}});
  EXPECT_THAT(Ids(recording.positions[0]), ElementsAre(8, 9, 5, 7));
  EXPECT_EQ(recording.top_k, 4);
}

TEST(RecordedSetsTest, EqualAsFloat32IsATie) {
  const ReadSets recording = Read(
      {{Id(1, -1), {Id(2, static_cast<float>(-1.1)), Id(1, static_cast<float>(-1.1 + 1e-12))}}});
  EXPECT_THAT(Ids(recording.positions[0]), ElementsAre(1, 2));
}

TEST(RecordedSetsTest, TheSampledLogProbIsThatOfItsSlot) {
  const ReadSets recording = Read({{Id(1, -0.5f), {Id(1, -0.25f), Id(2, -3)}}});
  EXPECT_EQ(recording.positions[0].sampled_log_prob, -0.25f);
}

TEST(RecordedSetsTest, DropsMinusInfinityAndRepetitions) {
  const ReadSets recording =
      Read({{Id(1, -kInfinity), {Id(1, -kInfinity), Id(2, -1), Id(3, -2), Id(2, -1)}}});
  EXPECT_THAT(Ids(recording.positions[0]), ElementsAre(2, 3));
  EXPECT_EQ(recording.positions[0].sampled_log_prob, -kInfinity);
  EXPECT_EQ(recording.positions[0].LogProbOf(1), std::nullopt);
  EXPECT_EQ(recording.positions[0].LogProbOf(3), -2);
  EXPECT_EQ(recording.top_k, 2);
}

TEST(RecordedSetsTest, ASampledTokenOneBeyondTheOthersIsAppended) {
  const ReadSets recording = Read({{Id(1, -0.5f), {Id(1, -0.5f), Id(2, -2)}},
                                   {Id(9, -7), {Id(1, -0.5f), Id(2, -2), Id(9, -7)}},
                                   {Id(2, -2), {Id(1, -0.5f), Id(2, -2)}}});
  EXPECT_EQ(recording.top_k, 2);
  EXPECT_THAT(Ids(recording.positions[1]), ElementsAre(1, 2));
  EXPECT_EQ(recording.positions[1].LogProbOf(9), -7);
  EXPECT_THAT(Ids(recording.positions[2]), ElementsAre(1, 2));
}

TEST(RecordedSetsTest, ASampledTokenThatStandsFirstOutOfOrderIsAppended) {
  // Cut to three: the least probable of a list may be the third or any below, so only two are known
  // for sure.
  const ReadSets recording = Read({{Id(9, -7), {Id(9, -7), Id(1, -0.5f), Id(2, -2)}},
                                   {Id(2, -2), {Id(2, -2), Id(1, -0.5f), Id(3, -4)}}});
  EXPECT_EQ(recording.top_k, 2);
  EXPECT_THAT(Ids(recording.positions[0]), ElementsAre(1, 2));
  EXPECT_EQ(recording.positions[0].LogProbOf(9), -7);
  EXPECT_THAT(Ids(recording.positions[1]), ElementsAre(1, 2, 3));
}

TEST(RecordedSetsTest, ASampledTokenOfTheLastRankIsNotAppended) {
  const ReadSets recording = Read({{Id(2, -2), {Id(1, -0.5f), Id(2, -2)}},
                                   {Id(1, -0.5f), {Id(1, -0.5f), Id(2, -2)}},
                                   {Id(1, -0.5f), {Id(1, -0.5f)}}});
  EXPECT_EQ(recording.top_k, 2);
  EXPECT_THAT(Ids(recording.positions[0]), ElementsAre(1, 2));
}

TEST(RecordedSetsTest, TokensWithoutIdsAreMatchedByText) {
  const std::vector<RecordedPosition> behavior = {{Text("a", -1), {Text("a", -1), Text("b", -2)}}};
  const std::vector<RecordedPosition> current = {
      {{77, "b", -1}, {{77, "b", -1}, {78, "c", -2}, {79, "a", -3}}}};
  const auto pair = Pair(behavior, current);
  ASSERT_TRUE(pair.ok()) << pair.status();
  const int32_t a = pair->a.sequences[0][0].sampled_id;
  const int32_t b = pair->b.sequences[0][0].sampled_id;
  EXPECT_THAT(Ids(pair->a.sequences[0][0]), ElementsAre(a, b));
  EXPECT_EQ(pair->b.sequences[0][0].LogProbOf(a), -3);
  EXPECT_EQ(pair->vocabulary_size, 64);
}

TEST(RecordedSetsTest, OfEqualTextsTheMostProbableStays) {
  const ReadSets sets = Read({{Text("a", -1), {Text("a", -1), Text("b", -3), Text("b", -2)}}});
  EXPECT_THAT(Ids(sets.positions[0]), ElementsAre(0, 1));
  EXPECT_EQ(sets.positions[0].LogProbOf(1), -2);
}

TEST(RecordedSetsTest, AFileKeepsItsTexts) {
  const std::vector<RecordedPosition> a = {{{1, "x", -1}, {{1, "x", -1}, {2, "y", -2}}}};
  const std::vector<RecordedPosition> b = {{{1, "z", -1}, {Id(1, -1), Id(3, -2)}}};
  const auto pair = Pair(a, b);
  ASSERT_TRUE(pair.ok()) << pair.status();
  EXPECT_EQ(pair->a.texts.at(1), "x");
  EXPECT_EQ(pair->a.texts.at(2), "y");
  EXPECT_EQ(pair->b.texts.at(1), "z");
  EXPECT_FALSE(pair->b.texts.contains(3));
}

TEST(RecordedSetsTest, WhatWasAskedForIsSeenOverAllSequences) {
  const std::vector<RecordedSequence> file = {
      {{{Id(1, -0.5f), {Id(1, -0.5f), Id(2, -2)}}}},
      {{{Id(9, -7), {Id(1, -0.5f), Id(2, -2), Id(9, -7)}}}}};
  const auto pair = PairRecordings(file, "a", file, "b");
  ASSERT_TRUE(pair.ok()) << pair.status();
  EXPECT_EQ(pair->a.top_k, 2);
  EXPECT_THAT(Ids(pair->a.sequences[1][0]), ElementsAre(1, 2));
}

TEST(RecordedSetsTest, TheVocabularyHoldsEveryId) {
  const std::vector<RecordedPosition> behavior = {{Id(1, -1), {Id(63, -1)}}};
  for (const auto& [id, size] : {std::pair(2, 64), {64, 128}, {(1 << 24) - 1, 1 << 24}}) {
    const std::vector<RecordedPosition> current = {{Id(id, -1), {}}};
    EXPECT_EQ(Pair(behavior, current)->vocabulary_size, size);
  }
}

// What takes the square of them runs into the test's time limit.
TEST(RecordedSetsTest, ReadsListsOfWholeVocabularies) {
  constexpr int32_t kTokens = 1 << 20;
  RecordedPosition position{Id(kTokens - 1, -7), {}};
  for (int32_t id = 0; id < kTokens; ++id) {
    position.top.push_back(Id(id, id == kTokens - 1 ? -7 : -14));
  }
  const ReadSets recording = Read({position});
  EXPECT_EQ(recording.positions[0].top.front().id, kTokens - 1);
  EXPECT_EQ(recording.positions[0].top[1].id, 0);
}

// As of lists that belong to another position, into which an engine has put the sampled token.
TEST(RecordedSetsTest, ASampledTokenThatItsListLeavesNoRoomForIsTakenOut) {
  const ReadSets above_1 = Read({{Id(5, -0.1f), {Id(5, -0.1f), Id(2, -0.2f), Id(3, -3)}}});
  EXPECT_THAT(Ids(above_1.positions[0]), ElementsAre(2, 3));
  EXPECT_EQ(above_1.positions[0].sampled_log_prob, -0.1f);
  const ReadSets twice = Read({{Id(5, -0.1f), {Id(5, -0.1f), Id(2, -0.2f), Id(5, -3), Id(3, -4)}}});
  EXPECT_THAT(Ids(twice.positions[0]), ElementsAre(2, 5, 3));
  EXPECT_EQ(twice.positions[0].sampled_log_prob, -3);
  EXPECT_EQ(twice.positions[0].given_log_prob, -0.1f);
}

TEST(RecordedSetsTest, RefusesWhatCannotBe) {
  const std::vector<RecordedPosition> good = {{Id(1, -1), {Id(1, -1)}}};
  const auto message = [&](const std::vector<RecordedPosition>& current) {
    const absl::Status status = Pair(good, current).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(
      message({good[0], {Id(1, -1), {Id(2, -1), Id(2, -2)}}}),
      HasSubstr("b.json: sequence 0: position 1: top_logprobs gives token 2 both -1 and -2"));
  EXPECT_THAT(
      message({good[0], {Id(1, -1), {Id(2, 0), Id(3, -2)}}}),
      HasSubstr("b.json: sequence 0: position 1: the probabilities of top_logprobs sum to 1.13"));
  EXPECT_THAT(message({{Text("a", -1), {}}}), HasSubstr("tokens can't be matched"));
  const std::vector<RecordedSequence> one = {{good}}, two = {{good}, {good}};
  EXPECT_THAT(std::string(PairRecordings(one, "a", two, "b").status().message()),
              HasSubstr("a holds 1 sequences, b 2"));
}

}  // namespace
}  // namespace sis
