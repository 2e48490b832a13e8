// A span while it lasts.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/tracing/span_file.h"

namespace sis {

// Copies are of the same span. Used by one thread at a time. One that never ends is not written.
class RequestSpan {
 public:
  // Of a call that is not traced: costs nothing, does nothing.
  RequestSpan() = default;
  // Begins. The file must outlive it.
  RequestSpan(SpanFile& file, const TraceParent& parent, absl::string_view method);

  bool is_traced() const { return state_ != nullptr; }
  void SetRun(absl::string_view run_id);
  void SetSize(int64_t sequences, int64_t positions);
  // What comes after it is ignored.
  void End(absl::StatusCode code);

 private:
  struct State {
    SpanFile& file;
    Span span;
    absl::Time began;  // SteadyNow()
    bool ended = false;
  };
  std::shared_ptr<State> state_;
};

}  // namespace sis
