#include "client/recorded/recorded_log_probs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace sis {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A file with one position: the members of its sampled token, and the array of the others.
std::string File(absl::string_view sampled, absl::string_view top) {
  return absl::StrCat(R"({"logprobs": {"content": [{)", sampled, R"(, "top_logprobs": )", top,
                      "}]}}");
}

constexpr absl::string_view kSampled = R"("id": 3, "token": "a", "logprob": -0.5)";

RecordedPosition ParseOne(const std::string& json) {
  const auto sequences = ParseRecordedLogProbs(json, "file");
  EXPECT_TRUE(sequences.ok()) << sequences.status();
  EXPECT_EQ(sequences->size(), 1);
  EXPECT_EQ(sequences->front().positions.size(), 1);
  return sequences->front().positions.front();
}

TEST(RecordedLogProbsTest, ReadsLlamaCpp) {
  const RecordedPosition position =
      ParseOne(File(R"("id": 3, "token": "a", "bytes": [97, 255], "logprob": -0.5)",
                    R"([{"id": 16777215, "token": "b", "bytes": [], "logprob": -1e-3}])"));
  EXPECT_EQ(position.sampled.id, 3);
  EXPECT_EQ(position.sampled.text, "a\xff");
  EXPECT_EQ(position.sampled.log_prob, -0.5f);
  ASSERT_EQ(position.top.size(), 1);
  EXPECT_EQ(position.top[0].id, 16777215);
  EXPECT_EQ(position.top[0].text, "");
  EXPECT_EQ(position.top[0].log_prob, -1e-3f);
}

TEST(RecordedLogProbsTest, ReadsTokenIdsOfVllm) {
  const RecordedPosition position =
      ParseOne(File(R"("token": "token_id:42", "bytes": [116], "logprob": 0)",
                    R"([{"token": "token_id:x", "logprob": -1}])"));
  EXPECT_EQ(position.sampled.id, 42);
  EXPECT_EQ(position.sampled.text, std::nullopt);
  EXPECT_EQ(position.top[0].id, std::nullopt);  // a token of that text
  EXPECT_EQ(position.top[0].text, "token_id:x");
}

TEST(RecordedLogProbsTest, ReadsWholeResponses) {
  const std::string whole = absl::StrCat(R"({"id": "x", "choices": [{"index": 0, )",
                                         File(kSampled, "[]").substr(1), "]}");
  EXPECT_EQ(ParseOne(whole).sampled.id, 3);
}

TEST(RecordedLogProbsTest, BytesOrTextAloneNameAToken) {
  EXPECT_EQ(ParseOne(File(R"("bytes": [98], "logprob": 0)", "[]")).sampled.text, "b");
  EXPECT_EQ(
      ParseOne(File(R"("token": "c", "bytes": null, "id": null, "logprob": 0)", "[]")).sampled.text,
      "c");
}

TEST(RecordedLogProbsTest, ClampedLogProbsAreMinusInfinity) {
  for (const char* clamped : {"null", "-9999", "-9999.0", "-3.4e38", "-1e300"}) {
    const RecordedPosition position =
        ParseOne(File(absl::StrCat(R"("id": 3, "logprob": )", clamped), "[]"));
    EXPECT_TRUE(std::isinf(position.sampled.log_prob) && position.sampled.log_prob < 0) << clamped;
  }
  EXPECT_EQ(ParseOne(File(R"("id": 3, "logprob": -9998)", "[]")).sampled.log_prob, -9998.0f);
}

TEST(RecordedLogProbsTest, NamesWhatIsWrong) {
  const std::string deep(100000, '[');
  const std::pair<std::string, std::string> cases[] = {
      {"", "file: not JSON: "},
      {"garbage", "file: not JSON: "},
      {File(kSampled, "[]").substr(0, 40), "file: not JSON: "},
      {deep, "file: not JSON: "},
      {deep + std::string(deep.size(), ']'), "file: [0].logprobs: is missing"},
      {File(R"("id": 3, "logprob": NaN)", "[]"), "file: not JSON: "},
      {File(R"("id": 3, "logprob": 1e999)", "[]"), "file: not JSON: "},
      {"\"\xff\"", "file: not JSON: "},
      {"[]", "file: is an empty array"},
      {"[3]", "file: [0].logprobs: is missing"},
      {"{}\n{", "file: line 2: not JSON: "},
      {File(kSampled, "[]") + "\n{}", "file: [1].logprobs: is missing"},
      {"3", "file: logprobs: is missing"},
      {R"({"choices": []})", "file: choices: is not an array with a first element"},
      {R"({"choices": 3})", "file: choices: is not an array with a first element"},
      {R"({"choices": [3]})", "file: choices[0].logprobs: is missing"},
      {R"({"logprobs": null})", "file: logprobs: is missing"},
      {R"({"logprobs": 3})", "file: logprobs.content: is missing"},
      {R"({"logprobs": {"content": {}}})", "file: logprobs.content: is not an array"},
      {R"({"logprobs": {"content": [3]}})", "file: logprobs.content[0]: is not an object"},
      {R"({"logprobs": {"content": [{"id": 3, "logprob": -1}]}})",
       "logprobs.content[0].top_logprobs: is missing"},
      {File(kSampled, "3"), "logprobs.content[0].top_logprobs: is not an array"},
      {File(kSampled, "[[]]"), "logprobs.content[0].top_logprobs[0]: is not an object"},
      {File(R"("id": 3)", "[]"), "logprobs.content[0].logprob: is missing"},
      {File(R"("id": 3, "logprob": "-1")", "[]"), "content[0].logprob: is not a number"},
      {File(R"("id": 3, "logprob": true)", "[]"), "content[0].logprob: is not a number"},
      {File(R"("id": 3, "logprob": 0.02)", "[]"),
       "content[0].logprob: 0.02 is not a log-prob of at most 1/64"},
      {File(R"("logprob": -1)", "[]"), "content[0]: has none of id, token and bytes"},
      {File(R"("id": -1, "logprob": -1)", "[]"), "content[0].id: -1 is not in [0, 2^24)"},
      {File(R"("id": 16777216, "logprob": -1)", "[]"), "content[0].id: 16777216 is not in"},
      {File(R"("id": 18446744073709551615, "logprob": -1)", "[]"), "is not in [0, 2^24)"},
      {File(R"("id": 1e30, "logprob": -1)", "[]"), "content[0].id: is not an integer"},
      {File(R"("id": "3", "logprob": -1)", "[]"), "content[0].id: is not an integer"},
      {File(R"("token": 3, "logprob": -1)", "[]"), "content[0].token: is not a string"},
      {File(R"("token": "token_id:16777216", "logprob": -1)", "[]"),
       "content[0].token: 16777216 is not in [0, 2^24)"},
      {File(R"("bytes": "a", "logprob": -1)", "[]"), "bytes: is not an array of bytes"},
      {File(R"("bytes": [1, 256], "logprob": -1)", "[]"),
       "bytes[1]: is not an integer in [0, 255]"},
      {File(R"("bytes": [-1], "logprob": -1)", "[]"), "bytes[0]: is not an integer in [0, 255]"},
      {File(R"("bytes": [1.5], "logprob": -1)", "[]"), "bytes[0]: is not an integer in [0, 255]"},
      {File(kSampled, R"([{"id": 3, "logprob": -1}, {"id": 4, "logprob": 1}])"),
       "logprobs.content[0].top_logprobs[1].logprob: 1 is not a log-prob"},
  };
  for (const auto& [json, message] : cases) {
    const absl::Status status = ParseRecordedLogProbs(json, "file").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << json.substr(0, 200);
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }
}

// What a position says, as "id text log-prob".
std::vector<std::string> Tokens(const RecordedPosition& position) {
  const auto describe = [](const RecordedToken& token) {
    return absl::StrCat(token.id.value_or(-1), " ", token.text.value_or("-"), " ", token.log_prob);
  };
  std::vector<std::string> tokens = {describe(position.sampled)};
  for (const RecordedToken& token : position.top) tokens.push_back(describe(token));
  return tokens;
}

TEST(RecordedLogProbsTest, ReadsVllmsDictionaries) {
  const std::string one =
      R"([{"5": {"logprob": -2.5, "rank": 2, "decoded_token": "a"},
           "7": {"logprob": -0.5, "rank": 1, "decoded_token": null}}])";
  for (const std::string& file :
       {one, absl::StrCat("[", one, "]"), absl::StrCat(R"({"logprobs": )", one, "}"),
        absl::StrCat(R"({"outputs": [{"token_ids": [5], "logprobs": )", one, "}]}")}) {
    EXPECT_THAT(Tokens(ParseOne(file)), ElementsAre("5 a -2.5", "5 a -2.5", "7 - -0.5")) << file;
  }
  // Where ids are given, the order does not count; one that is not listed has no log-prob.
  EXPECT_THAT(Tokens(ParseOne(absl::StrCat(R"({"token_ids": [7], "logprobs": )", one, "}"))),
              ElementsAre("7 - -0.5", "5 a -2.5", "7 - -0.5"));
  EXPECT_THAT(Tokens(ParseOne(absl::StrCat(R"({"token_ids": [8], "logprobs": )", one, "}"))),
              ElementsAre("8 - -inf", "5 a -2.5", "7 - -0.5"));
  EXPECT_THAT(Tokens(ParseOne(R"([{"9": -1.5}])")), ElementsAre("9 - -1.5", "9 - -1.5"));
}

TEST(RecordedLogProbsTest, ReadsFlatLogProbs) {
  const auto sequences = ParseRecordedLogProbs(
      R"({"start_indices": [0, 2], "end_indices": [2, 3], "token_ids": [5, 7, 6],
          "logprobs": [-2.5, -0.5, -1], "decoded_tokens": ["a", null, "b"]})",
      "file");
  ASSERT_TRUE(sequences.ok()) << sequences.status();
  ASSERT_EQ(sequences->front().positions.size(), 2);
  EXPECT_THAT(Tokens(sequences->front().positions[0]),
              ElementsAre("5 a -2.5", "5 a -2.5", "7 - -0.5"));
  EXPECT_THAT(Tokens(sequences->front().positions[1]), ElementsAre("6 b -1", "6 b -1"));
}

TEST(RecordedLogProbsTest, ReadsSglang) {
  const std::string lists = R"("output_token_logprobs": [[-2.5, 5, "a"]],
                               "output_top_logprobs": [[[-0.5, 7, null], [-2.5, 5]]])";
  for (const std::string& file :
       {absl::StrCat("{", lists, "}"), absl::StrCat(R"({"text": "a", "meta_info": {)", lists, "}}"),
        absl::StrCat(R"([{"meta_info": {)", lists, "}}]")}) {
    EXPECT_THAT(Tokens(ParseOne(file)), ElementsAre("5 a -2.5", "7 - -0.5", "5 - -2.5")) << file;
  }
  EXPECT_THAT(Tokens(ParseOne(R"({"output_token_logprobs": [[-2.5, 5, "a"]]})")),
              ElementsAre("5 a -2.5"));
  EXPECT_THAT(Tokens(ParseOne(R"({"output_token_logprobs": [[null, 5, "a"]],
                                  "output_top_logprobs": [null]})")),
              ElementsAre("5 a -inf"));
}

TEST(RecordedLogProbsTest, ReadsCompletions) {
  EXPECT_THAT(Tokens(ParseOne(R"({"choices": [{"text": "a", "logprobs": {"tokens": ["a"],
      "token_logprobs": [-2.5], "top_logprobs": [{"b": -0.5, "token_id:7": -3}],
      "text_offset": [0]}}]})")),
              ElementsAre("-1 a -2.5", "-1 b -0.5", "7 - -3"));
  EXPECT_THAT(Tokens(ParseOne(R"({"logprobs": {"tokens": ["a"], "token_logprobs": [null],
                                  "top_logprobs": null}})")),
              ElementsAre("-1 a -inf"));
}

TEST(RecordedLogProbsTest, ReadsSeveralSequences) {
  const std::string one = File(kSampled, "[]");
  const std::string choice = one.substr(1, one.size() - 2);
  for (const auto& [file, count] :
       {std::pair(absl::StrCat("[", one, ",", one, "]"), 2),
        {absl::StrCat(one, "\n\n", one), 2},
        {absl::StrCat("{\"choices\": [{", choice, "}, {", choice, "}, {", choice, "}]}\n", one),
         4}}) {
    const auto sequences = ParseRecordedLogProbs(file, "file");
    ASSERT_TRUE(sequences.ok()) << sequences.status();
    EXPECT_EQ(sequences->size(), count) << file;
  }
}

// The ids of the positions that have a list; the others are printed as -id.
std::vector<int> Placed(const std::string& tokens, const std::vector<int>& entries) {
  std::string list;
  for (const int id : entries) {
    absl::StrAppend(&list, list.empty() ? "" : ",", R"({"id": )", id,
                    R"(, "logprob": -1, "top_logprobs": [{"id": )", id, R"(, "logprob": -1}]})");
  }
  const auto sequences = ParseRecordedLogProbs(
      absl::StrCat(R"({"tokens": )", tokens, R"(, "completion_probabilities": [)", list, "]}"),
      "file");
  EXPECT_TRUE(sequences.ok()) << sequences.status();
  std::vector<int> placed;
  for (const RecordedPosition& position : sequences->front().positions) {
    placed.push_back(position.top.empty() ? -*position.sampled.id : *position.sampled.id);
  }
  return placed;
}

TEST(RecordedLogProbsTest, WhatLlamaCppLeavesOutHasAPlace) {
  EXPECT_THAT(Placed("[1, 2, 3, 4]", {1, 4}), ElementsAre(1, -2, -3, 4));
  EXPECT_THAT(Placed("[1, 2, 3]", {1, 2, 3}), ElementsAre(1, 2, 3));
  // The last token of a character is the one that is not held back.
  EXPECT_THAT(Placed("[1, 2, 2, 3]", {1, 2, 3}), ElementsAre(1, -2, 2, 3));
  EXPECT_THAT(Placed("[1, 2]", {}), ElementsAre(-1, -2));
  EXPECT_THAT(Placed("[]", {1, 2}), ElementsAre(1, 2));  // without return_tokens
  const absl::Status status =
      ParseRecordedLogProbs(R"({"tokens": [2, 1], "completion_probabilities": [
          {"id": 1, "logprob": -1, "top_logprobs": []},
          {"id": 2, "logprob": -1, "top_logprobs": []}]})",
                            "file")
          .status();
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("completion_probabilities[0]: is of a token that is not among"));
}

TEST(RecordedLogProbsTest, ReadsProbabilities) {
  EXPECT_THAT(Tokens(ParseOne(R"({"completion_probabilities": [{"id": 5, "token": "a", "prob": 1,
      "top_probs": [{"id": 5, "token": "a", "prob": 1}, {"id": 6, "token": "b", "prob": 0}]}]})")),
              ElementsAre("5 a 0", "5 a 0", "6 b -inf"));
}

TEST(RecordedLogProbsTest, ReadsARealResponseOfLlamaCpp) {
  const char* const name = "client/recorded/testdata/llama_cpp_left_out.json";
  std::ifstream file(name);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const auto sequences = ParseRecordedLogProbs(text, name);
  ASSERT_TRUE(sequences.ok()) << sequences.status();
  const std::vector<RecordedPosition>& positions = sequences->front().positions;
  ASSERT_EQ(positions.size(), 32);  // of which the list has 28
  const std::set<size_t> left_out = {0, 2, 29, 30};
  for (size_t i = 0; i < positions.size(); ++i) {
    EXPECT_EQ(positions[i].top.empty(), left_out.contains(i)) << i;
  }
  EXPECT_EQ(positions[1].sampled.text, "風");
}

TEST(RecordedLogProbsTest, NamesWhatIsWrongInEveryFormat) {
  const std::pair<std::string, std::string> cases[] = {
      {R"([{"5": {}}])", "[0].5.logprob: is missing"},
      {R"([{"5": {"logprob": 1}}])", "[0].5.logprob: 1 is not a log-prob of at most 1/64"},
      {R"([{"5": -1}, {}])", "[1]: is not an object with a token"},
      {R"([{"5": -1, "a": -1}])", "[0].a: is not called by an id"},
      {R"([{"99999999": -1}])", "[0].99999999: 99999999 is not in [0, 2^24)"},
      {R"({"token_ids": [1, 2], "logprobs": [{"5": -1}]})",
       "token_ids: is not an array of 1 ids, one per position"},
      {R"({"start_indices": [0], "end_indices": [1], "token_ids": [5], "logprobs": []})",
       "logprobs: has 0 elements for 1 token_ids"},
      {R"({"start_indices": [0], "end_indices": [2], "token_ids": [5], "logprobs": [-1]})",
       "end_indices[0]: is not an integer in [0, 1]"},
      {R"({"start_indices": [1], "end_indices": [1], "token_ids": [5], "logprobs": [-1]})",
       "end_indices[0]: is not above start_indices"},
      {R"({"start_indices": [1], "end_indices": [], "token_ids": [5], "logprobs": [-1]})",
       "end_indices: has 0 elements for 1 start_indices"},
      {R"({"output_token_logprobs": [5]})",
       "output_token_logprobs[0]: is not an array of log-prob, id and text"},
      {R"({"output_token_logprobs": [["a", 5]]})", "output_token_logprobs[0][0]: is not a number"},
      {R"({"output_token_logprobs": [[-1, -5]]})", "output_token_logprobs[0][1]: -5 is not in"},
      {R"({"output_token_logprobs": [[-1, 5]], "output_top_logprobs": []})",
       "output_top_logprobs: is not an array of 1 lists, one per sampled token"},
      {R"({"output_token_logprobs": [[-1, 5]], "output_top_logprobs": [3]})",
       "output_top_logprobs[0]: is not an array"},
      {R"({"logprobs": {"tokens": ["a"], "token_logprobs": []}})",
       "logprobs.token_logprobs: has 0 elements for 1 tokens"},
      {R"({"logprobs": {"tokens": [3], "token_logprobs": [-1]}})",
       "logprobs.tokens[0]: is not a string"},
      {R"({"logprobs": {"tokens": ["a"], "token_logprobs": [-1], "top_logprobs": [{"a": 2}]}})",
       "logprobs.top_logprobs[0].a: 2 is not a log-prob"},
      {R"({"completion_probabilities": [{"id": 5, "prob": 2, "top_probs": []}]})",
       "completion_probabilities[0].prob: 2 is not in [0, 1]"},
      {R"({"completion_probabilities": [], "tokens": ["a"]})", "tokens[0]: is not an integer"},
      {R"({"outputs": []})", "outputs: is not an array with a first element"},
  };
  for (const auto& [json, message] : cases) {
    const absl::Status status = ParseRecordedLogProbs(json, "file").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << json;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }
}

// Engines can list their whole vocabulary. What takes the square of it runs into the test's time
// limit.
TEST(RecordedLogProbsTest, ReadsListsOfWholeVocabularies) {
  constexpr int kTokens = 400'000;
  std::string dictionary;
  for (int id = 0; id < kTokens; ++id) {
    absl::StrAppend(&dictionary, id == 0 ? "" : ",", "\"", id, "\":-14");
  }
  const RecordedPosition vllm = ParseOne(absl::StrCat("[{", dictionary, "}]"));
  EXPECT_EQ(vllm.top.size(), kTokens);
  EXPECT_EQ(vllm.top.back().id, kTokens - 1);
  const RecordedPosition completion =
      ParseOne(absl::StrCat(R"({"logprobs": {"tokens": ["7"], "token_logprobs": [-14], )",
                            R"("top_logprobs": [{)", dictionary, "}]}}"));
  EXPECT_EQ(completion.top.size(), kTokens);
  EXPECT_EQ(completion.top.front().text, "0");
}

}  // namespace
}  // namespace sis
