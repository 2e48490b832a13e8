// Copies memory that another process may take away.
#pragma once

#include <cstddef>

namespace sis {

// As memcpy, but false, with part of it copied, if some of the memory is no longer there: a mapped
// file that was truncated. Installs a handler of SIGBUS when it is first used, which leaves every
// other SIGBUS as deadly as it was.
bool GuardedCopy(void* into, const void* from, size_t size);

}  // namespace sis
