#include "server/append/room_queue.h"

#include <algorithm>
#include <utility>

#include "server/cache/run_registry.h"

namespace sis {
namespace {

absl::Status Left() { return absl::CancelledError("the worker is gone"); }
absl::Status Closed() { return absl::UnavailableError("the server is shutting down"); }

}  // namespace

absl::Status RoomQueue::Join(Waiter& waiter, RoomWanted wanted) {
  WriterLock lock(mutex_);
  if (waiter.left_) return Left();
  if (closed_) return Closed();
  waiting_.emplace(next_ticket_++, Waiting{&waiter, std::move(wanted), clock_() + patience_});
  size_ = static_cast<int64_t>(waiting_.size());
  return absl::OkStatus();
}

void RoomQueue::Leave(Waiter& waiter) {
  {
    WriterLock lock(mutex_);
    waiter.left_ = true;
    const auto is_it = [&](const auto& waiting) { return waiting.second.waiter == &waiter; };
    if (std::erase_if(waiting_, is_it) == 0) return;  // not waiting, or having its turn
    size_ = static_cast<int64_t>(waiting_.size());
  }
  waiter.GiveUp(Left());
}

void RoomQueue::Serve() {
  if (size_ == 0) return;
  Budgets short_budgets;
  uint64_t ticket = 0;
  while (std::optional<Waiting> waiting = TakeNext(ticket, short_budgets)) {
    const bool out_of_time = waiting->deadline <= clock_();
    if (!out_of_time) {
      const ByteBudget* shortage =
          registry_.Reclaim(*waiting->wanted.run, waiting->wanted.bytes, Evict::kRead);
      if (shortage != nullptr) {
        short_budgets.push_back(shortage);
        waiting->wanted.shortage = shortage;
        PutBack(*std::move(waiting), ticket);
        continue;
      }
    }
    std::optional<RoomWanted> wanted =
        waiting->waiter->Resume(out_of_time ? Turn::kOutOfTime : Turn::kServed);
    if (!wanted.has_value()) continue;
    const bool same_entry = wanted->entry == waiting->wanted.entry;
    if (same_entry) short_budgets.push_back(wanted->shortage);
    waiting->wanted = *std::move(wanted);
    PutBack(*std::move(waiting), same_entry ? std::optional(ticket) : std::nullopt);
  }
}

std::optional<RoomQueue::Waiting> RoomQueue::TakeNext(uint64_t& ticket,
                                                      const Budgets& short_budgets) {
  const auto is_short = [&](const ByteBudget& budget) {
    return std::ranges::find(short_budgets, &budget) != short_budgets.end();
  };
  const bool server_is_short = is_short(registry_.budget());
  const absl::Time now = clock_();
  WriterLock lock(mutex_);
  for (auto next = waiting_.upper_bound(ticket); next != waiting_.end(); ++next) {
    Waiting& waiting = next->second;
    if (waiting.deadline > now && (server_is_short || is_short(waiting.wanted.run->budget())))
      continue;
    ticket = next->first;
    std::optional<Waiting> taken = std::move(waiting);
    waiting_.erase(next);
    size_ = static_cast<int64_t>(waiting_.size());
    return taken;
  }
  return std::nullopt;
}

void RoomQueue::PutBack(Waiting waiting, std::optional<uint64_t> ticket) {
  Waiter& waiter = *waiting.waiter;
  absl::Status status;
  {
    WriterLock lock(mutex_);
    if (waiter.left_) status = Left();
    if (closed_) status = Closed();
    if (status.ok()) {
      waiting_.emplace(ticket.has_value() ? *ticket : next_ticket_++, std::move(waiting));
      size_ = static_cast<int64_t>(waiting_.size());
      return;
    }
  }
  waiter.GiveUp(status);
}

void RoomQueue::Close() {
  std::map<uint64_t, Waiting> all;
  {
    WriterLock lock(mutex_);
    closed_ = true;
    all.swap(waiting_);
    size_ = 0;
  }
  for (const auto& [ticket, waiting] : all) waiting.waiter->GiveUp(Closed());
}

const ByteBudget* RoomQueue::Contested(Run& run) const {
  if (size_ == 0) return nullptr;
  ReaderLock lock(mutex_);
  for (const auto& [ticket, waiting] : waiting_) {
    const ByteBudget* shortage = waiting.wanted.shortage;
    if (shortage == &registry_.budget() || shortage == &run.budget()) return shortage;
  }
  return nullptr;
}

}  // namespace sis
