// Sequences of several lengths, and what a trainer has for them: for tests of calls that cut a
// batch into pieces.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/testing/live_server.h"
#include "server/testing/record_generator.h"

namespace sis {

// Of all of them.
inline constexpr int kSlots = 6;
inline constexpr int kVocabulary = 1000;

struct NamedSequence {
  std::string id;
  Records records;
  CurrentValues current;
};

inline std::vector<NamedSequence> SequencesOfSeveralLengths() {
  std::vector<NamedSequence> sequences;
  RecordGenerator generator(kSlots, kVocabulary, 5);
  for (const uint32_t length : {100, 1, 333, 64, 7, 250, 128}) {
    Records records = generator.NextRecords(length);
    CurrentValues current = generator.NextCurrent(records);
    sequences.push_back(
        {absl::StrCat("s", sequences.size()), std::move(records), std::move(current)});
  }
  return sequences;
}

// Makes a run that records all of them but the last. Runs have the same seed, so the same draw
// decides the same in each, and each run counts for itself. `server` is a LiveServer, or a
// Connection to one.
template <typename Server>
void MakeRun(Server& server, const std::string& run, std::span<const NamedSequence> sequences) {
  server.CreateRun(LiveServer::RunRequest(run, kSlots, kVocabulary));
  std::vector<v1::AppendRequest> requests{LiveServer::Header(run, kVocabulary)};
  v1::AppendBatch& batch = *requests.emplace_back().mutable_batch();
  for (const NamedSequence& sequence : sequences.first(sequences.size() - 1)) {
    *batch.add_entries()->mutable_block() = sequence.records.Block(sequence.id);
  }
  const LiveServer::Appended appended = server.Append(requests);
  ASSERT_TRUE(appended.status.ok()) << appended.status.error_message();
  for (const v1::Ack& ack : appended.acks) ASSERT_EQ(ack.code(), 0) << ack.message();
}

}  // namespace sis
