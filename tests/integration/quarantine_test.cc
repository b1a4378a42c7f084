// Data folders in wrong hands, older state put back, and results without names: nothing that was
// acknowledged is deleted, whatever order things happen in.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "status/str_cat.h"
#include "tests/testing/eventually.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace shardmesh::test {
namespace {

namespace fs = std::filesystem;

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

// A list of what is in quarantine.
template <typename Matcher>
auto Aside(const Matcher& matcher) {
  return IsOkAndHolds(Field(&client::QuarantineList::arrays, matcher));
}

class QuarantineTest : public ::testing::Test {
 protected:
  void StartCluster(std::vector<std::string> coordinator_flags = {}) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(
        cluster_, TestCluster::Start({.mesh = "tp=2",
                                      .durable = true,
                                      .coordinator_flags = std::move(coordinator_flags),
                                      .worker_flags = {}}));
  }
  absl::StatusOr<std::string> Put(const std::string& name) {
    return PutFloats(client(), name, {4}, values_, PartitionSpec({SpecEntry::Axis("tp")}));
  }
  void ExpectValues(const client::ArraySelector& array) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::GatheredTensor gathered,
                                   client().arrays().Gather(array));
    EXPECT_EQ(FloatsOf(gathered.view().bytes()), values_);
  }
  std::string Folder(const std::string& process) const {
    return StrCat(cluster_->folder(), "/data/", process);
  }
  void Swap(const std::string& one, const std::string& other) {
    fs::rename(Folder(one), Folder("swap"));
    fs::rename(Folder(other), Folder(one));
    fs::rename(Folder("swap"), Folder(other));
  }
  std::string Log(const std::string& process) const {
    return client::ReadLog(StrCat(cluster_->folder(), "/shardmesh/test/", process, ".log"));
  }
  // Starts the coordinator with a store that was put in the place of its own. The first time it
  // begins a term that it has begun before with the other store, and no worker follows; it does as
  // their logs say.
  void StartWithOtherStore() {
    ASSERT_THAT(cluster_->Restart("coordinator"), IsOk());
    EXPECT_TRUE(Eventually([&] {
      return Log("worker-0").find("start it again: it then begins a higher term") !=
             std::string::npos;
    }));
    EXPECT_THAT(cluster_->Terminate("coordinator"), IsOkAndHolds("exited with code 0"));
    ASSERT_THAT(cluster_->Restart("coordinator"), IsOk());
    ASSERT_THAT(cluster_->WaitUntilHealthy(), IsOk());
  }
  // An array that is put after the coordinator's folder was copied, which is then put back in the
  // folder's place: its id. The coordinator does not know it.
  std::string PutAndForget(const std::string& name) {
    EXPECT_THAT(cluster_->Terminate("coordinator"), IsOkAndHolds("exited with code 0"));
    fs::copy(Folder("coordinator"), Folder("copy"), fs::copy_options::recursive);
    EXPECT_THAT(cluster_->Restart("coordinator"), IsOk());
    EXPECT_THAT(cluster_->WaitUntilHealthy(), IsOk());
    const absl::StatusOr<std::string> id = Put(name);
    EXPECT_THAT(id, IsOk());
    EXPECT_THAT(cluster_->Terminate("coordinator"), IsOkAndHolds("exited with code 0"));
    fs::remove_all(Folder("coordinator"));
    fs::rename(Folder("copy"), Folder("coordinator"));
    StartWithOtherStore();
    return id.value_or("");
  }
  // Until it has the parts of so many workers in quarantine; why they are there.
  std::string AwaitAside(size_t parts) {
    std::string reason;
    EXPECT_TRUE(Eventually([&] {
      const auto list = client().cluster().ListQuarantine();
      if (!list.ok() || list->arrays.size() != parts) return false;
      reason = list->arrays.front().reason;
      return true;
    }));
    return reason;
  }
  client::MeshClient& client() { return cluster_->client(); }

  const std::vector<float> values_ = {1, 2, 3, 4};
  std::unique_ptr<TestCluster> cluster_;
};

TEST_F(QuarantineTest, AWorkerWithTheFolderOfAnotherEndsAndChangesNothing) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  ASSERT_THAT(Put("w"), IsOk());
  ASSERT_THAT(cluster_->Kill("worker-0"), IsOk());
  {
    ServerProcess renamed("shardmesh-worker",
                          {"--coordinator=" + cluster_->address(), "--identity=host-renamed",
                           "--data-dir=" + Folder("worker-0")});
    EXPECT_EQ(renamed.AwaitEnd(), "exited with code 1");
    EXPECT_THAT(renamed.Log(),
                AllOf(HasSubstr("host-renamed"), HasSubstr("worker-0"), HasSubstr("--identity")));
  }
  // Volumes that were swapped.
  ASSERT_THAT(cluster_->Kill("worker-1"), IsOk());
  Swap("worker-0", "worker-1");
  for (const char* identity : {"worker-0", "worker-1"}) {
    ASSERT_THAT(cluster_->Restart(identity), IsOk());
    EXPECT_THAT(cluster_->AwaitEnd(identity), IsOkAndHolds("exited with code 1"));
  }
  Swap("worker-0", "worker-1");
  for (const char* identity : {"worker-0", "worker-1"}) {
    ASSERT_THAT(cluster_->Restart(identity), IsOk());
  }
  ASSERT_THAT(cluster_->WaitUntilHealthy(), IsOk());
  ExpectValues(client::ArraySelector::ByName("w"));
  EXPECT_THAT(client().cluster().ListQuarantine(), Aside(IsEmpty()));
}

TEST_F(QuarantineTest, AWorkerFollowsOnlyTheFirstOfTwoCoordinatorsOnCopiesOfAFolder) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  ASSERT_THAT(Put("w"), IsOk());
  EXPECT_THAT(cluster_->Terminate("coordinator"), IsOkAndHolds("exited with code 0"));
  fs::copy(Folder("coordinator"), Folder("copy"), fs::copy_options::recursive);
  ASSERT_THAT(cluster_->Restart("coordinator"), IsOk());
  ASSERT_THAT(cluster_->WaitUntilHealthy(), IsOk());
  ASSERT_THAT(cluster_->Kill("worker-1"), IsOk());
  {
    const ServerProcess other(
        "shardmesh-coordinator",
        {"--listen=127.0.0.1:0", "--http-listen=", "--data-dir=" + Folder("copy")});
    ASSERT_TRUE(other.AwaitInLog("coordinator serves"));
    const auto after = [log = other.Log()](const std::string& text) {
      const size_t begin = log.rfind(text) + text.size();
      return log.substr(begin, log.find_first_of(" \n", begin) - begin);
    };
    EXPECT_EQ(after(" term="), "2");
    ServerProcess worker("shardmesh-worker",
                         {"--coordinator=" + after("serves address="), "--identity=worker-1",
                          "--data-dir=" + Folder("worker-1")});
    EXPECT_TRUE(worker.AwaitInLog("two coordinators have begun term 2"));
    EXPECT_THAT(worker.Log(), HasSubstr(after(" token_key_digest=")));
  }
  ASSERT_THAT(cluster_->Restart("worker-1"), IsOk());
  ASSERT_THAT(cluster_->WaitUntilHealthy(), IsOk());
  ExpectValues(client::ArraySelector::ByName("w"));
}

TEST_F(QuarantineTest, APutWhoseCoordinatorIsKilledIsMadeAgain) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  ASSERT_THAT(Put("first"), IsOk());
  // The put cannot end before the coordinator does.
  ASSERT_THAT(cluster_->Signal("worker-1", SIGSTOP), IsOk());
  absl::StatusOr<std::string> id;
  std::thread putter([&] { id = Put(""); });
  absl::SleepFor(absl::Milliseconds(300));
  // On this thread: a process ends with the thread that started it.
  EXPECT_THAT(cluster_->Kill("coordinator"), IsOk());
  EXPECT_THAT(cluster_->Restart("coordinator"), IsOk());
  EXPECT_THAT(cluster_->Signal("worker-1", SIGCONT), IsOk());
  putter.join();
  ASSERT_THAT(id, IsOk());
  ExpectValues(client::ArraySelector::ById(*id));
  ExpectValues(client::ArraySelector::ByName("first"));
  // Tiles of the first attempt are on disk, and may be those of an acknowledged array: they may go
  // into quarantine. Those of the second may not.
  EXPECT_THAT(cluster_->Run({"admin", "quarantine", "list"}).out, Not(HasSubstr(*id)));
}

TEST_F(QuarantineTest, AnOlderStoreThatIsPutBackDeletesNothing) {
  ASSERT_NO_FATAL_FAILURE(StartCluster({"--unnamed-grace=500ms"}));
  ASSERT_THAT(Put("older"), IsOk());
  const std::string newer = PutAndForget("newer");
  ExpectValues(client::ArraySelector::ByName("older"));
  EXPECT_THAT(client().arrays().DescribeArray(client::ArraySelector::ByName("newer")),
              StatusIs(absl::StatusCode::kNotFound));
  // Whether both workers attached within the grace for arrays without a name, or only after it,
  // decides what the reason is.
  const std::string reason = AwaitAside(2);
  EXPECT_THAT(reason, Not(IsEmpty()));
  for (const char* worker : {"worker-0", "worker-1"}) {
    EXPECT_THAT(Log("coordinator"),
                ContainsRegex(StrCat("a worker puts tiles into quarantine[^=]* identity=", worker,
                                     " tiles=1 of=[02] first_array=", newer, " reason=")));
    EXPECT_THAT(Log(worker), ContainsRegex(StrCat("moved tiles into quarantine[^=]* tiles=1 "
                                                  "first_array=",
                                                  newer, " reason=")));
  }
  const CommandResult list = cluster_->Run({"admin", "quarantine", "list"});
  EXPECT_THAT(list.out, AllOf(HasSubstr(newer), HasSubstr("worker-0"), HasSubstr("worker-1"),
                              HasSubstr(reason)));
  EXPECT_TRUE(Eventually([&] {
    return cluster_->Run({"status"}).out.find("Quarantine: 2 parts of arrays") != std::string::npos;
  }));
  // It is there after restarts of all.
  for (const char* identity : {"worker-0", "worker-1", "coordinator"}) {
    ASSERT_THAT(cluster_->Kill(identity), IsOk());
    ASSERT_THAT(cluster_->Restart(identity), IsOk());
  }
  ASSERT_THAT(cluster_->WaitUntilHealthy(), IsOk());
  EXPECT_THAT(client().cluster().ListQuarantine(), Aside(SizeIs(2)));
  EXPECT_THAT(client().cluster().ListQuarantine("worker-1"), Aside(SizeIs(1)));

  const absl::Status taken = client().cluster().RestoreQuarantined(newer, "older").status();
  EXPECT_THAT(taken, StatusIs(absl::StatusCode::kAborted, Reason::kVersionMismatch));
  EXPECT_THAT(std::string(taken.message()),
              AllOf(HasSubstr("\"older\" is at version "), HasSubstr("choose another name")));
  EXPECT_THAT(client().cluster().ListQuarantine(), Aside(SizeIs(2))) << "nothing was moved";
  const std::string aside_folder = Folder("worker-1") + "/quarantine/";
  fs::rename(aside_folder + newer, aside_folder + "away");
  EXPECT_THAT(client().cluster().RestoreQuarantined(newer, "newer"),
              StatusIs(absl::StatusCode::kDataLoss, Reason::kBadFile));
  fs::rename(aside_folder + "away", aside_folder + newer);
  EXPECT_TRUE(Eventually([&] {
    const auto now = client().cluster().ListQuarantine();
    return now.ok() && now->arrays.size() == 2 && now->arrays.front().reason == reason;
  })) << "what could not be restored is aside again, and it is known why it was";
  const CommandResult checked =
      cluster_->Run({"admin", "quarantine", "restore", newer, "--as", "newer", "--validate-only"});
  EXPECT_THAT(checked.out, HasSubstr(StrCat("Would restore array ", newer, " as \"newer\"")))
      << checked.err;
  const CommandResult would_drop =
      cluster_->Run({"admin", "quarantine", "drop", newer, "--validate-only"});
  EXPECT_THAT(would_drop.out, AllOf(HasSubstr("Would drop "), HasSubstr("1 array")))
      << would_drop.err;
  for (const char* command : {"restore", "drop"}) {
    const CommandResult marked =
        cluster_->Run({"admin", "quarantine", command, newer, "--validate-only", "-ojson"});
    EXPECT_THAT(marked.out, HasSubstr("\"validate_only\": true")) << marked.err;
  }
  EXPECT_THAT(client().arrays().DescribeArray(client::ArraySelector::ByName("newer")),
              StatusIs(absl::StatusCode::kNotFound));
  const CommandResult restored =
      cluster_->Run({"admin", "quarantine", "restore", newer, "--as", "newer"});
  EXPECT_EQ(restored.exit_code, 0) << restored.err;
  ExpectValues(client::ArraySelector::ByName("newer"));
  EXPECT_THAT(client().cluster().ListQuarantine(), Aside(IsEmpty()));
  EXPECT_THAT(client().cluster().DropQuarantined({newer}),
              StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
}

TEST_F(QuarantineTest, ArraysThatTheStateDoesNotKnowAreShownAndComeBackAtOnce) {
  ASSERT_NO_FATAL_FAILURE(StartCluster({"--unnamed-grace=10h"}));
  const std::string id = PutAndForget("newer");
  const CommandResult list = cluster_->Run({"admin", "quarantine", "list"});
  EXPECT_THAT(list.out,
              AllOf(HasSubstr("1 array without a name"), HasSubstr(id), HasSubstr("held for 9h")));
  EXPECT_THAT(cluster_->Run({"status"}).out, HasSubstr("1 array without a name, held for 9h"));
  const CommandResult drop = cluster_->Run({"admin", "quarantine", "drop", id, "--validate-only"});
  EXPECT_EQ(drop.exit_code, 0) << drop.err;
  EXPECT_THAT(drop.out, HasSubstr("Would drop 16 B of 1 array"));
  const CommandResult empty = cluster_->Run({"admin", "quarantine", "restore", id, "--as", ""});
  EXPECT_EQ(empty.exit_code, 2);
  EXPECT_THAT(empty.err, AllOf(HasSubstr("--as"), HasSubstr("the name is empty")));
  const std::string wrong = "feedfeedfeedfeedfeedfeedfeedfeed";
  const CommandResult one_name =
      cluster_->Run({"admin", "quarantine", "restore", wrong, id, "--as", "newer"});
  EXPECT_EQ(one_name.exit_code, 2);
  EXPECT_THAT(one_name.err, HasSubstr("--as is the name of one array, and 2 are given"));
  const CommandResult both = cluster_->Run({"admin", "quarantine", "restore", wrong, id});
  EXPECT_EQ(both.exit_code, 1);
  EXPECT_THAT(both.err, AllOf(HasSubstr("1 of 2 arrays were not restored"), HasSubstr(wrong)));
  EXPECT_THAT(both.out, AllOf(HasSubstr(StrCat("Not restored: array ", wrong)),
                              HasSubstr(StrCat("\"restored/", id, "\""))));
  EXPECT_THAT(both.out, HasSubstr("worker-0, worker-1"));
  ExpectValues(client::ArraySelector::ByName(StrCat("restored/", id)));
  EXPECT_THAT(client().cluster().ListQuarantine(),
              IsOkAndHolds(Field(&client::QuarantineList::unnamed, IsEmpty())));
  EXPECT_THAT(client().cluster().RestoreQuarantined(id, "again"),
              StatusIs(absl::StatusCode::kAlreadyExists, Reason::kAlreadyExists));
}

TEST_F(QuarantineTest, WhatIsDroppedWhileAWorkerIsAwayIsDroppedWholeOrNotAtAll) {
  ASSERT_NO_FATAL_FAILURE(StartCluster({"--unnamed-grace=500ms", "--return-grace=1s"}));
  const std::string id = PutAndForget("newer");
  AwaitAside(2);
  ASSERT_THAT(cluster_->Kill("worker-1"), IsOk());
  EXPECT_TRUE(Eventually([&] {
    return cluster_->Run({"admin", "quarantine", "list"})
               .out.find("Not reached: worker-1, rank 1 of mesh") != std::string::npos;
  }));
  // Both wait for the worker for a second.
  const CommandResult drop = cluster_->Run({"admin", "quarantine", "drop", id});
  EXPECT_EQ(drop.exit_code, 1);
  EXPECT_THAT(drop.err, AllOf(HasSubstr("MESH_INCOMPLETE"), HasSubstr("worker-1 (rank 1"),
                              HasSubstr("nothing was dropped"), HasSubstr("--even-partly")));
  const CommandResult restore = cluster_->Run({"admin", "quarantine", "restore", id});
  EXPECT_EQ(restore.exit_code, 1);
  EXPECT_THAT(restore.err, AllOf(HasSubstr("MESH_INCOMPLETE"), HasSubstr("rank 1 (worker-1"),
                                 Not(HasSubstr("drop"))));
  EXPECT_THAT(client().cluster().ListQuarantine(), Aside(SizeIs(1)));
  ASSERT_THAT(cluster_->Restart("worker-1"), IsOk());
  ASSERT_THAT(cluster_->WaitUntilHealthy(), IsOk());
  EXPECT_THAT(client().cluster().DropQuarantined({id}),
              IsOkAndHolds(Field(&client::QuarantineDrop::arrays, SizeIs(2))));
  EXPECT_THAT(client().cluster().ListQuarantine(), Aside(IsEmpty()));
}

// The older store was put back by mistake; then the right one is.
TEST_F(QuarantineTest, WhatAWorkerHasAsideFollowsWhatBecomesOfItsArray) {
  ASSERT_NO_FATAL_FAILURE(StartCluster({"--unnamed-grace=500ms"}));
  EXPECT_THAT(cluster_->Terminate("coordinator"), IsOkAndHolds("exited with code 0"));
  fs::copy(Folder("coordinator"), Folder("older"), fs::copy_options::recursive);
  ASSERT_THAT(cluster_->Restart("coordinator"), IsOk());
  ASSERT_THAT(cluster_->WaitUntilHealthy(), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::string kept, Put("kept"));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::string released, Put("released"));

  const auto swap_stores = [&] {
    EXPECT_THAT(cluster_->Terminate("coordinator"), IsOkAndHolds("exited with code 0"));
    Swap("coordinator", "older");
    StartWithOtherStore();
  };
  const auto await_aside = [&](size_t lives, size_t unknown) {
    EXPECT_TRUE(Eventually([&] {
      const auto list = client().cluster().ListQuarantine();
      if (!list.ok() || list->arrays.size() != lives + unknown) return false;
      return static_cast<size_t>(
                 std::count_if(list->arrays.begin(), list->arrays.end(),
                               [](const auto& array) { return array.array_lives; })) == lives;
    })) << lives
        << " live, " << unknown << " unknown";
  };
  ASSERT_NO_FATAL_FAILURE(swap_stores());
  await_aside(0, 4);
  ASSERT_NO_FATAL_FAILURE(swap_stores());
  await_aside(4, 0);
  // One is released while a worker is away.
  ASSERT_THAT(cluster_->Kill("worker-1"), IsOk());
  ASSERT_THAT(client().arrays().DeleteName("released"), IsOk());
  ASSERT_THAT(cluster_->Restart("worker-1"), IsOk());
  ASSERT_THAT(cluster_->WaitUntilHealthy(), IsOk());
  await_aside(2, 0);
  EXPECT_THAT(client().cluster().RestoreQuarantined(kept, ""), IsOk());
  ExpectValues(client::ArraySelector::ByName("kept"));
  EXPECT_THAT(client().cluster().ListQuarantine(), Aside(IsEmpty()));
}

TEST_F(QuarantineTest, AResultWithoutANameOutlivesTheCoordinator) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  ASSERT_THAT(Put("w"), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const client::StepResult result,
      client().compute().Collective({.input = client::ArraySelector::ByName("w"),
                                     .kind = CollectiveKind::kBarrier,
                                     .axes = {"tp"}}));
  const std::string id = result.outputs[0].array.descriptor.array_id;
  ASSERT_THAT(cluster_->Kill("coordinator"), IsOk());
  ASSERT_THAT(cluster_->Restart("coordinator"), IsOk());
  ASSERT_THAT(cluster_->WaitUntilHealthy(), IsOk());
  ExpectValues(client::ArraySelector::ById(id));
  EXPECT_THAT(client().arrays().MoveName("kept", id), IsOk());
  ExpectValues(client::ArraySelector::ByName("kept"));
}

TEST_F(QuarantineTest, AnArrayWithoutANameIsAwaitedByTheCallThatNamesIt) {
  ASSERT_NO_FATAL_FAILURE(StartCluster({"--return-grace=10m"}));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::string id, Put(""));
  ASSERT_THAT(cluster_->Signal("worker-1", SIGSTOP), IsOk());
  ASSERT_THAT(cluster_->Kill("coordinator"), IsOk());
  ASSERT_THAT(cluster_->Restart("coordinator"), IsOk());
  const absl::Status early =
      client()
          .arrays()
          .MoveName("kept", id, {}, /*validate_only=*/false, {.timeout = absl::Seconds(2)})
          .status();
  EXPECT_FALSE(early.ok());
  EXPECT_FALSE(absl::IsNotFound(early)) << early;
  ASSERT_THAT(cluster_->Signal("worker-1", SIGCONT), IsOk());
  ASSERT_THAT(cluster_->WaitUntilHealthy(), IsOk());
  EXPECT_THAT(client().arrays().MoveName("kept", id), IsOk());
  ExpectValues(client::ArraySelector::ByName("kept"));
}

// Clients that live release what they have finished with. What clients leave that end while there
// is no coordinator stays for the grace, and an administrator can drop it.
TEST_F(QuarantineTest, ArraysWithoutNamesOutliveTheCoordinatorOnlyWithTheirClient) {
  ASSERT_NO_FATAL_FAILURE(StartCluster({"--unnamed-grace=10h"}));
  const auto unnamed = [&] { return cluster_->Run({"ls", "--unnamed", "-o", "name"}).out; };
  const auto restart = [&] {
    ASSERT_THAT(cluster_->Restart("coordinator"), IsOk());
    ASSERT_THAT(cluster_->WaitUntilHealthy(), IsOk());
  };
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::string used, Put(""));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::string finished, Put(""));
  client::MeshClientOptions options;
  options.client_name = "leaver";
  SHARDMESH_ASSERT_OK_AND_ASSIGN(auto leaver,
                                 client::MeshClient::Connect(cluster_->address(), options));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const std::string left,
      PutFloats(*leaver, "", {4}, values_, PartitionSpec({SpecEntry::Axis("tp")})));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(auto ender,
                                 client::MeshClient::Connect(cluster_->address(), options));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const std::string ended,
      PutFloats(*ender, "", {4}, values_, PartitionSpec({SpecEntry::Axis("tp")})));
  ASSERT_THAT(cluster_->Kill("coordinator"), IsOk());
  leaver.reset();  // cannot tell anybody
  ASSERT_NO_FATAL_FAILURE(restart());

  EXPECT_THAT(client().arrays().ReleaseArrays({finished}), IsOkAndHolds(1));
  // Its end waits a limited time for a new session: let it have that before.
  ASSERT_THAT(ender->arrays().Gather(client::ArraySelector::ById(ended)), IsOk());
  ender.reset();
  const auto has = [](const std::string& text, const std::string& id) {
    return text.find(id) != std::string::npos;
  };
  EXPECT_TRUE(Eventually([&] {
    const std::string out = unnamed();
    return has(out, used) && has(out, left) && !has(out, finished) && !has(out, ended);
  })) << unnamed();
  EXPECT_THAT(client().cluster().ListQuarantine(), Aside(IsEmpty())) << "the tiles are deleted";
  ExpectValues(client::ArraySelector::ById(used));

  const absl::Status resized = client().arrays().ResizeMesh("default", "tp=1").status();
  EXPECT_THAT(resized, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kMeshInUse));
  EXPECT_THAT(std::string(resized.message()),
              AllOf(HasSubstr(StrCat("shardmesh admin quarantine drop ", left)),
                    HasSubstr("kept for another 9h"), HasSubstr("held by session ")));
  const CommandResult refused = cluster_->Run({"admin", "quarantine", "drop", used});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("held by session "), HasSubstr("nothing was dropped")));
  const CommandResult dropped = cluster_->Run({"admin", "quarantine", "drop", left});
  EXPECT_EQ(dropped.exit_code, 0) << dropped.err;
  EXPECT_THAT(client().arrays().ReleaseArrays({used}), IsOkAndHolds(1));
  EXPECT_THAT(client().arrays().ResizeMesh("default", "tp=1"), IsOk());
  EXPECT_THAT(client().cluster().ListQuarantine(), Aside(IsEmpty()));
}

TEST_F(QuarantineTest, AReplacedWorkerThatComesBackPutsItsTilesAside) {
  ASSERT_NO_FATAL_FAILURE(StartCluster({"--return-grace=1s"}));
  ASSERT_THAT(Put("w"), IsOk());
  ServerProcess spare("shardmesh-worker",
                      {"--coordinator=" + cluster_->address(), "--listen=127.0.0.1:0",
                       "--identity=spare", "--data-dir=" + Folder("spare")});
  const auto state_of = [&](const std::string& identity) {
    const auto status = client().cluster().GetStatus();
    if (!status.ok()) return client::WorkerState::kUnknown;
    for (const client::WorkerStatus& worker : status->workers) {
      if (worker.identity == identity) return worker.state;
    }
    return client::WorkerState::kUnknown;
  };
  ASSERT_TRUE(Eventually([&] { return state_of("spare") == client::WorkerState::kReady; }))
      << spare.Log();
  ASSERT_THAT(cluster_->Kill("worker-1"), IsOk());
  ASSERT_TRUE(Eventually([&] { return state_of("worker-1") == client::WorkerState::kLost; }));
  const auto replaced = client().cluster().ReplaceWorker("worker-1", "spare");
  ASSERT_THAT(replaced, IsOk());
  EXPECT_EQ(replaced->rank_count, 1);
  ASSERT_TRUE(Eventually([&] { return Put("v").ok(); })) << spare.Log();

  // The ranks are durable.
  EXPECT_THAT(cluster_->Terminate("coordinator"), IsOkAndHolds("exited with code 0"));
  ASSERT_THAT(cluster_->Restart("coordinator"), IsOk());
  ASSERT_TRUE(Eventually([&] { return Put("u").ok(); })) << spare.Log();
  ASSERT_NO_FATAL_FAILURE(ExpectValues(client::ArraySelector::ByName("v")));

  ASSERT_THAT(cluster_->Restart("worker-1"), IsOk());
  EXPECT_THAT(AwaitAside(1), Not(IsEmpty()));
  const auto aside = client().cluster().ListQuarantine();
  ASSERT_THAT(aside, IsOk());
  ASSERT_THAT(aside->arrays, SizeIs(1));
  EXPECT_EQ(aside->arrays.front().identity, "worker-1");
  EXPECT_TRUE(aside->arrays.front().array_lives) << "it is not dropped for lack of space";
  EXPECT_THAT(client().arrays().Gather(client::ArraySelector::ByName("w")).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kArrayDegraded));
  ASSERT_NO_FATAL_FAILURE(ExpectValues(client::ArraySelector::ByName("u")));
}

}  // namespace
}  // namespace shardmesh::test
