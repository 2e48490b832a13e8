#include "server/wire/serialize.h"

#include <vector>

#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream.h"

namespace sis {
namespace {

using SharedMessage = std::shared_ptr<const google::protobuf::MessageLite>;

// Gives protobuf blocks to write into, and takes from it the addresses of what is longer than the
// rest of a block.
class SliceOutput final : public google::protobuf::io::ZeroCopyOutputStream {
 public:
  explicit SliceOutput(const SharedMessage& message) : message_(message) {}

  bool Next(void** data, int* size) override {
    slices_.emplace_back(kBlockBytes);
    *data = const_cast<uint8_t*>(slices_.back().begin());
    *size = kBlockBytes;
    bytes_ += kBlockBytes;
    return true;
  }

  void BackUp(int count) override {
    const grpc::Slice& block = slices_.back();
    slices_.back() = block.sub(0, block.size() - count);
    bytes_ -= count;
  }

  int64_t ByteCount() const override { return bytes_; }
  bool AllowsAliasing() const override { return true; }

  bool WriteAliasedRaw(const void* data, int size) override {
    slices_.emplace_back(
        const_cast<void*>(data), size,
        [](void* owner) { delete static_cast<SharedMessage*>(owner); },
        new SharedMessage(message_));
    bytes_ += size;
    return true;
  }

  grpc::ByteBuffer Buffer() const { return {slices_.data(), slices_.size()}; }

 private:
  static constexpr int kBlockBytes = 4096;

  const SharedMessage& message_;
  std::vector<grpc::Slice> slices_;
  int64_t bytes_ = 0;
};

}  // namespace

grpc::ByteBuffer SerializeInPlace(SharedMessage message) {
  SliceOutput output(message);
  {
    google::protobuf::io::CodedOutputStream coded(&output);
    coded.EnableAliasing(true);
    message->SerializePartialToCodedStream(&coded);
  }
  return output.Buffer();
}

}  // namespace sis
