#include "server/shared_memory/shared_segment.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/shared_memory/guarded_access.h"

namespace sis {
namespace {

// Where shm_open(3) keeps its objects.
constexpr char kObjects[] = "/dev/shm";
constexpr absl::string_view kPrefix = "/sis-";
constexpr size_t kRandomBytes = 16;

// glibc leaves longer copies to one instruction, "rep movsb". On AMD's processors that takes five
// times as long where the target is up to 31 bytes ahead of the source, whole pages aside, as a
// large vector is of an array that begins a page (sourceware.org/bugzilla, 30994).
void CopyInPieces(void* into, const void* from, size_t size) {
  constexpr size_t kPiece = 4096;
  for (size_t done = 0; done < size; done += kPiece) {
    std::memcpy(static_cast<char*>(into) + done, static_cast<const char*>(from) + done,
                std::min(kPiece, size - done));
  }
}

absl::StatusOr<std::string> RandomDigits() {
  std::array<char, kRandomBytes> random;
  if (getrandom(random.data(), random.size(), 0) != static_cast<ssize_t>(random.size())) {
    return absl::InternalError(absl::StrCat("getrandom: ", std::strerror(errno)));
  }
  return absl::BytesToHexString(absl::string_view(random.data(), random.size()));
}

bool IsObjectName(absl::string_view name) {
  return name.size() == kPrefix.size() + 2 * kRandomBytes &&
         name.substr(0, kPrefix.size()) == kPrefix &&
         std::ranges::all_of(name.substr(kPrefix.size()), absl::ascii_isxdigit);
}

// Locks the object for its maker. False if somebody who looks for abandoned objects came first.
bool TakeLock(int file) {
  struct stat object;
  return flock(file, LOCK_EX | LOCK_NB) == 0 && fstat(file, &object) == 0 && object.st_nlink > 0;
}

}  // namespace

uint64_t SharedSegment::WholePages(uint64_t bytes) {
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return bytes / page * page + (bytes % page == 0 ? 0 : page);
}

absl::StatusOr<std::unique_ptr<SharedSegment>> SharedSegment::Make(uint64_t bytes) {
  if (bytes == 0) return absl::InvalidArgumentError("bytes: 0, must be at least 1");
  const uint64_t size = WholePages(bytes);
  const auto refused = [size](absl::string_view call, int error) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot make a segment of ", size,
                                                     " bytes: ", call, ": ", std::strerror(error)));
  };
  if (size < bytes || size > INT64_MAX) return refused("size", EFBIG);
  absl::StatusOr<std::string> name = RandomDigits();
  if (!name.ok()) return name.status();
  const absl::StatusOr<std::string> digits = RandomDigits();
  if (!digits.ok()) return digits.status();
  std::string object = absl::StrCat(kPrefix, *digits);
  const int file = shm_open(object.c_str(), O_RDWR | O_CREAT | O_EXCL, S_IRUSR | S_IWUSR);
  if (file < 0) return refused("shm_open", errno);
  // Takes the memory now: without it a write would be a SIGBUS when there is none left.
  int error = TakeLock(file) ? posix_fallocate(file, 0, static_cast<off_t>(size)) : EBUSY;
  void* memory = MAP_FAILED;
  if (error == 0) {
    // Maps it now too: else the first pass over it is half as fast.
    memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
    if (memory == MAP_FAILED) error = errno;
  }
  if (error != 0) {
    shm_unlink(object.c_str());
    close(file);
    return refused("memory", error);
  }
  return std::unique_ptr<SharedSegment>(new SharedSegment(*std::move(name), std::move(object), file,
                                                          static_cast<char*>(memory), size));
}

int SharedSegment::UnlinkAbandoned() {
  int unlinked = 0;
  std::error_code unreadable;
  for (const auto& object : std::filesystem::directory_iterator(kObjects, unreadable)) {
    const std::string name = absl::StrCat("/", object.path().filename().string());
    if (!IsObjectName(name)) continue;
    const int file = shm_open(name.c_str(), O_RDWR, 0);
    if (file < 0) continue;  // of another user, or gone
    if (flock(file, LOCK_EX | LOCK_NB) == 0) unlinked += shm_unlink(name.c_str()) == 0;
    close(file);
  }
  return unlinked;
}

SharedSegment::SharedSegment(std::string name, std::string object, int file, char* memory,
                             size_t size)
    : name_(std::move(name)),
      object_(std::move(object)),
      file_(file),
      memory_(memory),
      size_(size) {}

SharedSegment::~SharedSegment() {
  Unlink();
  munmap(memory_, size_);
  close(file_);
}

void SharedSegment::Unlink() { shm_unlink(object_.c_str()); }

void SharedSegment::Read(size_t offset, size_t size, void* into) const {
  if (size == 0) return;  // an empty array may be nowhere
  const GuardedAccess guard(mapping());
  CopyInPieces(into, memory_ + offset, size);
}

void SharedSegment::Write(size_t offset, size_t size, const void* from) {
  if (size == 0) return;
  const GuardedAccess guard(mapping());
  CopyInPieces(memory_ + offset, from, size);
}

}  // namespace sis
