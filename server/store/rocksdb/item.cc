#include "server/store/rocksdb/item.h"

#include <algorithm>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstring>
#include <span>

#include "absl/strings/str_cat.h"
#include "kernels/numerics/crc32c.h"

namespace sis {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr size_t kExpiresBegin = 4;  // after the CRC

// In the order of loading.
enum class KeyKind : char { kTombstone = 1, kGap = 2, kBlock = 3, kSeal = 4 };

// Replaces a sequence's id in the keys of steps. As a length it exceeds that of every id.
constexpr std::string_view kSteps = "\xff\xff";

template <std::unsigned_integral T>
void AddLittle(std::string& out, T value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out.append(bytes, sizeof(T));
}

// Appends a number big-endian, so that keys sort by number.
template <std::unsigned_integral T>
void AddBig(std::string& out, T value) {
  for (int shift = 8 * (sizeof(T) - 1); shift >= 0; shift -= 8) {
    out.push_back(static_cast<char>(value >> shift));
  }
}

void AddKeyString(std::string& out, std::string_view text) {
  AddBig(out, static_cast<uint16_t>(text.size()));
  out.append(text);
}

// Reads values from a string. Once it is too short, all values are 0 and ok() is false.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  template <std::unsigned_integral T>
  T Little() {
    T value = 0;
    const std::string_view bytes = Bytes(sizeof(T));
    if (bytes.size() == sizeof(T)) std::memcpy(&value, bytes.data(), sizeof(T));
    return value;
  }

  template <std::unsigned_integral T>
  T Big() {
    T value = 0;
    for (const char c : Bytes(sizeof(T))) {
      value = static_cast<T>(value << 8 | static_cast<uint8_t>(c));
    }
    return value;
  }

  std::string_view Bytes(size_t count) {
    if (count > rest_.size()) {
      ok_ = false;
      rest_ = {};
      return {};
    }
    const std::string_view bytes = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return bytes;
  }
  std::string_view Rest() { return Bytes(rest_.size()); }

  bool ok() const { return ok_; }

 private:
  std::string_view rest_;
  bool ok_ = true;
};

uint32_t Crc(std::string_view key, std::string_view checked) {
  const uint32_t of_key = ExtendCrc32c(0, std::as_bytes(std::span(key)));
  return ExtendCrc32c(of_key, std::as_bytes(std::span(checked)));
}

uint64_t UnixSeconds(absl::Time time) {
  if (time == absl::InfiniteFuture()) return 0;
  return static_cast<uint64_t>(std::max<int64_t>(1, absl::ToUnixSeconds(time)));
}

std::string KeyOf(std::string_view sequence_prefix, KeyKind kind) {
  std::string key(sequence_prefix);
  key.push_back(static_cast<char>(kind));
  return key;
}

absl::Status Damaged(std::string_view what, std::string_view bytes) {
  return absl::DataLossError(absl::StrCat(std::string(what), " of ", bytes.size(), " bytes"));
}

}  // namespace

std::string RunKey(std::string_view run_id) { return std::string(kRunKeys).append(run_id); }

std::string IncarnationPrefix(std::string_view run_id, uint64_t incarnation) {
  std::string key(kSequenceKeys);
  AddKeyString(key, run_id);
  AddBig(key, incarnation);
  return key;
}

std::optional<std::pair<std::string, uint64_t>> IncarnationOfKey(std::string_view key) {
  Reader in(key);
  if (in.Bytes(kSequenceKeys.size()) != kSequenceKeys) return std::nullopt;
  std::string run_id(in.Bytes(in.Big<uint16_t>()));
  const uint64_t incarnation = in.Big<uint64_t>();
  if (!in.ok()) return std::nullopt;
  return std::pair(std::move(run_id), incarnation);
}

std::string SequencePrefix(const SequenceIdentity& sequence) {
  std::string key = IncarnationPrefix(sequence.run_id, sequence.incarnation);
  AddKeyString(key, sequence.id);
  AddBig(key, sequence.attempt);
  return key;
}

std::string TombstoneKey(std::string_view sequence_prefix) {
  return KeyOf(sequence_prefix, KeyKind::kTombstone);
}

std::string BlocksPrefix(std::string_view sequence_prefix) {
  return KeyOf(sequence_prefix, KeyKind::kBlock);
}

std::string PartKey(std::string_view sequence_prefix, const StoredPart& part) {
  if (part.kind == StoredPart::Kind::kSeal) return KeyOf(sequence_prefix, KeyKind::kSeal);
  const bool is_gap = part.kind == StoredPart::Kind::kGap;
  std::string key = KeyOf(sequence_prefix, is_gap ? KeyKind::kGap : KeyKind::kBlock);
  AddBig(key, part.position);
  // Several gaps may begin at the same position.
  if (is_gap) AddBig(key, part.count);
  return key;
}

std::string StepsPrefix(std::string_view run_id, uint64_t incarnation) {
  return IncarnationPrefix(run_id, incarnation).append(kSteps);
}

std::string StepKey(std::string_view run_id, uint64_t incarnation, uint16_t slot) {
  std::string key = StepsPrefix(run_id, incarnation);
  AddBig(key, slot);
  return key;
}

std::string EndOfPrefix(std::string prefix) {
  while (prefix.back() == '\xff') prefix.pop_back();
  ++prefix.back();
  return prefix;
}

std::string WrapItem(std::string_view key, absl::Time expires, std::string_view payload) {
  std::string item;
  item.reserve(kExpiresBegin + sizeof(uint64_t) + payload.size());
  AddLittle(item, uint32_t{0});
  AddLittle(item, UnixSeconds(expires));
  item.append(payload);
  const uint32_t crc = Crc(key, std::string_view(item).substr(kExpiresBegin));
  std::memcpy(item.data(), &crc, sizeof(crc));
  return item;
}

absl::StatusOr<std::string_view> UnwrapItem(std::string_view key, std::string_view item) {
  Reader in(item);
  const uint32_t crc = in.Little<uint32_t>();
  in.Little<uint64_t>();  // expires
  if (!in.ok() || Crc(key, item.substr(kExpiresBegin)) != crc) {
    return Damaged("a wrong checksum: a value", item);
  }
  return in.Rest();
}

absl::Time ItemExpires(std::string_view item) {
  Reader in(item.substr(std::min(item.size(), kExpiresBegin)));
  const uint64_t seconds = in.Little<uint64_t>();
  return seconds == 0 ? absl::InfiniteFuture()
                      : absl::FromUnixSeconds(static_cast<int64_t>(seconds));
}

std::string EncodePart(const StoredPart& part) {
  std::string payload;
  payload.reserve(1 + 2 * sizeof(uint32_t) + part.bytes.size());
  AddLittle(payload, static_cast<uint8_t>(part.kind));
  AddLittle(payload, part.position);
  AddLittle(payload, part.count);
  return payload.append(part.bytes);
}

absl::StatusOr<StoredPart> ParsePart(std::string_view payload) {
  Reader in(payload);
  const uint8_t kind = in.Little<uint8_t>();
  StoredPart part{.kind = static_cast<StoredPart::Kind>(kind)};
  part.position = in.Little<uint32_t>();
  part.count = in.Little<uint32_t>();
  part.bytes = std::string(in.Rest());
  if (!in.ok() || kind < 1 || kind > 3) return Damaged("no part of a sequence: a payload", payload);
  return part;
}

std::string EncodeRun(const StoredRun& run) {
  std::string payload;
  AddLittle(payload, run.incarnation);
  AddLittle(payload, run.policy_version);
  return payload.append(EncodeVersionLabels(run.labels)).append(run.config);
}

absl::StatusOr<StoredRun> ParseRun(std::string_view payload) {
  Reader in(payload);
  StoredRun run{.incarnation = in.Little<uint64_t>(), .policy_version = in.Little<uint64_t>()};
  std::string_view rest = in.Rest();
  if (!in.ok() || !TakeVersionLabels(rest, run.labels)) {
    return Damaged("no run record: a payload", payload);
  }
  run.config = std::string(rest);
  return run;
}

}  // namespace sis
