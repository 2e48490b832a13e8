// Who calls, as far as runs are concerned.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace sis {

// As it is made here, it may do everything: what calls from within the process, and everybody where
// the server asks nobody who they are.
struct Caller {
  // Owns the runs that it creates. Empty where nobody is asked.
  std::string identity = {};
  // Admins.
  bool uses_all_runs = true;
  // May open a later incarnation of a run that is there, which drops what the one before holds.
  bool supersedes = true;

  // A run without an owner is for those only who use all.
  bool MayUseRunOf(absl::string_view owner) const {
    return uses_all_runs || (!owner.empty() && owner == identity);
  }

  friend bool operator==(const Caller&, const Caller&) = default;
};

}  // namespace sis
