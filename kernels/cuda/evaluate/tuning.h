// All that may be tuned without changing a byte of the results. Chosen on an NVIDIA H100
// (docs/performance.md, "On a GPU").
#pragma once

#include <cstddef>

namespace sis::cuda {

// Threads of a block that decides positions, one position each; a multiple of 32. Few, as they wait
// for each other twice.
inline constexpr int kThreadsPerBlock = 128;
// Blocks that one multiprocessor should hold, which bounds the registers of a thread.
inline constexpr int kBlocksPerMultiprocessor = 8;
// Slots whose log-probs a thread asks for before it uses the first. Divides the usual K: 10, 50,
// 100.
inline constexpr int kSlotsAhead = 5;

// Staging of one batch, in pinned host memory and again on the device. 4 MiB take some 0.2 ms over
// PCIe, long enough for a launch not to matter.
inline constexpr size_t kStagedInputBytes = size_t{4} << 20;
inline constexpr size_t kStagedOutputBytes = size_t{1} << 20;
// Log-probs that callers should bring at once: 4 MiB in float32. Each call of the driver takes
// longer than copying a few hundred KiB, and calls of several threads wait for each other there.
inline constexpr size_t kValuesPerCall = size_t{1} << 20;
// Calls that use the device at the same time, each with two stages; more wait.
inline constexpr int kConcurrentCalls = 4;

}  // namespace sis::cuda
