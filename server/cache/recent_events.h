// What happened to a run lately, and when: what its counters, which only grow, don't tell.
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
  // Of what happens again and again: when it did last, and the longest that it did not since the
  // first time.
  struct Rhythm {
    absl::Time last = absl::InfinitePast();
    absl::Duration longest_pause = absl::ZeroDuration();

    void Note(absl::Time now);
  };
  struct Count {
    int64_t count = 0;
    absl::Time last = absl::InfinitePast();
    absl::StatusCode code = absl::StatusCode::kOk;  // of the last, if it was a refusal
  };
  // The outcomes of the last calls, at most kCalls.
  struct Calls {
    static constexpr int kCalls = 64;
    uint64_t refused = 0;  // a bit for each, the last one lowest
    int count = 0;
    absl::StatusCode code = absl::StatusCode::kOk;  // of the last that was refused
  };
  struct Events {
    Rhythm appends;
    Rhythm reads;       // the first is noted at the first append: from there a reader is waited for
    int64_t turns = 0;  // reads whose last event before was an append
    int64_t open_appends = 0;  // streams
    Count refused_entries;
    Count evicted_unread;  // sequences
    Calls evaluations;
    std::string sampling;  // a serialised v1::Sampling, of the append stream opened last
  };
  Events events() const ABSL_LOCKS_EXCLUDED(mutex_);

  // An append stream was opened.
  void NoteSampling(std::string serialised) ABSL_LOCKS_EXCLUDED(mutex_);
  void NoteAppend(absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);
  // Something was fetched or evaluated.
  void NoteRead(absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);
  void NoteRefusedEntry(absl::StatusCode code, absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);
  void NoteEvictedUnread(absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);
  // How an evaluation ended. One that its caller gave up says nothing.
  void NoteEvaluation(absl::StatusCode code) ABSL_LOCKS_EXCLUDED(mutex_);

  // Append streams hold one each while they are open.
  std::shared_ptr<const void> OpenAppend() const { return open_append_; }

 private:
  const std::shared_ptr<const void> open_append_ = std::make_shared<char>();
  mutable Mutex mutex_;
  Events events_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sis
