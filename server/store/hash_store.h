// Sequences, runs and steps as hashes, which Redis and RocksDB keep.
//
//   sis:run/RUN/INCARNATION/ID/ATTEMPT   the parts of a sequence, or its tombstone
//   sis:run/RUN/INCARNATION/:SERVER      the totals of steps by slot, of one server
//   sis:runs                             the records of all runs
//
// Names in keys are percent-encoded. Incarnations, positions and counts have all their hexadecimal
// digits, so that keys and fields sort. Fields:
//
//   g POSITION COUNT   a gap's reason
//   r POSITION COUNT   a block's bytes
//   s LENGTH 0         the annotation of a seal
//   d                  the reason of a drop; there are no parts then
//   r RUN              the record of a run
//   SLOT               the totals of a step, by its slot in decimal digits
//   v                  the revision: random decimal digits, which change with the hash
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/store/store.h"

namespace sis {

std::string SequenceKey(const SequenceIdentity& sequence);
// Returns a string that sorts before the keys of the incarnation's sequences and steps,
// and after those of earlier incarnations.
std::string IncarnationPrefix(absl::string_view run_id, uint64_t incarnation);

inline constexpr absl::string_view kRevisionField = "v", kDroppedField = "d";

// The part of a store that is the same for all media.
class HashStore : public Store {
 public:
  absl::StatusOr<uint64_t> Put(const SequenceIdentity& sequence,
                               const SequenceChange& change) override;
  absl::StatusOr<StoredSequence> Load(const SequenceIdentity& sequence) override;
  absl::StatusOr<uint64_t> Revision(const SequenceIdentity& sequence) override;
  absl::StatusOr<StoredRun> PutRun(const StoredRun& run) override;
  absl::StatusOr<StoredRun> GetRun(const std::string& run_id) override;
  absl::StatusOr<ListedRuns> ListRuns() override;
  absl::Status PutSteps(const std::string& run_id, uint64_t incarnation,
                        const std::map<uint16_t, std::string>& by_slot) override;
  absl::StatusOr<std::vector<absl::StatusOr<std::string>>> GetSteps(const std::string& run_id,
                                                                    uint64_t incarnation) override;

 protected:
  explicit HashStore(std::string_view server_name) : server_name_(server_name) {}

  using Fields = std::map<std::string, std::string>;
  struct Hash {
    Fields fields = {};
    std::vector<std::string> damaged = {};  // further fields
  };
  struct HashChange {
    std::string key;
    // The revision that the hash must have; 0: there must be no hash. Unset: not checked.
    std::optional<uint64_t> revision = {};
    uint64_t next_revision = NewRevision();
    std::vector<std::string> removed = {};
    // The values must outlive the call.
    std::vector<std::pair<std::string, absl::string_view>> put = {};
    absl::Time expires = absl::InfiniteFuture();
    // True if a store that is full must execute the change.
    bool when_full = true;
  };
  // Returns a random number other than 0.
  static uint64_t NewRevision();

  // Returns the hash, without fields if there is none.
  virtual absl::StatusOr<Hash> Read(absl::string_view key) = 0;
  // Returns those of the fields that exist.
  virtual absl::StatusOr<Fields> ReadFields(absl::string_view key,
                                            const std::vector<absl::string_view>& fields) = 0;
  // Returns Aborted if the revision is another. A hash that expires later keeps its time.
  virtual absl::Status Change(const HashChange& change) = 0;

 private:
  const std::string server_name_;
};

}  // namespace sis
