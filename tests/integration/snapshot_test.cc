// Snapshots of a coordinator that runs, put back after its state went on: nothing newer is lost.
// And a look at a damaged state.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "status/str_cat.h"
#include "tests/testing/eventually.h"
#include "tests/testing/read_file.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace shardmesh::test {
namespace {

namespace fs = std::filesystem;

using ::testing::AllOf;
using ::testing::HasSubstr;

class SnapshotTest : public ::testing::Test {
 protected:
  void SetUp() override {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(
        cluster_, TestCluster::Start({.mesh = "tp=2",
                                      .durable = true,
                                      .coordinator_flags = {"--unnamed-grace=500ms"},
                                      .worker_flags = {}}));
  }
  absl::StatusOr<std::string> Put(const std::string& name, float first = 1) {
    return PutFloats(client(), name, {4}, {first, 2, 3, 4}, PartitionSpec({SpecEntry::Axis("tp")}));
  }
  // What the array of this name has first; its error's text if it cannot be read.
  std::string FirstOf(const std::string& name) {
    const auto gathered = client().arrays().Gather(client::ArraySelector::ByName(name));
    if (!gathered.ok()) return std::string(gathered.status().message());
    return StrCat(FloatsOf(gathered->view().bytes())[0]);
  }
  std::string Folder() const { return cluster_->folder() + "/data/coordinator"; }
  std::string File() const { return cluster_->folder() + "/state.snapshot"; }
  client::MeshClient& client() { return cluster_->client(); }

  std::unique_ptr<TestCluster> cluster_;
};

TEST_F(SnapshotTest, ASnapshotThatIsPutBackDeletesNothingNewerAndSaysWhatDiffers) {
  ASSERT_THAT(Put("older"), IsOk());
  ASSERT_THAT(Put("removed"), IsOk());
  const CommandResult saved = cluster_->Run({"admin", "snapshot", File(), "--output", "json"});
  ASSERT_EQ(saved.exit_code, 0) << saved.err;
  const auto document = nlohmann::json::parse(saved.out);
  EXPECT_EQ(document["size_bytes"], fs::file_size(File()));
  EXPECT_GT(document["revision"], 0);
  const std::string nowhere = cluster_->folder() + "/nowhere/state.snapshot";
  const CommandResult unsaved = cluster_->Run({"admin", "snapshot", nowhere});
  EXPECT_EQ(unsaved.exit_code, 1);
  EXPECT_THAT(unsaved.err, HasSubstr("cannot create " + nowhere + ": No such file"));
  EXPECT_EQ(fs::status(File()).permissions(), fs::perms::owner_read | fs::perms::owner_write);

  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::string newer, Put("newer", 7));
  ASSERT_THAT(cluster_->Run({"rm", "removed"}), Succeeded());
  ASSERT_THAT(cluster_->Kill("coordinator"), IsOk());

  const std::vector<std::string> flags = {"--listen=" + cluster_->address(),
                                          "--http-listen=", "--unnamed-grace=500ms",
                                          "--data-dir=" + Folder(), "--restore=" + File()};
  {
    ServerProcess restored("shardmesh-coordinator", flags);
    ASSERT_TRUE(Eventually([&] { return FirstOf("older") == "1"; })) << restored.Log();
    EXPECT_THAT(restored.Log(), AllOf(HasSubstr("a snapshot was restored"), HasSubstr("name/newer"),
                                      HasSubstr("name/removed"), HasSubstr("replaced.db")));
    EXPECT_THAT(FirstOf("newer"), HasSubstr("newer"));
    // What was deleted since is a name again, whose tiles are gone.
    EXPECT_THAT(FirstOf("removed"), HasSubstr("rank"));
    ASSERT_TRUE(Eventually([&] {
      const auto list = client().cluster().ListQuarantine();
      return list.ok() && list->arrays.size() == 2;
    }));
    const CommandResult back =
        cluster_->Run({"admin", "quarantine", "restore", newer, "--as", "newer"});
    EXPECT_EQ(back.exit_code, 0) << back.err;
    EXPECT_EQ(FirstOf("newer"), "7");
  }
  // The flag may stay.
  ServerProcess again("shardmesh-coordinator", flags);
  ASSERT_TRUE(Eventually([&] { return FirstOf("newer") == "7"; })) << again.Log();
  EXPECT_THAT(again.Log(), HasSubstr("was restored before"));
  EXPECT_EQ(FirstOf("older"), "1");
}

TEST_F(SnapshotTest, AWrongBitInTheLogOfAKilledCoordinatorLosesNoArray) {
  for (const char* name : {"first", "second", "third"}) ASSERT_THAT(Put(name), IsOk());
  ASSERT_THAT(cluster_->Kill("coordinator"), IsOk());
  const auto files = [&] {
    std::map<std::string, std::string> contents;
    for (const auto& entry : fs::directory_iterator(Folder())) {
      contents[entry.path().filename()] = ReadFile(entry.path());
    }
    return contents;
  };
  {
    std::fstream log(Folder() + "/state.db-wal", std::ios::in | std::ios::out | std::ios::binary);
    log.seekg(156);
    const int before = log.get();
    log.seekp(156);
    log.put(static_cast<char>(before ^ 1));
  }
  const auto damaged = files();
  ServerProcess refused("shardmesh-coordinator",
                        {"--listen=127.0.0.1:0", "--http-listen=", "--data-dir=" + Folder()});
  EXPECT_EQ(refused.AwaitEnd(), "exited with code 1");
  EXPECT_THAT(refused.Log(), AllOf(HasSubstr("DATA_LOSS"), HasSubstr("state.db-wal is damaged"),
                                   HasSubstr("--set-aside")));
  auto left = files();
  left["LOCK"] = damaged.at("LOCK");  // which process had the folder last
  EXPECT_TRUE(left == damaged);
  const auto before_check = files();
  const CommandResult shown = cluster_->Run({"admin", "check", Folder()});
  EXPECT_EQ(shown.exit_code, 1);
  EXPECT_THAT(shown.out, AllOf(HasSubstr("commits that were acknowledged"),
                               HasSubstr("no coordinator starts with this state")));
  EXPECT_TRUE(files() == before_check) << "a look changes nothing";

  const CommandResult aside = cluster_->Run({"admin", "check", Folder(), "--set-aside"});
  EXPECT_EQ(aside.exit_code, 0) << aside.err;
  EXPECT_EQ(files().at("damaged.db-1-wal"), damaged.at("state.db-wal"));
  ASSERT_THAT(cluster_->Restart("coordinator"), IsOk());
  ASSERT_THAT(cluster_->WaitUntilHealthy(), IsOk());
  for (const char* name : {"first", "second", "third"}) EXPECT_EQ(FirstOf(name), "1") << name;
}

TEST_F(SnapshotTest, ADamagedStateIsShownAndSetAside) {
  ASSERT_THAT(Put("spoiled"), IsOk());
  ASSERT_THAT(Put("sound"), IsOk());
  const CommandResult in_use = cluster_->Run({"admin", "check", Folder()});
  EXPECT_EQ(in_use.exit_code, 1);
  EXPECT_THAT(in_use.err, HasSubstr("process"));
  EXPECT_THAT(cluster_->Terminate("coordinator"), IsOkAndHolds("exited with code 0"));
  const CommandResult sound = cluster_->Run({"admin", "check", Folder()});
  EXPECT_EQ(sound.exit_code, 0) << sound.err;
  EXPECT_THAT(sound.out, HasSubstr("as it was written"));

  const std::string path = Folder() + "/state.db";
  std::string state = ReadFile(path);
  const std::string key = "name/spoiled";
  int flipped = 0;
  for (size_t at = state.find(key); at != std::string::npos; at = state.find(key, at + 1)) {
    state[at + key.size() - 1] ^= 1;
    ++flipped;
  }
  ASSERT_GT(flipped, 0);
  std::ofstream(path, std::ios::binary) << state;

  const CommandResult damaged = cluster_->Run({"admin", "check", Folder(), "--output", "json"});
  EXPECT_EQ(damaged.exit_code, 1);
  const auto found = nlohmann::json::parse(damaged.out);
  EXPECT_FALSE(found["sound"]);
  EXPECT_EQ(found["unreadable"].size(), static_cast<size_t>(flipped));
  EXPECT_THAT(damaged.out, HasSubstr("name/spoile"));
  const CommandResult aside = cluster_->Run({"admin", "check", Folder(), "--set-aside"});
  EXPECT_EQ(aside.exit_code, 0) << aside.err;
  EXPECT_THAT(aside.out, HasSubstr("set aside"));
  EXPECT_THAT(cluster_->Run({"admin", "check", Folder()}).out, HasSubstr("as it was written"));

  ASSERT_THAT(cluster_->Restart("coordinator"), IsOk());
  ASSERT_THAT(cluster_->WaitUntilHealthy(), IsOk());
  EXPECT_EQ(FirstOf("sound"), "1");
  EXPECT_THAT(FirstOf("spoiled"), HasSubstr("spoiled"));

  const CommandResult nowhere = cluster_->Run({"admin", "check", cluster_->folder() + "/nowhere"});
  EXPECT_EQ(nowhere.exit_code, 1);
  EXPECT_EQ(nowhere.err, StrCat("shardmesh: there is no folder ", cluster_->folder(),
                                "/nowhere (STORE_FAILED)\n"));
  const std::string above = cluster_->folder() + "/data";
  const CommandResult of_cluster = cluster_->Run({"admin", "check", above, "--output", "json"});
  EXPECT_EQ(of_cluster.exit_code, 1);
  const auto error = nlohmann::json::parse(of_cluster.err)["error"];
  EXPECT_EQ(error["code"], "NOT_FOUND");
  EXPECT_EQ(error["message"],
            StrCat("there is no database ", above,
                   "/state.db; the coordinator of this cluster keeps its state in ", Folder()));
  const CommandResult empty = cluster_->Run({"admin", "check", ""});
  EXPECT_EQ(empty.exit_code, 2);
  EXPECT_THAT(empty.err, HasSubstr("FOLDER is empty"));
}

}  // namespace
}  // namespace shardmesh::test
