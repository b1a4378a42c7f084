// Commands are parted into words as a shell does.
#include "client/cli/shell_words.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace shardmesh::client {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(ShellWordsTest, PartsAtBlanksAndKeepsQuotedOnes) {
  EXPECT_THAT(ShellWords("a  b 'c d' \"e '\"f ''"), ElementsAre("a", "b", "c d", "e 'f", ""));
  EXPECT_THAT(ShellWords("  "), IsEmpty());
}

}  // namespace
}  // namespace shardmesh::client
