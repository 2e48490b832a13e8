#include "server/wire/append_response.h"

#include <cstring>
#include <string_view>

namespace sis {
namespace {

constexpr uint8_t Tag(int number, int wire_type) {
  return static_cast<uint8_t>(number << 3 | wire_type);
}
constexpr int kVarint = 0;
constexpr int kFixed64 = 1;
constexpr int kDelimited = 2;

size_t VarintBytes(uint64_t value) {
  size_t bytes = 1;
  for (; value >= 0x80; value >>= 7) ++bytes;
  return bytes;
}

// Counts the bytes that a Writer writes.
class Counter {
 public:
  size_t bytes() const { return bytes_; }

  void Tag(uint8_t) { ++bytes_; }
  void Varint(uint64_t value) { bytes_ += VarintBytes(value); }
  void Double(double) { bytes_ += sizeof(double); }
  void Text(std::string_view text) { bytes_ += VarintBytes(text.size()) + text.size(); }

 private:
  size_t bytes_ = 0;
};

class Writer {
 public:
  explicit Writer(char* to) : next_(to) {}

  void Tag(uint8_t tag) { *next_++ = static_cast<char>(tag); }
  void Varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) *next_++ = static_cast<char>(value | 0x80);
    *next_++ = static_cast<char>(value);
  }
  void Double(double value) {
    std::memcpy(next_, &value, sizeof value);
    next_ += sizeof value;
  }
  void Text(std::string_view text) {
    Varint(text.size());
    std::memcpy(next_, text.data(), text.size());
    next_ += text.size();
  }

 private:
  char* next_;
};

// A field that holds its type's zero is not written.
template <typename Output>
void PutSequence(const AppendEntryView& entry, Output& output) {
  if (!entry.sequence_id.empty()) {
    output.Tag(Tag(1, kDelimited));
    output.Text(entry.sequence_id);
  }
  if (entry.attempt != 0) {
    output.Tag(Tag(2, kVarint));
    output.Varint(entry.attempt);
  }
}

template <typename Output>
void PutAck(const AppendEntryView& entry, const EntryAck& ack, Output& output) {
  Counter sequence;
  PutSequence(entry, sequence);
  output.Tag(Tag(1, kDelimited));
  output.Varint(sequence.bytes());
  PutSequence(entry, output);
  if (ack.committed_length != 0) {
    output.Tag(Tag(2, kVarint));
    output.Varint(ack.committed_length);
  }
  if (ack.status.ok()) return;
  output.Tag(Tag(3, kVarint));
  output.Varint(static_cast<uint64_t>(ack.status.code()));
  if (!ack.status.message().empty()) {
    output.Tag(Tag(4, kDelimited));
    output.Text({ack.status.message().data(), ack.status.message().size()});
  }
  if (ack.retry_seconds != 0) {
    output.Tag(Tag(5, kFixed64));
    output.Double(ack.retry_seconds);
  }
}

}  // namespace

void WriteAppendResponse(std::span<const AppendEntryView> entries, std::span<const EntryAck> acks,
                         std::string& bytes) {
  bytes.clear();
  for (size_t i = 0; i < acks.size(); ++i) {
    Counter ack;
    PutAck(entries[i], acks[i], ack);
    const size_t before = bytes.size();
    bytes.resize(before + 1 + VarintBytes(ack.bytes()) + ack.bytes());
    Writer writer(bytes.data() + before);
    writer.Tag(Tag(1, kDelimited));
    writer.Varint(ack.bytes());
    PutAck(entries[i], acks[i], writer);
  }
}

}  // namespace sis
