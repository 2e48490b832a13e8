// How the C library's malloc keeps memory.
#pragma once

namespace sis {

// Before any thread starts.
void ConfigureHeap();

}  // namespace sis
