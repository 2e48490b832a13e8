#include "server/wire/scattered_bytes.h"

#include <algorithm>
#include <cstring>

namespace sis {

ScatteredBytes::ScatteredBytes(std::span<const std::string_view> pieces) {
  pieces_.reserve(pieces.size());
  for (const std::string_view bytes : pieces) {
    if (bytes.empty()) continue;
    pieces_.push_back({size_, bytes});
    size_ += bytes.size();
  }
}

std::string_view ScatteredBytes::PieceAt(size_t offset) const {
  if (offset >= size_) return {};
  const auto after = std::ranges::upper_bound(pieces_, offset, {}, &Piece::offset);
  const Piece& piece = *std::prev(after);
  return piece.bytes.substr(offset - piece.offset);
}

const char* ScatteredBytes::InOnePiece(size_t offset, size_t size) const {
  const std::string_view piece = PieceAt(offset);
  return size <= piece.size() ? piece.data() : nullptr;
}

void ScatteredBytes::Copy(size_t offset, size_t size, char* into) const {
  while (size > 0) {
    const std::string_view piece = PieceAt(offset).substr(0, size);
    std::memcpy(into, piece.data(), piece.size());
    into += piece.size();
    offset += piece.size();
    size -= piece.size();
  }
}

}  // namespace sis
