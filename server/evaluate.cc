#include "server/evaluate.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/sequence_key.h"
#include "kernels/validate.h"
#include "server/arrays.h"
#include "server/missing.h"
#include "server/slices.h"

namespace sis {
namespace {

struct WantedOutputs {
  bool accept_bits = false;
  bool decisions = false;
  bool ratios = false;
  bool log_ratios = false;
  bool acceptance_probabilities = false;
};

absl::StatusOr<WantedOutputs> ParseOutputs(const v1::EvaluateRequest& request) {
  WantedOutputs wanted;
  if (request.outputs().empty()) wanted.accept_bits = true;
  for (const int output : request.outputs()) {
    switch (output) {
      case v1::ACCEPT_BITS:
        wanted.accept_bits = true;
        break;
      case v1::DECISIONS:
        wanted.decisions = true;
        break;
      case v1::RATIOS:
        wanted.ratios = true;
        break;
      case v1::LOG_RATIOS:
        wanted.log_ratios = true;
        break;
      case v1::ACCEPTANCE_PROBABILITIES:
        wanted.acceptance_probabilities = true;
        break;
      default:
        return absl::InvalidArgumentError(absl::StrCat("outputs: ", output, " is not an output"));
    }
  }
  return wanted;
}

// What is evaluated besides the decisions; both need the slots.
absl::StatusOr<EvaluateParameters> ParseParameters(const v1::EvaluateRequest& request, int slots,
                                                   std::vector<int>& prefix_curve) {
  if (request.top_k() > static_cast<uint32_t>(slots)) {
    return absl::InvalidArgumentError(
        absl::StrCat("top_k: ", request.top_k(), ", above the run's ", slots));
  }
  const int top_k = request.top_k() == 0 ? slots : static_cast<int>(request.top_k());
  if (request.has_reduced() && (request.total_variation() || !request.prefix_curve().empty())) {
    return absl::InvalidArgumentError(
        absl::StrCat(request.total_variation() ? "total_variation" : "prefix_curve",
                     ": needs log-probs at the slots, which the reduced form does not have"));
  }
  if (request.prefix_curve_size() > static_cast<int>(kMaxPrefixPoints)) {
    return absl::InvalidArgumentError(absl::StrCat("prefix_curve: ", request.prefix_curve_size(),
                                                   " points, at most ", kMaxPrefixPoints));
  }
  prefix_curve.clear();
  for (const uint32_t k : request.prefix_curve()) {
    const int last = prefix_curve.empty() ? 0 : prefix_curve.back();
    if (k > static_cast<uint32_t>(top_k) || static_cast<int>(k) <= last) {
      return absl::InvalidArgumentError(absl::StrCat("prefix_curve[", prefix_curve.size(), "]: ", k,
                                                     " is not in [", last + 1, ", ", top_k, "]"));
    }
    prefix_curve.push_back(static_cast<int>(k));
  }
  return EvaluateParameters{.slots = slots,
                            .top_k = top_k,
                            .draw = request.draw(),
                            .total_variation = request.total_variation(),
                            .prefix_curve = prefix_curve};
}

void AddPrefixCurve(std::span<const int> curve, std::span<const PrefixSums> sums,
                    v1::EvaluateResponse& response) {
  for (size_t i = 0; i < curve.size(); ++i) {
    v1::PrefixPoint& point = *response.add_prefix_curve();
    point.set_top_k(static_cast<uint32_t>(curve[i]));
    point.set_residual_mass(FromFixed(sums[i].residual_mass));
    point.set_expected_acceptance(FromFixed(sums[i].expected_acceptance));
  }
}

// The current policy's values in a request, wherever they lie.
class CurrentArrays {
 public:
  // Memory to read into. What was read before is overwritten.
  struct Scratch {
    std::vector<float> sampled_log_probs;
    std::vector<float> log_probs;
    std::vector<float> log_envelopes;
    std::vector<float> covered_masses;
  };

  static absl::StatusOr<CurrentArrays> Parse(const v1::EvaluateRequest& request,
                                             const ReceivedArrays& arrays, size_t count,
                                             size_t slots) {
    CurrentArrays current;
    current.slots_ = slots;
    absl::Status status;
    const auto take = [&](absl::string_view name, const std::string& field, size_t elements,
                          ArrayField& into) {
      into = arrays.Of(field);
      status.Update(CheckLength<float>(name, into.size(), elements));
    };
    switch (request.form_case()) {
      case v1::EvaluateRequest::kGathered: {
        const v1::Gathered& gathered = request.gathered();
        take("gathered.log_probs", gathered.log_probs(), count * slots, current.log_probs_);
        take("gathered.sampled_log_probs", gathered.sampled_log_probs(), count,
             current.sampled_log_probs_);
        break;
      }
      case v1::EvaluateRequest::kReduced: {
        const v1::Reduced& reduced = request.reduced();
        take("reduced.sampled_log_probs", reduced.sampled_log_probs(), count,
             current.sampled_log_probs_);
        take("reduced.log_envelopes", reduced.log_envelopes(), count, current.log_envelopes_);
        take("reduced.covered_masses", reduced.covered_masses(), count, current.covered_masses_);
        break;
      }
      case v1::EvaluateRequest::FORM_NOT_SET:
        status = absl::InvalidArgumentError("form: neither gathered nor reduced");
    }
    if (!status.ok()) return status;
    return current;
  }

  // The positions [first, first + count) of the request.
  CurrentView Read(size_t first, size_t count, Scratch& scratch) const {
    const auto part = [&](const ArrayField& array, size_t width, std::vector<float>& into) {
      return array.size() == 0 ? std::span<const float>()
                               : array.Read<float>(first * width, count * width, into);
    };
    return {.sampled_log_probs = part(sampled_log_probs_, 1, scratch.sampled_log_probs),
            .log_probs = part(log_probs_, slots_, scratch.log_probs),
            .log_envelopes = part(log_envelopes_, 1, scratch.log_envelopes),
            .covered_masses = part(covered_masses_, 1, scratch.covered_masses)};
  }

 private:
  size_t slots_ = 0;
  ArrayField sampled_log_probs_;
  ArrayField log_probs_;
  ArrayField log_envelopes_;
  ArrayField covered_masses_;
};

CurrentView Sub(const CurrentView& view, size_t first, size_t count, size_t slots) {
  const auto part = [&](std::span<const float> array, size_t width) {
    return array.empty() ? array : array.subspan(first * width, count * width);
  };
  return {.sampled_log_probs = part(view.sampled_log_probs, 1),
          .log_probs = part(view.log_probs, slots),
          .log_envelopes = part(view.log_envelopes, 1),
          .covered_masses = part(view.covered_masses, 1)};
}

OutputView Sub(const OutputView& view, size_t first, size_t count) {
  const auto part = [&](auto array) { return array.empty() ? array : array.subspan(first, count); };
  return {.decisions = part(view.decisions),
          .acceptance_probabilities = part(view.acceptance_probabilities),
          .log_modified_ratios = part(view.log_modified_ratios),
          .modified_ratios = part(view.modified_ratios)};
}

// What came of a range of positions.
struct RangeResult {
  Sums sums;
  std::vector<Missing> missing;
};

// Evaluates ranges of a slice's positions against the cache.
class SliceEvaluator {
 public:
  SliceEvaluator(const Run& run, const Backend& backend, const EvaluateParameters& parameters,
                 const CurrentArrays& current)
      : backend_(backend),
        parameters_(parameters),
        current_(current),
        oldest_fresh_version_(run.oldest_fresh_version()) {}

  // Positions [first, first + count) of the slice's sequence, whose current values stand at
  // `offset` in the request; output is theirs alone.
  // prefix_sums are added to, or empty.
  absl::StatusOr<RangeResult> Evaluate(const SliceRange& slice, uint32_t first, uint32_t count,
                                       size_t offset, const OutputView& output,
                                       std::span<PrefixSums> prefix_sums) {
    RangeResult result;
    const auto missing = [&](uint32_t position, uint32_t length, v1::MissingReason reason) {
      result.sums.missing += length;
      std::ranges::fill(output.decisions.subspan(position - first, length), Decision::kMissing);
      AddMissing(result.missing, {position, length, reason});
    };
    if (slice.sequence() == nullptr) {
      missing(first, count, std::get<v1::MissingReason>(slice.found));
      return result;
    }

    // One sequence is locked at a time: two could wait for each other.
    const Sequence::Reader reader(*slice.sequence());
    if (slice.expected_digest.has_value()) {
      const uint64_t digest = reader.Digest(slice.first_position, slice.count);
      if (digest != *slice.expected_digest) {
        return absl::FailedPreconditionError(
            absl::StrCat("record_digest ", *slice.expected_digest, ", but the records of ",
                         ToString(slice.name), " positions [", slice.first_position, ", ",
                         slice.first_position + slice.count, ") have ", digest));
      }
    }
    // A part at a time: what is copied out of the request, and what validation has read, is then
    // still in the core's cache when it is used.
    const uint32_t part =
        std::max<uint32_t>(1, kPartValues / parameters_.slots / Page::kPositions) *
        Page::kPositions;
    const uint32_t end = first + count;
    for (uint32_t from = first; from < end;) {
      const uint32_t to = std::min(end, (from / Page::kPositions) * Page::kPositions + part);
      const CurrentView current = current_.Read(offset + from - first, to - from, scratch_);
      absl::Status status;
      segments_.clear();
      reader.ForEachPiece(from, to - from, [&](const Sequence::Reader::Piece& piece) {
        if (piece.page == nullptr) {
          missing(piece.first_position, piece.count, v1::NEVER_ARRIVED);
          return;
        }
        if (piece.page->corrupt()) {
          missing(piece.first_position, piece.count, v1::CORRUPT);
          return;
        }
        if (piece.version < oldest_fresh_version_) {
          missing(piece.first_position, piece.count, v1::STALE);
          return;
        }
        segments_.push_back(
            {.sequence_key = slice.sequence()->key(),
             .first_position = piece.first_position,
             .behavior = piece.page->Behavior(piece.index, piece.count),
             .current = Sub(current, piece.first_position - from, piece.count, parameters_.slots),
             .output = Sub(output, piece.first_position - first, piece.count),
             .sums = &result.sums,
             .prefix_sums = prefix_sums});
        const Segment& segment = segments_.back();
        status.Update(ValidateCurrent(segment.behavior, segment.current, parameters_.slots,
                                      segment.first_position));
      });
      if (!status.ok()) {
        return absl::Status(status.code(),
                            absl::StrCat(ToString(slice.name), ": ", status.message()));
      }
      backend_.Evaluate(parameters_, segments_);
      from = to;
    }
    return result;
  }

 private:
  // Log-probs in one part: 128 KiB.
  static constexpr int kPartValues = 32768;

  const Backend& backend_;
  const EvaluateParameters parameters_;
  const CurrentArrays& current_;
  const uint64_t oldest_fresh_version_;
  CurrentArrays::Scratch scratch_;
  std::vector<Segment> segments_;
};

absl::Status RefuseMissing(const SliceRange& slice, const Missing& missing) {
  return absl::FailedPreconditionError(
      absl::StrCat("ratios of missing positions: ", ToString(slice.name), " position ",
                   missing.first_position, " is missing (", ReasonLabel(missing.reason), ")"));
}

void PackAcceptBits(std::span<const Decision> decisions, std::string& bits) {
  bits.assign((decisions.size() + 7) / 8, '\0');
  for (size_t i = 0; i < decisions.size(); ++i) {
    if (decisions[i] == Decision::kAccepted) bits[i / 8] |= static_cast<char>(1 << (i % 8));
  }
}

// Adds to the run's step and metrics what this draw hasn't counted yet; returns how many positions
// that is.
int64_t Count(Run& run, SliceEvaluator& evaluator, uint64_t draw,
              const std::vector<SliceRange>& slices, const std::vector<RangeResult>& results) {
  Sums counted;
  std::vector<Missing> missing;
  size_t offset = 0;
  for (size_t i = 0; i < slices.size(); ++i) {
    const SliceRange& slice = slices[i];
    const StepLedger::Range whole{slice.first_position, slice.first_position + slice.count};
    const uint64_t key = SequenceKey(run.config().seed(), slice.name.attempt, slice.name.id);
    for (const StepLedger::Range& fresh : run.steps().Claim(draw, key, whole)) {
      RangeResult part;
      if (fresh == whole) {
        part = results[i];
      } else {
        // Another rank counted the rest of the slice. Valid a moment ago, so valid now, but for
        // records that have gone since: those count as missing.
        const uint32_t count = fresh.end - fresh.first;
        std::vector<Decision> scratch(count);
        SliceRange range = slice;
        range.expected_digest.reset();
        absl::StatusOr<RangeResult> again = evaluator.Evaluate(
            range, fresh.first, count, offset + fresh.first - slice.first_position,
            {.decisions = scratch}, {});
        if (!again.ok()) continue;
        part = *std::move(again);
      }
      counted += part.sums;
      missing.insert(missing.end(), part.missing.begin(), part.missing.end());
    }
    offset += slice.count;
  }
  run.steps().Add(draw, counted);
  run.metrics().AddEvaluated(counted, missing);
  return counted.scored() + counted.missing;
}

}  // namespace

v1::Totals ToTotals(const Sums& sums) {
  v1::Totals totals;
  totals.set_accepted(sums.accepted);
  totals.set_rejected(sums.rejected);
  totals.set_outside_top_k(sums.outside_top_k);
  totals.set_missing(sums.missing);
  totals.set_envelope_violations(sums.envelope_violations);
  totals.set_d(FromFixed(sums.d));
  totals.set_d_sis(FromFixed(sums.d_sis));
  totals.set_log_envelope(FromFixed(sums.log_envelope));
  totals.set_residual_mass(FromFixed(sums.residual_mass));
  totals.set_acceptance_probability(FromFixed(sums.acceptance_probability));
  totals.set_expected_acceptance(FromFixed(sums.expected_acceptance));
  totals.set_k3(FromFixed(sums.k3));
  totals.set_total_variation(FromFixed(sums.total_variation));
  return totals;
}

class EvaluateCall::State {
 public:
  State(Run& run, const Backend& backend, const EvaluateParameters& parameters,
        std::vector<int> prefix_curve, const WantedOutputs& wanted, std::vector<SliceRange> slices,
        const CurrentArrays& current)
      : run_(run),
        parameters_(parameters),
        prefix_curve_(std::move(prefix_curve)),
        wanted_(wanted),
        slices_(std::move(slices)),
        current_(current),
        evaluator_(run, backend, parameters, current_),
        response_(std::make_shared<v1::EvaluateResponse>()),
        prefix_sums_(prefix_curve_.size()) {
    const size_t count = TotalPositions(slices_);
    v1::EvaluateResponse& response = *response_;
    output_.decisions = ResizeArray<Decision>(*response.mutable_decisions(), count);
    if (wanted.ratios)
      output_.modified_ratios = ResizeArray<float>(*response.mutable_ratios(), count);
    if (wanted.log_ratios) {
      output_.log_modified_ratios = ResizeArray<float>(*response.mutable_log_ratios(), count);
    }
    if (wanted.acceptance_probabilities) {
      output_.acceptance_probabilities =
          ResizeArray<float>(*response.mutable_acceptance_probabilities(), count);
    }
    results_.reserve(slices_.size());
  }

  bool done() const { return results_.size() == slices_.size(); }

  absl::Status EvaluateSlice() {
    const size_t index = results_.size();
    const SliceRange& slice = slices_[index];
    absl::StatusOr<RangeResult> result =
        evaluator_.Evaluate(slice, slice.first_position, slice.count, offset_,
                            Sub(output_, offset_, slice.count), prefix_sums_);
    if (!result.ok()) return result.status();
    if (!result->missing.empty() && (wanted_.ratios || wanted_.log_ratios)) {
      return RefuseMissing(slice, result->missing.front());
    }
    for (const Missing& range : result->missing) {
      v1::MissingRange& message = *response_->add_missing();
      message.set_slice(static_cast<uint32_t>(index));
      message.set_first_position(range.first_position);
      message.set_length(range.count);
      message.set_reason(range.reason);
    }
    *response_->add_slice_totals() = ToTotals(result->sums);
    sums_ += result->sums;
    offset_ += slice.count;
    results_.push_back(*std::move(result));
    return absl::OkStatus();
  }

  std::shared_ptr<const v1::EvaluateResponse> Finish() {
    *response_->mutable_totals() = ToTotals(sums_);
    AddPrefixCurve(prefix_curve_, prefix_sums_, *response_);
    if (wanted_.accept_bits) PackAcceptBits(output_.decisions, *response_->mutable_accept_bits());
    if (!wanted_.decisions) response_->clear_decisions();
    response_->set_newly_counted(Count(run_, evaluator_, parameters_.draw, slices_, results_));
    return response_;
  }

 private:
  Run& run_;
  const EvaluateParameters parameters_;
  const std::vector<int> prefix_curve_;  // which the parameters refer to
  const WantedOutputs wanted_;
  const std::vector<SliceRange> slices_;
  const CurrentArrays current_;
  SliceEvaluator evaluator_;
  const std::shared_ptr<v1::EvaluateResponse> response_;
  OutputView output_;  // into the response
  // Of the slices evaluated so far; `offset_` is how many positions they have.
  std::vector<RangeResult> results_;
  size_t offset_ = 0;
  Sums sums_;
  std::vector<PrefixSums> prefix_sums_;
};

EvaluateCall::EvaluateCall(std::unique_ptr<State> state) : state_(std::move(state)) {}
EvaluateCall::EvaluateCall(EvaluateCall&&) = default;
EvaluateCall::~EvaluateCall() = default;

absl::StatusOr<EvaluateCall> EvaluateCall::Start(Run& run, const Backend& backend,
                                                 const v1::EvaluateRequest& request,
                                                 const ReceivedArrays& arrays) {
  const auto slots = static_cast<int>(run.config().top_k());
  std::vector<int> prefix_curve;
  const absl::StatusOr<EvaluateParameters> parameters =
      ParseParameters(request, slots, prefix_curve);
  if (!parameters.ok()) return parameters.status();
  const absl::StatusOr<WantedOutputs> wanted = ParseOutputs(request);
  if (!wanted.ok()) return wanted.status();
  absl::StatusOr<std::vector<SliceRange>> slices = ParseEvaluateSlices(run, request.slices());
  if (!slices.ok()) return slices.status();
  const absl::StatusOr<CurrentArrays> current =
      CurrentArrays::Parse(request, arrays, TotalPositions(*slices), slots);
  if (!current.ok()) return current.status();
  if (request.lease_id() != 0) {
    if (absl::Status status = run.RenewLease(request.lease_id()); !status.ok()) return status;
  }
  return EvaluateCall(std::make_unique<State>(run, backend, *parameters, std::move(prefix_curve),
                                              *wanted, *std::move(slices), *current));
}

bool EvaluateCall::done() const { return state_->done(); }

absl::Status EvaluateCall::EvaluateSlice() { return state_->EvaluateSlice(); }

std::shared_ptr<const v1::EvaluateResponse> EvaluateCall::Finish() { return state_->Finish(); }

absl::StatusOr<v1::EvaluateResponse> Evaluate(Run& run, const Backend& backend,
                                              const v1::EvaluateRequest& request) {
  const ReceivedArrays in_fields;
  absl::StatusOr<EvaluateCall> evaluation = EvaluateCall::Start(run, backend, request, in_fields);
  if (!evaluation.ok()) return evaluation.status();
  while (!evaluation->done()) {
    if (absl::Status status = evaluation->EvaluateSlice(); !status.ok()) return status;
  }
  return *evaluation->Finish();
}

}  // namespace sis
