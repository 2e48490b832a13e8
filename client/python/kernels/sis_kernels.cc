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

struct Bytes {
  const void* data;
  uint64_t size;
};

// Owns what the caller gets.
struct Packed {
  std::vector<std::vector<std::byte>> blocks;
  std::string error;
};

}  // namespace

extern "C" {

// Makes a block of each of the records. Fills in packed [count], valid until sis_free takes what is
// returned. If records are not valid, *invalid is the number of the first, and packed[0] says why
// in UTF-8; else *invalid is -1.
void* sis_pack(const Records* records, uint64_t count, int32_t slots, int32_t vocabulary_size,
               uint32_t encoding, double mass, Bytes* packed, int64_t* invalid) {
  auto* result = new Packed;
  *invalid = -1;
  for (uint64_t i = 0; i < count; ++i) {
    const Records& r = records[i];
    const size_t wide = r.positions * static_cast<size_t>(slots);
    absl::StatusOr<std::vector<std::byte>> block =
        sis::PackBlock({{r.sampled_ids, r.positions},
                        {r.sampled_log_probs, r.positions},
                        {r.ids, wide},
                        {r.log_probs, wide}},
                       {.encoding = static_cast<sis::BlockEncoding>(encoding),
                        .slots = slots,
                        .vocabulary_size = vocabulary_size,
                        .first_position = static_cast<uint32_t>(r.first_position),
                        .policy_version = r.policy_version,
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
