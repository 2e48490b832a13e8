#include "server/wire/append_request.h"

#include <climits>
#include <utility>

#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"

namespace sis {
namespace {

using google::protobuf::internal::WireFormatLite;

constexpr uint32_t Varint(int number) {
  return WireFormatLite::MakeTag(number, WireFormatLite::WIRETYPE_VARINT);
}
constexpr uint32_t Delimited(int number) {
  return WireFormatLite::MakeTag(number, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
}
constexpr uint32_t Fixed32(int number) {
  return WireFormatLite::MakeTag(number, WireFormatLite::WIRETYPE_FIXED32);
}

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
  explicit PlainBatchReader(ReceivedAppend& into)
      : into_(into), stream_(into.bytes_), input_(&stream_) {}

  bool Read() {
    const size_t end = into_.bytes_.size();
    uint32_t tag = 0;
    size_t batch_end = 0;
    if (!ReadTag(tag) || tag != Delimited(v1::AppendRequest::kBatchFieldNumber) ||
        !ReadEnd(end, batch_end) || batch_end != end) {
      return false;
    }
    bool has_segment = false;
    while (offset() < end) {
      if (!ReadTag(tag)) return false;
      switch (tag) {
        case Delimited(v1::AppendBatch::kEntriesFieldNumber):
          if (!ReadEntry(end, into_.entries_.emplace_back())) return false;
          break;
        case Delimited(v1::AppendBatch::kSegmentFieldNumber):
          if (std::exchange(has_segment, true) || !ReadId(end, into_.segment_)) return false;
          break;
        default:
          return false;
      }
    }
    return offset() == end;
  }

 private:
  using Kind = AppendEntryView::Kind;

  size_t offset() const { return static_cast<size_t>(input_.CurrentPosition()); }

  // All tags of the message are of one byte.
  bool ReadTag(uint32_t& tag) {
    const size_t start = offset();
    tag = input_.ReadTagNoLastTag();
    return offset() == start + 1;
  }
  // Where the delimited field that comes ends, if that isn't beyond `limit`.
  bool ReadEnd(size_t limit, size_t& end) {
    constexpr size_t kMaxSizeBytes = 5;  // that protobuf takes
    const size_t start = offset();
    int size;
    if (!input_.ReadVarintSizeAsInt(&size)) return false;
    end = offset() + static_cast<size_t>(size);
    return end <= limit && offset() - start <= kMaxSizeBytes;
  }

  // A message of which every field may come once only. read(tag, end) reads one.
  template <typename ReadField>
  bool ReadMessage(size_t limit, const ReadField& read) {
    size_t end;
    if (!ReadEnd(limit, end)) return false;
    uint32_t seen = 0;
    while (offset() < end) {
      uint32_t tag;
      if (!ReadTag(tag)) return false;
      const uint32_t field = 1u << WireFormatLite::GetTagFieldNumber(tag);
      if ((seen & field) != 0 || !read(tag, end)) return false;
      seen |= field;
    }
    return offset() == end;
  }

  // What lies in one piece from here on.
  std::string_view Piece() {
    const void* data = nullptr;
    int size = 0;
    input_.GetDirectBufferPointerInline(&data, &size);
    return {static_cast<const char*>(data), static_cast<size_t>(size)};
  }
  bool ReadArray(size_t limit, ArrayField& array) {
    size_t end;
    if (!ReadEnd(limit, end)) return false;
    const size_t size = end - offset();
    const std::string_view piece = Piece();
    array = size <= piece.size() ? ArrayField(piece.substr(0, size))
                                 : ArrayField(into_.bytes_, offset(), size);
    return input_.Skip(static_cast<int>(size));
  }
  bool ReadId(size_t limit, std::string_view& id) {
    size_t end;
    if (!ReadEnd(limit, end)) return false;
    const size_t size = end - offset();
    id = Piece().substr(0, size);
    if (id.size() < size) {
      std::string& whole = into_.cut_ids_.emplace_back(size, '\0');
      into_.bytes_.Copy(offset(), size, whole.data());
      id = whole;
    }
    return input_.Skip(static_cast<int>(size)) && IsAscii(id);
  }

  bool ReadSequence(size_t limit, AppendEntryView& entry) {
    return ReadMessage(limit, [&](uint32_t tag, size_t end) {
      switch (tag) {
        case Delimited(v1::SequenceRef::kIdFieldNumber):
          return ReadId(end, entry.sequence_id);
        case Varint(v1::SequenceRef::kAttemptFieldNumber):
          return input_.ReadVarint32(&entry.attempt);
        default:
          return false;
      }
    });
  }

  bool ReadEntry(size_t limit, AppendEntryView& entry) {
    return ReadMessage(limit, [&](uint32_t tag, size_t end) {
      // One of them only: a later one would clear what an earlier one has set.
      if (entry.kind != Kind::kNone) return false;
      switch (tag) {
        case Delimited(v1::AppendEntry::kBlockFieldNumber):
          entry.kind = Kind::kBlock;
          return ReadBlock(end, entry);
        case Delimited(v1::AppendEntry::kTruncateFieldNumber):
          entry.kind = Kind::kTruncate;
          return ReadLength(end, entry);
        case Delimited(v1::AppendEntry::kSealFieldNumber):
          entry.kind = Kind::kSeal;
          return ReadLength(end, entry);
        default:
          return false;
      }
    });
  }

  bool ReadBlock(size_t limit, AppendEntryView& entry) {
    return ReadMessage(limit, [&](uint32_t tag, size_t end) {
      switch (tag) {
        case Delimited(v1::Block::kSequenceFieldNumber):
          return ReadSequence(end, entry);
        case Varint(v1::Block::kFirstPositionFieldNumber):
          return input_.ReadVarint32(&entry.first_position);
        case Varint(v1::Block::kPolicyVersionFieldNumber):
          return input_.ReadVarint64(&entry.policy_version);
        case Delimited(v1::Block::kSampledIdsFieldNumber):
          return ReadArray(end, entry.sampled_ids);
        case Delimited(v1::Block::kSampledLogProbsFieldNumber):
          return ReadArray(end, entry.sampled_log_probs);
        case Delimited(v1::Block::kTopKIdsFieldNumber):
          return ReadArray(end, entry.top_k_ids);
        case Delimited(v1::Block::kTopKLogProbsFieldNumber):
          return ReadArray(end, entry.top_k_log_probs);
        case Fixed32(v1::Block::kCrc32CFieldNumber):
          return input_.ReadLittleEndian32(&entry.crc32c.emplace());
        default:
          return false;
      }
    });
  }

  // Of Truncate and Seal, which have the same fields.
  bool ReadLength(size_t limit, AppendEntryView& entry) {
    static_assert(v1::Truncate::kSequenceFieldNumber == v1::Seal::kSequenceFieldNumber &&
                  v1::Truncate::kLengthFieldNumber == v1::Seal::kLengthFieldNumber);
    return ReadMessage(limit, [&](uint32_t tag, size_t end) {
      switch (tag) {
        case Delimited(v1::Seal::kSequenceFieldNumber):
          return ReadSequence(end, entry);
        case Varint(v1::Seal::kLengthFieldNumber):
          return input_.ReadVarint32(&entry.length);
        default:
          return false;
      }
    });
  }

  ReceivedAppend& into_;
  ScatteredInput stream_;
  google::protobuf::io::CodedInputStream input_;
};

absl::Status ReceivedAppend::Parse(ScatteredBytes bytes) {
  bytes_ = std::move(bytes);
  entries_.clear();
  segment_ = {};
  cut_ids_.clear();
  if (bytes_.size() <= INT_MAX && PlainBatchReader(*this).Read()) {
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
