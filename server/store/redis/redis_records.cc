#include "server/store/redis/redis_records.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "kernels/block/block.h"

namespace sis {
namespace {

using Kind = StoredPart::Kind;

constexpr absl::string_view kSequences = "sis:sequence:", kSteps = "sis:steps:";

// No '/', and nothing that SCAN patterns or slots of a cluster give a meaning to.
std::string Encode(absl::string_view name) {
  std::string encoded;
  for (const char c : name) {
    const bool plain =
        absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.';
    if (plain) {
      encoded += c;
    } else {
      absl::StrAppend(&encoded, "%", absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad2));
    }
  }
  return encoded;
}

template <typename Integer>
void AppendNumber(Integer number, std::string& bytes) {
  for (int shift = 8 * (sizeof(number) - 1); shift >= 0; shift -= 8) {
    bytes += static_cast<char>(number >> shift);
  }
}

template <typename Integer>
Integer TakeNumber(absl::string_view& bytes) {
  Integer number = 0;
  for (size_t i = 0; i < sizeof(number); ++i) {
    number = static_cast<Integer>(number << 8 | static_cast<unsigned char>(bytes[i]));
  }
  bytes.remove_prefix(sizeof(number));
  return number;
}

absl::Status Damaged(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("redis: ", what));
}

bool ParsePart(absl::string_view field, std::string value, StoredPart& part) {
  const char kind = field[0];
  field.remove_prefix(1);
  if (kind == 's') {
    absl::string_view length = value;
    if (!field.empty() || value.size() < sizeof(uint32_t)) return false;
    part.kind = Kind::kSeal;
    part.position = TakeNumber<uint32_t>(length);
    part.bytes = std::string(length);
    return true;
  }
  if ((kind != 'b' && kind != 'g') || field.size() != 2 * sizeof(uint32_t)) return false;
  part.kind = kind == 'b' ? Kind::kBlock : Kind::kGap;
  part.position = TakeNumber<uint32_t>(field);
  part.count = TakeNumber<uint32_t>(field);
  part.bytes = std::move(value);
  const bool sized =
      part.kind == Kind::kBlock ? part.bytes.size() <= kMaxBlockBytes : part.bytes.size() == 1;
  return sized && part.count > 0 && part.count <= UINT32_MAX - part.position;
}

}  // namespace

std::string RedisSequenceKey(const SequenceIdentity& sequence) {
  return absl::StrCat(kSequences, Encode(sequence.run_id), "/", sequence.incarnation, "/",
                      Encode(sequence.id), "/", sequence.attempt);
}

std::string RedisStepsKey(absl::string_view run_id, uint64_t incarnation,
                          absl::string_view server_name) {
  return absl::StrCat(kSteps, Encode(run_id), "/", incarnation, "/", Encode(server_name));
}

std::string RedisRunPattern(absl::string_view run_id) {
  return absl::StrCat("sis:*:", Encode(run_id), "/*");
}

bool IsOfIncarnations(absl::string_view key, absl::string_view run_id, uint64_t first,
                      uint64_t last) {
  if (!absl::ConsumePrefix(&key, kSequences) && !absl::ConsumePrefix(&key, kSteps)) return false;
  if (!absl::ConsumePrefix(&key, Encode(run_id) + "/")) return false;
  uint64_t incarnation = 0;
  return absl::SimpleAtoi(key.substr(0, key.find('/')), &incarnation) && incarnation >= first &&
         incarnation < last;
}

std::string RedisField(const StoredPart& part) {
  if (part.kind == Kind::kSeal) return "s";
  std::string field = part.kind == Kind::kBlock ? "b" : "g";
  AppendNumber(part.position, field);
  AppendNumber(part.count, field);
  return field;
}

std::string RedisSeal(const StoredPart& seal) {
  std::string value;
  AppendNumber(seal.position, value);
  return value + seal.bytes;
}

absl::StatusOr<StoredSequence> ParseSequence(RedisReply reply) {
  if (!reply.is_array() || reply.elements.size() % 2 != 0) return Damaged("no hash of a sequence");
  if (reply.elements.empty()) return absl::NotFoundError("nothing is stored");
  StoredSequence sequence;
  for (size_t i = 0; i < reply.elements.size(); i += 2) {
    const RedisReply& field = reply.elements[i];
    RedisReply& value = reply.elements[i + 1];
    if (!field.is_text() || !value.is_text() || field.text.empty()) {
      return Damaged("a field of a sequence is no text");
    }
    if (field.text == "e") continue;
    if (field.text == "v") {
      if (!absl::SimpleAtoi(value.text, &sequence.revision)) return Damaged("a revision");
      continue;
    }
    if (field.text == "d" && value.text.size() == 1) {
      sequence.dropped = static_cast<uint8_t>(value.text[0]);
    } else if (!ParsePart(field.text, std::move(value.text), sequence.parts.emplace_back())) {
      return Damaged(absl::StrCat("field '", absl::CHexEscape(field.text.substr(0, 40)),
                                  "' is no part of a sequence"));
    }
  }
  if (sequence.dropped.has_value() != sequence.parts.empty()) {
    return Damaged("a sequence with a tombstone and parts, or with neither");
  }
  const auto order = [](const StoredPart& part) {
    const int rank = part.kind == Kind::kGap ? 0 : part.kind == Kind::kBlock ? 1 : 2;
    return std::tuple(rank, part.position, part.count);
  };
  std::sort(sequence.parts.begin(), sequence.parts.end(),
            [&](const StoredPart& a, const StoredPart& b) { return order(a) < order(b); });
  for (size_t i = 1; i < sequence.parts.size(); ++i) {
    const StoredPart& before = sequence.parts[i - 1];
    const StoredPart& part = sequence.parts[i];
    if (before.kind != part.kind) continue;
    if (part.kind == Kind::kSeal ||
        (part.kind == Kind::kBlock && part.position < before.position + before.count)) {
      return Damaged(absl::StrCat("parts overlap at position ", part.position));
    }
  }
  return sequence;
}

std::string EncodeRun(const RedisRun& run) {
  std::string record;
  AppendNumber(run.run.incarnation, record);
  AppendNumber(run.run.policy_version, record);
  AppendNumber(run.run.deleted() ? static_cast<uint64_t>(absl::ToUnixSeconds(run.expires)) : 0,
               record);
  return record + EncodeVersionLabels(run.run.labels) + run.run.config;
}

absl::StatusOr<RedisRun> ParseRun(absl::string_view run_id, absl::string_view record) {
  RedisRun run;
  if (record.size() < 3 * sizeof(uint64_t)) {
    return Damaged(absl::StrCat("the record of a run has ", record.size(), " bytes"));
  }
  run.run.run_id = std::string(run_id);
  run.run.incarnation = TakeNumber<uint64_t>(record);
  run.run.policy_version = TakeNumber<uint64_t>(record);
  const auto seconds = TakeNumber<uint64_t>(record);
  std::string_view rest(record.data(), record.size());
  if (!TakeVersionLabels(rest, run.run.labels)) {
    return Damaged("the record of a run has no labels");
  }
  run.run.config = std::string(rest);
  if (seconds > UINT32_MAX || (seconds > 0) != run.run.deleted()) {
    return Damaged("the record of a run is neither of a deleted nor of a live one");
  }
  if (seconds > 0) run.expires = absl::FromUnixSeconds(static_cast<int64_t>(seconds));
  return run;
}

}  // namespace sis
