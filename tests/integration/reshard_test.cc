// Moves of arrays to other layouts and meshes, by workers of their own processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "client/types/reshard.h"
#include "client/types/resize.h"
#include "process/failpoint.h"
#include "sharding/mesh_definition.h"
#include "sharding/uneven.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "tests/integration/cli_fixture.h"
#include "tests/testing/eventually.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace shardmesh::test {
namespace {

using ::nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

const PartitionSpec kRows({SpecEntry::Axis("fsdp"), SpecEntry()});
const PartitionSpec kColumns({SpecEntry(), SpecEntry::Axis("tp")});
const PartitionSpec kBoth({SpecEntry::Axis("tp"), SpecEntry::Axis("fsdp")});
const PartitionSpec kWhole({SpecEntry(), SpecEntry()});

// The spec that a put has for this request: without an axis it is P().
PartitionSpec EffectiveOf(const PartitionSpec& spec) {
  return spec == kWhole ? PartitionSpec() : spec;
}

class ReshardTest : public ::testing::Test {
 protected:
  void SetUp() override { StartCluster({}); }
  void StartCluster(const TestCluster::Options& options) {
    cluster_.reset();
    SHARDMESH_ASSERT_OK_AND_ASSIGN(cluster_, TestCluster::Start(options));
  }
  client::MeshClient& client() { return cluster_->client(); }
  client::ArrayClient& arrays() { return cluster_->client().arrays(); }

  // Puts 8 x 12 numbers; `first` tells the arrays apart.
  void Put(const std::string& name, const PartitionSpec& spec, float first = 0) {
    ASSERT_THAT(PutFloats(client(), name, {8, 12}, Numbers(first), spec), IsOk());
  }
  static std::vector<float> Numbers(float first = 0) {
    std::vector<float> numbers(96);
    std::iota(numbers.begin(), numbers.end(), first);
    return numbers;
  }
  std::vector<float> Read(const std::string& name) {
    const auto tensor = arrays().Gather(client::ArraySelector::ByName(name));
    EXPECT_THAT(tensor, IsOk());
    return tensor.ok() ? FloatsOf(tensor->view().bytes()) : std::vector<float>();
  }
  client::Array Describe(const std::string& name) {
    const auto array = arrays().DescribeArray(client::ArraySelector::ByName(name));
    EXPECT_THAT(array, IsOk());
    return array.value_or(client::Array());
  }
  absl::StatusOr<client::ReshardResult> Move(const std::string& name,
                                             const client::ReshardOptions& options) {
    return arrays().Reshard(client::ArraySelector::ByName(name), options);
  }
  void DefineMesh(const std::string& name, const std::string& axes,
                  const std::vector<std::string>& workers) {
    ASSERT_THAT(client().catalog().CreateEntry(
                    name, MeshDefinition{.mesh = *Mesh::Parse(axes), .workers = workers}),
                IsOk());
    ASSERT_THAT(cluster_->WaitUntilHealthy(), IsOk());
  }

  std::unique_ptr<TestCluster> cluster_;
};

TEST_F(ReshardTest, AnArrayKeepsItsElementsInEveryLayout) {
  Put("w", kRows);
  for (const PartitionSpec& spec : {kColumns, kBoth, kWhole, kRows, kWhole, kColumns}) {
    const client::Array before = Describe("w");
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::ReshardResult moved,
                                   Move("w", {.spec = spec, .release_source = true}));
    ASSERT_EQ(moved.arrays.size(), 1u);
    EXPECT_EQ(moved.arrays[0].source_array_id, before.descriptor.array_id);
    const client::Array now = Describe("w");
    EXPECT_EQ(now.descriptor.spec, spec);
    EXPECT_EQ(now.descriptor.array_id, moved.arrays[0].descriptor.array_id);
    EXPECT_EQ(now.name_version, moved.arrays[0].name_version);
    EXPECT_EQ(moved.revision, now.name_version);
    EXPECT_EQ(Read("w"), Numbers());
    EXPECT_THAT(arrays().DescribeArray(client::ArraySelector::ById(before.descriptor.array_id)),
                StatusIs(absl::StatusCode::kNotFound));
  }
}

TEST_F(ReshardTest, TheSessionKeepsTheOldArrayUntilItIsReleased) {
  Put("w", kRows);
  const std::string old_id = Describe("w").descriptor.array_id;
  ASSERT_THAT(Move("w", {.spec = kColumns}), IsOk());
  EXPECT_THAT(arrays().Gather(client::ArraySelector::ById(old_id)), IsOk());
  EXPECT_THAT(arrays().ReleaseArrays({old_id}), IsOkAndHolds(1));
  EXPECT_THAT(arrays().DescribeArray(client::ArraySelector::ById(old_id)),
              StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(ReshardTest, APreconditionOnTheNameHolds) {
  Put("w", kRows);
  const client::Array before = Describe("w");
  EXPECT_THAT(Move("w", {.spec = kColumns, .precondition = before.name_version + 1}),
              StatusIs(absl::StatusCode::kAborted, Reason::kVersionMismatch));
  EXPECT_THAT(Move("w", {.spec = kColumns, .name = "v", .precondition = client::MustNotExist()}),
              IsOk());
  EXPECT_THAT(Move("w", {.spec = kColumns, .name = "v", .precondition = client::MustNotExist()}),
              StatusIs(absl::StatusCode::kAborted, Reason::kVersionMismatch));
  EXPECT_EQ(Describe("w").descriptor.array_id, before.descriptor.array_id);
  EXPECT_EQ(Read("v"), Numbers());
}

TEST_F(ReshardTest, AnArrayGoesOntoMeshesThatShareWorkersAndBack) {
  DefineMesh("pair", "x=2", {"worker-3", "worker-1"});
  DefineMesh("turned", "fsdp=2,tp=2", {"worker-3", "worker-2", "worker-1", "worker-0"});
  Put("w", kRows);
  const PartitionSpec over_x({SpecEntry(), SpecEntry::Axis("x")});
  const struct Case {
    std::string mesh;
    PartitionSpec spec;
  } kCases[] = {{"pair", over_x}, {"turned", kBoth},   {"default", kBoth},
                {"pair", kWhole}, {"default", kWhole}, {"turned", kRows}};
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.mesh);
    SHARDMESH_ASSERT_OK_AND_ASSIGN(
        const client::ReshardResult moved,
        Move("w", {.mesh = c.mesh, .spec = c.spec, .release_source = true}));
    EXPECT_EQ(Describe("w").descriptor.mesh_id, c.mesh);
    EXPECT_EQ(Describe("w").descriptor.spec, EffectiveOf(c.spec));
    EXPECT_EQ(Read("w"), Numbers());
  }
  // With the mesh alone, the spec stays.
  ASSERT_THAT(Move("w", {.mesh = "default"}), IsOk());
  EXPECT_EQ(Describe("w").descriptor.spec, kRows);
  EXPECT_EQ(Read("w"), Numbers());
}

// The sums of rows 0 and 2, 1 and 3, 4 and 6, 5 and 7 of Numbers().
std::vector<float> SumsOfRows() {
  std::vector<float> sums;
  for (const int row : {0, 1, 4, 5}) {
    for (int column = 0; column < 12; ++column) {
      sums.push_back(static_cast<float>((row + row + 2) * 12 + 2 * column));
    }
  }
  return sums;
}

class PartialReshardTest : public ReshardTest {
 protected:
  // Makes an array of 4 x 12 sums. Along tp, each worker has a partial sum.
  void MakePartial(const std::string& name) {
    Put("rows", PartitionSpec({SpecEntry::Axes({"fsdp", "tp"}), SpecEntry()}));
    ASSERT_THAT(client().compute().Collective({.input = client::ArraySelector::ByName("rows"),
                                               .kind = CollectiveKind::kReduce,
                                               .axes = {"tp"},
                                               .root = 1,
                                               .output = {.names = {name}}}),
                IsOk());
    ASSERT_EQ(Describe(name).descriptor.spec, over_fsdp_partial_);
  }

  const PartitionSpec over_fsdp_partial_{{SpecEntry::Axis("fsdp"), SpecEntry()}, {"tp"}};
  const PartitionSpec over_x_{{SpecEntry(), SpecEntry::Axis("x")}};
};

TEST_F(PartialReshardTest, PartialSumsMoveToAnotherMeshAsTheirSums) {
  DefineMesh("pair", "x=2", {"worker-3", "worker-1"});
  ASSERT_NO_FATAL_FAILURE(MakePartial("p"));
  const std::string old_id = Describe("p").descriptor.array_id;
  CommandResult result =
      cluster_->Run({"reshard", "p", "--to=-,x", "--mesh=pair", "--plan-only", "-ojson"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json plan = json::parse(result.out);
  EXPECT_EQ(plan["memory"].size(), 6u) << "the ranks of both meshes";
  // Each of four workers receives one row of 12 elements to add up.
  EXPECT_EQ(plan["arrays"][0]["summed_bytes"], 4 * 12 * 4);
  EXPECT_GT(plan["arrays"][0]["moved_bytes"], 4 * 12 * 4);
  EXPECT_FALSE(plan["arrays"][0]["sums_spec"].is_null());
  result = cluster_->Run({"reshard", "p", "--to=-,x", "--mesh=pair", "--plan-only"});
  EXPECT_THAT(result.out, AllOf(HasSubstr("sums as"), HasSubstr("(fsdp,tp),-")));
  EXPECT_EQ(Describe("p").descriptor.array_id, old_id);

  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::ReshardResult moved,
                                 Move("p", {.mesh = "pair", .spec = over_x_}));
  ASSERT_EQ(moved.arrays.size(), 1u);
  EXPECT_EQ(moved.arrays[0].summed_bytes, 4 * 12 * 4);
  EXPECT_EQ(moved.arrays[0].sums_spec,
            PartitionSpec({SpecEntry::Axes({"fsdp", "tp"}), SpecEntry()}));
  EXPECT_EQ(Describe("p").descriptor.mesh_id, "pair");
  EXPECT_EQ(Describe("p").descriptor.spec, over_x_);
  EXPECT_EQ(Read("p"), SumsOfRows());
  // The session keeps the partial sums, and not the sums on their mesh.
  EXPECT_THAT(arrays().ReleaseArrays({old_id}), IsOkAndHolds(1));
  EXPECT_THAT(arrays().DescribeArray(client::ArraySelector::ById(old_id)),
              StatusIs(absl::StatusCode::kNotFound));

  // A tree moves them beside other arrays, and keeps the specs without the unreduced axes.
  ASSERT_NO_FATAL_FAILURE(MakePartial("t/p"));
  Put("t/w", kWhole);
  DefineMesh("turned", "fsdp=2,tp=2", {"worker-3", "worker-2", "worker-1", "worker-0"});
  ASSERT_THAT(arrays().ReshardTree("t/", {.mesh = "turned", .release_source = true}), IsOk());
  EXPECT_EQ(Describe("t/p").descriptor.spec, kRows);
  EXPECT_EQ(Read("t/p"), SumsOfRows());
  EXPECT_EQ(Read("t/w"), Numbers());
}

TEST_F(PartialReshardTest, ACoordinatorKilledBetweenBothPartsLeavesThePartialSums) {
  ASSERT_NO_FATAL_FAILURE(StartCluster({.durable = true,
                                        .coordinator_flags = {"--failpoints=reshard.added_up="
                                                              "crash:2"},
                                        .worker_flags = {}}));
  DefineMesh("pair", "x=2", {"worker-3", "worker-1"});
  ASSERT_NO_FATAL_FAILURE(MakePartial("first"));
  ASSERT_THAT(Move("first", {.mesh = "pair", .spec = over_x_}), IsOk());
  ASSERT_NO_FATAL_FAILURE(MakePartial("p"));
  const std::string old_id = Describe("p").descriptor.array_id;
  EXPECT_FALSE(arrays()
                   .Reshard(client::ArraySelector::ByName("p"),
                            {.mesh = "pair", .spec = over_x_, .release_source = true},
                            {.timeout = absl::Seconds(3)})
                   .ok());
  EXPECT_THAT(cluster_->AwaitEnd("coordinator", absl::Minutes(1)),
              IsOkAndHolds(StrCat("exited with code ", kFailpointExitCode)));
  ASSERT_THAT(cluster_->Restart("coordinator"), IsOk());
  ASSERT_THAT(cluster_->WaitUntilHealthy(), IsOk());
  EXPECT_EQ(Describe("p").descriptor.array_id, old_id);
  EXPECT_EQ(Describe("p").descriptor.spec, over_fsdp_partial_);
  // A repetition begins anew.
  ASSERT_THAT(Move("p", {.mesh = "pair", .spec = over_x_, .release_source = true}), IsOk());
  EXPECT_EQ(Describe("p").descriptor.mesh_id, "pair");
  EXPECT_EQ(Read("p"), SumsOfRows());
}

TEST_F(ReshardTest, ATreeMovesByRulesAndOnlyOnce) {
  for (int i = 0; i < 20; ++i) Put(StrCat("t/", 10 + i), kRows, static_cast<float>(i));
  Put("u", kRows);
  client::ReshardOptions options{.spec = kColumns};
  int64_t done = 0;
  int64_t total = 0;
  options.progress = [&](int64_t done_bytes, int64_t total_bytes) {
    EXPECT_GE(done_bytes, done);
    done = done_bytes;
    total = total_bytes;
  };
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::ReshardResult moved,
                                 arrays().ReshardTree("t/", options));
  EXPECT_EQ(moved.arrays.size(), 20u);
  EXPECT_EQ(total, 20 * 96 * 4 * 2);  // two replicas of each tile
  EXPECT_EQ(done, total);
  for (int i = 0; i < 20; ++i) {
    const std::string name = StrCat("t/", 10 + i);
    EXPECT_EQ(Describe(name).descriptor.spec, kColumns);
    EXPECT_EQ(Read(name), Numbers(static_cast<float>(i)));
  }
  EXPECT_EQ(Describe("u").descriptor.spec, kRows);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::ReshardResult again,
                                 arrays().ReshardTree("t/", {.spec = kColumns}));
  EXPECT_EQ(again.moved_bytes(), 0);
  for (const client::ReshardedArray& array : again.arrays) EXPECT_TRUE(array.is_skipped);
}

TEST_F(ReshardTest, RulesCutArraysAndTreesAnew) {
  const PartitionSpec over_all({SpecEntry::Axes({"fsdp", "tp"}), SpecEntry()});
  const PartitionSpec over_x({SpecEntry::Axis("x"), SpecEntry()});
  const auto rows_at = [](CutPoints points) {
    return std::vector<CutPoints>{std::move(points), CutPoints()};
  };
  // Arrays in memory move as steps, and arrays on disk as transfers.
  for (const bool durable : {false, true}) {
    SCOPED_TRACE(durable ? "on disk" : "in memory");
    ASSERT_NO_FATAL_FAILURE(
        StartCluster({.durable = durable, .coordinator_flags = {}, .worker_flags = {}}));
    ASSERT_NO_FATAL_FAILURE(DefineMesh("pair", "x=2", {"worker-3", "worker-1"}));
    std::vector<float> numbers[2];
    for (int i = 0; i < 2; ++i) {
      numbers[i].resize(35);
      std::iota(numbers[i].begin(), numbers[i].end(), static_cast<float>(100 * i));
      ASSERT_THAT(PutFloats(client(), StrCat("t/", i), {7, 5}, numbers[i], kWhole), IsOk());
    }
    const auto expect_kept = [&](const std::vector<CutPoints>& cut_points) {
      for (int i = 0; i < 2; ++i) {
        const std::string name = StrCat("t/", i);
        EXPECT_EQ(Describe(name).descriptor.cut_points, cut_points) << name;
        EXPECT_EQ(Read(name), numbers[i]) << name;
      }
    };
    client::ReshardOptions weighted{.spec = over_all,
                                    .uneven = UnevenCuts::kByWeights,
                                    .weights = {1, 0, 2, 1},
                                    .strict = true};
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::ReshardResult moved, Move("t/0", weighted));
    EXPECT_EQ(moved.arrays[0].descriptor.cut_points, rows_at({0, 2, 2, 5, 7}));
    EXPECT_EQ(Describe("t/0").descriptor.cut_points, rows_at({0, 2, 2, 5, 7}));
    EXPECT_EQ(Read("t/0"), numbers[0]);

    const client::ReshardOptions ceil{
        .spec = over_all, .uneven = UnevenCuts::kCeilChunks, .release_source = true};
    ASSERT_THAT(arrays().ReshardTree("t/", ceil), IsOk());
    expect_kept(rows_at({0, 2, 4, 6, 7}));
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::ReshardResult again,
                                   arrays().ReshardTree("t/", ceil));
    for (const client::ReshardedArray& array : again.arrays) EXPECT_TRUE(array.is_skipped);

    // Cut points are for arrays of any shape, and may follow a move onto another mesh.
    ASSERT_THAT(arrays().ReshardTree(
                    "t/", {.mesh = "pair", .spec = over_x, .uneven = UnevenCuts::kByMemory}),
                IsOk());
    expect_kept(rows_at({0, 4, 7}));
    ASSERT_THAT(arrays().ReshardTree("t/", {.spec = over_x, .cut_points = {{0, 5, 5}}}), IsOk());
    expect_kept(rows_at({0, 5, 7}));

    // Without a layout a rule cuts the spec that the array has.
    ASSERT_THAT(Move("t/1", {.uneven = UnevenCuts::kByWeights, .weights = {0, 1}}), IsOk());
    EXPECT_EQ(Describe("t/1").descriptor.cut_points, rows_at({0, 0, 7}));
    EXPECT_EQ(Read("t/1"), numbers[1]);
    ASSERT_THAT(Move("t/1", {.uneven = UnevenCuts::kBySpeed}), IsOk());
    EXPECT_EQ(Read("t/1"), numbers[1]);

    weighted.weights = {1, 2};
    weighted.mesh = "default";
    const auto refused = Move("t/0", weighted);
    EXPECT_THAT(refused, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kInvalidCutPoints));
    EXPECT_THAT(std::string(refused.status().message()),
                HasSubstr("there are 2 weights, and the mesh has 4 devices"));
    EXPECT_EQ(Describe("t/0").descriptor.cut_points, rows_at({0, 5, 7}));
  }
}

TEST_F(ReshardTest, ACancelledTreeGoesOnWhereItStopped) {
  for (int i = 0; i < 40; ++i) Put(StrCat("t/", 10 + i), kRows, static_cast<float>(i));
  client::ReshardOptions options{.spec = kColumns, .release_source = true};
  options.on_begun = [&](const std::string& operation_id) {
    EXPECT_THAT(client().cluster().CancelOperation(operation_id), IsOk());
  };
  EXPECT_THAT(arrays().ReshardTree("t/", options), StatusIs(absl::StatusCode::kCancelled));
  int moved = 0;
  for (int i = 0; i < 40; ++i) {
    const std::string name = StrCat("t/", 10 + i);
    const PartitionSpec spec = Describe(name).descriptor.spec;
    moved += spec == kColumns ? 1 : 0;
    EXPECT_TRUE(spec == kColumns || spec == kRows);
    EXPECT_EQ(Read(name), Numbers(static_cast<float>(i)));
  }
  EXPECT_LT(moved, 40);
  options.on_begun = nullptr;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::ReshardResult rest,
                                 arrays().ReshardTree("t/", options));
  int skipped = 0;
  for (const client::ReshardedArray& array : rest.arrays) skipped += array.is_skipped ? 1 : 0;
  EXPECT_EQ(skipped, moved);
}

TEST_F(ReshardTest, AWorkerKilledMidwayLeavesTheNameWithAWholeArray) {
  ASSERT_NO_FATAL_FAILURE(
      StartCluster({.durable = true, .coordinator_flags = {}, .worker_flags = {}}));
  Put("w", kRows);
  std::string last_id = Describe("w").descriptor.array_id;
  std::atomic<int> moves = 0;
  absl::Status failed;
  std::thread mover([&] {
    for (;;) {
      const PartitionSpec& spec = moves % 2 == 0 ? kColumns : kRows;
      // Without a retry while the coordinator expects the worker back.
      const auto moved =
          arrays().Reshard(client::ArraySelector::ByName("w"),
                           {.spec = spec, .release_source = true}, {.timeout = absl::Seconds(3)});
      if (!moved.ok()) {
        failed = moved.status();
        return;
      }
      last_id = moved->arrays.front().descriptor.array_id;
      ++moves;
    }
  });
  while (moves < 3) std::this_thread::yield();
  EXPECT_THAT(cluster_->Kill("worker-1"), IsOk());
  mover.join();
  EXPECT_FALSE(failed.ok());
  EXPECT_EQ(Describe("w").descriptor.array_id, last_id) << failed;
  ASSERT_THAT(cluster_->Restart("worker-1"), IsOk());
  ASSERT_THAT(cluster_->WaitUntilHealthy(), IsOk());
  EXPECT_EQ(Read("w"), Numbers());
  EXPECT_EQ(Describe("w").durability, client::Durability::kDisk);
  EXPECT_THAT(Move("w", {.spec = kWhole}), IsOk());
}

TEST_F(ReshardTest, ReplicasTakeThePlaceOfTilesThatWereInMemory) {
  ASSERT_NO_FATAL_FAILURE(StartCluster({.coordinator_flags = {"--no-repair"}, .worker_flags = {}}));
  DefineMesh("pair", "x=2", {"worker-3", "worker-1"});
  Put("w", kRows);
  Put("v", kRows, 5);
  ASSERT_THAT(cluster_->Kill("worker-1"), IsOk());
  ASSERT_THAT(cluster_->Restart("worker-1"), IsOk());
  ASSERT_THAT(cluster_->WaitUntilHealthy(), IsOk());
  EXPECT_EQ(Describe("w").missing_ranks.size(), 1u);
  ASSERT_THAT(Move("w", {.spec = kColumns, .release_source = true}), IsOk());
  EXPECT_EQ(Read("w"), Numbers());
  EXPECT_THAT(Describe("w").missing_ranks, ::testing::IsEmpty());
  ASSERT_THAT(
      Move("v", {.mesh = "pair", .spec = PartitionSpec({SpecEntry(), SpecEntry::Axis("x")})}),
      IsOk());
  EXPECT_EQ(Read("v"), Numbers(5));
}

TEST_F(ReshardTest, ReleaseSourceNeedsMemoryForOneArrayMore) {
  // Room for three arrays of 16 MiB, a tile of 8 MiB, and about 8 MiB that a worker keeps back for
  // what its peer sends.
  ASSERT_NO_FATAL_FAILURE(StartCluster(
      {.mesh = "fsdp=2", .coordinator_flags = {}, .worker_flags = {"--memory=68MiB"}}));
  std::vector<float> elements(size_t{4} << 20, 1.5F);  // 16 MiB, whole on each worker
  for (const char* name : {"t/a", "t/b", "t/c"}) {
    elements[0] += 1;  // arrays of equal content would be one
    ASSERT_THAT(PutFloats(client(), name, {2048, 2048}, elements, kWhole), IsOk());
  }
  const auto refused = arrays().ReshardTree("t/", {.spec = kRows}).status();
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted, Reason::kMemoryLimit));
  EXPECT_EQ(FactOf(refused, fact::kNeed), StrCat(24 << 20));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("--release-source"));
  ASSERT_THAT(arrays().ReshardTree("t/", {.spec = kRows, .release_source = true}), IsOk());
  EXPECT_EQ(Read("t/c"), elements);
}

// Workers whose memory holds their tiles of one array on disk 1.3 times.
class ShortReshardTest : public ReshardTest {
 protected:
  void SetUp() override {}
  // Of 24 MiB, a worker keeps 3 MiB back for what its peer sends. Each has 16 MiB of the array.
  void StartShort(std::vector<std::string> coordinator_flags = {},
                  std::vector<std::string> worker_flags = {}) {
    worker_flags.push_back("--memory=24MiB");
    StartCluster({.mesh = "fsdp=2",
                  .durable = true,
                  .coordinator_flags = std::move(coordinator_flags),
                  .worker_flags = std::move(worker_flags)});
    std::iota(elements_.begin(), elements_.end(), 0.0F);
    ASSERT_THAT(PutFloats(client(), "w", {2048, 4096}, elements_, kRows), IsOk());
  }
  // Moves the array. A gauge of memory may be old by a heartbeat, so that the first call is
  // refused.
  bool MovesSoon(const PartitionSpec& spec) {
    return Eventually([&] { return Move("w", {.spec = spec, .release_source = true}).ok(); },
                      absl::Minutes(3));
  }
  // Begins to move the array, and waits until a failpoint has ended the process. Returns the error
  // of the call.
  absl::Status MoveUntilEnded(const std::string& identity) {
    absl::Status failed;
    std::thread mover([&] {
      const bool has_begun = Eventually([&] {
        failed = arrays()
                     .Reshard(client::ArraySelector::ByName("w"),
                              {.spec = over_columns_, .release_source = true},
                              {.timeout = absl::Minutes(1)})
                     .status();
        // A gauge of memory may be old by a heartbeat.
        return ReasonOf(failed) != Reason::kMemoryLimit;
      });
      EXPECT_TRUE(has_begun) << failed;
    });
    EXPECT_THAT(cluster_->AwaitEnd(identity, absl::Minutes(3)),
                IsOkAndHolds(StrCat("exited with code ", kFailpointExitCode)));
    mover.join();
    return failed;
  }
  // The arrays whose tiles are out of the worker's memory.
  int64_t CountUnloaded(const std::string& worker) const {
    const std::string folder = StrCat(cluster_->folder(), "/data/", worker, "/unloaded");
    std::error_code error;
    int64_t count = 0;
    for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
         entry.increment(error)) {
      ++count;
    }
    return count;
  }

  const PartitionSpec over_columns_{{SpecEntry(), SpecEntry::Axis("fsdp")}};
  std::vector<float> elements_ = std::vector<float>(size_t{8} << 20);
};

TEST_F(ShortReshardTest, AnArrayOnDiskMovesThatFitsIntoMemoryOnlyOnce) {
  ASSERT_NO_FATAL_FAILURE(StartShort());
  const auto refused = Move("w", {.spec = over_columns_}).status();
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted, Reason::kMemoryLimit));
  EXPECT_EQ(FactOf(refused, fact::kNeed), StrCat(16 << 20));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("with release_source (--release-source)"));
  std::atomic<bool> is_over = false;
  std::atomic<int> reads = 0;
  std::thread reader([&] {
    while (!is_over) {
      EXPECT_TRUE(Read("w") == elements_);
      ++reads;
    }
  });
  EXPECT_TRUE(Eventually([&] { return reads > 0; }));
  EXPECT_TRUE(MovesSoon(over_columns_));
  EXPECT_EQ(Describe("w").durability, client::Durability::kDisk);
  is_over = true;
  reader.join();
  EXPECT_TRUE(Read("w") == elements_);
  for (const PartitionSpec& spec : {kRows, over_columns_}) {
    EXPECT_TRUE(MovesSoon(spec));
    EXPECT_EQ(Describe("w").descriptor.spec, spec);
  }
  EXPECT_TRUE(Read("w") == elements_);
  for (const char* worker : {"worker-0", "worker-1"}) {
    EXPECT_TRUE(Eventually([&] { return CountUnloaded(worker) == 0; })) << worker;
  }
  // The new array comes back from disk.
  for (const char* worker : {"worker-0", "worker-1"}) {
    ASSERT_THAT(cluster_->Kill(worker), IsOk());
    ASSERT_THAT(cluster_->Restart(worker), IsOk());
  }
  ASSERT_THAT(cluster_->WaitUntilHealthy(), IsOk());
  EXPECT_TRUE(Read("w") == elements_);
}

TEST_F(ShortReshardTest, AResizeMovesAnArrayOnDiskThatFitsIntoMemoryOnlyOnce) {
  ASSERT_NO_FATAL_FAILURE(StartShort());
  for (const char* shape : {"fsdp=2,x=1", "fsdp=2"}) {
    SCOPED_TRACE(shape);
    absl::Status last;
    // A gauge of memory may be old by a heartbeat, so that the first call is refused.
    EXPECT_TRUE(Eventually(
        [&] {
          last = arrays().ResizeMesh("default", shape).status();
          return last.ok();
        },
        absl::Minutes(2)))
        << last;
    const client::Array array = Describe("w");
    EXPECT_EQ(array.descriptor.mesh_id, "default");
    EXPECT_EQ(array.descriptor.mesh.ToString(), shape);
    EXPECT_EQ(array.durability, client::Durability::kDisk);
    EXPECT_TRUE(Read("w") == elements_);
  }
  for (const char* worker : {"worker-0", "worker-1"}) {
    EXPECT_TRUE(Eventually([&] { return CountUnloaded(worker) == 0; })) << worker;
  }
}

TEST_F(ShortReshardTest, AWorkerKilledMidwayLeavesTheOldArrayWhole) {
  // A worker ends when the bytes of its tenth tile have come. Before the move, worker-1 fills nine
  // small tiles and the others none, and after its restart it counts from the start.
  ASSERT_NO_FATAL_FAILURE(StartShort({}, {"--failpoints=fill.finish=crash:10"}));
  ASSERT_NO_FATAL_FAILURE(DefineMesh("alone", "x=1", {"worker-1"}));
  for (int i = 0; i < 9; ++i) {
    const std::string name = StrCat("small/", i);
    ASSERT_NO_FATAL_FAILURE(Put(name, kRows, static_cast<float>(i)));
    ASSERT_THAT(Move(name, {.mesh = "alone", .spec = kWhole}), IsOk());
  }
  const std::string old_id = Describe("w").descriptor.array_id;
  const absl::Status failed = MoveUntilEnded("worker-1");
  EXPECT_FALSE(failed.ok());
  EXPECT_EQ(CountUnloaded("worker-1"), 1);
  EXPECT_EQ(Describe("w").descriptor.array_id, old_id) << failed;
  ASSERT_THAT(cluster_->Restart("worker-1"), IsOk());
  ASSERT_THAT(cluster_->WaitUntilHealthy(), IsOk());
  EXPECT_TRUE(Read("w") == elements_);
  for (const char* worker : {"worker-0", "worker-1"}) {
    EXPECT_TRUE(Eventually([&] { return CountUnloaded(worker) == 0; }))
        << worker << " reads the old tiles back";
  }
  EXPECT_TRUE(MovesSoon(over_columns_));
  EXPECT_TRUE(Read("w") == elements_);
}

TEST_F(ShortReshardTest, ACoordinatorKilledMidwayLeavesTheOldArrayWhole) {
  // The first commit is that of the put. At the second one, all new tiles are staged.
  ASSERT_NO_FATAL_FAILURE(StartShort({"--failpoints=transfer.commit_to_registry=crash:2"}));
  const absl::Status failed = MoveUntilEnded("coordinator");
  EXPECT_FALSE(failed.ok());
  for (const char* worker : {"worker-0", "worker-1"}) EXPECT_EQ(CountUnloaded(worker), 1) << worker;
  ASSERT_THAT(cluster_->Restart("coordinator"), IsOk());
  ASSERT_THAT(cluster_->WaitUntilHealthy(), IsOk());
  EXPECT_EQ(Describe("w").descriptor.spec, kRows) << failed;
  EXPECT_TRUE(Read("w") == elements_);
  for (const char* worker : {"worker-0", "worker-1"}) {
    EXPECT_TRUE(Eventually([&] { return CountUnloaded(worker) == 0; }))
        << worker << " reads the old tiles back";
  }
  EXPECT_TRUE(Read("w") == elements_);
}

TEST_F(ReshardTest, TheCommandMovesPlansAndAsks) {
  Put("layer/w", kRows);
  Put("layer/v", kRows, 5);
  const std::string rules = WriteFile(
      cluster_->folder() + "/r.yaml",
      "rules:\n- {pattern: w, spec: [null, tp]}\n- {pattern: '.*', spec: [fsdp, null]}\n");
  CommandResult result =
      cluster_->Run({"reshard", "layer/w", "--to=-,tp", "--plan-only", "-ojson"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  json plan = json::parse(result.out);
  EXPECT_EQ(plan["validate_only"], true);
  EXPECT_EQ(plan["memory"].size(), 4u);
  EXPECT_EQ(plan["arrays"][0]["version"], 0);
  EXPECT_EQ(Describe("layer/w").descriptor.spec, kRows);
  result = cluster_->Run({"reshard", "layer/w", "--to=-,tp", "--plan-only"});
  EXPECT_THAT(result.out, HasSubstr("Would move 1 array"));
  EXPECT_THAT(result.out, HasSubstr("needs"));

  result = cluster_->Run({"reshard", "layer/w", "--to", "-,tp"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("Moved 1 array, "));
  EXPECT_EQ(Describe("layer/w").descriptor.spec, kColumns);
  result = cluster_->Run({"reshard", "layer/w", "--to=fsdp,-", "--cuts=0:3"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(Describe("layer/w").descriptor.cut_points,
            (std::vector<CutPoints>{{0, 3, 8}, CutPoints()}));
  EXPECT_EQ(Read("layer/w"), Numbers());
  result = cluster_->Run({"reshard", "layer/w", "--to=fsdp,-", "--cuts=2:3"});
  EXPECT_EQ(result.exit_code, 2) << result.out;
  result = cluster_->Run({"reshard", "--tree=layer/", "--to=fsdp,-", "--cuts=0:5"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("0:5"));
  result = cluster_->Run({"reshard", "--tree=layer/", "--to=fsdp,-", "--cuts=0:9"});
  EXPECT_EQ(result.exit_code, 1) << result.out;
  EXPECT_THAT(result.err, HasSubstr("beyond the extent, 8"));
  for (const char* name : {"layer/w", "layer/v"}) {
    EXPECT_EQ(Describe(name).descriptor.cut_points,
              (std::vector<CutPoints>{{0, 5, 8}, CutPoints()}));
  }
  result = cluster_->Run({"reshard", "--tree=layer/", "--weights=1,1,3,3", "-ojson"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json moved_tree = json::parse(result.out);
  for (const json& array : moved_tree["arrays"]) {
    EXPECT_EQ(array["cut_points"], json::parse("[[0, 2, 8], []]"));
  }
  EXPECT_EQ(Read("layer/w"), Numbers());
  EXPECT_EQ(Read("layer/v"), Numbers(5));
  result = cluster_->Run({"reshard", "layer/w", "--to=-,tp", "--uneven=memory", "--plan-only"});
  EXPECT_THAT(result.out, HasSubstr("Would move 1 array"));
  result = cluster_->Run({"reshard", "layer/w", "--to=-,tp", "--weights=1,2"});
  EXPECT_EQ(result.exit_code, 1) << result.out;
  EXPECT_THAT(result.err, HasSubstr("the mesh has 4 devices"));
  result = cluster_->Run({"reshard", "--tree=layer/", "--to=fsdp,-", "--uneven=equal"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(Describe("layer/v").descriptor.cut_points.empty());
  result = cluster_->Run({"reshard", "layer/w", "--to=-,tp"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const std::vector<std::string>& mistyped :
       {std::vector<std::string>{"reshard", "layer/w", "--to=fdsp,tp"},
        {"reshard", "layer/w", "--to=default:fdsp,tp"},
        {"reshard", "layer/w", "--to=fdsp,tp", "--mesh=default"},
        {"reshard", "--tree=layer/", "--to=fdsp,tp", "--plan-only"}}) {
    result = cluster_->Run(mistyped);
    EXPECT_EQ(result.exit_code, 2) << result.out;
    EXPECT_THAT(result.err, HasSubstr("has no axis \"fdsp\"; did you mean \"fsdp\"? With --exact"));
  }
  result = cluster_->Run({"reshard", "layer/w", "--to=fdsp,tp", "--strict"});
  EXPECT_EQ(result.exit_code, 1) << result.out;
  EXPECT_THAT(result.err, AllOf(HasSubstr("AXIS_NOT_IN_MESH"), HasSubstr("; to mend it, ")));
  result = cluster_->Run({"reshard", "layer/w", "--to=dp,tp", "--exact"});
  EXPECT_THAT(result.out, HasSubstr("corrected: dimension 0: 'dp' dropped"));
  EXPECT_THAT(result.out, HasSubstr("\n--strict refuses it and says what to ask for instead\n"));
  EXPECT_THAT(result.out, HasSubstr("1 array lies so already\n"));
  result = cluster_->Run({"reshard", "--tree=layer/", "--to=tp,dp", "--plan-only", "--exact"});
  EXPECT_THAT(result.out, HasSubstr("The specs of 2 of 2 arrays were corrected to fit"));
  result = cluster_->Run({"reshard", "--tree=layer/", StrCat("--rules=", rules), "-ojson"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json tree = json::parse(result.out);
  EXPECT_EQ(tree["arrays"].size(), 2u);
  for (const json& array : tree["arrays"]) EXPECT_EQ(array["skipped"], true);

  result = cluster_->Run({"reshard", "layer/w", "--to=tp,fsdp", "--as=copy", "--if-version=1"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("VERSION_MISMATCH"));
  result = cluster_->Run({"reshard", "layer/w", "--axes=-,-", "--mode=train", "--as=copy",
                          "--release-source", "--strict", "--exact"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("The name copy (version "),
                                HasSubstr(") now holds the array; the name layer/w is gone\n")));
  EXPECT_EQ(Read("copy"), Numbers());
  EXPECT_EQ(cluster_->Run({"describe", "layer/w"}).exit_code, 1);
  // An array that lies so already gets the name too.
  result = cluster_->Run({"reshard", "copy", "--to=-,-", "--as=copy2"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("The name copy2 (version "),
                                HasSubstr(") now holds the array; the name copy stays\n")));
  result = cluster_->Run({"reshard", "copy2", "--to=-,-", "--as=copy3", "--release-source"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("1 array lies so already"));
  EXPECT_THAT(result.out, AllOf(HasSubstr("The name copy3 (version "),
                                HasSubstr(") now holds the array; the name copy2 is gone\n")));

  result = cluster_->Run({"reshard", "--from=fsdp=4:fsdp,-", "--to=fsdp=4:-,fsdp", "--shape=8,8"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("all-to-all"));
  const struct Wrong {
    std::vector<std::string> arguments;
    std::string text;
  } kWrong[] = {
      {{"reshard", "copy"}, "say where to. --to, --rules, --axes or --preset gives another layout"},
      {{"reshard", "copy", "--uneven=equal"}, "say where to"},
      {{"reshard", "copy", "--to=-,tp", "--uneven=ciel"}, "is none of equal, ceil"},
      {{"reshard", "copy", "--to=-,tp", "--cuts=0:3", "--uneven=ceil"}, "not both"},
      {{"reshard", "copy", "--to=-,tp", "--uneven=ceil", "--weights=1,1"}, "not both"},
      {{"reshard", "--tree=c", "--to=-,tp", "--cuts=16:1"}, "at most 16 dimensions"},
      {{"reshard", "--from=tp=4:tp", "--to=-", "--shape=8", "--weights=1,2"}, "go with the name"},
      {{"reshard"}, "name an array to move"},
      {{"reshard", "copy", "--to=-,tp", "--rules=r"}, "give one of --to"},
      {{"reshard", "copy", "--tree=x", "--to=-,tp"}, "and not both"},
      {{"reshard", "copy", "--to=-,tp", "--shape=8,8"}, "--plan-only"},
      {{"reshard", "--from=tp=4:tp", "--to=-", "--shape=8", "--mesh=default"}, "go with the name"},
      {{"reshard", "copy", "--to=-,tp", "--mesh=tp=2"}, "by its name"},
      {{"reshard", "copy", "--to=default:-,tp", "--mesh=default"}, "give one"},
      {{"reshard", "copy", "--to=-,tp", "--mode=train"}, "--mode is about --axes"},
      {{"reshard", "copy", "--to=-,tp", "--profile=p"}, "--profile is about"},
      {{"reshard", "--tree=c", "--to=-,tp", "--as=d"}, "about one array"},
  };
  for (const Wrong& wrong : kWrong) {
    result = cluster_->Run(wrong.arguments);
    EXPECT_EQ(result.exit_code, 2) << StrJoin(wrong.arguments, " ");
    EXPECT_THAT(result.err, HasSubstr(wrong.text));
  }
}

TEST_F(ReshardTest, AColonInASpecIsExplained) {
  Put("w", kRows);
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {"reshard", "w", "--to=fsdp:tp"},
           {"reshard", "--tree=w", "--to=fsdp:tp"},
           {"reshard", "--from=tp,-", "--to=fsdp:tp", "--shape=8,8"}}) {
    const CommandResult result = cluster_->Run(arguments);
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(result.err, HasSubstr("--to fsdp:tp asks for the spec tp on a mesh named fsdp"));
    EXPECT_THAT(result.err, HasSubstr("such as fsdp,tp"));
    EXPECT_THAT(result.err, HasSubstr("there is no mesh named \"fsdp\""));
  }
  EXPECT_EQ(Describe("w").descriptor.spec, kRows);
  // The text of another mesh that does not exist is no misspelt spec.
  const CommandResult other = cluster_->Run({"reshard", "w", "--to=-,tp", "--mesh=none"});
  EXPECT_EQ(other.exit_code, 1);
  EXPECT_THAT(other.err, testing::Not(HasSubstr("asks for the spec")));
}

TEST_F(ReshardTest, TheOnlyEntryOfASpecIsThatOfTheFirstDimension) {
  Put("w", kRows);
  CommandResult result = cluster_->Run({"reshard", "w", "--to=tp", "--plan-only"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err,
            "The only entry of tp is that of dimension 0; write -,tp for the last dimension\n");
  EXPECT_THAT(result.out, testing::Not(HasSubstr("dimension 0")));
  for (const char* const spec : {"--to=tp,-", "--to=-,tp", "--to=-", "--to=()"}) {
    result = cluster_->Run({"reshard", "w", spec, "--plan-only"});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.err, testing::Not(HasSubstr("only entry"))) << spec;
  }
  for (const char* const flag : {"--quiet", "--output=json"}) {
    result = cluster_->Run({"reshard", "w", "--to=tp", "--plan-only", flag});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.err, testing::Not(HasSubstr("only entry"))) << flag;
  }
  result = cluster_->Run({"reshard", "w", "--to=fsdp;tp"});
  EXPECT_EQ(result.exit_code, 2) << result.out;
  EXPECT_THAT(result.err,
              HasSubstr("has no axis \"fsdp;tp\"; a comma stands between the axes of two "
                        "dimensions: fsdp,tp"));
}

TEST_F(ReshardTest, AConstraintIsAppliedToAnArray) {
  Put("w", kRows);
  CommandResult result = cluster_->Run({"constrain", "w", "--spec=-,tp"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(Describe("w").descriptor.spec, kRows);
  result = cluster_->Run({"constrain", "w", "--spec=-,tp", "--apply"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("Moved the array: "));
  EXPECT_EQ(Describe("w").descriptor.spec, kColumns);
  EXPECT_EQ(Read("w"), Numbers());
  result = cluster_->Run({"constrain", "w", "--spec=-,tp", "--apply", "-ojson"});
  EXPECT_EQ(json::parse(result.out)["moved"], false);
  result = cluster_->Run({"constrain", "w", "--spec=-,tpp", "--apply"});
  EXPECT_EQ(result.exit_code, 2) << result.out;
  EXPECT_THAT(result.err, HasSubstr("did you mean \"tp\"?"));
  EXPECT_EQ(Describe("w").descriptor.spec, kColumns);
  EXPECT_EQ(cluster_->Run({"constrain", "--spec=-,tp", "--shape=8,12", "--apply"}).exit_code, 2);
  EXPECT_EQ(cluster_->Run({"constrain", "w", "--spec=-,tp", "--shape=8,12"}).exit_code, 2);
}

}  // namespace
}  // namespace shardmesh::test
