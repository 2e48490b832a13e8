#include "server/cache/sequence.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "kernels/block/digest.h"
#include "kernels/block/pack.h"
#include "server/testing/record_generator.h"

namespace sis {
namespace {

using absl::StatusCode;
using Piece = Sequence::Reader::Piece;
using Block = std::vector<std::byte>;

constexpr uint32_t kPositions = 1500;

// The model of a sequence: a map of positions, the sets of positions in gaps and in damaged blocks,
// and five rules.
class Model {
 public:
  struct Cell {
    int variant;
    uint64_t version;
    friend bool operator==(const Cell&, const Cell&) = default;
  };

  StatusCode Append(uint32_t first, uint32_t count, Cell cell, bool room) {
    if (sealed.has_value() && first + count > *sealed) return StatusCode::kFailedPrecondition;
    for (uint32_t p = first; p < first + count; ++p) {
      if (damaged.contains(p)) return StatusCode::kDataLoss;
      if (cells.contains(p) && cells[p] != cell) return StatusCode::kAlreadyExists;
    }
    if (!room) return StatusCode::kResourceExhausted;
    for (uint32_t p = first; p < first + count; ++p) cells[p] = cell;
    return StatusCode::kOk;
  }

  StatusCode AppendGap(uint32_t first, uint32_t count, bool room) {
    if (sealed.has_value() && first + count > *sealed) return StatusCode::kFailedPrecondition;
    for (uint32_t p = first; p < first + count; ++p) {
      if (cells.contains(p) && !noted.contains(p)) return StatusCode::kAlreadyExists;
    }
    if (!room && !Touches(first, count)) return StatusCode::kResourceExhausted;
    for (uint32_t p = first; p < first + count; ++p) noted.insert(p);
    return StatusCode::kOk;
  }

  StatusCode Seal(uint32_t length) {
    if (sealed.has_value() ? *sealed != length : length < committed_length()) {
      return StatusCode::kFailedPrecondition;
    }
    sealed = length;
    return StatusCode::kOk;
  }

  uint32_t committed_length() const {
    return std::max(cells.empty() ? 0 : cells.rbegin()->first + 1,
                    noted.empty() ? 0 : *noted.rbegin() + 1);
  }
  std::optional<uint64_t> newest_version() const {
    std::optional<uint64_t> newest;
    for (const auto& [position, cell] : cells) {
      newest = std::max(newest, std::optional(cell.version));
    }
    return newest;
  }
  // Returns true if a gap overlaps or touches these positions.
  bool Touches(uint32_t first, uint32_t count) const {
    const auto next = noted.lower_bound(first == 0 ? 0 : first - 1);
    return next != noted.end() && *next <= first + count;
  }
  int64_t gaps() const {
    return std::ranges::count_if(noted, [&](uint32_t p) { return !noted.contains(p + 1); });
  }

  std::map<uint32_t, Cell> cells;
  std::set<uint32_t> noted;    // in gaps
  std::set<uint32_t> damaged;  // in corrupt blocks
  std::optional<uint32_t> sealed;
};

// A sequence with a budget of its own.
struct Budgeted {
  explicit Budgeted(int64_t limit = int64_t{1} << 30) : budget(limit) {
    EXPECT_TRUE(budget.TryCharge(Sequence::kBaseBytes));
  }
  ByteBudget budget;
  Sequence sequence{/*key=*/1, budget};
};

absl::Status Append(Sequence& sequence, const Block& block,
                    Sequence::Appended* appended = nullptr) {
  return sequence.Append(*OpenBlock(block, /*checksums=*/true), appended);
}

std::vector<const CachedBlock*> BlocksOf(const Sequence& sequence) {
  std::vector<const CachedBlock*> blocks;
  Sequence::Reader(sequence).ForEachPiece(0, 2 * kMaxBlockPositions, [&](const Piece& piece) {
    if (piece.block != nullptr) blocks.push_back(piece.block);
  });
  return blocks;
}

uint64_t NameOf(const CachedBlock& block) { return block.Range(0, 1).tag->name(); }

// Changes a byte, so that the block doesn't match its checksums.
void Damage(const CachedBlock& block, size_t byte) {
  const_cast<std::byte&>(block.bytes()[byte]) ^= std::byte{16};
}

// Random records of every position in two variants; a block takes its rows from one.
class SequenceTest : public testing::TestWithParam<std::tuple<BlockEncoding, int>> {
 protected:
  Block Pack(uint32_t first, uint32_t count, Model::Cell cell) const {
    return *PackBlock(sent_[cell.variant].View(first, count), {.encoding = std::get<0>(GetParam()),
                                                               .slots = slots_,
                                                               .vocabulary_size = 1000,
                                                               .first_position = first,
                                                               .policy_version = cell.version});
  }

  uint64_t Digest(const Model& model, uint32_t first, uint32_t end) const {
    uint64_t digest = 0;
    for (auto cell = model.cells.lower_bound(first); cell != model.cells.end() && cell->first < end;
         ++cell) {
      if (model.damaged.contains(cell->first)) continue;
      digest += DigestOf(*OpenBlock(Pack(cell->first, 1, cell->second), false), 0, 1);
    }
    return digest;
  }

  // Checks the blocks with positions in [first, first + count), as a fetch does.
  static void Check(const Sequence::Reader& reader, uint32_t first, uint32_t count) {
    reader.ForEachPiece(first, count, [](const Piece& piece) {
      if (piece.block != nullptr) piece.block->Check().IgnoreError();
    });
  }

  // Compares what a reader sees of [first, end).
  void ExpectSame(const Sequence& sequence, const Model& model, uint32_t first,
                  uint32_t end) const {
    const Sequence::Reader reader(sequence);
    Check(reader, first, end - first);
    EXPECT_EQ(reader.committed_length(), model.committed_length());
    EXPECT_EQ(reader.Digest(first, end - first), Digest(model, first, end));
    uint32_t next = first;
    reader.ForEachPiece(first, end - first, [&](const Piece& piece) {
      ASSERT_EQ(piece.first_position, next);
      ASSERT_GE(piece.count, 1);
      next += piece.count;
      for (uint32_t i = 0; i < piece.count; ++i) {
        const uint32_t position = piece.first_position + i;
        const auto cell = model.cells.find(position);
        ASSERT_EQ(piece.block != nullptr, cell != model.cells.end()) << position;
        if (piece.block == nullptr) {
          EXPECT_EQ(piece.reason, model.noted.contains(position) ? MissingReason::kInvalidLogProb
                                                                 : MissingReason::kNeverArrived)
              << position;
          continue;
        }
        EXPECT_EQ(piece.block->policy_version(), cell->second.version) << position;
        ASSERT_EQ(piece.block->corrupt(), model.damaged.contains(position)) << position;
        if (piece.block->corrupt()) continue;
        EXPECT_EQ(SliceBlock(piece.block->view(), piece.index + i, 1),
                  Pack(position, 1, cell->second))
            << position;
      }
    });
    EXPECT_EQ(next, end);
  }

  static void ExpectCharged(const Sequence& sequence, const Model& model,
                            const ByteBudget& budget) {
    int64_t bytes = Sequence::kBaseBytes + model.gaps() * Sequence::kGapBytes;
    for (const CachedBlock* block : BlocksOf(sequence)) {
      bytes += CachedBlock::Charge(block->bytes().size());
    }
    EXPECT_EQ(budget.used(), bytes);
  }

  // No block here reaches a limit.
  static void ExpectNoSmallNeighbors(const Sequence& sequence) {
    const CachedBlock* before = nullptr;
    for (const CachedBlock* block : BlocksOf(sequence)) {
      if (before != nullptr && before->end() == block->first_position() &&
          before->policy_version() == block->policy_version() && before->Check().ok() &&
          block->Check().ok()) {
        EXPECT_GE(std::min(before->positions(), block->positions()), Sequence::kSmallPositions)
            << "at " << block->first_position();
      }
      before = block;
    }
  }

  // Appends the blocks of one sequence to another, cut differently.
  static void Replay(const Sequence& from, std::mt19937& random, Sequence& to) {
    std::vector<Block> blocks;  // no two sequences are locked at once
    for (const CachedBlock* block : BlocksOf(from)) {
      if (!block->Check().ok()) continue;
      for (uint32_t done = 0; done < block->positions();) {
        const auto count = std::min<uint32_t>(block->positions() - done, 1 + random() % 80);
        blocks.push_back(SliceBlock(block->view(), done, count));
        done += count;
      }
    }
    for (const Missing& gap : Sequence::Reader(from).Gaps()) ASSERT_TRUE(to.AppendGap(gap).ok());
    std::ranges::shuffle(blocks, random);
    for (const Block& block : blocks) ASSERT_TRUE(Append(to, block).ok());
  }

  const int slots_ = std::get<1>(GetParam());
  RecordGenerator generator_{slots_, 1000, 11};
  const Records sent_[2] = {generator_.NextRecords(2 * kMaxBlockPositions),
                            generator_.NextRecords(2 * kMaxBlockPositions)};
};

TEST_P(SequenceTest, RandomOperationsAgreeWithAMap) {
  std::mt19937 random(5);
  const auto below = [&](uint32_t end) { return static_cast<uint32_t>(random() % end); };
  // Room for about half of the positions.
  const int64_t limit = Sequence::kBaseBytes + static_cast<int64_t>(Pack(0, 800, {0, 0}).size());
  std::map<StatusCode, int> seen;
  std::optional<Budgeted> held;
  Model model;
  int left = 0;
  for (int operation = 0; operation < 3000; ++operation) {
    if (left-- == 0) {
      if (held.has_value()) {
        Budgeted replayed;
        Replay(held->sequence, random, replayed.sequence);
        Model sound = model;
        for (const uint32_t position : model.damaged) sound.cells.erase(position);
        sound.damaged.clear();
        ExpectSame(replayed.sequence, sound, 0, kPositions);
        const int64_t used = held->budget.used();
        Replay(replayed.sequence, random, held->sequence);
        EXPECT_EQ(held->budget.used(), used) << "all there already";
        ExpectSame(held->sequence, model, 0, kPositions);
      }
      held.emplace(limit);
      model = Model();
      left = 100 + below(600);
    }
    Sequence& sequence = held->sequence;
    const ByteBudget& budget = held->budget;
    absl::Status status;
    StatusCode expected = StatusCode::kOk;
    const uint32_t dice = below(1000);
    if (dice < 100) {
      const uint32_t first = below(kPositions), count = 1 + below(9);
      const Model before = model;
      const bool room = budget.limit() - budget.used() >= Sequence::kGapBytes;
      const absl::StatusOr<bool> added =
          sequence.AppendGap({first, count, MissingReason::kInvalidLogProb});
      status = added.status();
      expected = model.AppendGap(first, count, room);
      if (added.ok()) {
        EXPECT_EQ(*added, model.noted != before.noted);
      }
    } else if (dice < 970) {
      const uint32_t first =
          below(2) == 0 ? std::min(model.committed_length(), kPositions - 1) : below(kPositions);
      const uint32_t count =
          1 + below(std::min<uint32_t>(kPositions - first, dice < 130 ? 600 : 9));
      // Mostly the same content for a position, so that most resent blocks agree.
      const Model::Cell cell{.variant = below(30) == 0,
                             .version = below(30) == 0 ? 9 : first / 500};
      const size_t before = model.cells.size();
      const Block block = Pack(first, count, cell);
      const int64_t bytes = sequence.BytesToAppend(*OpenBlock(block, false));
      const int64_t used = budget.used();
      Sequence::Appended appended;
      status = Append(sequence, block, &appended);
      expected = model.Append(first, count, cell, bytes <= budget.limit() - used);
      if (status.ok()) {
        EXPECT_EQ(appended.positions, model.cells.size() - before);
        EXPECT_EQ(appended.committed_length, sequence.committed_length());
        EXPECT_LE(budget.used() - used, bytes) << "less where blocks became one";
      } else {
        EXPECT_EQ(budget.used(), used);
      }
    } else if (dice < 990) {
      const std::vector<const CachedBlock*> blocks = BlocksOf(sequence);
      if (blocks.empty()) continue;
      const CachedBlock& block = *blocks[below(static_cast<uint32_t>(blocks.size()))];
      if (model.damaged.contains(block.first_position())) continue;
      Damage(block, below(static_cast<uint32_t>(block.bytes().size())));
      for (uint32_t p = block.first_position(); p < block.end(); ++p) model.damaged.insert(p);
    } else {
      const uint32_t length =
          model.committed_length() + below(9) - std::min(model.committed_length(), 2u);
      status = sequence.Seal(length);
      const bool first = !model.sealed.has_value();
      expected = model.Seal(length);
      if (first && status.ok()) ExpectNoSmallNeighbors(sequence);
    }
    ++seen[expected];
    ASSERT_EQ(status.code(), expected) << "operation " << operation << ": " << status;
    ASSERT_EQ(sequence.committed_length(), model.committed_length()) << operation;
    ASSERT_EQ(sequence.positions(), model.cells.size()) << operation;
    ASSERT_EQ(sequence.newest_version(), model.newest_version()) << operation;
    ASSERT_EQ(sequence.sealed(), model.sealed.has_value()) << operation;
    ExpectCharged(sequence, model, budget);
    if (model.sealed == model.cells.size()) ExpectNoSmallNeighbors(sequence);
    if (operation % 50 == 0) {
      ExpectSame(sequence, model, 0, kPositions + 50);
      const uint32_t first = below(kPositions);
      ExpectSame(sequence, model, first, first + 1 + below(200));
    }
    ASSERT_FALSE(HasFailure()) << "operation " << operation;
  }
  // Each code must have occurred, or the test proves little.
  for (const auto code : {StatusCode::kOk, StatusCode::kAlreadyExists, StatusCode::kDataLoss,
                          StatusCode::kFailedPrecondition, StatusCode::kResourceExhausted}) {
    EXPECT_GT(seen[code], 10) << absl::StatusCodeToString(code);
  }
}

// Positions that arrive one by one are in large blocks after the seal.
TEST_P(SequenceTest, SinglePositionsBecomeLargeBlocks) {
  constexpr uint32_t kLength = 1100;
  std::vector<uint32_t> forwards(kLength), backwards(kLength), odd_ones_last(kLength),
      shuffled(kLength);
  for (uint32_t i = 0; i < kLength; ++i) {
    forwards[i] = shuffled[i] = i;
    backwards[i] = kLength - 1 - i;
    odd_ones_last[i] = 2 * i < kLength ? 2 * i : 2 * i - kLength + 1;
  }
  std::ranges::shuffle(shuffled, std::mt19937(3));
  Model model;
  model.Append(0, kLength, {0, 7}, true);
  for (const std::vector<uint32_t>& order : {forwards, backwards, odd_ones_last, shuffled}) {
    for (const bool sealed_first : {false, true}) {
      Budgeted held;
      std::set<uint64_t> copies;
      uint32_t copied = 0;
      if (sealed_first) ASSERT_TRUE(held.sequence.Seal(kLength).ok());
      for (uint32_t i = 0; i < kLength; ++i) {
        ASSERT_TRUE(Append(held.sequence, Pack(order[i], 1, {0, 7})).ok());
        if (order != forwards) continue;
        const std::vector<const CachedBlock*> blocks = BlocksOf(held.sequence);
        EXPECT_LE(blocks.size(), i / Sequence::kSmallPositions + 30);
        for (const CachedBlock* block : blocks) {
          if (copies.insert(NameOf(*block)).second) copied += block->positions();
        }
      }
      EXPECT_LE(copied, 4 * kLength);
      EXPECT_LE(BlocksOf(held.sequence).size(), 2 * kLength / Sequence::kSmallPositions + 30);
      if (!sealed_first) ASSERT_TRUE(held.sequence.Seal(kLength).ok());
      for (const CachedBlock* block : BlocksOf(held.sequence)) {
        EXPECT_GE(block->positions(), Sequence::kSmallPositions);
      }
      ExpectSame(held.sequence, model, 0, kLength);
    }
  }
}

TEST_P(SequenceTest, LargeBlocksAreNotCopied) {
  Budgeted held;
  std::vector<uint64_t> names;
  for (uint32_t first = 0; first < 4 * Sequence::kSmallPositions;
       first += Sequence::kSmallPositions) {
    ASSERT_TRUE(Append(held.sequence, Pack(first, Sequence::kSmallPositions, {0, 0})).ok());
    names.push_back(NameOf(*BlocksOf(held.sequence).back()));
  }
  ASSERT_TRUE(held.sequence.Seal(4 * Sequence::kSmallPositions).ok());
  std::vector<uint64_t> sealed;
  for (const CachedBlock* block : BlocksOf(held.sequence)) sealed.push_back(NameOf(*block));
  EXPECT_EQ(sealed, names);
}

TEST_P(SequenceTest, BlocksStayWithinTheLimits) {
  Budgeted held;
  constexpr uint32_t kLength = 2 * kMaxBlockPositions;
  for (uint32_t first = 0; first < kLength;) {
    const uint32_t count = std::min(kLength - first, first % 3000 == 0 ? 2900u : 100u);
    ASSERT_TRUE(Append(held.sequence, Pack(first, count, {0, 0})).ok());
    first += count;
  }
  ASSERT_TRUE(held.sequence.Seal(kLength).ok());
  uint32_t next = 0;
  for (const CachedBlock* block : BlocksOf(held.sequence)) {
    EXPECT_EQ(block->first_position(), std::exchange(next, block->end()));
    EXPECT_TRUE(block->Check().ok());
  }
  EXPECT_EQ(next, kLength);
}

// By the digest of what was fetched when the older versions were stale.
TEST_P(SequenceTest, ADigestNamesTheOldestVersionOfWhatWasFetched) {
  Budgeted held;
  ASSERT_TRUE(Append(held.sequence, Pack(0, 100, {0, 3})).ok());
  ASSERT_TRUE(Append(held.sequence, Pack(100, 100, {0, 4})).ok());
  const Sequence::Reader reader(held.sequence);
  const uint64_t all = reader.Digest(0, 200, 3), newer = reader.Digest(0, 200, 4);
  EXPECT_EQ(newer, reader.Digest(100, 100));
  EXPECT_EQ(reader.Digest(0, 200, 5), 0);
  EXPECT_EQ(reader.OldestFetched(all, 0, 200), 0);
  EXPECT_EQ(reader.OldestFetched(newer, 0, 200), 4);
  EXPECT_EQ(reader.OldestFetched(all + 1, 0, 200), std::nullopt);
}

TEST_P(SequenceTest, MessagesNamePositionAndValue) {
  Budgeted held;
  Sequence& sequence = held.sequence;
  const auto error = [&](uint32_t first, uint32_t count, Model::Cell cell) {
    return std::string(Append(sequence, Pack(first, count, cell)).message());
  };
  ASSERT_TRUE(Append(sequence, Pack(10, 10, {0, 3})).ok());
  EXPECT_EQ(error(5, 10, {1, 3}), "position 10 is committed with other content");
  EXPECT_EQ(error(15, 10, {0, 4}), "position 15 is committed with policy version 3, not 4");
  // Any position may differ.
  for (uint32_t i = 0; i < 10; ++i) {
    Records records = sent_[0];
    records.sampled_log_probs[10 + i] -= 0.125f;
    if (records.ranks[10 + i] != kBlockRankOutside) continue;  // must agree with its slot
    const Block block = *PackBlock(records.View(10, 10), {.encoding = std::get<0>(GetParam()),
                                                          .slots = slots_,
                                                          .vocabulary_size = 1000,
                                                          .first_position = 10,
                                                          .policy_version = 3});
    EXPECT_EQ(Append(sequence, block).message(),
              "position " + std::to_string(10 + i) + " is committed with other content");
  }
  EXPECT_EQ(sequence.Seal(19).message(), "seal at 19: committed up to 20");
  ASSERT_TRUE(sequence.Seal(25).ok());
  EXPECT_EQ(sequence.Seal(24).message(), "seal at 24: sealed at length 25");
  EXPECT_EQ(error(20, 6, {0, 3}), "position 25 is beyond the seal at length 25");
  Damage(*BlocksOf(sequence)[0], 0);
  EXPECT_EQ(error(19, 2, {0, 3}),
            "the block of positions 10 to 19 is corrupt: block: it does not begin with SISB");
  EXPECT_EQ(error(20, 5, {0, 3}), "") << "gaps below the seal may still be filled";
}

TEST_P(SequenceTest, AnotherEncodingIsOtherContent) {
  Budgeted held;
  ASSERT_TRUE(Append(held.sequence, Pack(0, 5, {0, 0})).ok());
  ASSERT_TRUE(Append(held.sequence, Pack(5, 5, {0, 0})).ok());
  const bool fixed = std::get<0>(GetParam()) == BlockEncoding::kFixed16;
  const Block other = *PackBlock(
      sent_[0].View(5, 10), {.encoding = fixed ? BlockEncoding::kFloat32 : BlockEncoding::kFixed16,
                             .slots = slots_,
                             .vocabulary_size = 1000,
                             .first_position = 5});
  EXPECT_EQ(Append(held.sequence, other).message(), "position 5 is committed with other content");
  const Block behind = SliceBlock(*OpenBlock(other, false), 5, 5);
  EXPECT_TRUE(Append(held.sequence, behind).ok()) << "each position may have its own";
  ASSERT_TRUE(held.sequence.Seal(15).ok());
  EXPECT_EQ(BlocksOf(held.sequence).size(), 2) << "one of each encoding";
}

INSTANTIATE_TEST_SUITE_P(Blocks, SequenceTest,
                         testing::Combine(testing::Values(BlockEncoding::kFloat32,
                                                          BlockEncoding::kFixed16),
                                          testing::Values(1, 10, 64)));

}  // namespace
}  // namespace sis
