#include "client/compare/comparison.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/records/record_view.h"

namespace sis {

std::string Comparison::TextOf(int32_t id) const {
  for (const Recording* recording : {&pair.a, &pair.b}) {
    if (const auto text = recording->texts.find(id); text != recording->texts.end()) {
      return text->second;
    }
  }
  return absl::StrCat("#", id);
}

absl::StatusOr<Comparison> Compare(std::span<const RecordedSequence> a, const std::string& a_name,
                                   std::span<const RecordedSequence> b, const std::string& b_name,
                                   const DecideOptions& options) {
  Comparison comparison;
  comparison.a_name = a_name;
  comparison.b_name = b_name;
  comparison.options = options;
  absl::StatusOr<RecordedPair> pair = PairRecordings(a, a_name, b, b_name);
  if (!pair.ok()) return pair.status();
  comparison.pair = *std::move(pair);
  const RecordedPair& recordings = comparison.pair;
  const auto decide = [&](const Recording& behavior, const Recording& current,
                          const std::string& file) -> absl::StatusOr<Decisions> {
    absl::StatusOr<Decisions> decisions =
        DecideAll(behavior, current, recordings.vocabulary_size, options);
    if (decisions.ok()) return decisions;
    return absl::Status(decisions.status().code(),
                        absl::StrCat(file, ": ", decisions.status().message()));
  };
  absl::StatusOr<Decisions> decisions = decide(recordings.a, recordings.b, a_name);
  if (!decisions.ok()) return decisions.status();
  comparison.a_to_b = *std::move(decisions);
  decisions = decide(recordings.b, recordings.a, b_name);
  if (!decisions.ok()) return decisions.status();
  comparison.b_to_a = *std::move(decisions);
  comparison.whole = WholeOf(recordings, comparison.a_to_b);
  comparison.diagnosis = Diagnose(recordings, comparison.whole, comparison.a_to_b);
  return comparison;
}

const char* DecisionName(Decision decision) {
  switch (decision) {
    case Decision::kAccepted:
      return "accepted";
    case Decision::kRejected:
      return "rejected";
    case Decision::kOutsideTopK:
      return "outside";
    case Decision::kMissing:
    case Decision::kMasked:
      break;
  }
  return "unscored";
}

std::vector<std::string> NotesOnTopK(const Comparison& comparison) {
  std::vector<std::string> notes;
  const auto note = [&](const char* name, const Recording& behavior, const Decisions& decisions) {
    const auto used = static_cast<uint32_t>(decisions.top_k);
    const uint32_t asked = comparison.options.top_k;
    if (asked > used) {
      notes.push_back(absl::StrCat(
          "K is ", used, ", not the ", asked, " asked for, where ", name,
          " is the behaviour policy: ",
          behavior.top_k > kMaxTopK ? "no record holds more" : "it lists no more", "."));
    } else if (asked == 0 && behavior.top_k > kMaxTopK) {
      notes.push_back(absl::StrCat("Of the ", behavior.top_k, " tokens that ", name,
                                   " lists a record holds the ", used,
                                   " most probable; look-ups are among all."));
    }
  };
  note("A", comparison.pair.a, comparison.a_to_b);
  note("B", comparison.pair.b, comparison.b_to_a);
  return notes;
}

std::vector<SummaryRow> Summarise(const Decisions& decisions) {
  const Sums& sums = decisions.sums;
  const auto scored = static_cast<double>(sums.scored());
  const auto count = [](auto value) { return static_cast<double>(value); };
  const auto mean = [&](int64_t sum) { return FromFixed(sum) / scored; };
  return {
      {"top_k", "K, tokens per record", count(decisions.top_k), true},
      {"positions", "positions", count(decisions.positions), true},
      {"unscored", "unscored", count(decisions.unscored), true},
      {"accepted", "accepted", count(sums.accepted), true},
      {"rejected", "rejected", count(sums.rejected), true},
      {"outside_top_k", "outside top-K", count(sums.outside_top_k), true},
      {"accept_rate", "accept rate", count(sums.accepted) / scored, false},
      {"mean_acceptance_probability", "mean acceptance probability",
       mean(sums.acceptance_probability), false},
      {"mean_d", "D per token (nats)", mean(sums.d), false},
      {"mean_d_sis", "D_SIS per token (nats)", mean(sums.d_sis), false},
      {"mean_k3", "k3 per token (nats)", mean(sums.k3), false},
      {"mean_log_envelope", "mean log-envelope (nats)", mean(sums.log_envelope), false},
      {"mean_residual_mass", "mean residual mass", mean(sums.residual_mass), false},
  };
}

}  // namespace sis
