// Keys and values in Redis.
//
//   sis:sequence:RUN/INCARNATION/ID/ATTEMPT   a hash: the parts of a sequence, or its tombstone
//   sis:steps:RUN/INCARNATION/SERVER          a hash: the totals of steps by slot, of one server
//   sis:runs                                  a hash: the records of all runs
//   sis:drops                                 a set: FIRST/LAST/RUN, incarnations to be removed
//   sis:news                                  a stream: news of Store::ExchangeNews
//
// Names in keys are percent-encoded. Fields of a sequence, with big-endian numbers of 4 bytes:
//
//   b POSITION COUNT   a block's bytes
//   g POSITION COUNT   a gap's reason
//   s                  the sealed LENGTH, and the annotation
//   e                  the end of the last block, in decimal digits, for the scripts
//   v                  Store::Revision, in decimal digits
//   d                  the reason of a drop; all other fields but v are gone
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/store/redis/redis_reply.h"
#include "server/store/store.h"

namespace sis {

std::string RedisSequenceKey(const SequenceIdentity& sequence);
std::string RedisStepsKey(absl::string_view run_id, uint64_t incarnation,
                          absl::string_view server_name);
// Returns a SCAN pattern that matches the keys of all sequences and steps of a run.
std::string RedisRunPattern(absl::string_view run_id);
// Returns true if `key` belongs to a sequence or steps of the run's incarnations [first, last).
bool IsOfIncarnations(absl::string_view key, absl::string_view run_id, uint64_t first,
                      uint64_t last);

std::string RedisField(const StoredPart& part);
// Returns the value of a seal; the values of other parts are their bytes.
std::string RedisSeal(const StoredPart& seal);
// Parses the reply to HGETALL. Returns NotFound if there is no such hash, DataLoss if no store
// wrote it.
absl::StatusOr<StoredSequence> ParseSequence(RedisReply reply);

struct RedisRun {
  StoredRun run = {};
  // When the record of a deleted run may be removed; InfiniteFuture if the run lives.
  absl::Time expires = absl::InfiniteFuture();
};
std::string EncodeRun(const RedisRun& run);
// Returns DataLoss if EncodeRun did not make `record`.
absl::StatusOr<RedisRun> ParseRun(absl::string_view run_id, absl::string_view record);

}  // namespace sis
