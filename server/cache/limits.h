// Limits of one client's requests. Each is a flag of sis_server with these defaults; a call beyond
// a limit is refused.
#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace sis {

struct Limits {
  int max_top_k = 128;
  int64_t max_positions = int64_t{1} << 22;           // of one sequence
  int64_t max_evaluate_positions = int64_t{1} << 24;  // of one Evaluate or FetchTopK
  int max_runs = 1024;
  int max_runs_per_owner = 256;
  int metric_runs = 100;  // that have metrics of their own; the others share some
  // If nothing of a run was fetched or evaluated for so long, its unread sequences may be evicted
  // where room is short.
  absl::Duration reader_absence = absl::Minutes(15);
  // For the last values of a sample of sequences, over all runs (server/cache/inspection.h).
  int64_t inspected_bytes = int64_t{16} << 20;
};

// Not flags: nobody has a reason to change them.
inline constexpr uint32_t kMaxVocabularySize = 1u << 24;
inline constexpr double kMaxKeepSeconds = 3600;
inline constexpr int kMaxIdBytes = 256;     // run ids, sequence ids, labels, worker names
inline constexpr int kDroppedKept = 65536;  // dropped sequences of a run whose reason is remembered
inline constexpr int kDeletedRunsKept = 16384;  // deleted runs whose incarnation is remembered
// Nobody can count to the end of these numbers, and so keep others from going on.
inline constexpr uint64_t kMaxFirstIncarnation = (uint64_t{1} << 63) - 1;
inline constexpr uint64_t kMaxIncarnationJump = uint64_t{1} << 32;
inline constexpr uint64_t kMaxPolicyVersionJump = uint64_t{1} << 32;

}  // namespace sis
