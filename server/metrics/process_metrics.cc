#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <system_error>

#include "server/metrics/metric_families.h"

namespace sis {
namespace {

using enum prometheus::MetricType;

// Returns the fields of /proc/self/stat after the process name, which may contain anything. The
// first one is field 3.
std::vector<std::string> StatFields() {
  std::ifstream file("/proc/self/stat");
  const std::string line{std::istreambuf_iterator<char>(file), {}};
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return {};
  std::istringstream rest(line.substr(name_end + 1));
  return {std::istream_iterator<std::string>(rest), {}};
}

// Returns seconds since 1970-01-01; 0 if unknown.
double BootTime() {
  std::ifstream file("/proc/stat");
  for (std::string word; file >> word;) {
    double seconds = 0;
    if (word == "btime" && file >> seconds) return seconds;
  }
  return 0;
}

int64_t OpenFiles() {
  std::error_code error;
  int64_t count = 0;
  for (auto entry = std::filesystem::directory_iterator("/proc/self/fd", error);
       !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    ++count;
  }
  return count;
}

}  // namespace

MetricFamilies ProcessMetrics() {
  const auto ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  const auto page = static_cast<double>(sysconf(_SC_PAGESIZE));
  MetricFamilies families;
  if (const std::vector<std::string> fields = StatFields(); fields.size() > 21) {
    // proc(5) numbers the fields from 1; the vector begins with field 3.
    const auto field = [&](size_t number) { return std::stod(fields[number - 3]); };
    families.push_back(Family("process_cpu_seconds_total", "Processor time, of user and system.",
                              Counter, (field(14) + field(15)) / ticks));
    families.push_back(Family("process_start_time_seconds", "Start, in seconds since 1970.", Gauge,
                              BootTime() + field(22) / ticks));
    families.push_back(Family("process_virtual_memory_bytes", "Virtual memory.", Gauge, field(23)));
    families.push_back(
        Family("process_resident_memory_bytes", "Resident memory.", Gauge, field(24) * page));
  }
  families.push_back(Family("process_open_fds", "Open file descriptors.", Gauge, OpenFiles()));
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    families.push_back(
        Family("process_max_fds", "The most open file descriptors.", Gauge, limit.rlim_cur));
  }
  return families;
}

}  // namespace sis
