#include "client/study/cells.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace sis::study {
namespace {

using Words = std::vector<std::string>;
using Setters = std::map<std::string, std::function<bool(const std::string&)>>;

absl::Status Invalid(const std::string& what) { return absl::InvalidArgumentError(what); }

std::function<bool(const std::string&)> Number(double& to) {
  return [&to](const std::string& text) { return absl::SimpleAtod(text, &to); };
}
template <typename Integer>
std::function<bool(const std::string&)> Count(Integer& to) {
  return [&to](const std::string& text) {
    int value = 0;
    if (!absl::SimpleAtoi(text, &value) || value < 0) return false;
    to = static_cast<Integer>(value);
    return true;
  };
}
std::function<bool(const std::string&)> Flag(bool& to) {
  return [&to](const std::string& text) { return absl::SimpleAtob(text, &to); };
}

bool SetTask(const std::string& text, TaskKind& to) {
  to = text == "addition" ? TaskKind::kAddition : TaskKind::kRunningSum;
  return text == "addition" || text == "running_sum";
}

bool SetEncoding(const std::string& text, LogProbEncoding& to) {
  const std::map<std::string, LogProbEncoding> known = {{"float32", LogProbEncoding::kFloat32},
                                                        {"float16", LogProbEncoding::kFloat16},
                                                        {"12bit", LogProbEncoding::kFixed12}};
  const auto found = known.find(text);
  if (found == known.end()) return false;
  to = found->second;
  return true;
}

// "exact", "int5", "e4m3", "e5m2", "router0.5".
bool SetEngine(const std::string& text, Engine& to) {
  std::string_view rest = text;
  if (text == "exact") {
    to = {};
    return true;
  }
  if (text == "e4m3" || text == "e5m2") {
    to = {.kind = EngineKind::kFloatWeights, .bits = text == "e4m3" ? 3 : 2};
    return true;
  }
  const auto number = [&rest](const std::string& prefix) {
    if (!rest.starts_with(prefix)) return false;
    rest.remove_prefix(prefix.size());
    return true;
  };
  if (number("int")) {
    to = {.kind = EngineKind::kIntegerWeights};
    return absl::SimpleAtoi(std::string(rest), &to.bits) && to.bits >= 2 && to.bits <= 16;
  }
  if (number("router")) {
    to = {.kind = EngineKind::kNoisyRouter};
    return absl::SimpleAtof(std::string(rest), &to.deviation) && to.deviation > 0.0f;
  }
  return false;
}

// The words from `first` on are name=value.
absl::Status SetAll(const Words& words, size_t first, const Setters& setters) {
  for (size_t i = first; i < words.size(); ++i) {
    const std::pair<std::string, std::string> setting =
        absl::StrSplit(words[i], absl::MaxSplits('=', 1));
    const auto setter = setters.find(setting.first);
    if (setter == setters.end()) return Invalid(words[i] + ": there is no such setting");
    if (!setter->second(setting.second)) return Invalid(words[i] + ": not a valid value");
  }
  return absl::OkStatus();
}

class Parser {
 public:
  absl::Status Add(const Words& words) {
    const std::string& kind = words[0];
    if (words.size() < 2) return Invalid(kind + ": says nothing");
    if (kind == "first_seed") {
      return Count(design.first_seed)(words[1]) ? absl::OkStatus() : Invalid(words[1]);
    }
    if (kind == "start") return AddStart(words);
    if (kind == "arms") return AddArms(words);
    if (kind == "cell") return AddCell(words);
    if (kind == "more") return AddMore(words);
    if (kind == "primary") return CheckPrimary(words);
    return Invalid(kind + ": no such line");
  }

  Design design = {};

 private:
  absl::Status AddStart(const Words& words) {
    StartSettings& start = design.starts[words[1]];
    return SetAll(words, 2,
                  {{"task", [&](const auto& text) { return SetTask(text, start.task); }},
                   {"digits", Count(start.digits)},
                   {"base", Count(start.base)},
                   {"experts", Flag(start.experts)},
                   {"smoothing", Number(start.smoothing)},
                   {"forgotten_carries", Number(start.forgotten_carries)},
                   {"learning_rate", Number(start.learning_rate)},
                   {"accuracy", Number(start.accuracy)}});
  }

  absl::Status AddArms(const Words& words) {
    for (size_t i = 2; i < words.size(); ++i) {
      const absl::StatusOr<Arm> arm = ParseArm(words[i]);
      if (!arm.ok()) return arm.status();
      sets_[words[1]].push_back(words[i]);
    }
    return absl::OkStatus();
  }

  absl::Status AddCell(const Words& words) {
    Cell cell{.name = words[1], .start = "", .settings = {}, .arms = {}, .seeds = 0};
    CellSettings& settings = cell.settings;
    const absl::Status status = SetAll(
        words, 2,
        {{"start",
          [&](const auto& text) {
            cell.start = text;
            return design.starts.contains(text);
          }},
         {"arms", [&](const auto& text) { return AppendSets(text, cell.arms); }},
         {"seeds", Count(cell.seeds)},
         {"learning_rate", Number(settings.learning_rate)},
         {"prompts", Count(settings.prompts)},
         {"updates", Count(settings.updates)},
         {"rollouts", Count(settings.rollouts)},
         {"lag", Count(settings.lag)},
         {"gradient_clip", Number(settings.gradient_clip)},
         {"engine", [&](const auto& text) { return SetEngine(text, settings.engine); }},
         {"recomputed", Flag(settings.recomputed)},
         {"top_k", Count(settings.top_k)},
         {"encoding", [&](const auto& text) { return SetEncoding(text, settings.encoding); }}});
    if (!status.ok()) return status;
    if (cell.start.empty() || cell.arms.empty() || cell.seeds == 0) {
      return Invalid(cell.name + ": start, arms and seeds must be set");
    }
    const int vocabulary = design.starts[cell.start].MakeTask().vocabulary();
    if (settings.updates < 1 || settings.top_k < 1 || settings.top_k > vocabulary) {
      return Invalid(cell.name + ": updates and top_k must be at least 1, and top_k at most " +
                     std::to_string(vocabulary));
    }
    design.cells.push_back(std::move(cell));
    return absl::OkStatus();
  }

  // More arms of a cell, on seeds of their own number.
  absl::Status AddMore(const Words& words) {
    const auto known = std::find_if(design.cells.begin(), design.cells.end(),
                                    [&](const Cell& cell) { return cell.name == words[1]; });
    if (known == design.cells.end()) return Invalid(words[1] + ": no such cell");
    Cell cell = *known;
    cell.arms.clear();
    const absl::Status status =
        SetAll(words, 2,
               {{"arms", [&](const auto& text) { return AppendSets(text, cell.arms); }},
                {"seeds", Count(cell.seeds)}});
    if (status.ok()) design.cells.push_back(std::move(cell));
    return status;
  }

  // The report reads it; here it only must be about runs that there are.
  absl::Status CheckPrimary(const Words& words) const {
    if (words.size() != 5) return Invalid("primary: needs cell and arm twice");
    for (size_t i = 1; i < words.size(); i += 2) {
      const bool there =
          std::any_of(design.cells.begin(), design.cells.end(), [&](const Cell& cell) {
            return cell.name == words[i] &&
                   std::find(cell.arms.begin(), cell.arms.end(), words[i + 1]) != cell.arms.end();
          });
      if (!there) return Invalid(words[i + 1] + ": no arm of " + words[i]);
    }
    return absl::OkStatus();
  }

  bool AppendSets(const std::string& names, Words& arms) const {
    for (const std::string& name : Words(absl::StrSplit(names, ','))) {
      const auto set = sets_.find(name);
      if (set == sets_.end()) return false;
      arms.insert(arms.end(), set->second.begin(), set->second.end());
    }
    return true;
  }

  std::map<std::string, Words> sets_;
};

}  // namespace

absl::StatusOr<Design> ParseDesign(std::string_view text) {
  Parser parser;
  int number = 0;
  for (const std::string& line : Words(absl::StrSplit(std::string(text), '\n'))) {
    ++number;
    const std::string said = line.substr(0, line.find('#'));
    const Words words = absl::StrSplit(said, ' ', absl::SkipWhitespace());
    if (words.empty()) continue;
    const absl::Status status = parser.Add(words);
    if (!status.ok()) {
      return Invalid(absl::StrCat("line ", number, ": ", std::string(status.message())));
    }
  }
  return std::move(parser.design);
}

std::vector<RunName> RunsOf(const Design& design) {
  uint64_t most = 0;
  for (const Cell& cell : design.cells) most = std::max(most, cell.seeds);
  std::vector<RunName> runs;
  for (uint64_t i = 0; i < most; ++i) {
    for (const Cell& cell : design.cells) {
      if (i >= cell.seeds) continue;
      for (const std::string& arm : cell.arms) runs.push_back({&cell, arm, design.first_seed + i});
    }
  }
  return runs;
}

}  // namespace sis::study
