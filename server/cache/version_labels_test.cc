#include "server/cache/version_labels.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace sis {
namespace {

// Labels of versions [first, end).
VersionLabels LabelsOf(uint64_t first, uint64_t end) {
  VersionLabels labels;
  for (uint64_t version = first; version < end; ++version) {
    labels[version] = absl::StrCat("step-", version);
  }
  return labels;
}

TEST(VersionLabelsTest, TheLastStay) {
  VersionLabels labels = LabelsOf(100, 100 + kMaxVersionLabels);
  AddVersionLabels({{5, "too old"}}, labels);
  EXPECT_EQ(labels, LabelsOf(100, 100 + kMaxVersionLabels));
  AddVersionLabels(LabelsOf(90, 110 + kMaxVersionLabels), labels);
  EXPECT_EQ(labels, LabelsOf(110, 110 + kMaxVersionLabels));
}

TEST(VersionLabelsTest, LabelsThatAreThereStay) {
  VersionLabels labels = {{3, "a"}, {7, "b"}};
  AddVersionLabels({{3, "x"}, {4, "b"}, {5, "c"}}, labels);
  EXPECT_EQ(labels, (VersionLabels{{3, "a"}, {5, "c"}, {7, "b"}}));
}

TEST(VersionLabelsTest, AreTakenAsTheyWereEncoded) {
  for (const VersionLabels& labels :
       {VersionLabels(), VersionLabels{{UINT64_MAX, std::string("\0\xff", 2)}},
        VersionLabels{{0, "a"}, {1, std::string(kMaxVersionLabelBytes, 'x')}},
        LabelsOf(0, kMaxVersionLabels)}) {
    const std::string bytes = EncodeVersionLabels(labels);
    const std::string followed = bytes + "rest";
    std::string_view rest = followed;
    VersionLabels taken;
    EXPECT_TRUE(TakeVersionLabels(rest, taken));
    EXPECT_EQ(taken, labels);
    EXPECT_EQ(rest, "rest");
    for (size_t size = 0; size < bytes.size(); size += 1 + bytes.size() / 500) {
      std::string_view cut = std::string_view(bytes).substr(0, size);
      EXPECT_FALSE(TakeVersionLabels(cut, taken = {})) << size;
    }
  }
}

TEST(VersionLabelsTest, OtherBytesAreNoLabels) {
  const auto takes = [](const VersionLabels& labels) {
    const std::string bytes = EncodeVersionLabels(labels);
    std::string_view rest = bytes;
    VersionLabels taken;
    return TakeVersionLabels(rest, taken);
  };
  EXPECT_TRUE(takes({{0, "a"}}));
  EXPECT_FALSE(takes({{0, ""}}));
  EXPECT_FALSE(takes({{0, std::string(kMaxVersionLabelBytes + 1, 'x')}}));
  EXPECT_FALSE(takes(LabelsOf(0, kMaxVersionLabels + 1)));
  std::string twice = EncodeVersionLabels({{1, "a"}, {2, "b"}});
  twice[2 + 8 + 1 + 1] = 1;  // the second version
  std::string_view rest = twice;
  VersionLabels taken;
  EXPECT_FALSE(TakeVersionLabels(rest, taken));
}

}  // namespace
}  // namespace sis
