// Limits that requests must stay within. Each is a flag of sis_server with this default.
#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace sis {

struct Limits {
  int max_top_k = 128;
  int64_t max_evaluate_positions = int64_t{1} << 24;  // of one Evaluate or FetchTopK
  int max_runs = 1024;
  int max_runs_per_owner = 256;
  int metric_runs = 100;  // runs with their own metrics; the others share one set
  // Once nothing of a run was fetched or evaluated for this long, its unread sequences may be
  // evicted when memory is short.
  absl::Duration reader_absence = absl::Minutes(15);
  // Maximum bytes of inspected values, over all runs (server/cache/inspection.h).
  int64_t inspected_bytes = int64_t{16} << 20;
};

// Constants rather than flags, because nobody has a reason to change them.
inline constexpr uint32_t kMaxVocabularySize = 1u << 24;
inline constexpr int64_t kMaxPositions = int64_t{1} << 22;  // of one sequence
inline constexpr double kMaxKeepSeconds = 3600;
inline constexpr int kMaxIdBytes = 256;     // run ids, sequence ids, labels, worker names
inline constexpr int kDroppedKept = 65536;  // dropped sequences of a run whose reason is remembered
inline constexpr int kDeletedRunsKept = 16384;  // deleted runs whose incarnation is remembered
// Upper bounds for versions and incarnations in one request. They keep a client from using up the
// numbers, which would block the run or its name forever.
inline constexpr uint64_t kMaxFirstIncarnation = (uint64_t{1} << 63) - 1;
inline constexpr uint64_t kMaxIncarnationJump = uint64_t{1} << 32;
inline constexpr uint64_t kMaxPolicyVersionJump = uint64_t{1} << 32;

}  // namespace sis
