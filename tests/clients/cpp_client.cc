// Does with the C++ client what the lines on standard input say, and answers each with a line of
// what came of it: the words of tests/clients/behaviours.py, which python_client.py understands
// too.
#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/api/client.h"

namespace sis {
namespace {

constexpr int kTopK = 4;
constexpr uint32_t kVocabulary = 64;

// A line: a verb, then words, some of which are settings ("rows=10").
class Command {
 public:
  explicit Command(const std::string& line) {
    for (const std::string& word :
         std::vector<std::string>(absl::StrSplit(line, ' ', absl::SkipEmpty()))) {
      const std::vector<std::string> parts = absl::StrSplit(word, absl::MaxSplits('=', 1));
      if (parts.size() == 2) {
        settings_[parts[0]] = parts[1];
      } else {
        words_.emplace_back(word);
      }
    }
  }

  const std::string& verb() const { return words_.at(0); }
  // What stands after the verb.
  std::span<const std::string> words() const { return std::span(words_).subspan(1); }
  const std::string& word(size_t i) const { return words_.at(1 + i); }
  bool has(const std::string& name) const { return settings_.contains(name); }
  std::string text(const std::string& name) const {
    const auto found = settings_.find(name);
    return found == settings_.end() ? "" : found->second;
  }
  double number(const std::string& name, double otherwise = 0) const {
    double value = otherwise;
    if (has(name) && !absl::SimpleAtod(text(name), &value)) std::abort();
    return value;
  }

 private:
  std::vector<std::string> words_;
  std::map<std::string, std::string> settings_;
};

// "id", or "id#attempt".
SequenceRef ParseSequence(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, '#');
  return {parts[0], parts.size() > 1 ? static_cast<uint32_t>(std::stoul(parts[1])) : 0};
}

// A sequence, perhaps with ":first+length".
Slice ParseSlice(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  Slice slice{ParseSequence(parts[0])};
  if (parts.size() > 1) {
    const std::vector<std::string> range = absl::StrSplit(parts[1], '+');
    slice.first_position = static_cast<uint32_t>(std::stoul(range[0]));
    slice.length = static_cast<uint32_t>(std::stoul(range[1]));
  }
  return slice;
}

struct Rows {
  std::vector<int32_t> sampled_ids, ids;
  std::vector<float> sampled_log_probs, log_probs;

  // As python_client.py computes them too, all exact in float32: of five tokens in a row four are
  // the slots of their sets, in turn, and one is outside.
  Rows(uint32_t first_position, uint32_t rows, uint32_t seed) {
    constexpr float kLogProbs[] = {-0.75F, -1.5F, -2.5F, -3.25F};
    for (uint32_t t = first_position; t < first_position + rows; ++t) {
      const uint32_t n = 7 * t + 13 * seed;
      const float shift = static_cast<float>(n % 5) / 16;
      for (uint32_t slot = 0; slot < kTopK; ++slot) {
        ids.push_back(static_cast<int32_t>((n + 5 * slot) % kVocabulary));
        log_probs.push_back(kLogProbs[slot] - shift);
      }
      const bool inside = t % 5 < kTopK;
      sampled_ids.push_back(inside ? ids[ids.size() - kTopK + t % 5]
                                   : static_cast<int32_t>((n + 45) % kVocabulary));
      sampled_log_probs.push_back(inside ? log_probs[log_probs.size() - kTopK + t % 5] : -4.0F);
    }
  }

  RecordView view() const { return {sampled_ids, sampled_log_probs, ids, log_probs}; }
};

std::string Told(const absl::Status& status) {
  if (status.ok()) return "ok";
  return absl::StrCat(absl::StatusCodeToString(status.code()), " ", status.message());
}

std::string Told(const absl::StatusOr<std::vector<RefusedEntry>>& refused) {
  if (!refused.ok()) return Told(refused.status());
  std::vector<std::string> told;
  for (const RefusedEntry& entry : *refused) {
    told.push_back(absl::StrCat("refused ", entry.sequence.id, " ", Told(entry.status)));
  }
  std::ranges::sort(told);
  return told.empty() ? "ok" : absl::StrJoin(told, "; ");
}

std::string Told(std::span<const v1::MissingRange> missing) {
  std::string told;
  for (const v1::MissingRange& range : missing) {
    absl::StrAppend(&told, " missing ", range.slice(), ":", range.first_position(), "+",
                    range.length(), " ", v1::MissingReason_Name(range.reason()));
  }
  return told;
}

template <typename T>
std::string Bits(std::span<const T> values) {
  return absl::BytesToHexString(
      {reinterpret_cast<const char*>(values.data()), values.size_bytes()});
}

class Actor {
 public:
  // One line of what came of it. What stands behind a tab are bits, to be compared only.
  std::string Do(const Command& command) {
    const std::string& verb = command.verb();
    if (verb == "connect") return Connect(command);
    if (client_ == nullptr) return "FAILED_PRECONDITION not connected";
    if (verb == "create_run") return CreateRun(command);
    if (verb == "get_run") return GetRun(command);
    if (verb == "list_runs") return ListRuns();
    if (verb == "delete_run") return DeleteRun(command);
    if (verb == "advance_version") {
      const auto dropped = client_->AdvanceVersion(run_, std::stoull(command.word(0)));
      return dropped.ok() ? absl::StrCat("ok dropped ", *dropped) : Told(dropped.status());
    }
    if (verb == "append_many") return AppendMany(command);
    if (verb == "open") return Open(command);
    if (verb == "fetch") return Fetch(command);
    if (verb == "evaluate") return Evaluate(command);
    if (verb == "get_step") return GetStep(command);
    if (verb == "list_steps") return ListSteps();
    if (verb == "release") return Release(command);
    if (stream_ == nullptr) return "FAILED_PRECONDITION no stream is open";
    if (verb == "block") return Block(command);
    if (verb == "seal") {
      return Told(stream_->Seal(ParseSequence(command.word(0)),
                                static_cast<uint32_t>(std::stoul(command.word(1)))));
    }
    if (verb == "flush") return Told(stream_->Flush());
    if (verb == "finish") return Told(stream_->Finish());
    return absl::StrCat("unknown verb ", verb);
  }

 private:
  std::string Connect(const Command& command) {
    ClientOptions options;
    options.call_timeout = absl::Seconds(command.number("timeout"));
    options.credentials = Credentials::FromEnvironment();
    const std::vector<std::string> addresses(command.words().begin(), command.words().end());
    absl::StatusOr<std::unique_ptr<Client>> client = addresses.size() == 1
                                                         ? Client::Connect(addresses[0], options)
                                                         : Client::Connect(addresses, options);
    if (!client.ok()) return Told(client.status());
    client_ = *std::move(client);
    return "ok";
  }

  std::string CreateRun(const Command& command) {
    v1::RunConfig config;
    config.set_seed(static_cast<uint64_t>(command.number("seed", 3)));
    config.set_vocabulary_size(kVocabulary);
    config.set_top_k(static_cast<uint32_t>(command.number("top_k", kTopK)));
    config.set_log_prob_encoding(v1::FLOAT32);
    config.set_time_to_live_seconds(command.number("time_to_live"));
    config.set_byte_quota(static_cast<uint64_t>(command.number("byte_quota")));
    config.set_evict_unread(command.has("evict_unread"));
    if (command.has("max_staleness")) {
      config.set_max_staleness(static_cast<uint64_t>(command.number("max_staleness")));
    }
    const auto created = client_->CreateRun(command.word(0), config,
                                            static_cast<uint64_t>(command.number("incarnation")));
    if (!created.ok()) return Told(created.status());
    run_ = {command.word(0), created->incarnation()};
    return absl::StrCat("ok incarnation ", created->incarnation());
  }

  std::string GetRun(const Command& command) {
    const absl::StatusOr<v1::Run> run = client_->GetRun(command.word(0));
    if (!run.ok()) return Told(run.status());
    run_ = {command.word(0), run->incarnation()};
    return absl::StrCat("ok incarnation ", run->incarnation(), " version ", run->policy_version(),
                        " sequences ", run->sequences(), " sealed ", run->sealed_sequences(),
                        " positions ", run->positions(), " leases ", run->leases(), " unread ",
                        run->unread_sequences());
  }

  template <typename Response>
  static std::string Unanswered(const Response& response) {
    if (response.unanswered().empty()) return "";
    return absl::StrCat(" unanswered ", absl::StrJoin(response.unanswered(), " "));
  }

  std::string ListRuns() {
    const absl::StatusOr<v1::ListRunsResponse> runs = client_->ListRuns();
    if (!runs.ok()) return Told(runs.status());
    std::string told = "ok";
    for (const v1::Run& run : runs->runs()) {
      absl::StrAppend(&told, " ", run.run_id(), " ", run.positions(), " ", run.unread_sequences());
    }
    return absl::StrCat(told, Unanswered(*runs));
  }

  std::string DeleteRun(const Command& command) {
    const absl::StatusOr<bool> deleted = client_->DeleteRun({command.word(0)});
    if (!deleted.ok()) return Told(deleted.status());
    return *deleted ? "ok deleted" : "ok was not there";
  }

  std::string Open(const Command& command) {
    v1::Sampling sampling;
    sampling.set_log_probs(v1::Sampling::RAW);
    sampling.set_temperature(command.number("temperature", 1));
    AppendOptions options;
    options.worker = "worker";
    options.retry_limit = absl::Seconds(command.number("retry", 60));
    stream_ = client_->Append(run_, sampling, kVocabulary, options);
    return "ok";
  }

  std::string Block(const Command& command) {
    const auto first = static_cast<uint32_t>(command.number("first"));
    Rows rows(first, static_cast<uint32_t>(command.number("rows")),
              static_cast<uint32_t>(command.number("seed")));
    if (command.has("nan_at")) {
      rows.sampled_log_probs[static_cast<size_t>(command.number("nan_at")) - first] =
          std::numeric_limits<float>::quiet_NaN();
    }
    return Told(stream_->Block(ParseSequence(command.word(0)), first,
                               static_cast<uint64_t>(command.number("version")), rows.view()));
  }

  // On a stream of its own, flushed.
  std::string AppendMany(const Command& command) {
    v1::Sampling sampling;
    sampling.set_log_probs(v1::Sampling::RAW);
    sampling.set_temperature(1);
    std::vector<Rows> rows;
    rows.reserve(command.words().size());
    std::vector<AppendEntry> entries;
    for (const std::string& word : command.words()) {
      const Slice slice = ParseSlice(word);
      Rows& block = rows.emplace_back(slice.first_position, slice.length, 0);
      if (slice.sequence.id == command.text("nan_in")) {
        block.sampled_log_probs[0] = std::numeric_limits<float>::quiet_NaN();
      }
      entries.push_back(BlockEntry{slice.sequence, slice.first_position, 0, block.view()});
    }
    const auto stream = client_->Append(run_, sampling, kVocabulary, {.worker = "worker"});
    if (const absl::Status put = stream->AppendMany(entries); !put.ok()) return Told(put);
    return Told(stream->Finish());
  }

  std::string Fetch(const Command& command) {
    std::vector<Slice> slices;
    for (const std::string& word : command.words()) slices.push_back(ParseSlice(word));
    FetchOptions options;
    options.lease = absl::Seconds(command.number("lease"));
    absl::StatusOr<TopKRecords> records = client_->FetchTopK(run_, slices, options);
    if (!records.ok()) return Told(records.status());
    records_ = *std::move(records);
    return absl::StrCat("ok positions ", records_.positions(), Told(records_.missing),
                        records_.lease_id != 0 ? " leased" : "", "\t", Bits(records_.sampled_ids),
                        " ", Bits(records_.sampled_log_probs), " ", Bits(records_.ids), " ",
                        Bits(records_.log_probs));
  }

  std::string Evaluate(const Command& command) {
    EvaluateOptions options;
    options.draw = static_cast<uint64_t>(command.number("draw"));
    options.top_k = static_cast<uint32_t>(command.number("top_k"));
    options.lease_id = records_.lease_id;
    options.outputs = {v1::ACCEPT_BITS, v1::DECISIONS};
    if (command.has("ratios")) options.outputs.push_back(v1::RATIOS);
    std::vector<float> advantages;
    if (const std::string algorithm = command.text("algorithm"); !algorithm.empty()) {
      v1::Algorithm& asked = options.algorithm.emplace();
      if (algorithm == "clip_cov") asked.mutable_clip_cov();
      if (algorithm == "gspo") asked.mutable_gspo();
      advantages.assign(records_.positions(), 0.5F);
      options.advantages = advantages;
      options.outputs.push_back(v1::COEFFICIENTS);
    }
    // Behaviour policy and current policy differ by these, slot by slot.
    constexpr float kShifts[] = {0.125F, -0.25F, 0};
    const std::vector<int32_t> ids(records_.ids.begin(), records_.ids.end());
    std::vector<float> log_probs(records_.log_probs.begin(), records_.log_probs.end());
    std::vector<float> sampled(records_.sampled_log_probs.begin(),
                               records_.sampled_log_probs.end());
    for (size_t i = 0; i < sampled.size(); ++i) {
      for (size_t slot = 0; slot < kTopK; ++slot) {
        const size_t at = i * kTopK + slot;
        if (ids[at] < 0) continue;
        log_probs[at] += kShifts[(i + slot) % 3];
        if (ids[at] == records_.sampled_ids[i]) sampled[i] = log_probs[at];
      }
    }
    if (command.has("nan_at")) {
      log_probs[static_cast<size_t>(command.number("nan_at")) * kTopK] =
          std::numeric_limits<float>::quiet_NaN();
    }
    if (command.has("one_row_less")) {
      sampled.pop_back();
      log_probs.resize(log_probs.size() - kTopK);
    }
    const absl::StatusOr<Evaluation> evaluation =
        client_->Evaluate(run_, records_.slices, GatheredValues{log_probs, sampled}, options);
    if (!evaluation.ok()) return Told(evaluation.status());
    std::vector<uint8_t> accepted;
    for (size_t i = 0; i < records_.positions(); ++i) accepted.push_back(evaluation->accepted(i));
    const v1::Totals& totals = evaluation->totals;
    return absl::StrCat(
        "ok scored ", totals.accepted() + totals.rejected() + totals.outside_top_k(), " missing ",
        totals.missing(), " new ", evaluation->newly_counted, Told(evaluation->missing), "\t",
        totals.accepted(), " ", totals.d_sis(), " ", Bits<uint8_t>(accepted), " ",
        Bits<Decision>(evaluation->decisions), " ", Bits<float>(evaluation->ratios), " ",
        Bits<float>(evaluation->coefficients));
  }

  std::string GetStep(const Command& command) {
    const auto step = client_->GetStep(run_, std::stoull(command.word(0)));
    if (!step.ok()) return Told(step.status());
    const v1::Totals& totals = step->totals();
    return absl::StrCat("ok sequences ", step->sequences(), " scored ",
                        totals.accepted() + totals.rejected() + totals.outside_top_k(), " missing ",
                        totals.missing(), Unanswered(*step));
  }

  std::string ListSteps() {
    const auto steps = client_->ListSteps(run_);
    if (!steps.ok()) return Told(steps.status());
    std::string told = "ok";
    for (const v1::ListStepsResponse::Step& step : steps->steps()) {
      absl::StrAppend(&told, " ", step.draw());
    }
    return absl::StrCat(told, Unanswered(*steps));
  }

  std::string Release(const Command& command) {
    std::vector<SequenceRef> sequences;
    for (const std::string& word : command.words()) sequences.push_back(ParseSequence(word));
    std::vector<uint64_t> leases;
    if (command.has("lease")) leases.push_back(records_.lease_id);
    const auto released = client_->Release(run_, sequences, leases);
    if (!released.ok()) return Told(released.status());
    return absl::StrCat("ok sequences ", released->released_sequences(), " leases ",
                        released->released_leases(), " unknown ", released->unknown());
  }

  std::unique_ptr<Client> client_;
  RunRef run_;
  std::unique_ptr<AppendWriter> stream_;
  // Of the last fetch.
  TopKRecords records_;
};

}  // namespace
}  // namespace sis

int main() {
  sis::Actor actor;
  for (std::string line; std::getline(std::cin, line);) {
    std::string told = actor.Do(sis::Command(line));
    std::ranges::replace(told, '\n', ' ');
    std::cout << told << std::endl;
  }
}
