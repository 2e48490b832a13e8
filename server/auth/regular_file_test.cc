#include "server/auth/regular_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <string>

namespace sis {
namespace {

using ::testing::HasSubstr;

std::string Path(const std::string& name) { return testing::TempDir() + "/" + name; }

void Write(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::string WhyNot(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadRegularFile(path);
  EXPECT_TRUE(absl::IsInvalidArgument(text.status())) << text.status();
  EXPECT_THAT(std::string(text.status().message()), HasSubstr(path + " can't be read: "));
  return std::string(text.status().message());
}

TEST(RegularFileTest, ReturnsTheContent) {
  for (const size_t size : {0, 1, 65'535, 65'536, 65'537, 1 << 20}) {
    std::string text(size, '\0');
    for (size_t i = 0; i < size; ++i) text[i] = static_cast<char>(i * 31);
    Write(Path("file"), text);
    EXPECT_EQ(*ReadRegularFile(Path("file")), text);
  }
  EXPECT_FALSE(ReadRegularFile("/proc/self/status")->empty()) << "of which stat says 0 bytes";
}

TEST(RegularFileTest, NothingElseIsRead) {
  EXPECT_THAT(WhyNot(Path("nowhere")), HasSubstr("No such file"));
  EXPECT_THAT(WhyNot(testing::TempDir()), HasSubstr("not a regular file"));
  EXPECT_THAT(WhyNot("/dev/zero"), HasSubstr("not a regular file"));
  ASSERT_EQ(mkfifo(Path("fifo").c_str(), 0600), 0);
  EXPECT_THAT(WhyNot(Path("fifo")), HasSubstr("not a regular file")) << "nobody writes to it";
}

}  // namespace
}  // namespace sis
