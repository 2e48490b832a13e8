#include "server/observe/verdict.h"

#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace sis {
namespace {

using Events = RecentEvents::Events;

std::string Share(double share) { return absl::StrFormat("%.3g%%", 100 * share); }
std::string Nats(double nats) { return absl::StrFormat("%.3g nats per token", nats); }
std::string Ago(absl::Duration passed) {
  return absl::FormatDuration(absl::Ceil(passed, absl::Seconds(1)));
}

// Collects the findings: values beyond the thresholds of their rules.
class Judge {
 public:
  explicit Judge(const RunNumbers& numbers) : numbers_(numbers) {}

  std::vector<Finding> Findings() {
    const DrawTotals& last = numbers_.last;
    if (last.scored + last.missing >= kMinTokens) JudgeMissing(last);
    if (last.scored >= kMinTokens) {
      JudgeDeviation(last);
      JudgeAcceptance(last, numbers_.before);
    }
    JudgeEvents(numbers_.events);
    JudgePauses(numbers_.events);
    Above(RuleId::kCacheNearLimit, numbers_.fullness, [](double fullness) {
      return absl::StrCat("The run's quota or the cache is ", Share(fullness), " full.");
    });
    std::ranges::sort(findings_, {}, &Finding::id);
    return std::move(findings_);
  }

 private:
  static double Threshold(RuleId id) { return kRules[static_cast<size_t>(id)].threshold; }

  template <typename Reason>
  void Above(RuleId id, double value, Reason reason) {
    if (value > Threshold(id)) findings_.push_back({id, reason(value)});
  }
  template <typename Reason>
  void Below(RuleId id, double value, Reason reason) {
    if (value < Threshold(id)) findings_.push_back({id, reason(value)});
  }

  void JudgeMissing(const DrawTotals& last) {
    const auto share = [&](MissingReason reason) {
      return last.missing_by_reason[static_cast<size_t>(reason)] / (last.scored + last.missing);
    };
    Above(RuleId::kCorruptRecords, share(MissingReason::kCorrupt), [](double corrupt) {
      return absl::StrCat("Recorded blocks changed by themselves: ", Share(corrupt),
                          " of the tokens.");
    });
    Above(RuleId::kUnusableLogProbs,
          share(MissingReason::kInvalidLogProb) + share(MissingReason::kNoLogProb) +
              share(MissingReason::kInfiniteLogProb),
          [&](double unusable) {
            return absl::StrCat("The engine gave ", Share(unusable),
                                " of the tokens no usable log-prob (invalid ",
                                Share(share(MissingReason::kInvalidLogProb)), ", none ",
                                Share(share(MissingReason::kNoLogProb)), ", infinite ",
                                Share(share(MissingReason::kInfiniteLogProb)), ").");
          });
    Above(RuleId::kUnknownVersion, share(MissingReason::kUnknownVersion), [](double unknown) {
      return absl::StrCat(Share(unknown),
                          " of the tokens are of weights that the trainer did not announce.");
    });
    std::string reasons;
    for (const MissingReason reason : kMissingReasons) {
      if (reason == MissingReason::kCorrupt || IsReasonOfGap(reason)) continue;
      if (share(reason) <= Threshold(RuleId::kMissingTokens)) continue;
      absl::StrAppend(&reasons, reasons.empty() ? "" : ", ", Share(share(reason)), " ",
                      absl::StrReplaceAll(std::string(Name(reason)), {{"_", " "}}));
    }
    if (!reasons.empty()) {
      findings_.push_back(
          {RuleId::kMissingTokens, absl::StrCat("Tokens are missing: ", reasons, ".")});
    }
  }

  void JudgeDeviation(const DrawTotals& last) {
    Above(RuleId::kEnvelopeViolations, last.envelope_violations / last.scored, [](double share) {
      return absl::StrCat(Share(share), " of the tokens exceed their own envelope.");
    });
    const double d = last.d / last.scored;
    Above(RuleId::kEnginesDiffer, d, [](double d) { return absl::StrCat("D is ", Nats(d), "."); });
    const double fresh_d = last.fresh >= kMinTokens ? last.fresh_d / last.fresh : 0;
    const double stale = last.scored - last.fresh;
    const double stale_d = stale >= kMinTokens ? (last.d - last.fresh_d) / stale : 0;
    // The same condition as in the staleness check of sisctl diagnose.
    const bool age_explains = last.fresh >= kMinTokens && fresh_d < kMaxFreshDeviation &&
                              2 * fresh_d <= stale_d &&
                              stale_d > Threshold(RuleId::kStaleTokensDiffer);
    if (age_explains) {
      findings_.push_back(
          {RuleId::kStaleTokensDiffer, absl::StrCat("D grows with staleness, from ", Nats(fresh_d),
                                                    " at 0 to ", Nats(stale_d), " beyond.")});
    } else {
      Above(RuleId::kFreshTokensDiffer, fresh_d,
            [](double d) { return absl::StrCat("D is ", Nats(d), " at staleness 0 already."); });
    }
    if (d > kMinDeviation) {
      Above(RuleId::kDSisNearD, last.d_sis / last.d,
            [](double share) { return absl::StrCat("D_SIS is ", Share(share), " of D."); });
    }
  }

  void JudgeAcceptance(const DrawTotals& last, const DrawTotals& before) {
    Above(RuleId::kResidualMassHigh, last.residual_mass / last.scored, [](double mass) {
      return absl::StrCat(Share(mass), " of the current policy lie outside the recorded slots.");
    });
    JudgeAcceptRate(last, before);
    if (last.weight_squared > 0) {
      Below(RuleId::kEffectiveSampleSizeLow,
            last.weight * last.weight / (last.weight_squared * last.scored), [](double size) {
              return absl::StrCat("The weights in use are worth ", Share(size), " of the tokens.");
            });
    }
  }

  void JudgeAcceptRate(const DrawTotals& last, const DrawTotals& before) {
    const double rate = last.accepted / last.scored;
    Below(RuleId::kAcceptRateLow, rate,
          [](double rate) { return absl::StrCat(Share(rate), " of the tokens are accepted."); });
    if (before.scored < kMinTokens || before.accepted == 0) return;
    const double past = before.accepted / before.scored;
    Below(RuleId::kAcceptRateCollapsing, rate / past, [&](double) {
      return absl::StrCat("The accept rate fell from ", Share(past), " to ", Share(rate), ".");
    });
  }

  void JudgeEvents(const Events& events) {
    const RecentEvents::Calls& calls = events.evaluations;
    if (calls.count > 0) {
      const int refused = std::popcount(calls.refused);
      Above(RuleId::kEvaluationsRefused, static_cast<double>(refused) / calls.count, [&](double) {
        return absl::StrCat(refused, " of the last ", calls.count, " evaluations failed (",
                            absl::StatusCodeToString(calls.code), ").");
      });
    }
    if (IsRecent(events.refused_entries)) {
      findings_.push_back(
          {RuleId::kEntriesRefused,
           absl::StrCat("Append refused ", events.refused_entries.count, " entries, the last ",
                        Ago(numbers_.now - events.refused_entries.last), " ago (",
                        absl::StatusCodeToString(events.refused_entries.code), ").")});
    }
    if (IsRecent(events.evicted_unread)) {
      findings_.push_back(
          {RuleId::kEvictedUnread,
           absl::StrCat(events.evicted_unread.count,
                        " sequences were evicted before a trainer read them, the last ",
                        Ago(numbers_.now - events.evicted_unread.last), " ago.")});
    }
  }

  bool IsRecent(const RecentEvents::Count& count) const {
    return numbers_.now - count.last <= kWindow;
  }

  void JudgePauses(const Events& events) {
    if (events.appends.last == absl::InfinitePast()) return;
    const bool known = events.turns >= kTurnsKnown;
    const auto too_long = [&](const RecentEvents::Rhythm& rhythm) {
      return numbers_.now - rhythm.last >
             (known ? std::clamp(2 * rhythm.longest_pause, kShortestPause, kWindow) : kWindow);
    };
    if (events.appends.last > events.reads.last && too_long(events.reads)) {
      findings_.push_back(
          {RuleId::kTrainerStopped,
           absl::StrCat("Nothing was read for ", Ago(numbers_.now - events.reads.last),
                        ", though tokens were recorded since.")});
    }
    if (events.open_appends > 0 && too_long(events.appends)) {
      findings_.push_back(
          {RuleId::kIngestStalled, absl::StrCat("Nothing was recorded for ",
                                                Ago(numbers_.now - events.appends.last), ".")});
    }
  }

  const RunNumbers& numbers_;
  std::vector<Finding> findings_;
};

}  // namespace

DrawTotals& DrawTotals::operator+=(const Evaluated& evaluated) {
  const Sums& sums = evaluated.sums;
  scored += static_cast<double>(sums.scored());
  accepted += static_cast<double>(sums.accepted);
  missing += static_cast<double>(sums.missing);
  envelope_violations += static_cast<double>(sums.envelope_violations);
  d += FromFixed(sums.d);
  d_sis += FromFixed(sums.d_sis);
  residual_mass += FromFixed(sums.residual_mass);
  for (size_t i = 0; i < evaluated.ages.size(); ++i) {
    if (IsBehind(i)) continue;
    fresh += static_cast<double>(evaluated.ages[i].scored());
    fresh_d += FromFixed(evaluated.ages[i].d);
  }
  for (size_t i = 0; i < missing_by_reason.size(); ++i) {
    missing_by_reason[i] += static_cast<double>(evaluated.missing[i]);
  }
  weight += FromCountedWeight(evaluated.statistics.applied.weight);
  weight_squared += FromCountedWeight(evaluated.statistics.applied.weight_squared);
  return *this;
}

RunNumbers NumbersOf(const Run& run) {
  RunNumbers numbers{.last = {},
                     .before = {},
                     .events = run.recent_events().events(),
                     .now = run.now(),
                     .fullness = run.backing() == nullptr ? run.budget().fullness() : 0};
  int draws = 0;
  run.steps().ForEach([&](const Evaluated& evaluated) {
    const bool enough =
        draws++ >= kDrawsJudged && numbers.last.scored + numbers.last.missing >= kMinTokens;
    (enough ? numbers.before : numbers.last) += evaluated;
  });
  return numbers;
}

std::vector<Finding> FindingsIn(const RunNumbers& numbers) { return Judge(numbers).Findings(); }

Verdict VerdictOf(const std::vector<Finding>& findings) {
  return findings.empty() ? Verdict::kHealthy : findings.front().rule().verdict;
}

}  // namespace sis
