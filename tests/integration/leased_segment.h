// A segment that a test has leased and mapped, by the bare protocol.
#pragma once

#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>

#include "server/testing/replace_arrays.h"
#include "server/wire/segment_range.h"
#include "sis/v1/ratio_service.grpc.pb.h"

namespace sis {

class LeasedSegment {
 public:
  LeasedSegment(v1::RatioService::Stub& stub, uint64_t bytes) {
    v1::LeaseSegmentRequest request;
    request.set_bytes(bytes);
    lease_ = stub.LeaseSegment(&context_, request);
    v1::LeaseSegmentResponse response;
    if (!lease_->Read(&response)) {
      status_ = lease_->Finish();
      lease_.reset();
      return;
    }
    name_ = response.segment();
    object_ = response.object();
    size_ = response.bytes();
    EXPECT_GE(size_, bytes);
    const int file = shm_open(object_.c_str(), O_RDWR, 0);
    EXPECT_GE(file, 0);
    void* memory = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    EXPECT_NE(memory, MAP_FAILED);
    memory_ = static_cast<char*>(memory);
    close(file);
  }
  ~LeasedSegment() {
    End();
    if (memory_ != nullptr) munmap(memory_, size_);
  }
  LeasedSegment(const LeasedSegment&) = delete;
  LeasedSegment& operator=(const LeasedSegment&) = delete;

  // OK if there is a lease.
  const grpc::Status& status() const { return status_; }
  // In messages, and of the object that shm_open takes.
  const std::string& name() const { return name_; }
  const std::string& object() const { return object_; }
  size_t size() const { return size_; }
  // As mapped; stays when the lease ends.
  char* memory() const { return memory_; }

  // Ends the lease, and waits for it. The status of the call.
  grpc::Status End() {
    if (lease_ == nullptr) return status_;
    context_.TryCancel();
    v1::LeaseSegmentResponse more;
    EXPECT_FALSE(lease_->Read(&more));
    const grpc::Status status = lease_->Finish();
    lease_.reset();
    return status;
  }
  // Waits until the server ends the lease.
  grpc::Status Wait() {
    const grpc::Status status = lease_->Finish();
    lease_.reset();
    return status;
  }

  // Puts an array into the segment, behind those put before; returns what stands for it in a
  // message.
  std::string Put(const std::string& array) {
    const size_t offset = next_;
    EXPECT_LE(offset + array.size(), size_);
    if (!array.empty()) std::memcpy(memory_ + offset, array.data(), array.size());
    next_ = (offset + array.size() + alignment_ - 1) / alignment_ * alignment_;
    return SegmentRange{offset, array.size()}.ToBytes();
  }
  // What a part that a message names holds.
  std::string Get(const std::string& part) const {
    const absl::StatusOr<SegmentRange> parsed = SegmentRange::Parse(part, size_);
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    return std::string(memory_ + parsed->offset, parsed->size);
  }

  // Puts all arrays of a message into the segment, and where they are into its fields.
  void PutArrays(google::protobuf::Message& message) {
    ReplaceArrays(message, [this](const std::string& array) { return Put(array); });
  }
  // Takes the arrays of an answer out of the segment.
  void GetArrays(google::protobuf::Message& message) const {
    ReplaceArrays(message, [this](const std::string& part) { return Get(part); });
  }

  // From now on arrays are put directly behind each other, the first there.
  void PutFrom(size_t offset) {
    alignment_ = 1;
    next_ = offset;
  }

  // Where the next array goes.
  size_t next() const { return next_; }
  // All from there on, for answers.
  v1::SegmentRange Rest() const {
    v1::SegmentRange rest;
    rest.set_offset((next_ + 63) / 64 * 64);
    rest.set_bytes(size_ - rest.offset());
    return rest;
  }
  // The next array goes to the beginning.
  void Clear() { next_ = 0; }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::LeaseSegmentResponse>> lease_;
  grpc::Status status_;
  std::string name_;
  std::string object_;
  size_t size_ = 0;
  char* memory_ = nullptr;
  size_t next_ = 0;
  size_t alignment_ = 64;
};

}  // namespace sis
