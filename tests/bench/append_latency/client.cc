// The C++ client in the benchmark of latency; append_latency.py starts it.
//
//     client ADDRESS ECHO_ADDRESS RUN SLOTS VOCABULARY MESSAGE_BYTES
//
// Each line of standard input, "sis N" or "echo N", makes it append N tokens, one at a time, or
// send the echo server N messages of MESSAGE_BYTES, and print the microseconds that each took.
#include "client/api/client.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace {

[[noreturn]] void Fail(const std::string& message) {
  std::cerr << message << '\n';
  std::exit(1);
}

template <typename T>
T Value(absl::StatusOr<T> result) {
  if (!result.ok()) Fail(result.status().ToString());
  return *std::move(result);
}

// What a message and its answer take at least: the thread that wants the answer waits for it in
// gRPC itself.
class Echo {
 public:
  Echo(const std::string& address, size_t message_bytes)
      : stub_(grpc::CreateChannel(address, grpc::InsecureChannelCredentials())),
        call_(stub_.PrepareCall(&context_, "/echo", &queue_)) {
    const grpc::Slice slice(std::string(message_bytes, 'm'));
    message_ = grpc::ByteBuffer(&slice, 1);
    call_->StartCall(nullptr);
    Await();
  }
  ~Echo() {
    context_.TryCancel();
    grpc::Status status;
    call_->Finish(&status, nullptr);
    void* tag;
    bool ok;
    queue_.Next(&tag, &ok);
  }

  void operator()() {
    grpc::ByteBuffer answer;
    call_->Read(&answer, nullptr);
    call_->Write(message_, nullptr);
    Await();
    Await();
  }

 private:
  void Await() {
    void* tag;
    bool ok;
    if (!queue_.Next(&tag, &ok) || !ok) Fail("the echo server is gone");
  }

  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  grpc::GenericStub stub_;
  const std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
  grpc::ByteBuffer message_;
};

class Append {
 public:
  Append(const std::string& address, const std::string& run_id, size_t slots, uint32_t vocabulary)
      : client_(Value(sis::Client::Connect(address))) {
    for (size_t i = 0; i < slots; ++i) {
      ids_.push_back(7 * static_cast<int32_t>(i));
      log_probs_.push_back(-1 - 0.5F * static_cast<float>(i));
    }
    token_ = {{ids_.data(), 1}, {log_probs_.data(), 1}, ids_, log_probs_};
    sis::v1::Sampling sampling;
    sampling.set_log_probs(sis::v1::Sampling::RAW);
    sampling.set_temperature(1);
    stream_ = client_->Append({run_id}, sampling, vocabulary);
  }

  void operator()() {
    const absl::Status sent = stream_->Block({"C++"}, position_++, 0, token_);
    if (!sent.ok()) Fail(sent.ToString());
    const auto refused = Value(stream_->Flush());
    if (!refused.empty()) Fail(refused.front().status.ToString());
  }

 private:
  std::vector<int32_t> ids_;
  std::vector<float> log_probs_;
  const std::unique_ptr<sis::Client> client_;
  sis::RecordView token_;
  uint32_t position_ = 0;
  std::unique_ptr<sis::AppendWriter> stream_;
};

template <typename Call>
void Time(int count, Call& call) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> times;
  for (int i = 0; i < count; ++i) {
    const Clock::time_point begin = Clock::now();
    call();
    times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
  }
  for (const double time : times) std::cout << time << ' ';
  std::cout << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7) return 2;
  Append append(argv[1], argv[3], std::stoul(argv[4]), std::stoul(argv[5]));
  Echo echo(argv[2], std::stoul(argv[6]));
  std::string way;
  int count;
  while (std::cin >> way >> count) {
    if (way == "sis") {
      Time(count, append);
    } else {
      Time(count, echo);
    }
  }
}
