// From a block whose sets are padded to the same with ragged ones, for tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "sis/v1/ratio_service.pb.h"

namespace sis {

// Unused slots are those of id -1. Without the checksum.
inline v1::Block Ragged(const v1::Block& padded, size_t slots) {
  v1::Block block = padded;
  for (auto* array :
       {block.mutable_top_k_ids(), block.mutable_top_k_log_probs(), block.mutable_top_k_counts()}) {
    array->clear();
  }
  block.clear_crc32c();
  for (size_t row = 0; row < padded.sampled_ids().size() / sizeof(int32_t); ++row) {
    uint16_t count = 0;
    for (size_t slot = row * slots; slot < (row + 1) * slots; ++slot) {
      const std::string id = padded.top_k_ids().substr(slot * sizeof(int32_t), sizeof(int32_t));
      if (id == "\xff\xff\xff\xff") continue;
      *block.mutable_top_k_ids() += id;
      *block.mutable_top_k_log_probs() +=
          padded.top_k_log_probs().substr(slot * sizeof(float), sizeof(float));
      ++count;
    }
    block.mutable_top_k_counts()->append(reinterpret_cast<const char*>(&count), sizeof(count));
  }
  return block;
}

}  // namespace sis
