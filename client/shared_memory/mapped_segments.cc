#include "client/shared_memory/mapped_segments.h"

#include "client/types/messages.h"

namespace sis {

void MappedSegments::Add(std::span<const std::byte> memory, const std::string& segment,
                         size_t alignment) {
  const std::lock_guard lock(mutex_);
  mapped_[memory.data()] = {memory.size(), segment, alignment};
}

void MappedSegments::Remove(const std::string& segment) {
  const std::lock_guard lock(mutex_);
  std::erase_if(mapped_, [&](const auto& entry) { return entry.second.segment == segment; });
}

std::optional<MappedSegments::Locations> MappedSegments::Find(
    std::span<const std::span<const std::byte>> arrays) const {
  const std::lock_guard lock(mutex_);
  Locations parts;
  for (const std::span<const std::byte> bytes : arrays) {
    std::string& field = parts.fields.emplace_back();
    if (bytes.empty()) continue;
    auto after = mapped_.upper_bound(bytes.data());
    if (after == mapped_.begin()) return std::nullopt;
    const auto& [begin, mapped] = *--after;
    const auto offset = static_cast<size_t>(bytes.data() - begin);
    if (offset > mapped.size || bytes.size() > mapped.size - offset) return std::nullopt;
    if (offset % mapped.alignment != 0) return std::nullopt;
    if (!parts.segment.empty() && mapped.segment != parts.segment) return std::nullopt;
    parts.segment = mapped.segment;
    parts.alignment = mapped.alignment;
    const uint64_t offset_and_size[] = {offset, bytes.size()};
    field = ToBytes(std::span<const uint64_t>(offset_and_size));
  }
  if (parts.segment.empty()) return std::nullopt;
  return parts;
}

}  // namespace sis
