// Flags that more than one subcommand reads.
#pragma once

#include <cstdint>

#include "absl/flags/declare.h"

ABSL_DECLARE_FLAG(bool, json);
ABSL_DECLARE_FLAG(uint64_t, seed);
