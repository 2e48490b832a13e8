#include "server/store/counted_store.h"

#include <utility>

#include "server/threads/steady_now.h"

namespace sis {
namespace {

// From a page in memory to a node that hangs, in seconds.
const prometheus::Histogram::BucketBoundaries kSecondsBuckets = {
    1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1, 2.5, 5, 10};

const absl::Status& ErrorOf(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& ErrorOf(const absl::StatusOr<T>& result) {
  return result.status();
}

double BytesOf(std::span<const StoredPart> parts) {
  double bytes = 0;
  for (const StoredPart& part : parts) bytes += static_cast<double>(part.bytes.size());
  return bytes;
}

}  // namespace

CountedStore::CountedStore(std::unique_ptr<Store> store, prometheus::Registry& registry)
    : store_(std::move(store)),
      operations_(prometheus::BuildCounter()
                      .Name("sis_store_operations_total")
                      .Help("Calls of the store, by operation and result.")
                      .Register(registry)),
      seconds_(prometheus::BuildHistogram()
                   .Name("sis_store_seconds")
                   .Help("Time of a call of the store, by operation.")
                   .Register(registry)),
      written_bytes_(prometheus::BuildCounter()
                         .Name("sis_store_written_bytes_total")
                         .Help("Bytes of records given to the store.")
                         .Register(registry)
                         .Add({})),
      read_bytes_(prometheus::BuildCounter()
                      .Name("sis_store_read_bytes_total")
                      .Help("Bytes of records that came from the store.")
                      .Register(registry)
                      .Add({})) {}

template <typename Call>
auto CountedStore::Counted(const char* operation, const Call& call) {
  const absl::Time start = SteadyNow();
  auto result = call();
  const std::string code = absl::StatusCodeToString(ErrorOf(result).code());
  operations_.Add({{"operation", operation}, {"result", code}}).Increment();
  seconds_.Add({{"operation", operation}}, kSecondsBuckets)
      .Observe(absl::ToDoubleSeconds(SteadyNow() - start));
  return result;
}

absl::StatusOr<uint64_t> CountedStore::Put(const SequenceIdentity& sequence,
                                           const SequenceChange& change) {
  const char* const operation = change.removed.empty() ? "put" : "merge";
  absl::StatusOr<uint64_t> put = Counted(operation, [&] { return store_->Put(sequence, change); });
  if (put.ok()) written_bytes_.Increment(BytesOf(change.added));
  return put;
}

absl::StatusOr<StoredSequence> CountedStore::Load(const SequenceIdentity& sequence) {
  absl::StatusOr<StoredSequence> loaded = Counted("load", [&] { return store_->Load(sequence); });
  if (loaded.ok()) read_bytes_.Increment(BytesOf(loaded->parts));
  return loaded;
}

absl::StatusOr<uint64_t> CountedStore::Revision(const SequenceIdentity& sequence) {
  return Counted("revision", [&] { return store_->Revision(sequence); });
}

absl::StatusOr<std::vector<std::string>> CountedStore::ExchangeNews(
    std::span<const std::string> news) {
  return Counted("exchange_news", [&] { return store_->ExchangeNews(news); });
}

absl::StatusOr<std::vector<bool>> CountedStore::Drop(std::span<const DroppedSequence> sequences,
                                                     absl::Time expires) {
  return Counted("drop", [&] { return store_->Drop(sequences, expires); });
}

absl::StatusOr<StoredRun> CountedStore::PutRun(const StoredRun& run) {
  return Counted("put_run", [&] { return store_->PutRun(run); });
}

absl::StatusOr<StoredRun> CountedStore::GetRun(const std::string& run_id) {
  return Counted("get_run", [&] { return store_->GetRun(run_id); });
}

absl::StatusOr<ListedRuns> CountedStore::ListRuns() {
  return Counted("list_runs", [&] { return store_->ListRuns(); });
}

absl::Status CountedStore::DropIncarnations(const std::string& run_id, uint64_t first,
                                            uint64_t last) {
  return Counted("drop_incarnations",
                 [&] { return store_->DropIncarnations(run_id, first, last); });
}

absl::Status CountedStore::PutSteps(const std::string& run_id, uint64_t incarnation,
                                    const std::map<uint16_t, std::string>& by_slot) {
  return Counted("put_steps", [&] { return store_->PutSteps(run_id, incarnation, by_slot); });
}

absl::StatusOr<std::vector<absl::StatusOr<std::string>>> CountedStore::GetSteps(
    const std::string& run_id, uint64_t incarnation) {
  return Counted("get_steps", [&] { return store_->GetSteps(run_id, incarnation); });
}

}  // namespace sis
