#include "kernels/page/encoded_page.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/numerics/crc32c.h"
#include "kernels/records/log_probs.h"
#include "kernels/testing/decoded_log_probs.h"
#include "kernels/testing/random_records.h"

namespace sis {
namespace {

using enum LogProbEncoding;
using testing::ElementsAreArray;
using testing::HasSubstr;

constexpr PageVersion kVersions[] = {PageVersion::kFixed, PageVersion::kRagged};

PageHeader Of(PageVersion version, PageHeader header) {
  header.version = version;
  return header;
}

constexpr PageHeader kSmall{
    .encoding = kFloat16, .slots = 3, .vocabulary_size = 100, .first_position = 40, .positions = 2};

// Two valid positions of kSmall; the tests spoil the second.
Records SmallRecords() {
  return {.sampled_ids = {7, 99},
          .sampled_log_probs = {-0.5f, -1.5f},
          .ids = {7, 0, -1, 3, 99, 5},
          .log_probs = {-0.5f, -2.0f, kMinusInfinity, -0.75f, -1.5f, -2.5f},
          .ranks = {0, 1}};
}

void FixChecksum(std::vector<std::byte>& page) {
  const uint32_t crc = ExtendCrc32c(0, std::span(page).subspan(8));
  std::memcpy(page.data() + 4, &crc, sizeof crc);
}

MATCHER_P(IsCorrupt, message, "") {
  return ExplainMatchResult(absl::StatusCode::kDataLoss, arg.code(), result_listener) &&
         ExplainMatchResult(HasSubstr(message), std::string(arg.message()), result_listener);
}

std::vector<uint32_t> Bits(std::span<const float> values) {
  std::vector<uint32_t> bits;
  for (const float value : values) bits.push_back(std::bit_cast<uint32_t>(value));
  return bits;
}

// What the page of these records must decode to: absent positions emptied, log-probs encoded and
// decoded, the ids and ranks of slots that left the set dropped.
Records Expected(const PageHeader& header, Records records) {
  const size_t slots = header.slots;
  std::vector<uint16_t> used(header.positions);
  std::vector<std::byte> bytes(LogProbBytes(header.encoding, header.positions, slots));
  EncodeBehaviorLogProbs(header.encoding, records.log_probs, header.slots, used, bytes);
  DecodeLogProbs(header.encoding, bytes, header.slots, records.log_probs);
  for (size_t i = 0; i < header.positions; ++i) {
    if (records.ranks[i] == kRankAbsent) {
      used[i] = 0;
      records.sampled_ids[i] = -1;
      records.sampled_log_probs[i] = std::numeric_limits<float>::quiet_NaN();
    } else if (records.ranks[i] >= used[i]) {
      records.ranks[i] = kRankOutside;
    }
    for (size_t slot = used[i]; slot < slots; ++slot) {
      records.ids[i * slots + slot] = -1;
      records.log_probs[i * slots + slot] = kMinusInfinity;
    }
  }
  return records;
}

// Records that count their slots make the same page, whatever stands behind those.
void ExpectSameOfCounted(const PageHeader& header, Records records,
                         const std::vector<std::byte>& page, const DecodedPage& decoded) {
  const size_t slots = header.slots;
  std::vector<uint16_t> counts(header.positions);
  for (size_t i = 0; i < counts.size(); ++i) {
    const auto set = std::span(records.ids).subspan(i * slots, slots);
    counts[i] = static_cast<uint16_t>(std::ranges::find(set, -1) - set.begin());
    for (size_t slot = counts[i]; slot < slots; ++slot) {
      set[slot] = static_cast<int32_t>(77 * slot);
      records.log_probs[i * slots + slot] =
          slot % 3 == 0 ? std::numeric_limits<float>::quiet_NaN() : -0.5f;
    }
  }
  RecordView view = records.view();
  view.counts = counts;
  std::vector<uint16_t> encoded(counts.size());
  EXPECT_EQ(HeaderOf(header, view, records.ranks, encoded), decoded.header);
  std::vector<float> rounded(records.log_probs.size());
  std::vector<std::byte> again(page.size(), std::byte{0xA5});
  EncodePage(decoded.header, view, records.ranks, again, rounded);
  EXPECT_EQ(again, page);
  for (size_t i = 0; i < counts.size(); ++i) {
    if (records.ranks[i] == kRankAbsent) continue;
    const auto read = std::span(decoded.log_probs).subspan(i * slots, slots);
    ASSERT_EQ(encoded[i], std::ranges::find(read, kMinusInfinity) - read.begin());
    ASSERT_EQ(Bits(std::span(rounded).subspan(i * slots, encoded[i])),
              Bits(read.first(encoded[i])));
  }
}

void ExpectRoundTripOf(const PageHeader& header, uint32_t seed) {
  const Records records = RandomRecords(header, seed);
  const std::vector<std::byte> page = Encode(header, records);
  const absl::StatusOr<DecodedPage> decoded = DecodePage(page);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  const Records expected = Expected(header, records);
  EXPECT_EQ(decoded->header, HeaderOf(header, records.view(), records.ranks));
  EXPECT_EQ(decoded->sampled_ids, expected.sampled_ids);
  EXPECT_EQ(Bits(decoded->sampled_log_probs), Bits(expected.sampled_log_probs));
  EXPECT_EQ(decoded->ids, expected.ids);
  EXPECT_EQ(Bits(decoded->log_probs), Bits(expected.log_probs));
  EXPECT_EQ(decoded->ranks, expected.ranks);
  if (!header.ragged()) return;
  // Packed, rounded rows are those that are read.
  std::vector<float> rounded(records.log_probs.size(), 77);
  std::vector<std::byte> again(page.size(), std::byte{0xA5});
  EncodePage(decoded->header, records.view(), records.ranks, again, rounded);
  EXPECT_EQ(again, page);
  EXPECT_EQ(Bits(rounded), Bits(decoded->log_probs));
  ExpectSameOfCounted(header, records, page, *decoded);
}

void ExpectRoundTrip(const PageHeader& header, uint32_t seed) {
  for (const PageVersion version : kVersions) ExpectRoundTripOf(Of(version, header), seed);
}

TEST(Page, RoundTrip) {
  uint32_t seed = 1;
  for (const LogProbEncoding encoding : {kFloat32, kFloat16, kFixed12}) {
    for (const int32_t vocabulary_size : {300, 65536, 65537, 151936, 262144, 262208, 1 << 24}) {
      for (const uint32_t positions : {1u, 15u, 16u, 17u, 64u, 192u}) {
        for (const int slots : {1, 10, 128}) {
          ExpectRoundTrip({encoding, slots, vocabulary_size, 64 * seed, positions}, seed);
          ++seed;
        }
      }
    }
  }
}

void ExpectSomeAreThoseOfAll(PageVersion version) {
  for (const LogProbEncoding encoding : {kFloat32, kFloat16, kFixed12}) {
    const std::vector<std::byte> bytes = [&] {
      const PageHeader header{encoding, 7, 151936, 320, 100, version};
      return Encode(header, RandomRecords(header, 3));
    }();
    const DecodedPage all = *DecodePage(bytes);
    const PageHeader& header = all.header;
    const auto part = [](const auto& array, size_t first, size_t count, size_t width) {
      return std::vector(array.begin() + first * width, array.begin() + (first + count) * width);
    };
    for (const auto& [first, count] : {std::pair<uint32_t, uint32_t>{0, 100},
                                       {0, 16},
                                       {15, 1},
                                       {15, 2},
                                       {16, 33},
                                       {37, 63},
                                       {99, 1}}) {
      DecodedPage some{.header = header,
                       .sampled_ids = std::vector<int32_t>(count),
                       .sampled_log_probs = std::vector<float>(count),
                       .ids = std::vector<int32_t>(count * 7),
                       .log_probs = std::vector<float>(count * 7),
                       .ranks = std::vector<uint16_t>(count)};
      ReadRecords(ViewPage(header, bytes), first, some.rows());
      EXPECT_EQ(some.sampled_ids, part(all.sampled_ids, first, count, 1));
      EXPECT_EQ(Bits(some.sampled_log_probs), Bits(part(all.sampled_log_probs, first, count, 1)));
      EXPECT_EQ(some.ids, part(all.ids, first, count, 7));
      EXPECT_EQ(Bits(some.log_probs), Bits(part(all.log_probs, first, count, 7)));
      EXPECT_EQ(some.ranks, part(all.ranks, first, count, 1));

      // Each array alone.
      DecodedPage one = some;
      // Clang 14 captures a structured binding only by name.
      const auto read = [&, first = first](auto& array, const auto& expected,
                                           const RecordRows& rows) {
        std::ranges::fill(array, 77);
        ReadRecords(ViewPage(header, bytes), first, rows);
        EXPECT_EQ(std::memcmp(array.data(), expected.data(), 4 * array.size()), 0);
      };
      read(one.sampled_ids, some.sampled_ids, {.sampled_ids = one.sampled_ids, .ranks = one.ranks});
      read(one.sampled_log_probs, some.sampled_log_probs,
           {.sampled_log_probs = one.sampled_log_probs, .ranks = one.ranks});
      read(one.ids, some.ids, {.ids = one.ids, .ranks = one.ranks});
      read(one.log_probs, some.log_probs, {.log_probs = one.log_probs, .ranks = one.ranks});
    }
  }
}

TEST(Page, SomeRecordsAreThoseOfAll) {
  for (const PageVersion version : kVersions) ExpectSomeAreThoseOfAll(version);
}

// ReadUsedSlots gives what ReadRecords gives, but for the unused slots.
void ExpectUsedSlotsOfRecords(const PageView& page, uint32_t first, uint32_t count) {
  const size_t slots = page.header.slots;
  DecodedPage all{.header = page.header,
                  .sampled_ids = std::vector<int32_t>(count),
                  .sampled_log_probs = std::vector<float>(count),
                  .ids = std::vector<int32_t>(count * slots),
                  .log_probs = std::vector<float>(count * slots),
                  .ranks = std::vector<uint16_t>(count)};
  ReadRecords(page, first, all.rows());
  std::vector<uint16_t> counts(count);
  std::vector<int32_t> ids;
  std::vector<float> log_probs;
  for (size_t slot = 0; slot < all.ids.size(); ++slot) {
    if (all.ids[slot] == -1) continue;
    ++counts[slot / slots];
    ids.push_back(all.ids[slot]);
    log_probs.push_back(all.log_probs[slot]);
  }
  std::vector<uint16_t> read_counts(count);
  std::vector<int32_t> sampled_ids(count), read_ids(count * slots);
  std::vector<float> sampled_log_probs(count), read_log_probs(count * slots);
  ASSERT_EQ(ReadUsedSlots(page, first,
                          {sampled_ids, sampled_log_probs, read_counts, read_ids, read_log_probs}),
            ids.size());
  read_ids.resize(ids.size());
  read_log_probs.resize(ids.size());
  EXPECT_EQ(read_counts, counts);
  EXPECT_EQ(read_ids, ids);
  EXPECT_EQ(Bits(read_log_probs), Bits(log_probs));
  EXPECT_EQ(sampled_ids, all.sampled_ids);
  EXPECT_EQ(Bits(sampled_log_probs), Bits(all.sampled_log_probs));
  std::ranges::fill(sampled_ids, 77);
  ReadUsedSlots(page, first, {.sampled_ids = sampled_ids, .counts = read_counts});
  EXPECT_EQ(sampled_ids, all.sampled_ids);
}

TEST(Page, UsedSlotsAreThoseOfRecords) {
  for (const LogProbEncoding encoding : {kFloat32, kFloat16, kFixed12}) {
    for (const auto& [slots, vocabulary_size] : {std::pair{1, 3},
                                                 {3, 200},
                                                 {7, 151936},
                                                 {100, 300},
                                                 {254, 1 << 24},
                                                 {255, 300},
                                                 {512, 1 << 24}}) {
      const PageHeader header{encoding, slots, vocabulary_size, 0, 100, PageVersion::kRagged};
      Records records = RandomRecords(header, 7);
      std::ranges::replace(records.ranks, kRankAbsent, kRankOutside);
      const std::vector<std::byte> bytes = Encode(header, records);
      const PageView page = *OpenPage(bytes);
      for (const uint32_t first : {0, 1, 15, 16, 50, 99}) {
        for (const uint32_t count : {1, 5, 16, 50, 100}) {
          if (first + count <= 100) ExpectUsedSlotsOfRecords(page, first, count);
        }
      }
    }
  }
}

TEST(Page, RoundTripAtTheLimits) {
  ExpectRoundTrip({kFixed12, 254, 300, 0, 20}, 1);
  for (const int slots : {255, 256, 511, 512}) {
    for (const LogProbEncoding encoding : {kFloat32, kFloat16, kFixed12}) {
      ExpectRoundTripOf({encoding, slots, 600, 0, 20, PageVersion::kRagged}, 1);
    }
  }
  ExpectRoundTrip({kFixed12, 1, 2, 0, kMaxPagePositions}, 2);
  ExpectRoundTrip({kFloat16, 2, 300, 0xFFFFFFFF, 1}, 3);
  ExpectRoundTrip({kFloat16, 2, 300, 0xFFFFFFFF - 99, 100}, 4);
}

// Nothing that enters the envelope may depend on which token was drawn: only sampled values and
// ranks do.
void ExpectTheSameSetOfEveryDraw(PageVersion version) {
  for (const LogProbEncoding encoding : {kFloat32, kFloat16, kFixed12}) {
    const PageHeader header{encoding, 40, 151936, 0, 64, version};
    Records records = RandomRecords(header, 6);
    std::ranges::replace(records.ranks, kRankAbsent, kRankOutside);
    for (size_t i = 0; i < header.positions; ++i) {
      if (records.ranks[i] == kRankOutside) {
        records.sampled_ids[i] = 151935;
        records.sampled_log_probs[i] = -9.0f;
      }
    }
    const std::vector<std::byte> page = Encode(header, records);
    const absl::StatusOr<DecodedPage> decoded = DecodePage(page);
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    const auto log_probs = [](const std::vector<std::byte>& page) {
      const std::span<const std::byte> bytes = OpenPage(page)->log_probs;
      return std::vector(bytes.begin(), bytes.end());
    };
    for (int slot = 0; slot < header.slots; ++slot) {
      Records other = records;
      for (size_t i = 0; i < header.positions; ++i) {
        const size_t drawn = i * header.slots + slot;
        if (records.ids[drawn] == -1) continue;
        other.sampled_ids[i] = records.ids[drawn];
        other.sampled_log_probs[i] = records.log_probs[drawn];
        other.ranks[i] = static_cast<uint16_t>(slot);
      }
      const std::vector<std::byte> other_page = Encode(header, other);
      ASSERT_EQ(log_probs(page), log_probs(other_page));
      const absl::StatusOr<DecodedPage> other_decoded = DecodePage(other_page);
      ASSERT_TRUE(other_decoded.ok()) << other_decoded.status();
      ASSERT_EQ(other_decoded->ids, decoded->ids);
    }
  }
}

TEST(Page, TheSetDoesNotDependOnTheDraw) {
  for (const PageVersion version : kVersions) ExpectTheSameSetOfEveryDraw(version);
}

TEST(Page, EverySingleBitFlipIsDetected) {
  for (const PageVersion version : kVersions) {
    for (const LogProbEncoding encoding : {kFloat32, kFloat16, kFixed12}) {
      const PageHeader header{encoding, 4, 262208, 64, 17, version};
      std::vector<std::byte> page = Encode(header, RandomRecords(header, 7));
      for (size_t bit = 0; bit < 8 * page.size(); ++bit) {
        page[bit / 8] ^= std::byte{1} << (bit % 8);
        ASSERT_EQ(DecodePage(page).status().code(), absl::StatusCode::kDataLoss) << bit;
        page[bit / 8] ^= std::byte{1} << (bit % 8);
      }
      ASSERT_TRUE(DecodePage(page).ok());
    }
  }
}

// Under a right checksum, every bit of a ragged page means something: others are no page, or that
// of other records.
TEST(Page, EveryBitOfARaggedPageIsInUse) {
  for (const LogProbEncoding encoding : {kFloat32, kFloat16, kFixed12}) {
    const PageHeader header{encoding, 4, 262208, 64, 17, PageVersion::kRagged};
    const std::vector<std::byte> page = Encode(header, RandomRecords(header, 7));
    size_t others = 0;
    for (size_t bit = 64; bit < 8 * page.size(); ++bit) {
      std::vector<std::byte> changed = page;
      changed[bit / 8] ^= std::byte{1} << (bit % 8);
      FixChecksum(changed);
      const absl::StatusOr<DecodedPage> decoded = DecodePage(changed);
      if (!decoded.ok()) {
        ASSERT_EQ(decoded.status().code(), absl::StatusCode::kDataLoss) << bit;
        continue;
      }
      ++others;
      std::vector<std::byte> again(changed.size());
      EncodePage(decoded->header, decoded->records(), decoded->ranks, again);
      ASSERT_EQ(again, changed) << bit;
    }
    EXPECT_GT(others, 0) << "an id may be another";
  }
}

TEST(Page, EveryOtherLengthIsDetected) {
  for (const PageVersion version : kVersions) {
    const PageHeader header{kFixed12, 4, 262208, 64, 17, version};
    const std::vector<std::byte> page = Encode(header, RandomRecords(header, 8));
    for (size_t length = 0; length < page.size(); ++length) {
      ASSERT_EQ(DecodePage(std::span(page).first(length)).status().code(),
                absl::StatusCode::kDataLoss);
    }
    std::vector<std::byte> longer = page;
    longer.push_back(std::byte{0});
    EXPECT_THAT(DecodePage(longer).status(), IsCorrupt("but its header says"));
    longer.insert(longer.end(), page.begin(), page.end());
    EXPECT_THAT(DecodePage(longer).status(), IsCorrupt("but its header says"));
  }
}

TEST(Page, EveryByteOfTheHeaderIsChecked) {
  const std::vector<std::byte> good = Encode(kSmall, SmallRecords());
  const auto with = [&](size_t offset, auto value) {
    std::vector<std::byte> page = good;
    std::memcpy(page.data() + offset, &value, sizeof value);
    FixChecksum(page);
    return DecodePage(page).status();
  };
  EXPECT_TRUE(with(8, uint8_t{1}).ok());
  EXPECT_THAT(with(0, uint8_t{0}), IsCorrupt("magic"));
  EXPECT_THAT(with(8, uint8_t{0}), IsCorrupt("version 0 is neither 1 nor 2"));
  EXPECT_THAT(with(8, uint8_t{2}), IsCorrupt("264 bytes, but its header says"));
  EXPECT_THAT(with(8, uint8_t{3}), IsCorrupt("version 3 is neither 1 nor 2"));
  EXPECT_THAT(with(9, uint8_t{3}), IsCorrupt("encoding 3 is unknown"));
  EXPECT_THAT(with(10, uint8_t{0}), IsCorrupt("slots 0"));
  EXPECT_THAT(with(10, uint8_t{255}), IsCorrupt("slots 255 is not in [1, 254]"));
  EXPECT_THAT(with(11, uint8_t{1}), IsCorrupt("slots 259 is not in [1, 254]"));
  EXPECT_THAT(with(12, int32_t{0}), IsCorrupt("vocabulary_size 0"));
  EXPECT_THAT(with(12, int32_t{-1}), IsCorrupt("vocabulary_size -1"));
  EXPECT_THAT(with(12, int32_t{(1 << 24) + 1}), IsCorrupt("vocabulary_size 16777217"));
  EXPECT_THAT(with(12, int32_t{99}), IsCorrupt("sampled_ids at position 41: 99 is not below 99"));
  EXPECT_THAT(with(16, uint32_t{0xFFFFFFFF}), IsCorrupt("exceed 2^32"));
  EXPECT_THAT(with(20, uint32_t{0}), IsCorrupt("positions 0"));
  EXPECT_THAT(with(20, uint32_t{4097}), IsCorrupt("positions 4097"));
  EXPECT_THAT(with(20, uint32_t{17}), IsCorrupt("but its header says"));
  EXPECT_THAT(with(20, uint32_t{1}), IsCorrupt("canonical"));
  EXPECT_THAT(with(31, uint8_t{1}), IsCorrupt("canonical"));
  // The padding of the group: a log-prob, a sampled log-prob, a rank, an id.
  const PageLayout layout = LayOutPage(kSmall);
  EXPECT_THAT(with(layout.log_probs.begin + 31, uint8_t{0}), IsCorrupt("canonical"));
  EXPECT_THAT(with(layout.sampled_log_probs.begin + 63, uint8_t{1}), IsCorrupt("canonical"));
  EXPECT_THAT(with(layout.ranks.begin + 15, uint8_t{1}), IsCorrupt("canonical"));
  EXPECT_THAT(with(layout.end - 1, uint8_t{1}), IsCorrupt("canonical"));
}

TEST(Page, WhatARaggedPageSaysItHoldsIsChecked) {
  const PageHeader header = Of(PageVersion::kRagged, kSmall);
  const std::vector<std::byte> good = Encode(header, SmallRecords());
  ASSERT_TRUE(DecodePage(good).ok());
  const auto with = [&](size_t offset, auto value) {
    std::vector<std::byte> page = good;
    std::memcpy(page.data() + offset, &value, sizeof value);
    FixChecksum(page);
    return DecodePage(page).status();
  };
  EXPECT_THAT(with(24, uint32_t{7}), IsCorrupt("7 slots and 0 tokens outside are too many"));
  EXPECT_THAT(with(28, uint32_t{3}), IsCorrupt("5 slots and 3 tokens outside are too many"));
  EXPECT_THAT(with(24, uint32_t{6}), IsCorrupt("but its header says"));
  EXPECT_THAT(with(8, uint8_t{1}), IsCorrupt("but its header says"));
  EXPECT_THAT(with(10, uint16_t{513}), IsCorrupt("slots 513 is not in [1, 512]"));
  EXPECT_THAT(with(11, uint8_t{1}), IsCorrupt("but its header says"));
  // Counts 2 and 3, of two bits each; ranks 0 and 1, of three.
  EXPECT_THAT(with(40, uint8_t{2 | 2 << 2}), IsCorrupt("4 slots and 0 tokens outside, but"));
  EXPECT_THAT(with(40, uint8_t{2 | 3 << 2 | 1 << 4}), IsCorrupt("canonical"));
  EXPECT_THAT(with(41, uint8_t{0 | 3 << 3}), IsCorrupt("5 slots and 1 tokens outside, but"));
  EXPECT_THAT(with(41, uint8_t{0 | 4 << 3}), IsCorrupt("canonical")) << "no record, but slots";
  EXPECT_THAT(with(41, uint8_t{0 | 5 << 3}), IsCorrupt("ranks: 5 is above 4"));
  EXPECT_THAT(with(41, uint8_t{2 | 1 << 3}), IsCorrupt("ranks at position 40: 2 should be 65535"));
  EXPECT_THAT(with(41, uint8_t{0 | 2 << 3}), IsCorrupt("sampled_log_probs at position 41"));

  // With K = 4 three bits hold counts that are too large.
  PageHeader four = header;
  four.slots = 4;
  Records records = SmallRecords();
  records.ids = {7, 0, -1, -1, 3, 99, 5, -1};
  records.log_probs.insert(records.log_probs.begin() + 3, kMinusInfinity);
  records.log_probs.push_back(kMinusInfinity);
  std::vector<std::byte> page = Encode(four, records);
  ASSERT_TRUE(DecodePage(page).ok());
  page[40] = std::byte{0 | 5 << 3};
  FixChecksum(page);
  EXPECT_THAT(DecodePage(page).status(), IsCorrupt("counts: 5 is above slots 4"));
}

// Memory of our own is not checked each time: what it holds then may be anything.
TEST(Page, UncheckedBytesOfARaggedPageAreReadInPlace) {
  std::mt19937 random(10);
  for (const LogProbEncoding encoding : {kFloat32, kFloat16, kFixed12}) {
    for (int i = 0; i < 2000; ++i) {
      PageHeader header{
          encoding, 3, 151936, 64, 1 + static_cast<uint32_t>(random() % 40), PageVersion::kRagged};
      header.used_slots = static_cast<uint32_t>(random() % (header.positions * 3 + 1));
      header.outside = static_cast<uint32_t>(random() % (header.positions + 1));
      // Of exactly this size: a sanitizer sees a read beyond it.
      const auto bytes = std::make_unique<std::byte[]>(PageBytes(header));
      const std::span page(bytes.get(), PageBytes(header));
      for (std::byte& byte : page) byte = static_cast<std::byte>(random());
      DecodedPage decoded{.header = header,
                          .sampled_ids = std::vector<int32_t>(header.positions),
                          .sampled_log_probs = std::vector<float>(header.positions),
                          .ids = std::vector<int32_t>(size_t{3} * header.positions),
                          .log_probs = std::vector<float>(size_t{3} * header.positions),
                          .ranks = std::vector<uint16_t>(header.positions)};
      ReadRecords(ViewPage(header, page), 0, decoded.rows());
      UnpackedCounts counts;
      UnpackCounts(ViewPage(header, page), counts);
      ASSERT_TRUE(std::ranges::equal(counts.ranks, decoded.ranks));
      // No code beyond those of the page is asked for.
      ASSERT_LE(counts.begins.back(), header.used_slots);
      for (size_t group = 0; group + 1 < counts.begins.size(); ++group) {
        const auto of_group =
            std::span(counts.counts).subspan(group * kGroupPositions, kGroupPositions);
        ASSERT_LE(std::ranges::max(of_group), 3);
        ASSERT_EQ(std::accumulate(of_group.begin(), of_group.end(), counts.begins[group]),
                  counts.begins[group + 1]);
      }
    }
  }
}

// Sampled tokens of the set have no id of their own.
TEST(Page, ARaggedPageRecordsTheIdsOutside) {
  const PageHeader header = Of(PageVersion::kRagged, kSmall);
  Records records = SmallRecords();
  records.sampled_ids[1] = 42;
  records.ranks[1] = kRankOutside;
  const std::vector<std::byte> page = Encode(header, records);
  EXPECT_EQ(page.size(), Encode(header, SmallRecords()).size() + 1);
  const absl::StatusOr<DecodedPage> decoded = DecodePage(page);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_THAT(decoded->sampled_ids, ElementsAreArray({7, 42}));
  // Nor may it be one of the set.
  records.sampled_ids[1] = 5;
  EXPECT_THAT(DecodePage(Encode(header, records)).status(),
              IsCorrupt("ranks at position 41: 65535 should be 2"));
}

// Checksums only tell that a page is what was written, not that it was right to write it.
TEST(Page, WhatNoValidRecordGivesIsRefused) {
  const auto decode = [](LogProbEncoding encoding, const auto& spoil) {
    Records records = SmallRecords();
    PageHeader header = kSmall;
    header.encoding = encoding;
    spoil(records);
    return DecodePage(Encode(header, records)).status();
  };
  for (const LogProbEncoding encoding : {kFloat32, kFloat16, kFixed12}) {
    EXPECT_TRUE(decode(encoding, [](Records&) {}).ok());
    EXPECT_THAT(decode(encoding, [](Records& r) { r.sampled_ids[1] = 100; }),
                IsCorrupt("sampled_ids at position 41: 100 is not below 100"));
    EXPECT_THAT(decode(encoding, [](Records& r) { r.sampled_log_probs[1] = 0.5f; }),
                IsCorrupt("sampled_log_probs at position 41: 0.5"));
    EXPECT_THAT(decode(encoding, [](Records& r) { r.sampled_log_probs[1] = std::nanf(""); }),
                IsCorrupt("sampled_log_probs at position 41: nan"));
    EXPECT_THAT(decode(encoding, [](Records& r) { r.sampled_log_probs[1] = -1.75f; }),
                IsCorrupt("sampled_log_probs at position 41: -1.75 does not fit"));
    EXPECT_THAT(decode(encoding, [](Records& r) { r.ids[5] = 127; }),
                IsCorrupt("ids at position 41, slot 2: 127 is neither -1 nor in [0, 100)"));
    EXPECT_THAT(decode(encoding, [](Records& r) { r.ids[5] = 3; }),
                IsCorrupt("ids at position 41, slot 2: id 3 stands twice"));
    EXPECT_THAT(decode(encoding, [](Records& r) { r.log_probs[5] = -1.0f; }),
                // The 12 bits of a row reach down to its last slot.
                IsCorrupt(encoding == kFixed12 ? "log_probs at position 41, slot 1: -inf is not"
                                               : "log_probs at position 41, slot 2: -1 is above"));
    EXPECT_THAT(decode(encoding, [](Records& r) { r.log_probs[3] = -0.25f; }),
                IsCorrupt("log_probs at position 41: probabilities sum to 1.08"));
    EXPECT_THAT(decode(encoding, [](Records& r) { r.ranks[1] = 2; }),
                IsCorrupt("ranks at position 41: 2 should be 1"));
    EXPECT_THAT(decode(encoding, [](Records& r) { r.ranks[1] = 100; }),
                IsCorrupt("ranks at position 41: 100 should be 1"));
    EXPECT_THAT(decode(encoding, [](Records& r) { r.ranks[1] = kRankOutside; }),
                IsCorrupt("ranks at position 41: 65535 should be 1"));
    EXPECT_THAT(decode(encoding, [](Records& r) { r.sampled_ids[1] = 6; }),
                IsCorrupt("ranks at position 41: 1 should be 65535"));
  }
  EXPECT_THAT(decode(kFloat32, [](Records& r) { r.log_probs[5] = r.log_probs[4]; }),
              IsCorrupt("ids at position 41: 5 follows 99 of equal log-prob"));
  EXPECT_THAT(decode(kFloat32, [](Records& r) { r.log_probs[5] = std::nanf(""); }),
              IsCorrupt("log_probs at position 41, slot 2: nan"));
  EXPECT_THAT(decode(kFloat16, [](Records& r) { r.log_probs[3] = 0.03f; }),
              IsCorrupt("log_probs at position 41, slot 0: 0.0299"));
}

TEST(Page, UnusedSlotsMayNotHideAnything) {
  std::vector<std::byte> page = Encode(kSmall, SmallRecords());
  // Position 40, rank 2: the ids' group has rows of 14 bytes, and 7 bits per id.
  page[LayOutPage(kSmall).ids.begin + size_t{3} * 14] = std::byte{1};
  FixChecksum(page);
  EXPECT_THAT(DecodePage(page).status(), IsCorrupt("canonical"));
}

TEST(Page, ASampledTokenWhoseSlotIsTooLowIsOutside) {
  Records records = SmallRecords();
  records.log_probs[4] = records.sampled_log_probs[1] = -80.0f;
  records.log_probs[5] = -90.0f;
  PageHeader header = kSmall;
  header.encoding = kFixed12;
  const absl::StatusOr<DecodedPage> page = DecodePage(Encode(header, records));
  ASSERT_TRUE(page.ok()) << page.status();
  EXPECT_EQ(page->ranks[1], kRankOutside);
  EXPECT_EQ(page->sampled_ids[1], 99);
  EXPECT_EQ(page->sampled_log_probs[1], -80.0f);
  EXPECT_THAT(std::span(page->ids).subspan(3), ElementsAreArray({3, -1, -1}));
}

TEST(Page, IdsTakeTheBitsOfTheVocabulary) {
  EXPECT_EQ(IdBits(1), 1);
  EXPECT_EQ(IdBits(2), 1);
  EXPECT_EQ(IdBits(3), 2);
  EXPECT_EQ(IdBits(65536), 16);
  EXPECT_EQ(IdBits(65537), 17);
  EXPECT_EQ(IdBits(151936), 18);
  EXPECT_EQ(IdBits(262144), 18);
  EXPECT_EQ(IdBits(262208), 19);
  EXPECT_EQ(IdBits(1 << 24), 24);
}

void ExpectBytes(const std::vector<std::byte>& page, size_t offset,
                 const std::vector<unsigned>& expected) {
  std::vector<unsigned> bytes;
  for (size_t i = 0; i < expected.size(); ++i) {
    bytes.push_back(std::to_integer<unsigned>(page[offset + i]));
  }
  EXPECT_EQ(bytes, expected) << "at " << offset;
}

// The examples of docs/page_format.md, byte by byte.
TEST(Page, TheFormatStaysTheSame) {
  const std::vector<std::byte> page = Encode(kSmall, SmallRecords());
  ASSERT_EQ(page.size(), 264);
  const auto expect_bytes = [&](size_t offset, const std::vector<unsigned>& expected) {
    ExpectBytes(page, offset, expected);
  };
  expect_bytes(0, {0x53, 0x49, 0x53, 0x50, 0x54, 0x68, 0x4d, 0x7c, 1, 1, 3, 0, 100, 0, 0, 0});
  expect_bytes(16, {40, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0});
  expect_bytes(32, {0x00, 0xb8, 0x00, 0xba, 0x00, 0xfc});
  expect_bytes(64, {0x00, 0xc0, 0x00, 0xbe, 0x00, 0xfc});
  expect_bytes(96, {0x00, 0xfc, 0x00, 0xc1, 0x00, 0xfc});
  expect_bytes(128, {0, 0, 0, 0xbf, 0, 0, 0xc0, 0xbf, 0});
  expect_bytes(192, {0, 1, 0});
  expect_bytes(208, {0x87, 0x31, 0});
  expect_bytes(222, {0x87, 0x01, 0});
  expect_bytes(236, {0x80, 0x31, 0});
  expect_bytes(250, {0x80, 0x02, 0});
}

TEST(Page, TheRaggedFormatStaysTheSame) {
  const std::vector<std::byte> page = Encode(Of(PageVersion::kRagged, kSmall), SmallRecords());
  ASSERT_EQ(page.size(), 57);
  ExpectBytes(page, 0, {0x53, 0x49, 0x53, 0x50, 0x45, 0x22, 0xc1, 0xb9, 2, 1, 3, 0, 100, 0, 0, 0});
  ExpectBytes(page, 16, {40, 0, 0, 0, 2, 0, 0, 0});
  ExpectBytes(page, 24, {5, 0, 0, 0, 0, 0, 0, 0});
  ExpectBytes(page, 32, {0, 0, 0, 0xbf, 0, 0, 0xc0, 0xbf});
  ExpectBytes(page, 40, {2 | 3 << 2, 0 | 1 << 3});
  ExpectBytes(page, 42, {0x00, 0xb8, 0x00, 0xba, 0x00, 0xc0, 0x00, 0xbe, 0x00, 0xc1});
  // 7, 3, 0, 99 and 5, of seven bits each.
  ExpectBytes(page, 52, {0x87, 0x01, 0x60, 0x5c, 0x00});
}

}  // namespace
}  // namespace sis
