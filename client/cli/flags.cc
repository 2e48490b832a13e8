#include "client/cli/flags.h"

#include "absl/flags/flag.h"

ABSL_FLAG(bool, json, false, "Print JSON.");
ABSL_FLAG(uint64_t, seed, 0, "Of the run: keys the accept/reject draws.");
