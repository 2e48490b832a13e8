#include "server/wire/append_request.h"

#include <climits>
#include <cstring>
#include <utility>

namespace sis {
namespace {

// A field's number and wire type, in one byte.
constexpr uint8_t Tag(int number, int wire_type) {
  return static_cast<uint8_t>(number << 3 | wire_type);
}
constexpr int kVarint = 0;
constexpr int kDelimited = 2;
constexpr int kFixed32 = 5;

bool IsAscii(std::string_view text) {
  uint8_t bits = 0;
  for (const char c : text) bits |= static_cast<uint8_t>(c);
  return bits < 0x80;
}

AppendEntryView ViewOf(const v1::AppendEntry& entry) {
  AppendEntryView view;
  const auto name = [&](const v1::SequenceRef& sequence) {
    view.sequence_id = sequence.id();
    view.attempt = sequence.attempt();
  };
  switch (entry.entry_case()) {
    case v1::AppendEntry::kBlock: {
      const v1::Block& block = entry.block();
      view.kind = AppendEntryView::Kind::kBlock;
      name(block.sequence());
      view.first_position = block.first_position();
      view.policy_version = block.policy_version();
      view.sampled_ids = ArrayField(block.sampled_ids());
      view.sampled_log_probs = ArrayField(block.sampled_log_probs());
      view.top_k_ids = ArrayField(block.top_k_ids());
      view.top_k_log_probs = ArrayField(block.top_k_log_probs());
      if (block.has_crc32c()) view.crc32c = block.crc32c();
      break;
    }
    case v1::AppendEntry::kTruncate:
      view.kind = AppendEntryView::Kind::kTruncate;
      name(entry.truncate().sequence());
      view.length = entry.truncate().length();
      break;
    case v1::AppendEntry::kSeal:
      view.kind = AppendEntryView::Kind::kSeal;
      name(entry.seal().sequence());
      view.length = entry.seal().length();
      break;
    case v1::AppendEntry::ENTRY_NOT_SET:
      break;
  }
  return view;
}

}  // namespace

std::vector<AppendEntryView> EntriesOf(const v1::AppendBatch& batch) {
  std::vector<AppendEntryView> entries;
  entries.reserve(batch.entries_size());
  for (const v1::AppendEntry& entry : batch.entries()) entries.push_back(ViewOf(entry));
  return entries;
}

// Reads a request with a batch as protobuf writes it. False says only that it is something else,
// well-formed or not.
class PlainBatchReader {
 public:
  explicit PlainBatchReader(ReceivedAppend& into) : into_(into) { NextPiece(0); }

  bool Read() {
    const size_t end = into_.bytes_.size();
    size_t batch_end = 0;
    if (!ReadByteIf(Tag(2, kDelimited)) || !ReadEnd(end, batch_end) || batch_end != end) {
      return false;
    }
    bool has_segment = false;
    while (offset() < end) {
      uint8_t tag;
      if (!ReadByte(tag)) return false;
      if (tag == Tag(2, kDelimited)) {
        if (std::exchange(has_segment, true) || !ReadId(end, into_.segment_)) return false;
        continue;
      }
      size_t entry_end = 0;
      if (tag != Tag(1, kDelimited) || !ReadEnd(end, entry_end)) return false;
      if (!ReadEntry(entry_end, into_.entries_.emplace_back())) return false;
    }
    return offset() == end;
  }

 private:
  using Kind = AppendEntryView::Kind;

  // A field of its message may come once only.
  class FieldsSeen {
   public:
    bool First(int number) {
      const uint32_t bit = 1u << number;
      return std::exchange(seen_, seen_ | bit) != (seen_ | bit);
    }

   private:
    uint32_t seen_ = 0;
  };

  size_t offset() const { return piece_offset_ + static_cast<size_t>(next_ - piece_.data()); }
  size_t left_in_piece() const {
    return static_cast<size_t>(piece_.data() + piece_.size() - next_);
  }
  void NextPiece(size_t offset) {
    piece_ = into_.bytes_.PieceAt(offset);
    piece_offset_ = offset;
    next_ = piece_.data();
  }

  bool ReadByte(uint8_t& byte) {
    if (left_in_piece() == 0) {
      NextPiece(offset());
      if (piece_.empty()) return false;
    }
    byte = static_cast<uint8_t>(*next_++);
    return true;
  }
  bool ReadByteIf(uint8_t expected) {
    uint8_t byte;
    return ReadByte(byte) && byte == expected;
  }
  bool ReadVarint(uint64_t& value) {
    value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      uint8_t byte;
      if (!ReadByte(byte)) return false;
      value |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return shift < 63 || byte < 2;
    }
    return false;
  }
  bool ReadUint32(uint32_t& value) {
    uint64_t wide;
    if (!ReadVarint(wide) || wide > UINT32_MAX) return false;
    value = static_cast<uint32_t>(wide);
    return true;
  }
  // Where the delimited field that comes ends, if that isn't beyond `limit`.
  bool ReadEnd(size_t limit, size_t& end) {
    uint32_t size;
    if (!ReadUint32(size) || size > INT_MAX || offset() > limit || size > limit - offset()) {
      return false;
    }
    end = offset() + size;
    return true;
  }

  void Skip(size_t size) {
    if (size <= left_in_piece()) {
      next_ += size;
    } else {
      NextPiece(offset() + size);
    }
  }
  bool ReadArray(size_t limit, ArrayField& array) {
    size_t end;
    if (!ReadEnd(limit, end)) return false;
    const size_t size = end - offset();
    // Before it is skipped: a piece that is used up makes place for the one that has the field.
    if (size > 0 && left_in_piece() == 0) NextPiece(offset());
    array = size <= left_in_piece() ? ArrayField(std::string_view(next_, size))
                                    : ArrayField(into_.bytes_, offset(), size);
    Skip(size);
    return true;
  }
  bool ReadId(size_t limit, std::string_view& id) {
    size_t end;
    if (!ReadEnd(limit, end)) return false;
    const size_t size = end - offset();
    if (size > 0 && left_in_piece() == 0) NextPiece(offset());
    if (size <= left_in_piece()) {
      id = {next_, size};
    } else {
      std::string& whole = into_.cut_ids_.emplace_back(size, '\0');
      into_.bytes_.Copy(offset(), size, whole.data());
      id = whole;
    }
    Skip(size);
    return IsAscii(id);
  }

  bool ReadSequence(size_t limit, AppendEntryView& entry) {
    size_t end;
    if (!ReadEnd(limit, end)) return false;
    FieldsSeen fields;
    while (offset() < end) {
      uint8_t tag;
      if (!ReadByte(tag) || !fields.First(tag >> 3)) return false;
      switch (tag) {
        case Tag(1, kDelimited):
          if (!ReadId(end, entry.sequence_id)) return false;
          break;
        case Tag(2, kVarint):
          if (!ReadUint32(entry.attempt)) return false;
          break;
        default:
          return false;
      }
    }
    return offset() == end;
  }

  bool ReadEntry(size_t limit, AppendEntryView& entry) {
    uint8_t tag;
    size_t end;
    if (offset() == limit || !ReadByte(tag) || !ReadEnd(limit, end) || end != limit) return false;
    switch (tag) {
      case Tag(1, kDelimited):
        entry.kind = Kind::kBlock;
        return ReadBlock(end, entry);
      case Tag(2, kDelimited):
        entry.kind = Kind::kTruncate;
        return ReadLength(end, entry);
      case Tag(3, kDelimited):
        entry.kind = Kind::kSeal;
        return ReadLength(end, entry);
      default:
        return false;
    }
  }

  bool ReadBlock(size_t end, AppendEntryView& entry) {
    FieldsSeen fields;
    while (offset() < end) {
      uint8_t tag;
      if (!ReadByte(tag) || !fields.First(tag >> 3) || !ReadBlockField(tag, end, entry)) {
        return false;
      }
    }
    return offset() == end;
  }

  bool ReadBlockField(uint8_t tag, size_t end, AppendEntryView& entry) {
    switch (tag) {
      case Tag(1, kDelimited):
        return ReadSequence(end, entry);
      case Tag(2, kVarint):
        return ReadUint32(entry.first_position);
      case Tag(3, kVarint):
        return ReadVarint(entry.policy_version);
      case Tag(4, kDelimited):
        return ReadArray(end, entry.sampled_ids);
      case Tag(5, kDelimited):
        return ReadArray(end, entry.sampled_log_probs);
      case Tag(6, kDelimited):
        return ReadArray(end, entry.top_k_ids);
      case Tag(7, kDelimited):
        return ReadArray(end, entry.top_k_log_probs);
      case Tag(8, kFixed32): {
        uint32_t crc = 0;
        for (int shift = 0; shift < 32; shift += 8) {
          uint8_t byte;
          if (!ReadByte(byte)) return false;
          crc |= uint32_t{byte} << shift;
        }
        entry.crc32c = crc;
        return true;
      }
      default:
        return false;
    }
  }

  // Of Truncate and Seal, which have the same fields.
  bool ReadLength(size_t end, AppendEntryView& entry) {
    FieldsSeen fields;
    while (offset() < end) {
      uint8_t tag;
      if (!ReadByte(tag) || !fields.First(tag >> 3)) return false;
      switch (tag) {
        case Tag(1, kDelimited):
          if (!ReadSequence(end, entry)) return false;
          break;
        case Tag(2, kVarint):
          if (!ReadUint32(entry.length)) return false;
          break;
        default:
          return false;
      }
    }
    return offset() == end;
  }

  ReceivedAppend& into_;
  std::string_view piece_;
  size_t piece_offset_ = 0;
  const char* next_ = nullptr;
};

absl::Status ReceivedAppend::Parse(ScatteredBytes bytes) {
  bytes_ = std::move(bytes);
  entries_.clear();
  segment_ = {};
  cut_ids_.clear();
  if (PlainBatchReader(*this).Read()) {
    message_case_ = v1::AppendRequest::kBatch;
    return absl::OkStatus();
  }
  entries_.clear();
  segment_ = {};
  message_case_ = v1::AppendRequest::MESSAGE_NOT_SET;
  std::string whole(bytes_.size(), '\0');
  bytes_.Copy(0, whole.size(), whole.data());
  if (whole.size() > INT_MAX || !request_.ParseFromString(whole)) {
    return absl::InvalidArgumentError("message: not an AppendRequest");
  }
  message_case_ = request_.message_case();
  if (is_batch()) {
    entries_ = EntriesOf(request_.batch());
    segment_ = request_.batch().segment();
  }
  return absl::OkStatus();
}

}  // namespace sis
