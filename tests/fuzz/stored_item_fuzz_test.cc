// Any bytes as a stored item or its payload: an error, or what encodes to just those bytes.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "server/store/stored_item.h"

namespace sis {
namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

void ParsePayload(std::string_view payload) {
  if (const auto entry = ParseEntry(payload); entry.ok()) Require(EncodeEntry(*entry) == payload);
  if (const auto state = ParseState(payload); state.ok()) Require(EncodeState(*state) == payload);
  if (const auto run = ParseRun(payload); run.ok()) Require(EncodeRun(*run) == payload);
}

void ParseItem(std::string_view item) {
  // The checksum would stop almost every input, so the payload is parsed without it as well.
  const std::string key = EntryKey(SequencePrefix({"run", 1, "a", 0}), 5);
  const std::string wrapped = WrapItem(key, absl::InfiniteFuture(), item);
  Require(*UnwrapItem(key, wrapped) == item);
  std::string damaged = wrapped;
  const size_t byte = item.empty() ? 0 : static_cast<uint8_t>(item[0]) % damaged.size();
  damaged[byte] ^= 1;
  Require(absl::IsDataLoss(UnwrapItem(key, damaged).status()));
  if (UnwrapItem(key, item).ok()) Require(item.size() >= key.size());
  ItemExpires(item);
}

void ParseKey(std::string_view key) {
  const auto sequence = SequenceOfKey(key);
  if (sequence.has_value()) Require(key.starts_with(SequencePrefix(*sequence)));
  const auto of_step = IncarnationOfStep(key);
  if (of_step.has_value()) Require(key.starts_with(StepsPrefix(of_step->first, of_step->second)));
  Require(!sequence.has_value() || !of_step.has_value());
  const std::string run_id = RunOfKey(key);
  Require(run_id == key || !key.starts_with(kRunKeys) || RunKey(run_id) == key);
}

}  // namespace
}  // namespace sis

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // A copy of exactly this size lets a sanitizer see a read beyond its end.
  const std::string copy(reinterpret_cast<const char*>(data), size);
  sis::ParsePayload(copy);
  sis::ParseItem(copy);
  sis::ParseKey(copy);
  return 0;
}
