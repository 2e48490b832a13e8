#include "server/shared_memory/shared_segment.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "server/shared_memory/guarded_access.h"

namespace sis {
namespace {

bool IsLinked(const std::string& name) {
  const int file = shm_open(name.c_str(), O_RDWR, 0);
  if (file >= 0) close(file);
  return file >= 0;
}

std::unique_ptr<SharedSegment> MakeSegment(uint64_t bytes) {
  absl::StatusOr<std::unique_ptr<SharedSegment>> segment = SharedSegment::Make(bytes);
  EXPECT_TRUE(segment.ok()) << segment.status();
  return *std::move(segment);
}

TEST(SegmentTest, IsZeroWholePagesAndOnlyItsUsers) {
  const auto segment = MakeSegment(1);
  EXPECT_EQ(segment->size(), sysconf(_SC_PAGESIZE));
  std::vector<char> bytes(segment->size(), 'x');
  segment->Read(0, bytes.size(), bytes.data());
  EXPECT_EQ(bytes, std::vector<char>(bytes.size(), 0));
  struct stat object;
  ASSERT_EQ(stat(("/dev/shm" + segment->object()).c_str(), &object), 0);
  EXPECT_EQ(object.st_mode & 0777, 0600);
}

TEST(SegmentTest, NamesAreDifferentAndLong) {
  std::set<std::string> digits;
  for (int i = 0; i < 100; ++i) {
    const auto segment = MakeSegment(1);
    EXPECT_EQ(segment->object().size(), 5 + 32);
    EXPECT_EQ(segment->object().substr(0, 5), "/sis-");
    EXPECT_EQ(segment->name().size(), 32);
    // Who sees the one does not know the other.
    digits.insert(segment->object().substr(5));
    digits.insert(segment->name());
  }
  EXPECT_EQ(digits.size(), 200);
}

TEST(SegmentTest, SharesWithWhoMapsIt) {
  const auto segment = MakeSegment(10000);
  const int file = shm_open(segment->object().c_str(), O_RDWR, 0);
  ASSERT_GE(file, 0);
  void* memory = mmap(nullptr, segment->size(), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  ASSERT_NE(memory, MAP_FAILED);
  char* bytes = static_cast<char*>(memory);
  bytes[9999] = 'a';
  char read = 0;
  segment->Read(9999, 1, &read);
  EXPECT_EQ(read, 'a');
  segment->Write(5000, 3, "xyz");
  EXPECT_EQ(std::string(bytes + 5000, 3), "xyz");
  munmap(memory, segment->size());
}

TEST(SegmentTest, AFileThatIsCutOffReadsAsZeros) {
  constexpr size_t kBytes = 1 << 20;
  constexpr size_t kLeft = kBytes / 4;
  const auto segment = MakeSegment(kBytes);
  const std::string x(kBytes, 'x');
  segment->Write(0, x.size(), x.data());
  ASSERT_EQ(truncate(("/dev/shm" + segment->object()).c_str(), kLeft), 0);
  std::string read(kBytes, 'y');
  segment->Read(0, read.size(), read.data());
  EXPECT_EQ(read, std::string(kLeft, 'x') + std::string(kBytes - kLeft, '\0'));
  segment->Write(0, x.size(), x.data());
  // What is there is as before.
  const auto other = MakeSegment(kBytes);
  other->Write(0, x.size(), x.data());
  other->Read(0, read.size(), read.data());
  EXPECT_EQ(read, x);
}

TEST(SegmentTest, SoItDoesInPlace) {
  constexpr size_t kBytes = 1 << 20;
  const auto segment = MakeSegment(kBytes);
  const std::string x(kBytes, 'x');
  segment->Write(0, x.size(), x.data());
  ASSERT_EQ(truncate(("/dev/shm" + segment->object()).c_str(), kBytes / 2), 0);
  const GuardedAccess guard(segment->mapping());
  char first;
  segment->Read(0, 1, &first);  // which has a guard of its own
  const std::span<const char> bytes = segment->mapping();
  EXPECT_EQ(std::string(bytes.begin(), bytes.end()),
            std::string(kBytes / 2, 'x') + std::string(kBytes / 2, '\0'));
}

TEST(SegmentTest, SeveralThreadsMeetTheEnd) {
  constexpr size_t kBytes = 1 << 20;
  for (int round = 0; round < 20; ++round) {
    const auto segment = MakeSegment(kBytes);
    std::vector<std::thread> threads;
    ASSERT_EQ(truncate(("/dev/shm" + segment->object()).c_str(), 0), 0);
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&] {
        std::string bytes(kBytes, 'y');
        segment->Read(0, bytes.size(), bytes.data());
        EXPECT_EQ(bytes, std::string(kBytes, '\0'));
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

TEST(SegmentDeathTest, OtherBusErrorsStayDeadly) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto segment = MakeSegment(1);
  char byte;
  segment->Read(0, 1, &byte);
  const int file = shm_open(segment->object().c_str(), O_RDWR, 0);
  auto* memory =
      static_cast<volatile char*>(mmap(nullptr, segment->size(), PROT_READ, MAP_SHARED, file, 0));
  ASSERT_EQ(ftruncate(file, 0), 0);
  EXPECT_DEATH(memory[0], "");
  close(file);
}

// As the kernel sends it to who touches a byte of the mapping.
void SendBusError(int code, const std::span<char>& mapping) {
  const GuardedAccess guard(mapping);
  siginfo_t info = {};
  info.si_signo = SIGBUS;
  info.si_code = code;
  info.si_addr = mapping.data();
  if (syscall(SYS_rt_tgsigqueueinfo, getpid(), gettid(), SIGBUS, &info) != 0) _exit(1);
}

TEST(SegmentDeathTest, MemoryErrorsOfTheHardwareStayDeadly) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto segment = MakeSegment(1);
  SendBusError(BUS_ADRERR, segment->mapping());  // is outlived
  for (const int code : {BUS_MCEERR_AR, BUS_MCEERR_AO}) {
    EXPECT_EXIT(SendBusError(code, segment->mapping()), testing::KilledBySignal(SIGBUS), "");
  }
}

TEST(SegmentTest, GoesWithTheObject) {
  std::string name;
  {
    const auto segment = MakeSegment(1);
    name = segment->object();
    EXPECT_TRUE(IsLinked(name));
  }
  EXPECT_FALSE(IsLinked(name));
}

TEST(SegmentTest, NoMoreThanThereIs) {
  EXPECT_EQ(SharedSegment::Make(0).status().code(), absl::StatusCode::kInvalidArgument);
  for (const uint64_t bytes : {uint64_t{1} << 60, uint64_t{1} << 63, UINT64_MAX}) {
    EXPECT_EQ(SharedSegment::Make(bytes).status().code(), absl::StatusCode::kResourceExhausted)
        << bytes;
  }
}

TEST(SegmentTest, OnlySegmentsOfTheDeadAreUnlinked) {
  int names[2];
  ASSERT_EQ(pipe(names), 0);
  const pid_t child = fork();
  if (child == 0) {
    const auto segment = SharedSegment::Make(1);
    if (!segment.ok()) _exit(1);
    const std::string& name = (*segment)->object();
    if (write(names[1], name.data(), name.size()) != static_cast<ssize_t>(name.size())) _exit(1);
    pause();
  }
  std::string abandoned(5 + 32, '\0');
  ASSERT_EQ(read(names[0], abandoned.data(), abandoned.size()), abandoned.size());
  const auto mine = MakeSegment(1);
  SharedSegment::UnlinkAbandoned();
  EXPECT_TRUE(IsLinked(abandoned));
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_GE(SharedSegment::UnlinkAbandoned(), 1);
  EXPECT_FALSE(IsLinked(abandoned));
  EXPECT_TRUE(IsLinked(mine->object()));
}

}  // namespace
}  // namespace sis
