#include "client/one_server/circuit_breaker.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/types/grpc_status.h"

namespace sis {
namespace {

// A replica that gave no answer is left alone for so many times as long as it was waited for, so
// that one which hangs costs little; but within these limits, so that one which comes back is seen.
constexpr double kTimesWaited = 10;
constexpr absl::Duration kShortest = absl::Seconds(1);
constexpr absl::Duration kLongest = absl::Seconds(10);

}  // namespace

absl::Status CircuitBreaker::Call(Ask ask, Ask probe) {
  if (absl::Status status = Admit(probe); !status.ok()) return status;
  return Heard(ask);
}

absl::Status CircuitBreaker::Admit(Ask probe) {
  {
    const std::lock_guard lock(mutex_);
    if (alone_until_ == absl::InfinitePast()) return absl::OkStatus();
    if (clock_() < alone_until_) {
      return absl::UnavailableError(
          absl::StrCat("left alone for a while, after ", status_.ToString()));
    }
    alone_until_ = absl::InfiniteFuture();
  }
  const absl::Status status = Heard(probe);
  // Whatever else it says, it is there.
  return IsUnreachable(status) ? status : absl::OkStatus();
}

void CircuitBreaker::Failed(const absl::Status& status, absl::Duration waited) {
  const absl::Duration alone = std::clamp(kTimesWaited * waited, kShortest, kLongest);
  const std::lock_guard lock(mutex_);
  status_ = status;
  alone_until_ = clock_() + alone;
}

absl::Status CircuitBreaker::Heard(Ask ask) {
  const absl::Time began = clock_();
  absl::Status status = ask();
  if (IsUnreachable(status)) {
    Failed(status, clock_() - began);
  } else {
    const std::lock_guard lock(mutex_);
    alone_until_ = absl::InfinitePast();
  }
  return status;
}

}  // namespace sis
