// Wall clocks that are stepped by an hour, on either side, with libfaketime in real processes:
// nobody is lost, no wait stands still, and each call has its time.
//
// libfaketime shifts what a process reads as the wall clock, and not what the kernel waits for: a
// wait until a time of the wall clock is an hour too long or over at once, as after a real step.
#include <glob.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "client/cli/local/child_process.h"
#include "client/mesh_client.h"
#include "status/str_cat.h"
#include "tests/testing/eventually.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace shardmesh::test {
namespace {

using Steady = std::chrono::steady_clock;

// How long a process may go on with the time that it read from its file before.
constexpr char kCacheSeconds[] = "1";
// Longer than that and the time after which a silent worker is lost.
constexpr std::chrono::milliseconds kLook(3500);
// In which a process that does something has read its new time.
constexpr std::chrono::milliseconds kSeen(1500);

// The coordinator that WatcherTest watches, by its environment, and what it prints when it does.
constexpr char kWatched[] = "SHARDMESH_WATCHED";
constexpr char kBegan[] = "the watch has begun";

std::string FakeTimeLibrary() {
  glob_t found = {};
  std::string path;
  if (glob("/usr/lib/*/faketime/libfaketimeMT.so.1", 0, nullptr, &found) == 0) {
    path = found.gl_pathv[0];
  }
  globfree(&found);
  return path;
}

// A wall clock that can be stepped, of the processes that are started while it is put on.
class WallClock {
 public:
  explicit WallClock(std::string path) : path_(std::move(path)) { Set(0); }

  void Set(int hours) const {
    std::ofstream(path_ + ".new") << (hours < 0 ? "" : "+") << hours << "h\n";
    std::filesystem::rename(path_ + ".new", path_);
  }
  void PutOn() const {
    setenv("LD_PRELOAD", FakeTimeLibrary().c_str(), 1);
    setenv("FAKETIME_TIMESTAMP_FILE", path_.c_str(), 1);
    setenv("FAKETIME_CACHE_DURATION", kCacheSeconds, 1);
    setenv("FAKETIME_DONT_FAKE_MONOTONIC", "1", 1);
    setenv("NO_FAKE_STAT", "1", 1);  // a step of the clock leaves the times of files as they are
  }
  static void TakeOff() {
    for (const char* name : {"LD_PRELOAD", "FAKETIME_TIMESTAMP_FILE", "FAKETIME_CACHE_DURATION",
                             "FAKETIME_DONT_FAKE_MONOTONIC", "NO_FAKE_STAT"}) {
      unsetenv(name);
    }
  }

 private:
  const std::string path_;
};

class WallClockTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!FakeTimeLibrary().empty()) return;
    if (getenv("CI") != nullptr) FAIL() << "there is no libfaketime; cmake/packages.txt has it";
    GTEST_SKIP() << "NO CLOCK WAS STEPPED: there is no libfaketime; apt-get install faketime";
  }
  ~WallClockTest() override {
    WallClock::TakeOff();
    cluster_.reset();
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
  }
  WallClock NewClock(const std::string& name) {
    if (folder_.empty()) folder_ = MakeTestFolder("clocks");
    return WallClock(StrCat(folder_, "/", name));
  }
  void Start(const std::string& mesh, const std::string& lost_after = "2s",
             std::vector<std::string> worker_flags = {}) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(
        cluster_, TestCluster::Start({.mesh = mesh,
                                      .durable = true,
                                      .coordinator_flags = {"--heartbeat-interval=300ms",
                                                            "--lost-after=" + lost_after},
                                      .worker_flags = std::move(worker_flags)}));
  }
  client::MeshClient& client() { return cluster_->client(); }

  // Puts, computes and reads for a while; nothing fails, and nobody is lost.
  void ExpectAllGoesOn(const std::string& when) {
    SCOPED_TRACE(when);
    const Steady::time_point until = Steady::now() + kLook;
    while (Steady::now() < until && !HasFailure()) {
      EXPECT_THAT(
          PutFloats(client(), "w", {4}, {1, 2, 3, 4}, PartitionSpec({SpecEntry::Axis("tp")})),
          IsOk());
      EXPECT_THAT(client().compute().Collective({.input = client::ArraySelector::ByName("w"),
                                                 .kind = CollectiveKind::kBarrier,
                                                 .axes = {"tp"}}),
                  IsOk());
      EXPECT_THAT(client().arrays().Gather(client::ArraySelector::ByName("w")), IsOk());
    }
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::ClusterStatus status,
                                   client().cluster().GetStatus());
    for (const client::WorkerStatus& worker : status.workers) {
      EXPECT_EQ(worker.state, client::WorkerState::kReady) << worker.identity;
      EXPECT_EQ(worker.losses, 0) << worker.identity << ": " << worker.lost_reason;
      EXPECT_LT(worker.heartbeat_age, absl::Seconds(2)) << worker.identity;
    }
  }

  // Starts a new cluster and a put by a client with this clock; returns when its first tile has
  // come to the worker, which stands still then and is not lost for it.
  std::future<CommandResult> StartPut(const WallClock& clock, const std::string& deadline) {
    cluster_.reset();
    Start("tp=1", "30s", {"--failpoints=tiles.stage=delay"});
    if (HasFatalFailure()) return {};
    const std::string checkpoint = StrCat(folder_, "/put.safetensors");
    const std::string rules = StrCat(folder_, "/rules.yaml");
    const std::string header = R"({"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})";
    std::ofstream(checkpoint, std::ios::binary)
        << static_cast<char>(header.size()) << std::string(7, '\0') << header
        << std::string(16, '\0');
    std::ofstream(rules) << "rules:\n  - {pattern: \".*\", spec: [tp]}\n";
    clock.Set(0);
    clock.PutOn();
    auto put = std::async(std::launch::async, [=, this] {
      return cluster_->Run(
          {"load", checkpoint, "--rules", rules, "--quiet", "--deadline", deadline});
    });
    const std::string log = StrCat(cluster_->folder(), "/shardmesh/test/worker-0.log");
    const auto is_there = [&] {
      return client::ReadLog(log).find("failpoint tiles.stage hit") != std::string::npos;
    };
    EXPECT_TRUE(Eventually([&] {
      return is_there() || put.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
    }));
    EXPECT_TRUE(is_there()) << client::ReadLog(log);
    EXPECT_THAT(cluster_->Signal("worker-0", SIGSTOP), IsOk());
    WallClock::TakeOff();
    return put;
  }

  std::string folder_;
  std::unique_ptr<TestCluster> cluster_;
};

TEST_F(WallClockTest, ServersGoOnWhenAWallClockIsStepped) {
  const WallClock workers = NewClock("workers");
  const WallClock coordinator = NewClock("coordinator");
  workers.PutOn();
  ASSERT_NO_FATAL_FAILURE(Start("tp=2"));
  ASSERT_THAT(cluster_->Terminate("coordinator"), IsOkAndHolds("exited with code 0"));
  coordinator.PutOn();
  ASSERT_THAT(cluster_->Restart("coordinator"), IsOk());
  WallClock::TakeOff();
  ASSERT_THAT(cluster_->WaitUntilHealthy(), IsOk());
  workers.Set(1);
  ExpectAllGoesOn("the workers' clock is an hour ahead");
  workers.Set(-1);
  ExpectAllGoesOn("it went back by two");
  coordinator.Set(1);
  ExpectAllGoesOn("the coordinator's clock is an hour ahead, two of the workers'");
  coordinator.Set(-1);
  ExpectAllGoesOn("it went back by two");
  // Who is lost is noticed, whatever the clock shows.
  ASSERT_THAT(cluster_->Signal("worker-1", SIGSTOP), IsOk());
  EXPECT_TRUE(Eventually(
      [&] {
        const auto status = client().cluster().GetStatus();
        return status.ok() && status->workers[1].state == client::WorkerState::kLost;
      },
      absl::Seconds(10)));
  ASSERT_THAT(cluster_->Signal("worker-1", SIGCONT), IsOk());
  // And all end when they are told to.
  EXPECT_THAT(cluster_->Terminate("coordinator", absl::Seconds(20)),
              IsOkAndHolds("exited with code 0"));
}

TEST_F(WallClockTest, AClientHasTheTimeThatItWasGivenWhenItsClockIsStepped) {
  ASSERT_NO_FATAL_FAILURE(Start("tp=1"));
  const WallClock clock = NewClock("client");
  // A command that waits for its coordinator, while its clock is stepped.
  const auto run = [&](const std::string& deadline, int hours) {
    clock.Set(0);
    clock.PutOn();
    auto command = std::async(std::launch::async, [&] {
      return cluster_->Run({"status", "--deadline", deadline});
    });
    // Time to begin; a step before that would only show less.
    EXPECT_EQ(command.wait_for(std::chrono::seconds(1)), std::future_status::timeout);
    clock.Set(hours);
    EXPECT_EQ(command.wait_for(kSeen), std::future_status::timeout) << "it gave up before its time";
    WallClock::TakeOff();
    return command;
  };
  ASSERT_THAT(cluster_->Kill("coordinator"), IsOk());
  // Ahead: it still waits.
  auto ahead = run("30s", 1);
  ASSERT_THAT(cluster_->Restart("coordinator"), IsOk());
  const CommandResult found = ahead.get();
  EXPECT_EQ(found.exit_code, 0) << found.err;
  ASSERT_THAT(cluster_->Kill("coordinator"), IsOk());
  // Back: it does not wait an hour longer.
  const CommandResult over = run("4s", -1).get();
  EXPECT_EQ(over.exit_code, 3) << over.err;
  EXPECT_LT(over.time, absl::Seconds(10));
}

TEST_F(WallClockTest, AWatchHasItsTimeWhenItsClockIsStepped) {
  ASSERT_NO_FATAL_FAILURE(Start("tp=1"));
  const WallClock clock = NewClock("watcher");
  for (const int hours : {1, -1}) {
    const std::string log = StrCat(folder_, "/watch", hours);
    clock.Set(0);
    setenv(kWatched, cluster_->address().c_str(), 1);
    clock.PutOn();
    absl::StatusOr<client::ChildProcess> watcher = client::ChildProcess::Start(
        {.command = {"/proc/self/exe", "--gtest_also_run_disabled_tests",
                     "--gtest_filter=WatcherTest.*"},
         .log_path = log});
    WallClock::TakeOff();
    unsetenv(kWatched);
    ASSERT_THAT(watcher, IsOk());
    ASSERT_TRUE(Eventually([&] { return absl::StrContains(client::ReadLog(log), kBegan); }));
    clock.Set(hours);
    std::optional<std::string> end;
    ASSERT_TRUE(Eventually([&] { return (end = watcher->Ended()).has_value(); }));
    EXPECT_EQ(*end, "exited with code 0") << hours << ": " << client::ReadLog(log);
  }
}

// Run in a process of its own by the test above.
TEST(WatcherTest, DISABLED_WatchesForItsTime) {
  const char* const address = getenv(kWatched);
  ASSERT_NE(address, nullptr) << "the address of a coordinator";
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto client, client::MeshClient::Connect(address));
  constexpr absl::Duration kTime = absl::Seconds(3);
  const Steady::time_point start = Steady::now();
  const absl::Status ended = client->catalog().Watch({}, std::nullopt, absl::Now() + kTime,
                                                     [](const client::CatalogChanges&) {
                                                       std::printf("%s\n", kBegan);
                                                       std::fflush(stdout);
                                                       return true;
                                                     });
  const absl::Duration took = absl::FromChrono(Steady::now() - start);
  EXPECT_THAT(ended, IsOk());
  EXPECT_GE(took, kTime - absl::Milliseconds(100));
  EXPECT_LT(took, kTime + absl::Seconds(20));
}

TEST_F(WallClockTest, APutHasItsTimeWhenItsClientsClockIsSteppedMeanwhile) {
  const WallClock clock = NewClock("client");
  for (const int hours : {1, -1}) {
    SCOPED_TRACE(StrCat(hours, " h"));
    auto put = StartPut(clock, "30s");
    ASSERT_FALSE(HasFailure());
    clock.Set(hours);
    // Some thread reads the time every two seconds. Those that read the file at once may not agree.
    EXPECT_EQ(put.wait_for(kLook), std::future_status::timeout) << "it gave up before its time";
    ASSERT_THAT(cluster_->Signal("worker-0", SIGCONT), IsOk());
    const CommandResult done = put.get();
    EXPECT_EQ(done.exit_code, 0) << done.err;
    EXPECT_LT(done.time, absl::Seconds(20));
  }
}

}  // namespace
}  // namespace shardmesh::test
