#include "server/cache/recent_events.h"

#include <algorithm>
#include <utility>

namespace sis {

void RecentEvents::Rhythm::Note(absl::Time now) {
  if (last != absl::InfinitePast()) longest_pause = std::max(longest_pause, now - last);
  last = now;
}

RecentEvents::Events RecentEvents::events() const {
  ReaderLock lock(mutex_);
  Events events = events_;
  events.open_appends = open_append_.use_count() - 1;
  return events;
}

void RecentEvents::NoteSampling(std::string serialised) {
  WriterLock lock(mutex_);
  events_.sampling = std::move(serialised);
}

void RecentEvents::NoteAppend(absl::Time now) {
  WriterLock lock(mutex_);
  if (events_.appends.last == absl::InfinitePast()) events_.reads.Note(now);
  events_.appends.Note(now);
}

void RecentEvents::NoteRead(absl::Time now) {
  WriterLock lock(mutex_);
  events_.turns += events_.appends.last > events_.reads.last;
  events_.reads.Note(now);
}

void RecentEvents::NoteRefusedEntry(absl::StatusCode code, absl::Time now) {
  WriterLock lock(mutex_);
  Count& refused = events_.refused_entries;
  refused = {.count = refused.count + 1, .last = now, .code = code};
}

void RecentEvents::NoteEvictedUnread(absl::Time now) {
  WriterLock lock(mutex_);
  ++events_.evicted_unread.count;
  events_.evicted_unread.last = now;
}

void RecentEvents::NoteEvaluation(absl::StatusCode code) {
  if (code == absl::StatusCode::kCancelled) return;
  WriterLock lock(mutex_);
  Calls& calls = events_.evaluations;
  const bool refused = code != absl::StatusCode::kOk;
  calls.refused = calls.refused << 1 | static_cast<uint64_t>(refused);
  calls.count = std::min(calls.count + 1, Calls::kCalls);
  if (refused) calls.code = code;
}

}  // namespace sis
