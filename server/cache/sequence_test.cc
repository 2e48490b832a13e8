#include "server/cache/sequence.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "server/testing/rounded_records.h"

namespace sis {
namespace {

constexpr uint32_t kPositions = 700;
// A slab for each size of ragged pages.
constexpr int64_t kArenaBytes = 64 << 20;

// What a sequence must behave like: a map of positions, a set of those in gaps, and four rules.
class Model {
 public:
  struct Cell {
    int variant;
    uint64_t version;
    friend bool operator==(const Cell&, const Cell&) = default;
  };

  absl::StatusCode Append(uint32_t first, uint32_t count, Cell cell, bool room) {
    if (sealed.has_value() && first + count > *sealed) return absl::StatusCode::kFailedPrecondition;
    for (uint32_t p = first; p < first + count; ++p) {
      if (cells.contains(p) && cells[p] != cell) return absl::StatusCode::kAlreadyExists;
    }
    if (!room) return absl::StatusCode::kResourceExhausted;
    for (uint32_t p = first; p < first + count; ++p) cells[p] = cell;
    return absl::StatusCode::kOk;
  }

  absl::StatusCode AppendGap(uint32_t first, uint32_t count, bool room) {
    if (sealed.has_value() && first + count > *sealed) return absl::StatusCode::kFailedPrecondition;
    for (uint32_t p = first; p < first + count; ++p) {
      if (cells.contains(p) && !noted.contains(p)) return absl::StatusCode::kAlreadyExists;
    }
    if (!room && !Touches(first, count)) return absl::StatusCode::kResourceExhausted;
    for (uint32_t p = first; p < first + count; ++p) noted.insert(p);
    return absl::StatusCode::kOk;
  }

  absl::StatusCode Seal(uint32_t length) {
    if (sealed.has_value() ? *sealed != length : length < committed_length()) {
      return absl::StatusCode::kFailedPrecondition;
    }
    sealed = length;
    return absl::StatusCode::kOk;
  }

  uint32_t committed_length() const {
    return std::max(cells.empty() ? 0 : cells.rbegin()->first + 1,
                    noted.empty() ? 0 : *noted.rbegin() + 1);
  }
  // Whether a gap overlaps or touches these positions.
  bool Touches(uint32_t first, uint32_t count) const {
    const auto next = noted.lower_bound(first == 0 ? 0 : first - 1);
    return next != noted.end() && *next <= first + count;
  }
  int64_t gaps() const {
    return std::ranges::count_if(noted, [&](uint32_t p) { return !noted.contains(p + 1); });
  }
  // Stretches of one version.
  int64_t spans() const {
    int64_t spans = 0;
    auto before = cells.end();
    for (auto cell = cells.begin(); cell != cells.end(); before = cell++) {
      spans += before == cells.end() || before->first + 1 != cell->first ||
               before->second.version != cell->second.version;
    }
    return spans;
  }

  std::map<uint32_t, Cell> cells;
  std::set<uint32_t> noted;  // in gaps
  std::optional<uint32_t> sealed;
};

// Records of every position in two variants; a block takes its rows from one.
class SequenceTest : public testing::TestWithParam<std::tuple<LogProbEncoding, int, PageVersion>> {
 protected:
  absl::Status Append(Sequence& sequence, uint32_t first, uint32_t count, Model::Cell cell,
                      Sequence::Appended* appended = nullptr) {
    const SentRecords& records = sent_[cell.variant];
    return sequence.Append(first, cell.version, records.View(first, count),
                           std::span(records.ranks).subspan(first, count), appended);
  }

  uint64_t Digest(const Model& model, uint32_t first, uint32_t end) const {
    uint64_t digest = 0;
    for (auto cell = model.cells.lower_bound(first); cell != model.cells.end() && cell->first < end;
         ++cell) {
      digest += stored_[cell->second.variant].Digest(cell->first, 0);
    }
    return digest;
  }

  // Compares what a reader sees of [first, end).
  void ExpectSame(const Sequence& sequence, const Model& model, uint32_t first, uint32_t end) {
    const Sequence::Reader reader(sequence);
    EXPECT_EQ(reader.committed_length(), model.committed_length());
    EXPECT_EQ(reader.Digest(first, end - first), Digest(model, first, end));
    reader.Check(first, end - first);
    uint32_t next = first;
    reader.ForEachPiece(first, end - first, [&](const Sequence::Reader::Piece& piece) {
      ASSERT_EQ(piece.first_position, next);
      ASSERT_GE(piece.count, 1);
      next += piece.count;
      for (uint32_t i = 0; i < piece.count; ++i) {
        const uint32_t position = piece.first_position + i;
        const auto cell = model.cells.find(position);
        ASSERT_EQ(piece.page != nullptr, cell != model.cells.end()) << position;
        if (piece.page == nullptr) {
          EXPECT_EQ(piece.reason, model.noted.contains(position) ? MissingReason::kInvalidLogProb
                                                                 : MissingReason::kNeverArrived)
              << position;
          continue;
        }
        EXPECT_FALSE(piece.page->corrupt());
        EXPECT_EQ(piece.version, cell->second.version) << position;
        stored_[cell->second.variant].ExpectSame(*piece.page, piece.index + i, position);
      }
    });
    EXPECT_EQ(next, end);
  }

  // What the pages' forms must be, and that they are what is charged.
  void ExpectForms(const Sequence& sequence, const Model& model, const ByteBudget& budget) {
    int64_t bytes = Sequence::kBaseBytes + model.spans() * Sequence::kVersionSpanBytes +
                    model.gaps() * Sequence::kGapBytes;
    int tails = 0;
    const Page* page = nullptr;
    const Sequence::Reader reader(sequence);
    reader.ForEachPiece(0, kPositions, [&](const Sequence::Reader::Piece& piece) {
      if (piece.page == nullptr || piece.page == page) return;
      page = piece.page;
      bytes += PageCost(page->block().size());
      if (!page->packed()) {
        EXPECT_EQ(page->block().size(), TailBytes(format_));
      } else if (!format_.ragged()) {
        EXPECT_EQ(page->block().size(), PackedBytes(format_, page->packed_positions()));
      } else {
        EXPECT_GE(page->block().size(), LeastRaggedBytes(*page));
        EXPECT_LT(page->block().size(), TailBytes(format_));
      }
      if (page->packed()) {
        EXPECT_GE(page->packed_positions(), Page::PackedPositions(format_, page->present()));
      }
      tails += !page->packed();
      if (page->present() == Page::kAll) {
        EXPECT_TRUE(page->packed());
      }
    });
    EXPECT_EQ(budget.used(), bytes);
    EXPECT_LE(tails, model.sealed.has_value() ? 0 : 2);
  }

  size_t LeastRaggedBytes(const Page& page) const {
    RowBuffer buffer;
    const uint32_t positions = Page::PackedPositions(format_, page.present());
    const RecordRows rows = SubRows(page.Rows(buffer), 0, positions, format_.slots);
    const PageHeader header{.encoding = format_.encoding,
                            .slots = format_.slots,
                            .vocabulary_size = format_.vocabulary_size,
                            .first_position = 0,
                            .positions = positions,
                            .version = format_.page_version};
    return BlockBytes(HeaderOf(
        header, {rows.sampled_ids, rows.sampled_log_probs, rows.ids, rows.log_probs}, rows.ranks));
  }

  static int64_t PageCost(size_t block_bytes) {
    return static_cast<int64_t>(Arena::CellBytes(block_bytes)) + Page::kIndexBytes;
  }

  // Appends the rows of one sequence to another, in blocks of other sizes.
  void Replay(const Sequence& from, std::mt19937& random, Sequence& to) const {
    struct Block {
      uint32_t first_position;
      uint64_t version;
      RowBuffer buffer;
      RecordRows rows;
    };
    std::vector<Block> blocks;  // no two sequences are locked at once
    Sequence::Reader(from).ForEachPiece(0, kPositions, [&](const Sequence::Reader::Piece& piece) {
      if (piece.page == nullptr) return;
      for (uint32_t done = 0; done < piece.count;) {
        const uint32_t count = std::min<uint32_t>(piece.count - done, 1 + random() % 80);
        Block& block =
            blocks.emplace_back(Block{piece.first_position + done, piece.version, {}, {}});
        block.rows = SubRows(block.buffer.Rows(format_), 0, count, format_.slots);
        piece.page->Read(piece.index + done, block.rows);
        done += count;
      }
    });
    const std::vector<Missing> gaps = Sequence::Reader(from).Gaps();
    for (const Missing& gap : gaps) ASSERT_TRUE(to.AppendGap(gap).ok());
    for (const Block& block : blocks) {
      const RecordView view = {block.rows.sampled_ids, block.rows.sampled_log_probs, block.rows.ids,
                               block.rows.log_probs};
      ASSERT_TRUE(
          to.Append(block.first_position, block.version, view, block.rows.ranks, nullptr).ok());
    }
  }

  const RecordFormat format_ = {std::get<0>(GetParam()), std::get<1>(GetParam()), 1000,
                                std::get<2>(GetParam())};
  const SentRecords sent_[2] = {{format_, kPositions, 11}, {format_, kPositions, 12}};
  const RoundedRecords stored_[2] = {{format_, sent_[0], 0}, {format_, sent_[1], 0}};
  const std::unique_ptr<Arena> arena_ = *Arena::Map(kArenaBytes);
};

TEST_P(SequenceTest, RandomOperationsAgreeWithAMap) {
  std::mt19937 random(5);
  const auto below = [&](uint32_t end) { return static_cast<uint32_t>(random() % end); };
  // Room for about half of the pages.
  const size_t packed = PackedBytes(format_, sent_[0].View(0, kPositions), 0, sent_[0].ranks);
  ByteBudget budget(Sequence::kBaseBytes + 5 * PageCost(packed) + PageCost(TailBytes(format_)) +
                    500);
  std::map<absl::StatusCode, int> seen;
  std::unique_ptr<Sequence> sequence;
  Model model;
  int left = 0;
  for (int operation = 0; operation < 2000; ++operation) {
    if (left-- == 0) {
      if (sequence != nullptr) {
        ByteBudget enough(1 << 30);
        ASSERT_TRUE(enough.TryCharge(Sequence::kBaseBytes));
        Sequence replayed(format_, 1, *arena_, enough);
        Replay(*sequence, random, replayed);
        ExpectSame(replayed, model, 0, kPositions);
        Replay(replayed, random, *sequence);  // all there already
        ExpectSame(*sequence, model, 0, kPositions);
      }
      sequence.reset();
      ASSERT_EQ(budget.used(), 0) << "bytes charged are refunded";
      ASSERT_TRUE(budget.TryCharge(Sequence::kBaseBytes));
      sequence = std::make_unique<Sequence>(format_, 1, *arena_, budget);
      model = Model();
      left = 100 + below(400);
    }
    absl::Status status;
    absl::StatusCode expected;
    const uint32_t dice = below(1000);
    if (dice < 100) {
      const uint32_t first = below(kPositions), count = 1 + below(9);
      const Model before = model;
      const bool room = budget.limit() - budget.used() >= Sequence::kGapBytes;
      const absl::StatusOr<bool> added =
          sequence->AppendGap({first, count, MissingReason::kInvalidLogProb});
      status = added.status();
      expected = model.AppendGap(first, count, room);
      if (added.ok()) {
        EXPECT_EQ(*added, model.noted != before.noted);
      }
    } else if (dice < 990) {
      const uint32_t first =
          below(2) == 0 ? std::min(model.committed_length(), kPositions - 1) : below(kPositions);
      const uint32_t count =
          1 + below(std::min<uint32_t>(kPositions - first, dice < 130 ? 300 : 9));
      // Mostly what the position always gets, so that most re-sent blocks agree.
      const Model::Cell cell{.variant = below(30) == 0, .version = below(30) == 0 ? 9 : first / 99};
      const size_t before = model.cells.size();
      const SentRecords& records = sent_[cell.variant];
      const int64_t bytes = sequence->BytesToAppend(first, cell.version, records.View(first, count),
                                                    std::span(records.ranks).subspan(first, count));
      const int64_t used = budget.used();
      Sequence::Appended appended;
      status = Append(*sequence, first, count, cell, &appended);
      expected = model.Append(first, count, cell, bytes <= budget.limit() - used);
      if (status.ok()) {
        EXPECT_EQ(appended.positions, model.cells.size() - before);
        EXPECT_EQ(appended.committed_length, sequence->committed_length());
        EXPECT_LE(budget.used() - used, bytes) << "less where pages were packed or spans merged";
      }
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
    ExpectForms(*sequence, model, budget);
    if (operation % 50 == 0) {
      ExpectSame(*sequence, model, 0, kPositions + 50);
      const uint32_t first = below(kPositions);
      ExpectSame(*sequence, model, first, first + 1 + below(200));
    }
    ASSERT_FALSE(HasFailure()) << "operation " << operation;
  }
  // It is no test if one of them never came.
  for (const auto code :
       {absl::StatusCode::kOk, absl::StatusCode::kAlreadyExists,
        absl::StatusCode::kFailedPrecondition, absl::StatusCode::kResourceExhausted}) {
    EXPECT_GT(seen[code], 20) << absl::StatusCodeToString(code);
  }
}

// An arena whose one chunk belongs to the tails: nothing can be packed, and it runs out before the
// budget does.
TEST_P(SequenceTest, AFullArenaRefusesWholeBlocksAndLeavesTails) {
  const std::unique_ptr<Arena> arena = *Arena::Map(Arena::kSlabBytes);
  const Arena::Allocation tail = arena->Allocate(TailBytes(format_));
  ByteBudget budget(1 << 30);
  ASSERT_TRUE(budget.TryCharge(2 * Sequence::kBaseBytes));
  Sequence sequence(format_, 1, *arena, budget);
  Model model;
  EXPECT_EQ(Append(sequence, 0, 64, {0, 1}).code(), absl::StatusCode::kResourceExhausted)
      << "a packed page has another size";
  EXPECT_EQ(Append(sequence, 0, 65, {0, 1}).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(budget.used(), 2 * Sequence::kBaseBytes);
  EXPECT_EQ(sequence.positions(), 0);
  for (uint32_t first = 0; first + 30 <= kPositions; first += 30) {
    ASSERT_TRUE(Append(sequence, first, 30, {0, 1}).ok());
    model.Append(first, 30, {0, 1}, true);
  }
  ASSERT_TRUE(sequence.Seal(kPositions).ok());
  ExpectSame(sequence, model, 0, kPositions);
  std::vector<Arena::Allocation> rest;
  while (rest.empty() || !rest.back().empty()) rest.push_back(arena->Allocate(TailBytes(format_)));
  Sequence other(format_, 2, *arena, budget);
  EXPECT_EQ(Append(other, 0, 1, {0, 1}).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(Append(sequence, 100, 50, {0, 1}).ok()) << "what is there needs no room";
}

TEST_P(SequenceTest, CorruptPagesAreLeftOut) {
  ByteBudget budget(1 << 30);
  ASSERT_TRUE(budget.TryCharge(Sequence::kBaseBytes));
  Sequence sequence(format_, 1, *arena_, budget);
  Model model;
  ASSERT_TRUE(Append(sequence, 0, 200, {0, 1}).ok());
  model.Append(0, 200, {0, 1}, true);
  {
    const Sequence::Reader reader(sequence);
    const uint64_t sound = reader.Digest(0, 200);
    reader.ForEachPiece(70, 1, [](const Sequence::Reader::Piece& piece) {
      const_cast<std::byte&>(piece.page->block()[100]) ^= std::byte{1};
    });
    reader.Check(128, 72);
    EXPECT_EQ(reader.Digest(0, 200), sound) << "the others are sound";
    reader.Check(0, 200);
    EXPECT_EQ(reader.Digest(0, 200), Digest(model, 0, 64) + Digest(model, 128, 200));
    EXPECT_EQ(reader.Digest(100, 100), Digest(model, 128, 200));
    reader.ForEachPiece(0, 200, [](const Sequence::Reader::Piece& piece) {
      EXPECT_EQ(piece.page->corrupt(), piece.first_position == 64);
    });
  }
  EXPECT_EQ(Append(sequence, 120, 10, {0, 1}).code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(Append(sequence, 128, 100, {0, 1}).ok());
}

TEST_P(SequenceTest, NewestVersionIsTheLargestHeld) {
  ByteBudget budget(1 << 30);
  ASSERT_TRUE(budget.TryCharge(Sequence::kBaseBytes));
  Sequence sequence(format_, 1, *arena_, budget);
  EXPECT_EQ(sequence.newest_version(), std::nullopt);
  ASSERT_TRUE(Append(sequence, 0, 100, {0, 3}).ok());
  ASSERT_TRUE(Append(sequence, 200, 100, {0, 9}).ok());
  ASSERT_TRUE(Append(sequence, 100, 100, {0, 5}).ok());
  EXPECT_EQ(sequence.newest_version(), 9);
}

TEST_P(SequenceTest, MessagesNamePositionAndValue) {
  ByteBudget budget(1 << 30);
  ASSERT_TRUE(budget.TryCharge(Sequence::kBaseBytes));
  Sequence sequence(format_, 1, *arena_, budget);
  ASSERT_TRUE(Append(sequence, 10, 10, {0, 3}).ok());
  EXPECT_EQ(Append(sequence, 5, 10, {1, 3}).message(),
            "position 10 is committed with other content");
  EXPECT_EQ(Append(sequence, 15, 10, {0, 4}).message(),
            "position 15 is committed with policy version 3, not 4");
  EXPECT_EQ(sequence.Seal(19).message(), "seal at 19: committed up to 20");
  ASSERT_TRUE(sequence.Seal(25).ok());
  EXPECT_EQ(sequence.Seal(24).message(), "seal at 24: sealed at length 25");
  EXPECT_EQ(Append(sequence, 20, 6, {0, 3}).message(),
            "position 25 is beyond the seal at length 25");
  EXPECT_TRUE(Append(sequence, 0, 25, {0, 3}).ok()) << "gaps below the seal may still be filled";
}

// Against int64 ids and float32 log-probs, K and the sampled ones, as engines hold them.
TEST(SequenceBytesTest, ASealedSequenceIsAsLongAsWhatItHolds) {
  const RecordFormat format = {LogProbEncoding::kFixed12, 10, 151936};
  const SentRecords records(format, 300, 3);
  const std::unique_ptr<Arena> arena = *Arena::Map(kArenaBytes);
  for (const uint32_t length : {1u, 16u, 17u, 64u, 130u}) {
    ByteBudget budget(1 << 30);
    ASSERT_TRUE(budget.TryCharge(Sequence::kBaseBytes));
    Sequence sequence(format, 1, *arena, budget);
    const auto append = [&](uint32_t first, uint32_t end) {
      const int64_t before = budget.used();
      const int64_t wanted =
          sequence.BytesToAppend(first, 1, records.View(first, end - first),
                                 std::span(records.ranks).subspan(first, end - first));
      EXPECT_TRUE(sequence
                      .Append(first, 1, records.View(first, end - first),
                              std::span(records.ranks).subspan(first, end - first))
                      .ok());
      EXPECT_LE(budget.used() - before, wanted);
    };
    const auto expect_bytes = [&](uint32_t held) {
      int64_t bytes = Sequence::kBaseBytes + Sequence::kVersionSpanBytes;
      for (uint32_t first = 0; first < held; first += Page::kPositions) {
        const uint32_t groups = (std::min(held - first, Page::kPositions) + 15) / 16;
        bytes += static_cast<int64_t>(Arena::CellBytes(PackedBytes(format, 16 * groups))) +
                 Page::kIndexBytes;
      }
      EXPECT_EQ(budget.used(), bytes) << held << " positions";
    };
    append(0, length);
    // Positions below the seal may come later.
    ASSERT_TRUE(sequence.Seal(length + 100).ok());
    expect_bytes(length);
    append(length, length + 5);
    expect_bytes(length + 5);
    append(length + 5, length + 100);
    expect_bytes(length + 100);
  }
}

TEST(SequenceBytesTest, ASealedSequenceTakesAboutAThirdOfTheNaiveForm) {
  constexpr uint32_t kLength = 4000;  // the last page is not full
  struct Case {
    int slots;
    int32_t vocabulary_size;
    double share;
  };
  // At K = 10 what doesn't grow with K weighs too much for a third.
  for (const Case& c :
       {Case{10, 151936, 0.38}, Case{10, 262208, 0.395}, Case{50, 151936, 0.33},
        Case{50, 262208, 0.34}, Case{100, 151936, 0.325}, Case{100, 262208, 0.335}}) {
    const RecordFormat format = {LogProbEncoding::kFixed12, c.slots, c.vocabulary_size};
    const SentRecords records(format, kLength, 3);
    const std::unique_ptr<Arena> arena = *Arena::Map(kArenaBytes);
    ByteBudget budget(1 << 30);
    ASSERT_TRUE(budget.TryCharge(Sequence::kBaseBytes));
    Sequence sequence(format, 1, *arena, budget);
    ASSERT_TRUE(sequence.Append(0, 0, records.View(0, kLength), records.ranks, nullptr).ok());
    ASSERT_TRUE(sequence.Seal(kLength).ok());
    const double naive = kLength * 12.0 * (c.slots + 1);
    EXPECT_LE(static_cast<double>(budget.used()), c.share * naive)
        << "K = " << c.slots << ", V = " << c.vocabulary_size;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Formats, SequenceTest,
    testing::Combine(testing::Values(LogProbEncoding::kFloat32, LogProbEncoding::kFloat16,
                                     LogProbEncoding::kFixed12),
                     testing::Values(1, 3, 10, 64),
                     testing::Values(PageVersion::kFixed, PageVersion::kRagged)));

}  // namespace
}  // namespace sis
