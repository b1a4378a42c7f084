// A coordinator whose disk is full: what makes room goes on, and the coordinator starts. A worker
// whose disk is full: a command that needs room there fails and leaves nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "client/mesh_client.h"
#include "client/types/array.h"
#include "client/types/reshard.h"
#include "client/types/resize.h"
#include "sharding/mesh_definition.h"
#include "status/reason.h"
#include "status/str_cat.h"
#include "tensor/safetensors.h"
#include "tensor/view.h"
#include "tests/testing/eventually.h"
#include "tests/testing/small_disk.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace shardmesh::test {
namespace {

using ::shardmesh::client::ArraySelector;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(FullDiskTest, NamesAreDeletedAndTheCoordinatorStarts) {
  SmallDisk disk(48 << 20);
  SHARDMESH_NEEDS_DISK(disk);
  const std::string rules = MakeTestFolder("rules") + "/rules.yaml";
  {
    std::ofstream file(rules);
    file << "rules:\n";
    for (int i = 0; i < 3000; ++i) {
      file << "- {pattern: 'layers[.]" << i << "[.]attention[.]weight', spec: [tp]}\n";
    }
  }
  const std::string folder = disk.folder() + "/coordinator";
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const auto cluster,
      TestCluster::Start(
          {.mesh = "tp=2", .coordinator_flags = {"--data-dir=" + folder}, .worker_flags = {}}));
  constexpr int kArrays = 6;
  for (int i = 0; i < kArrays; ++i) {
    ASSERT_THAT(PutFloats(cluster->client(), StrCat("d.", i), {4}, {1, 2, 3, 4},
                          PartitionSpec({SpecEntry::Axis("tp")})),
                IsOk());
  }
  const std::string reserve = folder + "/reserve";
  const auto whole = std::filesystem::file_size(reserve);
  ASSERT_NO_FATAL_FAILURE(disk.Fill());

  int accepted = 0;
  int refused = 0;
  while (refused < 3 && accepted < 20) {
    const CommandResult put =
        cluster->Run({"catalog", "put", "rules", StrCat("r", accepted + refused), rules});
    if (put.exit_code == 0) {
      EXPECT_EQ(refused, 0) << "one was refused and a later one was not";
      ++accepted;
    } else {
      EXPECT_THAT(put.err, HasSubstr("STORE_FULL"));
      ++refused;
    }
  }
  EXPECT_LT(accepted, 5) << "others filled the disk";
  EXPECT_EQ(std::filesystem::file_size(reserve), whole);

  for (int i = 0; i < kArrays; ++i) {
    ASSERT_THAT(cluster->Kill("coordinator"), IsOk());
    ASSERT_THAT(cluster->Restart("coordinator"), IsOk()) << i;
    ASSERT_THAT(cluster->WaitUntilHealthy(), IsOk()) << i;
    const CommandResult removed = cluster->Run({"rm", StrCat("d.", i)});
    EXPECT_EQ(removed.exit_code, 0) << removed.err;
    ASSERT_NO_FATAL_FAILURE(disk.Fill());
  }
  disk.MakeRoom();
  const CommandResult put = cluster->Run({"catalog", "put", "rules", "again", rules});
  EXPECT_EQ(put.exit_code, 0) << put.err;
}

// The worker "tight" has a small disk below its --data-dir, and serves the mesh "pair" together
// with a worker that has room. All arrays have 64 x 1024 numbers.
class WorkerDiskTest : public ::testing::Test {
 protected:
  // The bytes of one of the two tiles of an array. Its file has a header besides.
  static constexpr int64_t kTileBytes = int64_t{128} << 10;

  ~WorkerDiskTest() override { std::filesystem::remove_all(files_); }

  void SetUp() override {
    SHARDMESH_NEEDS_DISK(disk_);
    SHARDMESH_ASSERT_OK_AND_ASSIGN(cluster_,
                                   TestCluster::Start({.mesh = "tp=2",
                                                       .durable = true,
                                                       .coordinator_flags = {},
                                                       .worker_flags = {"--read-root=" + files_}}));
    StartTight();
    ASSERT_TRUE(Eventually([&] {
      return cluster_->Run({"status"}).out.find("tight") != std::string::npos;
    })) << tight_->Log();
    ASSERT_THAT(
        client().catalog().CreateEntry(
            "pair", MeshDefinition{.mesh = *Mesh::Parse("x=2"), .workers = {"worker-0", "tight"}}),
        IsOk());
    ASSERT_THAT(cluster_->WaitUntilHealthy(), IsOk());
    ASSERT_NO_FATAL_FAILURE(PutNumbers("kept", 0, Rows("x"), "pair"));
  }

  client::MeshClient& client() { return cluster_->client(); }
  // Starts the worker, after the end of the one before. Its folder has another name than it, so
  // that only errors that name the worker have the name.
  void StartTight() {
    tight_.reset();
    tight_ = std::make_unique<ServerProcess>(
        "shardmesh-worker",
        std::vector<std::string>{"--coordinator=" + cluster_->address(), "--listen=127.0.0.1:0",
                                 "--identity=tight", "--data-dir=" + tiles_,
                                 "--read-root=" + files_});
  }

  static PartitionSpec Rows(const std::string& axis) {
    return PartitionSpec({SpecEntry::Axis(axis), SpecEntry::None()});
  }
  static PartitionSpec Columns(const std::string& axis) {
    return PartitionSpec({SpecEntry::None(), SpecEntry::Axis(axis)});
  }
  static std::vector<float> Numbers(float first) {
    std::vector<float> numbers(64 * 1024);
    std::iota(numbers.begin(), numbers.end(), first);
    return numbers;
  }
  absl::StatusOr<std::string> TryPut(const std::string& name, float first,
                                     const PartitionSpec& spec, const std::string& mesh) {
    return PutFloats(client(), name, {64, 1024}, Numbers(first), spec, mesh);
  }
  void PutNumbers(const std::string& name, float first, const PartitionSpec& spec,
                  const std::string& mesh) {
    const auto id = TryPut(name, first, spec, mesh);
    ASSERT_THAT(id, IsOk());
    ids_[name] = *id;
    acknowledged_[name] = first;
  }
  bool Has(const std::string& name, float first) {
    const auto gathered = client().arrays().Gather(ArraySelector::ByName(name));
    return gathered.ok() && FloatsOf(gathered->view().bytes()) == Numbers(first);
  }
  // All that was acknowledged is readable, and unchanged.
  void ExpectAcknowledged() {
    for (const auto& [name, first] : acknowledged_) {
      EXPECT_TRUE(Eventually([&, &name = name, &first = first] { return Has(name, first); }))
          << name << tight_->Log();
    }
  }

  // Calls `fail` on a disk that is full at once, in the middle of the tile, and before its last
  // bytes. `fail` calls a command and checks its error. Then the worker starts again on the full
  // disk, and gets room.
  void FailsWithoutRoom(const std::function<void()>& fail) {
    for (const int64_t room_bytes : {int64_t{0}, int64_t{4096}, kTileBytes / 2, kTileBytes}) {
      SCOPED_TRACE(StrCat(room_bytes, " bytes were free"));
      ASSERT_NO_FATAL_FAILURE(disk_.Fill());
      disk_.FreeBytes(room_bytes);
      fail();
      EXPECT_TRUE(Eventually([&] { return disk_.free_bytes() == room_bytes; }))
          << "the command left files: " << disk_.free_bytes() << " bytes are free";
      ExpectAcknowledged();
    }
    ASSERT_NO_FATAL_FAILURE(StartWithoutRoom());
  }
  // Starts the worker again on a disk without any room, and then makes room.
  void StartWithoutRoom() {
    ASSERT_NO_FATAL_FAILURE(disk_.Fill());
    StartTight();
    ASSERT_THAT(cluster_->WaitUntilHealthy(), IsOk()) << tight_->Log();
    ExpectAcknowledged();
    disk_.MakeRoom();
  }
  static void ExpectFull(const absl::Status& status) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted, Reason::kStoreFull));
    EXPECT_THAT(std::string(status.message()), HasSubstr("tight"));
  }
  bool IsNamed(const std::string& name) {
    return client().arrays().DescribeArray(ArraySelector::ByName(name)).ok();
  }

  SmallDisk disk_{8 << 20};  // first: the processes see the disk, and end before it goes
  const std::string tiles_ = disk_.folder() + "/tiles";
  const std::string files_ = std::filesystem::canonical(MakeTestFolder("files")).string();
  std::unique_ptr<TestCluster> cluster_;
  std::unique_ptr<ServerProcess> tight_;
  std::map<std::string, float> acknowledged_;  // the first number of each array, by its name
  std::map<std::string, std::string> ids_;     // of arrays that were put, by their names
};

TEST_F(WorkerDiskTest, APutLeavesNothingAndWorksOnceThereIsRoom) {
  float first = 100;
  ASSERT_NO_FATAL_FAILURE(FailsWithoutRoom([&] {
    first += 100;
    ExpectFull(TryPut("new", first, Rows("x"), "pair").status());
    EXPECT_FALSE(IsNamed("new"));
    // A name keeps its array.
    ExpectFull(TryPut("kept", first, Columns("x"), "pair").status());
  }));
  ASSERT_NO_FATAL_FAILURE(PutNumbers("new", 7, Rows("x"), "pair"));
  ASSERT_NO_FATAL_FAILURE(PutNumbers("kept", 8, Columns("x"), "pair"));
  ExpectAcknowledged();
}

TEST_F(WorkerDiskTest, ALoadLeavesNothingAndWorksOnceThereIsRoom) {
  const std::string model = files_ + "/model.safetensors";
  const std::vector<float> numbers = Numbers(500);
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(
        SafetensorsWriter writer,
        SafetensorsWriter::Create(model, {{"loaded", Dtype::kF32, {64, 1024}}}, {}));
    ASSERT_THAT(writer.Append({reinterpret_cast<const char*>(numbers.data()),
                               numbers.size() * sizeof(float)}),
                IsOk());
    ASSERT_THAT(writer.Finish(), IsOk());
  }
  std::ofstream(files_ + "/rules.yaml") << "rules:\n- {pattern: '.*', spec: [x]}\n";
  for (const std::string source : {"workers", "client"}) {
    SCOPED_TRACE(source);
    // With the cache, the second load would need no room.
    const std::vector<std::string> load = {
        "load", model,        "--rules", files_ + "/rules.yaml", "--mesh",
        "pair", "--no-reuse", "--quiet", "--source=" + source};
    const bool was_named = IsNamed("loaded");
    ASSERT_NO_FATAL_FAILURE(FailsWithoutRoom([&] {
      const CommandResult full = cluster_->Run(load);
      EXPECT_EQ(full.exit_code, 1) << full.out;
      EXPECT_THAT(full.err, AllOf(HasSubstr("STORE_FULL"), HasSubstr("tight")));
      EXPECT_EQ(IsNamed("loaded"), was_named);
    }));
    const CommandResult loaded = cluster_->Run(load);
    ASSERT_EQ(loaded.exit_code, 0) << loaded.err;
    acknowledged_["loaded"] = 500;
    ExpectAcknowledged();
  }
}

TEST_F(WorkerDiskTest, AReshardLeavesTheOldArrayAndWorksOnceThereIsRoom) {
  ASSERT_NO_FATAL_FAILURE(PutNumbers("far", 300, Rows("tp"), "default"));
  const struct {
    std::string name;
    client::ReshardOptions options;
  } kMoves[] = {{"kept", {.spec = Columns("x")}}, {"far", {.mesh = "pair", .spec = Rows("x")}}};
  for (const auto& [name, options] : kMoves) {
    SCOPED_TRACE(name);
    const ArraySelector array = ArraySelector::ByName(name);
    ASSERT_NO_FATAL_FAILURE(FailsWithoutRoom([&, &name = name, &options = options] {
      ExpectFull(client().arrays().Reshard(array, options).status());
      const auto old = client().arrays().DescribeArray(array);
      ASSERT_THAT(old, IsOk());
      EXPECT_EQ(old->descriptor.array_id, ids_[name]);
    }));
    ASSERT_THAT(client().arrays().Reshard(array, options), IsOk());
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::Array moved,
                                   client().arrays().DescribeArray(array));
    EXPECT_EQ(moved.descriptor.spec, *options.spec);
    EXPECT_NE(moved.descriptor.array_id, ids_[name]);
    ExpectAcknowledged();
  }
}

TEST_F(WorkerDiskTest, AResizeLeavesTheMeshAndWorksOnceThereIsRoom) {
  ASSERT_THAT(
      client().catalog().CreateEntry("plane", MeshDefinition{.mesh = *Mesh::Parse("x=1,y=2"),
                                                             .workers = {"worker-0", "tight"}}),
      IsOk());
  ASSERT_THAT(cluster_->WaitUntilHealthy(), IsOk());
  // Each of the two workers has all rows, and gets a tile of kTileBytes by the resize.
  ASSERT_NO_FATAL_FAILURE(PutNumbers("wide", 600, Rows("x"), "plane"));
  const auto meshes = [&] { return cluster_->Run({"catalog", "ls", "mesh", "-oname"}).out; };
  const std::string before = meshes();
  const ArraySelector array = ArraySelector::ByName("wide");
  ASSERT_NO_FATAL_FAILURE(FailsWithoutRoom([&] {
    ExpectFull(client().arrays().ResizeMesh("plane", "x=2,y=1").status());
    EXPECT_EQ(meshes(), before);
    const auto old = client().arrays().DescribeArray(array);
    ASSERT_THAT(old, IsOk());
    EXPECT_EQ(old->descriptor.array_id, ids_["wide"]);
    EXPECT_EQ(old->descriptor.mesh.ToString(), "x=1,y=2");
  }));
  ASSERT_THAT(client().arrays().ResizeMesh("plane", "x=2,y=1"), IsOk());
  EXPECT_EQ(meshes(), before);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::Array moved, client().arrays().DescribeArray(array));
  EXPECT_EQ(moved.descriptor.mesh.ToString(), "x=2,y=1");
  EXPECT_EQ(moved.descriptor.mesh_id, "plane");
  ExpectAcknowledged();
}

TEST_F(WorkerDiskTest, ASecondReplicaIsTriedAgainUntilThereIsRoom) {
  const auto replicas = [&] {
    const auto array = client().arrays().DescribeArray(ArraySelector::ByName("twice"));
    return array.ok() && array->replicas.has_value() ? *array->replicas : client::ArrayReplicas();
  };
  // There is room for the worker's own tile, and none for the second replica of the other one.
  ASSERT_NO_FATAL_FAILURE(disk_.Fill());
  disk_.FreeBytes(kTileBytes + kTileBytes / 2);
  const std::vector<float> numbers = Numbers(700);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const TensorView view,
                                 TensorView::Create(Dtype::kF32, {64, 1024},
                                                    {reinterpret_cast<const char*>(numbers.data()),
                                                     numbers.size() * sizeof(float)}));
  const client::PutTensor tensor{.name = "twice", .view = view, .spec = Rows("x")};
  ASSERT_THAT(client().arrays().PutTensors({tensor}, {.mesh = "pair", .replicas = 2}), IsOk());
  acknowledged_["twice"] = 700;
  EXPECT_TRUE(Eventually([&] {
    return replicas().failure.find("STORE_FULL") != std::string::npos;
  })) << replicas().failure;
  EXPECT_THAT(replicas().failure, HasSubstr("tight"));
  EXPECT_EQ(replicas().complete, 1);
  EXPECT_TRUE(Eventually([&] { return disk_.free_bytes() >= kTileBytes / 4; }))
      << "the copy left files: " << disk_.free_bytes() << " bytes are free";
  ExpectAcknowledged();
  ASSERT_NO_FATAL_FAILURE(StartWithoutRoom());

  EXPECT_TRUE(Eventually([&] { return replicas().complete == 2; }, absl::Minutes(2)))
      << replicas().failure;
  // The new replica is complete, and on disk: after a restart, no other worker has the tile.
  ASSERT_THAT(cluster_->Kill("worker-0"), IsOk());
  StartTight();
  EXPECT_TRUE(Eventually([&] { return Has("twice", 700); })) << tight_->Log();
}

TEST_F(WorkerDiskTest, ARepairIsTriedAgainUntilThereIsRoom) {
  ASSERT_NO_FATAL_FAILURE(PutNumbers("copies", 400, PartitionSpec(), "pair"));
  const auto degraded = [&] {
    const auto status = client().cluster().GetStatus();
    return status.ok() ? status->degraded_arrays : -1;
  };
  // The worker loses its copy, and others take the room.
  tight_.reset();
  std::vector<std::filesystem::path> lost;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(tiles_)) {
    if (entry.path().filename() == ids_["copies"]) lost.push_back(entry.path());
  }
  ASSERT_EQ(lost.size(), 1u);
  std::filesystem::remove_all(lost[0]);
  ASSERT_NO_FATAL_FAILURE(disk_.Fill());
  ASSERT_TRUE(Eventually([&] { return degraded() == 2; }));
  StartTight();
  ASSERT_TRUE(Eventually([&] { return degraded() == 1; })) << tight_->Log();
  EXPECT_TRUE(Eventually([&] {
    return cluster_->Run({"ls"}).out.find("STORE_FULL") != std::string::npos;
  })) << cluster_->Run({"ls"}).out;
  const CommandResult repairs = cluster_->Run({"ops", "ls", "--kind=repair", "-ojson"});
  EXPECT_THAT(repairs.out, HasSubstr("tight"));
  EXPECT_TRUE(Eventually([&] { return disk_.free_bytes() == 0; })) << "the repair left files";
  ExpectAcknowledged();  // from the other worker, while the tile is missing

  disk_.MakeRoom();
  EXPECT_TRUE(Eventually([&] { return degraded() == 0; })) << cluster_->Run({"ls"}).out;
  // The new tile is whole, and on disk: after a restart, no other worker has it.
  ASSERT_THAT(cluster_->Kill("worker-0"), IsOk());
  StartTight();
  EXPECT_TRUE(Eventually([&] { return Has("copies", 400); })) << tight_->Log();
}

}  // namespace
}  // namespace shardmesh::test
