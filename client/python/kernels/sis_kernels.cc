// libsis_kernels.so: functions of kernels/block for Python, called by ctypes (sis/_blocks.py). Safe
// across forks, because it has neither threads nor state.

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

// The positions [first, first + count) of a block, or of its header followed by part 2. Size and
// header must agree. The block may have any address.
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

// Reads the part. Writes its ids from ids[slot] on. Returns the number of its slots, or an error of
// sis_read.
int64_t Read(const Part& part, size_t slot, const Arrays& to) {
  const std::span block(part.block, part.bytes);
  sis::BlockHeader header;
  std::memcpy(&header, part.block, sizeof header);
  const sis::BlockLayout at(header);
  const bool whole = part.bytes == at.end;
  if (to.log_probs != nullptr && !whole) return kNoLogProbs;
  // The offset of part 2, and the distance of its sections from their offsets in a complete block.
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

// Writes blocks of the records to `out` [bytes], and their ends to `ends` [count], until the next
// block doesn't fit. Returns the number of written blocks. If it stops at invalid records, `error`
// [error_bytes] has the reason in UTF-8; otherwise `error` is empty.
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

// Reads the parts in order. Returns the number of their slots. If a part can't be read, sets
// *damaged to its number and returns -1 for a wrong checksum, -2 for wrong counts, -3 for a block
// without the requested log-probs.
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

// Returns the CRC-32C of the bytes that gave `crc`, followed by bytes [begin, end) of `data`.
uint32_t sis_crc32c(uint32_t crc, const char* data, uint64_t begin, uint64_t end) {
  return sis::ExtendCrc32c(crc, std::as_bytes(std::span(data + begin, data + end)));
}

}  // extern "C"
