// Tests of status/nearest_name.h.
#include "status/nearest_name.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace shardmesh {
namespace {

TEST(EditDistanceTest, CountsEdits) {
  EXPECT_EQ(EditDistance("", ""), 0);
  EXPECT_EQ(EditDistance("", "abc"), 3);
  EXPECT_EQ(EditDistance("abc", ""), 3);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3);
  EXPECT_EQ(EditDistance("ab", "ba"), 1);
  EXPECT_EQ(EditDistance(std::string(1000, 'x'), std::string(300, 'x')), 0);
}

TEST(NearestNameTest, FindsWhatWasProbablyMeant) {
  const std::vector<std::string_view> known = {"__BATCH__", "__HEAD__", "__EMBED__", "tp"};
  EXPECT_EQ(NearestName("__BATHC__", known), "__BATCH__");
  EXPECT_EQ(NearestName("__head__", known), "__HEAD__");
  EXPECT_EQ(NearestName("tpp", known), "tp");
  EXPECT_EQ(NearestName("something else", known), std::nullopt);
  EXPECT_EQ(NearestName("x", {}), std::nullopt);
}

TEST(NearestNameTest, ALongNameIsNotNearToEachOther) {
  const std::string x(1'000, 'x');
  const std::string y(1'000, 'y');
  EXPECT_EQ(NearestName(x, {"tp", "embed", y}), std::nullopt);
  EXPECT_EQ(NearestName("tp", {x}), std::nullopt);
  const std::string almost = "y" + x.substr(1);
  EXPECT_EQ(NearestName(x, {"tp", almost, y}), almost);
}

TEST(NearestNameTest, EndsASentence) {
  EXPECT_EQ(DidYouMean("pt", {"tp", "dp"}), "; did you mean \"tp\"?");
  EXPECT_EQ(DidYouMean("sequence", {"tp", "dp"}), "");
}

TEST(NeighboursTest, AreThoseNextToTheNameAndNoMoreThanCanBeComparedSoon) {
  std::map<std::string, int, std::less<>> names;
  for (int i = 0; i < 5'000; ++i) names["n" + std::to_string(10'000 + i)] = i;
  const std::vector<std::string> near = NeighboursOf("n12345x", names);
  EXPECT_EQ(near.size(), 1'000u);
  EXPECT_EQ(*std::min_element(near.begin(), near.end()), "n11846");
  EXPECT_EQ(*std::max_element(near.begin(), near.end()), "n12845");
  EXPECT_EQ(NeighboursOf("a", names).size(), 1'000u) << "where all are on one side";
  // Of long names on one side as many as half a million pairs of bytes are of.
  names.clear();
  for (int i = 0; i < 100; ++i) names[std::to_string(100 + i) + std::string(996, 'x')] = i;
  EXPECT_EQ(NeighboursOf(std::string(511, 'z'), names).size(), 1u);
  EXPECT_TRUE(NeighboursOf(std::string(1'023, 'z'), names).empty());
  EXPECT_TRUE(NeighboursOf("x", std::map<std::string, int, std::less<>>()).empty());
}

}  // namespace
}  // namespace shardmesh
