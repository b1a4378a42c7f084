// The bounded cache: use, limits, and what it forgets.
#include "status/lru_cache.h"

#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shardmesh {
namespace {

using ::testing::IsEmpty;
using ::testing::IsNull;
using ::testing::Pointee;
using ::testing::SizeIs;

using Cache = LruCache<std::string, int>;

TEST(LruCacheTest, ForgetsTheEntryThatWasNotUsedForTheLongestTime) {
  Cache cache({.entries = 2});
  Cache::Forgotten forgotten;
  cache.Add("a", 1, &forgotten);
  cache.Add("b", 2, &forgotten);
  EXPECT_THAT(cache.Find("a"), Pointee(1));
  cache.Add("c", 3, &forgotten);
  EXPECT_THAT(cache.Find("b"), IsNull());
  EXPECT_THAT(cache.Find("a"), Pointee(1));
  EXPECT_THAT(cache.Find("c"), Pointee(3));
  EXPECT_THAT(forgotten, SizeIs(1));
  EXPECT_EQ(forgotten.front().value, 2);
}

TEST(LruCacheTest, TheFirstValueOfAKeyStays) {
  Cache cache({.entries = 2});
  Cache::Forgotten forgotten;
  EXPECT_EQ(cache.Add("a", 1, &forgotten), 1);
  EXPECT_EQ(cache.Add("a", 2, &forgotten), 1);
  EXPECT_EQ(cache.size(), 1u);
  EXPECT_THAT(forgotten, IsEmpty());
}

TEST(LruCacheTest, AddingAKnownKeyUsesIt) {
  Cache cache({.entries = 2});
  Cache::Forgotten forgotten;
  cache.Add("a", 1, &forgotten);
  cache.Add("b", 2, &forgotten);
  cache.Add("a", 1, &forgotten);
  cache.Add("c", 3, &forgotten);
  EXPECT_THAT(cache.Find("b"), IsNull());
}

TEST(LruCacheTest, AHeavyEntryDrivesOutOthersAndStays) {
  Cache cache({.weight = 10});
  Cache::Forgotten forgotten;
  cache.Add("a", 1, &forgotten, 4);
  cache.Add("b", 2, &forgotten, 6);
  EXPECT_EQ(cache.size(), 2u);
  cache.Add("c", 3, &forgotten, 11);
  EXPECT_EQ(cache.size(), 1u);
  EXPECT_THAT(cache.Find("c"), Pointee(3));
  EXPECT_THAT(forgotten, SizeIs(2));
  cache.Add("d", 4, &forgotten, 10);
  EXPECT_THAT(cache.Find("c"), IsNull());
  EXPECT_THAT(cache.Find("d"), Pointee(4));
}

TEST(LruCacheTest, TheCallerCanForgetTheOldest) {
  Cache cache({});
  Cache::Forgotten forgotten;
  cache.Add("a", 1, &forgotten, 4);
  cache.Add("b", 2, &forgotten, 6);
  cache.Find("a");
  EXPECT_EQ(cache.weight(), 10u);
  EXPECT_EQ(cache.ForgetOldest(), 2);
  EXPECT_EQ(cache.weight(), 4u);
  EXPECT_THAT(cache.Find("b"), IsNull());
  EXPECT_EQ(cache.ForgetOldest(), 1);
  EXPECT_EQ(cache.size(), 0u);
}

TEST(LruCacheTest, TheCallerDestroysForgottenValues) {
  LruCache<int, std::shared_ptr<int>> cache({.entries = 1});
  auto value = std::make_shared<int>(1);
  {
    LruCache<int, std::shared_ptr<int>>::Forgotten forgotten;
    cache.Add(1, value, &forgotten);
    cache.Add(2, nullptr, &forgotten);
    EXPECT_EQ(value.use_count(), 2);
  }
  EXPECT_EQ(value.use_count(), 1);
}

}  // namespace
}  // namespace shardmesh
