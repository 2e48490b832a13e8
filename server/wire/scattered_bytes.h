// Bytes that lie in several pieces of memory, one after the other, as gRPC receives a message.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

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

}  // namespace sis
