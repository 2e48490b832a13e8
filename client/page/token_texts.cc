#include "client/page/token_texts.h"

#include <exception>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "client/files/regular_file.h"

namespace sis {
namespace {

using Json = nlohmann::json;

// The largest there are have some 35 MB.
constexpr size_t kMostTokenizerBytes = size_t{256} << 20;

// How tokens stand for text.
enum class Spelling {
  kPlain,
  // GPT-2's: every byte is a printable character of its own.
  kBytes,
  // SentencePiece's: U+2581 is a space, <0x0A> a byte.
  kPieces,
};

// Whether a decoder, or one of its parts, has this type.
bool HasType(const Json& decoder, std::string_view type) {
  if (!decoder.is_object()) return false;
  if (decoder.value("type", "") == type) return true;
  for (const char* list : {"decoders", "pretokenizers"}) {
    if (!decoder.contains(list) || !decoder[list].is_array()) continue;
    for (const Json& part : decoder[list]) {
      if (HasType(part, type)) return true;
    }
  }
  return false;
}

Spelling SpellingOf(const Json& file) {
  const Json none;
  const Json& decoder = file.contains("decoder") ? file["decoder"] : none;
  const Json& splitter = file.contains("pre_tokenizer") ? file["pre_tokenizer"] : none;
  if (HasType(decoder, "ByteLevel") || HasType(splitter, "ByteLevel")) return Spelling::kBytes;
  if (HasType(decoder, "Metaspace") || HasType(decoder, "ByteFallback") ||
      HasType(splitter, "Metaspace")) {
    return Spelling::kPieces;
  }
  return Spelling::kPlain;
}

// The next character; U+FFFD, of one byte, where there is none.
struct Character {
  uint32_t code;
  size_t bytes;
  bool valid;
};
Character NextCharacter(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return {first, 1, true};
  const size_t length = first >= 0xF0 && first < 0xF5   ? 4
                        : first >= 0xE0 && first < 0xF0 ? 3
                        : first >= 0xC2 && first < 0xE0 ? 2
                                                        : 0;
  if (length == 0 || text.size() < length) return {0xFFFD, 1, false};
  uint32_t code = first & (0xFFu >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {0xFFFD, 1, false};
    code = code << 6 | (byte(i) & 0x3F);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xD800 && code < 0xE000;
  if (code < kLeast[length] || surrogate || code > 0x10FFFF) return {0xFFFD, 1, false};
  return {code, length, true};
}

// Bytes that are not UTF-8 are written as \xE3.
std::string Printable(std::string_view bytes) {
  std::string text;
  while (!bytes.empty()) {
    const Character next = NextCharacter(bytes);
    if (next.valid) {
      absl::StrAppend(&text, absl::string_view(bytes.data(), next.bytes));
    } else {
      absl::StrAppendFormat(&text, "\\x%02X", static_cast<uint8_t>(bytes[0]));
    }
    bytes.remove_prefix(next.bytes);
  }
  return text;
}

// From the character that GPT-2 writes for a byte to that byte.
std::map<uint32_t, uint8_t> BytesOfCharacters() {
  std::map<uint32_t, uint8_t> bytes;
  uint32_t next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable =
        (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    bytes[printable ? static_cast<uint32_t>(byte) : next++] = static_cast<uint8_t>(byte);
  }
  return bytes;
}

std::string FromBytes(std::string_view token) {
  static const std::map<uint32_t, uint8_t> kBytes = BytesOfCharacters();
  std::string bytes;
  for (std::string_view rest = token; !rest.empty();) {
    const Character next = NextCharacter(rest);
    const auto byte = kBytes.find(next.code);
    if (byte == kBytes.end()) return std::string(token);  // an added token
    bytes.push_back(static_cast<char>(byte->second));
    rest.remove_prefix(next.bytes);
  }
  return Printable(bytes);
}

std::string FromPieces(const std::string& token) {
  if (token.size() == 6 && absl::StartsWith(token, "<0x") && token.back() == '>' &&
      absl::ascii_isxdigit(static_cast<unsigned char>(token[3])) &&
      absl::ascii_isxdigit(static_cast<unsigned char>(token[4]))) {
    const auto digit = [](char c) { return c <= '9' ? c - '0' : (c | 32) - 'a' + 10; };
    return Printable(std::string(1, static_cast<char>(digit(token[3]) * 16 + digit(token[4]))));
  }
  return absl::StrReplaceAll(token, {{"\xE2\x96\x81", " "}});
}

std::string TextOf(Spelling spelling, const std::string& token) {
  switch (spelling) {
    case Spelling::kBytes:
      return FromBytes(token);
    case Spelling::kPieces:
      return FromPieces(token);
    case Spelling::kPlain:
      break;
  }
  return token;
}

// Throws where it is none, as nlohmann's functions do.
int32_t IdOf(const Json& id) {
  if (!id.is_number_unsigned() || id.get<uint64_t>() > std::numeric_limits<int32_t>::max()) {
    throw std::invalid_argument(absl::StrCat("token id ", id.dump(), " is not in [0, 2147483647]"));
  }
  return id.get<int32_t>();
}

}  // namespace

absl::StatusOr<TokenTexts> ParseTokenTexts(std::string_view json) {
  try {
    const Json file = Json::parse(json);
    const Json& vocabulary = file.at("model").at("vocab");
    const Spelling spelling = SpellingOf(file);
    TokenTexts texts;
    if (vocabulary.is_array()) {  // Unigram: [token, score], by id
      for (size_t id = 0; id < vocabulary.size(); ++id) {
        texts[static_cast<int32_t>(id)] = TextOf(spelling, vocabulary[id].at(0).get<std::string>());
      }
    } else if (vocabulary.is_object()) {
      for (const auto& [token, id] : vocabulary.items()) {
        texts[IdOf(id)] = TextOf(spelling, token);
      }
    } else {
      throw std::invalid_argument("model.vocab is neither an object nor an array");
    }
    if (file.contains("added_tokens")) {
      for (const Json& added : file["added_tokens"]) {
        texts[IdOf(added.at("id"))] = added.at("content").get<std::string>();
      }
    }
    return texts;
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("not a tokenizer.json: ", error.what()));
  }
}

absl::StatusOr<TokenTexts> ReadTokenTexts(const std::string& path) {
  const absl::StatusOr<std::string> json = ReadRegularFile(path, kMostTokenizerBytes);
  if (!json.ok()) return json.status();
  absl::StatusOr<TokenTexts> texts = ParseTokenTexts(*json);
  if (texts.ok()) return texts;
  return absl::Status(texts.status().code(), absl::StrCat(path, ": ", texts.status().message()));
}

}  // namespace sis
