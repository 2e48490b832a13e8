#include "client/mapped_segments.h"

#include <bit>
#include <utility>
#include <vector>

namespace sis {

static_assert(std::endian::native == std::endian::little, "messages are little-endian");

void MappedSegments::Add(std::span<const std::byte> memory, const std::string& segment) {
  const std::lock_guard lock(mutex_);
  mapped_[memory.data()] = {memory.size(), segment};
}

void MappedSegments::Remove(const std::string& segment) {
  const std::lock_guard lock(mutex_);
  std::erase_if(mapped_, [&](const auto& entry) { return entry.second.segment == segment; });
}

std::optional<MappedSegments::Part> MappedSegments::Find(std::span<const std::byte> bytes) const {
  const std::lock_guard lock(mutex_);
  auto after = mapped_.upper_bound(bytes.data());
  if (after == mapped_.begin()) return std::nullopt;
  const auto& [begin, mapped] = *--after;
  const auto offset = static_cast<size_t>(bytes.data() - begin);
  if (offset > mapped.size || bytes.size() > mapped.size - offset) return std::nullopt;
  if (offset % kAlignment != 0) return std::nullopt;
  return Part{mapped.segment, offset};
}

std::string PartBytes(uint64_t offset, uint64_t size) {
  std::string bytes(reinterpret_cast<const char*>(&offset), sizeof(offset));
  return bytes.append(reinterpret_cast<const char*>(&size), sizeof(size));
}

void WriteArrays(std::span<const RequestArray> arrays, const MappedSegments& segments,
                 v1::EvaluateRequest& request) {
  std::vector<std::string> parts;
  std::string segment;
  bool in_segment = true;
  for (const RequestArray& array : arrays) {
    parts.emplace_back();
    if (array.bytes.empty()) continue;
    const std::optional<MappedSegments::Part> part = segments.Find(array.bytes);
    if (!part || (!segment.empty() && part->segment != segment)) {
      in_segment = false;
      break;
    }
    segment = part->segment;
    parts.back() = PartBytes(part->offset, array.bytes.size());
  }
  if (in_segment) request.set_segment(segment);
  for (size_t i = 0; i < arrays.size(); ++i) {
    google::protobuf::Message& message = *arrays[i].message;
    const std::span<const std::byte> bytes = arrays[i].bytes;
    message.GetReflection()->SetString(
        &message, message.GetDescriptor()->FindFieldByNumber(arrays[i].field),
        in_segment ? std::move(parts[i])
                   : std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  }
}

}  // namespace sis
