#include "server/wire/append_request.h"

#include <algorithm>
#include <climits>
#include <utility>

#include "absl/strings/str_cat.h"
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

// What an entry takes until it is acked, besides its id and its arrays: here, as an ack, and where
// there is a store, in tables.
constexpr int64_t kEntryBytes = 640;
// The id is in messages, in the answer, and where there is a store, in tables.
constexpr int64_t kCopiesOfId = 8;
// Of entries, from message to message.
constexpr size_t kKept = 64;

absl::Status CheckCount(size_t entries) {
  if (entries <= ReceivedAppend::kMostEntries) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("batch.entries: ", entries, ", more than ",
                                                 ReceivedAppend::kMostEntries, " in a message"));
}

AppendEntryView ViewOf(const v1::AppendEntry& entry, const ReceivedArrays& arrays) {
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
      view.sampled_ids = arrays.Of(block.sampled_ids());
      view.sampled_log_probs = arrays.Of(block.sampled_log_probs());
      view.top_k_ids = arrays.Of(block.top_k_ids());
      view.top_k_log_probs = arrays.Of(block.top_k_log_probs());
      view.top_k_counts = arrays.Of(block.top_k_counts());
      if (block.has_crc32c()) view.crc32c = block.crc32c();
      break;
    }
    case v1::AppendEntry::kSeal:
      view.kind = AppendEntryView::Kind::kSeal;
      name(entry.seal().sequence());
      view.length = entry.seal().length();
      if (entry.seal().has_annotation()) view.annotation = &entry.seal().annotation();
      break;
    case v1::AppendEntry::kGap:
      view.kind = AppendEntryView::Kind::kGap;
      name(entry.gap().sequence());
      view.first_position = entry.gap().first_position();
      view.length = entry.gap().length();
      view.reason = entry.gap().reason();
      break;
    case v1::AppendEntry::ENTRY_NOT_SET:
      break;
  }
  return view;
}

}  // namespace

size_t AppendEntryView::array_bytes() const {
  return sampled_ids.size() + sampled_log_probs.size() + top_k_ids.size() + top_k_log_probs.size() +
         top_k_counts.size();
}

std::vector<AppendEntryView> EntriesOf(const v1::AppendBatch& batch, const ReceivedArrays& arrays) {
  std::vector<AppendEntryView> entries;
  entries.reserve(batch.entries_size());
  for (const v1::AppendEntry& entry : batch.entries()) entries.push_back(ViewOf(entry, arrays));
  return entries;
}

// Reads a request with a batch as protobuf writes it.
class PlainBatchReader {
 public:
  PlainBatchReader(ReceivedAppend& into, ParsingCharge& charge)
      : into_(into), charge_(charge), stream_(into.bytes_), input_(&stream_) {}

  // How many entries there are, found before anything is made of them. None if it is something
  // else, well-formed or not, or where Read will find that out.
  std::optional<size_t> Count() {
    size_t entries = 0;
    const bool is_batch = ReadBatch([&](size_t end) {
      size_t field_end;
      if (!ReadEnd(end, field_end)) return false;
      ++entries;
      return input_.Skip(static_cast<int>(field_end - offset()));
    });
    return is_batch ? std::optional(entries) : std::nullopt;
  }

  // False says only that it is something else, well-formed or not; or that there is no room for it.
  bool Read() {
    // Arrays are copied, block by block, where they don't lie in one piece.
    size_t longest = 0;
    const bool read = ReadBatch([&](size_t end) {
      AppendEntryView& entry = into_.entries_.emplace_back();
      if (!ReadEntry(end, entry)) return false;
      longest = std::max(longest, entry.array_bytes());
      return true;
    });
    return read && Take(static_cast<int64_t>(longest));
  }

  bool has_no_room() const { return has_no_room_; }

 private:
  using Kind = AppendEntryView::Kind;

  size_t offset() const { return static_cast<size_t>(input_.CurrentPosition()); }

  bool Take(int64_t bytes) {
    has_no_room_ = has_no_room_ || !charge_.Take(bytes);
    return !has_no_room_;
  }

  // read(end) reads an entry.
  template <typename ReadField>
  bool ReadBatch(const ReadField& read) {
    const size_t end = into_.bytes_.size();
    uint32_t tag = 0;
    size_t batch_end = 0;
    if (!ReadTag(tag) || tag != Delimited(v1::AppendRequest::kBatchFieldNumber) ||
        !ReadEnd(end, batch_end) || batch_end != end) {
      return false;
    }
    while (offset() < end) {
      const bool known = ReadTag(tag) && tag == Delimited(v1::AppendBatch::kEntriesFieldNumber);
      if (!known || !read(end)) return false;
    }
    return offset() == end;
  }

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
    if (!Take(kCopiesOfId * static_cast<int64_t>(size))) return false;
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
        case Delimited(v1::AppendEntry::kSealFieldNumber):
          entry.kind = Kind::kSeal;
          return ReadSeal(end, entry);
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
        case Delimited(v1::Block::kTopKCountsFieldNumber):
          return ReadArray(end, entry.top_k_counts);
        case Fixed32(v1::Block::kCrc32CFieldNumber):
          return input_.ReadLittleEndian32(&entry.crc32c.emplace());
        default:
          return false;
      }
    });
  }

  // Leaves an annotation to protobuf.
  bool ReadSeal(size_t limit, AppendEntryView& entry) {
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
  ParsingCharge& charge_;
  ScatteredInput stream_;
  google::protobuf::io::CodedInputStream input_;
  bool has_no_room_ = false;
};

void ReceivedAppend::Clear() {
  bytes_ = ScatteredBytes();
  entries_.clear();
  if (entries_.capacity() > kKept) std::vector<AppendEntryView>().swap(entries_);
  cut_ids_.clear();
  request_ = v1::AppendRequest();
  arrays_ = ReceivedArrays();
  message_case_ = v1::AppendRequest::MESSAGE_NOT_SET;
}

absl::Status ReceivedAppend::Parse(ScatteredBytes bytes, ParsingCharge& charge) {
  Clear();
  bytes_ = std::move(bytes);
  std::optional<size_t> entries;
  if (bytes_.size() <= INT_MAX) entries = PlainBatchReader(*this, charge).Count();
  if (!entries.has_value()) return ParseByProtobuf(charge);
  if (absl::Status status = CheckCount(*entries); !status.ok()) return status;
  if (!charge.Take(static_cast<int64_t>(*entries) * kEntryBytes)) return charge.Refusal();
  entries_.reserve(*entries);
  PlainBatchReader reader(*this, charge);
  if (reader.Read()) {
    message_case_ = v1::AppendRequest::kBatch;
    return absl::OkStatus();
  }
  entries_.clear();
  return reader.has_no_room() ? charge.Refusal() : ParseByProtobuf(charge);
}

absl::Status ReceivedAppend::ParseByProtobuf(ParsingCharge& charge) {
  absl::Status status =
      ReceivedArrays::Parse(bytes_, ShapeOf<v1::AppendRequest>(), charge, request_, arrays_);
  if (absl::IsInvalidArgument(status)) {
    return absl::InvalidArgumentError("message: not an AppendRequest");
  }
  if (!status.ok()) return status;
  if (request_.has_batch()) {
    const v1::AppendBatch& batch = request_.batch();
    const auto count = static_cast<size_t>(batch.entries_size());
    if (status = CheckCount(count); !status.ok()) return status;
    if (!charge.Take(static_cast<int64_t>(count) * kEntryBytes)) return charge.Refusal();
    entries_ = EntriesOf(batch, arrays_);
    size_t longest = 0;
    for (const AppendEntryView& entry : entries_) {
      longest = std::max(longest, entry.array_bytes());
      const auto id_bytes = static_cast<int64_t>(entry.sequence_id.size());
      if (!charge.Take(kCopiesOfId * id_bytes)) return charge.Refusal();
    }
    if (!charge.Take(static_cast<int64_t>(longest))) return charge.Refusal();
  }
  message_case_ = request_.message_case();
  return absl::OkStatus();
}

}  // namespace sis
