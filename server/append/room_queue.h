// Appends that wait for room, in order of arrival (docs/adr/0013-appends-wait-for-room.md).
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/cache/run.h"
#include "server/memory/byte_budget.h"
#include "server/threads/mutex.h"

namespace sis {

class RunRegistry;

// What an append lacks.
struct RoomWanted {
  std::shared_ptr<Run> run;
  int64_t bytes;
  const ByteBudget* shortage;  // the run's, or the server's
  int entry;                   // of its batch
};

// How an append comes to try.
enum class Turn {
  kArrived,    // lets those that wait go first
  kServed,     // it has waited, and its first entry comes before those that still wait
  kOutOfTime,  // waits no more, and evicts what nobody has read
};

// Thread-safe; but Serve is for one thread. Its lock is a leaf: no other is taken under it.
class RoomQueue {
 public:
  class Waiter {
   public:
    // Tries again. What it lacks now; or nothing if it needs no room any more, and may be gone.
    virtual std::optional<RoomWanted> Resume(Turn turn) = 0;
    // It will have no turn. Called instead of a Resume.
    virtual void GiveUp(const absl::Status& status) = 0;

   protected:
    ~Waiter() = default;

   private:
    friend class RoomQueue;
    bool left_ = false;  // guarded by the queue's mutex_
  };

  // The registry must outlive the queue. Nobody waits longer than `patience`.
  RoomQueue(RunRegistry& registry, absl::Duration patience, Clock clock)
      : registry_(registry), patience_(patience), clock_(std::move(clock)) {}

  // Gives the waiter turns until it needs no more; after that it may join again. An error if it has
  // left or the queue is closed, and it has not joined. Else the waiter may be gone on return.
  absl::Status Join(Waiter& waiter, RoomWanted wanted) ABSL_LOCKS_EXCLUDED(mutex_);
  // Cancelled: the waiter gives up, if it waits, and will not wait again.
  void Leave(Waiter& waiter) ABSL_LOCKS_EXCLUDED(mutex_);

  // Gives each waiter that there is room for its turn, and each whose time is over. Nobody
  // overtakes one that waits for the same bytes.
  void Serve() ABSL_LOCKS_EXCLUDED(mutex_);
  // All give up, for good.
  void Close() ABSL_LOCKS_EXCLUDED(mutex_);

  // The budget that somebody waits for and that this run's bytes would come from; null if none.
  const ByteBudget* Contested(Run& run) const ABSL_LOCKS_EXCLUDED(mutex_);
  int64_t size() const { return size_; }

 private:
  struct Waiting {
    Waiter* waiter;
    RoomWanted wanted;
    absl::Time deadline;
  };
  using Budgets = std::vector<const ByteBudget*>;

  // Takes out the first after `ticket` that isn't behind one of the short budgets, or whose time is
  // over; moves `ticket` there.
  std::optional<Waiting> TakeNext(uint64_t& ticket, const Budgets& short_budgets)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Puts back what TakeNext gave.
  void PutBack(Waiting waiting, std::optional<uint64_t> ticket) ABSL_LOCKS_EXCLUDED(mutex_);

  RunRegistry& registry_;
  const absl::Duration patience_;
  const Clock clock_;

  mutable Mutex mutex_;
  std::map<uint64_t, Waiting> waiting_ ABSL_GUARDED_BY(mutex_);  // by ticket
  uint64_t next_ticket_ ABSL_GUARDED_BY(mutex_) = 1;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::atomic<int64_t> size_ = 0;  // of waiting_
};

}  // namespace sis
