// Numbers of bytes in texts.
#include "status/byte_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

namespace shardmesh {
namespace {

using ::testing::Pair;

TEST(ByteTextTest, WritesThreeDigitsAndAUnit) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(-5), "-5 B");
  EXPECT_EQ(FormatBytes(-614400), "-600 KiB");
  EXPECT_EQ(FormatBytes(std::numeric_limits<int64_t>::min()), "-9223372036854775808 B");
  EXPECT_EQ(FormatBytes(1 << 30), "1.00 GiB");
  EXPECT_EQ(FormatThreeDigits(12.34), "12.3");
}

TEST(ByteTextTest, TellsTwoNumbersApartThatRoundToTheSameText) {
  EXPECT_THAT(FormatBytesApart(1 << 20, 2 << 20), Pair("1.00 MiB", "2.00 MiB"));
  EXPECT_THAT(FormatBytesApart(1 << 20, (1 << 20) + 1), Pair("1048576 B", "1048577 B"));
  EXPECT_THAT(FormatBytesApart(1 << 20, 1 << 20), Pair("1.00 MiB", "1.00 MiB"));
}

}  // namespace
}  // namespace shardmesh
