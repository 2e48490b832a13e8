#include "server/cache/version_labels.h"

#include <bit>
#include <cstring>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"

namespace sis {
namespace {

static_assert(std::endian::native == std::endian::little);

template <typename T>
void Append(T value, std::string& bytes) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

template <typename T>
bool Take(std::string_view& bytes, T& value) {
  if (bytes.size() < sizeof(value)) return false;
  std::memcpy(&value, bytes.data(), sizeof(value));
  bytes.remove_prefix(sizeof(value));
  return true;
}

}  // namespace

absl::Status CheckVersionLabel(const VersionLabels& labels, uint64_t version,
                               absl::string_view label) {
  for (const auto& [other_version, other] : labels) {
    if (other_version == version && other != label) {
      return absl::AlreadyExistsError(absl::StrCat("label: '", label, "' for policy_version ",
                                                   version, ", whose label is '", other, "'"));
    }
    if (other == label && other_version != version) {
      return absl::AlreadyExistsError(absl::StrCat("label: '", label, "' for policy_version ",
                                                   version, ", but it names policy_version ",
                                                   other_version));
    }
  }
  return absl::OkStatus();
}

void AddVersionLabels(const VersionLabels& more, VersionLabels& labels) {
  if (more == labels) return;
  absl::flat_hash_set<absl::string_view> taken;
  for (const auto& [version, label] : labels) taken.insert(label);
  for (const auto& [version, label] : more) {
    if (taken.contains(label)) continue;
    if (labels.try_emplace(version, label).second) taken.insert(label);
  }
  while (labels.size() > kMaxVersionLabels) labels.erase(labels.begin());
}

std::string EncodeVersionLabels(const VersionLabels& labels) {
  std::string bytes;
  Append(static_cast<uint16_t>(labels.size()), bytes);
  for (const auto& [version, label] : labels) {
    Append(version, bytes);
    Append(static_cast<uint8_t>(label.size()), bytes);
    bytes.append(label);
  }
  return bytes;
}

bool TakeVersionLabels(std::string_view& bytes, VersionLabels& labels) {
  uint16_t count;
  if (!Take(bytes, count) || count > kMaxVersionLabels) return false;
  for (; count > 0; --count) {
    uint64_t version;
    uint8_t size;
    if (!Take(bytes, version) || !Take(bytes, size)) return false;
    if (size == 0 || size > kMaxVersionLabelBytes || size > bytes.size()) return false;
    if (!labels.empty() && version <= labels.rbegin()->first) return false;
    labels.emplace_hint(labels.end(), version, std::string(bytes.substr(0, size)));
    bytes.remove_prefix(size);
  }
  return true;
}

}  // namespace sis
