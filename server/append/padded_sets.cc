#include "server/append/padded_sets.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/numerics/log_prob.h"
#include "kernels/records/mass_cut.h"
#include "kernels/records/slot_checker.h"
#include "server/messages/arrays.h"

namespace sis {
namespace {

// Positions that are checked at once, as wide as the longest set among them: few, so that it is
// hardly longer than the others.
constexpr size_t kRows = 16;

// Rows of `width` from so many values each; the rest of a row is unused.
template <typename T>
void Spread(std::span<const T> values, std::span<const uint16_t> counts, size_t width, T unused,
            std::span<T> rows) {
  auto from = values.begin();
  auto to = rows.begin();
  for (const uint16_t count : counts) {
    to = std::copy_n(from, count, to);
    to = std::fill_n(to, width - count, unused);
    from += count;
  }
}

// Makes the rows of `width` that lie at the beginning as long as they may be; what they have no
// slots for is unused, or if those are counted, anything.
template <typename T>
void Widen(size_t width, size_t slots, T unused, bool counted, std::span<T> rows) {
  if (width == slots) return;
  for (size_t row = rows.size() / slots; row-- > 0;) {
    const auto from = rows.begin() + row * width;
    const auto to = rows.begin() + row * slots;
    // Row 0 is where it should be.
    if (row > 0) std::copy_backward(from, from + width, to + width);
    if (!counted) std::fill_n(to + width, slots - width, unused);
  }
}

}  // namespace

absl::StatusOr<size_t> SumOfCounts(std::span<const uint16_t> counts, uint32_t first_position,
                                   uint32_t top_k) {
  size_t sum = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] > top_k) {
      return InvalidPosition("top_k_counts", static_cast<uint32_t>(first_position + i),
                             absl::StrCat(counts[i], ", more than top_k ", top_k));
    }
    sum += counts[i];
  }
  return sum;
}

absl::StatusOr<RecordView> PaddedSets::Pad(const RecordView& sent, std::span<const uint16_t> counts,
                                           uint32_t first_position, const RunConfig& config,
                                           std::span<uint16_t> ranks, const MassCut& cut) {
  const bool cuts = !cut.counts.empty();
  const size_t slots = config.top_k;
  const std::span<int32_t> all_ids = Room(ids_, counts.size() * slots);
  const std::span<float> all_log_probs = Room(log_probs_, counts.size() * slots);
  size_t next = 0;  // of the slots that were sent
  for (size_t first = 0; first < counts.size(); first += kRows) {
    const std::span part = counts.subspan(first, std::min(kRows, counts.size() - first));
    const size_t width = std::max<size_t>(*std::ranges::max_element(part), 1);
    const std::span ids = all_ids.subspan(first * slots, part.size() * slots);
    const std::span log_probs = all_log_probs.subspan(first * slots, part.size() * slots);
    const std::span narrow_ids = ids.first(part.size() * width);
    const std::span narrow_log_probs = log_probs.first(part.size() * width);
    Spread(sent.ids.subspan(next), part, width, -1, narrow_ids);
    Spread(sent.log_probs.subspan(next), part, width, kMinusInfinity, narrow_log_probs);
    const std::span part_ranks = ranks.subspan(first, part.size());
    const absl::Status status =
        ValidateRecords({.sampled_ids = sent.sampled_ids.subspan(first, part.size()),
                         .sampled_log_probs = sent.sampled_log_probs.subspan(first, part.size()),
                         .ids = narrow_ids,
                         .log_probs = narrow_log_probs},
                        static_cast<int>(width), static_cast<int32_t>(config.vocabulary_size),
                        static_cast<uint32_t>(first_position + first), part_ranks,
                        cuts ? MassCut{cut.mass, cut.counts.subspan(first, part.size())} : cut);
    if (!status.ok()) return status;
    // Of a set that is not cut before.
    const auto reaches_last = [&](size_t row) {
      const auto set = narrow_log_probs.subspan(row * width, part[row]);
      return !cuts || SlotsToMass(cut.mass, set) == set.size();
    };
    for (size_t row = 0; row < part.size(); ++row) {
      // Of a valid set the last slot tells of all.
      if (part[row] > 0 && narrow_ids[row * width + part[row] - 1] == -1 && reaches_last(row)) {
        return InvalidSlot("top_k_ids", static_cast<uint32_t>(first_position + first + row),
                           part[row] - 1, absl::StrCat("-1, but top_k_counts is ", part[row]));
      }
      next += part[row];
    }
    Widen(width, slots, -1, cuts, ids);
    Widen(width, slots, kMinusInfinity, cuts, log_probs);
  }
  RecordView padded = sent;
  padded.ids = all_ids;
  padded.log_probs = all_log_probs;
  padded.counts = cut.counts;
  return padded;
}

void PaddedSets::ForgetAbove(size_t bytes) {
  if (ids_.capacity() * sizeof(int32_t) <= bytes) return;
  std::vector<int32_t>().swap(ids_);
  std::vector<float>().swap(log_probs_);
}

}  // namespace sis
