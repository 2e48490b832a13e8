// Random valid records, and blocks of them. For tests.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/block/block.h"
#include "kernels/block/pack.h"
#include "kernels/block/record_view.h"
#include "kernels/numerics/log_prob.h"
#include "kernels/testing/random_positions.h"

namespace sis {

// T padded records.
struct Records {
  size_t slots;                          // K
  std::vector<int32_t> sampled_ids;      // [T]
  std::vector<float> sampled_log_probs;  // [T]
  std::vector<int32_t> ids;              // [T, K]
  std::vector<float> log_probs;          // [T, K]

  size_t size() const { return sampled_ids.size(); }
  RecordView view() const { return view(0, size()); }
  RecordView view(size_t first, size_t count) const {
    return {std::span(sampled_ids).subspan(first, count),
            std::span(sampled_log_probs).subspan(first, count),
            std::span(ids).subspan(first * slots, count * slots),
            std::span(log_probs).subspan(first * slots, count * slots)};
  }
};

// Returns random records. The vocabulary must be larger than `slots`. Sets have any number of
// slots; about a third of the sampled tokens is outside.
inline Records RandomRecords(size_t slots, int32_t vocabulary_size, size_t positions,
                             uint32_t seed) {
  RandomPositions random(seed);
  Records records{slots, {}, {}, {}, {}};
  for (size_t i = 0; i < positions; ++i) {
    const RandomPosition position = random.Next(slots);
    std::vector<int32_t> ids;
    while (ids.size() <= position.used) {
      const auto id = static_cast<int32_t>(random.Below(vocabulary_size));
      if (std::ranges::find(ids, id) == ids.end()) ids.push_back(id);
    }
    const int32_t other_id = ids.back();
    ids.pop_back();
    for (size_t slot = 0; slot < position.used;) {  // ties go by id
      size_t end = slot + 1;
      while (end < position.used && position.behavior[end] == position.behavior[slot]) ++end;
      std::ranges::sort(std::span(ids).subspan(slot, end - slot));
      slot = end;
    }
    const bool inside = position.used > 0 && random.Below(3) > 0;
    // Samples probable tokens more often.
    const size_t drawn = inside ? random.Below(1 + random.Below(position.used)) : 0;
    records.sampled_ids.push_back(inside ? ids[drawn] : other_id);
    records.sampled_log_probs.push_back(inside ? position.behavior[drawn] : -12.3456789f);
    ids.resize(slots, -1);
    records.ids.insert(records.ids.end(), ids.begin(), ids.end());
    records.log_probs.insert(records.log_probs.end(), position.behavior.begin(),
                             position.behavior.end());
  }
  return records;
}

// A block and its view.
struct RandomBlock {
  Records records;
  std::vector<std::byte> bytes;  // with kBlockSlack more
  BlockView view;

  // Packs `count` records from index `first` on. options.position is the position of record 0;
  // options.slots is ignored. Throws if the records are not valid.
  RandomBlock(Records all, PackOptions options, size_t first, size_t count)
      : records(std::move(all)),
        bytes(Pack(records, options, first, count)),
        view(Open(std::span(bytes).first(bytes.size() - kBlockSlack))) {}
  RandomBlock(Records all, const PackOptions& options) : RandomBlock(all, options, 0, all.size()) {}
  // Random records.
  RandomBlock(BlockEncoding encoding, int slots, uint32_t positions, uint32_t seed, double mass = 0)
      : RandomBlock(RandomRecords(static_cast<size_t>(slots), 1000, positions, seed),
                    {.encoding = encoding, .vocabulary_size = 1000, .mass = mass}) {}

  RandomBlock(const RandomBlock&) = delete;  // the view is of these bytes
  RandomBlock& operator=(const RandomBlock&) = delete;

  std::span<const std::byte> block() const { return view.bytes; }
  BlockRange range() const { return {view, 0, view.header.positions}; }

 private:
  template <typename T>
  static T Valid(absl::StatusOr<T> value) {
    if (!value.ok()) throw std::invalid_argument(std::string(value.status().message()));
    return *std::move(value);
  }
  static std::vector<std::byte> Pack(const Records& records, PackOptions options, size_t first,
                                     size_t count) {
    options.slots = static_cast<int>(records.slots);
    options.first_position += static_cast<uint32_t>(first);
    std::vector<std::byte> bytes = Valid(PackBlock(records.view(first, count), options));
    bytes.resize(bytes.size() + kBlockSlack);
    return bytes;
  }
  static BlockView Open(std::span<const std::byte> bytes) {
    return Valid(OpenBlock(bytes, /*checksums=*/true));
  }
};

}  // namespace sis
