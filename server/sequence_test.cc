#include "server/sequence.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "kernels/record_digest.h"
#include "server/record_generator.h"

namespace sis {
namespace {

constexpr int kSlots = 3;
constexpr uint32_t kPositions = 700;

// What a sequence must behave like: a map of positions, and three rules.
class Model {
 public:
  struct Cell {
    int variant;
    uint64_t version;
    friend bool operator==(const Cell&, const Cell&) = default;
  };

  absl::StatusCode Append(uint32_t first, uint32_t count, Cell cell, int64_t free_bytes) {
    if (sealed.has_value() && first + count > *sealed) return absl::StatusCode::kFailedPrecondition;
    for (uint32_t p = first; p < first + count; ++p) {
      if (cells.contains(p) && cells[p] != cell) return absl::StatusCode::kAlreadyExists;
    }
    std::map<uint32_t, Cell> after = cells;
    for (uint32_t p = first; p < first + count; ++p) after[p] = cell;
    if (Bytes(after) - Bytes(cells) > free_bytes) return absl::StatusCode::kResourceExhausted;
    cells = std::move(after);
    return absl::StatusCode::kOk;
  }

  absl::StatusCode Truncate(uint32_t length) {
    if (sealed.has_value()) return absl::StatusCode::kFailedPrecondition;
    cells.erase(cells.lower_bound(length), cells.end());
    return absl::StatusCode::kOk;
  }

  absl::StatusCode Seal(uint32_t length) {
    if (sealed.has_value() ? *sealed != length : length < committed_length()) {
      return absl::StatusCode::kFailedPrecondition;
    }
    sealed = length;
    return absl::StatusCode::kOk;
  }

  uint32_t committed_length() const { return cells.empty() ? 0 : cells.rbegin()->first + 1; }
  int64_t bytes() const { return Sequence::kBaseBytes + Bytes(cells); }

  std::map<uint32_t, Cell> cells;
  std::optional<uint32_t> sealed;

 private:
  static int64_t Bytes(const std::map<uint32_t, Cell>& cells) {
    int64_t pages = 0;
    int64_t spans = 0;
    auto before = cells.end();
    for (auto cell = cells.begin(); cell != cells.end(); before = cell++) {
      const bool first = before == cells.end();
      pages += first || before->first / Page::kPositions != cell->first / Page::kPositions;
      spans += first || before->first + 1 != cell->first ||
               before->second.version != cell->second.version;
    }
    return pages * Page::Bytes(kSlots) + spans * Sequence::kVersionSpanBytes;
  }
};

// Records of every position in two variants; a block takes its rows from one.
class SequenceTest : public testing::Test {
 protected:
  SequenceTest() {
    RecordGenerator generator(kSlots, 1000, 11);
    for (int variant = 0; variant < 2; ++variant) {
      variants_.push_back(generator.NextRecords(kPositions));
      for (uint32_t p = 0; p < kPositions; ++p) {
        const RecordView row = variants_.back().View(p, 1);
        digests_.push_back(PositionDigest(p, row.sampled_ids[0], row.sampled_log_probs[0], row.ids,
                                          row.log_probs));
      }
    }
  }

  absl::Status Append(Sequence& sequence, uint32_t first, uint32_t count, Model::Cell cell,
                      int64_t* added = nullptr) {
    const Records& records = variants_[cell.variant];
    return sequence.Append(first, cell.version, records.View(first, count),
                           std::span(records.ranks).subspan(first, count), added);
  }

  uint64_t Digest(const Model& model, uint32_t first, uint32_t end) const {
    uint64_t digest = 0;
    for (auto cell = model.cells.lower_bound(first); cell != model.cells.end() && cell->first < end;
         ++cell) {
      digest += digests_[cell->second.variant * kPositions + cell->first];
    }
    return digest;
  }

  // Compares what a reader sees of [first, end).
  void ExpectSame(const Sequence& sequence, const Model& model, uint32_t first, uint32_t end) {
    const Sequence::Reader reader(sequence);
    EXPECT_EQ(reader.committed_length(), model.committed_length());
    EXPECT_EQ(reader.Digest(first, end - first), Digest(model, first, end));
    uint32_t next = first;
    reader.ForEachPiece(first, end - first, [&](const Sequence::Reader::Piece& piece) {
      ASSERT_EQ(piece.first_position, next);
      ASSERT_GE(piece.count, 1);
      next += piece.count;
      for (uint32_t i = 0; i < piece.count; ++i) {
        const uint32_t position = piece.first_position + i;
        const auto cell = model.cells.find(position);
        ASSERT_EQ(piece.page != nullptr, cell != model.cells.end()) << position;
        if (piece.page == nullptr) continue;
        EXPECT_EQ(piece.version, cell->second.version) << position;
        const Records& records = variants_[cell->second.variant];
        EXPECT_TRUE(piece.page->Equals(piece.index + i, records.View(position, 1), 0)) << position;
        EXPECT_EQ(piece.page->Behavior(piece.index + i, 1).sampled_ranks[0],
                  records.ranks[position]);
      }
    });
    EXPECT_EQ(next, end);
  }

  std::vector<Records> variants_;
  std::vector<uint64_t> digests_;  // [variant, position]
};

TEST_F(SequenceTest, RandomOperationsAgreeWithAMap) {
  std::mt19937 random(5);
  const auto below = [&](uint32_t end) { return static_cast<uint32_t>(random() % end); };
  // Room for about half of the pages.
  ByteBudget budget(Sequence::kBaseBytes + 6 * Page::Bytes(kSlots) + 500);
  std::map<absl::StatusCode, int> seen;
  std::unique_ptr<Sequence> sequence;
  Model model;
  int left = 0;
  for (int operation = 0; operation < 100000; ++operation) {
    if (left-- == 0) {
      sequence.reset();
      ASSERT_EQ(budget.used(), 0) << "bytes charged are refunded";
      ASSERT_TRUE(budget.TryCharge(Sequence::kBaseBytes));
      sequence = std::make_unique<Sequence>(kSlots, 1, budget);
      model = Model();
      left = 100 + below(400);
    }
    absl::Status status;
    absl::StatusCode expected;
    const uint32_t dice = below(1000);
    if (dice < 930) {
      const uint32_t first =
          below(2) == 0 ? std::min(model.committed_length(), kPositions - 1) : below(kPositions);
      const uint32_t count = 1 + below(std::min<uint32_t>(kPositions - first, dice < 30 ? 300 : 9));
      // Mostly what the position always gets, so that most re-sent blocks agree.
      const Model::Cell cell{.variant = below(30) == 0, .version = below(30) == 0 ? 9 : first / 99};
      const size_t before = model.cells.size();
      int64_t added = -1;
      status = Append(*sequence, first, count, cell, &added);
      expected = model.Append(first, count, cell, budget.limit() - model.bytes());
      if (status.ok()) {
        EXPECT_EQ(added, model.cells.size() - before);
      }
    } else if (dice < 997) {
      const uint32_t length =
          below(2) == 0 ? below(kPositions + 100)
                        : model.committed_length() - std::min(model.committed_length(), below(70));
      status = sequence->Truncate(length);
      expected = model.Truncate(length);
    } else {
      const uint32_t length =
          model.committed_length() + below(9) - std::min(model.committed_length(), 2u);
      status = sequence->Seal(length);
      expected = model.Seal(length);
    }
    ++seen[expected];
    ASSERT_EQ(status.code(), expected) << "operation " << operation << ": " << status;
    ASSERT_EQ(sequence->committed_length(), model.committed_length()) << operation;
    ASSERT_EQ(sequence->positions(), model.cells.size()) << operation;
    ASSERT_EQ(sequence->sealed(), model.sealed.has_value()) << operation;
    ASSERT_EQ(budget.used(), model.bytes()) << operation;
    if (operation % 20 == 0) {
      ExpectSame(*sequence, model, 0, kPositions + 50);
      const uint32_t first = below(kPositions);
      ExpectSame(*sequence, model, first, first + 1 + below(200));
      ASSERT_FALSE(HasFailure()) << "operation " << operation;
    }
  }
  // It is no test if one of them never came.
  for (const auto code :
       {absl::StatusCode::kOk, absl::StatusCode::kAlreadyExists,
        absl::StatusCode::kFailedPrecondition, absl::StatusCode::kResourceExhausted}) {
    EXPECT_GT(seen[code], 500) << absl::StatusCodeToString(code);
  }
}

TEST_F(SequenceTest, BytesToAppendIsWhatAppendNeeds) {
  std::mt19937 random(6);
  ByteBudget budget(1 << 30);
  ASSERT_TRUE(budget.TryCharge(Sequence::kBaseBytes));
  Sequence sequence(kSlots, 1, budget);
  for (int i = 0; i < 300; ++i) {
    const uint32_t first = random() % kPositions;
    const uint32_t count = std::min<uint32_t>(kPositions - first, 1 + random() % 100);
    const int64_t bytes = sequence.BytesToAppend(first, count, 1);
    const int64_t before = budget.used();
    ASSERT_TRUE(Append(sequence, first, count, {0, 1}).ok());
    const int64_t charged = budget.used() - before;
    ASSERT_LE(charged, bytes) << "less where stretches became one";
    ASSERT_GE(charged, bytes - 100 * Sequence::kVersionSpanBytes);
  }
}

TEST_F(SequenceTest, NewestVersionIsTheLargestHeld) {
  ByteBudget budget(1 << 30);
  ASSERT_TRUE(budget.TryCharge(Sequence::kBaseBytes));
  Sequence sequence(kSlots, 1, budget);
  EXPECT_EQ(sequence.newest_version(), 0);
  ASSERT_TRUE(Append(sequence, 0, 100, {0, 3}).ok());
  ASSERT_TRUE(Append(sequence, 200, 100, {0, 9}).ok());
  ASSERT_TRUE(Append(sequence, 100, 100, {0, 5}).ok());
  EXPECT_EQ(sequence.newest_version(), 9);
  ASSERT_TRUE(sequence.Truncate(200).ok());
  EXPECT_EQ(sequence.newest_version(), 5);
  ASSERT_TRUE(sequence.Truncate(0).ok());
  EXPECT_EQ(sequence.newest_version(), 0);
}

TEST_F(SequenceTest, MessagesNamePositionAndValue) {
  ByteBudget budget(1 << 30);
  ASSERT_TRUE(budget.TryCharge(Sequence::kBaseBytes));
  Sequence sequence(kSlots, 1, budget);
  ASSERT_TRUE(Append(sequence, 10, 10, {0, 3}).ok());
  EXPECT_EQ(Append(sequence, 5, 10, {1, 3}).message(),
            "position 10 is committed with other content");
  EXPECT_EQ(Append(sequence, 15, 10, {0, 4}).message(),
            "position 15 is committed with policy version 3, not 4");
  EXPECT_EQ(sequence.Seal(19).message(), "seal at 19: committed up to 20 (truncate first)");
  ASSERT_TRUE(sequence.Seal(25).ok());
  EXPECT_EQ(sequence.Seal(24).message(), "seal at 24: sealed at length 25");
  EXPECT_EQ(sequence.Truncate(3).message(), "truncate to 3: sealed at length 25");
  EXPECT_EQ(Append(sequence, 20, 6, {0, 3}).message(),
            "position 25 is beyond the seal at length 25");
  EXPECT_TRUE(Append(sequence, 0, 25, {0, 3}).ok()) << "gaps below the seal may still be filled";
}

}  // namespace
}  // namespace sis
