// Labels of policy versions: the names that engines give the weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace sis {

inline constexpr size_t kMaxVersionLabels = 1024;     // per run
inline constexpr size_t kMaxVersionLabelBytes = 128;  // the maximum; the minimum is 1

// By version; no label names two versions.
using VersionLabels = std::map<uint64_t, std::string>;

// Returns OK if the version has this label, or if neither version nor label is taken; otherwise
// AlreadyExists.
absl::Status CheckVersionLabel(const VersionLabels& labels, uint64_t version,
                               absl::string_view label);
// Adds those of `more` that contradict none of `labels`, and keeps the last kMaxVersionLabels.
void AddVersionLabels(const VersionLabels& more, VersionLabels& labels);

}  // namespace sis
