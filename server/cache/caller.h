// The rights of a caller on runs.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace sis {

// The default has all rights. It is for calls within the process, and for every client of a server
// without authentication.
struct Caller {
  // The owner of the runs that the caller creates. Empty without authentication.
  std::string identity = {};
  // True for admins.
  bool uses_all_runs = true;
  // May open a later incarnation of an existing run, which drops the earlier one's records.
  bool supersedes = true;

  // Only callers with `uses_all_runs` may use a run without an owner.
  bool MayUseRunOf(absl::string_view owner) const {
    return uses_all_runs || (!owner.empty() && owner == identity);
  }

  friend bool operator==(const Caller&, const Caller&) = default;
};

}  // namespace sis
