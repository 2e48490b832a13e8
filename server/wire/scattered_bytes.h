// Bytes that lie in several pieces of memory, one after the other, as gRPC receives a message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "google/protobuf/io/zero_copy_stream.h"

namespace sis {

class ScatteredBytes {
 public:
  ScatteredBytes() = default;
  // The memory must outlive the object.
  explicit ScatteredBytes(std::span<const std::string_view> pieces);

  size_t size() const { return size_; }

  // The bytes [offset, offset + size), which must be there, if they lie in one piece; else null.
  const char* InOnePiece(size_t offset, size_t size) const;
  // Copies the bytes [offset, offset + size), which must be there.
  void Copy(size_t offset, size_t size, char* into) const;
  // What lies in one piece from `offset` on; empty at the end.
  std::string_view PieceAt(size_t offset) const;

 private:
  struct Piece {
    size_t offset;
    std::string_view bytes;
  };

  std::vector<Piece> pieces_;  // none empty
  size_t size_ = 0;
};

// As protobuf reads them.
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
