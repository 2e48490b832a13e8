// Three servers behind one C++ client: the bits of one server that holds everything, and what is
// left when one goes. replicas_test.py says the same of the Python client.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/api/client.h"
#include "client/api/reduce.h"
#include "client/replicas/placement.h"
#include "server/testing/live_server.h"
#include "server/testing/server_process.h"
#include "tests/integration/random_policies.h"
#include "tests/integration/same_records.h"

namespace sis {
namespace {

constexpr int kVocabulary = 48;
constexpr int kTopK = 7;
const std::vector<int> kLengths = {13, 1, 40, 7, 8, 22, 3, 64, 5, 9, 31, 2};
const RunRef kRun{"run"};

struct Recorded {
  std::string id;
  std::vector<int32_t> sampled_ids, ids;
  std::vector<float> sampled, log_probs, current_sampled, gathered;
};

std::unique_ptr<LiveServer> Start(const std::string& address) {
  ServerOptions options = LiveServer::Options();
  options.listen = address;
  return std::make_unique<LiveServer>(options);
}

void Kill(std::unique_ptr<LiveServer>& server) {
  server->Shutdown(absl::ZeroDuration());
  server.reset();
}

v1::RunConfig Config() {
  return LiveServer::RunRequest("run", kTopK, kVocabulary, /*seed=*/3).config();
}

v1::Sampling Raw() {
  v1::Sampling sampling;
  sampling.set_log_probs(v1::Sampling::RAW);
  sampling.set_temperature(1);
  return sampling;
}

class ReplicasTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (int i = 0; i < 3; ++i) {
      servers_.push_back(Start("127.0.0.1:0"));
      names_.push_back(servers_.back()->grpc_address());
    }
    client_ = Connect(names_);
    ASSERT_TRUE(client_->CreateRun("run", Config()).ok());
    // The names are ports that were free, so the placement is another each time: each replica gets
    // four of the ids.
    RandomPolicies policies(/*seed=*/5, kVocabulary, kTopK);
    for (int i = 0; recorded_.size() < kLengths.size(); ++i) {
      const std::string id = absl::StrCat("prompt-", i);
      if (std::ranges::count(owners_, Owner(id)) == 4) continue;
      owners_.push_back(Owner(id));
      recorded_.push_back(Record(policies, id, kLengths[recorded_.size()]));
    }
  }

  size_t Owner(const std::string& id) const { return Placement(names_).Replica("run", id); }

  template <typename Addresses>
  static std::unique_ptr<Client> Connect(const Addresses& addresses) {
    auto client = Client::Connect(addresses, {.call_timeout = absl::Seconds(20)});
    EXPECT_TRUE(client.ok()) << client.status();
    return *std::move(client);
  }

  static Recorded Record(RandomPolicies& policies, const std::string& id, int length) {
    Recorded recorded;
    recorded.id = id;
    for (int t = 0; t < length; ++t) {
      const PolicyPair pair = policies.Next(/*drift=*/0.5);
      const int32_t token = policies.Sample(pair.behavior);
      recorded.sampled_ids.push_back(token);
      recorded.sampled.push_back(pair.behavior[token]);
      recorded.current_sampled.push_back(pair.current[token]);
      const auto add = [](const auto& from, auto& to) {
        to.insert(to.end(), from.begin(), from.end());
      };
      add(pair.ids, recorded.ids);
      add(pair.log_probs, recorded.log_probs);
      add(pair.gathered, recorded.gathered);
    }
    return recorded;
  }

  std::vector<RefusedEntry> AppendAll(Client& client, const RunRef& run = kRun,
                                      const AppendOptions& options = {}) const {
    const auto stream = client.Append(run, Raw(), kVocabulary, options);
    for (const Recorded& each : recorded_) {
      EXPECT_TRUE(stream->Block({each.id}, 0, 0, Rows(each)).ok());
      EXPECT_TRUE(stream->Seal({each.id}, static_cast<uint32_t>(each.sampled.size())).ok());
    }
    const auto refused = stream->Finish();
    EXPECT_TRUE(refused.ok()) << refused.status();
    return *refused;
  }

  static RecordView Rows(const Recorded& recorded) {
    return {recorded.sampled_ids, recorded.sampled, recorded.ids, recorded.log_probs};
  }

  std::vector<Slice> Slices() const {
    std::vector<Slice> slices;
    for (const Recorded& each : recorded_) {
      slices.push_back({{each.id}, 0, static_cast<uint32_t>(each.sampled.size())});
    }
    return slices;
  }

  absl::StatusOr<Evaluation> Evaluate(Client& client, const std::vector<Slice>& slices,
                                      uint64_t lease_id, const std::vector<v1::Output>& outputs,
                                      bool reduced, uint64_t draw = 1) const {
    std::vector<float> gathered, sampled, behavior;
    for (const Recorded& each : recorded_) {
      gathered.insert(gathered.end(), each.gathered.begin(), each.gathered.end());
      behavior.insert(behavior.end(), each.log_probs.begin(), each.log_probs.end());
      sampled.insert(sampled.end(), each.current_sampled.begin(), each.current_sampled.end());
    }
    const EvaluateOptions options{.draw = draw, .lease_id = lease_id, .outputs = outputs};
    if (!reduced) return client.Evaluate(kRun, slices, GatheredValues{gathered, sampled}, options);
    const ReducedSlots slots = Reduce(behavior, gathered, kTopK, kTopK);
    return client.Evaluate(
        kRun, slices, ReducedValues{sampled, slots.log_envelopes, slots.covered_masses}, options);
  }

  // The numbers of the sequences that a replica has.
  std::set<size_t> ShareOf(size_t replica) const {
    std::set<size_t> share;
    for (size_t i = 0; i < owners_.size(); ++i) {
      if (owners_[i] == replica) share.insert(i);
    }
    return share;
  }

  // Evaluates until no position is missing because a replica gives no answer.
  Evaluation EvaluateWhenAllAreBack(const TopKRecords& records) const {
    for (;;) {
      const auto evaluation =
          Evaluate(*client_, records.slices, records.lease_id, {v1::DECISIONS}, false);
      EXPECT_TRUE(evaluation.ok()) << evaluation.status();
      const auto down = [](const v1::MissingRange& range) {
        return range.reason() == v1::STORE_DOWN;
      };
      if (!evaluation.ok() || std::ranges::none_of(evaluation->missing, down)) return *evaluation;
      absl::SleepFor(absl::Milliseconds(50));
    }
  }

  std::vector<std::unique_ptr<LiveServer>> servers_;
  std::vector<std::string> names_;
  std::unique_ptr<Client> client_;
  std::vector<Recorded> recorded_;
  std::vector<size_t> owners_;
};

std::vector<std::tuple<size_t, uint32_t, uint32_t, int>> Ranges(
    const std::vector<v1::MissingRange>& missing) {
  std::vector<std::tuple<size_t, uint32_t, uint32_t, int>> ranges;
  for (const v1::MissingRange& range : missing) {
    ranges.emplace_back(range.slice(), range.first_position(), range.length(), range.reason());
  }
  return ranges;
}

std::string Serialized(const Evaluation& evaluation) {
  std::string bytes = Bytes(evaluation.accept_bits) + Bytes(evaluation.decisions) +
                      Bytes(evaluation.ratios) + Bytes(evaluation.log_ratios) +
                      Bytes(evaluation.acceptance_probabilities) +
                      evaluation.totals.SerializeAsString();
  for (const v1::Totals& totals : evaluation.slice_totals) bytes += totals.SerializeAsString();
  return absl::StrCat(bytes, evaluation.newly_counted);
}

TEST_F(ReplicasTest, ThreeReplicasGiveTheBitsOfOneServer) {
  EXPECT_TRUE(AppendAll(*client_).empty());
  const std::unique_ptr<LiveServer> alone = Start("127.0.0.1:0");
  const std::unique_ptr<Client> one = Connect(alone->grpc_address());
  ASSERT_TRUE(one->CreateRun("run", Config()).ok());
  EXPECT_TRUE(AppendAll(*one).empty());

  std::vector<Slice> asked = Slices();
  for (Slice& slice : asked) slice.length = 0;
  const auto expected = one->FetchTopK(kRun, asked, {.lease = absl::Seconds(60)});
  const auto fetched = client_->FetchTopK(kRun, asked, {.lease = absl::Seconds(60)});
  ASSERT_TRUE(expected.ok() && fetched.ok()) << expected.status() << fetched.status();
  ExpectSameRecords(*fetched, *expected);
  for (size_t i = 0; i < asked.size(); ++i) EXPECT_EQ(fetched->slices[i].length, kLengths[i]);
  for (const bool reduced : {false, true}) {
    for (int time = 0; time < 2; ++time) {  // a retry is counted once
      const uint64_t draw = reduced ? 2 : 1;
      const std::vector<v1::Output> outputs = {v1::ACCEPT_BITS, v1::DECISIONS, v1::RATIOS,
                                               v1::LOG_RATIOS, v1::ACCEPTANCE_PROBABILITIES};
      const auto a = Evaluate(*one, expected->slices, expected->lease_id, outputs, reduced, draw);
      const auto b = Evaluate(*client_, fetched->slices, fetched->lease_id, outputs, reduced, draw);
      ASSERT_TRUE(a.ok() && b.ok()) << a.status() << b.status();
      EXPECT_EQ(b->totals.missing(), 0);
      EXPECT_EQ(Serialized(*b), Serialized(*a));
      const auto step = one->GetStep(kRun, draw);
      const auto merged = client_->GetStep(kRun, draw);
      ASSERT_TRUE(step.ok() && merged.ok());
      EXPECT_EQ(merged->SerializeAsString(), step->SerializeAsString());
    }
  }
  const auto steps = one->ListSteps(kRun);
  const auto merged_steps = client_->ListSteps(kRun);
  ASSERT_TRUE(steps.ok() && merged_steps.ok()) << steps.status() << merged_steps.status();
  ASSERT_EQ(steps->steps_size(), 2);
  EXPECT_EQ(merged_steps->SerializeAsString(), steps->SerializeAsString());
  // Of one sequence each, so that a replica has seen a third of them.
  for (size_t i = 0; i < recorded_.size(); ++i) {
    const std::vector<Slice> slice = {Slices()[i]};
    const GatheredValues values{recorded_[i].gathered, recorded_[i].current_sampled};
    const EvaluateOptions options{.draw = 10 + i};
    for (Client* each : {one.get(), client_.get()}) {
      const auto evaluated = each->Evaluate(kRun, slice, values, options);
      ASSERT_TRUE(evaluated.ok()) << evaluated.status();
    }
  }
  const auto history = one->GetHistory(kRun);
  const auto merged_history = client_->GetHistory(kRun);
  ASSERT_TRUE(history.ok() && merged_history.ok()) << history.status() << merged_history.status();
  ASSERT_EQ(history->stretches_size(), 2 + std::ssize(recorded_));
  ASSERT_EQ(merged_history->stretches_size(), history->stretches_size());
  for (int i = 0; i < history->stretches_size(); ++i) {
    v1::GetHistoryResponse::Stretch expected_stretch = history->stretches(i);
    v1::GetHistoryResponse::Stretch stretch = merged_history->stretches(i);
    for (auto* each : {&expected_stretch, &stretch}) {
      EXPECT_LE(each->begun_at(), each->ended_at());
      each->clear_begun_at();
      each->clear_ended_at();
    }
    EXPECT_EQ(stretch.SerializeAsString(), expected_stretch.SerializeAsString());
  }
  // What is not there is missing at both, and the ranges come in the order of the slices.
  std::vector<Slice> beyond = Slices();
  for (Slice& slice : beyond) {
    slice.first_position = slice.length / 2;
    if (slice.length == 1) slice.sequence.id = "none";
  }
  const auto a = Evaluate(*one, beyond, 0, {}, true);
  const auto b = Evaluate(*client_, beyond, 0, {}, true);
  ASSERT_TRUE(a.ok() && b.ok()) << a.status() << b.status();
  EXPECT_GT(a->totals.missing(), 0);
  EXPECT_EQ(Serialized(*b), Serialized(*a));
  EXPECT_EQ(Ranges(b->missing), Ranges(a->missing));

  std::vector<SequenceRef> released = {{recorded_[0].id}, {recorded_[1].id}, {"none"}};
  for (const auto& [client, lease] :
       {std::pair(one.get(), expected->lease_id), std::pair(client_.get(), fetched->lease_id)}) {
    const auto response = client->Release(kRun, released, std::vector<uint64_t>{lease, 77});
    ASSERT_TRUE(response.ok());
    EXPECT_EQ(response->released_sequences(), 2);
    EXPECT_EQ(response->released_leases(), 1);
    EXPECT_EQ(response->unknown(), 2);
    EXPECT_EQ(client->GetRun("none").status().code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(client->GetStep(kRun, 99).status().code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(client->FetchTopK(kRun, {}).status().code(), absl::StatusCode::kInvalidArgument);
  }
  // But for when they were evaluated last.
  const auto run_of = [](Client& client) {
    v1::Run run = *client.GetRun("run");
    EXPECT_GT(run.last_evaluated_at(), 0);
    run.clear_last_evaluated_at();
    return run.SerializeAsString();
  };
  const auto runs_of = [](Client& client) {
    v1::ListRunsResponse runs = *client.ListRuns();
    for (v1::Run& run : *runs.mutable_runs()) run.clear_last_evaluated_at();
    return runs.SerializeAsString();
  };
  EXPECT_EQ(run_of(*client_), run_of(*one));
  EXPECT_EQ(runs_of(*client_), runs_of(*one));
  for (Client* client : {one.get(), client_.get()}) {
    EXPECT_EQ(client->DeleteRun({"run", 7}), absl::StatusOr<bool>(false));
    EXPECT_EQ(client->DeleteRun({"run", 1}), absl::StatusOr<bool>(true));
    EXPECT_EQ(client->DeleteRun(kRun), absl::StatusOr<bool>(false));
    EXPECT_EQ(client->GetRun("run").status().code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(client->CreateRun("run", Config())->incarnation(), 2);
  }
}

TEST_F(ReplicasTest, SetsThatAreCutHereAreThoseThatTheServersCut) {
  v1::RunConfig config = Config();
  config.set_mass(0.8);
  for (const char* id : {"here", "there"}) ASSERT_TRUE(client_->CreateRun(id, config).ok());
  const auto run = client_->GetRun("here");
  ASSERT_TRUE(run.ok()) << run.status();
  const AppendOptions cut{.mass = run->config().mass()};
  EXPECT_EQ(cut.mass, 0.8);
  EXPECT_TRUE(AppendAll(*client_, {"here"}, cut).empty());
  EXPECT_TRUE(AppendAll(*client_, {"there"}).empty());
  // Each again, the other way.
  EXPECT_TRUE(AppendAll(*client_, {"here"}).empty());
  EXPECT_TRUE(AppendAll(*client_, {"there"}, cut).empty());
  const auto here = client_->FetchTopK({"here"}, Slices());
  const auto there = client_->FetchTopK({"there"}, Slices());
  ASSERT_TRUE(here.ok() && there.ok()) << here.status() << there.status();
  ExpectSameRecords(*here, *there);
  EXPECT_TRUE(here->missing.empty());
  EXPECT_GT(std::ranges::count(here->ids, -1), 100) << "nothing was cut";
}

TEST_F(ReplicasTest, OneThatGoesCostsItsShareAndComesBackEmpty) {
  EXPECT_TRUE(AppendAll(*client_).empty());
  const auto before = client_->FetchTopK(kRun, Slices(), {.lease = absl::Seconds(60)});
  ASSERT_TRUE(before.ok()) << before.status();
  const std::vector<v1::Output> outputs = {v1::ACCEPT_BITS, v1::DECISIONS,
                                           v1::ACCEPTANCE_PROBABILITIES};
  const auto whole = Evaluate(*client_, before->slices, before->lease_id, outputs, false);
  ASSERT_TRUE(whole.ok()) << whole.status();
  Kill(servers_[1]);
  const std::set<size_t> share = ShareOf(1);
  std::vector<std::tuple<size_t, uint32_t, uint32_t, int>> down;
  for (const size_t i : share) {
    down.emplace_back(i, 0, static_cast<uint32_t>(kLengths[i]), v1::STORE_DOWN);
  }

  const auto part = Evaluate(*client_, before->slices, before->lease_id, outputs, false);
  ASSERT_TRUE(part.ok()) << part.status();
  EXPECT_EQ(Ranges(part->missing), down);
  size_t row = 0;
  uint64_t missing = 0;
  for (size_t i = 0; i < kLengths.size(); ++i) {
    const bool gone = share.contains(i);
    EXPECT_EQ(
        part->slice_totals[i].SerializeAsString() == whole->slice_totals[i].SerializeAsString(),
        !gone);
    EXPECT_EQ(part->slice_totals[i].missing(), gone ? kLengths[i] : 0);
    missing += part->slice_totals[i].missing();
    for (int t = 0; t < kLengths[i]; ++t, ++row) {
      EXPECT_EQ(part->decisions[row], gone ? Decision::kMissing : whole->decisions[row]);
      EXPECT_EQ(part->accepted(row), !gone && whole->accepted(row));
      EXPECT_EQ(part->acceptance_probabilities[row],
                gone ? 0 : whole->acceptance_probabilities[row]);
    }
  }
  EXPECT_EQ(part->totals.missing(), missing);
  const absl::Status ratios = Evaluate(*client_, before->slices, 0, {v1::RATIOS}, false).status();
  EXPECT_EQ(ratios.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(ratios.message(), recorded_[*share.begin()].id)) << ratios;

  const auto during = client_->FetchTopK(kRun, Slices());
  ASSERT_TRUE(during.ok()) << during.status();
  EXPECT_EQ(Ranges(during->missing), down);
  EXPECT_EQ(during->positions(), before->positions());
  const auto ids = client_->FetchTopK(kRun, Slices(), {.arrays = {v1::TOP_K_IDS}});
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_EQ(BytesOf(ids->ids), BytesOf(during->ids));
  EXPECT_TRUE(ids->sampled_ids.empty() && ids->log_probs.empty());
  ASSERT_TRUE(client_->AdvanceVersion(kRun, 7).ok());
  std::multiset<std::string> refused_ids, lost_ids;
  for (const RefusedEntry& refused : AppendAll(*client_)) {
    EXPECT_TRUE(absl::IsUnavailable(refused.status)) << refused.status;
    refused_ids.insert(refused.sequence.id);
  }
  for (const size_t i : share) lost_ids.insert({recorded_[i].id, recorded_[i].id});  // and its seal
  EXPECT_EQ(refused_ids, lost_ids);

  servers_[1] = Start(names_[1]);
  const Evaluation after = EvaluateWhenAllAreBack(*before);
  EXPECT_EQ(after.missing.size(), share.size());
  for (const v1::MissingRange& range : after.missing) {
    EXPECT_TRUE(share.contains(range.slice()));
    EXPECT_EQ(range.reason(), v1::NEVER_ARRIVED);
  }
  // It takes sequences again, and has been told the version.
  EXPECT_TRUE(AppendAll(*client_).empty());
  EXPECT_TRUE(client_->FetchTopK(kRun, Slices())->missing.empty());
  const auto run = Connect(names_[1])->GetRun("run");
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->policy_version(), 7);
  EXPECT_EQ(run->sequences(), share.size());
  // What could not be fetched has no values to evaluate, although the records are there now.
  const auto late = Evaluate(*client_, during->slices, 0, {}, false);
  ASSERT_TRUE(late.ok()) << late.status();
  EXPECT_EQ(Ranges(late->missing), down);
}

TEST_F(ReplicasTest, ClipCovNeedsTheWholeBatch) {
  EXPECT_TRUE(AppendAll(*client_).empty());
  v1::Algorithm clip_cov;
  clip_cov.mutable_clip_cov();
  size_t positions = 0;
  for (const int length : kLengths) positions += length;
  const std::vector<float> values(positions, -1.0f);
  const auto evaluation = client_->Evaluate(
      kRun, Slices(), ReducedValues{values, values, values},
      {.outputs = {v1::COEFFICIENTS}, .algorithm = clip_cov, .advantages = values});
  EXPECT_EQ(evaluation.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(evaluation.status().message(), "clip_cov")) << evaluation.status();
}

TEST_F(ReplicasTest, ARefusedHeaderShowsInAFlushWithoutEntries) {
  const auto open = [&](uint64_t incarnation) {
    return client_->Append({"run", incarnation}, Raw(), kVocabulary);
  };
  const auto refused = absl::StatusCode::kFailedPrecondition;
  EXPECT_EQ(open(9)->Flush().status().code(), refused);
  EXPECT_EQ(open(9)->Finish().status().code(), refused);
  EXPECT_TRUE(open(1)->Flush().ok());
  EXPECT_TRUE(open(1)->Finish().ok());
}

TEST_F(ReplicasTest, AnOlderIncarnationIsBroughtUpToDate) {
  ASSERT_TRUE(client_->CreateRun("run", Config(), 4).ok());
  Kill(servers_[2]);
  servers_[2] = Start(names_[2]);
  // The replica has lost the run, and a client that names an older incarnation has opened that one
  // there.
  const auto lost = Connect(names_[2]);
  ASSERT_TRUE(lost->CreateRun("run", Config(), 1).ok());
  const auto joined = Connect(names_);
  const auto created = joined->CreateRun("run", Config());
  ASSERT_TRUE(created.ok()) << created.status();
  EXPECT_EQ(created->incarnation(), 4);
  EXPECT_EQ(lost->GetRun("run")->incarnation(), 4);
}

TEST_F(ReplicasTest, AReplicaThatHangsCostsOneTimeoutAndItsShare) {
  // A replica that takes connections and never answers.
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(listener, 16), 0);
  ASSERT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const std::vector<std::string> names = {names_[0],
                                          absl::StrCat("127.0.0.1:", ntohs(address.sin_port))};
  const auto client = Client::Connect(names, {.call_timeout = absl::Milliseconds(300)});
  ASSERT_TRUE(client.ok()) << client.status();
  ASSERT_TRUE((*client)->CreateRun("run", Config()).ok());
  const auto stream =
      (*client)->Append(kRun, Raw(), kVocabulary, {.ack_timeout = absl::Milliseconds(300)});
  std::set<std::string> lost;
  for (const Recorded& each : recorded_) {
    ASSERT_TRUE(stream->Block({each.id}, 0, 0, Rows(each)).ok());
    if (Placement(names).Replica("run", each.id) == 1) lost.insert(each.id);
  }
  const auto refused = stream->Finish();
  ASSERT_TRUE(refused.ok()) << refused.status();
  std::set<std::string> refused_ids;
  for (const RefusedEntry& entry : *refused) {
    refused_ids.insert(entry.sequence.id);
    // CreateRun has waited for it: the stream isn't even opened.
    EXPECT_FALSE(absl::StrContains(entry.status.message(), "no ack")) << entry.status;
  }
  EXPECT_EQ(refused_ids, lost);
  const auto evaluation = Evaluate(**client, Slices(), 0, {}, true);
  ASSERT_TRUE(evaluation.ok()) << evaluation.status();
  for (const v1::MissingRange& range : evaluation->missing) {
    EXPECT_EQ(range.reason(), v1::STORE_DOWN);
    EXPECT_TRUE(lost.contains(recorded_[range.slice()].id));
  }
  EXPECT_EQ(evaluation->missing.size(), lost.size());
  close(listener);
}

TEST_F(ReplicasTest, AReplicaThatIsStoppedCostsOneTimeoutAndComesBack) {
  const ServerProcess stopped({"--listen=127.0.0.1:0", "--cache_bytes=33554432"});
  const std::vector<std::string> names = {names_[0], stopped.address()};
  const auto client = Client::Connect(names, {.call_timeout = absl::Seconds(1)});
  ASSERT_TRUE(client.ok()) << client.status();
  ASSERT_TRUE((*client)->CreateRun("run", Config()).ok());
  ASSERT_TRUE(AppendAll(**client).empty());
  const auto missing = [&] {
    const auto evaluation = Evaluate(**client, Slices(), 0, {}, true);
    EXPECT_TRUE(evaluation.ok()) << evaluation.status();
    std::set<std::string> ids;
    for (const v1::MissingRange& range : evaluation->missing)
      ids.insert(recorded_[range.slice()].id);
    return ids;
  };
  std::set<std::string> share;
  for (const Recorded& each : recorded_) {
    if (Placement(names).Replica("run", each.id) == 1) share.insert(each.id);
  }
  const auto not_fetched = [&] {
    const auto records = (*client)->FetchTopK(kRun, Slices());
    EXPECT_TRUE(records.ok()) << records.status();
    std::set<std::string> ids;
    for (const v1::MissingRange& range : records->missing) ids.insert(recorded_[range.slice()].id);
    return ids;
  };
  EXPECT_EQ(missing(), std::set<std::string>());
  stopped.Signal(SIGSTOP);
  EXPECT_EQ(missing(), share);
  // If each of these waited for it, all together would take longer than a test may.
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(not_fetched(), share);
    EXPECT_EQ(missing(), share);
  }
  // Nothing else waits for it.
  for (const RefusedEntry& entry : AppendAll(**client)) {
    EXPECT_TRUE(absl::StrContains(entry.status.message(), "left alone for a while"))
        << entry.status;
    EXPECT_TRUE(share.contains(entry.sequence.id));
  }
  EXPECT_EQ(missing(), share);
  stopped.Signal(SIGCONT);
  while (!missing().empty()) absl::SleepFor(absl::Milliseconds(50));
}

TEST(OneServerTest, AServerThatRestartsInMemoryDoesNotEndTraining) {
  std::unique_ptr<LiveServer> server = Start("127.0.0.1:0");
  const std::string address = server->grpc_address();
  const auto client = Client::Connect(address);
  ASSERT_TRUE(client.ok());
  ASSERT_TRUE((*client)->CreateRun("run", Config(), 3).ok());
  ASSERT_TRUE((*client)->AdvanceVersion(kRun, 2).ok());
  const std::vector<int32_t> sampled = {1, 2}, ids(2 * kTopK, -1);
  const std::vector<float> log_probs = {-1, -2};
  const std::vector<float> slots(2 * kTopK, -std::numeric_limits<float>::infinity());
  const auto append = [&] {
    const auto stream = (*client)->Append(kRun, Raw(), kVocabulary);
    EXPECT_TRUE(stream->Block({"s"}, 0, 2, {sampled, log_probs, ids, slots}).ok());
    const auto refused = stream->Finish();
    EXPECT_TRUE(refused.ok() && refused->empty()) << refused.status();
  };
  append();
  const auto records =
      (*client)->FetchTopK(kRun, std::vector<Slice>{{{"s"}}}, {.lease = absl::Seconds(60)});
  ASSERT_TRUE(records.ok()) << records.status();
  Kill(server);
  EXPECT_TRUE(absl::IsUnavailable((*client)->GetRun("run").status()));
  server = Start(address);
  while (!(*client)->ListRuns().ok()) absl::SleepFor(absl::Milliseconds(50));
  const auto evaluation = (*client)->Evaluate(
      kRun, records->slices, GatheredValues{slots, log_probs}, {.lease_id = records->lease_id});
  ASSERT_TRUE(evaluation.ok()) << evaluation.status();
  ASSERT_EQ(evaluation->missing.size(), 1);
  EXPECT_EQ(evaluation->missing[0].reason(), v1::NEVER_ARRIVED);
  EXPECT_EQ((*client)->GetRun("run")->incarnation(), 3);
  EXPECT_EQ((*client)->GetRun("run")->policy_version(), 2);
  append();
  EXPECT_TRUE((*client)->FetchTopK(kRun, std::vector<Slice>{{{"s"}}})->missing.empty());
}

}  // namespace
}  // namespace sis
