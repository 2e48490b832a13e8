// What may be tuned without changing a byte of the results; apart from the kernels, so that figures
// for a new device touch this file alone.
#pragma once

#include <cstddef>

namespace sis::cuda {

// Threads of a block that decides positions, one position each; a multiple of 32.
inline constexpr int kThreadsPerBlock = 256;
// Blocks that one multiprocessor should hold, which bounds the registers of a thread.
inline constexpr int kBlocksPerMultiprocessor = 4;
// Slots whose log-probs a thread asks for before it uses the first. Divides the usual K: 10, 50,
// 100.
inline constexpr int kSlotsAhead = 5;

// Staging of one batch, in pinned host memory and again on the device. 4 MiB take some 0.2 ms over
// PCIe, long enough for a launch not to matter.
inline constexpr size_t kStagedInputBytes = size_t{4} << 20;
inline constexpr size_t kStagedOutputBytes = size_t{1} << 20;
// Log-probs that callers should bring at once: 1 MiB takes as long over PCIe as a launch, and
// waiting for it.
inline constexpr size_t kValuesPerCall = size_t{1} << 18;
// Calls that use the device at the same time, each with two stages; more wait.
inline constexpr int kConcurrentCalls = 4;

// Warps of a block that sums the logits of one position.
inline constexpr int kDenseWarps = 8;

}  // namespace sis::cuda
