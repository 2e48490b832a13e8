// Permissions of callers: the only place that maps methods to roles.
#pragma once

#include <array>
#include <optional>
#include <utility>

#include "absl/strings/string_view.h"

namespace sis {

// Each role includes the permissions of the ones before it.
enum class Role { kViewer, kWorker, kTrainer, kAdmin };

inline constexpr std::array<std::pair<absl::string_view, Role>, 4> kRoleNames = {{
    {"viewer", Role::kViewer},
    {"worker", Role::kWorker},
    {"trainer", Role::kTrainer},
    {"admin", Role::kAdmin},
}};

constexpr std::optional<Role> ParseRole(absl::string_view name) {
  for (const auto& [known, role] : kRoleNames) {
    if (known == name) return role;
  }
  return std::nullopt;
}

constexpr absl::string_view NameOf(Role role) {
  return kRoleNames[static_cast<size_t>(role)].first;
}

// The lowest role that may call each method of RatioService on its own runs. Methods that are
// missing here are refused to everybody. In addition, only kTrainer and above may supersede an
// incarnation by CreateRun.
inline constexpr std::array<std::pair<absl::string_view, Role>, 15> kRequiredRoles = {{
    {"GetRun", Role::kViewer},
    {"ListRuns", Role::kViewer},
    {"GetStep", Role::kViewer},
    {"ListSteps", Role::kViewer},
    {"GetServer", Role::kViewer},
    {"InspectRun", Role::kViewer},
    {"InspectSequence", Role::kViewer},
    {"ListSequences", Role::kViewer},
    // A worker's client creates a run again that the server has lost.
    {"CreateRun", Role::kWorker},
    {"Append", Role::kWorker},
    {"FetchTopK", Role::kTrainer},
    {"Evaluate", Role::kTrainer},
    {"AdvanceVersion", Role::kTrainer},
    {"Release", Role::kTrainer},
    {"DeleteRun", Role::kTrainer},
}};

constexpr std::optional<Role> RequiredRole(absl::string_view method) {
  for (const auto& [known, role] : kRequiredRoles) {
    if (known == method) return role;
  }
  return std::nullopt;
}

}  // namespace sis
