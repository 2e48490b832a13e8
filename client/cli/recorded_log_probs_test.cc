#include "client/cli/recorded_log_probs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace sis {
namespace {

using ::testing::HasSubstr;

// A file with one position: the members of its sampled token, and the array of the others.
std::string File(absl::string_view sampled, absl::string_view top) {
  return absl::StrCat(R"({"logprobs": {"content": [{)", sampled, R"(, "top_logprobs": )", top,
                      "}]}}");
}

constexpr absl::string_view kSampled = R"("id": 3, "token": "a", "logprob": -0.5)";

RecordedPosition ParseOne(const std::string& json) {
  const auto positions = ParseRecordedLogProbs(json, "file");
  EXPECT_TRUE(positions.ok()) << positions.status();
  EXPECT_EQ(positions->size(), 1);
  return positions->front();
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
      {deep + std::string(deep.size(), ']'), "file: logprobs: is missing"},
      {File(R"("id": 3, "logprob": NaN)", "[]"), "file: not JSON: "},
      {File(R"("id": 3, "logprob": 1e999)", "[]"), "file: not JSON: "},
      {"\"\xff\"", "file: not JSON: "},
      {"[]", "file: logprobs: is missing"},
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

}  // namespace
}  // namespace sis
