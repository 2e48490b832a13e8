// Reading and writing a mapped file that another process may truncate.
#pragma once

#include <cstddef>
#include <span>

namespace sis {

// While it lives, its thread may touch `mapping`, a writable mapping of a file. Where the file has
// been cut off zeros are read, and what is written is lost: from there to its end the mapping
// becomes memory of its own. Installs a handler of SIGBUS when it is first used, which leaves every
// other SIGBUS as deadly as it was. One that is made while another lives takes its place until it
// goes.
class GuardedAccess {
 public:
  explicit GuardedAccess(std::span<char> mapping);
  ~GuardedAccess();
  GuardedAccess(const GuardedAccess&) = delete;
  GuardedAccess& operator=(const GuardedAccess&) = delete;

 private:
  const std::span<char> mapping_;
  const std::span<char>* const outer_;
};

}  // namespace sis
