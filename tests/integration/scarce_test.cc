// Processes that are short of something: file descriptors, memory for calls, an answer in time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "client/mesh_client.h"
#include "status/reason.h"
#include "status/str_cat.h"
#include "tests/testing/eventually.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace shardmesh::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// The programs, with this limit of file descriptors.
std::string ProgramsWithDescriptors(const std::string& folder, int limit) {
  for (const char* const program : {"shardmesh-coordinator", "shardmesh-worker"}) {
    const std::string path = StrCat(folder, "/", program);
    std::ofstream(path) << "#!/bin/sh\nulimit -n " << limit << "\nexec " << SHARDMESH_BINARY_DIR
                        << "/" << program << " \"$@\"\n";
    EXPECT_EQ(chmod(path.c_str(), 0755), 0);
  }
  return folder;
}

// Puts a tensor of 8 MiB as `shardmesh load` does, over connections of its own.
absl::Status PutAs(const std::string& address, const std::string& name, absl::Duration deadline,
                   std::atomic<int>* waits = nullptr) {
  client::MeshClientOptions options;
  options.transfer_timeout = deadline;
  options.await_coordinator = true;
  options.on_wait = [waits](const absl::Status&) {
    if (waits != nullptr) ++*waits;
  };
  auto client = client::MeshClient::Connect(address, options);
  if (!client.ok()) return client.status();
  const std::vector<float> elements(size_t{2} << 20, 1.0F);
  return PutFloats(**client, name, {2048, 1024}, elements, PartitionSpec({SpecEntry::Axis("fsdp")}))
      .status();
}

class ScarceTest : public ::testing::Test {
 protected:
  ~ScarceTest() override { std::filesystem::remove_all(folder_); }

  // The outcomes of so many puts at once.
  std::vector<absl::Status> PutAtOnce(const TestCluster& cluster, int count) {
    std::vector<absl::Status> outcomes(static_cast<size_t>(count));
    std::vector<std::thread> threads;
    for (int i = 0; i < count; ++i) {
      threads.emplace_back([&, i] {
        outcomes[static_cast<size_t>(i)] =
            PutAs(cluster.address(), StrCat("t", i), absl::Seconds(60));
      });
    }
    for (std::thread& thread : threads) thread.join();
    return outcomes;
  }

  const std::string folder_ = MakeTestFolder("scarce");
};

TEST_F(ScarceTest, ManyPutsAtOnceGoThroughTheLeastMemoryForCalls) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto cluster,
                                 TestCluster::Start({.mesh = "fsdp=2",
                                                     .coordinator_flags = {"--rpc-memory=18MiB"},
                                                     .worker_flags = {"--rpc-memory=16MiB"}}));
  for (const absl::Status& outcome : PutAtOnce(*cluster, 12)) {
    EXPECT_THAT(outcome, IsOk());
  }
}

TEST_F(ScarceTest, NoProcessStartsWithTooFewDescriptors) {
  ProgramsWithDescriptors(folder_, 64);
  for (const char* const program : {"shardmesh-coordinator", "shardmesh-worker"}) {
    client::ProcessOptions options;
    options.command = {StrCat(folder_, "/", program), "--listen=127.0.0.1:0"};
    if (program == std::string("shardmesh-worker")) {
      options.command.insert(options.command.end(), {"--coordinator=127.0.0.1:1", "--identity=w"});
    }
    options.log_path = StrCat(folder_, "/", program, ".log");
    SHARDMESH_ASSERT_OK_AND_ASSIGN(client::ChildProcess process,
                                   client::ChildProcess::Start(options));
    ASSERT_TRUE(client::WaitUntilGone(process.id(), absl::Now() + absl::Seconds(60)));
    EXPECT_EQ(process.Ended(), "exited with code 1");
    EXPECT_THAT(client::ReadLog(options.log_path),
                AllOf(HasSubstr("may have 64 file descriptors"), HasSubstr("at least 80")));
  }
}

TEST_F(ScarceTest, FilesHaveDescriptorsThoughCallersTakeAllOthers) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const auto cluster,
      TestCluster::Start({.mesh = "fsdp=2",
                          .durable = true,
                          .coordinator_flags = {},
                          .worker_flags = {},
                          .binary_folder = ProgramsWithDescriptors(folder_, 80)}));
  for (const absl::Status& outcome : PutAtOnce(*cluster, 12)) {
    if (outcome.ok()) continue;
    EXPECT_THAT(std::string(outcome.message()),
                AllOf(HasSubstr("short of file descriptors"), Not(HasSubstr("Too many open"))));
  }
  EXPECT_THAT(PutAs(cluster->address(), "after", absl::Seconds(60)), IsOk());
  for (const char* const log : {"worker-0", "worker-1", "coordinator"}) {
    EXPECT_THAT(client::ReadLog(StrCat(cluster->folder(), "/shardmesh/test/", log, ".log")),
                Not(HasSubstr("Too many open files")));
  }
}

TEST_F(ScarceTest, APutEndsSoonAfterItsDeadlineThoughTheCoordinatorStandsStill) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const auto cluster,
      TestCluster::Start({.mesh = "fsdp=2", .coordinator_flags = {}, .worker_flags = {}}));
  // Under way for as long as this worker takes nothing in.
  ASSERT_THAT(cluster->Signal("worker-1", SIGSTOP), IsOk());
  absl::Status outcome;
  const auto start = std::chrono::steady_clock::now();
  std::thread put([&] { outcome = PutAs(cluster->address(), "t", absl::Seconds(3)); });
  EXPECT_TRUE(Eventually([&] {
    const auto status = cluster->client().cluster().GetStatus();
    return status.ok() && status->sessions > 0;
  }));
  ASSERT_THAT(cluster->Signal("coordinator", SIGSTOP), IsOk());
  put.join();
  const absl::Duration time = absl::FromChrono(std::chrono::steady_clock::now() - start);
  EXPECT_THAT(cluster->Signal("coordinator", SIGCONT), IsOk());
  EXPECT_THAT(cluster->Signal("worker-1", SIGCONT), IsOk());
  EXPECT_FALSE(outcome.ok());
  EXPECT_GE(time, absl::Seconds(3)) << outcome;
  // 3 s, 3 s for the calls that take the put back and end the session, and the time that a busy
  // machine takes; calls with limits of their own would need 21 s.
  EXPECT_LT(time, absl::Seconds(15)) << outcome;
}

}  // namespace
}  // namespace shardmesh::test
