// Tests of status/str_cat.h.
#include "status/str_cat.h"

#include <gtest/gtest.h>

#include <set>
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

TEST(StrJoinFirstTest, CountsTheElementsThatItLeavesOut) {
  const std::vector<std::string_view> names = {"a", "b", "c"};
  EXPECT_EQ(StrJoinFirst(3, names, ", "), "a, b, c");
  EXPECT_EQ(StrJoinFirst(2, names, ", "), "a, b and 1 more");
  EXPECT_EQ(StrJoinFirst(2, std::set<int>{1, 2, 3, 4}, ",",
                         [](std::string* out, int n) { StrAppend(out, "<", n, ">"); }),
            "<1>,<2> and 2 more");
  EXPECT_EQ(StrJoinFirst(2, std::vector<int>(), ", "), "");
}

}  // namespace
}  // namespace shardmesh
