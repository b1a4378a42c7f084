// Origins of arrays: which differences make them others, and files that may change unseen.
#include "tensor/array_origin.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tensor/source_file.h"

namespace shardmesh {
namespace {

SourceFile File() {
  return {.path = "/models/a",
          .size_bytes = 1'000,
          .modify_time = absl::FromUnixSeconds(5),
          .head_sha256 = std::string(32, 'h'),
          .head_bytes = 8,
          .change_time = absl::FromUnixSeconds(6),
          .inode = 17};
}

TEST(ArrayOriginTest, EveryPartOfTheIdentityMakesAnotherKey) {
  struct Origin {
    SourceFile file = File();
    int64_t offset_bytes = 64;
    std::string conversion = {};
    Dtype dtype = Dtype::kF32;
    Shape shape = {8, 4};
  };
  const auto key = [](const Origin& from) {
    return OriginKey({.file = std::make_shared<const SourceFile>(from.file),
                      .offset_bytes = from.offset_bytes,
                      .conversion = from.conversion},
                     from.dtype, from.shape);
  };
  const std::vector<std::function<void(Origin&)>> changes = {
      [](Origin&) {},
      [](Origin& o) { o.file.path = "/models/b"; },
      [](Origin& o) { o.file.size_bytes = 1'001; },
      [](Origin& o) { o.file.modify_time += absl::Nanoseconds(1); },
      [](Origin& o) { o.file.change_time += absl::Nanoseconds(1); },
      [](Origin& o) { o.file.inode = 18; },
      [](Origin& o) { o.file.head_sha256[31] = 'i'; },
      [](Origin& o) { o.file.head_bytes = 9; },
      [](Origin& o) { o.offset_bytes = 65; },
      [](Origin& o) { o.conversion = "1"; },
      [](Origin& o) { o.conversion = "1/"; },
      [](Origin& o) {  // the same bytes in a row, cut elsewhere
        o.conversion = "1/models";
        o.file.path = "/a";
      },
      [](Origin& o) { o.dtype = Dtype::kI32; },
      [](Origin& o) {
        o.shape = {4, 8};
      },
      [](Origin& o) { o.shape = {32}; },
  };
  std::set<std::string> keys;
  for (size_t i = 0; i < changes.size(); ++i) {
    Origin origin;
    changes[i](origin);
    EXPECT_EQ(key(origin).size(), 32u);
    EXPECT_EQ(key(origin), key(origin));
    EXPECT_TRUE(keys.insert(key(origin)).second) << "change " << i;
  }
}

TEST(ArrayOriginTest, AFileThatMayHaveChangedUnseenHasNoKey) {
  SourceFile file = File();
  file.change_time = absl::InfinitePast();
  EXPECT_EQ(OriginKey({.file = std::make_shared<const SourceFile>(file)}, Dtype::kF32, {8}), "");
  EXPECT_EQ(OriginKey({}, Dtype::kF32, {8}), "");
}

TEST(ArrayOriginTest, AFileMayChangeUnseenWithinAStepOfItsFileSystemsClock) {
  const absl::Time whole = absl::FromUnixSeconds(1'000);
  const absl::Time fine = whole + absl::Nanoseconds(123'456'789);
  struct Case {
    absl::Time changed;
    absl::Duration age;
    bool expected;
  };
  for (const Case& each :
       {Case{fine, absl::ZeroDuration(), true}, Case{fine, absl::Milliseconds(49), true},
        Case{fine, absl::Milliseconds(50), false}, Case{fine, absl::Hours(1), false},
        Case{fine, -absl::Hours(1), true},  // a time in the future
        Case{whole, absl::Milliseconds(50), true}, Case{whole, absl::Milliseconds(1'999), true},
        Case{whole, absl::Seconds(2), false}}) {
    EXPECT_EQ(MayChangeUnseen(each.changed, each.changed + each.age), each.expected)
        << each.changed << " " << each.age;
  }
}

}  // namespace
}  // namespace shardmesh
