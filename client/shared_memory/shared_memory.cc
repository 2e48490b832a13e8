#include "client/shared_memory/shared_memory.h"

#include <utility>

#include "client/shared_memory/lease_segment_call.h"

namespace sis {

SharedMemory::SharedMemory(std::shared_ptr<SegmentMemory> memory, std::string segment,
                           std::unique_ptr<LeaseSegmentCall> call)
    : memory_(std::move(memory)), segment_(std::move(segment)), call_(std::move(call)) {}

SharedMemory::~SharedMemory() = default;

}  // namespace sis
