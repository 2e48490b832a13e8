#include "server/shared_memory/guarded_access.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

namespace sis {
namespace {

// What this thread may touch; null if nothing.
thread_local const std::span<char>* volatile guarded = nullptr;
uintptr_t page_bytes = 0;

// Puts zeros where there is no file any more. Whoever touched it then goes on.
bool Repair(uintptr_t address) {
  const std::span<char>* const mapping = guarded;
  if (mapping == nullptr) return false;
  const auto begin = reinterpret_cast<uintptr_t>(mapping->data());
  const uintptr_t end = begin + mapping->size();
  if (address < begin || address >= end) return false;
  const uintptr_t page = address / page_bytes * page_bytes;  // a mapping begins with a page
  return mmap(mapping->data() + (page - begin), end - page, PROT_READ | PROT_WRITE,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
}

void OnBusError(int signal, siginfo_t* info, void*) {
  const int error = errno;
  // A hardware memory error (BUS_MCEERR_AR, BUS_MCEERR_AO) has lost data that nobody cut off.
  const bool cut_off = info->si_code == BUS_ADRERR;
  if (!cut_off || !Repair(reinterpret_cast<uintptr_t>(info->si_addr))) {
    ::signal(signal, SIG_DFL);
    raise(signal);  // ends the process when this returns
  }
  errno = error;
}

bool InstallHandler() {
  page_bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  struct sigaction action = {};
  action.sa_sigaction = OnBusError;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  return sigaction(SIGBUS, &action, nullptr) == 0;
}

}  // namespace

GuardedAccess::GuardedAccess(std::span<char> mapping) : mapping_(mapping), outer_(guarded) {
  [[maybe_unused]] static const bool installed = InstallHandler();
  guarded = &mapping_;
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

GuardedAccess::~GuardedAccess() {
  std::atomic_signal_fence(std::memory_order_seq_cst);
  guarded = outer_;
}

}  // namespace sis
