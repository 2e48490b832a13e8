#include "client/study/settings.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace sis::study {
namespace {

// The bounds of a single mini-batch of this size would hold back GSPO altogether: its defaults are
// for responses of thousands of tokens.
constexpr float kGspoEpsilon = 0.1f;

const std::map<std::string, Arm> kAlgorithms = {
    {"importance_sampling", {ImportanceSampling{}}},
    {"no_correction", {NoCorrection{}}},
    {"grpo", {Grpo{}}},
    {"grpo_epsilon_0.4", {Grpo{.epsilon = 0.4f}}},
    {"grpo_dual_clip", {.algorithm = Grpo{}, .dual_clip = 2.0f}},
    {"dapo", {.algorithm = Dapo{}, .leaves_out_equal_groups = true}},
    {"gspo", {Gspo{.epsilon_low = kGspoEpsilon, .epsilon_high = kGspoEpsilon}}},
    {"cispo", {Cispo{}}},
    {"tis", {Tis{}}},
    {"ice_pop", {IcePop{}}},
    {"dppo_top_k", {DppoTopK{}}},
    {"soft_acceptance", {SoftAcceptance{}}},
    {"damped_truncation", {DampedTruncation{}}},
};

const std::map<std::string, Correction> kCorrections = {{"sampled", Correction::kSampled},
                                                        {"expected", Correction::kExpected},
                                                        {"positive", Correction::kPositive},
                                                        {"random", Correction::kRandom}};

// Of the field: TIS and verl take 2, TRL 3 and the sequence mask.
const std::map<std::string, MismatchWeight> kMismatchWeights = {
    {"tis2", {MismatchWeight::Kind::kTokenTruncation, 2.0}},
    {"tis3", {MismatchWeight::Kind::kTokenTruncation, 3.0}},
    {"sequence_mask3", {MismatchWeight::Kind::kSequenceMask, 3.0}}};

const std::map<std::string, Explored> kExplored = {
    {"budgeted_rejection1", {Explored::Kind::kBudgetedRejection, 1.0}},
    {"acceptance_budget0.9", {Explored::Kind::kAcceptanceBudget, 0.9}},
    {"vespo", {Explored::Kind::kVespo}},
    {"drpo12.5", {Explored::Kind::kDrpo, 12.5}},
    {"drpo0.2", {Explored::Kind::kDrpo, 0.2}},
    {"response_mask0.5", {Explored::Kind::kResponseMask, 0.5}},
    {"total_variation0.5", {Explored::Kind::kTotalVariation, 0.5}},
    {"kl0.1", {Explored::Kind::kKlDivergence, 0.1}},
    {"inverse_envelope", {Explored::Kind::kInverseEnvelope}},
    {"tail_guard", {Explored::Kind::kTailGuard}},
    {"budgeted_envelope0.05", {Explored::Kind::kBudgetedEnvelope, 0.05}},
    {"budgeted_envelope1", {Explored::Kind::kBudgetedEnvelope, 1.0}},
    {"position_overlap", {Explored::Kind::kPositionOverlap}},
    {"effective_sample_size0.9", {Explored::Kind::kEffectiveSampleSize, 0.9}},
    {"by_total_variation0.05", {Explored::Kind::kByTotalVariation, 0.05}}};

const std::map<std::string, Recomputed> kRecomputed = {{"false", Recomputed::kNever},
                                                       {"true", Recomputed::kByBehavior},
                                                       {"proximal", Recomputed::kByProximal}};

const std::map<std::string, LogProbEncoding> kEncodings = {{"float32", LogProbEncoding::kFloat32},
                                                           {"float16", LogProbEncoding::kFloat16},
                                                           {"12bit", LogProbEncoding::kFixed12}};

template <typename Value>
bool Find(const std::map<std::string, Value>& values, const std::string& name, Value& to) {
  const auto found = values.find(name);
  if (found != values.end()) to = found->second;
  return found != values.end();
}

bool Read(const std::string& text, double& to) { return absl::SimpleAtod(text, &to); }
bool Read(const std::string& text, bool& to) { return absl::SimpleAtob(text, &to); }
bool Read(const std::string& text, int& to) { return absl::SimpleAtoi(text, &to) && to > 0; }
bool Read(const std::string& text, size_t& to) {
  uint32_t count = 0;
  const bool read = absl::SimpleAtoi(text, &count);
  to = count;
  return read;
}
bool Read(const std::string& text, TaskMaker& to) { return Find(kTasks, text, to); }
bool Read(const std::string& text, LogProbEncoding& to) { return Find(kEncodings, text, to); }
bool Read(const std::string& text, Arm& to) {
  const std::vector<std::string> words = absl::StrSplit(text, '+');
  to = {};
  if (!Find(kAlgorithms, words.front(), to)) {
    if (!Find(kExplored, words.front(), to.explored.emplace())) return false;
  }
  return std::all_of(words.begin() + 1, words.end(), [&](const std::string& word) {
    if (word == "without_sets") {
      to.without_sets = true;
      return true;
    }
    return Find(kCorrections, word, to.correction) || Find(kMismatchWeights, word, to.mismatch);
  });
}
bool Read(const std::string& text, Recomputed& to) { return Find(kRecomputed, text, to); }
// "exact", "int5" (bits of integers), "e4m3", "e5m2", "router0.5" (the deviation of its noise).
bool Read(const std::string& text, Engine& to) {
  to = {};
  if (text == "exact") return true;
  if (text == "e4m3" || text == "e5m2") {
    const int bits = text == "e4m3" ? 3 : 2;
    to.round = [bits](std::span<float> matrix) { RoundToMantissa(matrix, bits); };
    return true;
  }
  const std::string number = text.substr(std::min(text.size(), text.find_first_of("0123456789")));
  if (text == "int" + number) {
    int bits = 0;
    const bool read = Read(number, bits);
    to.round = [bits](std::span<float> matrix) { RoundToIntegers(matrix, bits); };
    return read && bits >= 2 && bits <= 16;
  }
  return text == "router" + number && absl::SimpleAtof(number, &to.router_deviation) &&
         to.router_deviation > 0.0f;
}

bool Read(const std::string& text, std::optional<Engine>& to) { return Read(text, to.emplace()); }

using Setting = std::variant<double*, bool*, int*, size_t*, TaskMaker*, LogProbEncoding*,
                             Recomputed*, Arm*, Engine*, std::optional<Engine>*>;

absl::Status SetAll(const std::string& words, const std::map<std::string, Setting>& settings) {
  const std::vector<std::string> all = absl::StrSplit(words, ' ', absl::SkipEmpty());
  for (const std::string& word : all) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(word, absl::MaxSplits('=', 1));
    const auto setting = settings.find(parts.first);
    const bool read =
        setting != settings.end() &&
        std::visit([&](auto* to) { return Read(parts.second, *to); }, setting->second);
    if (!read) {
      const bool known = setting != settings.end();
      return absl::InvalidArgumentError(
          absl::StrCat(word, known ? ": not a valid value" : ": there is no such setting"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Set(const std::string& words, StartSettings& start) {
  const absl::Status status = SetAll(words, {{"task", &start.task},
                                             {"digits", &start.digits},
                                             {"base", &start.base},
                                             {"width", &start.width},
                                             {"layers", &start.layers},
                                             {"experts", &start.experts},
                                             {"smoothing", &start.smoothing},
                                             {"forgotten_carries", &start.forgotten_carries},
                                             {"learning_rate", &start.learning_rate},
                                             {"accuracy", &start.accuracy}});
  if (status.ok() && start.width % static_cast<int>(kHeadWidth) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("width=", start.width, ": not a multiple of ", kHeadWidth));
  }
  return status;
}

absl::Status Set(const std::string& words, const StartSettings& start, CellSettings& cell) {
  const absl::Status status = SetAll(words, {{"learning_rate", &cell.learning_rate},
                                             {"prompts", &cell.prompts},
                                             {"updates", &cell.updates},
                                             {"rollouts", &cell.rollouts},
                                             {"lag", &cell.lag},
                                             {"mixed_ages", &cell.mixed_ages},
                                             {"gradient_clip", &cell.gradient_clip},
                                             {"engine", &cell.engine},
                                             {"second_engine", &cell.second_engine},
                                             {"recomputed", &cell.recomputed},
                                             {"top_k", &cell.top_k},
                                             {"mass", &cell.mass},
                                             {"arm", &cell.arm},
                                             {"encoding", &cell.encoding}});
  if (!status.ok()) return status;
  const int vocabulary = start.MakeTask().vocabulary;
  if (cell.updates < 1 || cell.updates > cell.prompts * kGroup || cell.rollouts < 1 ||
      cell.top_k > vocabulary || !(cell.mass >= 0.0 && cell.mass <= 1.0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("updates must be from 1 to the responses of a rollout, rollouts at least 1, "
                     "mass in [0, 1], and top_k at most ",
                     vocabulary));
  }
  return absl::OkStatus();
}

}  // namespace sis::study
