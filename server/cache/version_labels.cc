#include "server/cache/version_labels.h"

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"

namespace sis {

absl::Status CheckVersionLabel(const VersionLabels& labels, uint64_t version,
                               absl::string_view label) {
  for (const auto& [other_version, other] : labels) {
    if (other_version == version && other != label) {
      return absl::AlreadyExistsError(absl::StrCat("label: '", label, "' for policy_version ",
                                                   version, ", whose label is '", other, "'"));
    }
    if (other == label && other_version != version) {
      return absl::AlreadyExistsError(absl::StrCat("label: '", label, "' for policy_version ",
                                                   version, ", but it names policy_version ",
                                                   other_version));
    }
  }
  return absl::OkStatus();
}

void AddVersionLabels(const VersionLabels& more, VersionLabels& labels) {
  if (more == labels) return;
  absl::flat_hash_set<absl::string_view> taken;
  for (const auto& [version, label] : labels) taken.insert(label);
  for (const auto& [version, label] : more) {
    if (taken.contains(label)) continue;
    if (labels.try_emplace(version, label).second) taken.insert(label);
  }
  while (labels.size() > kMaxVersionLabels) labels.erase(labels.begin());
}

}  // namespace sis
