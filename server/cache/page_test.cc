#include "server/cache/page.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "server/testing/rounded_records.h"

namespace sis {
namespace {

constexpr uint32_t kFirst = 640;  // of the page
constexpr uint32_t kAll = Page::kPositions;

// A page and its budget: 64 records, in one of the encodings and versions.
class PageTest : public testing::TestWithParam<std::tuple<LogProbEncoding, int, PageVersion>> {
 protected:
  Arena::Allocation Allocate(size_t bytes) {
    EXPECT_TRUE(budget_.TryCharge(Cost(bytes)));
    Arena::Allocation block = arena_->Allocate(bytes);
    EXPECT_FALSE(block.empty());
    return block;
  }
  static int64_t Cost(size_t bytes) {
    return static_cast<int64_t>(Arena::CellBytes(bytes)) + Page::kIndexBytes;
  }
  void Add(Page& page, uint32_t index, uint32_t count, Arena::Allocation tail = {}) {
    page.Add(index, sent_.view(), index, count, sent_.ranks, std::move(tail));
  }

  // Of the page once these are packed.
  PageHeader HeaderOnce(uint64_t positions) const {
    const uint32_t count = Page::PackedPositions(format_, positions);
    std::vector<uint16_t> ranks(sent_.ranks.begin(), sent_.ranks.begin() + count);
    for (uint32_t i = 0; i < count; ++i) {
      if ((positions >> i & 1) == 0) ranks[i] = kRankAbsent;
    }
    const PageHeader header{.encoding = format_.encoding,
                            .slots = format_.slots,
                            .vocabulary_size = format_.vocabulary_size,
                            .first_position = kFirst,
                            .positions = count,
                            .version = format_.page_version};
    return HeaderOf(header, sent_.View(0, count), ranks);
  }
  size_t Packed(uint64_t positions) const { return BlockBytes(HeaderOnce(positions)); }
  size_t Whole() const { return PackedBytes(format_, sent_.view(), 0, sent_.ranks); }
  // Adds all to a packed page that holds some. Ragged ones take the way of a page that is filled.
  void Complete(Page& page) {
    const size_t bytes = format_.ragged() ? TailBytes(format_) : Whole();
    ASSERT_TRUE(budget_.TryCharge(Cost(bytes) - Cost(page.block().size())));
    Add(page, 0, kAll, arena_->Allocate(bytes));
    EXPECT_EQ(page.packed(), !format_.ragged());
    page.Pack(*arena_);
    EXPECT_EQ(page.block().size(), Whole());
  }

  uint64_t Digest(uint64_t positions) const {
    uint64_t digest = 0;
    for (; positions != 0; positions &= positions - 1) {
      digest += stored_.Digest(static_cast<uint32_t>(std::countr_zero(positions)), kFirst);
    }
    return digest;
  }
  // Everything that can be read of the page is as recorded.
  void ExpectHolds(const Page& page, uint64_t positions) const {
    EXPECT_EQ(page.present(), positions);
    EXPECT_TRUE(page.Check().ok());
    EXPECT_EQ(page.digest(), Digest(positions));
    EXPECT_EQ(page.Digest(5, 40), Digest(positions & Page::Mask(5, 40)));
    for (uint32_t index = 0; index < kAll; ++index) {
      if ((positions >> index & 1) == 0) continue;
      stored_.ExpectSame(page, index, index);
      RowBuffer buffer;
      EXPECT_TRUE(SameRecord(format_, sent_.view(), index, page.Rows(buffer), index));
    }
  }

  const RecordFormat format_ = {std::get<0>(GetParam()), std::get<1>(GetParam()), 1000,
                                std::get<2>(GetParam())};
  const SentRecords sent_{format_, kAll, 1};
  const RoundedRecords stored_{format_, sent_, kFirst};
  const std::unique_ptr<Arena> arena_ = *Arena::Map(8 << 20);
  ByteBudget budget_{1 << 20};
  const PageOwner owner_{format_, budget_};
};

TEST_P(PageTest, HoldsTheSameInEitherForm) {
  {
    Page page(owner_, kFirst, Allocate(TailBytes(format_)));
    EXPECT_EQ(page.present(), 0);
    uint64_t positions = 0;
    // In an order of its own: rows are independent.
    for (uint32_t i = 0; i < kAll; ++i) {
      const uint32_t index = i * 37 % kAll;
      Add(page, index, 1);
      positions |= uint64_t{1} << index;
      ASSERT_EQ(page.digest(), Digest(positions));
    }
    EXPECT_FALSE(page.packed());
    EXPECT_EQ(budget_.used(), Cost(TailBytes(format_)));
    ExpectHolds(page, positions);
    page.Pack(*arena_);
    EXPECT_TRUE(page.packed());
    EXPECT_EQ(budget_.used(), Cost(Whole()));
    ExpectHolds(page, positions);
  }
  EXPECT_EQ(budget_.used(), 0);
}

TEST_P(PageTest, WholePagesArePackedAtOnce) {
  Page page(owner_, kFirst, Allocate(Whole()));
  Add(page, 0, kAll);
  EXPECT_TRUE(page.packed());
  ExpectHolds(page, Page::kAll);

  Page one_by_one(owner_, kFirst, Allocate(TailBytes(format_)));
  for (uint32_t index = 0; index < kAll; ++index) Add(one_by_one, index, 1);
  one_by_one.Pack(*arena_);
  EXPECT_TRUE(std::ranges::equal(page.block(), one_by_one.block()));
}

// Where records count their slots, what stands behind those means nothing.
TEST_P(PageTest, HoldsTheSameOfCountedRecords) {
  if (!format_.ragged()) return;
  const auto slots = static_cast<size_t>(format_.slots);
  SentRecords counted = sent_;
  std::vector<uint16_t> counts;
  for (uint32_t i = 0; i < kAll; ++i) {
    const auto set = std::span(counted.ids).subspan(i * slots, slots);
    counts.push_back(static_cast<uint16_t>(std::ranges::find(set, -1) - set.begin()));
    std::ranges::fill(set.subspan(counts[i]), 7);
    std::ranges::fill(std::span(counted.log_probs).subspan(i * slots, slots).subspan(counts[i]),
                      -0.5f);
  }
  RecordView view = counted.view();
  view.counts = counts;
  EXPECT_EQ(PackedBytes(format_, view, 0, counted.ranks), Whole());
  Page page(owner_, kFirst, Allocate(Whole()));
  page.Add(0, view, 0, kAll, counted.ranks, {});
  EXPECT_TRUE(page.packed());
  ExpectHolds(page, Page::kAll);
  Page whole(owner_, kFirst, Allocate(Whole()));
  Add(whole, 0, kAll);
  EXPECT_TRUE(std::ranges::equal(page.block(), whole.block()));

  Page tail(owner_, kFirst, Allocate(TailBytes(format_)));
  tail.Add(20, view, 20, 30, counted.ranks, {});
  tail.Add(10, view, 10, 25, counted.ranks, {});
  ExpectHolds(tail, Page::Mask(10, 40));
  RowBuffer buffer;
  for (uint32_t index = 10; index < 50; ++index) {
    EXPECT_TRUE(SameRecord(format_, view, index, tail.Rows(buffer), index));
  }
}

TEST_P(PageTest, PackedPagesCanBeAddedTo) {
  Page page(owner_, kFirst, Allocate(TailBytes(format_)));
  Add(page, 10, 20);
  page.Pack(*arena_);
  Add(page, 12, 5);  // present: nothing to do, no block needed
  EXPECT_TRUE(page.packed());
  ExpectHolds(page, Page::Mask(10, 20));
  RowBuffer buffer;
  const RecordRows rows = page.Rows(buffer);
  for (const uint32_t index : {0, 9}) EXPECT_EQ(rows.ranks[index], kRankAbsent);

  ASSERT_TRUE(budget_.TryCharge(Cost(TailBytes(format_)) - Cost(page.block().size())));
  Add(page, 20, 30, arena_->Allocate(TailBytes(format_)));
  EXPECT_FALSE(page.packed());
  ExpectHolds(page, Page::Mask(10, 40));
  page.Pack(*arena_);
  Complete(page);
  ExpectHolds(page, Page::kAll);
}

TEST_P(PageTest, PackedPagesAreAsLongAsWhatTheyHold) {
  for (const uint32_t held : {1u, 16u, 33u}) {
    const uint32_t positions = format_.ragged() ? held : (held + 15) / 16 * 16;
    const size_t packed = Packed(Page::Mask(held - 1, 1));
    {
      Page page(owner_, kFirst, Allocate(TailBytes(format_)));
      Add(page, held - 1, 1);
      page.Pack(*arena_);
      EXPECT_EQ(page.packed_positions(), positions);
      EXPECT_EQ(page.block().size(), packed);
      EXPECT_EQ(budget_.used(), Cost(packed));
      ExpectHolds(page, Page::Mask(held - 1, 1));

      // Made whole, it gets as long as others.
      Complete(page);
      EXPECT_EQ(page.packed_positions(), kAll);
      EXPECT_EQ(page.digest(), Digest(Page::kAll));
      EXPECT_EQ(budget_.used(), Cost(Whole()));
    }
    EXPECT_EQ(budget_.used(), 0);
  }
}

TEST_P(PageTest, WithoutRoomATailStaysOne) {
  const std::unique_ptr<Arena> full = *Arena::Map(Arena::kSlabBytes);
  const Arena::Allocation all = full->Allocate(Arena::kSlabBytes);
  Page page(owner_, kFirst, Allocate(TailBytes(format_)));
  Add(page, 0, kAll);
  page.Pack(*full);
  EXPECT_FALSE(page.packed());
  ExpectHolds(page, Page::kAll);
}

TEST_P(PageTest, AFlippedBitIsFound) {
  for (const size_t place : {0, 1, 2}) {
    Page page(owner_, kFirst, Allocate(Whole()));
    Add(page, 0, kAll);
    const auto bytes = page.block().first(PageBytes(HeaderOnce(Page::kAll)));
    // The first is in what a ragged page says of its length.
    const size_t offset = 24 + place * (bytes.size() - 25) / 2;
    const_cast<std::byte&>(bytes[offset]) ^= std::byte{0x10};
    RowBuffer buffer;
    page.Rows(buffer);  // anything, of its own bytes
    EXPECT_FALSE(page.corrupt()) << "not looked at yet";
    EXPECT_EQ(page.Check().code(), absl::StatusCode::kDataLoss);
    EXPECT_TRUE(page.corrupt());
    const_cast<std::byte&>(bytes[offset]) ^= std::byte{0x10};
    EXPECT_FALSE(page.Check().ok()) << "once corrupt, never served again";
    EXPECT_EQ(page.digest(), 0);
    EXPECT_EQ(page.Digest(0, 10), 0);
  }
}

TEST_P(PageTest, SameMeansBitByBitOnceRounded) {
  Page page(owner_, kFirst, Allocate(TailBytes(format_)));
  Add(page, 9, 1);
  const auto same = [&](auto change) {
    SentRecords changed = sent_;
    change(changed);
    RowBuffer buffer;
    return SameRecord(format_, changed.view(), 9, page.Rows(buffer), 9);
  };
  EXPECT_TRUE(same([](SentRecords&) {}));
  EXPECT_TRUE(same([](SentRecords& r) { ++r.sampled_ids[8]; })) << "another row";
  EXPECT_FALSE(same([](SentRecords& r) { ++r.sampled_ids[9]; }));
  EXPECT_FALSE(same([](SentRecords& r) {
    r.sampled_log_probs[9] = std::nextafter(r.sampled_log_probs[9], -9.0f);
  }));
  EXPECT_FALSE(same([&](SentRecords& r) { r.log_probs[9 * format_.slots] = -30; }));
  EXPECT_EQ(stored_.used(9) == 0, same([&](SentRecords& r) { ++r.ids[9 * format_.slots]; }));
  EXPECT_TRUE(same([&](SentRecords& r) {
    std::ranges::copy(std::span(stored_.page().log_probs).subspan(9 * format_.slots, format_.slots),
                      r.log_probs.begin() + 9 * format_.slots);
  })) << "rounding what is rounded changes nothing";
}

INSTANTIATE_TEST_SUITE_P(
    Formats, PageTest,
    testing::Combine(testing::Values(LogProbEncoding::kFloat32, LogProbEncoding::kFloat16,
                                     LogProbEncoding::kFixed12),
                     testing::Values(1, 5, 254),
                     testing::Values(PageVersion::kFixed, PageVersion::kRagged)));
INSTANTIATE_TEST_SUITE_P(WideFormats, PageTest,
                         testing::Combine(testing::Values(LogProbEncoding::kFloat32,
                                                          LogProbEncoding::kFloat16,
                                                          LogProbEncoding::kFixed12),
                                          testing::Values(255, 512),
                                          testing::Values(PageVersion::kRagged)));

}  // namespace
}  // namespace sis
