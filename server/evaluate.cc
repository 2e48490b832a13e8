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

absl::StatusOr<CurrentView> ParseCurrent(const v1::EvaluateRequest& request, size_t count,
                                         size_t slots) {
  CurrentView current;
  const auto read = [](absl::string_view field, const std::string& bytes, size_t elements,
                       std::span<const float>& into) {
    const auto array = ArrayOf<float>(field, bytes, elements);
    if (array.ok()) into = *array;
    return array.status();
  };
  absl::Status status;
  switch (request.form_case()) {
    case v1::EvaluateRequest::kGathered: {
      const v1::Gathered& gathered = request.gathered();
      status.Update(
          read("gathered.log_probs", gathered.log_probs(), count * slots, current.log_probs));
      status.Update(read("gathered.sampled_log_probs", gathered.sampled_log_probs(), count,
                         current.sampled_log_probs));
      break;
    }
    case v1::EvaluateRequest::kReduced: {
      const v1::Reduced& reduced = request.reduced();
      status.Update(read("reduced.sampled_log_probs", reduced.sampled_log_probs(), count,
                         current.sampled_log_probs));
      status.Update(
          read("reduced.log_envelopes", reduced.log_envelopes(), count, current.log_envelopes));
      status.Update(
          read("reduced.covered_masses", reduced.covered_masses(), count, current.covered_masses));
      break;
    }
    case v1::EvaluateRequest::FORM_NOT_SET:
      status = absl::InvalidArgumentError("form: neither gathered nor reduced");
  }
  if (!status.ok()) return status;
  return current;
}

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
  SliceEvaluator(const Run& run, const Backend& backend, const EvaluateParameters& parameters)
      : run_(run),
        backend_(backend),
        parameters_(parameters),
        oldest_fresh_version_(run.oldest_fresh_version()) {}

  // Positions [first, first + count) of the slice's sequence; current and output are theirs alone.
  absl::StatusOr<RangeResult> Evaluate(const SliceRange& slice, uint32_t first, uint32_t count,
                                       const CurrentView& current, const OutputView& output) {
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
      if (digest != *slice.expected_digest && *slice.expected_digest == 0 &&
          run_.stored() != nullptr) {
        // The store did not answer when the trainer fetched, and does now: the trainer's values are
        // of no records.
        missing(first, count, v1::STORE_DOWN);
        return result;
      }
      if (digest != *slice.expected_digest) {
        return absl::FailedPreconditionError(
            absl::StrCat("record_digest ", *slice.expected_digest, ", but the records of ",
                         ToString(slice.name), " positions [", slice.first_position, ", ",
                         slice.first_position + slice.count, ") have ", digest));
      }
    }
    absl::Status status;
    segments_.clear();
    reader.ForEachPiece(first, count, [&](const Sequence::Reader::Piece& piece) {
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
      const size_t offset = piece.first_position - first;
      segments_.push_back({.sequence_key = slice.sequence()->key(),
                           .first_position = piece.first_position,
                           .behavior = piece.page->Behavior(piece.index, piece.count),
                           .current = Sub(current, offset, piece.count, parameters_.slots),
                           .output = Sub(output, offset, piece.count),
                           .sums = &result.sums});
      const Segment& segment = segments_.back();
      status.Update(ValidateCurrent(segment.behavior, segment.current, parameters_.slots,
                                    segment.first_position));
    });
    if (!status.ok()) {
      return absl::Status(status.code(),
                          absl::StrCat(ToString(slice.name), ": ", status.message()));
    }
    backend_.Evaluate(parameters_, segments_);
    return result;
  }

 private:
  const Run& run_;
  const Backend& backend_;
  const EvaluateParameters parameters_;
  const uint64_t oldest_fresh_version_;
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
              const std::vector<SliceRange>& slices, const std::vector<RangeResult>& results,
              const CurrentView& current, size_t slots) {
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
            range, fresh.first, count,
            Sub(current, offset + fresh.first - slice.first_position, count, slots),
            {.decisions = scratch});
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
  return totals;
}

absl::StatusOr<v1::EvaluateResponse> Evaluate(Run& run, const Backend& backend,
                                              const v1::EvaluateRequest& request) {
  const auto slots = static_cast<int>(run.config().top_k());
  if (request.top_k() > run.config().top_k()) {
    return absl::InvalidArgumentError(
        absl::StrCat("top_k: ", request.top_k(), ", above the run's ", slots));
  }
  const EvaluateParameters parameters{
      .slots = slots,
      .top_k = request.top_k() == 0 ? slots : static_cast<int>(request.top_k()),
      .draw = request.draw()};
  const absl::StatusOr<WantedOutputs> wanted = ParseOutputs(request);
  if (!wanted.ok()) return wanted.status();
  const absl::StatusOr<std::vector<SliceRange>> slices = ParseEvaluateSlices(run, request.slices());
  if (!slices.ok()) return slices.status();
  const size_t count = TotalPositions(*slices);
  const absl::StatusOr<CurrentView> current = ParseCurrent(request, count, slots);
  if (!current.ok()) return current.status();
  if (request.lease_id() != 0) {
    if (absl::Status status = run.RenewLease(request.lease_id()); !status.ok()) return status;
  }

  v1::EvaluateResponse response;
  OutputView output{.decisions = ResizeArray<Decision>(*response.mutable_decisions(), count)};
  if (wanted->ratios)
    output.modified_ratios = ResizeArray<float>(*response.mutable_ratios(), count);
  if (wanted->log_ratios) {
    output.log_modified_ratios = ResizeArray<float>(*response.mutable_log_ratios(), count);
  }
  if (wanted->acceptance_probabilities) {
    output.acceptance_probabilities =
        ResizeArray<float>(*response.mutable_acceptance_probabilities(), count);
  }

  SliceEvaluator evaluator(run, backend, parameters);
  std::vector<RangeResult> results;
  results.reserve(slices->size());
  Sums sums;
  size_t offset = 0;
  for (size_t i = 0; i < slices->size(); ++i) {
    const SliceRange& slice = (*slices)[i];
    absl::StatusOr<RangeResult> result = evaluator.Evaluate(
        slice, slice.first_position, slice.count, Sub(*current, offset, slice.count, slots),
        Sub(output, offset, slice.count));
    if (!result.ok()) return result.status();
    if (!result->missing.empty() && (wanted->ratios || wanted->log_ratios)) {
      return RefuseMissing(slice, result->missing.front());
    }
    for (const Missing& range : result->missing) {
      v1::MissingRange& message = *response.add_missing();
      message.set_slice(static_cast<uint32_t>(i));
      message.set_first_position(range.first_position);
      message.set_length(range.count);
      message.set_reason(range.reason);
    }
    *response.add_slice_totals() = ToTotals(result->sums);
    sums += result->sums;
    offset += slice.count;
    results.push_back(*std::move(result));
  }
  *response.mutable_totals() = ToTotals(sums);
  if (wanted->accept_bits) PackAcceptBits(output.decisions, *response.mutable_accept_bits());
  if (!wanted->decisions) response.clear_decisions();
  response.set_newly_counted(
      Count(run, evaluator, request.draw(), *slices, results, *current, slots));
  return response;
}

}  // namespace sis
