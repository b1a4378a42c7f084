// Room for handed-over memory below the limits of made-up control groups.
#include "client/remote/handover_room.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "tests/testing/status_matchers.h"

namespace shardmesh::client {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

class MemoryGroupTest : public ::testing::Test {
 protected:
  MemoryGroupTest() : root_(::testing::TempDir() + "/handover_room") {
    std::filesystem::remove_all(root_);
  }
  ~MemoryGroupTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) const {
    const std::filesystem::path whole = root_ + path;
    std::filesystem::create_directories(whole.parent_path());
    std::ofstream(whole) << text << "\n";
  }

  const std::string root_;
};

TEST_F(MemoryGroupTest, WithoutGroupsOrLimitsThereIsNoLimit) {
  EXPECT_EQ(MemoryLeftInGroup(root_), std::nullopt);
  Write("/proc/self/cgroup", "no line of a group\n0::/pods/client");
  EXPECT_EQ(MemoryLeftInGroup(root_), std::nullopt) << "no such folders";
  Write("/sys/fs/cgroup/pods/client/memory.max", "max");
  Write("/sys/fs/cgroup/pods/client/memory.current", "1000");
  EXPECT_EQ(MemoryLeftInGroup(root_), std::nullopt);
}

TEST_F(MemoryGroupTest, TheGroupOrAncestorWithTheLeastLeftCounts) {
  Write("/proc/self/cgroup", "0::/pods/client");
  Write("/sys/fs/cgroup/pods/client/memory.max", "5000");
  Write("/sys/fs/cgroup/pods/client/memory.current", "1000");
  EXPECT_EQ(MemoryLeftInGroup(root_), 4000);
  Write("/sys/fs/cgroup/pods/memory.max", "9000");
  Write("/sys/fs/cgroup/pods/memory.current", "8000");
  EXPECT_EQ(MemoryLeftInGroup(root_), 1000) << "others of the pod have used it";
  // In a container, the group may be where the hierarchy begins.
  Write("/sys/fs/cgroup/memory.max", "700");
  Write("/sys/fs/cgroup/memory.current", "100");
  EXPECT_EQ(MemoryLeftInGroup(root_), 600);
  Write("/sys/fs/cgroup/memory.current", "800");
  EXPECT_EQ(MemoryLeftInGroup(root_), 0) << "a limit that was lowered";
}

// Else nobody who has just read a large file would hand anything over.
TEST_F(MemoryGroupTest, PagesOfFilesThatTheKernelCanDropAreLeft) {
  Write("/proc/self/cgroup", "0::/");
  Write("/sys/fs/cgroup/memory.max", "5000");
  Write("/sys/fs/cgroup/memory.current", "4900");
  Write("/sys/fs/cgroup/memory.stat", "anon 500\nactive_file 400\ninactive_file 3900\nshmem 100");
  EXPECT_EQ(MemoryLeftInGroup(root_), 4000);
}

TEST_F(MemoryGroupTest, VersionOneHasAHierarchyForMemory) {
  Write("/proc/self/cgroup", "4:cpu,cpuacct:/docker/abc\n7:hugetlb,memory:/docker/abc\n0::/");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");
  Write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "100");
  EXPECT_EQ(MemoryLeftInGroup(root_), std::nullopt);
  Write("/sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "5000");
  Write("/sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes", "3000");
  Write("/sys/fs/cgroup/memory/docker/abc/memory.stat", "inactive_file 1\ntotal_inactive_file 500");
  EXPECT_EQ(MemoryLeftInGroup(root_), 2500);
}

TEST(HandoverRoomTest, IsHalfOfWhatIsLeftForAllTilesTogether) {
  HandoverRoom room(1001);
  EXPECT_THAT(room.Take(300), IsOk());
  EXPECT_THAT(room.Take(200), IsOk());
  EXPECT_THAT(room.refusal(), IsOk());
  const absl::Status refused = room.Take(1);
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(refused.ToString(), AllOf(HasSubstr("500"), HasSubstr("1001"), HasSubstr("limit")));
  room.GiveBack(200);
  EXPECT_THAT(room.Take(200), IsOk());
  EXPECT_EQ(room.refusal(), refused) << "a put tells of it at its end";
}

TEST(HandoverRoomTest, HasNoEndWithoutALimitAndIsNoneWhereNothingIsLeft) {
  HandoverRoom room(std::nullopt);
  EXPECT_THAT(room.Take(int64_t{1} << 50), IsOk());
  HandoverRoom none(0);
  EXPECT_FALSE(none.Take(1).ok());
}

}  // namespace
}  // namespace shardmesh::client
