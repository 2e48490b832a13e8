#include "kernels/page/page_layout.h"

#include "kernels/page/encoded_page.h"
#include "kernels/records/packed_values.h"

namespace sis {

PageLayout LayOutPage(const PageHeader& header) {
  PageLayout layout;
  layout.end = sizeof(PageHeaderBytes);
  const auto append = [&](PageSection& section, size_t bytes) {
    section = {layout.end, bytes};
    layout.end += bytes;
  };
  const size_t positions = header.positions;
  if (!header.ragged()) {
    const size_t groups = GroupCount(positions);
    append(layout.log_probs, groups * GroupBytes(header.encoding, header.slots));
    append(layout.sampled_log_probs, groups * kGroupPositions * sizeof(float));
    append(layout.ranks, groups * kGroupPositions);
    append(layout.ids, groups * IdGroupBytes(header));
    return layout;
  }
  const int id_bits = IdBits(header.vocabulary_size);
  const bool has_multipliers = header.encoding == LogProbEncoding::kFixed12;
  append(layout.sampled_log_probs, positions * sizeof(float));
  append(layout.counts, PackedValueBytes(positions, RaggedCountBits(header.slots)));
  append(layout.ranks, PackedValueBytes(positions, RaggedRankBits(header.slots)));
  append(layout.multipliers, PackedValueBytes(has_multipliers ? positions : 0, kMultiplierBits));
  append(layout.log_probs, PackedValueBytes(header.used_slots, LogProbBits(header.encoding)));
  append(layout.outside_ids, PackedValueBytes(header.outside, id_bits));
  append(layout.ids, PackedValueBytes(header.used_slots, id_bits));
  return layout;
}

PageView ViewPage(const PageHeader& header, std::span<const std::byte> page) {
  const PageLayout layout = LayOutPage(header);
  const auto view = [&](PageSection section) { return page.subspan(section.begin, section.bytes); };
  return {.header = header,
          .log_probs = view(layout.log_probs),
          .sampled_log_probs = view(layout.sampled_log_probs),
          .ranks = view(layout.ranks),
          .ids = view(layout.ids),
          .counts = view(layout.counts),
          .multipliers = view(layout.multipliers),
          .outside_ids = view(layout.outside_ids)};
}

}  // namespace sis
