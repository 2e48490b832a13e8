// RocksDB on a file system that is full for a while: a small one of the test's own.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/testing/backing.h"
#include "server/testing/stored_entries.h"

namespace sis {
namespace {

// Why there is none; empty if the path is a file system of 400 MiB now, for this process alone.
std::string MountSmallFiles(const std::string& path) {
  const std::string user = absl::StrCat("0 ", getuid(), " 1"),
                    group = absl::StrCat("0 ", getgid(), " 1");
  // Before there are other threads, which would not see it.
  if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return absl::StrCat("unshare: ", strerror(errno));
  std::ofstream("/proc/self/setgroups") << "deny";
  std::ofstream("/proc/self/uid_map") << user;
  std::ofstream("/proc/self/gid_map") << group;
  if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      mount("tmpfs", path.c_str(), "tmpfs", 0, "size=400m") != 0) {
    return absl::StrCat("mount: ", strerror(errno));
  }
  return "";
}

// Takes what the file system has, but for so many bytes.
class Filler {
 public:
  Filler(const std::string& directory, int64_t but_for) : path_(directory + "/filler") {
    const int file = open(path_.c_str(), O_CREAT | O_WRONLY, 0600);
    int error = 0;
    do {
      struct statvfs files;
      EXPECT_EQ(statvfs(directory.c_str(), &files), 0);
      const int64_t free =
          static_cast<int64_t>(files.f_bavail) * static_cast<int64_t>(files.f_frsize);
      error = posix_fallocate(file, 0, free - but_for);
    } while (error == ENOSPC);  // the store has written meanwhile
    EXPECT_EQ(error, 0);
    close(file);
  }
  ~Filler() { unlink(path_.c_str()); }
  Filler(const Filler&) = delete;
  Filler& operator=(const Filler&) = delete;

 private:
  const std::string path_;
};

class FullDiskTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    directory_.emplace();
    why_none_ = MountSmallFiles(directory_->path());
  }
  static void TearDownTestSuite() {
    if (why_none_.empty()) umount2(directory_->path().c_str(), MNT_DETACH);
    directory_.reset();
  }
  void SetUp() override {
    if (!why_none_.empty()) GTEST_SKIP() << "no file system of its own: " << why_none_;
  }
  void TearDown() override { std::filesystem::remove_all(folder()); }

  static const std::string& path() { return directory_->path(); }
  static std::string folder() { return path() + "/db"; }
  static std::string description() { return absl::StrCat("rocksdb:", folder()); }

 private:
  inline static std::optional<TemporaryDirectory> directory_;
  inline static std::string why_none_;
};

TEST_F(FullDiskTest, IsAnErrorWhileItLastsAndCostsNothing) {
  // The first time with records that only RocksDB's log has; the second time its buffer is empty.
  for (const std::string time : {"first", "second"}) {
    const auto name = [&](std::string_view what) {
      return Sequence(absl::StrCat(time, " ", std::string(what)));
    };
    auto store = *OpenStore(description());
    if (time == "first") {
      for (const std::string id : {"early", "other", "third"}) {
        ASSERT_TRUE(AppendOne(*store, name(id), 0, Block(0, "rows")).ok());
      }
    } else {
      // What was stored the first time.
      EXPECT_EQ(store->Read(Sequence("first early"))->entries[0], Block(0, "rows"));
      EXPECT_EQ(store->Read(Sequence("first other"))->dropped, kReleased);
      EXPECT_EQ(store->Read(Sequence("first third"))->dropped, kReleased);
      EXPECT_EQ(store->GetRun("run")->policy_version, 2);
    }
    const uint64_t version = time == "first" ? 1 : 3;
    {
      const Filler nearly_full(path(), 100 << 20);
      const absl::Status added = AppendOne(*store, name("new"), 0, Block(0, "rows"));
      EXPECT_TRUE(absl::IsResourceExhausted(added)) << added;
      EXPECT_THAT(std::string(added.message()), ::testing::HasSubstr("bytes free"));
      EXPECT_TRUE(absl::IsNotFound(store->Read(name("new")).status()));
      // What gives room back goes on, and what is small.
      EXPECT_TRUE(DropOne(*store, name("other"), kReleased).ok());
      EXPECT_TRUE(store->RemoveDropped(name("other"), absl::Now() + absl::Hours(24)).ok());
      EXPECT_TRUE(store->PutRun({"run", 1, version, "config"}).ok());
    }
    {
      const Filler full(path(), 0);
      for (int again = 0; again < 3; ++again) {
        EXPECT_TRUE(absl::IsResourceExhausted(
            AppendOne(*store, name("new"), 0, Block(0, std::string(10'000, 'x')))));
        EXPECT_TRUE(absl::IsResourceExhausted(DropOne(*store, name("third"), kReleased)));
        EXPECT_TRUE(
            absl::IsResourceExhausted(store->PutRun({"run", 1, version + 1, "config"}).status()));
        EXPECT_EQ(store->GetRun("run")->policy_version, version);
      }
    }
    // Others have filled the disk while no server ran: what is there can be read.
    store.reset();
    {
      const Filler full(path(), 0);
      store = *OpenStore(description());
      EXPECT_EQ(store->Read(Sequence("first early"))->entries[0], Block(0, "rows"));
      EXPECT_TRUE(absl::IsResourceExhausted(store->CanAppend()));
      EXPECT_TRUE(absl::IsResourceExhausted(AppendOne(*store, name("new"), 0, Block(0, "rows"))));
      EXPECT_TRUE(absl::IsResourceExhausted(DropOne(*store, name("third"), kReleased)));
    }
    // At once.
    EXPECT_TRUE(AppendOne(*store, name("new"), 0, Block(0, "rows")).ok());
    EXPECT_TRUE(DropOne(*store, name("third"), kReleased).ok());
    EXPECT_TRUE(store->PutRun({"run", 1, version + 1, "config"}).ok());
  }
  // With a reserve what removes goes on, at a full disk and after a start there.
  auto store = *OpenStore(description());
  EXPECT_TRUE(store->CanAppend().ok());
  EXPECT_TRUE(AppendOne(*store, Sequence("kept"), 0, Block(0, "rows")).ok());
  store.reset();
  {
    const Filler full(path(), 0);
    store = *OpenStore(description());
    EXPECT_EQ(store->Read(Sequence("kept"))->entries[0], Block(0, "rows"));
    EXPECT_TRUE(absl::IsResourceExhausted(store->CanAppend()));
    EXPECT_TRUE(
        absl::IsResourceExhausted(AppendOne(*store, Sequence("more"), 0, Block(0, "rows"))));
    EXPECT_TRUE(DropOne(*store, Sequence("kept"), kReleased).ok());
    EXPECT_TRUE(store->RemoveDropped(Sequence("kept"), absl::Now() + absl::Hours(24)).ok());
    EXPECT_TRUE(store->PutRun({"run", 2, 0, ""}).ok());
  }
  EXPECT_TRUE(store->CanAppend().ok());
  EXPECT_TRUE(AppendOne(*store, Sequence("more"), 0, Block(0, "rows")).ok());
}

// Nothing is written there any more that would have RocksDB merge tables by itself.
TEST_F(FullDiskTest, WhatIsRemovedGivesItsRoomBack) {
  const Filler others(path(), 320 << 20);
  auto store = *OpenStore(description());
  const auto name = [](int number) { return Sequence(absl::StrCat(number)); };
  for (const bool with_its_run : {false, true}) {
    SCOPED_TRACE(with_its_run);
    const uint64_t incarnation = Sequence("").incarnation;
    int appended = 0;
    absl::Status full = store->CanAppend();
    // Until RocksDB has nothing more to do.
    do {
      while (full.ok()) {
        full = AppendOne(*store, name(appended++), 0, Block(0, std::string(200'000, 'x')));
      }
      absl::SleepFor(absl::Milliseconds(200));
      full = store->CanAppend();
    } while (full.ok());
    EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
    if (with_its_run) {
      const absl::Status removed = store->DropIncarnations("run", incarnation, incarnation + 1);
      ASSERT_TRUE(removed.ok()) << removed;
    } else {
      for (int number = 0; number < appended; ++number) {
        ASSERT_TRUE(DropOne(*store, name(number), kReleased).ok());
        ASSERT_TRUE(store->RemoveDropped(name(number), absl::Now() + absl::Hours(24)).ok());
      }
    }
    while (!store->CanAppend().ok()) absl::SleepFor(absl::Milliseconds(10));
    const absl::Status added = AppendOne(*store, Sequence("new"), 0, Block(0, "rows"));
    EXPECT_TRUE(added.ok()) << added;
    EXPECT_TRUE(store->Read(Sequence("new")).ok());
    if (!with_its_run) {
      EXPECT_EQ(store->Read(name(0))->dropped, kReleased);
    }
    const absl::Status dropped = store->DropIncarnations("run", incarnation, incarnation + 1);
    ASSERT_TRUE(dropped.ok()) << dropped;
  }
}

}  // namespace
}  // namespace sis
