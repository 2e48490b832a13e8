// How the C library's malloc keeps memory.
#pragma once

namespace sis {

// Before any thread starts.
void ConfigureHeap();

// Gives the system back what is free. Allocations of other threads may wait meanwhile, for some 13
// ms for each 100 MiB.
void GiveBackHeap();

}  // namespace sis
