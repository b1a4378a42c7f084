// HostShare over made-up control groups of both versions.
#include "worker/kernel/host_share.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/testing/status_matchers.h"

namespace shardmesh::worker {
namespace {

class HostShareTest : public testing::Test {
 protected:
  HostShareTest() : root_(testing::TempDir() + "/host_share") {
    std::filesystem::remove_all(root_);
  }
  ~HostShareTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) const {
    const std::filesystem::path whole = root_ + path;
    std::filesystem::create_directories(whole.parent_path());
    std::ofstream(whole) << text << "\n";
  }

  const std::string root_;
};

TEST_F(HostShareTest, WithoutControlGroupsThereAreTheCores) {
  const HostShare share = HostShare::Read(root_, 8);
  EXPECT_EQ(share.Threads(), 8);
  EXPECT_FALSE(share.quota_cores.has_value());
  EXPECT_FALSE(share.memory_bytes.has_value());
}

TEST_F(HostShareTest, TheTightestLimitOfAGroupAndThoseAboveItCounts) {
  Write("/proc/self/cgroup", "0::/pods/worker");
  Write("/sys/fs/cgroup/pods/worker/cpu.max", "max 100000");
  Write("/sys/fs/cgroup/pods/worker/memory.max", "1073741824");
  Write("/sys/fs/cgroup/pods/cpu.max", "250000 100000");
  Write("/sys/fs/cgroup/pods/memory.max", "max");
  const HostShare share = HostShare::Read(root_, 8);
  EXPECT_EQ(share.quota_cores, 2.5);
  EXPECT_EQ(share.Threads(), 2);
  EXPECT_EQ(share.memory_bytes, 1'073'741'824);
  EXPECT_EQ(HostShare::Read(root_, 1).Threads(), 1);
}

TEST_F(HostShareTest, VersionOneHasAHierarchyForEachController) {
  Write("/proc/self/cgroup", "4:cpu,cpuacct:/docker/abc\n7:memory:/docker/abc\n0::/");
  // The path is the host's; in the container the group is where the hierarchy begins.
  Write("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000");
  Write("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");
  const HostShare share = HostShare::Read(root_, 8);
  EXPECT_EQ(share.quota_cores, 0.5);
  EXPECT_EQ(share.Threads(), 1) << "at least one";
  EXPECT_FALSE(share.memory_bytes.has_value()) << "no limit";
}

TEST(MisfitsTest, SayWhatIsAskedForAndWhatThereIs) {
  using ::testing::ElementsAre;
  using ::testing::HasSubstr;
  using ::testing::IsEmpty;
  const HostShare free = {.cores = 4};
  EXPECT_THAT(free.MisfitsOf(int64_t{1} << 60, 4), IsEmpty());
  EXPECT_THAT(free.MisfitsOf(1, 5), ElementsAre("5 threads for kernels, 4 cores"));
  const HostShare pod = {.cores = 4, .quota_cores = 2.5, .memory_bytes = 1000};
  EXPECT_THAT(pod.MisfitsOf(1000, 2), IsEmpty());
  EXPECT_THAT(pod.MisfitsOf(1001, 3),
              ElementsAre("--memory is 1001 bytes, the memory limit of its control group 1000",
                          "3 threads for kernels, a quota of 2.50 cores"));
  EXPECT_THAT(pod.MisfitsOf(1000, 5), ElementsAre(HasSubstr("4 cores"), HasSubstr("quota")));
  // One thread is the least that there is.
  const HostShare small = {.cores = 4, .quota_cores = 0.5};
  EXPECT_THAT(small.MisfitsOf(1, 1), IsEmpty());
}

TEST(HostPartTest, IsSaidAsIndexAndCount) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const HostPart part, HostPart::Parse("2/8"));
  EXPECT_EQ(part.index, 2);
  EXPECT_EQ(part.Threads({.cores = 64}), 8);
  EXPECT_EQ(part.Threads({.cores = 4}), 1);
  for (const char* wrong : {"", "2", "8/8", "-1/4", "0/0", "a/b", "1/2/3"}) {
    EXPECT_FALSE(HostPart::Parse(wrong).ok()) << wrong;
  }
}

TEST(HostPartTest, AQuotaIsDividedAlsoWhereTheCoresAreItsOwn) {
  // Four workers on 64 cores in one group of 8 processor seconds a second.
  const HostPart bound{.index = 1, .count = 4, .is_bound = true};
  EXPECT_EQ(bound.Threads({.cores = 16, .quota_cores = 8}), 2);
  EXPECT_EQ(bound.Threads({.cores = 16}), 16);
  EXPECT_EQ(bound.Threads({.cores = 16, .quota_cores = 100}), 16);
  EXPECT_EQ(bound.Threads({.cores = 16, .quota_cores = 1.5}), 1);
  const HostPart unbound{.index = 1, .count = 4};
  EXPECT_EQ(unbound.Threads({.cores = 64, .quota_cores = 8}), 2);
  EXPECT_EQ(unbound.Threads({.cores = 4, .quota_cores = 8}), 1);
}

TEST(HostPartTest, APartOfFewerThanTwoCoresIsNotBound) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const bool bound, BindToPart({.index = 0, .count = 1 << 20}));
  EXPECT_FALSE(bound);
}

// In processes of their own, which stay bound.
TEST(HostPartTest, PartsAreBoundToCoresOfTheirOwn) {
  cpu_set_t all = {};
  ASSERT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
  const int cores = CPU_COUNT(&all);
  if (cores < 2 * HostPart::kLeastBoundCores) {
    GTEST_SKIP() << "SKIPPED: " << cores << " cores, so nothing is tested of parts that are bound";
  }
  cpu_set_t together = {};
  for (int index = 0; index < 2; ++index) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
      const absl::StatusOr<bool> bound = BindToPart({.index = index, .count = 2});
      cpu_set_t mine = {};
      const bool is_told = bound.ok() && *bound && sched_getaffinity(0, sizeof(mine), &mine) == 0 &&
                           write(ends[1], &mine, sizeof(mine)) == sizeof(mine);
      _exit(is_told ? 0 : 1);
    }
    close(ends[1]);
    cpu_set_t mine = {};
    EXPECT_EQ(read(ends[0], &mine, sizeof(mine)), static_cast<ssize_t>(sizeof(mine)));
    close(ends[0]);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_GE(CPU_COUNT(&mine), cores / 2);
    cpu_set_t shared = {};
    CPU_AND(&shared, &mine, &together);
    EXPECT_EQ(CPU_COUNT(&shared), 0) << "a core of both parts";
    CPU_OR(&together, &together, &mine);
  }
  EXPECT_TRUE(CPU_EQUAL(&together, &all));
}

}  // namespace
}  // namespace shardmesh::worker
