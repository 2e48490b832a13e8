// The trace that a call belongs to.
#pragma once

#include <grpcpp/server_context.h>

#include <iterator>
#include <optional>

#include "server/tracing/request_span.h"
#include "server/tracing/span_file.h"
#include "server/tracing/traceparent.h"

namespace sis {

// One without spans where none are written, or the caller wants none.
class CallTrace {
 public:
  // `spans` is null, or outlives the call and its spans.
  CallTrace(SpanFile* spans, const grpc::ServerContextBase& context) : spans_(spans) {
    if (spans == nullptr) return;
    const auto [header, end] = context.client_metadata().equal_range("traceparent");
    if (header == end || std::next(header) != end) return;
    parent_ = ParseTraceParent({header->second.data(), header->second.size()});
  }

  // Of a request from now on.
  RequestSpan Begin(const char* method) const {
    const bool is_sampled = parent_.has_value() && parent_->sampled;
    return is_sampled ? RequestSpan(*spans_, *parent_, method) : RequestSpan();
  }

 private:
  SpanFile* spans_;
  std::optional<TraceParent> parent_;
};

}  // namespace sis
