// A network that is cut between workers, while the coordinator reaches them all.
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>

#include "client/cli/local/child_process.h"
#include "tests/integration/collective_cluster.h"

namespace shardmesh::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Kind = client::ClusterFinding::Kind;

// Of streams that say nothing any more.
constexpr absl::Duration kSilenceLimit = absl::Seconds(4);

int Shell(const std::string& command) { return system(command.c_str()); }

std::string NetworkOf(pid_t pid) {
  std::error_code error;
  return std::filesystem::read_symlink(StrCat("/proc/", pid, "/ns/net"), error).string();
}

// This program goes to a network namespace of its own, whose bridge is 10.77.0.1; worker-N gets
// one too, where it is 10.77.0.(10 + N). All are gone with the processes that are in them.
class NetworkTest : public CollectiveCluster {
 protected:
  static constexpr int kWorkers = 4;

  void SetUp() override {
    // Before any thread starts, so that all are there.
    if (unshare(CLONE_NEWNET) != 0) {
      GTEST_SKIP() << "SKIPPED: this user cannot make a network namespace (" << strerror(errno)
                   << "), so nothing is tested of a network that is cut";
    }
    if (Shell("ip link set lo up && ip link add bridge0 type bridge && "
              "ip address add 10.77.0.1/24 dev bridge0 && ip link set bridge0 up") != 0) {
      GTEST_SKIP() << "SKIPPED: this host has no virtual bridges, so nothing is tested of a "
                      "network that is cut";
    }
    folder_ = MakeTestFolder("network");
    for (int i = 0; i < kWorkers; ++i) ASSERT_NO_FATAL_FAILURE(AddNetwork(i));
    ASSERT_NO_FATAL_FAILURE(WriteWorkerProgram());
    ASSERT_NO_FATAL_FAILURE(
        StartCluster({.coordinator_flags = {"--listen=10.77.0.1:0", "--insecure"},
                      .worker_flags = {"--insecure", "--transport=stream"},
                      .binary_folder = folder_}));
  }
  void TearDown() override {
    cluster_.reset();
    for (const client::ChildProcess& holder : holders_) {
      client::SendSignal(holder.id(), SIGKILL).IgnoreError();
    }
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
  }

  static std::string AddressOf(int worker) { return StrCat("10.77.0.", 10 + worker); }
  // A command in the network of a worker.
  int ShellAt(int worker, const std::string& command) {
    return Shell(StrCat("nsenter --net=/proc/", holders_[static_cast<size_t>(worker)].id().pid,
                        "/ns/net ", command));
  }

  // Nothing gets through any more between the worker and the others: each takes the other for a
  // machine that there is not.
  void CutOff(int worker) {
    for (int other = 0; other < kWorkers; ++other) {
      if (other == worker) continue;
      for (const auto& [from, to] : {std::pair(worker, other), std::pair(other, worker)}) {
        ASSERT_EQ(ShellAt(from, StrCat("ip neighbour replace ", AddressOf(to),
                                       " lladdr 02:00:00:00:00:99 dev eth0 nud permanent")),
                  0);
      }
    }
  }
  void Heal(int worker) {
    for (int other = 0; other < kWorkers; ++other) {
      if (other == worker) continue;
      for (const auto& [from, to] : {std::pair(worker, other), std::pair(other, worker)}) {
        ASSERT_EQ(ShellAt(from, StrCat("ip neighbour del ", AddressOf(to), " dev eth0")), 0);
      }
    }
  }

 private:
  void AddNetwork(int worker) {
    client::ProcessOptions holder;
    holder.command = {"/bin/sh", "-c", "exec unshare --net sleep 600"};
    holder.log_path = folder_ + "/holder.log";
    holder.parent_end_signal = SIGKILL;
    SHARDMESH_ASSERT_OK_AND_ASSIGN(client::ChildProcess process,
                                   client::ChildProcess::Start(holder));
    holders_.push_back(std::move(process));
    const pid_t pid = holders_.back().id().pid;
    ASSERT_TRUE(Eventually([&] { return NetworkOf(pid) != NetworkOf(getpid()); }));
    ASSERT_EQ(Shell(StrCat("ip link add port", worker, " type veth peer name eth0 netns ", pid,
                           " && ip link set port", worker, " master bridge0 up")),
              0);
    ASSERT_EQ(ShellAt(worker, "ip link set lo up"), 0);
    ASSERT_EQ(ShellAt(worker, StrCat("ip address add ", AddressOf(worker), "/24 dev eth0")), 0);
    ASSERT_EQ(ShellAt(worker, "ip link set eth0 up"), 0);
    std::ofstream(StrCat(folder_, "/worker-", worker))
        << "network=/proc/" << pid << "/ns/net\naddress=" << AddressOf(worker) << "\n";
  }

  // The worker's program goes to its network first.
  void WriteWorkerProgram() {
    const std::string binaries = SHARDMESH_BINARY_DIR;
    const std::string program = folder_ + "/shardmesh-worker";
    std::ofstream(program) << "#!/bin/sh\n"
                           << "for argument; do\n"
                           << "  case $argument in --identity=*) . " << folder_
                           << "/${argument#--identity=} ;; esac\n"
                           << "done\n"
                           << "exec nsenter --net=$network " << binaries
                           << "/shardmesh-worker \"$@\" --listen=$address:0\n";
    std::filesystem::permissions(program, std::filesystem::perms::owner_all);
    std::filesystem::create_symlink(binaries + "/shardmesh-coordinator",
                                    folder_ + "/shardmesh-coordinator");
  }

  std::string folder_;
  std::vector<client::ChildProcess> holders_;
};

TEST_F(NetworkTest, ARankThatIsCutOffFromTheOthersIsNamed) {
  ExpectSumSoon();
  ASSERT_NO_FATAL_FAILURE(CutOff(2));
  const absl::Time begun = absl::Now();
  auto sum = SumWithin(absl::Seconds(60));
  const auto result = sum.get();
  EXPECT_LT(absl::Now() - begun, kSilenceLimit + kNamedWithin) << result.status();
  EXPECT_FALSE(result.ok());
  EXPECT_THAT(std::string(result.status().message()),
              AllOf(HasSubstr("worker-2"), HasSubstr("step"), HasSubstr("all-reduce")));
  const client::ClusterFinding failed = AwaitBlame("worker-2", Kind::kFailed);
  ASSERT_TRUE(failed.step.has_value());
  ExpectNamedByTheOthers("worker-2", *failed.step, begun + kSilenceLimit + kNamedWithin);
  const client::ClusterFinding finding = AwaitBlame("worker-2", Kind::kWorker);
  EXPECT_THAT(finding.summary, HasSubstr("do not reach each other"));
  ExpectDoctorNames("worker-2");

  ASSERT_NO_FATAL_FAILURE(Heal(2));
  ExpectSumSoon();
}

TEST_F(NetworkTest, ADeadlineThatComesBeforeTheSilenceIsNoticedNamesTheRankToo) {
  ExpectSumSoon();
  ASSERT_NO_FATAL_FAILURE(CutOff(1));
  constexpr absl::Duration kTimeout = absl::Seconds(2);
  const absl::Time begun = absl::Now();
  const auto result = SumWithin(kTimeout).get();
  EXPECT_LT(absl::Now() - begun, kTimeout + kNamedWithin);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kDeadlineExceeded) << result.status();
  EXPECT_THAT(std::string(result.status().message()),
              AllOf(HasSubstr("worker-1"), HasSubstr("data does not get through")));
  ASSERT_NO_FATAL_FAILURE(Heal(1));
  ExpectSumSoon();
}

}  // namespace
}  // namespace shardmesh::test
