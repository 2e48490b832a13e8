// Measures the cost of an append to a run whose memory is full, and to a run with free memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/bench/ingest_messages.h"
#include "tests/bench/ingest_sis.h"

namespace sis {

class FullCache {
 public:
  // Each append begins another sequence, and in a full run evicts one of those held.
  FullCache(Sis& sis, int held, int appends)
      : sis_(sis), held_(Ids("held", held)), appended_(Ids("more", appends)) {}

  // Prints medians.
  void Measure(int repetitions) {
    sis_.Connect(1);
    sis_.Create(Config(0));
    Send(Ids("only", 1));
    const auto bytes = static_cast<int64_t>(sis_.Get().bytes());
    quota_ = bytes * static_cast<int64_t>(held_.size());
    const size_t kept = held_.size() / 5;
    std::printf("\nServer CPU time in us per append of a sequence of one token, K = %d; medians.\n",
                kTopK);
    std::vector<double> empty, full, stale, with_kept;
    for (int repetition = 0; repetition < repetitions; ++repetition) {
      sis_.Create(Config(0));
      empty.push_back(MicrosecondsPerAppend());
      full.push_back(WhenFull(false, 0));
      stale.push_back(WhenFull(true, 0));
      with_kept.push_back(WhenFull(true, kept));
    }
    Print("empty", empty);
    Print(absl::StrCat(held_.size(), " held"), full);
    Print(absl::StrCat(held_.size(), " held, max_staleness"), stale);
    Print(absl::StrCat(held_.size(), " held, max_staleness, ", kept, " kept"), with_kept);
  }

 private:
  static constexpr int kTopK = 10;
  static constexpr uint64_t kVersion = 3;

  // All of one length, as they are charged by it.
  static std::vector<std::string> Ids(const std::string& prefix, int count) {
    std::vector<std::string> ids;
    for (int i = 0; i < count; ++i) {
      ids.push_back(absl::StrCat(prefix, "/response-", absl::Dec(i, absl::kZeroPad8)));
    }
    return ids;
  }
  v1::RunConfig Config(int64_t quota) const {
    v1::RunConfig config;
    config.set_top_k(kTopK);
    config.set_byte_quota(static_cast<uint64_t>(quota));
    config.set_evict_unread(true);
    return config;
  }
  void Send(const std::vector<std::string>& ids) {
    std::vector<Messages> streams(1);
    streams[0].sis = MakeSequences(kTopK, ids, kVersion);
    sis_.Send(streams);
  }
  double WhenFull(bool max_staleness, size_t kept) {
    v1::RunConfig config = Config(quota_);
    if (max_staleness) config.set_max_staleness(1);
    sis_.Create(config);
    sis_.Advance(kVersion);
    Send(held_);
    sis_.Check(static_cast<int64_t>(held_.size()));
    if (kept > 0) sis_.Keep({held_.begin(), held_.begin() + static_cast<ptrdiff_t>(kept)});
    const double microseconds = MicrosecondsPerAppend();
    sis_.Check(static_cast<int64_t>(held_.size()));
    return microseconds;
  }
  double MicrosecondsPerAppend() {
    std::vector<Messages> streams(1);
    streams[0].sis = MakeSequences(kTopK, appended_, kVersion);
    const double before = sis_.process().cpu_seconds();
    sis_.Send(streams);
    return (sis_.process().cpu_seconds() - before) / static_cast<double>(appended_.size()) * 1e6;
  }
  static void Print(const std::string& what, std::vector<double> figures) {
    std::ranges::sort(figures);
    std::printf("%-50s %9.2f (%.2f, %.2f)\n", what.c_str(), figures[figures.size() / 2],
                figures.front(), figures.back());
    std::fflush(stdout);
  }

  Sis& sis_;
  const std::vector<std::string> held_;
  const std::vector<std::string> appended_;
  int64_t quota_ = 0;
};

}  // namespace sis
