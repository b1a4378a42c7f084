// Insertion and lookup of names, those that hash alike included.
#include "status/name_table.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "status/str_cat.h"

namespace shardmesh {
namespace {

TEST(NameTableTest, FindsWhatWasInsertedAndNothingElse) {
  NameTable<int64_t> table;
  EXPECT_EQ(table.Find(""), nullptr);
  EXPECT_TRUE(table.Insert("", 1));
  EXPECT_TRUE(table.Insert("tp", 2));
  EXPECT_TRUE(table.Insert("__BATCH__", 3));
  ASSERT_NE(table.Find(""), nullptr);
  EXPECT_EQ(*table.Find(""), 1);
  EXPECT_EQ(*table.Find("tp"), 2);
  EXPECT_EQ(*table.Find("__BATCH__"), 3);
  for (const char* absent : {"t", "tpx", "__BATCH_", "__BATCH___", "_"}) {
    EXPECT_EQ(table.Find(absent), nullptr) << absent;
  }
}

TEST(NameTableTest, RefusesANameTwice) {
  NameTable<int64_t> table;
  EXPECT_TRUE(table.Insert("tp", 1));
  EXPECT_FALSE(table.Insert("tp", 2));
  EXPECT_EQ(*table.Find("tp"), 1);
}

TEST(NameTableTest, KeepsApartNamesThatHashAlike) {
  NameTable<int64_t> table;
  for (int64_t i = 100; i < 400; ++i) {
    ASSERT_TRUE(table.Insert(StrCat("the same head, ", i, ", the same tail"), i));
  }
  for (int64_t i = 100; i < 400; ++i) {
    const int64_t* found = table.Find(StrCat("the same head, ", i, ", the same tail"));
    ASSERT_NE(found, nullptr);
    EXPECT_EQ(*found, i);
  }
  EXPECT_EQ(table.Find("the same head, 400, the same tail"), nullptr);
}

TEST(NameTableTest, GrowsWithItsNames) {
  NameTable<int64_t> table;
  for (int64_t i = 0; i < 1000; ++i) ASSERT_TRUE(table.Insert(StrCat("axis", i), i));
  for (int64_t i = 0; i < 1000; ++i) EXPECT_EQ(*table.Find(StrCat("axis", i)), i);
}

}  // namespace
}  // namespace shardmesh
