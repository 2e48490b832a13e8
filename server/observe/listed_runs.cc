#include "server/observe/listed_runs.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "server/messages/cache_messages.h"
#include "server/messages/step_message.h"
#include "server/observe/verdict.h"

namespace sis {
namespace {

static_assert(v1::VERDICT_HEALTHY + static_cast<int>(Verdict::kWorthALook) ==
              v1::VERDICT_WORTH_A_LOOK);
static_assert(v1::VERDICT_HEALTHY + static_cast<int>(Verdict::kBroken) == v1::VERDICT_BROKEN);

v1::Verdict ToMessage(Verdict verdict) {
  return static_cast<v1::Verdict>(v1::VERDICT_HEALTHY + static_cast<int>(verdict));
}

// Returns the step that was evaluated last; nullopt if there is none or it is no longer kept.
std::optional<StepLedger::Step> LastStep(const Run& run) {
  const std::optional<uint64_t> draw = run.steps().last_draw();
  std::optional<StepLedger::Step> step;
  if (draw.has_value()) step = run.steps().Find(*draw);
  return step.has_value() && step->ended != absl::InfinitePast() ? step : std::nullopt;
}

}  // namespace

v1::Run Describe(const Run& run) {
  const std::vector<Finding> findings = FindingsIn(NumbersOf(run));
  v1::Run message = sis::ToMessage(run.Describe());
  message.set_verdict(ToMessage(VerdictOf(findings)));
  for (const Finding& finding : findings) {
    v1::Finding& found = *message.add_findings();
    found.set_rule(std::string(finding.rule().name));
    found.set_verdict(ToMessage(finding.rule().verdict));
    found.set_reason(finding.reason);
    found.set_action(std::string(finding.rule().action));
  }
  if (const std::optional<StepLedger::Step> last = LastStep(run); last.has_value()) {
    *message.mutable_last_totals() = ToTotals(last->evaluated.sums);
    message.set_last_evaluated_at(SecondsSince1970(last->ended));
  }
  message.set_shares_metrics(!run.counters().named());
  if (const std::string sampling = run.recent_events().events().sampling; !sampling.empty()) {
    message.mutable_sampling()->ParseFromString(sampling);
  }
  return message;
}

void ListRuns(const RunRegistry& registry, const Caller& caller, v1::ListRunsResponse& response) {
  for (const std::shared_ptr<Run>& run : registry.List(caller)) {
    *response.add_runs() = Describe(*run);
  }
}

}  // namespace sis
