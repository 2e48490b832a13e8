#include "server/security/reloads.h"

#include <iostream>

namespace sis {

void Reloads::Note(const absl::Status& status, bool changed) {
  failed_ = !status.ok();
  const std::string before = std::exchange(problem_, std::string(status.message()));
  if (status.ok() && changed) std::cerr << what_ << ": read again" << std::endl;
  if (!status.ok() && problem_ != before) {
    std::cerr << what_ << ": not read again: " << problem_ << std::endl;
  }
}

}  // namespace sis
