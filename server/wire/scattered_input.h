// Scattered bytes, as protobuf reads them.
#pragma once

#include <cstdint>
#include <string_view>

#include "google/protobuf/io/zero_copy_stream.h"
#include "server/wire/scattered_bytes.h"

namespace sis {

class ScatteredInput final : public google::protobuf::io::ZeroCopyInputStream {
 public:
  // The bytes must outlive the object.
  explicit ScatteredInput(const ScatteredBytes& bytes) : bytes_(bytes) {}

  bool Next(const void** data, int* size) override {
    const std::string_view piece = bytes_.PieceAt(offset_);
    *data = piece.data();
    *size = static_cast<int>(piece.size());
    offset_ += piece.size();
    return !piece.empty();
  }
  void BackUp(int count) override { offset_ -= count; }
  bool Skip(int count) override {
    offset_ += count;
    if (offset_ <= bytes_.size()) return true;
    offset_ = bytes_.size();
    return false;
  }
  int64_t ByteCount() const override { return static_cast<int64_t>(offset_); }

 private:
  const ScatteredBytes& bytes_;
  size_t offset_ = 0;
};

}  // namespace sis
