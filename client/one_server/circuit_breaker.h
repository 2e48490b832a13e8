// Leaves a replica alone that gives no answer, so that it does not cost every call its timeout.
#pragma once

#include <functional>
#include <mutex>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace sis {

// Of one replica. Thread-safe.
class CircuitBreaker {
 public:
  using Ask = absl::FunctionRef<absl::Status()>;

  explicit CircuitBreaker(std::function<absl::Time()> clock = absl::Now)
      : clock_(std::move(clock)) {}

  // What `ask` comes to; what Admit says, without asking, if that is not OK.
  absl::Status Call(Ask ask, Ask probe);

  // Unavailable at once while the replica is left alone. When that is over, the first to come asks
  // it `probe`, a small question of little patience; the others go on without the replica until
  // that is answered.
  absl::Status Admit(Ask probe);

  // The replica gave no answer, with this status, to what it was asked so long ago.
  void Failed(const absl::Status& status, absl::Duration waited);

 private:
  absl::Status Heard(Ask ask);

  const std::function<absl::Time()> clock_;
  std::mutex mutex_;
  // Guarded by mutex_. InfinitePast: the replica is not left alone; InfiniteFuture: somebody is
  // probing it.
  absl::Time alone_until_ = absl::InfinitePast();
  absl::Status status_;
};

}  // namespace sis
