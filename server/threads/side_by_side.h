// Work in which idle workers help.
#pragma once

#include <cstddef>
#include <string>

#include "absl/functional/function_ref.h"
#include "server/threads/worker_pool.h"

namespace sis {

// Calls work(0) here, and each of work(1) to work(lanes - 1) on a worker that comes to it before
// work(0) returns; returns when all these have. Lanes share parts out among each other, and return
// when there are none left: so nobody waits for a worker that is busy elsewhere, and a worker may
// call it as well. To others it counts as work of that run. `workers` may be null if there is one
// lane.
void SideBySide(WorkerPool* workers, const std::string& run_id, size_t lanes,
                absl::FunctionRef<void(size_t lane)> work);

}  // namespace sis
