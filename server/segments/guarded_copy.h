// Copies to and from a mapped file that another process may truncate.
#pragma once

#include <cstddef>
#include <span>

namespace sis {

// As memcpy, where `from` or `into` is part of `mapping`, a writable mapping of a file. Where the
// file has been cut off zeros are read, and what is written is lost: from there to its end the
// mapping becomes memory of its own. Installs a handler of SIGBUS when it is first used, which
// leaves every other SIGBUS as deadly as it was.
void GuardedCopy(void* into, const void* from, size_t size, std::span<char> mapping);

}  // namespace sis
