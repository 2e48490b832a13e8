// Streaming behaviour log-probs into the service.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/types/types.h"
#include "kernels/records/validate.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

struct AppendOptions {
  // For the server's messages and metrics.
  std::string worker = {};
  // Entries are sent together until a batch has so many bytes.
  size_t batch_bytes = 256 << 10;
  // Batches sent and not yet acked. When so many are under way and another is full, calls block.
  size_t max_batches_in_flight = 8;
  // How long a block that finds the server over budget is offered again, before it counts as
  // refused.
  absl::Duration retry_limit = absl::Minutes(20);
  // How long the stream may stand still while entries wait for acks, before it counts as broken
  // (DeadlineExceeded).
  absl::Duration ack_timeout = absl::Minutes(5);
  // The run's, as GetRun says it: what it leaves out of sets is not sent.
  double mass = 0;
};

// What AppendWriter::Block and Seal are told.
struct BlockEntry {
  SequenceRef sequence;
  uint32_t first_position = 0;
  uint64_t policy_version = 0;
  RecordView records;  // without counts
  // [T], or empty. How many slots each position uses; then records.ids and .log_probs hold those
  // alone, one position after the other. Only for runs that GetRun says a mass of.
  std::span<const uint16_t> top_k_counts = {};
};
struct SealEntry {
  SequenceRef sequence;
  uint32_t length = 0;
  std::optional<v1::Annotation> annotation = {};
};
using AppendEntry = std::variant<BlockEntry, SealEntry>;

// An entry on its way.
struct OutgoingEntry {
  v1::AppendEntry message;

  // What counts against a batch.
  size_t bytes() const { return message.ByteSizeLong(); }
};

// An entry that the server did not take.
struct RefusedEntry {
  SequenceRef sequence;
  absl::Status status;
};

// Entries are applied in the order of the calls, but a block for which there was no room may come
// after later blocks and seals. An entry is sent at once while nothing is under way, and otherwise
// together with those that come after it. The calls are thread-safe; they block while the server is
// behind. Once the stream is broken every call returns why; what was not flushed may or may not be
// stored, and can be sent again on another stream, as re-sending is idempotent. With several
// replicas the stream goes on without one that is down: its entries are refused as Unavailable, and
// once it is back it takes entries again.
class AppendWriter {
 public:
  // Gives up what was not flushed, and says on standard error how many entries that were.
  virtual ~AppendWriter() = default;
  AppendWriter(const AppendWriter&) = delete;
  AppendWriter& operator=(const AppendWriter&) = delete;

  // T positions from first_position on, sampled by the weights of policy_version. The arrays are
  // copied.
  absl::Status Block(const SequenceRef& sequence, uint32_t first_position, uint64_t policy_version,
                     const RecordView& records);
  // No position at or beyond `length` will come. What the annotation says is for people; sealed
  // again with more, its fields stand for those before.
  absl::Status Seal(const SequenceRef& sequence, uint32_t length,
                    std::optional<v1::Annotation> annotation = {});
  // Entries of any sequences, as by the calls above one by one, but in as few batches as
  // batch_bytes allows. After an error some may be stored.
  absl::Status AppendMany(std::span<const AppendEntry> entries);

  // What AppendMany calls: takes the entries, in order.
  virtual absl::Status Put(std::vector<OutgoingEntry>& entries) = 0;

  // Waits until every entry is acked; returns those refused since the last call. Without entries
  // it waits until the server has taken the header.
  virtual absl::StatusOr<std::vector<RefusedEntry>> Flush() = 0;
  // Flushes and ends the stream: no other call may follow.
  virtual absl::StatusOr<std::vector<RefusedEntry>> Finish() = 0;

 protected:
  explicit AppendWriter(const AppendOptions& options)
      : batch_bytes_(options.batch_bytes), mass_(options.mass) {}

 private:
  const size_t batch_bytes_;
  const double mass_;
};

// Says so on standard error, if there are any.
void WarnOfUnflushed(size_t entries);

// The sequence that an entry is about.
const v1::SequenceRef& SequenceOf(const v1::AppendEntry& entry);

}  // namespace sis
