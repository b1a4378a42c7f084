// CRC-32C against published answers, and its arithmetic against itself.
#include "process/crc32c.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace shardmesh {
namespace {

TEST(Crc32cTest, GivesThePublishedAnswers) {
  // RFC 3720, appendix B.4, and the usual check value.
  EXPECT_EQ(Crc32c({}), 0u);
  EXPECT_EQ(Crc32c(std::string_view("123456789")), 0xE3069283u);
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(Crc32c(std::string(32, '\xFF')), 0x62A8AB43u);
  std::string rising;
  for (char c = 0; c < 32; ++c) {
    rising.push_back(c);
  }
  EXPECT_EQ(Crc32c(rising), 0x46DD794Eu);
}

TEST(Crc32cTest, PiecesGiveTheChecksumOfTheWhole) {
  std::string text;
  for (int i = 0; i < 5000; ++i) {
    text.push_back(static_cast<char>(i * 37 >> 3));
  }
  const uint32_t whole = Crc32c(text);
  for (const size_t cut :
       {size_t{0}, size_t{1}, size_t{7}, size_t{64}, size_t{4097}, text.size()}) {
    const auto a = absl::MakeConstSpan(text).first(cut);
    const auto b = absl::MakeConstSpan(text).subspan(cut);
    EXPECT_EQ(ExtendCrc32c(Crc32c(a), b), whole) << cut;
    EXPECT_EQ(ConcatCrc32c(Crc32c(a), Crc32c(b), static_cast<int64_t>(b.size())), whole) << cut;
  }
}

}  // namespace
}  // namespace shardmesh
