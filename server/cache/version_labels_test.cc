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

}  // namespace
}  // namespace sis
