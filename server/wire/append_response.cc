#include "server/wire/append_response.h"

#include <algorithm>
#include <string_view>

#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"
#include "server/wire/message_text.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedOutputStream;

// Counts the bytes that a Writer writes. A field that holds its type's zero is not written.
class Counter {
 public:
  size_t bytes() const { return bytes_; }

  // Tags are of one byte: all fields have numbers below 16.
  void Varint(int, uint64_t value) {
    if (value != 0) bytes_ += 1 + CodedOutputStream::VarintSize64(value);
  }
  void Double(int, double value) {
    if (value != 0) bytes_ += 1 + sizeof(value);
  }
  void Text(int, std::string_view text) {
    if (!text.empty()) bytes_ += 1 + WireFormatLite::LengthDelimitedSize(text.size());
  }
  // The beginning of a message of so many bytes.
  void Message(int, size_t bytes) { bytes_ += 1 + CodedOutputStream::VarintSize64(bytes); }

 private:
  size_t bytes_ = 0;
};

class Writer {
 public:
  explicit Writer(char* to) : next_(reinterpret_cast<uint8_t*>(to)) {}

  void Varint(int number, uint64_t value) {
    if (value == 0) return;
    next_ = WireFormatLite::WriteUInt64ToArray(number, value, next_);
  }
  void Double(int number, double value) {
    if (value == 0) return;
    next_ = WireFormatLite::WriteDoubleToArray(number, value, next_);
  }
  void Text(int number, std::string_view text) {
    if (text.empty()) return;
    Message(number, text.size());
    next_ = CodedOutputStream::WriteRawToArray(text.data(), static_cast<int>(text.size()), next_);
  }
  void Message(int number, size_t bytes) {
    next_ =
        WireFormatLite::WriteTagToArray(number, WireFormatLite::WIRETYPE_LENGTH_DELIMITED, next_);
    next_ = CodedOutputStream::WriteVarint32ToArray(static_cast<uint32_t>(bytes), next_);
  }

 private:
  uint8_t* next_;
};

template <typename Output>
void PutSequence(const AppendEntryView& entry, Output& output) {
  output.Text(v1::SequenceRef::kIdFieldNumber, entry.sequence_id);
  output.Varint(v1::SequenceRef::kAttemptFieldNumber, entry.attempt);
}

template <typename Output>
void PutAck(const AppendEntryView& entry, const EntryAck& ack, std::string_view message,
            Output& output) {
  Counter sequence;
  PutSequence(entry, sequence);
  output.Message(v1::Ack::kSequenceFieldNumber, sequence.bytes());
  PutSequence(entry, output);
  output.Varint(v1::Ack::kCommittedLengthFieldNumber, ack.committed_length);
  if (ack.status.ok()) return;
  output.Varint(v1::Ack::kCodeFieldNumber, static_cast<uint64_t>(ack.status.code()));
  output.Text(v1::Ack::kMessageFieldNumber, message);
  output.Double(v1::Ack::kRetrySecondsFieldNumber, ack.retry_seconds);
}

}  // namespace

void WriteAppendResponse(std::span<const AppendEntryView> entries, std::span<const EntryAck> acks,
                         std::string& bytes) {
  bytes.clear();
  size_t room = kMoreMessageBytes;
  for (size_t i = 0; i < acks.size(); ++i) {
    room += entries[i].sequence_id.size() + entries[i].array_bytes();
    const absl::string_view whole = acks[i].status.message();
    const std::string_view message =
        Beginning({whole.data(), whole.size()}, std::min(room, kMaxMessageBytes));
    room -= message.size();
    Counter ack;
    PutAck(entries[i], acks[i], message, ack);
    const size_t before = bytes.size();
    bytes.resize(before + 1 + WireFormatLite::LengthDelimitedSize(ack.bytes()));
    Writer writer(bytes.data() + before);
    writer.Message(v1::AppendResponse::kAcksFieldNumber, ack.bytes());
    PutAck(entries[i], acks[i], message, writer);
  }
}

}  // namespace sis
