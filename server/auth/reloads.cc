#include "server/auth/reloads.h"

#include <iostream>

namespace sis {

void Reloads::Reload() {
  const absl::StatusOr<bool> changed = read_();
  failed_ = !changed.ok();
  const std::string before = std::exchange(problem_, std::string(changed.status().message()));
  if (changed.ok() && *changed) std::cerr << what_ << ": read again" << std::endl;
  if (!changed.ok() && problem_ != before) {
    std::cerr << what_ << ": not read again: " << problem_ << std::endl;
  }
}

}  // namespace sis
