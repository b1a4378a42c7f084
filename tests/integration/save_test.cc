// Checkpoints that workers save: round trips, other readers, steps, and processes that die.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/cli/local/child_process.h"
#include "client/mesh_client.h"
#include "program/program.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/checkpoint_folder.h"
#include "tensor/safetensors.h"
#include "tests/testing/eventually.h"
#include "tests/testing/replacing_saves.h"
#include "tests/testing/small_disk.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace shardmesh::test {
namespace {

using ::nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Exit code of tests/with_packages.py where no interpreter has the packages, and this is not CI.
constexpr int kPackagesMissing = 77;

// Runs a Python that has numpy and safetensors with these arguments. Returns its exit code, or -1
// if a signal ended it.
int RunWithPackages(const std::string& arguments) {
  const int status = std::system(
      StrCat("python3 ", SHARDMESH_SOURCE_DIR, "/tests/with_packages.py ", arguments).c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

class SaveTest : public testing::Test {
 protected:
  // Starts a cluster whose workers may write below root_.
  absl::StatusOr<std::unique_ptr<TestCluster>> Start(
      const std::string& mesh, const std::string& worker_failpoints = "",
      const std::string& coordinator_failpoints = "") const {
    TestCluster::Options options;
    options.mesh = mesh;
    options.worker_flags = {"--write-root=" + root_};
    if (!worker_failpoints.empty()) {
      options.worker_flags.push_back("--failpoints=" + worker_failpoints);
    }
    if (!coordinator_failpoints.empty()) {
      options.coordinator_flags.push_back("--failpoints=" + coordinator_failpoints);
    }
    return TestCluster::Start(options);
  }
  // Starts a cluster in which a worker that is stopped is not lost.
  absl::StatusOr<std::unique_ptr<TestCluster>> StartPatient(bool durable = false) const {
    TestCluster::Options options;
    options.mesh = "tp=2";
    options.durable = durable;
    options.coordinator_flags = {"--lost-after=10m"};
    options.worker_flags = {"--write-root=" + root_};
    return TestCluster::Start(options);
  }
  std::string Path(const std::string& name) const { return root_ + "/" + name; }
  static json JsonOf(const CommandResult& result) {
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return json::parse(result.out, nullptr, false);
  }
  // Loads a checkpoint of 104 tensors, of which rules cut the matrices by rows and by columns.
  void Load(TestCluster& cluster) {
    const std::string rules = Path("rules.yaml");
    std::ofstream(rules) << "rules:\n- {pattern: 'query|intermediate', spec: [tp]}\n"
                            "- {pattern: 'output.*weight', spec: [null, tp]}\n"
                            "- {pattern: '.*', spec: []}\n";
    ASSERT_THAT(cluster.Run({"make-checkpoint", "--out", Path("made.safetensors")}), Succeeded());
    const CommandResult loaded =
        cluster.Run({"load", Path("made.safetensors"), "--rules", rules, "--quiet"});
    ASSERT_EQ(loaded.exit_code, 0) << loaded.err;
  }
  void ExpectEqualToMade(const std::string& path) const {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const Checkpoint made,
                                   Checkpoint::Open(Path("made.safetensors")));
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const Checkpoint saved, Checkpoint::Open(path));
    ASSERT_EQ(saved.tensors().size(), made.tensors().size());
    for (const Checkpoint::Entry& entry : made.tensors()) {
      const Checkpoint::Entry* const found = saved.Find(entry.tensor->name);
      ASSERT_NE(found, nullptr) << entry.tensor->name;
      EXPECT_EQ(found->tensor->dtype, entry.tensor->dtype);
      EXPECT_EQ(found->tensor->shape, entry.tensor->shape);
      EXPECT_TRUE(saved.View(*found).bytes() == made.View(entry).bytes()) << entry.tensor->name;
    }
  }

  const std::string root_ = MakeTestFolder("save");
};

TEST_F(SaveTest, ASavedCheckpointIsTheLoadedOneBitForBitAndLoadsOntoAnotherMesh) {
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto cluster, Start("tp=2"));
    Load(*cluster);
    const CommandResult checked =
        cluster->Run({"save", "", Path("run"), "--validate-only", "--max-shard-size=20MiB"});
    EXPECT_EQ(checked.exit_code, 0) << checked.err;
    EXPECT_THAT(checked.out, HasSubstr("Would save 104 tensors"));
    EXPECT_FALSE(std::filesystem::exists(Path("run")));
    const CommandResult saved = cluster->Run({"save", "", Path("run"), "--max-shard-size=20MiB"});
    ASSERT_EQ(saved.exit_code, 0) << saved.err;
    EXPECT_THAT(saved.out, AllOf(HasSubstr("Saved 104 tensors"), HasSubstr(Path("run"))));
    EXPECT_TRUE(std::filesystem::exists(Path("run/model.safetensors.index.json")));
    ExpectEqualToMade(Path("run"));
    const json one = JsonOf(
        cluster->Run({"save", "", Path("one"), "--single-file", "--output=json", "--quiet"}));
    EXPECT_EQ(one["files"], 1);
    EXPECT_EQ(one["written_bytes"], one["size_bytes"]);
    ExpectEqualToMade(Path("one"));
    const json ops = JsonOf(cluster->Run({"ops", "ls", "--output=json"}));
    EXPECT_THAT(ops.dump(), HasSubstr(Path("one")));
  }
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto other, Start("tp=3"));
  const CommandResult loaded =
      other->Run({"load", Path("run"), "--rules", Path("rules.yaml"), "--quiet"});
  ASSERT_EQ(loaded.exit_code, 0) << loaded.err;
  ASSERT_THAT(other->Run({"save", "", Path("again")}), Succeeded());
  ExpectEqualToMade(Path("again"));
}

TEST_F(SaveTest, WorkersRefuseTilesWithOtherBytesThanTheSaveWrote) {
  TestCluster::Options options;
  options.mesh = "tp=2";
  options.worker_flags = {"--write-root=" + root_, "--read-root=" + root_};
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto cluster, TestCluster::Start(options));
  ASSERT_THAT(cluster->Run({"make-tensor", "--shape=64,64", "--out", Path("x.npy")}), Succeeded());
  ASSERT_THAT(cluster->Run({"put", Path("x.npy"), "--as=w", "--spec=tp,-"}), Succeeded());
  ASSERT_THAT(cluster->Run({"save", "w", Path("run"), "--single-file"}), Succeeded());
  ASSERT_THAT(cluster->Run({"rm", "w"}), Succeeded());
  const auto load = [&] {
    return cluster->Run({"load", Path("run"), "--spec=tp,-", "--source=workers", "--no-reuse"});
  };
  EXPECT_EQ(load().exit_code, 0) << load().err;
  ASSERT_THAT(cluster->Run({"rm", "w"}), Succeeded());
  {
    std::fstream file(Path("run/model.safetensors"), std::ios::in | std::ios::out);
    file.seekg(-1, std::ios::end);
    const int last = file.get();
    file.seekp(-1, std::ios::end);
    file.put(static_cast<char>(last ^ 1));
  }
  const CommandResult damaged = load();
  EXPECT_EQ(damaged.exit_code, 1);
  EXPECT_THAT(damaged.err, AllOf(HasSubstr("CHECKSUM_MISMATCH"), HasSubstr("[32,64)x[0,64)"),
                                 HasSubstr("tensor \"w\""), HasSubstr("take another checkpoint")));
  EXPECT_THAT(cluster->Run({"ls"}).out, testing::Not(HasSubstr("w ")));
  // The operation of a load fails with the command's error, also if the client found the error.
  const CommandResult refused = cluster->Run(
      {"load", Path("run"), "--spec=tp,-", "--source=client", "--no-reuse", "--output=json"});
  EXPECT_EQ(refused.exit_code, 1);
  const json error = json::parse(refused.err, nullptr, false)["error"];
  EXPECT_EQ(error["reason"], "CHECKSUM_MISMATCH") << refused.err;
  const json failed = JsonOf(cluster->Run({"ops", "ls", "--state=failed", "--output=json"}));
  ASSERT_EQ(failed["operations"].size(), 2u) << failed;
  for (const json& operation : failed["operations"]) {
    EXPECT_EQ(operation["error"]["reason"], "CHECKSUM_MISMATCH") << operation;
  }
  EXPECT_EQ(failed["operations"][1]["error"]["message"], error["message"]);
}

// The save has two tiles of rows; the loads have one, four of rows, and two of columns.
TEST_F(SaveTest, WorkersRefuseChangedBytesInLayoutsThatAreNotThoseOfTheSave) {
  const std::string file = Path("run/model.safetensors");
  const auto start = [&](const std::string& mesh) {
    TestCluster::Options options;
    options.mesh = mesh;
    options.worker_flags = {"--write-root=" + root_, "--read-root=" + root_};
    return TestCluster::Start(options);
  };
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto cluster, start("tp=2"));
    const std::string x = Path("x.npy");
    ASSERT_THAT(cluster->Run({"make-tensor", "--shape=2048,1024", "--out", x}), Succeeded());
    ASSERT_THAT(cluster->Run({"put", x, "--as=w", "--spec=tp,-"}), Succeeded());
    ASSERT_THAT(cluster->Run({"save", "w", Path("run"), "--single-file"}), Succeeded());
  }
  const auto flip = [&file] {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(-1, std::ios::end);
    const int last = stream.get();
    stream.seekp(-1, std::ios::end);
    stream.put(static_cast<char>(last ^ 1));
  };
  for (const auto& [mesh, spec] : std::vector<std::pair<std::string, std::string>>{
           {"tp=2", "-,tp"}, {"tp=4", "tp,-"}, {"tp=1", "-,-"}}) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto cluster, start(mesh));
    const auto load = [&, spec = spec] {
      return cluster->Run(
          {"load", Path("run"), "--spec=" + spec, "--source=workers", "--no-reuse"});
    };
    const CommandResult intact = load();
    ASSERT_EQ(intact.exit_code, 0) << mesh << " " << intact.err;
    ASSERT_THAT(cluster->Run({"rm", "w"}), Succeeded());
    flip();
    const CommandResult damaged = load();
    EXPECT_EQ(damaged.exit_code, 1) << mesh;
    EXPECT_THAT(damaged.err,
                AllOf(HasSubstr("CHECKSUM_MISMATCH"), HasSubstr(file), HasSubstr("tensor \"w\"")))
        << mesh;
    EXPECT_THAT(cluster->Run({"ls"}).out, testing::Not(HasSubstr("w "))) << mesh;
    flip();
  }
}

TEST_F(SaveTest, ThePackageSafetensorsReadsASavedCheckpoint) {
  const int imported = RunWithPackages("-c pass");
  if (imported == kPackagesMissing) {
    GTEST_SKIP() << "NO OTHER READER WAS TRIED: no Python has numpy and safetensors; "
                    "`./dev test packages` installs them";
  }
  ASSERT_EQ(imported, 0) << "CI has to have a Python with numpy and safetensors";
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto cluster, Start("tp=2"));
  Load(*cluster);
  ASSERT_THAT(cluster->Run({"save", "", Path("run"), "--max-shard-size=20MiB"}), Succeeded());
  std::ofstream(Path("compare.py"))
      << "import json, sys\n"
         "from safetensors.numpy import load_file\n"
         "made = load_file(sys.argv[1])\n"
         "index = json.load(open(sys.argv[2] + '/model.safetensors.index.json'))\n"
         "saved = {}\n"
         "for name in sorted(set(index['weight_map'].values())):\n"
         "    saved |= load_file(sys.argv[2] + '/' + name)\n"
         "assert saved.keys() == made.keys() == index['weight_map'].keys()\n"
         "assert all((saved[k] == made[k]).all() and saved[k].dtype == made[k].dtype for k in "
         "made)\n"
         "assert index['metadata']['total_size'] == sum(v.nbytes for v in made.values())\n";
  EXPECT_EQ(
      RunWithPackages(StrCat(Path("compare.py"), " ", Path("made.safetensors"), " ", Path("run"))),
      0);
}

TEST_F(SaveTest, StepsAreKeptLinkedAndLoadedByNumber) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto cluster, Start("tp=2"));
  const auto put = [&](const std::string& name, int seed) {
    ASSERT_EQ(cluster
                  ->Run({"make-tensor", "--shape=256,1024", StrCat("--seed=", seed), "--out",
                         Path("x.npy")})
                  .exit_code,
              0);
    ASSERT_THAT(cluster->Run({"put", Path("x.npy"), "--as", name, "--spec=tp,-"}), Succeeded());
  };
  put("m/frozen", 9);
  for (int step = 1; step <= 3; ++step) {
    put("m/trained", step);
    const json saved =
        JsonOf(cluster->Run({"save", "m/", Path("run"), "--strip-prefix", StrCat("--step=", step),
                             "--keep=2", "--max-shard-size=1MiB", "--output=json"}));
    EXPECT_EQ(saved["linked_files"], step == 1 ? 0 : 1) << saved;
    EXPECT_EQ(saved["removed_steps"], step == 3 ? json({1}) : json::array()) << saved;
  }
  EXPECT_FALSE(std::filesystem::exists(Path("run/step-00000001")));
  std::ofstream(Path("w.yaml")) << "rules:\n- {pattern: '.*', spec: [null, tp]}\n";
  const CommandResult by_step =
      cluster->Run({"load", Path("run"), "--step=2", "--rules", Path("w.yaml"), "--quiet"});
  EXPECT_EQ(by_step.exit_code, 0) << by_step.err;
  const CommandResult missing =
      cluster->Run({"load", Path("run"), "--step=1", "--rules", Path("w.yaml"), "--quiet"});
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_THAT(missing.err, HasSubstr("complete steps 2, 3"));
  const CommandResult twice = cluster->Run({"save", "m/", Path("run"), "--step=3"});
  EXPECT_EQ(twice.exit_code, 1);
  EXPECT_THAT(twice.err,
              AllOf(HasSubstr("ALREADY_EXISTS"),
                    HasSubstr("/step-00000003 has a complete checkpoint: the same command with "
                              "--overwrite replaces it; another number for --step, or another "
                              "folder, keeps it")));
  EXPECT_THAT(cluster->Run({"save", "m/", Path("run"), "--step=3", "--overwrite"}), Succeeded());
  EXPECT_THAT(cluster->Run({"save", "m/", Path("run"), "--step=4", "--keep=2"}).out,
              HasSubstr("Removed the checkpoint of step 2\nKept the checkpoints of steps 3, 4\n"));
  EXPECT_THAT(cluster->Run({"save", "m/", Path("run"), "--step=5", "--keep=1"}).out,
              HasSubstr("Removed the checkpoints of steps 3, 4\nKept the checkpoint of step 5\n"));
}

// A run that goes back to an earlier step leaves the later steps, and is told so.
TEST_F(SaveTest, ASaveBelowTheLatestStepSaysWhichStepsStayAndWhichOneLoads) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto cluster, Start("tp=2"));
  ASSERT_THAT(cluster->Run({"make-tensor", "--shape=8,8", "--out", Path("x.npy")}), Succeeded());
  ASSERT_THAT(cluster->Run({"put", Path("x.npy"), "--as=w", "--spec=tp,-"}), Succeeded());
  for (const char* const step : {"--step=100", "--step=200"}) {
    const CommandResult saved = cluster->Run({"save", "", Path("run"), step});
    ASSERT_EQ(saved.exit_code, 0) << saved.err;
    EXPECT_THAT(saved.out, Not(HasSubstr("is not the latest")));
  }
  const CommandResult back = cluster->Run({"save", "", Path("run"), "--step=150", "--keep=1"});
  EXPECT_EQ(back.exit_code, 0) << back.err;
  EXPECT_THAT(
      back.out,
      HasSubstr(StrCat("Removed the checkpoint of step 100\nKept the checkpoint of step 150\n"
                       "Step 150 is not the latest: the folder also has step 200, which --keep "
                       "neither counts nor removes. `load ",
                       Path("run"), "` takes step 200, with `--step 150` the one that was saved")));
  const json again =
      JsonOf(cluster->Run({"save", "", Path("run"), "--step=160", "--keep=2", "--output=json"}));
  EXPECT_EQ(again["removed_steps"], json::array()) << again;
  EXPECT_EQ(again["kept_steps"], json({150, 160, 200})) << again;
}

// 20 tensors of 1 MiB are one file by default: the first change parts them.
TEST_F(SaveTest, AChangedTensorIsWrittenAloneFromItsSecondChangeOn) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto cluster, Start("tp=2"));
  const auto put = [&](int tensor, int seed) {
    const std::string x = Path("x.npy");
    ASSERT_EQ(cluster->Run({"make-tensor", "--shape=256,1024", StrCat("--seed=", seed), "--out", x})
                  .exit_code,
              0);
    ASSERT_THAT(cluster->Run({"put", x, "--as", StrCat("m/", tensor), "--spec=tp,-"}), Succeeded());
  };
  for (int tensor = 10; tensor < 30; ++tensor) put(tensor, tensor);
  for (int step = 1; step <= 3; ++step) {
    if (step > 1) put(17, 100 + step);
    const json saved =
        JsonOf(cluster->Run({"save", "m/", Path("run"), StrCat("--step=", step), "--output=json"}));
    EXPECT_EQ(saved["size_bytes"], 20 << 20) << saved;
    if (step == 3) {
      EXPECT_EQ(saved["written_bytes"], 1 << 20) << saved;
      EXPECT_EQ(saved["linked_files"].get<int>() + 1, saved["files"].get<int>()) << saved;
    }
  }
  // Other readers take the index, or find the tensors in the headers.
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Checkpoint changed,
                                 Checkpoint::Open(Path("run/step-00000003")));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Checkpoint first,
                                 Checkpoint::Open(Path("run/step-00000001")));
  ASSERT_EQ(changed.tensors().size(), 20);
  for (const Checkpoint::Entry& entry : first.tensors()) {
    const Checkpoint::Entry* const found = changed.Find(entry.tensor->name);
    ASSERT_NE(found, nullptr) << entry.tensor->name;
    EXPECT_EQ(changed.View(*found).bytes() == first.View(entry).bytes(),
              entry.tensor->name != "m/17")
        << entry.tensor->name;
  }
  std::ofstream(Path("w.yaml")) << "rules:\n- {pattern: '.*', spec: [null, tp]}\n";
  const CommandResult loaded =
      cluster->Run({"load", Path("run"), "--rules", Path("w.yaml"), "--quiet"});
  EXPECT_EQ(loaded.exit_code, 0) << loaded.err;
}

TEST_F(SaveTest, ADetachedSaveGoesOnWhenItsCommandHasEnded) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto cluster, StartPatient());
  Load(*cluster);
  // The save cannot end before the command.
  ASSERT_THAT(cluster->Signal("worker-1", SIGSTOP), IsOk());
  const json begun = JsonOf(cluster->Run({"save", "", Path("run"), "--detach", "--output=json"}));
  EXPECT_THAT(cluster->Signal("worker-1", SIGCONT), IsOk());
  EXPECT_EQ(begun["tensors"], 104);
  const auto id = begun["operation_id"].get<std::string>();
  const CommandResult watched = cluster->Run({"ops", "watch", id});
  EXPECT_EQ(watched.exit_code, 0) << watched.err;
  EXPECT_THAT(watched.out, HasSubstr("(save) is done"));
  ExpectEqualToMade(Path("run"));
  const CommandResult loaded =
      cluster->Run({"load", Path("run"), "--rules", Path("rules.yaml"), "--quiet"});
  EXPECT_EQ(loaded.exit_code, 0) << loaded.err;
  const CommandResult text = cluster->Run({"save", "", Path("other"), "--detach"});
  EXPECT_THAT(text.out, AllOf(HasSubstr("Began to save 104 tensors"),
                              HasSubstr("`shardmesh ops watch "), HasSubstr(" --force`")));
}

TEST_F(SaveTest, AClientBeginsASaveThatAnotherOneWaitsForOrCancels) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto cluster, StartPatient());
  Load(*cluster);
  client::ClusterClient& operations = cluster->client().cluster();
  for (const bool is_cancelled : {true, false}) {
    std::string id;
    ASSERT_THAT(cluster->Signal("worker-1", SIGSTOP), IsOk());
    {
      SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto trainer,
                                     client::MeshClient::Connect(cluster->address()));
      SHARDMESH_ASSERT_OK_AND_ASSIGN(
          const client::BegunSave begun,
          trainer->arrays().BeginSave("", Path("run"), {.detached = true}));
      EXPECT_EQ(begun.tensors, 104);
      id = begun.operation_id;
    }
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::Operation shown, operations.GetOperation(id));
    EXPECT_EQ(shown.kind, client::OperationKind::kSave);
    EXPECT_EQ(shown.state, client::OperationState::kRunning);
    if (is_cancelled) {
      EXPECT_THAT(operations.CancelOperation(id),
                  StatusIs(absl::StatusCode::kPermissionDenied, Reason::kNotOwner));
      EXPECT_THAT(operations.ForceCancelOperation(id), IsOk());
      EXPECT_THAT(cluster->Signal("worker-1", SIGCONT), IsOk());
      EXPECT_THAT(cluster->client().arrays().WaitSave(id), StatusIs(absl::StatusCode::kCancelled));
      EXPECT_TRUE(Eventually([&] { return !std::filesystem::exists(Path("run")); }));
      continue;
    }
    EXPECT_THAT(cluster->Signal("worker-1", SIGCONT), IsOk());
    int64_t reports = 0;
    SHARDMESH_ASSERT_OK_AND_ASSIGN(
        const client::SavedCheckpoint saved,
        cluster->client().arrays().WaitSave(id, [&](int64_t, int64_t) { ++reports; }));
    EXPECT_GT(reports, 0);
    EXPECT_EQ(saved.written_bytes, saved.size_bytes);
    ExpectEqualToMade(Path("run"));
  }
  EXPECT_THAT(cluster->client().arrays().WaitSave("0123456789abcdef0123456789abcdef"),
              StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(SaveTest, EqualBytesOfAnotherClusterAndOfStepsAreLinked) {
  const auto save = [&](TestCluster& cluster, const std::string& prefix, const std::string& folder,
                        int step, const std::string& file_bytes) {
    return JsonOf(cluster.Run({"save", prefix, Path(folder), StrCat("--step=", step),
                               "--max-shard-size=" + file_bytes, "--output=json", "--quiet"}));
  };
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto cluster, Start("tp=2"));
    Load(*cluster);
    EXPECT_EQ(save(*cluster, "", "run", 1, "20MiB")["linked_files"], 0);
  }
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto cluster, Start("tp=2"));
  const CommandResult loaded =
      cluster->Run({"load", Path("run"), "--rules", Path("rules.yaml"), "--quiet"});
  ASSERT_EQ(loaded.exit_code, 0) << loaded.err;
  json saved = save(*cluster, "", "run", 2, "20MiB");
  EXPECT_GT(saved["files"], 1) << saved;
  EXPECT_EQ(saved["linked_files"], saved["files"]) << saved;
  EXPECT_EQ(saved["written_bytes"], 0) << saved;
  ExpectEqualToMade(Path("run/step-00000002"));
  // One changed byte in the file of the previous checkpoint: only this file is written.
  {
    std::fstream file(Path("run/step-00000002/model-00002-of-0000") +
                          std::to_string(saved["files"].get<int>()) + ".safetensors",
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(-1, std::ios::end);
    const int last = file.get();
    file.seekp(-1, std::ios::end);
    file.put(static_cast<char>(last ^ 1));
  }
  saved = save(*cluster, "", "run", 3, "20MiB");
  EXPECT_EQ(saved["linked_files"].get<int>() + 1, saved["files"].get<int>()) << saved;
  ExpectEqualToMade(Path("run/step-00000003"));
  // A result that a step computes again is another array.
  const auto put = [&](int seed) {
    const std::string x = Path("x.npy");
    ASSERT_EQ(cluster->Run({"make-tensor", "--shape=512,512", StrCat("--seed=", seed), "--out", x})
                  .exit_code,
              0);
    ASSERT_THAT(cluster->Run({"put", x, "--as=r/x", "--spec=-,-"}), Succeeded());
  };
  put(1);
  for (int step = 1; step <= 3; ++step) {
    if (step == 3) put(2);
    if (step < 3) {
      const CommandResult computed = cluster->Run({"matmul", "r/x", "r/x", "--as=r/y"});
      ASSERT_EQ(computed.exit_code, 0) << computed.err;
    }
    saved = save(*cluster, "r/", "steps", step, "1MiB");
    EXPECT_EQ(saved["files"], 2) << saved;
    EXPECT_EQ(saved["linked_files"], step == 1 ? 0 : step == 2 ? 2 : 1) << saved;
    EXPECT_EQ(saved["written_bytes"], step == 1 ? 2 << 20 : step == 2 ? 0 : 1 << 20) << saved;
    if (step == 1) {
      ASSERT_THAT(cluster->Run({"rm", "r/y"}), Succeeded());
    }
  }
}

TEST_F(SaveTest, AFolderWithAPlainCheckpointAndStepsSaysWhichIsTaken) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto cluster, Start("tp=2"));
  Load(*cluster);
  ASSERT_THAT(cluster->Run({"save", "", Path("both"), "--step=300"}), Succeeded());
  const auto load = [&](const std::vector<std::string>& more) {
    std::vector<std::string> command = {"load", Path("both"), "--rules", Path("rules.yaml"),
                                        "--quiet"};
    command.insert(command.end(), more.begin(), more.end());
    return cluster->Run(command);
  };
  // As a save leaves it that ended before its marker was written.
  std::filesystem::copy_file(Path("both/step-00000300/shardmesh.manifest.json"),
                             Path("both/shardmesh.manifest.json"));
  EXPECT_THAT(load({}).out, AllOf(HasSubstr("step-00000300, the latest complete step"),
                                  HasSubstr("itself is unfinished"), HasSubstr("Loaded 104")));
  EXPECT_THAT(
      cluster
          ->Run({"load", Path("both"), "--rules", Path("rules.yaml"), "--quiet", "--validate-only"})
          .out,
      HasSubstr("Would load"));
  const json step = JsonOf(load({"--output=json"}));
  EXPECT_EQ(step["step"], 300);
  EXPECT_EQ(step["checkpoint"], Path("both/step-00000300"));
  const CommandResult saved = cluster->Run({"save", "", Path("both")});
  ASSERT_EQ(saved.exit_code, 0) << saved.err;
  EXPECT_THAT(saved.out, HasSubstr("The folder also has 1 complete step"));
  EXPECT_THAT(load({}).out, HasSubstr("itself; --step 300 takes the latest"));
  EXPECT_EQ(JsonOf(load({"--output=json"}))["step"], nullptr);
}

// A save that died midway leaves the checkpoint aside: readers wait for it as long as for a save
// that runs, unless their own time ends before.
TEST_F(SaveTest, AReaderOfACheckpointThatIsBeingReplacedHeedsItsDeadline) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto cluster, Start("tp=2"));
  std::filesystem::create_directories(Path("midway/.shardmesh-save/.aside"));
  std::ofstream(Path("midway/shardmesh.manifest.json")) << "{}";
  const std::vector<std::string> commands[] = {{"load", Path("midway"), "--spec", "-"},
                                               {"put", Path("midway:w"), "--as=w", "--spec", "-"}};
  for (std::vector<std::string> command : commands) {
    command.insert(command.end(), {"--deadline", "100ms"});
    const CommandResult late = cluster->Run(command);
    EXPECT_NE(late.exit_code, 0);
    EXPECT_THAT(late.err,
                AllOf(HasSubstr("while a save replaced the checkpoint"), HasSubstr("(DEADLINE)")))
        << command[0];
  }
}

// The wait for a save and the put after it share the time of --deadline.
TEST_F(SaveTest, TheTimeToOpenACheckpointCountsForTheDeadlineOfTheLoad) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto cluster, Start("tp=2"));
  Load(*cluster);
  ASSERT_THAT(cluster->Run({"save", "", Path("late")}), Succeeded());
  const std::string marker = Path("late/shardmesh.manifest.json");
  std::filesystem::rename(marker, Path("marker"));
  std::filesystem::create_directories(Path("late/.shardmesh-save/.aside"));
  std::ofstream(Path("late/.shardmesh-save/.aside/shardmesh.manifest.json")) << "{}";
  // The coordinator does not answer, so that the command takes all the time that it has.
  ASSERT_THAT(cluster->Signal("coordinator", SIGSTOP), IsOk());
  const absl::Time begin = absl::Now();
  std::thread saver([&] {
    absl::SleepFor(absl::Seconds(3));
    std::filesystem::rename(Path("marker"), marker);
    std::filesystem::remove_all(Path("late/.shardmesh-save"));
  });
  const CommandResult late = cluster->Run(
      {"load", Path("late"), "--rules", Path("rules.yaml"), "--quiet", "--deadline=4s"});
  const absl::Duration time = absl::Now() - begin;
  saver.join();
  EXPECT_THAT(cluster->Signal("coordinator", SIGCONT), IsOk());
  EXPECT_NE(late.exit_code, 0);
  EXPECT_THAT(late.err, Not(HasSubstr("while a save replaced the checkpoint")));
  EXPECT_LT(time, absl::Seconds(6)) << late.err;  // 7 s, if each part had 4 s
}

TEST_F(SaveTest, WrongUseIsRefusedWithAdvice) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto cluster, Start("tp=2"));
  const struct {
    std::vector<std::string> arguments;
    int exit_code;
    std::string text;
  } kCases[] = {
      {{"save", "", Path("run"), "--keep=3"}, 2, "--step"},
      {{"save", "", Path("run"), "--keep=0", "--step=1"}, 2, "1 to 1000000"},
      {{"save", "", Path("run"), "--single-file", "--max-shard-size=1GiB"}, 2, "exclude"},
      {{"save", "", Path("run"), "--step=-1"}, 2, "--step"},
      {{"save", "", Path("run"), "--detach", "--validate-only"}, 2, "exclude"},
      {{"save", "", Path("run")}, 1, "no named array"},
      {{"save", "nothing/", Path("run")}, 1, "nothing/"},
  };
  for (const auto& [arguments, exit_code, text] : kCases) {
    const CommandResult result = cluster->Run(arguments);
    EXPECT_EQ(result.exit_code, exit_code) << text;
    EXPECT_THAT(result.err, HasSubstr(text));
  }
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::string id,
                                 PutFloats(cluster->client(), "w", {2}, {{1, 2}}, {}));
  const CommandResult outside = cluster->Run({"save", "", testing::TempDir() + "/elsewhere"});
  EXPECT_EQ(outside.exit_code, 1);
  EXPECT_THAT(outside.err, AllOf(HasSubstr("write roots"), HasSubstr(root_)));
}

TEST_F(SaveTest, ACancelledSaveLeavesNothing) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto cluster, Start("tp=2", "save.tiles=delay"));
  Load(*cluster);
  client::Cancellation cancellation;
  client::SaveOptions options;
  std::thread canceller;
  options.on_begun = [&](const std::string&) {
    canceller = std::thread([&cancellation] {
      absl::SleepFor(absl::Milliseconds(100));
      cancellation.Cancel();
    });
  };
  EXPECT_THAT(cluster->client().arrays().SaveCheckpoint("", Path("run"), options,
                                                        {.cancellation = &cancellation}),
              StatusIs(absl::StatusCode::kCancelled));
  canceller.join();
  const absl::Time end = absl::Now() + absl::Seconds(20);
  while (std::filesystem::exists(Path("run")) && absl::Now() < end) {
    absl::SleepFor(absl::Milliseconds(20));
  }
  EXPECT_FALSE(std::filesystem::exists(Path("run")));
}

TEST_F(SaveTest, AWorkerThatIsStoppedDuringAPieceEndsAsAlways) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto cluster, Start("tp=2", "save.write=delay"));
  Load(*cluster);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto begun,
                                 cluster->client().arrays().BeginSave("", Path("run")));
  absl::SleepFor(absl::Milliseconds(100));
  EXPECT_THAT(cluster->Terminate("worker-0"), test::IsOkAndHolds(HasSubstr("exited with code 0")));
}

TEST_F(SaveTest, ASaveThatRunsOutOfTimeSaysWhatItLeavesAndThatItCanGoOn) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto cluster, StartPatient());
  ASSERT_THAT(
      PutFloats(cluster->client(), "w", {2}, {{1, 2}}, PartitionSpec({SpecEntry::Axis("tp")})),
      IsOk());
  // Each worker writes a tile. The save cannot end while a worker is stopped.
  ASSERT_THAT(cluster->Signal("worker-1", SIGSTOP), IsOk());
  const std::string folder = Path("run");
  const CommandResult late = cluster->Run({"save", "", folder, "--deadline=3s"});
  EXPECT_THAT(cluster->Signal("worker-1", SIGCONT), IsOk());
  EXPECT_NE(late.exit_code, 0);
  EXPECT_THAT(late.err,
              AllOf(HasSubstr("the save was given up; if 64 MiB or more were written, they stay "
                              "in " +
                              folder + "/.shardmesh-save: repeat the command to go on"),
                    HasSubstr("--deadline"), HasSubstr("(DEADLINE)")));
}

TEST_F(SaveTest, ACancelledCommandSaysWhatItLeavesAndThatItCanGoOn) {
  // Commands may be slow, and the worker that is stopped meanwhile must not be lost.
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto cluster, StartPatient());
  ASSERT_THAT(
      PutFloats(cluster->client(), "w", {2}, {{1, 2}}, PartitionSpec({SpecEntry::Axis("tp")})),
      IsOk());
  for (const bool by_signal : {true, false}) {
    ASSERT_THAT(cluster->WaitUntilHealthy(), IsOk());
    // Each worker writes a tile. The save cannot end while a worker is stopped.
    ASSERT_THAT(cluster->Signal("worker-1", SIGSTOP), IsOk());
    client::ProcessOptions options;
    const std::string folder = Path(StrCat("run-", by_signal));
    options.command = {SHARDMESH_BINARY_DIR "/shardmesh", "save", "", folder,
                       StrCat("--address=", cluster->address())};
    options.log_path = Path(StrCat("save-", by_signal, ".log"));
    SHARDMESH_ASSERT_OK_AND_ASSIGN(client::ChildProcess save, client::ChildProcess::Start(options));
    // Without further processes, so that the worker is stopped for a short time.
    const auto running_save = [&]() -> std::optional<int64_t> {
      const auto running =
          cluster->client().cluster().ListOperations({client::OperationState::kRunning});
      EXPECT_THAT(running, IsOk());
      if (!running.ok()) return std::nullopt;
      for (const client::Operation& operation : *running) {
        if (operation.kind == client::OperationKind::kSave) return operation.number;
      }
      return std::nullopt;
    };
    EXPECT_TRUE(Eventually([&] { return running_save().has_value(); }));
    const std::string number = StrCat(running_save().value_or(0));
    if (by_signal) {
      EXPECT_THAT(client::SendSignal(save.id(), SIGINT), IsOk());
    } else {
      const CommandResult cancel = cluster->Run({"ops", "cancel", number, "--force"});
      EXPECT_EQ(cancel.exit_code, 0) << cancel.err;
      EXPECT_THAT(cluster->Signal("worker-1", SIGCONT), IsOk());
    }
    EXPECT_TRUE(client::WaitUntilGone(save.id(), absl::Now() + absl::Seconds(60)));
    if (by_signal) {
      EXPECT_THAT(cluster->Signal("worker-1", SIGCONT), IsOk());
    }
    EXPECT_THAT(client::ReadLog(save.log_path()),
                AllOf(HasSubstr(StrCat(by_signal ? "interrupted: " : "",
                                       "nothing was saved; if 64 MiB or more were written, they "
                                       "stay in ",
                                       folder, "/.shardmesh-save")),
                      HasSubstr("repeat the command to go on")));
    save.Ended();
    EXPECT_TRUE(Eventually([&] { return !running_save().has_value(); }));
  }
}

TEST_F(SaveTest, ADeadlineNamesTheWorkerThatIsStopped) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto cluster, Start("tp=2"));
  ASSERT_THAT(
      PutFloats(cluster->client(), "w", {2}, {{1, 2}}, PartitionSpec({SpecEntry::Axis("tp")})),
      IsOk());
  client::SaveOptions options;
  for (const bool has_progress : {false, true}) {
    if (has_progress) options.progress = [](int64_t, int64_t) {};
    ASSERT_THAT(cluster->Signal("worker-1", SIGSTOP), IsOk());
    const absl::Status late = cluster->client()
                                  .arrays()
                                  .SaveCheckpoint("", Path(StrCat("run-", has_progress)), options,
                                                  {.timeout = absl::Seconds(2)})
                                  .status();
    EXPECT_THAT(cluster->Signal("worker-1", SIGCONT), IsOk());
    EXPECT_THAT(late, StatusIs(absl::StatusCode::kDeadlineExceeded, Reason::kDeadline));
    EXPECT_THAT(std::string(late.message()), HasSubstr("worker-1"));
  }
  const auto has_ended = [&] {
    return JsonOf(cluster->Run(
        {"ops", "ls", "--kind=save", "--state=running", "--output=json"}))["operations"]
        .empty();
  };
  EXPECT_TRUE(Eventually(has_ended)) << "a save whose caller gave up is cancelled";
}

TEST_F(SaveTest, AProcessThatIsKilledLeavesNoCheckpointThatLooksComplete) {
  const struct {
    std::string worker;
    std::string coordinator;
  } kFailpoints[] = {
      {"save.open=crash", ""},
      {"save.make=crash", ""},
      {"save.tiles=crash", ""},
      {"save.write=crash", ""},
      {"save.publish=crash", ""},
      {"save.move=crash:2", ""},
      {"save.marker=crash", ""},
      {"", "attach.save_answer=crash"},
      {"", "attach.save_answer=crash:4"},
  };
  for (const auto& [worker, coordinator] : kFailpoints) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto cluster, Start("tp=2", worker, coordinator));
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::string id,
                                   PutFloats(cluster->client(), "w", {4}, {{1, 2, 3, 4}},
                                             PartitionSpec({SpecEntry::Axis("tp")})));
    // A detached save ends with the coordinator all the same.
    const client::SaveOptions options{.detached = !coordinator.empty()};
    const absl::Status killed =
        cluster->client()
            .arrays()
            .SaveCheckpoint("", Path("run"), options, {.timeout = absl::Seconds(10)})
            .status();
    EXPECT_FALSE(killed.ok()) << worker << coordinator;
    if (!worker.empty()) {
      EXPECT_EQ(ReasonOf(killed), Reason::kWorkerLost) << worker << ": " << killed;
      EXPECT_THAT(killed.message(), HasSubstr("worker-")) << worker;
    }
    EXPECT_FALSE(FindCheckpointFolder(Path("run")).ok()) << worker << coordinator;
  }
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto cluster, Start("tp=2"));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::string id,
                                 PutFloats(cluster->client(), "w", {4}, {{1, 2, 3, 4}},
                                           PartitionSpec({SpecEntry::Axis("tp")})));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::SavedCheckpoint saved,
                                 cluster->client().arrays().SaveCheckpoint("", Path("run")));
  EXPECT_EQ(saved.tensors, 1);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Checkpoint checkpoint, Checkpoint::Open(Path("run")));
  EXPECT_EQ(FloatsOf(checkpoint.View(checkpoint.tensors().front()).bytes()),
            std::vector<float>({1, 2, 3, 4}));
}

TEST_F(SaveTest, AClientWhoseCoordinatorIsRestartedLearnsWhatToDo) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto cluster, StartPatient(/*durable=*/true));
  ASSERT_THAT(
      PutFloats(cluster->client(), "w", {2}, {{1, 2}}, PartitionSpec({SpecEntry::Axis("tp")})),
      IsOk());
  // The save cannot end before the coordinator is killed, because a worker is stopped.
  ASSERT_THAT(cluster->Signal("worker-1", SIGSTOP), IsOk());
  absl::Notification begun;
  client::SaveOptions options;
  options.on_begun = [&](const std::string&) { begun.Notify(); };
  absl::Status forgotten;
  std::thread saver([&] {
    forgotten = cluster->client()
                    .arrays()
                    .SaveCheckpoint("", Path("run"), options, {.timeout = absl::Seconds(60)})
                    .status();
  });
  EXPECT_TRUE(begun.WaitForNotificationWithTimeout(absl::Seconds(30)));
  EXPECT_THAT(cluster->Kill("coordinator"), IsOk());
  EXPECT_THAT(cluster->Signal("worker-1", SIGCONT), IsOk());
  EXPECT_THAT(cluster->Restart("coordinator"), IsOk());
  saver.join();
  EXPECT_THAT(forgotten, StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
  EXPECT_EQ(FactOf(forgotten, fact::kKind), "operation");
  EXPECT_THAT(std::string(forgotten.message()),
              AllOf(HasSubstr("the coordinator was restarted"), HasSubstr(Path("run")),
                    HasSubstr("repeat the save"), HasSubstr("ALREADY_EXISTS")));
  ASSERT_THAT(cluster->WaitUntilHealthy(), IsOk());
  // The first save may have ended well, and its workers may still hold the folder for a moment.
  absl::Status again;
  EXPECT_TRUE(Eventually([&] {
    again = cluster->client().arrays().SaveCheckpoint("", Path("run")).status();
    return again.ok() || (absl::IsAlreadyExists(again) && HasMarker(Path("run")));
  })) << again;
  EXPECT_TRUE(HasMarker(Path("run")));
}

// The coordinator cancels the save of a client that is gone, or ends a detached one.
TEST_F(SaveTest, AClientThatIsKilledLeavesAWholeCheckpointOrNone) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto cluster, Start("tp=2", "save.tiles=delay"));
  Load(*cluster);
  const auto saves = [&](const std::string& flag) {
    return JsonOf(cluster->Run({"ops", "ls", "--kind=save", flag, "--output=json"}))["operations"];
  };
  for (const bool detached : {false, true}) {
    SCOPED_TRACE(detached);
    const std::string run = Path(detached ? "detached" : "run");
    std::vector<std::string> flags = {"save", "", run, "--address=" + cluster->address()};
    if (detached) flags.emplace_back("--detach");
    {
      const ServerProcess killed("shardmesh", flags);
      EXPECT_TRUE(Eventually([&] { return absl::StrContains(saves("--quiet").dump(), run); }))
          << killed.Log();
    }
    EXPECT_TRUE(Eventually([&] { return saves("--state=running").empty(); }));
    EXPECT_TRUE(Eventually([&] { return !std::filesystem::exists(run) || HasMarker(run); }));
    if (HasMarker(run)) {
      ExpectEqualToMade(run);
    } else {
      EXPECT_FALSE(detached) << "a detached save goes on without its client";
    }
    const bool is_complete = HasMarker(run);
    const CommandResult again = cluster->Run({"save", "", run, "--quiet"});
    EXPECT_EQ(again.exit_code, is_complete ? 1 : 0) << again.err;
    EXPECT_EQ(absl::StrContains(again.err, "ALREADY_EXISTS"), is_complete) << again.err;
    ExpectEqualToMade(run);
  }
}

TEST_F(SaveTest, ACheckpointSavedWhilePutsAndStepsGoOnIsOfOneMoment) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto cluster, Start("tp=2"));
  const PartitionSpec rows({SpecEntry::Axis("tp")});
  const auto put_both = [&](float value) {
    const std::vector<float> elements(4096, value);
    const absl::Span<const char> bytes(reinterpret_cast<const char*>(elements.data()),
                                       elements.size() * sizeof(float));
    const TensorView view = *TensorView::Create(Dtype::kF32, {4096}, bytes);
    return cluster->client().arrays().PutTensors(
        {{{.name = "a", .view = view, .spec = rows}, {.name = "b", .view = view, .spec = rows}}});
  };
  // Two results of one step, each a whole copy of "a" on each rank.
  const auto copy_twice = [&] {
    const CollectiveOp gather{.input = 0, .kind = CollectiveKind::kAllGather, .axes = {"tp"}};
    return cluster->client().compute().Execute(
        {.work = Program{.operand_count = 1, .ops = {gather, gather}, .outputs = {1, 2}},
         .operands = {client::ArraySelector::ByName("a")},
         .output = {.names = {"c", "d"}}});
  };
  ASSERT_THAT(put_both(0), IsOk());
  ASSERT_THAT(copy_twice(), IsOk());
  std::atomic<bool> is_over = false;
  std::thread putter([&] {
    for (float value = 1; !is_over; ++value) EXPECT_THAT(put_both(value), IsOk());
  });
  std::thread stepper([&] {
    while (!is_over) EXPECT_THAT(copy_twice(), IsOk());
  });
  for (int64_t step = 0; step < 10; ++step) {
    client::SaveOptions options;
    options.step = step;
    EXPECT_THAT(cluster->client().arrays().SaveCheckpoint("", Path("run"), options), IsOk());
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const Checkpoint saved, Checkpoint::Open(Path("run"), step));
    const auto floats_of = [&saved](const std::string& name) {
      return FloatsOf(saved.View(*saved.Find(name)).bytes());
    };
    const std::vector<float> a = floats_of("a");
    const std::vector<float> c = floats_of("c");
    EXPECT_EQ(a, std::vector<float>(4096, a.front()));
    EXPECT_EQ(a, floats_of("b"));
    EXPECT_EQ(c, std::vector<float>(4096, c.front()));
    EXPECT_EQ(c, floats_of("d"));
    EXPECT_LE(c.front(), a.front()) << "a copy is newer than what it was made of";
  }
  is_over = true;
  putter.join();
  stepper.join();
}

// Saves replace a checkpoint by one with other files and other tensors, and back. On a slow machine
// one save may take longer than a command waits for it. The command then says so, and is repeated.
TEST_F(SaveTest, LoadsBesideSavesThatReplaceTheCheckpointAreOfOneCheckpoint) {
  TestCluster::Options options;
  options.mesh = "tp=2";
  options.worker_flags = {"--write-root=" + root_, "--read-root=" + root_};
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto cluster, TestCluster::Start(options));
  // Two tensors take more than the smallest file.
  const Shape shape = {200'000};
  const PartitionSpec rows({SpecEntry::Axis("tp")});
  const std::pair<const char*, float> tensors[] = {
      {"a/x", 1}, {"a/y", 1}, {"b/x", 2}, {"b/y", 2}, {"b/z", 2}};
  for (const auto& [name, value] : tensors) {
    const std::vector<float> elements(200'000, value);
    ASSERT_THAT(PutFloats(cluster->client(), name, shape, elements, rows), IsOk());
  }
  const std::string run = Path("run");
  const auto save = [&](size_t number) {
    const client::SaveOptions a{.single_file = true, .overwrite = true, .strip_prefix = true};
    const client::SaveOptions b{.max_file_bytes = 1 << 20, .overwrite = true, .strip_prefix = true};
    const bool is_a = number % 2 == 0;
    EXPECT_THAT(cluster->client().arrays().SaveCheckpoint(is_a ? "a/" : "b/", run, is_a ? a : b),
                IsOk());
  };
  save(0);
  const auto value_of = [&](const std::string& name) -> float {
    const auto gathered = cluster->client().arrays().Gather(client::ArraySelector::ByName(name));
    EXPECT_THAT(gathered, IsOk()) << name;
    if (!gathered.ok()) return 0;
    const std::vector<float> floats = FloatsOf(gathered->view().bytes());
    EXPECT_EQ(floats, std::vector<float>(floats.size(), floats.front())) << name;
    return floats.front();
  };
  const std::vector<std::string> load = {"load", run, "--spec=tp", "--quiet", "-ojson"};
  const std::vector<std::string> put = {"put",    run + ":x",  run + ":y", "--as=x",
                                        "--as=y", "--spec=tp", "--quiet",  "-ojson"};
  const auto tells_of_a_save = [](const CommandResult& result) {
    return absl::StrContains(result.err, "(FILE_CHANGED)") ||
           absl::StrContains(result.err, "(BAD_FILE)") ||
           absl::StrContains(result.err, "No such file or directory");
  };
  constexpr int kMaxRuns = 5;
  ReplacingSaves saves([&](size_t number) { save(number + 1); });
  for (int round = 0; round < 2; ++round) {
    for (const std::string source : {"--source=workers", "--source=client"}) {
      for (std::vector<std::string> command : {load, put}) {
        command.insert(command.end(), {source, "--no-reuse"});
        CommandResult result;
        // The saves of one burst end sometime, and the run after them succeeds.
        for (int runs = 1;; ++runs) {
          result = cluster->Run(command);
          if (result.exit_code == 0 || runs == kMaxRuns || !tells_of_a_save(result)) break;
        }
        saves.Continue();
        ASSERT_EQ(result.exit_code, 0) << command.front() << " " << source << ": " << result.err;
        const float x = value_of("x");
        EXPECT_EQ(x, value_of("y")) << command.front() << " " << source << ": a mixture";
        if (command.front() == "put") continue;
        const size_t count = json::parse(result.out)["tensors"].size();
        EXPECT_EQ(count, x == 1 ? 2u : 3u);
        EXPECT_EQ(value_of(count == 3 ? "z" : "x"), x);
      }
    }
  }
}

TEST_F(SaveTest, OfTwoSavesIntoOneFolderAtOnceOneIsRefusedAndBothCanFollow) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto cluster, Start("tp=2", "save.tiles=delay"));
  ASSERT_THAT(
      PutFloats(cluster->client(), "w", {4}, {1, 2, 3, 4}, PartitionSpec({SpecEntry::Axis("tp")})),
      IsOk());
  const auto save = [&](int64_t step, std::function<void(const std::string&)> on_begun = nullptr) {
    client::SaveOptions options;
    options.step = step;
    options.on_begun = std::move(on_begun);
    return cluster->client().arrays().SaveCheckpoint("", Path("run"), options).status();
  };
  absl::Status second;
  const absl::Status first = save(1, [&](const std::string&) { second = save(2); });
  // Which of the two opens the folder first is not known. On a slow machine, one may come later.
  EXPECT_TRUE(first.ok() || second.ok()) << first << second;
  for (const absl::Status& refused : {first, second}) {
    if (refused.ok()) continue;
    EXPECT_THAT(refused, StatusIs(absl::StatusCode::kAlreadyExists, Reason::kAlreadyExists));
    EXPECT_EQ(FactOf(refused, fact::kKind), "save");
    EXPECT_THAT(std::string(refused.message()), HasSubstr("another save writes into"));
  }
  if (!first.ok()) {
    EXPECT_THAT(save(1), IsOk());
  }
  if (!second.ok()) {
    EXPECT_THAT(save(2), IsOk());
  }
  for (const int64_t step : {1, 2}) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const Checkpoint saved, Checkpoint::Open(Path("run"), step));
    EXPECT_EQ(FloatsOf(saved.View(*saved.Find("w")).bytes()), std::vector<float>({1, 2, 3, 4}));
  }
}

TEST_F(SaveTest, NoLinkLeadsASaveOutOfTheRoot) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto cluster, Start("tp=2"));
  ASSERT_THAT(PutFloats(cluster->client(), "w", {2}, {1, 2}, {}), IsOk());
  const std::string outside = MakeTestFolder("outside");
  std::filesystem::create_directories(Path("run"));
  std::filesystem::create_symlink(outside, Path("link"));
  std::filesystem::create_symlink(outside, Path("run/step-00000001"));
  std::filesystem::create_symlink("../" + std::filesystem::path(outside).filename().string(),
                                  Path("near"));
  const struct {
    std::string folder;
    std::string step;
    std::string text;
  } kSaves[] = {{Path("link"), "", "leads out of"},
                {Path("link/below"), "", "leads out of"},
                {Path("near/below"), "", "leads out of"},
                {Path("link"), "--step=1", "leads out of"},
                {Path("run"), "--step=1", Path("run")},
                {Path("../elsewhere"), "", "under none of the worker's write roots"}};
  for (const auto& [folder, step, text] : kSaves) {
    std::vector<std::string> arguments = {"save", "", folder};
    if (!step.empty()) arguments.push_back(step);
    const CommandResult refused = cluster->Run(arguments);
    EXPECT_EQ(refused.exit_code, 1) << folder << refused.out;
    EXPECT_THAT(refused.err, AllOf(HasSubstr("worker-"), HasSubstr(text))) << folder;
  }
  EXPECT_TRUE(std::filesystem::is_empty(outside));
  EXPECT_FALSE(std::filesystem::exists(root_ + "/../elsewhere"));
  EXPECT_THAT(cluster->Run({"save", "", Path("run"), "--step=2"}), Succeeded());
}

// A cluster that saves onto a disk of its own.
absl::StatusOr<std::unique_ptr<TestCluster>> StartOn(const SmallDisk& disk) {
  TestCluster::Options options;
  options.mesh = "tp=2";
  options.worker_flags = {"--write-root=" + disk.folder()};
  SHARDMESH_ASSIGN_OR_RETURN(auto cluster, TestCluster::Start(options));
  SHARDMESH_RETURN_IF_ERROR(
      PutFloats(cluster->client(), "w", {4}, {1, 2, 3, 4}, PartitionSpec({SpecEntry::Axis("tp")}))
          .status());
  return cluster;
}

TEST(SaveDiskTest, ADiskThatIsFullAtAnyMomentLeavesTheOldCheckpointOnly) {
  SmallDisk disk(8 << 20);
  SHARDMESH_NEEDS_DISK(disk);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto cluster, StartOn(disk));
  const std::string folder = disk.folder() + "/run";
  const auto save = [&](int64_t step) {
    client::SaveOptions options;
    options.step = step;
    return cluster->client().arrays().SaveCheckpoint("", folder, options).status();
  };
  ASSERT_THAT(save(1), IsOk());
  // With one page more each time, the save comes further: to the probe, the tensors, the manifest,
  // the marker.
  constexpr int kMostPages = 64;
  int pages = 0;
  for (; pages < kMostPages; ++pages) {
    ASSERT_NO_FATAL_FAILURE(disk.Fill());
    disk.FreeBytes(pages * int64_t{4096});
    const absl::Status saved = save(2);
    if (saved.ok()) break;
    EXPECT_THAT(saved, StatusIs(absl::StatusCode::kResourceExhausted, Reason::kStoreFull)) << pages;
    std::vector<std::string> left;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      left.push_back(entry.path().filename().string());
    }
    EXPECT_THAT(left, testing::ElementsAre("step-00000001")) << pages;
    EXPECT_THAT(Checkpoint::Open(folder).status(), IsOk());
  }
  EXPECT_GE(pages, 3) << "the disk was never full midway";
  ASSERT_LT(pages, kMostPages);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Checkpoint saved, Checkpoint::Open(folder, 2));
  EXPECT_EQ(FloatsOf(saved.View(*saved.Find("w")).bytes()), std::vector<float>({1, 2, 3, 4}));
}

TEST(SaveDiskTest, AReadOnlyWriteRootIsRefusedInWords) {
  SmallDisk disk(8 << 20);
  SHARDMESH_NEEDS_DISK(disk);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto cluster, StartOn(disk));
  std::filesystem::create_directories(disk.folder() + "/there");
  disk.MakeReadOnly();
  for (const char* const name : {"/there", "/new"}) {
    const std::string folder = disk.folder() + name;
    const absl::Status refused = cluster->client().arrays().SaveCheckpoint("", folder).status();
    EXPECT_THAT(refused, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
    EXPECT_EQ(FactOf(refused, fact::kField), "folder");
    EXPECT_EQ(FactOf(refused, fact::kValue), folder);
    EXPECT_THAT(
        std::string(refused.message()),
        AllOf(HasSubstr("worker-"), HasSubstr("Read-only file system"), HasSubstr("may write")));
  }
}

TEST(UpWriteRootTest, IsPassedToTheWorkersAndMustExist) {
  const std::string folder = MakeTestFolder("up_write_root");
  const CommandResult missing =
      RunShardmesh({"up", "--write-root", folder + "/missing", "--mesh=tp=1"}, folder);
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_THAT(missing.err, HasSubstr("no such folder"));
}

}  // namespace
}  // namespace shardmesh::test
