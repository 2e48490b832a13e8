// The texts of tokens, from the tokenizer.json that Hugging Face's libraries write beside a model.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace sis {

// By token id, UTF-8. What a byte-level token holds of a character that is cut in two is written
// as \xE3. Added tokens, such as the end of a text, stand as they are named.
using TokenTexts = std::map<int32_t, std::string>;

// The contents of such a file: BPE, WordPiece, WordLevel and Unigram. InvalidArgument says what is
// wrong.
absl::StatusOr<TokenTexts> ParseTokenTexts(std::string_view json);
// The same with the file's name, or why it can't be read.
absl::StatusOr<TokenTexts> ReadTokenTexts(const std::string& path);

}  // namespace sis
