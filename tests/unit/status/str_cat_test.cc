// Tests of status/str_cat.h.
#include "status/str_cat.h"

#include <gtest/gtest.h>

#include <vector>

namespace shardmesh {
namespace {

TEST(StrCatTest, TakesBothKindsOfView) {
  const std::string_view standard = "a";
  const absl::string_view abseil = "b";
  EXPECT_EQ(StrCat(standard, abseil, std::string("c"), "d", 5, 2.5), "abcd52.5");
  std::string out = "x";
  StrAppend(&out, standard, 1);
  EXPECT_EQ(out, "xa1");
  EXPECT_EQ(ToStd(ToAbsl(standard)), standard);
}

TEST(StrJoinTest, JoinsViewsAndFormattedElements) {
  EXPECT_EQ(StrJoin(std::vector<std::string_view>{"a", "b"}, ", "), "a, b");
  EXPECT_EQ(StrJoin(std::vector<int>{1, 2}, "",
                    [](std::string* out, int n) { StrAppend(out, "<", n, ">"); }),
            "<1><2>");
}

}  // namespace
}  // namespace shardmesh
