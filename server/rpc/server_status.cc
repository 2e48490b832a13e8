#include "server/rpc/server_status.h"

#include <numeric>
#include <utility>

#include "server/messages/cache_messages.h"

namespace sis {
namespace {

using Activity = v1::GetServerResponse::Activity;

void Add(const RunTotals& totals, Activity& sum) {
  const double evaluated = totals.sums.Of(&Sums::accepted) + totals.sums.Of(&Sums::rejected) +
                           totals.sums.Of(&Sums::outside_top_k) + totals.sums.Of(&Sums::missing);
  const double dropped =
      std::accumulate(totals.dropped_by_reason.begin(), totals.dropped_by_reason.end(), 0.0);
  sum.set_ingested_positions(sum.ingested_positions() +
                             static_cast<uint64_t>(totals.ingested_positions));
  sum.set_ingested_bytes(sum.ingested_bytes() + static_cast<uint64_t>(totals.ingested_bytes));
  sum.set_evaluated_positions(sum.evaluated_positions() + static_cast<uint64_t>(evaluated));
  sum.set_dropped_sequences(sum.dropped_sequences() + static_cast<uint64_t>(dropped));
}

}  // namespace

ServerStatus::ServerStatus(const RunRegistry& registry, const RpcMetrics& metrics, Clock clock)
    : registry_(registry), metrics_(metrics), clock_(std::move(clock)), started_at_(clock_()) {}

void ServerStatus::SetIdentity(Identity identity) {
  WriterLock lock(mutex_);
  identity_ = std::move(identity);
}

void ServerStatus::SetReady(bool ready) {
  WriterLock lock(mutex_);
  ready_ = ready;
}

Activity ServerStatus::Now() {
  std::map<const RunCounters*, std::shared_ptr<RunCounters>> present;
  for (const std::shared_ptr<Run>& run : registry_.List()) {
    present.emplace(&run->counters(), run->shared_counters());
  }
  for (const auto& [address, counters] : counted_) {
    if (!present.contains(address)) Add(counters->totals(), departed_);
  }
  counted_ = std::move(present);
  Activity now = departed_;
  for (const auto& [address, counters] : counted_) Add(counters->totals(), now);
  now.set_at(SecondsSince1970(clock_()));
  now.set_rpcs(metrics_.rpcs());
  now.set_failed_rpcs(metrics_.failed_rpcs());
  now.set_cache_bytes(registry_.budget().used());
  return now;
}

void ServerStatus::Sample() {
  WriterLock lock(mutex_);
  history_.push_back(Now());
  // Keeps one sample less, because a response adds the current one.
  if (history_.size() >= kSamples) history_.pop_front();
}

v1::GetServerResponse ServerStatus::Describe() {
  WriterLock lock(mutex_);
  v1::GetServerResponse response;
  response.set_version(identity_.version);
  response.set_backend(identity_.backend);
  response.set_store(identity_.store);
  response.set_shared_store(identity_.shared_store);
  response.set_started_at(SecondsSince1970(started_at_));
  response.set_ready(ready_);
  response.set_cache_bytes(registry_.budget().used());
  response.set_cache_budget_bytes(registry_.budget().limit());
  response.mutable_history()->Add(history_.begin(), history_.end());
  *response.add_history() = Now();
  return response;
}

}  // namespace sis
