#include "server/observe/listed_runs.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/cache/limits.h"
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

struct ListedRun {
  std::shared_ptr<Run> run;
  std::vector<Finding> findings;
  // Those with smaller ones come first.
  double rank = 0;
};

// Of the draw evaluated last; nothing if none was, or it was forgotten meanwhile.
std::optional<StepLedger::Step> LastStep(const Run& run) {
  const std::optional<uint64_t> draw = run.steps().last_draw();
  std::optional<StepLedger::Step> step;
  if (draw.has_value()) step = run.steps().Find(*draw);
  return step.has_value() && step->ended != absl::InfinitePast() ? step : std::nullopt;
}

double Rank(const ListedRun& listed, v1::RunOrder order) {
  constexpr double kLast = std::numeric_limits<double>::infinity();
  switch (order) {
    case v1::RUN_ORDER_WORST_FIRST:
      return -static_cast<double>(VerdictOf(listed.findings));
    case v1::RUN_ORDER_MOST_BYTES_FIRST:
      return -static_cast<double>(listed.run->budget().used());
    case v1::RUN_ORDER_UNSPECIFIED:
    case v1::RUN_ORDER_BY_RUN_ID:
      return 0;
    default:
      break;
  }
  const std::optional<StepLedger::Step> last = LastStep(*listed.run);
  if (!last.has_value()) return kLast;
  if (order == v1::RUN_ORDER_LATEST_FIRST) return -SecondsSince1970(last->ended);
  const Sums& sums = last->evaluated.sums;
  const auto scored = static_cast<double>(sums.scored());
  if (order == v1::RUN_ORDER_MOST_MISSING_FIRST) {
    const auto missing = static_cast<double>(sums.missing);
    return scored + missing > 0 ? -missing / (scored + missing) : kLast;
  }
  if (scored == 0) return kLast;
  return order == v1::RUN_ORDER_LARGEST_D_FIRST ? -FromFixed(sums.d) / scored
                                                : static_cast<double>(sums.accepted) / scored;
}

// `text` is in lower case.
bool Contains(const Run& run, absl::string_view text) {
  const RunConfig& config = run.config();
  const auto contains = [&](absl::string_view name) {
    return absl::StrContains(absl::AsciiStrToLower(name), text);
  };
  return contains(run.id()) || contains(config.task) || contains(config.algorithm) ||
         contains(config.model);
}

absl::Status Check(const v1::ListRunsRequest& request) {
  constexpr uint32_t kMost = 1000;
  if (request.containing().size() > kMaxIdBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("containing: ", request.containing().size(), " bytes, at most ", kMaxIdBytes));
  }
  if (!v1::RunOrder_IsValid(request.order())) {
    return absl::InvalidArgumentError(absl::StrCat("order: ", request.order(), " is no RunOrder"));
  }
  if (request.limit() > kMost) {
    return absl::InvalidArgumentError(
        absl::StrCat("limit: ", request.limit(), " is above ", kMost));
  }
  return absl::OkStatus();
}

v1::Run Describe(const Run& run, const std::vector<Finding>& findings) {
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

}  // namespace

v1::Run Describe(const Run& run) { return Describe(run, FindingsIn(NumbersOf(run))); }

absl::Status ListRuns(const RunRegistry& registry, const Caller& caller,
                      const v1::ListRunsRequest& request, v1::ListRunsResponse& response) {
  if (absl::Status status = Check(request); !status.ok()) return status;
  const std::string containing = absl::AsciiStrToLower(request.containing());
  std::vector<ListedRun> listed;
  for (std::shared_ptr<Run>& run : registry.List(caller)) {
    std::vector<Finding> findings = FindingsIn(NumbersOf(*run));
    const Verdict verdict = VerdictOf(findings);
    response.set_all_runs(response.all_runs() + 1);
    response.set_worth_a_look(response.worth_a_look() + (verdict == Verdict::kWorthALook));
    response.set_broken(response.broken() + (verdict == Verdict::kBroken));
    if (Contains(*run, containing)) listed.push_back({std::move(run), std::move(findings)});
  }
  response.set_containing_runs(static_cast<uint32_t>(listed.size()));
  for (ListedRun& run : listed) run.rank = Rank(run, request.order());
  std::ranges::stable_sort(listed, {}, &ListedRun::rank);  // they come by run id
  const size_t begin = std::min<size_t>(request.offset(), listed.size());
  const size_t most = request.limit() == 0 ? listed.size() : request.limit();
  const size_t end = std::min(listed.size(), begin + most);
  for (const ListedRun& run : std::span(listed).subspan(begin, end - begin)) {
    *response.add_runs() = Describe(*run.run, run.findings);
  }
  return absl::OkStatus();
}

}  // namespace sis
