// Packed rows of log-probs as plain arrays. For tests.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "kernels/records/log_probs.h"

namespace sis {

// Decodes n positions into log_probs [n, K], row-major.
inline void DecodeLogProbs(LogProbEncoding encoding, std::span<const std::byte> from, int slots,
                           std::span<float> log_probs) {
  const size_t positions = log_probs.size() / slots;
  const size_t group_bytes = GroupBytes(encoding, slots);
  std::vector<std::array<float, kGroupPositions>> rows(slots);
  for (size_t group = 0; group < GroupCount(positions); ++group) {
    const GroupDecoder decoder(encoding, from.subspan(group * group_bytes, group_bytes));
    const size_t first = group * kGroupPositions;
    const size_t lanes = std::min<size_t>(kGroupPositions, positions - first);
    decoder.Rows(0, rows);
    for (int rank = 0; rank < slots; ++rank) {
      for (size_t lane = 0; lane < lanes; ++lane) {
        log_probs[(first + lane) * slots + rank] = rows[rank][lane];
      }
    }
  }
}

}  // namespace sis
