// Tells ThreadSanitizer of absl::Mutex. The installed Abseil is not instrumented, so without this all that such a mutex
// guards would look like a race. These definitions stand in front of the library's, call them, and report the order
// they make. What Abseil does inside itself is not seen: waiting by absl::CondVar, for one.
#include <dlfcn.h>
#include <sanitizer/tsan_interface.h>

#include <string>

#include "absl/base/options.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
}

namespace absl {
ABSL_NAMESPACE_BEGIN
namespace {

// The library's own member function. The suffix is what the Itanium ABI makes of its name and arguments.
template <typename Function>
Function Library(const char* suffix) {
#if ABSL_OPTION_USE_INLINE_NAMESPACE
#define SIS_TO_STRING(x) #x
#define SIS_VALUE_TO_STRING(x) SIS_TO_STRING(x)
  const std::string space = SIS_VALUE_TO_STRING(ABSL_OPTION_INLINE_NAMESPACE_NAME);
  const std::string prefix = "_ZN4absl" + std::to_string(space.size()) + space;
#else
  const std::string prefix = "_ZN4absl";
#endif
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, (prefix + suffix).c_str()));
}

using LockFunction = void (*)(Mutex*);

// The library evaluates the conditions of other waiters on its way, with the lock held.
class IgnoreReads {
 public:
  IgnoreReads() { AnnotateIgnoreReadsBegin(__FILE__, __LINE__); }
  ~IgnoreReads() { AnnotateIgnoreReadsEnd(__FILE__, __LINE__); }
};

}  // namespace

void Mutex::Lock() {
  static const auto lock = Library<LockFunction>("5Mutex4LockEv");
  lock(this);
  __tsan_acquire(this);
}

void Mutex::Unlock() {
  static const auto unlock = Library<LockFunction>("5Mutex6UnlockEv");
  __tsan_release(this);
  const IgnoreReads ignore;
  unlock(this);
}

void Mutex::ReaderLock() {
  static const auto lock = Library<LockFunction>("5Mutex10ReaderLockEv");
  lock(this);
  __tsan_acquire(this);
}

void Mutex::ReaderUnlock() {
  static const auto unlock = Library<LockFunction>("5Mutex12ReaderUnlockEv");
  __tsan_release(this);
  const IgnoreReads ignore;
  unlock(this);
}

void Mutex::Await(const Condition& condition) {
  static const auto await =
      Library<void (*)(Mutex*, const Condition&)>("5Mutex5AwaitERKNS0_9ConditionE");
  __tsan_release(this);
  {
    const IgnoreReads ignore;
    await(this, condition);
  }
  __tsan_acquire(this);
}

bool Mutex::AwaitWithTimeout(const Condition& condition, Duration timeout) {
  static const auto await = Library<bool (*)(Mutex*, const Condition&, Duration)>(
      "5Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE");
  __tsan_release(this);
  bool met;
  {
    const IgnoreReads ignore;
    met = await(this, condition, timeout);
  }
  __tsan_acquire(this);
  return met;
}

ABSL_NAMESPACE_END
}  // namespace absl
