// The client against a scripted service: what a real server does only when it is overloaded, broken
// or wrong.
#include "client/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <functional>
#include <future>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "kernels/crc32c.h"
#include "sis/v1/ratio_service.grpc.pb.h"

namespace sis {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Answers as the test says.
class ScriptedService final : public v1::RatioService::Service {
 public:
  using ServerStream = grpc::ServerReaderWriter<v1::AppendResponse, v1::AppendRequest>;

  std::function<grpc::Status(ServerStream&)> append;
  std::vector<v1::FetchTopKResponse> fetched;
  v1::EvaluateResponse evaluated;
  v1::FetchTopKRequest fetch_request;
  v1::EvaluateRequest evaluate_request;

  grpc::Status Append(grpc::ServerContext*, ServerStream* stream) override {
    const std::lock_guard lock(appending_);
    return append(*stream);
  }
  // Once the client knows that the stream has ended: what `append` wrote may be read. gRPC, which
  // is not instrumented, has ordered that too, but not for ThreadSanitizer to see.
  void AppendHasEnded() { const std::lock_guard lock(appending_); }
  grpc::Status FetchTopK(grpc::ServerContext*, const v1::FetchTopKRequest* request,
                         grpc::ServerWriter<v1::FetchTopKResponse>* writer) override {
    fetch_request = *request;
    for (const v1::FetchTopKResponse& response : fetched) writer->Write(response);
    return grpc::Status::OK;
  }
  grpc::Status Evaluate(grpc::ServerContext*, const v1::EvaluateRequest* request,
                        v1::EvaluateResponse* response) override {
    evaluate_request = *request;
    *response = evaluated;
    return grpc::Status::OK;
  }
  grpc::Status GetRun(grpc::ServerContext*, const v1::GetRunRequest* request,
                      v1::GetRunResponse*) override {
    return grpc::Status(grpc::StatusCode::NOT_FOUND, "no run " + request->run_id());
  }

 private:
  std::mutex appending_;
};

// Acks every entry of a batch by `code_of`.
v1::AppendResponse AckAll(const v1::AppendBatch& batch,
                          const std::function<int(const v1::AppendEntry&)>& code_of) {
  v1::AppendResponse response;
  for (const v1::AppendEntry& entry : batch.entries()) {
    v1::Ack& ack = *response.add_acks();
    ack.set_code(code_of(entry));
    if (ack.code() != 0) ack.set_message("scripted");
    ack.set_retry_seconds(0.01);
  }
  return response;
}

int Ok(const v1::AppendEntry&) { return 0; }

template <typename T>
std::vector<T> Array(const std::string& bytes) {
  std::vector<T> array(bytes.size() / sizeof(T));
  std::memcpy(array.data(), bytes.data(), array.size() * sizeof(T));
  return array;
}

template <typename T>
std::string Bytes(const std::vector<T>& array) {
  return std::string(reinterpret_cast<const char*>(array.data()), array.size() * sizeof(T));
}

class ClientTest : public ::testing::Test {
 protected:
  void SetUp() override {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    auto client = Client::Connect("127.0.0.1:" + std::to_string(port));
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
  }

  std::unique_ptr<AppendWriter> Append(const AppendOptions& options = {}) {
    v1::Sampling sampling;
    sampling.set_log_probs(v1::Sampling::PROCESSED);
    sampling.set_temperature(0.5);
    return client_->Append({"run", 3}, sampling, 100, options);
  }

  // One position of two slots.
  static absl::Status AppendOne(AppendWriter& stream, const std::string& id) {
    const std::vector<int32_t> sampled = {7}, ids = {7, 9};
    const std::vector<float> sampled_log_probs = {-0.25f}, log_probs = {-0.25f, -2.0f};
    return stream.Block({id, 2}, 5, 11, {sampled, sampled_log_probs, ids, log_probs});
  }

  ScriptedService service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Client> client_;
};

TEST_F(ClientTest, AppendSendsHeaderThenEntriesInOrder) {
  std::vector<v1::AppendRequest> requests;
  service_.append = [&](ScriptedService::ServerStream& stream) {
    v1::AppendRequest request;
    while (stream.Read(&request)) {
      requests.push_back(request);
      if (request.has_batch()) stream.Write(AckAll(request.batch(), Ok));
    }
    return grpc::Status::OK;
  };
  const auto stream = Append({.worker = "worker 1"});
  ASSERT_TRUE(AppendOne(*stream, "a").ok());
  ASSERT_TRUE(stream->Truncate({"a", 2}, 6).ok());
  ASSERT_TRUE(stream->Seal({"a", 2}, 6).ok());
  const auto refused = stream->Finish();
  ASSERT_TRUE(refused.ok()) << refused.status();
  EXPECT_TRUE(refused->empty());

  service_.AppendHasEnded();
  ASSERT_GE(requests.size(), 2);
  const v1::AppendHeader& header = requests[0].header();
  EXPECT_EQ(header.run().run_id(), "run");
  EXPECT_EQ(header.run().incarnation(), 3);
  EXPECT_EQ(header.worker(), "worker 1");
  EXPECT_EQ(header.sampling().temperature(), 0.5);
  EXPECT_EQ(header.vocabulary_size(), 100);
  std::vector<v1::AppendEntry> entries;
  for (const v1::AppendRequest& request : requests) {
    entries.insert(entries.end(), request.batch().entries().begin(),
                   request.batch().entries().end());
  }
  ASSERT_EQ(entries.size(), 3);
  const v1::Block& block = entries[0].block();
  EXPECT_EQ(block.sequence().id(), "a");
  EXPECT_EQ(block.sequence().attempt(), 2);
  EXPECT_EQ(block.first_position(), 5);
  EXPECT_EQ(block.policy_version(), 11);
  EXPECT_THAT(Array<int32_t>(block.sampled_ids()), ElementsAre(7));
  EXPECT_THAT(Array<float>(block.sampled_log_probs()), ElementsAre(-0.25f));
  EXPECT_THAT(Array<int32_t>(block.top_k_ids()), ElementsAre(7, 9));
  EXPECT_THAT(Array<float>(block.top_k_log_probs()), ElementsAre(-0.25f, -2.0f));
  const std::string arrays =
      block.sampled_ids() + block.sampled_log_probs() + block.top_k_ids() + block.top_k_log_probs();
  EXPECT_EQ(block.crc32c(), ExtendCrc32c(0, std::as_bytes(std::span(arrays))));
  EXPECT_EQ(entries[1].truncate().length(), 6);
  EXPECT_EQ(entries[2].seal().length(), 6);
}

TEST_F(ClientTest, AppendCoalescesWhileABatchIsUnderWay) {
  std::promise<void> first_batch_came, all_queued;
  std::vector<int> batch_sizes;
  service_.append = [&](ScriptedService::ServerStream& stream) {
    v1::AppendRequest request;
    stream.Read(&request);
    while (stream.Read(&request)) {
      batch_sizes.push_back(request.batch().entries_size());
      if (batch_sizes.size() == 1) {
        first_batch_came.set_value();
        all_queued.get_future().wait();
      }
      stream.Write(AckAll(request.batch(), Ok));
    }
    return grpc::Status::OK;
  };
  const auto stream = Append();
  ASSERT_TRUE(AppendOne(*stream, "a").ok());
  first_batch_came.get_future().wait();
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(AppendOne(*stream, "b").ok());
    absl::SleepFor(
        absl::Milliseconds(2));  // for the writing thread to send it, if it wrongly would
  }
  all_queued.set_value();
  ASSERT_TRUE(stream->Finish().ok());
  service_.AppendHasEnded();
  EXPECT_THAT(batch_sizes, ElementsAre(1, 20));
}

TEST_F(ClientTest, AppendBlocksTheCallerWhileTooManyBatchesAreUnacked) {
  std::promise<void> may_ack;
  std::atomic<int> received = 0;
  service_.append = [&](ScriptedService::ServerStream& stream) {
    v1::AppendRequest request;
    stream.Read(&request);
    std::vector<v1::AppendBatch> unacked;
    for (int i = 0; i < 2; ++i) {
      stream.Read(&request);
      ++received;
      unacked.push_back(request.batch());
    }
    may_ack.get_future().wait();
    for (const v1::AppendBatch& batch : unacked) stream.Write(AckAll(batch, Ok));
    while (stream.Read(&request)) {
      ++received;
      stream.Write(AckAll(request.batch(), Ok));
    }
    return grpc::Status::OK;
  };
  const auto stream = Append({.batch_bytes = 1, .max_batches_in_flight = 2});
  std::atomic<int> appended = 0;
  std::thread caller([&] {
    for (; appended < 5; ++appended) EXPECT_TRUE(AppendOne(*stream, "a").ok());
  });
  while (received < 2) absl::SleepFor(absl::Milliseconds(1));
  absl::SleepFor(absl::Milliseconds(100));
  // Two are unacked and one is queued: the fourth call waits.
  EXPECT_EQ(appended, 3);
  EXPECT_EQ(received, 2);
  may_ack.set_value();
  caller.join();
  ASSERT_TRUE(stream->Finish().ok());
  EXPECT_EQ(received, 5);
}

TEST_F(ClientTest, AppendOffersABlockAgainWhileTheServerIsOverBudget) {
  std::vector<std::string> offered;
  service_.append = [&](ScriptedService::ServerStream& stream) {
    v1::AppendRequest request;
    stream.Read(&request);
    while (stream.Read(&request)) {
      stream.Write(AckAll(request.batch(), [&](const v1::AppendEntry& entry) -> int {
        offered.push_back(entry.block().sequence().id());
        return offered.size() <= 2 ? grpc::StatusCode::RESOURCE_EXHAUSTED : grpc::StatusCode::OK;
      }));
    }
    return grpc::Status::OK;
  };
  const auto stream = Append();
  const absl::Time start = absl::Now();
  ASSERT_TRUE(AppendOne(*stream, "a").ok());
  const auto refused = stream->Flush();
  ASSERT_TRUE(refused.ok()) << refused.status();
  EXPECT_TRUE(refused->empty());
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(20));  // twice the delay asked for
  ASSERT_TRUE(AppendOne(*stream, "b").ok());
  ASSERT_TRUE(stream->Finish().ok());
  service_.AppendHasEnded();
  EXPECT_THAT(offered, ElementsAre("a", "a", "a", "b"));
}

TEST_F(ClientTest, AppendReportsRefusedEntries) {
  service_.append = [&](ScriptedService::ServerStream& stream) {
    v1::AppendRequest request;
    stream.Read(&request);
    const std::map<std::string, int> codes = {{"bad", grpc::StatusCode::ALREADY_EXISTS},
                                              {"full", grpc::StatusCode::RESOURCE_EXHAUSTED},
                                              {"good", 0}};
    while (stream.Read(&request)) {
      stream.Write(AckAll(request.batch(), [&](const v1::AppendEntry& entry) {
        return codes.at(entry.block().sequence().id());
      }));
    }
    return grpc::Status::OK;
  };
  const auto stream = Append({.retry_limit = absl::ZeroDuration()});
  for (const char* id : {"good", "bad", "full"}) ASSERT_TRUE(AppendOne(*stream, id).ok());
  const auto refused = stream->Flush();
  ASSERT_TRUE(refused.ok()) << refused.status();
  ASSERT_EQ(refused->size(), 2);
  EXPECT_EQ((*refused)[0].sequence, (SequenceRef{"bad", 2}));
  EXPECT_EQ((*refused)[0].status, absl::AlreadyExistsError("scripted"));
  EXPECT_EQ((*refused)[1].sequence, (SequenceRef{"full", 2}));
  EXPECT_EQ((*refused)[1].status, absl::ResourceExhaustedError("scripted"));
  EXPECT_TRUE(stream->Finish()->empty());
}

TEST_F(ClientTest, ABrokenAppendStreamTellsEveryLaterCallWhy) {
  service_.append = [&](ScriptedService::ServerStream& stream) {
    v1::AppendRequest request;
    stream.Read(&request);
    stream.Read(&request);
    return grpc::Status(grpc::StatusCode::NOT_FOUND, "the run has gone");
  };
  const auto stream = Append();
  ASSERT_TRUE(AppendOne(*stream, "a").ok());
  EXPECT_EQ(stream->Flush().status(), absl::NotFoundError("the run has gone"));
  EXPECT_EQ(AppendOne(*stream, "a"), absl::NotFoundError("the run has gone"));
  EXPECT_EQ(stream->Finish().status(), absl::NotFoundError("the run has gone"));
}

TEST_F(ClientTest, AppendIsNotDoneWhenTheServerEndsTheStreamEarly) {
  service_.append = [&](ScriptedService::ServerStream& stream) {
    v1::AppendRequest request;
    stream.Read(&request);
    stream.Read(&request);
    return grpc::Status::OK;
  };
  const auto stream = Append();
  ASSERT_TRUE(AppendOne(*stream, "a").ok());
  EXPECT_EQ(stream->Finish().status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(ClientTest, AppendRefusesAcksThatDoNotFitTheBatch) {
  service_.append = [&](ScriptedService::ServerStream& stream) {
    v1::AppendRequest request;
    stream.Read(&request);
    stream.Read(&request);
    v1::AppendResponse response;
    response.add_acks();
    response.add_acks();
    stream.Write(response);
    while (stream.Read(&request)) {
    }
    return grpc::Status::OK;
  };
  const auto stream = Append();
  ASSERT_TRUE(AppendOne(*stream, "a").ok());
  const absl::Status status = stream->Flush().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("2 acks for a batch of 1"));
}

TEST_F(ClientTest, AnAppendStreamWithoutAcksBreaks) {
  service_.append = [&](ScriptedService::ServerStream& stream) {
    v1::AppendRequest request;
    while (stream.Read(&request)) {
    }
    return grpc::Status::OK;
  };
  const auto stream = Append({.ack_timeout = absl::Milliseconds(50)});
  ASSERT_TRUE(AppendOne(*stream, "a").ok());
  EXPECT_EQ(stream->Flush().status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(AppendOne(*stream, "a").code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(ClientTest, AnAppendStreamCanBeGivenUp) {
  std::promise<void> opened;
  std::atomic<bool> ended = false;
  service_.append = [&](ScriptedService::ServerStream& stream) {
    v1::AppendRequest request;
    stream.Read(&request);
    opened.set_value();
    while (stream.Read(&request)) {
    }
    ended = true;
    return grpc::Status::OK;
  };
  {
    const auto stream = Append();
    ASSERT_TRUE(AppendOne(*stream, "a").ok());
    opened.get_future().wait();
  }
  server_->Shutdown();
  EXPECT_TRUE(ended);
}

v1::FetchTopKResponse FetchHeader(std::vector<uint32_t> lengths, uint32_t top_k) {
  v1::FetchTopKResponse response;
  v1::FetchTopKHeader& header = *response.mutable_header();
  header.set_lease_id(17);
  header.set_top_k(top_k);
  for (const uint32_t length : lengths) {
    v1::Slice& slice = *header.add_slices();
    slice.mutable_sequence()->set_id("a");
    slice.set_first_position(10);
    slice.set_length(length);
    slice.set_record_digest(1000 + length);
  }
  return response;
}

v1::FetchTopKResponse FetchChunk(uint32_t slice, uint32_t first_position, int length, int top_k) {
  v1::FetchTopKResponse response;
  v1::FetchTopKChunk& chunk = *response.mutable_chunk();
  chunk.set_slice(slice);
  chunk.set_first_position(first_position);
  chunk.set_length(length);
  std::vector<int32_t> sampled_ids, ids;
  std::vector<float> sampled_log_probs, log_probs;
  for (int row = 0; row < length; ++row) {
    sampled_ids.push_back(static_cast<int32_t>(100 * slice + first_position + row));
    sampled_log_probs.push_back(-1.0f * static_cast<float>(row));
    for (int slot = 0; slot < top_k; ++slot) {
      ids.push_back(slot);
      log_probs.push_back(-2.0f * static_cast<float>(row));
    }
  }
  chunk.set_sampled_ids(Bytes(sampled_ids));
  chunk.set_sampled_log_probs(Bytes(sampled_log_probs));
  chunk.set_top_k_ids(Bytes(ids));
  chunk.set_top_k_log_probs(Bytes(log_probs));
  return response;
}

TEST_F(ClientTest, FetchTopKPutsChunksTogether) {
  service_.fetched = {FetchHeader({3, 0, 1}, 2), FetchChunk(0, 10, 2, 2), FetchChunk(0, 12, 1, 2),
                      FetchChunk(2, 10, 1, 2)};
  v1::MissingRange& missing = *service_.fetched[0].mutable_header()->add_missing();
  missing.set_slice(2);
  missing.set_first_position(10);
  missing.set_length(1);
  missing.set_reason(v1::EVICTED);
  const std::vector<Slice> slices = {{{"a", 1}, 10}, {{"a"}, 10}, {{"a"}, 10, 1}};
  const auto records = client_->FetchTopK({"run"}, slices, absl::Seconds(3));
  ASSERT_TRUE(records.ok()) << records.status();
  EXPECT_EQ(records->lease_id, 17);
  EXPECT_EQ(records->top_k, 2);
  EXPECT_EQ(records->positions(), 4);
  EXPECT_THAT(records->sampled_ids, ElementsAre(10, 11, 12, 210));
  EXPECT_THAT(records->sampled_log_probs, ElementsAre(0, -1, 0, 0));
  EXPECT_THAT(records->ids, ElementsAre(0, 1, 0, 1, 0, 1, 0, 1));
  EXPECT_THAT(records->log_probs, ElementsAre(0, 0, -2, -2, 0, 0, 0, 0));
  ASSERT_EQ(records->slices.size(), 3);
  EXPECT_EQ(records->slices[0].length, 3);
  EXPECT_EQ(records->slices[0].record_digest, 1003);
  ASSERT_EQ(records->missing.size(), 1);
  EXPECT_EQ(records->missing[0].slice, 2);
  EXPECT_EQ(records->missing[0].reason, v1::EVICTED);
  EXPECT_EQ(service_.fetch_request.lease_seconds(), 3);
  ASSERT_EQ(service_.fetch_request.slices_size(), 3);
  EXPECT_EQ(service_.fetch_request.slices(0).sequence().attempt(), 1);
  EXPECT_EQ(service_.fetch_request.slices(2).length(), 1);
}

TEST_F(ClientTest, FetchTopKRefusesRepliesThatDoNotFit) {
  const v1::FetchTopKResponse header = FetchHeader({3}, 2);
  v1::FetchTopKResponse short_array = FetchChunk(0, 10, 3, 2);
  short_array.mutable_chunk()->mutable_top_k_ids()->pop_back();
  const std::vector<std::vector<v1::FetchTopKResponse>> replies = {
      {},                                                          // no header
      {header},                                                    // no rows
      {header, FetchChunk(0, 10, 2, 2)},                           // too few
      {header, FetchChunk(0, 10, 4, 2)},                           // too many
      {header, FetchChunk(0, 11, 3, 2)},                           // a gap
      {header, FetchChunk(1, 10, 3, 2)},                           // an unknown slice
      {header, FetchChunk(0, 10, 3, 2), FetchChunk(0, 13, 1, 2)},  // beyond the end
      {FetchChunk(0, 10, 3, 2), header},                           // the wrong order
      {header, header, FetchChunk(0, 10, 3, 2)},                   // two headers
      {header, short_array},
  };
  const std::vector<Slice> slices = {{{"a"}, 10, 3}};
  for (size_t i = 0; i < replies.size(); ++i) {
    service_.fetched = replies[i];
    const auto records = client_->FetchTopK({"run"}, slices);
    EXPECT_EQ(records.status().code(), absl::StatusCode::kInternal) << "reply " << i;
  }
}

TEST_F(ClientTest, EvaluateSendsEitherFormAndReadsWhatWasAskedFor) {
  const std::vector<float> log_probs = {-1, -2, -3, -4}, sampled = {-5, -6};
  const std::vector<float> envelopes = {0.5f, 0.25f}, masses = {0.75f, 1.0f};
  const std::vector<Slice> slices = {{{"a", 4}, 3, 2, 99}};
  service_.evaluated.set_accept_bits(std::string(1, '\x02'));
  service_.evaluated.mutable_totals()->set_accepted(1);
  service_.evaluated.add_slice_totals()->set_rejected(1);
  service_.evaluated.set_newly_counted(2);
  auto evaluation = client_->Evaluate({"run"}, slices, GatheredValues{log_probs, sampled},
                                      {.draw = 12, .top_k = 1, .lease_id = 5});
  ASSERT_TRUE(evaluation.ok()) << evaluation.status();
  EXPECT_FALSE(evaluation->accepted(0));
  EXPECT_TRUE(evaluation->accepted(1));
  EXPECT_EQ(evaluation->totals.accepted(), 1);
  EXPECT_EQ(evaluation->slice_totals.size(), 1);
  EXPECT_EQ(evaluation->newly_counted, 2);
  const v1::EvaluateRequest& request = service_.evaluate_request;
  EXPECT_EQ(request.draw(), 12);
  EXPECT_EQ(request.top_k(), 1);
  EXPECT_EQ(request.lease_id(), 5);
  EXPECT_EQ(request.slices(0).record_digest(), 99);
  EXPECT_EQ(request.slices(0).length(), 2);
  EXPECT_EQ(Array<float>(request.gathered().log_probs()), log_probs);
  EXPECT_EQ(Array<float>(request.gathered().sampled_log_probs()), sampled);

  service_.evaluated.clear_accept_bits();
  service_.evaluated.set_decisions("\x02\x01");
  service_.evaluated.set_ratios(Bytes<float>({0.5f, 1}));
  service_.evaluated.set_log_ratios(Bytes<float>({-0.5f, 0}));
  service_.evaluated.set_acceptance_probabilities(Bytes<float>({0.25f, 0.75f}));
  evaluation = client_->Evaluate(
      {"run"}, slices, ReducedValues{sampled, envelopes, masses},
      {.outputs = {v1::DECISIONS, v1::RATIOS, v1::LOG_RATIOS, v1::ACCEPTANCE_PROBABILITIES}});
  ASSERT_TRUE(evaluation.ok()) << evaluation.status();
  EXPECT_THAT(evaluation->decisions, ElementsAre(Decision::kRejected, Decision::kAccepted));
  EXPECT_THAT(evaluation->ratios, ElementsAre(0.5f, 1));
  EXPECT_THAT(evaluation->log_ratios, ElementsAre(-0.5f, 0));
  EXPECT_THAT(evaluation->acceptance_probabilities, ElementsAre(0.25f, 0.75f));
  EXPECT_EQ(Array<float>(request.reduced().sampled_log_probs()), sampled);
  EXPECT_EQ(Array<float>(request.reduced().log_envelopes()), envelopes);
  EXPECT_EQ(Array<float>(request.reduced().covered_masses()), masses);
}

TEST_F(ClientTest, EvaluateSendsItsOptions) {
  const std::vector<float> logits = {-1, -2, -3, -4}, sampled = {-5, -6};
  const std::vector<double> log_sum_exps = {1, 2};
  const std::vector<float> own = {-0.5f, -0.25f}, current = {-1.5f, -2.5f}, advantages = {3, 4};
  const std::vector<uint8_t> mask = {1, 0};
  const std::vector<int32_t> ids = {0x64636261, 9};
  const std::vector<Slice> slices = {{{"a"}, 3, 2}};
  v1::Algorithm gspo;
  gspo.mutable_gspo()->set_epsilon_low(0.5f);
  service_.evaluated.set_surrogates(Bytes<float>({1, 2}));
  service_.evaluated.set_coefficients(Bytes<float>({3, 4}));
  v1::LogRatioSum& sum = *service_.evaluated.add_log_ratio_sums();
  sum.set_log_ratio(-7);
  sum.set_positions(1);
  EvaluateOptions options{.draw = 3,
                          .outputs = {v1::SURROGATES, v1::COEFFICIENTS},
                          .weight = v1::EXPECTED,
                          .mask = mask,
                          .own_log_probs = own,
                          .decoupled_log_probs = current,
                          .algorithm = gspo,
                          .advantages = advantages,
                          .sampled_ids = ids,
                          .log_ratio_sums = {{5, 6}},
                          .authors_code = v1::AuthorsCode()};
  const auto evaluation =
      client_->Evaluate({"run"}, slices, LogitValues{logits, sampled, log_sum_exps}, options);
  ASSERT_TRUE(evaluation.ok()) << evaluation.status();
  EXPECT_THAT(evaluation->surrogates, ElementsAre(1, 2));
  EXPECT_THAT(evaluation->coefficients, ElementsAre(3, 4));
  EXPECT_THAT(evaluation->log_ratio_sums, ElementsAre(LogRatioSum{-7, 1}));
  const v1::EvaluateRequest& request = service_.evaluate_request;
  EXPECT_EQ(request.gathered().values(), v1::Gathered::LOGITS);
  EXPECT_EQ(Array<float>(request.gathered().log_probs()), logits);
  EXPECT_EQ(Array<float>(request.gathered().sampled_log_probs()), sampled);
  EXPECT_EQ(Array<double>(request.gathered().log_sum_exps()), log_sum_exps);
  EXPECT_EQ(request.weight(), v1::EXPECTED);
  EXPECT_EQ(request.mask(), std::string("\x01\x00", 2));
  EXPECT_EQ(Array<float>(request.own_log_probs()), own);
  EXPECT_EQ(Array<float>(request.decoupled().current_log_probs()), current);
  EXPECT_EQ(request.algorithm().gspo().epsilon_low(), 0.5f);
  EXPECT_EQ(Array<float>(request.advantages()), advantages);
  EXPECT_EQ(request.slices(0).sampled_ids_crc32c(), 0x92C80A31u) << "of \"abcd\"";
  EXPECT_EQ(request.slices(0).sequence_log_ratio_sum().log_ratio(), 5);
  EXPECT_EQ(request.slices(0).sequence_log_ratio_sum().positions(), 6u);
  EXPECT_TRUE(request.has_authors_code());

  options.log_ratio_sums.clear();
  options.sampled_ids = std::span(ids).first(1);
  EXPECT_EQ(client_->Evaluate({"run"}, slices, LogitValues{logits, sampled, log_sum_exps}, options)
                .status(),
            absl::InvalidArgumentError("sampled_ids: 1 elements, must be 2"));
}

TEST_F(ClientTest, HalfPrecisionIsRoundedUp) {
  const std::vector<float> log_probs = {-1.0f, -1.0001f, -1e6f,
                                        -std::numeric_limits<float>::infinity()},
                           sampled = {-5, -6};
  const std::vector<Slice> slices = {{{"a"}, 3, 2}};
  service_.evaluated.set_accept_bits(std::string(1, '\x02'));
  ASSERT_TRUE(
      client_->Evaluate({"run"}, slices, GatheredValues{log_probs, sampled, true}, {}).ok());
  const v1::Gathered& form = service_.evaluate_request.gathered();
  EXPECT_EQ(form.values(), v1::Gathered::FLOAT16_LOG_PROBS);
  EXPECT_EQ(Array<uint16_t>(form.log_probs()),
            (std::vector<uint16_t>{0xBC00, 0xBC00, 0xFBFF, 0xFC00}));
  EXPECT_EQ(Array<float>(form.sampled_log_probs()), sampled);
}

TEST_F(ClientTest, EvaluateRefusesArraysOfTheWrongLength) {
  const std::vector<float> values = {-1, -2};
  const std::vector<Slice> slices = {{{"a"}, 0, 2}};
  service_.evaluated.set_ratios(Bytes<float>({1}));
  const auto evaluation = client_->Evaluate({"run"}, slices, ReducedValues{values, values, values},
                                            {.outputs = {v1::RATIOS}});
  EXPECT_EQ(evaluation.status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(evaluation.status().message()), HasSubstr("ratios holds 4 bytes, not 8"));
}

TEST_F(ClientTest, StatusesKeepCodeAndMessage) {
  EXPECT_EQ(client_->GetRun("x").status(), absl::NotFoundError("no run x"));
}

TEST(ConnectTest, SaysThatNoServerAnswers) {
  const auto client = Client::Connect("127.0.0.1:1", {.connect_timeout = absl::Milliseconds(200)});
  EXPECT_EQ(client.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(client.status().message()), HasSubstr("127.0.0.1:1"));
}

}  // namespace
}  // namespace sis
