// libsis_kernels.so: what Python calls of kernels/block, by ctypes (sis/blocks.py). It has neither
// threads nor state, so a fork breaks nothing.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <span>

#include "absl/status/status.h"
#include "kernels/block/pack.h"
#include "kernels/block/read.h"
#include "kernels/numerics/crc32c.h"

namespace {

// The records of T consecutive positions of one sequence and one policy version.
struct Records {
  uint64_t first_position;  // below 2^32
  uint64_t policy_version;
  uint64_t positions;              // T
  const int32_t* sampled_ids;      // [T]
  const float* sampled_log_probs;  // [T]
  const int32_t* ids;              // [T, slots]
  const float* log_probs;          // [T, slots]
};

// The positions [first, first + count) of a block, or of its header followed by part 2. Header and
// size must fit each other. The block's address may be any.
struct Part {
  const std::byte* block;
  uint64_t bytes;
  uint64_t first;
  uint64_t count;
  uint64_t row;  // of the first position in the arrays
};

// The arrays that sis_read fills.
struct Arrays {
  uint8_t* counts;           // [N]
  int32_t* sampled_ids;      // [N]
  float* sampled_log_probs;  // [N]
  int32_t* ids;              // [S]
  float* log_probs;          // [S]; null: not asked for
};

constexpr int64_t kWrongChecksum = -1;
constexpr int64_t kWrongCounts = -2;
constexpr int64_t kNoLogProbs = -3;

// Reads the part, whose ids go to ids[slot] and on. Returns how many slots it has, or what is
// wrong.
int64_t Read(const Part& part, size_t slot, const Arrays& to) {
  const std::span block(part.block, part.bytes);
  sis::BlockHeader header;
  std::memcpy(&header, part.block, sizeof header);
  const sis::BlockLayout at(header);
  const bool whole = part.bytes == at.end;
  if (to.log_probs != nullptr && !whole) return kNoLogProbs;
  // Where part 2 begins, and how far each of its sections stands before its place in a whole block.
  const size_t part2 = whole ? at.sampled_log_probs : sizeof header;
  const size_t before = at.sampled_log_probs - part2;
  sis::BlockHeader blank = header;
  blank.crc32c[0] = blank.crc32c[1] = 0;
  const uint32_t crc = sis::ExtendCrc32c(0, std::as_bytes(std::span(&blank, 1)));
  if (sis::ExtendCrc32c(crc, block.subspan(part2)) != header.crc32c[1] ||
      (whole && sis::ExtendCrc32c(crc, block.subspan(sizeof header, part2 - sizeof header)) !=
                    header.crc32c[0])) {
    return kWrongChecksum;
  }
  const auto* const counts = reinterpret_cast<const uint8_t*>(part.block + at.counts - before);
  uint32_t used = 0;
  uint8_t most = 0;
  for (uint32_t i = 0; i < header.positions; ++i) {
    used += counts[i];
    most = std::max(most, counts[i]);
  }
  if (used != header.used_slots || most > header.slots) return kWrongCounts;

  const auto slots_of = [&](size_t begin, size_t end) {
    return std::accumulate(counts + begin, counts + end, size_t{0});
  };
  const size_t skipped = slots_of(0, part.first);
  const size_t slots = slots_of(part.first, part.first + part.count);
  std::copy_n(counts + part.first, part.count, to.counts + part.row);
  std::memcpy(to.sampled_log_probs + part.row, part.block + part2 + part.first * sizeof(float),
              part.count * sizeof(float));
  sis::BlockView view(header, block);
  view.sampled_ids = part.block + at.sampled_ids - before + part.first * header.id_bytes;
  view.ids = part.block + at.ids - before + skipped * header.id_bytes;
  sis::ReadBlockIds(view, {to.sampled_ids + part.row, part.count}, {to.ids + slot, slots});
  if (to.log_probs == nullptr) return static_cast<int64_t>(slots);

  float* out = to.log_probs + slot;
  const std::byte* const stored = part.block + at.log_probs;
  if (!header.fixed()) {
    std::memcpy(out, stored + skipped * sizeof(float), slots * sizeof(float));
    return static_cast<int64_t>(slots);
  }
  const std::byte* code = stored + skipped * sizeof(uint16_t);
  for (size_t i = part.first; i < part.first + part.count; ++i) {
    const uint32_t multiplier = view.multipliers[i];
    for (size_t j = 0; j < counts[i]; ++j) {
      uint16_t value;
      std::memcpy(&value, code + j * sizeof value, sizeof value);
      out[j] = sis::Fixed16(value, multiplier);
    }
    out += counts[i];
    code += counts[i] * sizeof(uint16_t);
  }
  return static_cast<int64_t>(slots);
}

}  // namespace

extern "C" {

// Writes blocks of the records one after the other to `out` [bytes], and where each ends to `ends`
// [count], until the next one has no room. Returns how many it wrote. If it stops at records that
// are not valid, `error` [error_bytes] says why in UTF-8; otherwise that is empty.
uint64_t sis_pack(const Records* records, uint64_t count, int32_t slots, int32_t vocabulary_size,
                  uint32_t encoding, double mass, std::byte* out, uint64_t bytes, uint64_t* ends,
                  char* error, uint64_t error_bytes) {
  error[0] = '\0';
  uint64_t size = 0;
  for (uint64_t i = 0; i < count; ++i) {
    const Records& r = records[i];
    const size_t wide = r.positions * static_cast<size_t>(slots);
    uint64_t end = size;
    const absl::Status status =
        sis::PackBlock({{r.sampled_ids, r.positions},
                        {r.sampled_log_probs, r.positions},
                        {r.ids, wide},
                        {r.log_probs, wide}},
                       {.encoding = static_cast<sis::BlockEncoding>(encoding),
                        .slots = slots,
                        .vocabulary_size = vocabulary_size,
                        .first_position = static_cast<uint32_t>(r.first_position),
                        .policy_version = r.policy_version,
                        .mass = mass},
                       [&](size_t block) -> std::byte* {
                         end = size + block;
                         return end + sis::kBlockSlack <= bytes ? out + size : nullptr;
                       });
    if (!status.ok()) {
      if (!absl::IsResourceExhausted(status)) {
        const size_t length = std::min<size_t>(status.message().size(), error_bytes - 1);
        std::memcpy(error, status.message().data(), length);
        error[length] = '\0';
      }
      return i;
    }
    ends[i] = size = end;
  }
  return count;
}

// Reads the parts in this order. Returns how many slots they have. If one can't be read, sets
// *damaged to its number and returns -1 for a wrong checksum, -2 for wrong counts, -3 for a block
// without the log-probs that are asked for.
int64_t sis_read(const Part* parts, uint64_t count, const Arrays* to, uint64_t* damaged) {
  int64_t slots = 0;
  for (uint64_t i = 0; i < count; ++i) {
    const int64_t read = Read(parts[i], static_cast<size_t>(slots), *to);
    if (read < 0) {
      *damaged = i;
      return read;
    }
    slots += read;
  }
  return slots;
}

// CRC-32C of what `crc` is of, and of bytes [begin, end) of `data` behind it.
uint32_t sis_crc32c(uint32_t crc, const char* data, uint64_t begin, uint64_t end) {
  return sis::ExtendCrc32c(crc, std::as_bytes(std::span(data + begin, data + end)));
}

}  // extern "C"
