#include "server/main/descriptor_limit.h"

#include <sys/resource.h>

#include <algorithm>

#include "server/metrics/http_port.h"

namespace sis {
namespace {

constexpr rlim_t kEnough = 1 << 20;
// RocksDB's 512 files, the connections of the HTTP port, and some more for logs and files that
// are read again; of a small limit half.
constexpr rlim_t kReserve = 1024;
static_assert(512 + HttpPort::kMaxConnections + 128 <= kReserve);

}  // namespace

void RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = std::max(limit.rlim_cur, std::min(limit.rlim_max, kEnough));
  setrlimit(RLIMIT_NOFILE, &limit);
}

int FirstReservedDescriptor() {
  rlimit limit{};
  rlim_t most = kEnough;
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) most = std::min(most, limit.rlim_cur);
  return static_cast<int>(most - std::min(most / 2, kReserve));
}

}  // namespace sis
