// Shares work with idle workers.
#pragma once

#include <cstddef>
#include <string>

#include "absl/functional/function_ref.h"
#include "server/threads/worker_pool.h"

namespace sis {

// Calls work(0) in this thread, and work(1) to work(lanes - 1) each on a worker that becomes idle
// before work(0) returns. Returns when all of these calls have. The lanes must distribute the work
// among themselves, and return when none is left. So no thread waits for a busy worker, and a
// worker may call this function too. The helping counts as work of `run_id`.
void SideBySide(WorkerPool& workers, const std::string& run_id, size_t lanes,
                absl::FunctionRef<void(size_t lane)> work);

}  // namespace sis
