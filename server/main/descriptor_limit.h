// How many file descriptors the process may have, and which of them connections may take.
#pragma once

namespace sis {

// Raises the soft limit to the hard one, as far as makes sense: what a shell gives is meant for
// programs that use select(2).
void RaiseDescriptorLimit();

// A connection whose descriptor is this number, or a higher one, is one too many: the system hands
// out the lowest number that is free, so as many others are in use. What lies above is for the
// store's files and the HTTP port.
int FirstReservedDescriptor();

}  // namespace sis
