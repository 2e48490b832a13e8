#include "server/segments/guarded_copy.h"

#include <setjmp.h>
#include <signal.h>

#include <atomic>
#include <cstring>

namespace sis {
namespace {

// Where this thread goes on after a SIGBUS; null outside of a copy.
thread_local sigjmp_buf* volatile after_fault = nullptr;

void OnBusError(int signal) {
  sigjmp_buf* const there = after_fault;
  if (there != nullptr) siglongjmp(*there, 1);
  // Not ours: the fault comes again when this returns, and ends the process.
  ::signal(signal, SIG_DFL);
}

bool InstallHandler() {
  struct sigaction action = {};
  action.sa_handler = OnBusError;
  // Jumping out of the handler then leaves nothing blocked, without a system call per copy.
  action.sa_flags = SA_NODEFER;
  sigemptyset(&action.sa_mask);
  return sigaction(SIGBUS, &action, nullptr) == 0;
}

}  // namespace

bool GuardedCopy(void* into, const void* from, size_t size) {
  static const bool installed = InstallHandler();
  if (!installed) return false;
  sigjmp_buf there;
  if (sigsetjmp(there, /*savemask=*/0) != 0) {
    after_fault = nullptr;
    return false;
  }
  after_fault = &there;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  std::memcpy(into, from, size);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  after_fault = nullptr;
  return true;
}

}  // namespace sis
