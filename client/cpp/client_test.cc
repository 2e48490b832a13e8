// The C++ client against a real server.
#include "client/cpp/client.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/testing/server_process.h"

namespace sis {
namespace {

constexpr int32_t kVocabulary = 100;
constexpr uint32_t kPositions = 4;

// A block of equal records.
struct Records {
  explicit Records(int32_t sampled_id) : ids(kPositions, sampled_id) {}
  RecordView view() const { return {ids, log_probs, ids, log_probs}; }

  const std::vector<int32_t> ids;
  const std::vector<float> log_probs = std::vector<float>(kPositions, -0.5F);
};
constexpr PackOptions kOptions = {
    .encoding = BlockEncoding::kFloat32, .slots = 1, .vocabulary_size = kVocabulary};

void Add(AppendStream& stream, const v1::SequenceRef& sequence, int32_t sampled_id) {
  const absl::Status added = stream.AddBlock(sequence, Records(sampled_id).view(), kOptions);
  EXPECT_TRUE(added.ok()) << added;
}

v1::SequenceRef Sequence(const std::string& id) {
  v1::SequenceRef sequence;
  sequence.set_id(id);
  return sequence;
}

v1::Seal SealAt(uint32_t length) {
  v1::Seal seal;
  seal.set_length(length);
  return seal;
}

class ClientTest : public ::testing::Test {
 protected:
  ClientTest()
      : server_({"--listen=127.0.0.1:0", "--cache_bytes=67108864"}), client_(server_.address()) {
    CreateRun("run");
  }

  void CreateRun(const std::string& run_id, uint64_t byte_quota = 0) {
    v1::CreateRunRequest request;
    request.set_run_id(run_id);
    request.mutable_config()->set_vocabulary_size(kVocabulary);
    request.mutable_config()->set_top_k(1);
    request.mutable_config()->set_byte_quota(byte_quota);
    const absl::StatusOr<v1::CreateRunResponse> created = client_.CreateRun(request);
    ASSERT_TRUE(created.ok()) << created.status();
  }

  static v1::AppendHeader Header(const std::string& run_id = "run") {
    v1::AppendHeader header;
    header.mutable_run()->set_run_id(run_id);
    header.set_vocabulary_size(kVocabulary);
    header.mutable_sampling()->set_log_probs(v1::Sampling::LOG_PROBS_PROCESSED);
    header.mutable_sampling()->set_temperature(1);
    return header;
  }

  std::vector<v1::FetchedSlice> Fetch(const std::vector<std::string>& ids) {
    v1::FetchTopKRequest request;
    request.mutable_run()->set_run_id("run");
    request.set_whole_blocks(true);
    for (const std::string& id : ids) *request.add_slices()->mutable_sequence() = Sequence(id);
    grpc::ClientContext context;
    const auto stream = stub_->FetchTopK(&context, request);
    std::vector<v1::FetchedSlice> slices(ids.size());
    for (v1::FetchTopKResponse response; stream->Read(&response);) {
      for (const v1::FetchedSlice& part : response.slices()) slices[part.slice()].MergeFrom(part);
    }
    EXPECT_TRUE(stream->Finish().ok());
    return slices;
  }

  const ServerProcess server_;
  const Client client_;
  const std::unique_ptr<v1::RatioService::Stub> stub_ = v1::RatioService::NewStub(
      grpc::CreateChannel(server_.address(), grpc::InsecureChannelCredentials()));
};

TEST_F(ClientTest, FlushedRecordsAreFetchedUnchanged) {
  const auto stream = client_.OpenAppend(Header());
  const std::vector<std::byte> block = *PackBlock(Records(7).view(), kOptions);
  Add(*stream, Sequence("a"), 7);
  stream->AddSeal(Sequence("a"), SealAt(kPositions));
  ASSERT_TRUE(stream->Flush().ok());
  v1::Gap gap;
  gap.set_length(2);
  gap.set_reason(v1::MISSING_REASON_INVALID_LOG_PROB);
  stream->AddGap(Sequence("b"), gap);
  ASSERT_TRUE(stream->Flush().ok());

  const std::vector<v1::FetchedSlice> slices = Fetch({"b", "lost", "a"});
  ASSERT_EQ(slices[0].missing_size(), 1);
  EXPECT_EQ(slices[0].missing(0).reason(), v1::MISSING_REASON_INVALID_LOG_PROB);
  EXPECT_EQ(slices[1].blocks_size(), 0);
  ASSERT_EQ(slices[2].blocks_size(), 1);
  EXPECT_EQ(slices[2].blocks(0),
            std::string(reinterpret_cast<const char*>(block.data()), block.size()));
}

TEST_F(ClientTest, AnInvalidRecordIsNotAdded) {
  const auto stream = client_.OpenAppend(Header());
  const absl::Status added = stream->AddBlock(Sequence("a"), Records(kVocabulary).view(), kOptions);
  EXPECT_EQ(added.code(), absl::StatusCode::kInvalidArgument) << added;
  Add(*stream, Sequence("b"), 9);
  EXPECT_TRUE(stream->Flush().ok());
  EXPECT_EQ(Fetch({"a"})[0].blocks_size(), 0);
}

TEST_F(ClientTest, ARefusedEntryIsNamedAndTheOthersAreStored) {
  const auto stream = client_.OpenAppend(Header());
  Add(*stream, Sequence("a"), 7);
  Add(*stream, Sequence("a"), 8);  // another value there
  Add(*stream, Sequence("b"), 9);
  const absl::Status status = stream->Flush();
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists) << status;
  EXPECT_NE(status.message().find("'a'"), absl::string_view::npos) << status;
  EXPECT_TRUE(stream->Flush().ok()) << "the refused entry is sent again";
  for (const v1::FetchedSlice& slice : Fetch({"a", "b"})) EXPECT_EQ(slice.blocks_size(), 1);
}

TEST_F(ClientTest, AStreamThatTheServerEndsSaysWhy) {
  const auto stream = client_.OpenAppend(Header("unknown"));
  Add(*stream, Sequence("a"), 7);
  EXPECT_EQ(stream->Flush().code(), absl::StatusCode::kNotFound);
  CreateRun("unknown");
  EXPECT_TRUE(stream->Flush().ok()) << "what had no answer is sent again";
}

TEST_F(ClientTest, TheExampleRecords) {
  EXPECT_EQ(std::system(absl::StrCat("client/cpp/example ", server_.address()).c_str()), 0);
}

TEST_F(ClientTest, EntriesWithoutRoomAreSentAgainUntilTheTimeout) {
  CreateRun("small", 1 << 16);
  const Client impatient(server_.address(), {.timeout = absl::Seconds(5)});
  const auto stream = impatient.OpenAppend(Header("small"));
  absl::Status status;
  std::vector<v1::SequenceRef> stored;
  while (status.ok()) {
    stored.push_back(Sequence(absl::StrCat("s", stored.size())));
    ASSERT_LT(stored.size(), 10'000);
    Add(*stream, stored.back(), 7);
    status = stream->Flush();
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  v1::ReleaseRequest release;
  release.mutable_run()->set_run_id("small");
  release.mutable_sequences()->Assign(stored.begin(), stored.end() - 1);
  grpc::ClientContext context;
  v1::ReleaseResponse released;
  ASSERT_TRUE(stub_->Release(&context, release, &released).ok());
  EXPECT_TRUE(stream->Flush().ok()) << "the entry without room is still in the batch";
}

// A server that accepts connections but never answers.
TEST(SilentServerTest, NoCallOutlivesItsTimeout) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {
      .sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t size = sizeof address;
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(listener, 8), 0);
  getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
  const Client client(absl::StrCat("127.0.0.1:", ntohs(address.sin_port)),
                      {.timeout = absl::Seconds(1)});
  EXPECT_EQ(client.CreateRun({}).status().code(), absl::StatusCode::kDeadlineExceeded);
  const auto stream = client.OpenAppend({});
  stream->AddSeal(Sequence("a"), SealAt(1));
  EXPECT_EQ(stream->Flush().code(), absl::StatusCode::kDeadlineExceeded);
  close(listener);
}

}  // namespace
}  // namespace sis
