// Random records with tails that encodings can't hold, and what must become of them: for the tests
// of pages and sequences.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <span>

#include "kernels/records/grouped_log_probs.h"
#include "kernels/records/record_digest.h"
#include "kernels/records/validate.h"
#include "kernels/testing/random_records.h"
#include "server/cache/page.h"

namespace sis {

// T valid records, none absent.
struct SentRecords : Records {
  SentRecords(const RecordFormat& format, uint32_t positions, uint32_t seed)
      : Records(RandomRecords({.encoding = format.encoding,
                               .slots = format.slots,
                               .vocabulary_size = format.vocabulary_size,
                               .first_position = 0,
                               .positions = positions,
                               .version = format.page_version},
                              seed)),
        slots(format.slots) {
    const absl::Status valid =
        ValidateRecords(Records::view(), slots, format.vocabulary_size, 0, ranks);
    EXPECT_TRUE(valid.ok()) << valid;
  }

  RecordView View(uint32_t first, uint32_t count) const {
    return SubView(Records::view(), first, count, slots);
  }

  size_t slots;
};

// What the page format makes of them, whatever its version: at most 4096.
class RoundedRecords {
 public:
  RoundedRecords(const RecordFormat& format, const SentRecords& sent, uint32_t first_position)
      : slots_(format.slots) {
    const PageHeader header{
        .encoding = format.encoding,
        .slots = format.slots,
        .vocabulary_size = format.vocabulary_size,
        .first_position = first_position,
        .positions = static_cast<uint32_t>(sent.ranks.size()),
        .version = format.slots > kMaxTopKOfByteRanks ? PageVersion::kRagged : PageVersion::kFixed};
    absl::StatusOr<DecodedPage> page = DecodePage(Encode(header, sent));
    EXPECT_TRUE(page.ok()) << page.status();
    page_ = *std::move(page);
  }

  const DecodedPage& page() const { return page_; }
  uint16_t used(size_t row) const {
    const auto log_probs = std::span(page_.log_probs).subspan(row * slots_, slots_);
    return static_cast<uint16_t>(std::ranges::find(log_probs, kMinusInfinity) - log_probs.begin());
  }
  uint64_t Digest(size_t row, uint32_t first_position) const {
    return PositionDigest(first_position + static_cast<uint32_t>(row), page_.sampled_ids[row],
                          page_.sampled_log_probs[row],
                          std::span(page_.ids).subspan(row * slots_, slots_),
                          std::span(page_.log_probs).subspan(row * slots_, slots_));
  }
  // Compares a present position with a row, read and as backends see it.
  void ExpectSame(const Page& page, uint32_t index, size_t row) const {
    int32_t sampled_id;
    float sampled_log_prob;
    uint16_t rank;
    std::vector<int32_t> ids(slots_);
    std::vector<float> log_probs(slots_);
    page.Read(index, {.sampled_ids = {&sampled_id, 1},
                      .sampled_log_probs = {&sampled_log_prob, 1},
                      .ids = ids,
                      .log_probs = log_probs,
                      .ranks = {&rank, 1}});
    EXPECT_EQ(sampled_id, page_.sampled_ids[row]);
    EXPECT_EQ(sampled_log_prob, page_.sampled_log_probs[row]);
    EXPECT_EQ(rank, page_.ranks[row]);
    EXPECT_TRUE(std::ranges::equal(ids, std::span(page_.ids).subspan(row * slots_, slots_)));
    ExpectSameBits(log_probs, row);

    UnpackedPages unpacked;
    const BehaviorView behavior = page.Behavior(index, 1, unpacked);
    EXPECT_EQ(behavior.sampled_log_probs[0], page_.sampled_log_probs[row]);
    EXPECT_EQ(behavior.sampled_ranks[0], page_.ranks[row]);
    const LogProbReader reader(behavior.log_probs, behavior.grouped_log_probs, slots_,
                               behavior.ragged_log_probs);
    for (size_t slot = 0; slot < slots_; ++slot) log_probs[slot] = reader.At(0, slot);
    ExpectSameBits(log_probs, row);
  }

 private:
  void ExpectSameBits(std::span<const float> log_probs, size_t row) const {
    EXPECT_EQ(std::memcmp(log_probs.data(), page_.log_probs.data() + row * slots_,
                          log_probs.size_bytes()),
              0)
        << "row " << row;
  }

  const size_t slots_;
  DecodedPage page_;
};

}  // namespace sis
