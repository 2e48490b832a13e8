#include "server/store/stored_item.h"

#include <algorithm>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstring>
#include <span>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "kernels/numerics/crc32c.h"
#include "server/cache/missing.h"

namespace sis {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr uint32_t kMagic = 0x31534953;  // "SIS1"
constexpr size_t kCrcBegin = 4;
constexpr size_t kExpiresBegin = 8;
constexpr size_t kKeyBegin = 16;

enum class KeyKind : char { kFragment = 'c', kEntry = 'e', kState = 's' };

// In the place of a sequence's id, of which none is so long.
constexpr std::string_view kSteps = "\xff\xffs";

template <std::unsigned_integral T>
void AddLittle(std::string& out, T value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out.append(bytes, sizeof(T));
}

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

// Takes values off a string; once it is too short, everything is 0 and ok() is false.
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
  bool at_end() const { return ok_ && rest_.empty(); }

 private:
  std::string_view rest_;
  bool ok_ = true;
};

uint32_t Crc(uint32_t crc, std::string_view bytes) {
  return ExtendCrc32c(crc, std::as_bytes(std::span(bytes)));
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

absl::Status Corrupt(std::string_view what, std::string_view bytes) {
  return absl::DataLossError(absl::StrCat(std::string(what), " of ", bytes.size(), " bytes"));
}

}  // namespace

std::string ToString(const SequenceIdentity& sequence) {
  return absl::StrCat("sequence '", sequence.id, "' attempt ", sequence.attempt, " of run '",
                      sequence.run_id, "' incarnation ", sequence.incarnation);
}

std::string RunKey(std::string_view run_id) {
  std::string key(kRunKeys);
  AddKeyString(key, run_id);
  return key;
}

std::string IncarnationPrefix(std::string_view run_id, uint64_t incarnation) {
  std::string key(kSequenceKeys);
  AddKeyString(key, run_id);
  AddBig(key, incarnation);
  return key;
}

std::string SequencePrefix(const SequenceIdentity& sequence) {
  std::string key = IncarnationPrefix(sequence.run_id, sequence.incarnation);
  AddKeyString(key, sequence.id);
  AddBig(key, sequence.attempt);
  return key;
}

std::string StateKey(std::string_view sequence_prefix) {
  return KeyOf(sequence_prefix, KeyKind::kState);
}

std::string EntryKey(std::string_view sequence_prefix, uint32_t number) {
  std::string key = KeyOf(sequence_prefix, KeyKind::kEntry);
  AddBig(key, number);
  return key;
}

std::string FragmentKey(std::string_view sequence_prefix, uint32_t form, uint32_t number) {
  std::string key = KeyOf(sequence_prefix, KeyKind::kFragment);
  AddBig(key, form);
  AddBig(key, number);
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

std::string RunOfKey(std::string_view key) {
  Reader in(key);
  in.Bytes(kRunKeys.size());
  const std::string_view run_id = in.Bytes(in.Big<uint16_t>());
  return std::string(in.at_end() ? run_id : key);
}

std::optional<SequenceIdentity> SequenceOfKey(std::string_view key) {
  Reader in(key);
  if (in.Bytes(kSequenceKeys.size()) != kSequenceKeys) return std::nullopt;
  SequenceIdentity sequence;
  sequence.run_id = std::string(in.Bytes(in.Big<uint16_t>()));
  sequence.incarnation = in.Big<uint64_t>();
  sequence.id = std::string(in.Bytes(in.Big<uint16_t>()));
  sequence.attempt = in.Big<uint32_t>();
  return in.ok() ? std::optional(sequence) : std::nullopt;
}

std::optional<std::pair<std::string, uint64_t>> IncarnationOfStep(std::string_view key) {
  Reader in(key);
  if (in.Bytes(kSequenceKeys.size()) != kSequenceKeys) return std::nullopt;
  std::string run_id(in.Bytes(in.Big<uint16_t>()));
  const uint64_t incarnation = in.Big<uint64_t>();
  if (in.Bytes(kSteps.size()) != kSteps) return std::nullopt;
  in.Big<uint16_t>();
  if (!in.at_end()) return std::nullopt;
  return std::pair(std::move(run_id), incarnation);
}

std::string EndOfPrefix(std::string prefix) {
  while (prefix.back() == '\xff') prefix.pop_back();
  ++prefix.back();
  return prefix;
}

std::string WrapItem(std::string_view key, absl::Time expires, std::string_view payload) {
  std::string item;
  item.reserve(kKeyBegin + 4 + key.size() + payload.size());
  AddLittle(item, kMagic);
  AddLittle(item, uint32_t{0});
  AddLittle(item, UnixSeconds(expires));
  AddLittle(item, static_cast<uint32_t>(key.size()));
  item.append(key).append(payload);
  const uint32_t crc = Crc(0, std::string_view(item).substr(kExpiresBegin));
  std::memcpy(item.data() + kCrcBegin, &crc, sizeof(crc));
  return item;
}

absl::StatusOr<std::string_view> UnwrapItem(std::string_view key, std::string_view item) {
  Reader in(item);
  const uint32_t magic = in.Little<uint32_t>();
  const uint32_t crc = in.Little<uint32_t>();
  const std::string_view checked = item.substr(std::min(item.size(), kExpiresBegin));
  in.Little<uint64_t>();  // expires
  const std::string_view its_key = in.Bytes(in.Little<uint32_t>());
  if (!in.ok() || magic != kMagic) return Corrupt("no stored item: a value", item);
  if (Crc(0, checked) != crc) return Corrupt("a wrong checksum: a value", item);
  if (its_key != key) {
    return absl::DataLossError(
        absl::StrCat("the value of another key, ", absl::CHexEscape(std::string(its_key))));
  }
  return in.Rest();
}

absl::Time ItemExpires(std::string_view item) {
  Reader in(item.substr(std::min(item.size(), kExpiresBegin)));
  const uint64_t seconds = in.Little<uint64_t>();
  return seconds == 0 ? absl::InfiniteFuture()
                      : absl::FromUnixSeconds(static_cast<int64_t>(seconds));
}

std::string EncodeEntry(const LogEntry& entry) {
  std::string bytes;
  bytes.reserve(5 + entry.payload.size());
  AddLittle(bytes, static_cast<uint8_t>(entry.kind));
  AddLittle(bytes, entry.position);
  return bytes.append(entry.payload);
}

absl::StatusOr<LogEntry> ParseEntry(std::string_view payload) {
  Reader in(payload);
  const uint8_t kind = in.Little<uint8_t>();
  LogEntry entry{.kind = static_cast<LogEntry::Kind>(kind), .position = in.Little<uint32_t>()};
  entry.payload = std::string(in.Rest());
  if (!in.ok() || kind < 1 || kind > 3 || entry.payload.size() > kMaxPayloadBytes) {
    return Corrupt("no log entry: a payload", payload);
  }
  return entry;
}

std::string EncodeState(const SequenceState& state) {
  std::string payload;
  AddLittle(payload, state.dropped);
  AddLittle(payload, state.entries);
  AddLittle(payload, state.form);
  AddLittle(payload, state.fragments);
  AddLittle(payload, state.bytes);
  return payload;
}

absl::StatusOr<SequenceState> ParseState(std::string_view payload) {
  Reader in(payload);
  const SequenceState state{.dropped = in.Little<uint8_t>(),
                            .entries = in.Little<uint32_t>(),
                            .form = in.Little<uint32_t>(),
                            .fragments = in.Little<uint32_t>(),
                            .bytes = in.Little<uint64_t>()};
  if (!in.at_end() || state.dropped > kMissingReasons.size() || state.bytes > kMostFormBytes ||
      state.fragments != FragmentsOf(state.bytes)) {
    return Corrupt("no state of a sequence: a payload", payload);
  }
  return state;
}

std::string EncodeRun(const StoredRun& run) {
  std::string payload;
  AddLittle(payload, run.incarnation);
  AddLittle(payload, run.policy_version);
  AddLittle(payload, static_cast<uint32_t>(run.run_id.size()));
  return payload.append(run.run_id).append(run.config);
}

absl::StatusOr<StoredRun> ParseRun(std::string_view payload) {
  Reader in(payload);
  StoredRun run{.incarnation = in.Little<uint64_t>(), .policy_version = in.Little<uint64_t>()};
  run.run_id = std::string(in.Bytes(in.Little<uint32_t>()));
  run.config = std::string(in.Rest());
  if (!in.ok()) return Corrupt("no run record: a payload", payload);
  return run;
}

}  // namespace sis
