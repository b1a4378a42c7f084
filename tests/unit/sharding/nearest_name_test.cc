// Tests of sharding/nearest_name.h.
#include "sharding/nearest_name.h"

#include <gtest/gtest.h>

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

TEST(NearestNameTest, EndsASentence) {
  EXPECT_EQ(DidYouMean("pt", {"tp", "dp"}), "; did you mean \"tp\"?");
  EXPECT_EQ(DidYouMean("sequence", {"tp", "dp"}), "");
}

}  // namespace
}  // namespace shardmesh
