// libsis_kernels.so: what Python calls of kernels/block, by ctypes (sis/blocks.py). It has neither
// threads nor state, so a fork breaks nothing.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/block/pack.h"
#include "kernels/block/record_view.h"
#include "kernels/numerics/crc32c.h"

namespace {

struct Stretch {
  uint64_t first_position;  // below 2^32
  uint64_t positions;
  uint64_t policy_version;
};

struct Bytes {
  const void* data;
  uint64_t size;
};

// Owns what the caller gets.
struct Packed {
  std::vector<std::vector<std::byte>> blocks;
  std::string error;
};

template <typename T>
std::span<const T> Take(const T*& values, size_t count) {
  const std::span<const T> taken(values, count);
  values += count;
  return taken;
}

}  // namespace

extern "C" {

// Packs the records of all stretches, which lie in the arrays one after the other: [N], [N],
// [N, slots] and [N, slots]. Fills in packed [stretches], valid until sis_free takes what is
// returned. Of the first stretch with an invalid record, packed[0] is the reason in UTF-8, and
// *invalid its number; it is -1 if there is none.
void* sis_pack(const int32_t* sampled_ids, const float* sampled_log_probs, const int32_t* ids,
               const float* log_probs, int32_t slots, int32_t vocabulary_size, uint32_t encoding,
               double mass, const Stretch* stretches, uint64_t count, Bytes* packed,
               int64_t* invalid) {
  auto* result = new Packed;
  *invalid = -1;
  for (uint64_t i = 0; i < count; ++i) {
    const Stretch& stretch = stretches[i];
    const size_t positions = stretch.positions, wide = positions * static_cast<size_t>(slots);
    const sis::RecordView records = {Take(sampled_ids, positions),
                                     Take(sampled_log_probs, positions), Take(ids, wide),
                                     Take(log_probs, wide)};
    absl::StatusOr<std::vector<std::byte>> block =
        sis::PackBlock(records, {.encoding = static_cast<sis::BlockEncoding>(encoding),
                                 .slots = slots,
                                 .vocabulary_size = vocabulary_size,
                                 .first_position = static_cast<uint32_t>(stretch.first_position),
                                 .policy_version = stretch.policy_version,
                                 .mass = mass});
    if (!block.ok()) {
      *invalid = static_cast<int64_t>(i);
      result->error = std::string(block.status().message());
      packed[0] = {result->error.data(), result->error.size()};
      return result;
    }
    const std::vector<std::byte>& kept = result->blocks.emplace_back(*std::move(block));
    packed[i] = {kept.data(), kept.size()};
  }
  return result;
}

void sis_free(void* packed) { delete static_cast<Packed*>(packed); }

// CRC-32C of what `crc` is of, and of bytes [begin, end) of `data` behind it.
uint32_t sis_crc32c(uint32_t crc, const char* data, uint64_t begin, uint64_t end) {
  return sis::ExtendCrc32c(crc, std::as_bytes(std::span(data + begin, data + end)));
}

}  // extern "C"
