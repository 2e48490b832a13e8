// AppendWriter against a scripted service.
#include "client/one_server/append_writer.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/support/client_interceptor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/time/clock.h"
#include "client/one_server/server_append_writer.h"
#include "client/testing/scripted_service.h"
#include "kernels/numerics/crc32c.h"

namespace sis {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

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

class AppendWriterTest : public ScriptedServiceTest {
 protected:
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
};

TEST_F(AppendWriterTest, AppendSendsHeaderThenEntriesInOrder) {
  std::vector<v1::AppendRequest> requests;
  service_.OnAppend([&](ScriptedService::ServerStream& stream) {
    v1::AppendRequest request;
    while (stream.Read(&request)) {
      requests.push_back(request);
      if (request.has_batch()) stream.Write(AckAll(request.batch(), Ok));
    }
    return grpc::Status::OK;
  });
  const auto stream = Append({.worker = "worker 1"});
  ASSERT_TRUE(AppendOne(*stream, "a").ok());
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
  ASSERT_EQ(entries.size(), 2);
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
  EXPECT_EQ(entries[1].seal().length(), 6);
}

// What travels of sets is what the server would keep of them.
TEST_F(AppendWriterTest, SetsEndWhereTheRunsMassLeavesThem) {
  std::vector<v1::Block> blocks;
  service_.OnAppend([&](ScriptedService::ServerStream& stream) {
    v1::AppendRequest request;
    while (stream.Read(&request)) {
      for (const v1::AppendEntry& entry : request.batch().entries()) {
        blocks.push_back(entry.block());
      }
      if (request.has_batch()) stream.Write(AckAll(request.batch(), Ok));
    }
    return grpc::Status::OK;
  });
  const float none = -HUGE_VALF;
  const std::vector<int32_t> sampled = {7, 7, 7, 7};
  const std::vector<float> sampled_log_probs = {-0.25f, -1.0f, -1.0f, -1.0f};
  // One that is cut, one that ends by itself, an empty one, one that never reaches the mass.
  const std::vector<int32_t> ids = {7, 9, 2, 7, -1, -1, -1, -1, -1, 1, 2, 3};
  const std::vector<float> log_probs = {-0.25f, -2.0f, -5.0f, -1.0f, none,  none,
                                        none,   none,  none,  -2.0f, -3.0f, -4.0f};
  const RecordView records{sampled, sampled_log_probs, ids, log_probs};
  const auto stream = Append({.mass = 0.9});
  ASSERT_TRUE(stream->Block({"cut"}, 0, 0, records).ok());
  // Whole sets are sent as they are; as are those that came ragged.
  const std::vector<int32_t> whole = {1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3};
  const std::vector<float> equal(12, -2.0f);
  ASSERT_TRUE(stream->Block({"whole"}, 0, 0, {sampled, sampled_log_probs, whole, equal}).ok());
  const std::vector<uint16_t> counts = {3, 0, 0, 1};
  const AppendEntry entry = BlockEntry{
      {"ragged"},
      0,
      0,
      {sampled, sampled_log_probs, std::span(ids).first(4), std::span(log_probs).first(4)},
      counts};
  ASSERT_TRUE(stream->AppendMany({&entry, 1}).ok());
  // The server says what is wrong with arrays that don't fit each other.
  ASSERT_TRUE(stream->Block({"wrong"}, 0, 0, {sampled, sampled_log_probs, whole, {}}).ok());
  ASSERT_TRUE(stream->Finish().ok());
  service_.AppendHasEnded();

  ASSERT_EQ(blocks.size(), 4);
  EXPECT_THAT(Array<uint16_t>(blocks[0].top_k_counts()), ElementsAre(2, 1, 0, 3));
  EXPECT_THAT(Array<int32_t>(blocks[0].top_k_ids()), ElementsAre(7, 9, 7, 1, 2, 3));
  EXPECT_THAT(Array<float>(blocks[0].top_k_log_probs()),
              ElementsAre(-0.25f, -2.0f, -1.0f, -2.0f, -3.0f, -4.0f));
  EXPECT_THAT(Array<int32_t>(blocks[0].sampled_ids()), ElementsAre(7, 7, 7, 7));
  EXPECT_EQ(blocks[1].top_k_counts(), "");
  EXPECT_EQ(Array<int32_t>(blocks[1].top_k_ids()), whole);
  EXPECT_EQ(Array<uint16_t>(blocks[2].top_k_counts()), counts);
  EXPECT_EQ(blocks[3].top_k_log_probs(), "");
  for (const v1::Block& block : blocks) {
    const std::string arrays = block.sampled_ids() + block.sampled_log_probs() + block.top_k_ids() +
                               block.top_k_log_probs() + block.top_k_counts();
    EXPECT_EQ(block.crc32c(), ExtendCrc32c(0, std::as_bytes(std::span(arrays))));
  }
}

TEST_F(AppendWriterTest, AppendCoalescesWhileABatchIsUnderWay) {
  std::promise<void> first_batch_came, all_queued;
  std::vector<int> batch_sizes;
  service_.OnAppend([&](ScriptedService::ServerStream& stream) {
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
  });
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

// Notes what comes, and acks it.
std::function<grpc::Status(ScriptedService::ServerStream&)> NoteBatches(
    std::vector<v1::AppendBatch>& batches) {
  return [&](ScriptedService::ServerStream& stream) {
    v1::AppendRequest request;
    stream.Read(&request);
    while (stream.Read(&request)) {
      batches.push_back(request.batch());
      stream.Write(AckAll(request.batch(), Ok));
    }
    return grpc::Status::OK;
  };
}

std::vector<int> Sizes(const std::vector<v1::AppendBatch>& batches) {
  std::vector<int> sizes;
  for (const v1::AppendBatch& batch : batches) sizes.push_back(batch.entries_size());
  return sizes;
}

TEST_F(AppendWriterTest, ManyAreTheEntriesOfEachInAsFewBatchesAsTheirBytesAllow) {
  const std::vector<int32_t> sampled(18, 7), ids(36, 9);
  const std::vector<float> sampled_log_probs(18, -0.25f), log_probs(36, -2.0f);
  std::vector<AppendEntry> entries;
  for (uint32_t i = 0; i < 18; ++i) {
    const RecordView row = {
        std::span(sampled).subspan(i, 1), std::span(sampled_log_probs).subspan(i, 1),
        std::span(ids).subspan(2 * i, 2), std::span(log_probs).subspan(2 * i, 2)};
    entries.push_back(
        BlockEntry{{std::string(1, static_cast<char>('a' + i % 3)), i % 2}, i, 11, row});
  }
  entries.push_back(SealEntry{{"a", 1}, 19});
  std::vector<v1::AppendBatch> batches;
  const auto append = [&](const AppendOptions& options, bool many) {
    batches.clear();
    service_.OnAppend(NoteBatches(batches));
    const auto stream = Append(options);
    if (many) {
      EXPECT_TRUE(stream->AppendMany(entries).ok());
    } else {
      for (const AppendEntry& entry : entries) {
        if (const auto* block = std::get_if<BlockEntry>(&entry)) {
          EXPECT_TRUE(stream
                          ->Block(block->sequence, block->first_position, block->policy_version,
                                  block->records)
                          .ok());
        }
      }
      EXPECT_TRUE(stream->Seal({"a", 1}, 19).ok());
    }
    EXPECT_TRUE(stream->AppendMany({}).ok());
    EXPECT_TRUE(stream->Finish().ok());
    service_.AppendHasEnded();
    std::vector<std::string> sent;
    for (const v1::AppendBatch& batch : batches) {
      for (const v1::AppendEntry& entry : batch.entries()) {
        sent.push_back(entry.SerializeAsString());
      }
    }
    return sent;
  };
  const std::vector<std::string> one_by_one = append({}, /*many=*/false);
  EXPECT_EQ(one_by_one.size(), 19);
  EXPECT_EQ(append({}, /*many=*/true), one_by_one);
  EXPECT_THAT(Sizes(batches), ElementsAre(19));
  const size_t three = one_by_one[0].size() * 3;
  EXPECT_EQ(append({.batch_bytes = three, .max_batches_in_flight = 2}, /*many=*/true), one_by_one);
  EXPECT_EQ(Sizes(batches).front(), 3);
  EXPECT_EQ(append({.batch_bytes = 1}, /*many=*/true), one_by_one);
  EXPECT_EQ(batches.size(), 19);
}

TEST_F(AppendWriterTest, AppendBlocksTheCallerWhileTooManyBatchesAreUnacked) {
  std::promise<void> may_ack;
  std::atomic<int> received = 0;
  service_.OnAppend([&](ScriptedService::ServerStream& stream) {
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
  });
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

// However large its bytes may be.
TEST_F(AppendWriterTest, ABatchHasNoMoreEntriesThanTheServerTakes) {
  std::promise<void> first_batch_came, all_queued;
  std::vector<int> batch_sizes;
  service_.OnAppend([&](ScriptedService::ServerStream& stream) {
    v1::AppendRequest request;
    stream.Read(&request);
    while (stream.Read(&request)) {
      if (batch_sizes.empty()) {
        first_batch_came.set_value();
        all_queued.get_future().wait();
      }
      batch_sizes.push_back(request.batch().entries_size());
      stream.Write(AckAll(request.batch(), Ok));
    }
    return grpc::Status::OK;
  });
  const auto stream = Append({.batch_bytes = size_t{1} << 30});
  ASSERT_TRUE(stream->Seal({"first"}, 1).ok());
  first_batch_came.get_future().wait();
  for (int i = 0; i < 70'000; ++i) ASSERT_TRUE(stream->Seal({"s"}, 1).ok());
  all_queued.set_value();
  ASSERT_TRUE(stream->Finish().ok());
  service_.AppendHasEnded();
  EXPECT_THAT(batch_sizes, ElementsAre(1, 65'536, 70'000 - 65'536));
}

TEST_F(AppendWriterTest, AppendOffersABlockAgainWhileTheServerIsOverBudget) {
  std::vector<std::string> offered;
  service_.OnAppend([&](ScriptedService::ServerStream& stream) {
    v1::AppendRequest request;
    stream.Read(&request);
    while (stream.Read(&request)) {
      stream.Write(AckAll(request.batch(), [&](const v1::AppendEntry& entry) -> int {
        offered.push_back(entry.block().sequence().id());
        return offered.size() <= 2 ? grpc::StatusCode::RESOURCE_EXHAUSTED : grpc::StatusCode::OK;
      }));
    }
    return grpc::Status::OK;
  });
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

TEST_F(AppendWriterTest, AppendReportsRefusedEntries) {
  service_.OnAppend([&](ScriptedService::ServerStream& stream) {
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
  });
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

TEST_F(AppendWriterTest, ABrokenAppendStreamTellsEveryLaterCallWhy) {
  service_.OnAppend([&](ScriptedService::ServerStream& stream) {
    v1::AppendRequest request;
    stream.Read(&request);
    stream.Read(&request);
    return grpc::Status(grpc::StatusCode::NOT_FOUND, "the run has gone");
  });
  const auto stream = Append();
  ASSERT_TRUE(AppendOne(*stream, "a").ok());
  EXPECT_EQ(stream->Flush().status(), absl::NotFoundError("the run has gone"));
  EXPECT_EQ(AppendOne(*stream, "a"), absl::NotFoundError("the run has gone"));
  EXPECT_EQ(stream->Finish().status(), absl::NotFoundError("the run has gone"));
}

TEST_F(AppendWriterTest, ARefusedHeaderShowsInAFlushWithoutEntries) {
  service_.OnAppend([&](ScriptedService::ServerStream& stream) {
    v1::AppendRequest request;
    stream.Read(&request);
    return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "an incarnation of the past");
  });
  const absl::Status refused = absl::FailedPreconditionError("an incarnation of the past");
  EXPECT_EQ(Append()->Flush().status(), refused);
  EXPECT_EQ(Append()->Finish().status(), refused);
}

TEST_F(AppendWriterTest, OneEmptyBatchTellsThatTheHeaderIsTaken) {
  std::vector<int> batch_sizes;
  service_.OnAppend([&](ScriptedService::ServerStream& stream) {
    v1::AppendRequest request;
    stream.Read(&request);
    while (stream.Read(&request)) {
      EXPECT_TRUE(request.has_batch());
      batch_sizes.push_back(request.batch().entries_size());
      stream.Write(AckAll(request.batch(), Ok));
    }
    return grpc::Status::OK;
  });
  const auto stream = Append();
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(stream->Flush()->empty());
  ASSERT_TRUE(AppendOne(*stream, "a").ok());
  EXPECT_TRUE(stream->Flush()->empty());
  EXPECT_TRUE(stream->Finish()->empty());
  service_.AppendHasEnded();
  EXPECT_THAT(batch_sizes, ElementsAre(0, 1));
}

TEST_F(AppendWriterTest, AWriterThatGoesSaysWhatWasNotFlushed) {
  service_.OnAppend([&](ScriptedService::ServerStream& stream) {
    v1::AppendRequest request;
    while (stream.Read(&request)) {
      if (request.has_batch()) stream.Write(AckAll(request.batch(), [](const auto&) { return 3; }));
    }
    return grpc::Status::OK;
  });
  const auto said = [&](const std::function<void(AppendWriter&)>& end) {
    ::testing::internal::CaptureStderr();
    {
      const auto stream = Append();
      EXPECT_TRUE(AppendOne(*stream, "a").ok());
      EXPECT_TRUE(AppendOne(*stream, "b").ok());
      end(*stream);
    }
    return ::testing::internal::GetCapturedStderr();
  };
  // Refusals that nobody has heard of count too.
  EXPECT_THAT(said([](AppendWriter&) {}), HasSubstr("2 entries that were not flushed"));
  EXPECT_EQ(said([](AppendWriter& stream) { EXPECT_EQ(stream.Flush()->size(), 2); }), "");
  EXPECT_EQ(said([](AppendWriter& stream) { EXPECT_EQ(stream.Finish()->size(), 2); }), "");
}

TEST_F(AppendWriterTest, AppendIsNotDoneWhenTheServerEndsTheStreamEarly) {
  service_.OnAppend([&](ScriptedService::ServerStream& stream) {
    v1::AppendRequest request;
    stream.Read(&request);
    stream.Read(&request);
    return grpc::Status::OK;
  });
  const auto stream = Append();
  ASSERT_TRUE(AppendOne(*stream, "a").ok());
  EXPECT_EQ(stream->Finish().status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(AppendWriterTest, AppendRefusesAcksThatDoNotFitTheBatch) {
  service_.OnAppend([&](ScriptedService::ServerStream& stream) {
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
  });
  const auto stream = Append();
  ASSERT_TRUE(AppendOne(*stream, "a").ok());
  const absl::Status status = stream->Flush().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("2 acks for a batch of 1"));
}

TEST_F(AppendWriterTest, AnAppendStreamWithoutAcksBreaks) {
  service_.OnAppend([&](ScriptedService::ServerStream& stream) {
    v1::AppendRequest request;
    while (stream.Read(&request)) {
    }
    return grpc::Status::OK;
  });
  const auto stream = Append({.ack_timeout = absl::Milliseconds(50)});
  ASSERT_TRUE(AppendOne(*stream, "a").ok());
  EXPECT_EQ(stream->Flush().status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(AppendOne(*stream, "a").code(), absl::StatusCode::kDeadlineExceeded);
}

// Of this process, all threads together.
absl::Duration ProcessorTime() {
  timespec time;
  EXPECT_EQ(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time), 0);
  return absl::DurationFromTimespec(time);
}

TEST_F(AppendWriterTest, AnIdleStreamWithoutPatienceCostsNothing) {
  service_.OnAppend([&](ScriptedService::ServerStream& stream) {
    v1::AppendRequest request;
    while (stream.Read(&request)) {
    }
    return grpc::Status::OK;
  });
  const auto stream = Append({.ack_timeout = absl::ZeroDuration()});
  absl::SleepFor(absl::Milliseconds(100));  // the connection is made
  const absl::Time begin = absl::Now();
  const absl::Duration before = ProcessorTime();
  absl::SleepFor(absl::Milliseconds(400));
  // However busy the machine is, a thread that waits takes none of it.
  EXPECT_LT(ProcessorTime() - before, (absl::Now() - begin) / 8);
}

// Notes on which thread each message of the client is sent.
class SenderRecorder final : public grpc::experimental::ClientInterceptorFactoryInterface {
 public:
  explicit SenderRecorder(std::vector<std::thread::id>& senders) : senders_(senders) {}

  grpc::experimental::Interceptor* CreateClientInterceptor(
      grpc::experimental::ClientRpcInfo*) override {
    return new Recorder(senders_);
  }

 private:
  class Recorder final : public grpc::experimental::Interceptor {
   public:
    explicit Recorder(std::vector<std::thread::id>& senders) : senders_(senders) {}
    void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
      using grpc::experimental::InterceptionHookPoints;
      if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_MESSAGE)) {
        senders_.push_back(std::this_thread::get_id());
      }
      methods->Proceed();
    }

   private:
    std::vector<std::thread::id>& senders_;
  };

  std::vector<std::thread::id>& senders_;
};

TEST_F(AppendWriterTest, WhatFindsNothingUnderWayIsSentByItsOwnThread) {
  service_.OnAppend([&](ScriptedService::ServerStream& stream) {
    v1::AppendRequest request;
    stream.Read(&request);
    while (stream.Read(&request)) stream.Write(AckAll(request.batch(), Ok));
    return grpc::Status::OK;
  });
  std::vector<std::thread::id> senders;
  std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> interceptors;
  interceptors.push_back(std::make_unique<SenderRecorder>(senders));
  Client client(
      server_->experimental().InProcessChannelWithInterceptors({}, std::move(interceptors)));
  const auto stream = client.Append({"run", 3}, v1::Sampling(), 100);
  constexpr int kTokens = 200;
  for (int i = 0; i < kTokens; ++i) {
    ASSERT_TRUE(AppendOne(*stream, "a").ok());
    ASSERT_TRUE(stream->Flush().ok());
  }
  ASSERT_TRUE(stream->Finish().ok());
  // But for the header and the first token, as until then nobody knows whether the server is there;
  // and for one whose predecessor was acked before the thread that sent it had come back.
  ASSERT_EQ(senders.size(), 1 + kTokens);
  const auto own = std::this_thread::get_id();
  EXPECT_NE(senders[0], own);
  EXPECT_NE(senders[1], own);
  EXPECT_GT(std::ranges::count(senders, own), 0);
}

TEST_F(AppendWriterTest, ACallerThatWritesToAServerThatHangsIsFreeAgain) {
  std::promise<void> broken;
  const std::shared_future<void> is_broken = broken.get_future().share();
  service_.OnAppend([is_broken](ScriptedService::ServerStream& stream) {
    v1::AppendRequest request;
    for (int i = 0; i < 2; ++i) stream.Read(&request);
    stream.Write(AckAll(request.batch(), Ok));
    is_broken.wait();
    return grpc::Status::OK;
  });
  // In one process a write lasts until the other side reads.
  Client client(server_->InProcessChannel({}));
  const auto stream =
      client.Append({"run", 3}, v1::Sampling(), 100, {.ack_timeout = absl::Milliseconds(50)});
  EXPECT_EQ(AppendOne(*stream, "a"), absl::OkStatus());
  EXPECT_EQ(stream->Flush().status(), absl::OkStatus());
  EXPECT_EQ(AppendOne(*stream, "b"), absl::OkStatus());
  EXPECT_EQ(stream->Flush().status().code(), absl::StatusCode::kDeadlineExceeded);
  broken.set_value();
}

TEST_F(AppendWriterTest, AThreadThatWritesAndOthersThatAppendLoseNothing) {
  constexpr int kThreads = 4;
  constexpr int kTokens = 500;
  std::map<std::string, int> received;
  service_.OnAppend([&](ScriptedService::ServerStream& stream) {
    v1::AppendRequest request;
    stream.Read(&request);
    while (stream.Read(&request)) {
      for (const v1::AppendEntry& entry : request.batch().entries()) {
        ++received[entry.block().sequence().id()];
      }
      stream.Write(AckAll(request.batch(), Ok));
    }
    return grpc::Status::OK;
  });
  const auto stream = Append();
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, name = std::to_string(i)] {
      for (int token = 0; token < kTokens; ++token) {
        EXPECT_TRUE(AppendOne(*stream, name).ok());
        if (token % 3 == 0) {
          EXPECT_TRUE(stream->Flush().ok());
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(stream->Finish().ok());
  service_.AppendHasEnded();
  ASSERT_EQ(received.size(), kThreads);
  for (const auto& [name, count] : received) EXPECT_EQ(count, kTokens) << name;
}

TEST_F(AppendWriterTest, AnAppendStreamCanBeGivenUp) {
  std::promise<void> opened;
  std::atomic<bool> ended = false;
  service_.OnAppend([&](ScriptedService::ServerStream& stream) {
    v1::AppendRequest request;
    stream.Read(&request);
    opened.set_value();
    while (stream.Read(&request)) {
    }
    ended = true;
    return grpc::Status::OK;
  });
  {
    const auto stream = Append();
    ASSERT_TRUE(AppendOne(*stream, "a").ok());
    opened.get_future().wait();
  }
  server_->Shutdown();
  EXPECT_TRUE(ended);
}

}  // namespace
}  // namespace sis
