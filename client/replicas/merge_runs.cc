#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "client/replicas/merged.h"
#include "client/replicas/sums.h"

namespace sis {

void AddRun(const v1::Run& part, v1::Run& run) {
  if (part.incarnation() < run.incarnation()) return;
  if (run.run_id().empty() || part.incarnation() > run.incarnation()) {
    run = part;
    return;
  }
  run.set_policy_version(std::max(run.policy_version(), part.policy_version()));
  run.set_sequences(run.sequences() + part.sequences());
  run.set_sealed_sequences(run.sealed_sequences() + part.sealed_sequences());
  run.set_positions(run.positions() + part.positions());
  run.set_bytes(run.bytes() + part.bytes());
  run.set_leases(run.leases() + part.leases());
  run.set_unread_sequences(run.unread_sequences() + part.unread_sequences());
  run.set_verdict(std::max(run.verdict(), part.verdict()));
  auto& findings = *run.mutable_findings();
  for (const v1::Finding& finding : part.findings()) {
    // Of a rule that several are beyond, what the first says.
    const bool there = std::ranges::any_of(
        findings, [&](const v1::Finding& found) { return found.rule() == finding.rule(); });
    if (!there) *findings.Add() = finding;
  }
  std::ranges::stable_sort(findings, std::greater<>(), &v1::Finding::verdict);
  if (part.has_last_totals()) {
    const v1::Totals parts[] = {run.last_totals(), part.last_totals()};
    if (part.last_draw() == run.last_draw()) {
      *run.mutable_last_totals() = SumTotals(parts);
    } else if (part.last_draw() > run.last_draw()) {
      *run.mutable_last_totals() = part.last_totals();
    }
    run.set_last_evaluated_at(std::max(run.last_evaluated_at(), part.last_evaluated_at()));
  }
  if (!run.has_sampling() && part.has_sampling()) *run.mutable_sampling() = part.sampling();
  if (part.has_last_draw()) run.set_last_draw(std::max(run.last_draw(), part.last_draw()));
}

v1::ListRunsResponse Merged(const std::vector<v1::ListRunsResponse>& parts) {
  std::map<std::string, v1::Run> runs;
  for (const v1::ListRunsResponse& part : parts) {
    for (const v1::Run& run : part.runs()) AddRun(run, runs[run.run_id()]);
  }
  v1::ListRunsResponse merged;
  for (auto& [run_id, run] : runs) {
    merged.set_worth_a_look(merged.worth_a_look() + (run.verdict() == v1::WORTH_A_LOOK));
    merged.set_broken(merged.broken() + (run.verdict() == v1::BROKEN));
    *merged.add_runs() = std::move(run);
  }
  merged.set_all_runs(merged.runs_size());
  merged.set_containing_runs(merged.runs_size());
  return merged;
}

}  // namespace sis
