#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kernels/numerics/crc32c.h"
#include "kernels/numerics/log_prob.h"
#include "kernels/page/encoded_page.h"
#include "kernels/page/page_layout.h"
#include "kernels/page/ragged_page.h"
#include "kernels/records/log_prob_code.h"
#include "kernels/records/packed_values.h"
#include "kernels/records/record_view.h"
#include "kernels/records/slot_checker.h"

namespace sis {
namespace {

template <typename... Parts>
absl::Status Corrupt(const Parts&... parts) {
  return absl::DataLossError(absl::StrCat("page: ", parts...));
}

absl::StatusOr<PageHeader> ReadHeader(std::span<const std::byte> page) {
  PageHeaderBytes bytes;
  if (page.size() < sizeof bytes) {
    return Corrupt(page.size(), " bytes are fewer than its header");
  }
  std::memcpy(&bytes, page.data(), sizeof bytes);
  if (bytes.magic != kPageMagic) return Corrupt("magic ", absl::Hex(bytes.magic), " is not SISP");
  const auto version = static_cast<PageVersion>(bytes.version);
  if (version != PageVersion::kFixed && version != PageVersion::kRagged) {
    return Corrupt("version ", bytes.version, " is neither 1 nor 2");
  }
  if (bytes.encoding > static_cast<uint8_t>(LogProbEncoding::kFixed12)) {
    return Corrupt("encoding ", bytes.encoding, " is unknown");
  }
  const int most = version == PageVersion::kFixed ? kMaxTopKOfByteRanks : kMaxTopK;
  if (bytes.slots < 1 || bytes.slots > most) {
    return Corrupt("slots ", bytes.slots, " is not in [1, ", most, "]");
  }
  if (bytes.vocabulary_size < 1 || bytes.vocabulary_size > kMaxPageVocabulary) {
    return Corrupt("vocabulary_size ", bytes.vocabulary_size, " is not in [1, ", kMaxPageVocabulary,
                   "]");
  }
  if (bytes.positions < 1 || bytes.positions > kMaxPagePositions) {
    return Corrupt("positions ", bytes.positions, " is not in [1, ", kMaxPagePositions, "]");
  }
  if (bytes.first_position > std::numeric_limits<uint32_t>::max() - (bytes.positions - 1)) {
    return Corrupt("first_position ", bytes.first_position, " and ", bytes.positions,
                   " positions exceed 2^32");
  }
  PageHeader header{.encoding = static_cast<LogProbEncoding>(bytes.encoding),
                    .slots = bytes.slots,
                    .vocabulary_size = bytes.vocabulary_size,
                    .first_position = bytes.first_position,
                    .positions = bytes.positions,
                    .version = version};
  if (!header.ragged()) return header;
  if (bytes.used_slots > bytes.positions * bytes.slots || bytes.outside > bytes.positions) {
    return Corrupt(bytes.used_slots, " slots and ", bytes.outside, " tokens outside are too many");
  }
  header.used_slots = bytes.used_slots;
  header.outside = bytes.outside;
  return header;
}

uint32_t ReadCrc32c(std::span<const std::byte> page) {
  PageHeaderBytes bytes;
  std::memcpy(&bytes, page.data(), sizeof bytes);
  return bytes.crc32c;
}

// Of kFixed12; else 1.
uint32_t MultiplierOf(const PageView& view, size_t i) {
  const PageHeader& header = view.header;
  if (header.encoding != LogProbEncoding::kFixed12) return 1;
  if (header.ragged()) return PackedValues(view.multipliers, kMultiplierBits).At(i);
  const size_t group = i / kGroupPositions * GroupBytes(header.encoding, header.slots);
  return PackedValues(view.log_probs.subspan(group), kMultiplierBits).At(i % kGroupPositions);
}

bool IsLogProb(float x) { return std::isfinite(x) && x <= kRoundingSlack; }

// Checks the record of one position. What canonical form implies is left to that check.
absl::Status CheckRecord(const DecodedPage& page, size_t i, uint32_t multiplier) {
  const PageHeader& header = page.header;
  const size_t slots = header.slots;
  const auto ids = std::span(page.ids).subspan(i * slots, slots);
  const auto log_probs = std::span(page.log_probs).subspan(i * slots, slots);
  const auto corrupt = [&](absl::string_view field, const auto&... parts) {
    return Corrupt(field, " at position ", header.first_position + i, ": ", parts...);
  };
  const int32_t sampled_id = page.sampled_ids[i];
  if (sampled_id >= header.vocabulary_size) {
    return corrupt("sampled_ids", sampled_id, " is not below ", header.vocabulary_size);
  }
  const float sampled_log_prob = page.sampled_log_probs[i];
  if (!IsLogProb(sampled_log_prob)) {
    return corrupt("sampled_log_probs", sampled_log_prob,
                   " is not a finite log-prob of at most 1/64");
  }
  uint16_t rank = kRankOutside;
  SlotChecker checker("page: ", ids, log_probs, header.vocabulary_size,
                      static_cast<uint32_t>(header.first_position + i));
  for (size_t slot = 0; slot < slots; ++slot) {
    const absl::StatusOr<bool> used = checker.Check(slot);
    if (!used.ok()) return absl::DataLossError(used.status().message());
    if (!*used) break;
    // Lossy encodings make new ties, whose order is that of the values before.
    if (header.encoding == LogProbEncoding::kFloat32 && slot > 0 &&
        log_probs[slot] == log_probs[slot - 1] && ids[slot] < ids[slot - 1]) {
      return corrupt("ids", ids[slot], " follows ", ids[slot - 1], " of equal log-prob");
    }
    if (ids[slot] == sampled_id) rank = static_cast<uint16_t>(slot);
  }
  if (absl::Status mass = checker.CheckMass(); !mass.ok()) {
    return absl::DataLossError(mass.message());
  }
  if (rank != page.ranks[i]) {
    return corrupt("ranks", page.ranks[i], " should be ", rank);
  }
  if (rank == kRankOutside) return absl::OkStatus();
  const uint32_t code = EncodeRoundedDown(header.encoding, sampled_log_prob, multiplier);
  if (std::bit_cast<uint32_t>(DecodeLogProb(header.encoding, code, multiplier)) !=
      std::bit_cast<uint32_t>(log_probs[rank])) {
    return corrupt("sampled_log_probs", sampled_log_prob, " does not fit the slot of its token, ",
                   log_probs[rank]);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PageView> OpenPage(std::span<const std::byte> page) {
  const absl::StatusOr<PageHeader> header = ReadHeader(page);
  if (!header.ok()) return header.status();
  const size_t bytes = PageBytes(*header);
  if (page.size() != bytes) {
    return Corrupt(page.size(), " bytes, but its header says ", bytes);
  }
  const uint32_t crc = ExtendCrc32c(0, page.subspan(kChecksummedFrom));
  if (crc != ReadCrc32c(page)) {
    return Corrupt("crc32c is ", absl::Hex(crc), ", not ", absl::Hex(ReadCrc32c(page)));
  }
  const PageView view = ViewPage(*header, page);
  if (header->ragged()) {
    if (absl::Status status = CheckRaggedCounts(view); !status.ok()) return status;
  }
  return view;
}

absl::StatusOr<DecodedPage> DecodePage(std::span<const std::byte> bytes) {
  const absl::StatusOr<PageView> view = OpenPage(bytes);
  if (!view.ok()) return view.status();
  const PageHeader& header = view->header;
  const size_t positions = header.positions;
  const size_t slots = header.slots;
  DecodedPage page{.header = header,
                   .sampled_ids = std::vector<int32_t>(positions),
                   .sampled_log_probs = std::vector<float>(positions),
                   .ids = std::vector<int32_t>(positions * slots),
                   .log_probs = std::vector<float>(positions * slots),
                   .ranks = std::vector<uint16_t>(positions)};
  ReadRecords(*view, 0, page.rows());
  for (size_t i = 0; i < positions; ++i) {
    if (page.ranks[i] == kRankAbsent) continue;
    const absl::Status checked = CheckRecord(page, i, MultiplierOf(*view, i));
    if (!checked.ok()) return checked;
  }
  std::vector<std::byte> canonical(bytes.size());
  // Another header could say that it is longer.
  const bool same_header = HeaderOf(header, page.records(), page.ranks) == header;
  if (same_header) EncodePage(header, page.records(), page.ranks, canonical);
  if (!same_header || std::memcmp(canonical.data(), bytes.data(), bytes.size()) != 0) {
    return Corrupt("not in canonical form");
  }
  return page;
}

}  // namespace sis
