#include "server/tracing/request_span.h"

#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "server/threads/steady_now.h"

namespace sis {
namespace {

// Callers choose it, of any length where there is no such run.
constexpr size_t kMostRunIdBytes = 256;

}  // namespace

RequestSpan::RequestSpan(SpanFile& file, const TraceParent& parent, absl::string_view method)
    : state_(std::make_shared<State>(State{.file = file, .span = {}, .began = SteadyNow()})) {
  state_->span.parent = parent;
  state_->span.method = std::string(method);
  state_->span.start = absl::Now();
}

void RequestSpan::SetRun(absl::string_view run_id) {
  if (is_traced()) state_->span.run_id = std::string(run_id.substr(0, kMostRunIdBytes));
}

void RequestSpan::SetSize(int64_t sequences, int64_t positions) {
  if (!is_traced()) return;
  state_->span.sequences = sequences;
  state_->span.positions = positions;
}

void RequestSpan::End(absl::StatusCode code) {
  if (!is_traced() || std::exchange(state_->ended, true)) return;
  state_->span.code = code;
  // Whoever sets the machine's clock meanwhile.
  state_->span.end = state_->span.start + (SteadyNow() - state_->began);
  state_->file.Add(std::move(state_->span));
}

}  // namespace sis
