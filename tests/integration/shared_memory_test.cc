// The C++ client's shared memory: the same calls, the same answers, and nothing left behind.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/api/client.h"
#include "server/testing/child_process.h"
#include "server/testing/live_server.h"
#include "server/testing/record_generator.h"
#include "server/testing/server_process.h"
#include "tests/integration/metrics_page.h"

namespace sis {
namespace {

constexpr int kSlots = 10;
constexpr int kVocabulary = 1000;
// Not all of them end where a part of an array may begin.
constexpr uint32_t kLengths[] = {192, 100, 156, 64, 256};
// Enough for answers and for parts of arrays, not for whole ones.
constexpr int64_t kMessageBytes = 16 << 10;
constexpr size_t kPlainBatchBytes = 8 << 10;

void WaitFor(const std::function<bool()>& done) {
  while (!done()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

template <typename T>
std::span<T> Copy(SharedMemory& memory, const std::vector<T>& array) {
  const absl::StatusOr<std::span<T>> part = memory.Allocate<T>(array.size());
  EXPECT_TRUE(part.ok()) << part.status();
  std::ranges::copy(array, part->begin());
  return *part;
}

// A server whose messages can't hold what the test evaluates.
class SharedMemoryTest : public testing::Test {
 protected:
  SharedMemoryTest() : live_(Options()) {
    for (const uint32_t length : kLengths) {
      const std::string id = absl::StrCat("s", slices_.size());
      slices_.push_back({{id}, 0, length});
      const Records records = generator_.NextRecords(length);
      const CurrentValues current = generator_.NextCurrent(records);
      const v1::Reduced reduced = current.Reduced(records, kSlots, 0, length);
      Extend(log_probs_, current.log_probs);
      Extend(sampled_, current.sampled_log_probs);
      Extend(envelopes_, Values<float>(reduced.log_envelopes()));
      Extend(masses_, Values<float>(reduced.covered_masses()));
      for (uint32_t first = 0; first < length; first += 64) {
        blocks_.push_back(records.Block(id, first, 0, first, std::min(64u, length - first)));
      }
    }
    for (float& value : log_probs_) {
      if (std::isnan(value)) value = -100.0f;  // unused slots, which halves must have too
    }
    // One sequence is missing, and has a ratio of the trainer's own.
    slices_.push_back({{"missing"}, 0, 50});
    Extend(log_probs_, std::vector<float>(50 * kSlots, -3.0f));
    for (auto* array : {&sampled_, &envelopes_, &masses_}) {
      Extend(*array, std::vector<float>(50, array == &masses_ ? 0.5f : -1.0f));
    }
    own_.assign(sampled_.size(), -1.25f);
    for (size_t i = 0; i < sampled_.size(); ++i) mask_.push_back(i % 5 != 0);
    client_ = Connect(1 << 20);
    plain_ = Connect(kPlainBatchBytes);
    memory_ = *client_->LeaseSharedMemory(1 << 20);
  }

  static ServerOptions Options() {
    ServerOptions options = LiveServer::SharedMemoryOptions();
    options.max_message_bytes = kMessageBytes;
    return options;
  }

  template <typename T>
  static void Extend(std::vector<T>& array, const std::vector<T>& more) {
    array.insert(array.end(), more.begin(), more.end());
  }

  std::unique_ptr<Client> Connect(size_t micro_batch_bytes) {
    auto client = Client::Connect(live_.grpc_address(), {.micro_batch_bytes = micro_batch_bytes});
    EXPECT_TRUE(client.ok()) << client.status();
    return *std::move(client);
  }

  // A run of its own for every call, so that each counts everything.
  RunRef MakeRun() {
    const std::string run = absl::StrCat("run", runs_++);
    live_.CreateRun(LiveServer::RunRequest(run, kSlots, kVocabulary));
    std::vector<v1::AppendRequest> requests{LiveServer::Header(run, kVocabulary)};
    for (const v1::Block& block : blocks_) {
      *requests.emplace_back().mutable_batch()->add_entries()->mutable_block() = block;
    }
    const LiveServer::Appended appended = live_.Append(requests);
    EXPECT_TRUE(appended.status.ok()) << appended.status.error_message();
    for (const v1::Ack& ack : appended.acks) EXPECT_EQ(ack.code(), 0) << ack.message();
    return {run};
  }

  static void ExpectSame(const absl::StatusOr<Evaluation>& got,
                         const absl::StatusOr<Evaluation>& expected) {
    ASSERT_TRUE(expected.ok()) << expected.status();
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_EQ(got->accept_bits, expected->accept_bits);
    EXPECT_EQ(got->decisions, expected->decisions);
    EXPECT_EQ(got->acceptance_probabilities, expected->acceptance_probabilities);
    EXPECT_EQ(got->totals.SerializeAsString(), expected->totals.SerializeAsString());
    EXPECT_GT(got->totals.accepted(), 0);
    EXPECT_EQ(got->missing.size(), 1);
    EXPECT_EQ(got->newly_counted, expected->newly_counted);
  }

  RecordGenerator generator_{kSlots, kVocabulary, 11};
  LiveServer live_;
  template <class Values, typename T>
  void WriteDuringCalls(const std::vector<T>& log_probs_before, const std::vector<T>& values);

  std::vector<Slice> slices_;
  std::vector<v1::Block> blocks_;
  std::vector<float> log_probs_, sampled_, envelopes_, masses_, own_;
  std::vector<uint8_t> mask_;
  const EvaluateOptions options_{.draw = 5, .outputs = {v1::ACCEPT_BITS, v1::DECISIONS}};
  int runs_ = 0;
  std::unique_ptr<Client> client_, plain_;
  std::unique_ptr<SharedMemory> memory_;
};

TEST_F(SharedMemoryTest, TheSameCallGivesTheSameAnswers) {
  EXPECT_EQ(client_->Evaluate(MakeRun(), slices_, GatheredValues{log_probs_, sampled_}, options_)
                .status()
                .code(),
            absl::StatusCode::kResourceExhausted)
      << "the arrays must be larger than a message";
  const std::span<float> log_probs = Copy(*memory_, log_probs_);
  const std::span<float> sampled = Copy(*memory_, sampled_);
  {
    SCOPED_TRACE("float32");
    ExpectSame(
        client_->Evaluate(MakeRun(), slices_, GatheredValues{log_probs, sampled}, options_),
        plain_->Evaluate(MakeRun(), slices_, GatheredValues{log_probs_, sampled_}, options_));
  }
  {
    SCOPED_TRACE("reduced");
    ExpectSame(
        client_->Evaluate(
            MakeRun(), slices_,
            ReducedValues{sampled, Copy(*memory_, envelopes_), Copy(*memory_, masses_)}, options_),
        plain_->Evaluate(MakeRun(), slices_, ReducedValues{sampled_, envelopes_, masses_},
                         options_));
  }
}

TEST_F(SharedMemoryTest, LargeCallsAreCutWhereTheyCanBe) {
  const GatheredValues shared{Copy(*memory_, log_probs_), Copy(*memory_, sampled_)};
  const auto expected =
      plain_->Evaluate(MakeRun(), slices_, GatheredValues{log_probs_, sampled_}, options_);
  for (const size_t bytes : {1, 1000, 3000, 10000}) {
    SCOPED_TRACE(bytes);
    ExpectSame(
        Connect(bytes)->Evaluate(MakeRun(), slices_, shared, options_),
        plain_->Evaluate(MakeRun(), slices_, GatheredValues{log_probs_, sampled_}, options_));
  }
  // Memory of another client of the same server is as good as any other.
  ExpectSame(plain_->Evaluate(MakeRun(), slices_, shared, options_), expected);
}

TEST_F(SharedMemoryTest, ArraysOfOptionsMustLieThereToo) {
  const GatheredValues shared{Copy(*memory_, log_probs_), Copy(*memory_, sampled_)};
  EvaluateOptions options = options_;
  options.mask = Copy(*memory_, mask_);
  options.own_log_probs = Copy(*memory_, own_);
  const auto evaluation = client_->Evaluate(MakeRun(), slices_, shared, options);
  ASSERT_TRUE(evaluation.ok()) << evaluation.status();
  EXPECT_EQ(evaluation->totals.masked(), std::ranges::count(mask_, 0));
  // Otherwise all arrays travel, and are too large for this server's messages.
  options.mask = mask_;
  EXPECT_EQ(client_->Evaluate(MakeRun(), slices_, shared, options).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST_F(SharedMemoryTest, PartsAreAlignedAndBounded) {
  EXPECT_EQ(memory_->size(), 1 << 20);
  std::set<const void*> parts;
  for (const size_t count : {1, 3, 100, 7}) {
    const auto part = memory_->Allocate<double>(count);
    ASSERT_TRUE(part.ok());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(part->data()) % 64, 0);
    EXPECT_EQ(part->size(), count);
    EXPECT_TRUE(parts.insert(part->data()).second);
  }
  EXPECT_EQ(memory_->Allocate<char>(1 << 20).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(memory_->Allocate<double>(SIZE_MAX / 2).status().code(),
            absl::StatusCode::kResourceExhausted);
  memory_->Reset();
  EXPECT_TRUE(memory_->Allocate<char>(1 << 20).ok());
  EXPECT_TRUE(memory_->Allocate<char>(0).ok());
}

TEST_F(SharedMemoryTest, ItsFileIsUnlinkedWhenItIsMapped) {
  std::ifstream maps("/proc/self/maps");
  int mapped = 0;
  for (std::string line; std::getline(maps, line);) {
    if (!absl::StrContains(line, "/dev/shm/sis-")) continue;
    ++mapped;
    EXPECT_TRUE(absl::StrContains(line, "(deleted)")) << line;
  }
  EXPECT_EQ(mapped, 2);  // the client's and, in the same process, the server's
}

// Writes some of the values somewhere into the array, for as long as it lives.
template <typename T>
class Scribbler {
 public:
  Scribbler(std::span<T> array, std::vector<T> values)
      : array_(array), before_(array.begin(), array.end()), thread_([this, values] {
          std::mt19937 random(3);
          while (!stop_) {
            const_cast<volatile T&>(array_[random() % array_.size()]) =
                values[random() % values.size()];
            if (random() % 8 == 0) std::ranges::copy(before_, array_.begin());
          }
        }) {}
  // Leaves the array as it was.
  ~Scribbler() {
    stop_ = true;
    thread_.join();
    std::ranges::copy(before_, array_.begin());
  }

 private:
  const std::span<T> array_;
  const std::vector<T> before_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

// What a client writes during a call may spoil its own answer, nothing else. The first of `values`
// is a log-prob of -100, with which the array stays valid.
template <class Values, typename T>
void SharedMemoryTest::WriteDuringCalls(const std::vector<T>& log_probs_before,
                                        const std::vector<T>& values) {
  const std::span<T> log_probs = Copy(*memory_, log_probs_before);
  const std::span<float> sampled = Copy(*memory_, sampled_);
  const RunRef run = MakeRun();
  EvaluateOptions options = options_;
  const auto evaluate = [&] {
    ++options.draw;
    const auto evaluation = client_->Evaluate(run, slices_, Values{log_probs, sampled}, options);
    if (!evaluation.ok()) return evaluation.status();
    const v1::Totals& totals = evaluation->totals;
    EXPECT_EQ(totals.accepted() + totals.rejected() + totals.outside_top_k() + totals.missing(),
              sampled_.size());
    EXPECT_LE(totals.d_sis(), totals.d());
    EXPECT_TRUE(std::isfinite(totals.d()) && std::isfinite(totals.log_envelope()));
    return absl::OkStatus();
  };
  {
    const Scribbler<T> slots(log_probs, {values[0]});
    const Scribbler<float> tokens(sampled, {-100.0f});
    for (int call = 0; call < 50; ++call) {
      const absl::Status status = evaluate();
      EXPECT_TRUE(status.ok()) << status;
    }
  }
  {
    const Scribbler<T> slots(log_probs, values);
    const Scribbler<float> tokens(sampled, {-100.0f, 0.0f, NAN, INFINITY, -INFINITY, 1e30f});
    for (int call = 0; call < 50; ++call) {
      const absl::Status status = evaluate();
      EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << status;
    }
  }
  const auto step = client_->GetStep(run, options.draw);
  EXPECT_TRUE(step.ok() || absl::IsNotFound(step.status()));
  ExpectSame(client_->Evaluate(MakeRun(), slices_, Values{log_probs, sampled}, options_),
             plain_->Evaluate(MakeRun(), slices_, Values{log_probs_before, sampled_}, options_));
}

TEST_F(SharedMemoryTest, ValuesThatChangeDuringTheCall) {
  WriteDuringCalls<GatheredValues, float>(log_probs_,
                                          {-100.0f, 0.0f, -1.0f, NAN, INFINITY, -INFINITY, 1e30f});
}

TEST_F(SharedMemoryTest, AKilledClientsMemoryComesBack) {
  const std::string holder = "tests/integration/segment_holder";
  const std::string bytes = absl::StrCat(40 << 20);
  for (int round = 0; round < 3; ++round) {
    // The server may yet have to see that who had the memory last has given it back.
    std::unique_ptr<ChildProcess> child;
    WaitFor([&] {
      child = std::make_unique<ChildProcess>(
          std::vector<std::string>{holder, live_.grpc_address(), bytes});
      return child->ReadLine() == "ready";
    });
    EXPECT_EQ(client_->LeaseSharedMemory(40 << 20).status().code(),
              absl::StatusCode::kResourceExhausted);
    child->Signal(SIGKILL);
    child->Wait();
    WaitFor([&] { return client_->LeaseSharedMemory(40 << 20).ok(); });
  }
}

TEST(SharedMemoryClientTest, OnlyOneServerAtAUnixSocket) {
  ServerOptions options = LiveServer::SharedMemoryOptions();
  options.listen = absl::StrCat("127.0.0.1:0,", options.listen);
  LiveServer live(options);
  const std::vector<std::string> addresses = absl::StrSplit(live.grpc_address(), ',');
  auto client = Client::Connect(addresses[0]);
  EXPECT_EQ((*client)->LeaseSharedMemory(1).status().code(), absl::StatusCode::kPermissionDenied);
  client = Client::Connect(addresses);
  EXPECT_EQ((*client)->LeaseSharedMemory(1).status().code(), absl::StatusCode::kUnimplemented);
  const auto one = Client::Connect(addresses[1]);
  const auto memory = (*one)->LeaseSharedMemory(1 << 20);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ((*client)
                ->FetchTopK({"run"}, std::vector<Slice>{{{"s"}}}, {.memory = memory->get()})
                .status()
                .code(),
            absl::StatusCode::kUnimplemented);
  EXPECT_TRUE((*memory)->Allocate<char>(1 << 20).ok());
}

TEST(SharedMemoryClientTest, OutlivesItsServerAsMemory) {
  const ServerOptions options = LiveServer::SharedMemoryOptions();
  const std::vector<std::string> flags = {absl::StrCat("--listen=", options.listen),
                                          "--cache_bytes=33554432",
                                          "--shared_memory_bytes=1048576"};
  auto server = std::make_unique<ServerProcess>(flags);
  EXPECT_EQ(server->address(), options.listen);
  const auto client = Client::Connect(options.listen);
  ASSERT_TRUE(client.ok()) << client.status();
  const auto memory = (*client)->LeaseSharedMemory(1 << 20);
  ASSERT_TRUE(memory.ok()) << memory.status();
  const std::vector<Slice> slices = {{{"missing"}, 0, 16}};
  const std::span<float> zeros = *(*memory)->Allocate<float>(16);
  const auto evaluate = [&] {
    return (*client)->Evaluate({"run"}, slices, ReducedValues{zeros, zeros, zeros}, {});
  };
  v1::RunConfig config;
  config.set_vocabulary_size(10);
  config.set_top_k(2);
  ASSERT_TRUE((*client)->CreateRun("run", config).ok());
  EXPECT_TRUE(evaluate().ok()) << evaluate().status();

  server->Signal(SIGKILL);
  server = std::make_unique<ServerProcess>(flags);
  // The arrays travel now.
  WaitFor([&] { return !absl::IsUnavailable(evaluate().status()); });
  EXPECT_TRUE(evaluate().ok()) << evaluate().status();
  zeros[15] = -1;
  EXPECT_TRUE((*client)->LeaseSharedMemory(1 << 20).ok());
}

}  // namespace
}  // namespace sis
