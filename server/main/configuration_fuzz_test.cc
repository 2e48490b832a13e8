// Any bytes as the file that --config names: an error that says in which line, or values that the
// server describes by a file that gives them again.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "server/main/configuration.h"

// The server's flags are those that files of this folder define. One of each type:
ABSL_FLAG(std::string, config, "", "");
ABSL_FLAG(bool, check, false, "");
ABSL_FLAG(std::string, listen, "127.0.0.1:50051", "");
ABSL_FLAG(int64_t, cache_bytes, 0, "");
ABSL_FLAG(int, max_runs, 1024, "");
ABSL_FLAG(double, share, 0.5, "");
ABSL_FLAG(bool, prefetch, true, "");
ABSL_FLAG(absl::Duration, patience, absl::Seconds(10), "");

namespace {

constexpr absl::string_view kFlags[] = {"listen", "cache_bytes", "max_runs",
                                        "share",  "prefetch",    "patience"};

void Require(bool condition) {
  if (!condition) std::abort();
}

// A file without a name on a disk.
class File {
 public:
  explicit File(absl::string_view contents) : file_(memfd_create("config", 0)) {
    Require(write(file_, contents.data(), contents.size()) ==
            static_cast<ssize_t>(contents.size()));
  }
  ~File() { close(file_); }
  std::string path() const { return absl::StrCat("/proc/self/fd/", file_); }

 private:
  const int file_;
};

absl::StatusOr<sis::Configuration> Load(const File& file) {
  std::string program = "sis_server", argument = absl::StrCat("--config=", file.path());
  char* arguments[] = {program.data(), argument.data(), nullptr};
  return sis::Configuration::Load(2, arguments, [](absl::string_view) { return std::string(); });
}

// Without where the values are from.
std::string Values() {
  std::string values;
  for (const absl::string_view flag : kFlags) {
    absl::StrAppend(&values, flag, " = ", absl::FindCommandLineFlag(flag)->CurrentValue(), "\n");
  }
  return values;
}

// The number behind "FILE:"; 0 if there is none.
int64_t LineIn(absl::string_view where, const File& file) {
  int64_t line = 0;
  if (!absl::ConsumePrefix(&where, absl::StrCat(file.path(), ":"))) return 0;
  where = where.substr(0, where.find_first_not_of("0123456789"));
  return absl::SimpleAtoi(where, &line) ? line : 0;
}

// Whether it names a line of the file. Values, which it repeats, may say the file's name too.
bool NamesLine(absl::string_view message, const File& file, int64_t lines) {
  for (size_t at = message.find(file.path()); at != message.npos;
       at = message.find(file.path(), at + 1)) {
    const int64_t line = LineIn(message.substr(at), file);
    if (line >= 1 && line <= lines) return true;
  }
  return false;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::FlagSaver defaults;
  const File file({reinterpret_cast<const char*>(data), size});
  const int64_t lines = 1 + std::count(data, data + size, '\n');
  const absl::StatusOr<sis::Configuration> configuration = Load(file);
  if (!configuration.ok()) {
    Require(absl::IsInvalidArgument(configuration.status()));
    Require(NamesLine(configuration.status().message(), file, lines));
    return 0;
  }
  for (const absl::string_view flag : kFlags) {
    const std::string source = configuration->SourceOf(flag);
    const int64_t line = LineIn(source, file);
    Require(source == "default" || (line >= 1 && line <= lines));
  }
  const std::string values = Values();
  const File described(configuration->Describe());
  Require(Load(described).ok());
  Require(Values() == values);
  return 0;
}
