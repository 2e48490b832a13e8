// A library for LD_PRELOAD that makes every timeout of a wait 25 times as long. A wait still ends
// at its event.
//
// With it a test distinguishes a program that waits for a timer from one that waits for an event,
// without measuring time. The clock itself is right; only timeouts are late.

// Otherwise the system's headers define the functions below.
#undef _FORTIFY_SOURCE

#include <dlfcn.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <time.h>

#include <algorithm>
#include <climits>
#include <cstdarg>
#include <cstdint>

namespace {

constexpr int64_t kTimesLate = 25;
constexpr int64_t kSecond = 1'000'000'000;

int64_t Nanoseconds(const timespec& time) { return time.tv_sec * kSecond + time.tv_nsec; }

timespec Late(const timespec& left) {
  const int64_t late = Nanoseconds(left) > INT64_MAX / 2 / kTimesLate
                           ? INT64_MAX / 2
                           : std::max<int64_t>(0, Nanoseconds(left)) * kTimesLate;
  return {.tv_sec = late / kSecond, .tv_nsec = late % kSecond};
}

timespec LateUntil(clockid_t clock, const timespec& until) {
  // Larger times mean "never".
  if (until.tv_sec > INT64_MAX / 4 / kSecond) return until;
  timespec now;
  clock_gettime(clock, &now);
  const timespec left = {.tv_sec = 0, .tv_nsec = Nanoseconds(until) - Nanoseconds(now)};
  const int64_t late = Nanoseconds(now) + Nanoseconds(Late(left));
  return {.tv_sec = late / kSecond, .tv_nsec = late % kSecond};
}

int LateMilliseconds(int timeout) {
  return timeout > INT_MAX / kTimesLate ? INT_MAX : timeout * static_cast<int>(kTimesLate);
}

// Returns the function that this library replaces.
template <typename Function>
Function* Next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const timespec* until) {
  static const auto next = Next<decltype(pthread_cond_clockwait)>("pthread_cond_clockwait");
  const timespec late = LateUntil(clock, *until);
  return next(condition, mutex, clock, &late);
}

int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                           const timespec* until) {
  static const auto next = Next<decltype(pthread_cond_timedwait)>("pthread_cond_timedwait");
  const timespec late = LateUntil(CLOCK_REALTIME, *until);
  return next(condition, mutex, &late);
}

int nanosleep(const timespec* duration, timespec* left) {
  static const auto next = Next<decltype(nanosleep)>("nanosleep");
  const timespec late = Late(*duration);
  return next(&late, left);
}

int clock_nanosleep(clockid_t clock, int flags, const timespec* time, timespec* left) {
  static const auto next = Next<decltype(clock_nanosleep)>("clock_nanosleep");
  const timespec late = flags == TIMER_ABSTIME ? LateUntil(clock, *time) : Late(*time);
  return next(clock, flags, &late, left);
}

int poll(pollfd* files, nfds_t count, int timeout) {
  static const auto next = Next<decltype(poll)>("poll");
  return next(files, count, LateMilliseconds(timeout));
}

int epoll_wait(int poller, epoll_event* events, int most, int timeout) {
  static const auto next = Next<decltype(epoll_wait)>("epoll_wait");
  return next(poller, events, most, LateMilliseconds(timeout));
}

// Abseil waits by system calls.
long syscall(long number, ...) {
  static const auto next = Next<decltype(syscall)>("syscall");
  va_list list;
  va_start(list, number);
  void* arguments[6];
  for (void*& argument : arguments) argument = va_arg(list, void*);
  va_end(list);
  timespec late;
  const auto* time = static_cast<const timespec*>(arguments[3]);
  const auto flags = reinterpret_cast<intptr_t>(arguments[1]);
  const auto operation = flags & FUTEX_CMD_MASK;
  if (number == SYS_futex && time != nullptr &&
      (operation == FUTEX_WAIT || operation == FUTEX_WAIT_BITSET)) {
    const bool is_real = (flags & FUTEX_CLOCK_REALTIME) != 0;
    late = operation == FUTEX_WAIT ? Late(*time)
                                   : LateUntil(is_real ? CLOCK_REALTIME : CLOCK_MONOTONIC, *time);
    arguments[3] = &late;
  }
  return next(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4],
              arguments[5]);
}

}  // extern "C"
