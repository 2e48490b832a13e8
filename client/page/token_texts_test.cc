#include "client/page/token_texts.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace sis {
namespace {

TEST(TokenTextsTest, ByteLevel) {
  const auto texts = ParseTokenTexts(R"({
    "model": {"type": "BPE", "vocab": {"a": 0, "Ġthe": 1, "Ċ": 2, "Ã©": 3, "ãģ": 4, "ł": 5}},
    "decoder": {"type": "ByteLevel"},
    "added_tokens": [{"id": 6, "content": "<|im_end|>"}, {"id": 0, "content": "Ġ"}]})");
  ASSERT_TRUE(texts.ok()) << texts.status();
  EXPECT_EQ(texts->at(1), " the");
  EXPECT_EQ(texts->at(2), "\n");
  EXPECT_EQ(texts->at(3), "é");
  EXPECT_EQ(texts->at(4), "\\xE3\\x81") << "the first two bytes of three";
  EXPECT_EQ(texts->at(5), "\\xA0");
  EXPECT_EQ(texts->at(6), "<|im_end|>");
  EXPECT_EQ(texts->at(0), "Ġ") << "an added token stands as it is named";
}

// As Llama 3 and Qwen have it: the decoder is one of several.
TEST(TokenTextsTest, ByteLevelAmongOthers) {
  const auto texts = ParseTokenTexts(R"({
    "model": {"vocab": {"Ġthe": 1}}, "decoder": null,
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
      {"type": "Split"}, {"type": "ByteLevel"}]}})");
  ASSERT_TRUE(texts.ok()) << texts.status();
  EXPECT_EQ(texts->at(1), " the");
}

TEST(TokenTextsTest, SentencePiece) {
  const auto texts = ParseTokenTexts(R"({
    "model": {"type": "Unigram", "vocab": [["<unk>", 0.0], ["▁the", -1.5], ["<0x0A>", 0], ["<0xE3>", 0],
                                           ["<0xG?>", 0]]},
    "decoder": {"type": "Sequence", "decoders": [{"type": "Replace"}, {"type": "ByteFallback"}]}})");
  ASSERT_TRUE(texts.ok()) << texts.status();
  EXPECT_EQ(texts->at(0), "<unk>");
  EXPECT_EQ(texts->at(1), " the");
  EXPECT_EQ(texts->at(2), "\n");
  EXPECT_EQ(texts->at(3), "\\xE3");
  EXPECT_EQ(texts->at(4), "<0xG?>") << "no byte";
}

TEST(TokenTextsTest, Plain) {
  const auto texts = ParseTokenTexts(R"({"model": {"vocab": {"Ġ": 3, "##ing": 4}}})");
  ASSERT_TRUE(texts.ok()) << texts.status();
  EXPECT_EQ(texts->at(3), "Ġ");
  EXPECT_EQ(texts->at(4), "##ing");
}

TEST(TokenTextsTest, RefusesOtherFiles) {
  for (const char* bad :
       {"", "[]", "{}", "{\"model\": {}}", "{\"model\": {\"vocab\": {\"a\": \"b\"}}}",
        "{\"model\": {\"vocab\": [1]}}", "{\"model\": {\"vocab\": 5}}", "\xFF"}) {
    EXPECT_EQ(ParseTokenTexts(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
  for (const char* id : {"-1", "2147483648", "4294967296", "1e300", "0.5", "null"}) {
    const auto texts = ParseTokenTexts(absl::StrCat("{\"model\": {\"vocab\": {\"a\": ", id, "}}}"));
    EXPECT_EQ(texts.status().code(), absl::StatusCode::kInvalidArgument) << id;
  }
  for (const char* path : {"no such file", "/", "/dev/zero"}) {
    EXPECT_EQ(ReadTokenTexts(path).status().code(), absl::StatusCode::kInvalidArgument) << path;
  }
}

}  // namespace
}  // namespace sis
