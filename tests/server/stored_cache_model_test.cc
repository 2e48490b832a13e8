// The cache in front of a store that fails now and then, beside the plainest model of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/store/stored_cache.h"
#include "server/testing/record_generator.h"
#include "tests/server/store_fleet.h"

namespace sis {
namespace {

// What a sequence should be, in the plainest form.
struct Model {
  static constexpr uint32_t kLength = 60;
  static constexpr int kVariants = 2;  // what a position may hold, each its own row

  std::vector<int> variants = std::vector<int>(kLength, -1);
  std::optional<uint32_t> sealed;
  v1::Annotation annotation;
  bool released = false;

  uint32_t committed() const {
    uint32_t length = kLength;
    while (length > 0 && variants[length - 1] < 0) --length;
    return length;
  }
  absl::StatusCode Append(uint32_t first, uint32_t count, int variant) {
    if (released || (sealed.has_value() && first + count > *sealed)) {
      return absl::StatusCode::kFailedPrecondition;
    }
    for (uint32_t p = first; p < first + count; ++p) {
      if (variants[p] >= 0 && variants[p] != variant) return absl::StatusCode::kAlreadyExists;
    }
    std::fill_n(variants.begin() + first, count, variant);
    return absl::StatusCode::kOk;
  }
  absl::StatusCode Truncate(uint32_t length) {
    if (released || sealed.has_value()) return absl::StatusCode::kFailedPrecondition;
    std::fill(variants.begin() + length, variants.end(), -1);
    return absl::StatusCode::kOk;
  }
  absl::StatusCode Seal(uint32_t length) {
    const bool other = sealed.has_value() ? *sealed != length : length < committed();
    if (released || other) return absl::StatusCode::kFailedPrecondition;
    sealed = length;
    return absl::StatusCode::kOk;
  }
};

// Any replica, any order, any fault, any restart: what is acked is what the model says, and what is
// read is what was acked.
class ModelTest : public ::testing::TestWithParam<uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Replicas, ModelTest, ::testing::Values(1, 2));

TEST_P(ModelTest, ReplicasAgreeWithIt) {
  const uint32_t count_of_replicas = GetParam();
  constexpr int kOperations = 10000;
  constexpr int kSequences = 6;
  Fleet fleet;
  fleet.shared = count_of_replicas > 1;
  RecordGenerator random(kSlots, 1000, 4);
  const Records records = random.NextRecords(Model::kLength * Model::kVariants);
  std::vector<std::unique_ptr<FleetReplica>> replicas;
  for (uint32_t r = 0; r < count_of_replicas; ++r) {
    replicas.push_back(std::make_unique<FleetReplica>(fleet));
  }
  std::vector<Model> models(kSequences);
  std::vector<int> generation(kSequences, 0);
  int annotated = 0;

  for (int n = 0; n < kOperations; ++n) {
    const uint32_t s = random.Uniform(0, kSequences - 1);
    Model& model = models[s];
    const std::string id = absl::StrCat("sequence ", s, " of ", generation[s]);
    Replica& replica = *replicas[random.Uniform(0, count_of_replicas - 1)];
    const uint32_t first = random.Uniform(0, Model::kLength - 1);
    const uint32_t count = random.Uniform(1, Model::kLength - first);
    v1::AppendEntry entry;
    absl::StatusCode expected = absl::StatusCode::kOk;
    const uint32_t dice = random.Uniform(0, 99);
    if (dice < 50) {
      const int variant = random.Uniform(0, 9) == 0 ? 1 : 0;
      const uint32_t rows = std::min<uint32_t>(count, 6);
      *entry.mutable_block() = records.Block(id, first, 0, first + variant * Model::kLength, rows);
      expected = model.Append(first, rows, variant);
    } else if (dice < 55) {
      entry.mutable_truncate()->mutable_sequence()->set_id(id);
      entry.mutable_truncate()->set_length(first);
      expected = model.Truncate(first);
    } else if (dice < 57) {
      entry.mutable_seal()->mutable_sequence()->set_id(id);
      entry.mutable_seal()->set_length(first);
      v1::Annotation& annotation = *entry.mutable_seal()->mutable_annotation();
      if (n % 3 == 0) annotation.set_reward(n);
      if (n % 3 == 1) annotation.set_text(absl::StrCat("text ", n));
      expected = model.Seal(first);
      if (expected == absl::StatusCode::kOk) model.annotation.MergeFrom(annotation);
    } else if (dice < 75) {
      const Run::Found found = replica.stored().Find(replica.run(), {id, 0}, first, count, {});
      for (uint32_t p = first; p < first + count; ++p) {
        const int variant = model.variants[p];
        ASSERT_EQ(DigestAt(found, p, 1),
                  variant < 0 ? 0 : DigestOf(records, p + variant * Model::kLength, p))
            << id << " position " << p << " operation " << n;
      }
      // Of several replicas one reads again what it lacks, which an annotation isn't.
      const auto* held = std::get_if<std::shared_ptr<Sequence>>(&found);
      if (held != nullptr && count_of_replicas == 1) {
        ASSERT_EQ((*held)->annotation(), model.annotation.SerializeAsString()) << id;
        annotated += !(*held)->annotation().empty();
      }
      continue;
    } else if (dice < 90) {
      replica.run().EvictOldest();
      continue;
    } else if (dice < 92) {
      std::unique_ptr<FleetReplica>& restarted = replicas[random.Uniform(0, count_of_replicas - 1)];
      restarted.reset();
      restarted = std::make_unique<FleetReplica>(fleet);
      continue;
    } else if (dice < 93) {
      // Released for good; others come in its place.
      const Run::Found before = replica.Find(id);
      for (const auto& each : replicas) ASSERT_TRUE(each->Release({id}).ok());
      for (const auto& each : replicas) {
        if (!std::holds_alternative<std::shared_ptr<Sequence>>(before)) continue;
        EXPECT_EQ(each->Find(id), kGone);
      }
      model = Model();
      ++generation[s];
      continue;
    } else {
      continue;
    }

    const uint32_t fault = random.Uniform(0, 9);
    if (fault == 0) fleet.fault = Fault::kDown;
    if (fault == 1) fleet.fault = Fault::kAnswersLost;
    absl::StatusCode code = CodeOf(replica.Append(entry));
    fleet.fault = Fault::kNone;
    for (int again = 0; again < 3 && code == absl::StatusCode::kUnavailable; ++again) {
      code = CodeOf(replica.Append(entry));
    }
    ASSERT_EQ(code, expected) << entry.ShortDebugString().substr(0, 80) << " operation " << n;
  }
  EXPECT_TRUE(count_of_replicas > 1 || annotated > 100) << annotated;
}

}  // namespace
}  // namespace sis
