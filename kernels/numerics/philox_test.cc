#include "kernels/numerics/philox.h"

#include <cstdint>

#include "gtest/gtest.h"

namespace sis {
namespace {

void ExpectWords(const PhiloxBlock& block, uint32_t w0, uint32_t w1, uint32_t w2, uint32_t w3) {
  EXPECT_EQ(block.word[0], w0);
  EXPECT_EQ(block.word[1], w1);
  EXPECT_EQ(block.word[2], w2);
  EXPECT_EQ(block.word[3], w3);
}

// The known answers for philox4x32-10 that its authors publish with Random123 (kat_vectors).
TEST(PhiloxTest, GivesThePublishedAnswers) {
  ExpectWords(Philox4x32({{0, 0, 0, 0}}, 0, 0), 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8);
  ExpectWords(Philox4x32({{~0u, ~0u, ~0u, ~0u}}, ~0u, ~0u), 0x408f276d, 0x41c83b0e, 0xa20bc7c6,
              0x6d5451fd);
  ExpectWords(
      Philox4x32({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0),
      0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1);
}

TEST(PhiloxTest, AcceptanceUniformsPlaceKeyQuadDrawAndDomainAsDocumented) {
  const PhiloxBlock expected =
      Philox4x32({{0x3fffffff, 0x55667788, 0x11223344, 1}}, 0xddeeff00, 0x99aabbcc);
  const PhiloxBlock block = AcceptanceUniforms(0x99aabbccddeeff00, 0x3fffffff, 0x1122334455667788);
  ExpectWords(block, expected.word[0], expected.word[1], expected.word[2], expected.word[3]);
}

}  // namespace
}  // namespace sis
