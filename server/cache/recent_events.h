// The times of a run's recent events, which its growing counters don't show.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/threads/mutex.h"

namespace sis {

// Thread-safe.
class RecentEvents {
 public:
  // The last time of a recurring event, and the longest pause between two of them.
  struct Rhythm {
    absl::Time last = absl::InfinitePast();
    absl::Duration longest_pause = absl::ZeroDuration();

    void Note(absl::Time now);
  };
  struct Count {
    int64_t count = 0;
    absl::Time last = absl::InfinitePast();
    absl::StatusCode code = absl::StatusCode::kOk;  // of the last refusal
  };
  // The outcomes of the last calls, at most kCalls.
  struct Calls {
    static constexpr int kCalls = 64;
    uint64_t refused = 0;  // one bit per call, the last call lowest
    int count = 0;
    absl::StatusCode code = absl::StatusCode::kOk;  // of the last refused call
  };
  struct Events {
    Rhythm appends;
    Rhythm reads;              // begins with the first append, from which on a reader is expected
    int64_t turns = 0;         // reads that follow an append
    int64_t open_appends = 0;  // streams
    Count refused_entries;
    Count evicted_unread;  // sequences
    Calls evaluations;
    std::string sampling;  // a serialised v1::Sampling, of the append stream opened last
  };
  Events events() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Notes the sampling of an append stream that was opened.
  void NoteSampling(std::string serialised) ABSL_LOCKS_EXCLUDED(mutex_);
  void NoteAppend(absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);
  // Notes a fetch or an evaluation.
  void NoteRead(absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);
  void NoteRefusedEntry(absl::StatusCode code, absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);
  void NoteEvictedUnread(absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);
  // Notes the result of an evaluation. Ignores one that its caller cancelled.
  void NoteEvaluation(absl::StatusCode code) ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns a token that an append stream holds while it is open.
  std::shared_ptr<const void> OpenAppend() const { return open_append_; }

 private:
  const std::shared_ptr<const void> open_append_ = std::make_shared<char>();
  mutable Mutex mutex_;
  Events events_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sis
