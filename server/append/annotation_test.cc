#include "server/append/annotation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "server/append/ingest_fixture.h"

namespace sis {
namespace {

using absl::StatusCode;
using testing::HasSubstr;

class AnnotationTest : public IngestTest {};

// Each seal's fields replace earlier ones, and are charged. An invalid field changes nothing.
TEST_F(AnnotationTest, AreCheckedAndAdded) {
  const int64_t nothing = run_->budget().used();
  ASSERT_EQ(Block(records_.Block("a")).code(), 0);
  const auto annotated = [&](const auto& set) {
    v1::AppendEntry entry = SealEntry("a", 12);
    set(*entry.mutable_seal()->mutable_annotation());
    return Entry(entry);
  };
  const auto kept = [&] {
    const Run::Found found = run_->Find({"a", 0});
    v1::Annotation annotation;
    EXPECT_TRUE(annotation.ParseFromString(std::get<0>(found)->annotation()));
    return annotation;
  };
  for (const double reward : {std::nan(""), HUGE_VAL}) {
    EXPECT_THAT(annotated([&](v1::Annotation& it) { it.set_reward(reward); }).message(),
                HasSubstr("seal.annotation.reward"));
  }
  const std::string long_text((64 << 10) + 1, 'x');
  EXPECT_THAT(annotated([&](v1::Annotation& it) { it.set_prompt(long_text); }).message(),
              HasSubstr("seal.annotation.prompt: 65537 bytes, more than 65536"));
  EXPECT_THAT(annotated([&](v1::Annotation& it) { it.set_text(long_text); }).message(),
              HasSubstr("seal.annotation.text"));
  const std::string long_group = long_text.substr(0, 257);
  EXPECT_THAT(annotated([&](v1::Annotation& it) { it.set_group(long_group); }).message(),
              HasSubstr("seal.annotation.group: 257"));
  EXPECT_EQ(run_->Describe().sealed_sequences, 0);
  ASSERT_EQ(Entry(SealEntry("a", 12)).code(), 0);
  const int64_t plain = run_->budget().used();

  EXPECT_EQ(annotated([](v1::Annotation& it) { it.set_prompt("2 + 2 ="); }).code(), 0);
  EXPECT_EQ(annotated([](v1::Annotation& it) { it.set_reward(0.5); }).code(), 0);
  EXPECT_EQ(annotated([](v1::Annotation& it) { it.set_reward(1.0); }).code(), 0);
  EXPECT_EQ(Entry(SealEntry("a", 12)).code(), 0);
  EXPECT_EQ(kept().prompt(), "2 + 2 =");
  EXPECT_EQ(kept().reward(), 1.0);
  EXPECT_EQ(run_->budget().used() - plain, Sequence::AnnotationBytes(kept().SerializeAsString()));
  EXPECT_EQ(CodeOf(Entry(SealEntry("a", 13))), StatusCode::kFailedPrecondition);
  run_->Release({"a", 0});
  EXPECT_EQ(run_->budget().used(), nothing);
}

TEST_F(AnnotationTest, MakesRoomForItself) {
  Cache cache(2 * Sequence::kBaseBytes + ChargeOf(records_));
  v1::RunConfig config = SmallConfig(kSlots);
  config.set_evict_unread(true);
  const auto run = cache.CreateRun("r", config);
  ASSERT_EQ(AppendBlock(cache, *run, records_.Block("a")).code(), 0);
  const int64_t base = run->BaseBytes({"b", 0});
  const auto room = static_cast<size_t>(cache.registry.budget().limit() - base);
  const auto seal = [&](size_t text_bytes) {
    v1::AppendEntry entry = SealEntry("b", 0);
    entry.mutable_seal()->mutable_annotation()->set_text(std::string(text_bytes, 'x'));
    return IngestEntry(cache, *run, std::move(entry));
  };
  const auto expect_kept = [&](size_t text_bytes) {
    const Run::Found found = run->Find({"b", 0});
    v1::Annotation annotation;
    ASSERT_TRUE(annotation.ParseFromString(std::get<0>(found)->annotation()));
    EXPECT_EQ(annotation.text().size(), text_bytes);
    EXPECT_EQ(cache.registry.budget().used(),
              base + Sequence::AnnotationBytes(std::get<0>(found)->annotation()));
  };
  EXPECT_EQ(seal(room * 2 / 3).code(), 0);
  EXPECT_EQ(run->CommittedLength({"a", 0}), 0) << "evicted for it";
  expect_kept(room * 2 / 3);
  EXPECT_EQ(seal(room * 4 / 5).code(), 0) << "in the place of the other";
  expect_kept(room * 4 / 5);
  EXPECT_EQ(CodeOf(seal(room)), StatusCode::kResourceExhausted);
  expect_kept(room * 4 / 5);
  EXPECT_EQ(seal(1).code(), 0);
  expect_kept(1);
  run->Release({"b", 0});
  EXPECT_EQ(cache.registry.budget().used(), 0);
}

}  // namespace
}  // namespace sis
