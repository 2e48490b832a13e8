// Evaluate of positions that are not there, not to be trusted, or might be others by now.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/fetch/fetch.h"
#include "server/testing/evaluate_fixture.h"

namespace sis {
namespace {

using absl::StatusCode;
using testing::HasSubstr;

using EvaluateMissingTest = EvaluateTest;

// They are compared wherever something is recorded, whatever is missing elsewhere.
TEST_F(EvaluateMissingTest, OtherSampledIdsAreRefused) {
  v1::RunConfig config = LosslessConfig(kSlots);
  config.set_max_staleness(1);
  run_ = cache_.CreateRun("m", config);
  // The same records as above.
  AppendBlock(cache_, *run_, records_[0].Block("a", 0, 5, 0, 64));
  AppendBlock(cache_, *run_, records_[0].Block("a", 64, 2, 64, 26));
  AppendBlock(cache_, *run_, records_[0].Block("a", 150, 5, 150, 10));
  AppendBlock(cache_, *run_, records_[1].Block("b"));
  run_->Release({"b", 0});
  AppendBlock(cache_, *run_, records_[2].Block("c", 5));
  ASSERT_TRUE(run_->AdvanceVersion(5).ok());
  std::vector<int32_t> ids;
  for (const Records& records : records_) {
    ids.insert(ids.end(), records.sampled_ids.begin(), records.sampled_ids.end());
  }
  const auto packed = [](const std::vector<int32_t>& ids, int width) {
    std::string bytes;
    for (const int32_t id : ids) {
      for (int i = 0; i < width; ++i) bytes.push_back(static_cast<char>(id >> 8 * i));
    }
    return bytes;
  };
  struct Case {
    std::string what;
    std::function<void(std::vector<int32_t>& ids, std::string& mask)> change;
    std::string position = "";  // that is named; empty: none
  };
  const auto at = [](size_t i) { return [i](auto& ids, auto&) { ids[i] ^= 1; }; };
  const Case cases[] = {
      {"right", [](auto&, auto&) {}},
      {"the first", at(0), "position 0 of sequence 'a' attempt 0"},
      {"before the gap", at(63), "position 63 of sequence 'a'"},
      {"stale", at(70), "position 70 of sequence 'a'"},
      {"missing", at(100)},
      {"behind the gap", at(155), "position 155 of sequence 'a'"},
      {"released", at(kLength + 3)},
      {"the last", at(3 * kLength - 1), "position 199 of sequence 'c'"},
      {"masked", [](auto& ids, auto& mask) { ids[5] = -1, mask[5] = 0; }},
      {"shifted", [](auto& ids, auto&) { std::rotate(ids.begin(), ids.begin() + 1, ids.end()); },
       "position "},
  };
  for (const int width : {2, 3, 4}) {
    for (const Case& c : cases) {
      SCOPED_TRACE(c.what);
      std::vector<int32_t> changed = ids;
      std::string mask(3 * kLength, 1);
      c.change(changed, mask);
      v1::EvaluateRequest request = Request(all_, 7);
      request.set_mask(mask);
      request.set_sampled_ids(packed(changed, width));
      const absl::Status status = Try(request).status();
      EXPECT_EQ(status.code(),
                c.position.empty() ? StatusCode::kOk : StatusCode::kFailedPrecondition)
          << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(c.position));
    }
  }
  v1::EvaluateRequest request = Request(all_, 8);
  ids[1] = 65537;
  request.set_sampled_ids(packed(ids, 3));
  EXPECT_EQ(Try(request).status().message(),
            absl::StrCat("sampled_ids: 65537 at position 1 of sequence 'a' attempt 0, but ",
                         records_[0].sampled_ids[1],
                         " is recorded there: is the batch shifted or permuted?"));
  EXPECT_FALSE(run_->steps().Find(8).has_value()) << "an error counts nothing";
  for (const size_t bytes : {size_t{1}, 1 * ids.size(), 2 * ids.size() + 1, 5 * ids.size()}) {
    request.set_sampled_ids(std::string(bytes, '\0'));
    const absl::Status status = Try(request).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat("sampled_ids: ", bytes, " bytes for 600 positions")));
  }
}

TEST_F(EvaluateMissingTest, ValuesOfMissingAndMaskedPositionsAreIgnored) {
  // c has 60 positions more than are recorded.
  v1::EvaluateRequest request = Request(all_, 1);
  request.mutable_slices(2)->set_length(kLength + 60);
  std::string mask(3 * kLength + 60, 1);
  for (size_t i = 0; i < mask.size(); i += 7) mask[i] = 0;
  request.set_mask(mask);
  const v1::Gathered recorded = request.gathered();
  std::vector<std::string> answers;
  for (const bool values : {false, true}) {
    v1::Gathered& gathered = *request.mutable_gathered();
    gathered.Clear();
    size_t from = 0;
    for (uint32_t i = 0; i < mask.size(); ++i) {
      const bool missing = i >= 3 * kLength;
      const int used = missing ? 0 : recorded.counts()[i];
      const bool ignored = missing || mask[i] == 0;
      const int count = !ignored ? used : values ? static_cast<int>(i % (kSlots + 1)) : 0;
      gathered.mutable_counts()->push_back(static_cast<char>(count));
      *gathered.mutable_log_probs() +=
          ignored ? std::string(count * sizeof(float), '\xff')
                  : recorded.log_probs().substr(from * sizeof(float), used * sizeof(float));
      *gathered.mutable_sampled_log_probs() +=
          ignored ? std::string(sizeof(float), '\xff')
                  : recorded.sampled_log_probs().substr(i * sizeof(float), sizeof(float));
      from += used;
    }
    v1::EvaluateResponse response = Do(request);
    EXPECT_GT(response.totals().accepted(), 0);
    EXPECT_GT(response.totals().missing(), 0);
    response.clear_newly_counted();
    answers.push_back(response.SerializeAsString());
  }
  EXPECT_TRUE(answers[0] == answers[1]);
}

// Its sequence a has three blocks, of the positions [0, 64), [64, 128) and [128, 200).
class EvaluateCorruptTest : public EvaluateTest {
 protected:
  EvaluateCorruptTest() {
    run_ = cache_.CreateRun("m", LosslessConfig(kSlots));
    const uint32_t begins[] = {0, 64, 128, kLength};
    for (int i = 0; i < 3; ++i) {
      const uint32_t first = begins[i];
      AppendBlock(cache_, *run_, records_[0].Block("a", first, i, first, begins[i + 1] - first));
    }
  }
  void Damage(uint32_t position) {
    const auto& sequence = *std::get<std::shared_ptr<Sequence>>(run_->Find({"a", 0}));
    Sequence::Reader(sequence).ForEachPiece(position, 1, [](const Sequence::Reader::Piece& piece) {
      const_cast<std::byte&>(piece.block->bytes()[sizeof(BlockHeader)]) ^= std::byte{2};
    });
  }
  v1::FetchedSlice Fetch(uint32_t first, uint32_t count) {
    v1::FetchTopKRequest request;
    v1::Slice& slice = *request.add_slices();
    slice.mutable_sequence()->set_id("a");
    slice.set_first_position(first);
    slice.set_length(count);
    v1::FetchTopKResponse message;
    EXPECT_TRUE(sis::Fetch::Open(run_, request)->Next(message));
    return message.slices(0);
  }
};

TEST_F(EvaluateCorruptTest, RecordsThatBecomeCorruptAfterTheFetchAreMissing) {
  const auto digest = [&](uint32_t first, uint32_t count) {
    return Fetch(first, count).record_digest();
  };
  uint64_t draw = 0;
  const auto evaluate = [&](uint32_t first, uint32_t count, uint64_t digest) {
    v1::EvaluateRequest request = Request({{0, first, count}}, ++draw);
    request.mutable_slices(0)->set_record_digest(digest);
    return Do(request);
  };
  const auto missing = [](const v1::EvaluateResponse& response) {
    std::vector<std::pair<uint32_t, uint32_t>> ranges;
    for (const v1::MissingRange& range : response.missing()) {
      EXPECT_EQ(range.reason(), v1::MISSING_REASON_CORRUPT);
      ranges.emplace_back(range.first_position(), range.length());
    }
    return ranges;
  };
  using Ranges = std::vector<std::pair<uint32_t, uint32_t>>;
  const uint64_t whole = digest(0, kLength);
  const uint64_t part = digest(70, 80);
  Damage(64);
  const v1::FetchedSlice found = Fetch(0, kLength);
  EXPECT_EQ(found.blocks_size(), 2);
  ASSERT_EQ(found.missing_size(), 1);
  EXPECT_EQ(found.missing(0).first_position(), 64);
  EXPECT_EQ(found.missing(0).length(), 64);
  EXPECT_EQ(found.missing(0).reason(), v1::MISSING_REASON_CORRUPT);
  const uint64_t later = found.record_digest();
  EXPECT_NE(later, whole);
  for (const uint64_t fetched : {whole, later}) {
    EXPECT_EQ(missing(evaluate(0, kLength, fetched)), (Ranges{{64, 64}}));
  }
  Damage(192);
  EXPECT_NE(digest(0, kLength), later) << "somebody finds it";
  EXPECT_EQ(missing(evaluate(0, kLength, whole)), (Ranges{{64, 136}}));
  // If one block was damaged before the fetch and one after, or a part of a block was fetched, the
  // fetched records of the other blocks can't be verified.
  EXPECT_EQ(missing(evaluate(0, kLength, later)), (Ranges{{0, kLength}}));
  EXPECT_EQ(missing(evaluate(70, 80, part)), (Ranges{{70, 80}}));
  EXPECT_EQ(
      run_->counters().totals().missing_by_reason[static_cast<size_t>(MissingReason::kCorrupt)],
      64 + 64 + (64 + 72) + kLength + 80);

  // Other digests are an error still.
  v1::EvaluateRequest sound = Request({{0, 0, 64}});
  sound.mutable_slices(0)->set_record_digest(digest(0, 64) + 1);
  EXPECT_EQ(Try(sound).status().code(), StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace sis
