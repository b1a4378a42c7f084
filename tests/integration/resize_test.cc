// Resizes of meshes, by workers of their own processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/types/resize.h"
#include "process/failpoint.h"
#include "sharding/mesh_definition.h"
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
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

const PartitionSpec kOverDp({SpecEntry::Axis("dp"), SpecEntry()});

std::vector<float> NumbersFrom(float first, size_t count) {
  std::vector<float> numbers(count);
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

class ResizeTest : public ::testing::Test {
 protected:
  void Start(bool durable = false, std::vector<std::string> coordinator_flags = {}) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(
        cluster_, TestCluster::Start({.mesh = "dp=4",
                                      .durable = durable,
                                      .coordinator_flags = std::move(coordinator_flags),
                                      .worker_flags = {}}));
  }
  client::ArrayClient& arrays() { return cluster_->client().arrays(); }
  // Puts ROWS x 4 numbers, cut over dp.
  void Put(const std::string& name, int64_t rows, float first = 0) {
    ASSERT_THAT(PutFloats(cluster_->client(), name, {rows, 4},
                          NumbersFrom(first, static_cast<size_t>(rows) * 4), kOverDp),
                IsOk());
  }
  void ExpectArray(const std::string& name, int64_t rows, const std::string& shape,
                   float first = 0) {
    SCOPED_TRACE(name);
    const auto tensor = arrays().Gather(client::ArraySelector::ByName(name));
    ASSERT_THAT(tensor, IsOk());
    EXPECT_EQ(FloatsOf(tensor->view().bytes()), NumbersFrom(first, static_cast<size_t>(rows) * 4));
    const auto describe = [&] {
      return arrays().DescribeArray(client::ArraySelector::ByName(name));
    };
    // A worker may have to attach again before its rank is there.
    EXPECT_TRUE(Eventually([&] {
      const auto array = describe();
      return array.ok() && array->missing_ranks.empty();
    }));
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::Array array, describe());
    EXPECT_EQ(array.descriptor.mesh_id, "default");
    EXPECT_EQ(array.descriptor.mesh.ToString(), shape);
  }
  // Returns the names of all meshes.
  std::vector<std::string> Meshes() {
    const CommandResult listed = cluster_->Run({"catalog", "ls", "mesh", "-oname"});
    std::vector<std::string> names;
    std::string name;
    for (const char c : listed.out) {
      if (c != '\n') {
        name += c;
      } else if (!name.empty()) {
        names.push_back(std::exchange(name, ""));
      }
    }
    return names;
  }
  std::string ShapeOfDefault() {
    const CommandResult shown = cluster_->Run({"mesh", "show", "default", "-ojson"});
    return shown.exit_code == 0 ? json::parse(shown.out)["text"].get<std::string>() : shown.err;
  }
  // Repeats the resize until it succeeds, as an operator would after a failure.
  void ResizeAtLast(const std::string& shape) {
    absl::Status last;
    for (int attempt = 0; attempt < 20; ++attempt) {
      last = arrays().ResizeMesh("default", shape).status();
      if (last.ok()) return;
    }
    FAIL() << last;
  }

  std::unique_ptr<TestCluster> cluster_;
};

TEST_F(ResizeTest, AMeshShrinksAndGrowsWithAllItsArrays) {
  for (const bool durable : {false, true}) {
    SCOPED_TRACE(durable);
    cluster_.reset();
    ASSERT_NO_FATAL_FAILURE(Start(durable));
    for (int i = 0; i < 12; ++i) Put(StrCat("w/", 10 + i), 12, static_cast<float>(i));
    for (const std::string shape : {"dp=3", "dp=1", "dp=2", "dp=4"}) {
      SCOPED_TRACE(shape);
      SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::ResizeResult resized,
                                     arrays().ResizeMesh("default", shape));
      EXPECT_EQ(resized.array_count, 12);
      EXPECT_EQ(ShapeOfDefault(), shape);
      EXPECT_THAT(Meshes(), ElementsAre("default"));
      for (int i = 0; i < 12; ++i) {
        ExpectArray(StrCat("w/", 10 + i), 12, shape, static_cast<float>(i));
      }
      // The mesh takes new arrays at once.
      Put(StrCat("new/", shape), 12);
      ExpectArray(StrCat("new/", shape), 12, shape);
      ASSERT_THAT(arrays().DeleteName(StrCat("new/", shape)), IsOk());
    }
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::Array array,
                                   arrays().DescribeArray(client::ArraySelector::ByName("w/10")));
    EXPECT_EQ(array.durability, durable ? client::Durability::kDisk : client::Durability::kMemory);
  }
}

// A step between the moves of its operands is refused for a while, and no step mixes two layouts.
TEST_F(ResizeTest, StepsGoOnWhileAMeshShrinksAndGrows) {
  ASSERT_NO_FATAL_FAILURE(Start());
  for (int i = 0; i < 12; ++i) Put(StrCat("w/", 10 + i), 12, static_cast<float>(i));
  const std::vector<float> numbers = NumbersFrom(0, 48);
  const float total = std::accumulate(numbers.begin(), numbers.end(), 0.0F);
  std::atomic<bool> is_over = false;
  std::atomic<int> done = 0;
  std::thread steps([&] {
    while (!is_over) {
      const auto summed = cluster_->client().compute().Collective(
          {.input = client::ArraySelector::ByName("w/10"),
           .kind = CollectiveKind::kAllReduce,
           .axes = {"dp"},
           .output = {.names = {"sum"}, .return_literals = true}});
      if (summed.ok()) {
        // Once replaced, it would be an array without a name, which no resize moves.
        EXPECT_THAT(arrays().ReleaseArrays({summed->outputs[0].array.descriptor.array_id}), IsOk());
        const std::vector<float> sums = FloatsOf(summed->outputs[0].literal->bytes);
        EXPECT_EQ(std::accumulate(sums.begin(), sums.end(), 0.0F), total);
        ++done;
      } else {
        EXPECT_THAT(summed.status().code(),
                    AnyOf(absl::StatusCode::kUnavailable, absl::StatusCode::kAborted,
                          absl::StatusCode::kFailedPrecondition))
            << summed.status();
      }
    }
  });
  for (const std::string shape : {"dp=2", "dp=3", "dp=4"}) {
    SCOPED_TRACE(shape);
    const int before = done;
    EXPECT_TRUE(Eventually([&] { return done > before; })) << "no step runs";
    EXPECT_THAT(arrays().ResizeMesh("default", shape), IsOk());
    EXPECT_EQ(ShapeOfDefault(), shape);
  }
  const int before = done;
  EXPECT_TRUE(Eventually([&] { return done > before + 1; })) << "no step runs";
  is_over = true;
  steps.join();
  EXPECT_THAT(Meshes(), ElementsAre("default"));
  for (int i = 0; i < 12; ++i) ExpectArray(StrCat("w/", 10 + i), 12, "dp=4", static_cast<float>(i));
}

TEST_F(ResizeTest, AShapeThatAMeshHasIsNoWork) {
  ASSERT_NO_FATAL_FAILURE(Start());
  Put("w", 12);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::ResizeResult resized,
                                 arrays().ResizeMesh("default", "dp=4"));
  EXPECT_EQ(resized.operation_id, "");
}

TEST_F(ResizeTest, ArraysThatDoNotFitAreNamedAndNothingMoves) {
  ASSERT_NO_FATAL_FAILURE(Start());
  Put("fits", 12);
  Put("eight", 8);
  Put("four", 4);
  const absl::Status refused = arrays().ResizeMesh("default", "dp=3").status();
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kNotDivisible));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("'eight'"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("'four'"));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::ResizeResult plan,
                                 arrays().ResizeMesh("default", "dp=3", {.validate_only = true}));
  EXPECT_EQ(plan.refusal_count, 2);
  ASSERT_EQ(plan.refusals.size(), 2u);
  EXPECT_EQ(plan.refusals[0].name, "eight");
  ASSERT_EQ(plan.ranks.size(), 3u);
  // Ranks 0 to 2 of "fits" had rows 0-2, 3-5, 6-8 and get 0-3, 4-7, 8-11: one, two and three more.
  EXPECT_EQ(plan.ranks[0].moved_bytes, 1 * 16);
  EXPECT_EQ(plan.ranks[1].moved_bytes, 2 * 16);
  EXPECT_EQ(plan.ranks[2].moved_bytes, 3 * 16);
  EXPECT_EQ(plan.moved_bytes, 6 * 16);
  ExpectArray("eight", 8, "dp=4");
  EXPECT_THAT(Meshes(), ElementsAre("default"));

  ASSERT_THAT(arrays().ResizeMesh("default", "dp=3", {.uneven = UnevenCuts::kCeilChunks}), IsOk());
  ExpectArray("fits", 12, "dp=3");
  ExpectArray("eight", 8, "dp=3");
  ExpectArray("four", 4, "dp=3");
}

TEST_F(ResizeTest, TooFewWorkersAndNamelessArraysAreRefused) {
  ASSERT_NO_FATAL_FAILURE(Start());
  Put("w", 12);
  const absl::Status few = arrays().ResizeMesh("default", "dp=6").status();
  EXPECT_THAT(few, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kMeshIncomplete));
  EXPECT_EQ(FactOf(few, fact::kHave), "4");
  EXPECT_EQ(FactOf(few, fact::kNeed), "6");
  EXPECT_THAT(std::string(few.message()),
              AllOf(HasSubstr("4 of the mesh, and 0 others that are attached and not drained"),
                    HasSubstr("--coordinator HOST:PORT --listen HOST:PORT --data-dir FOLDER")));
  ASSERT_NO_FATAL_FAILURE(Put("", 12));
  const absl::Status nameless = arrays().ResizeMesh("default", "dp=2").status();
  EXPECT_THAT(nameless, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kMeshInUse));
  EXPECT_THAT(
      std::string(nameless.message()),
      HasSubstr(StrCat("shardmesh reshard @", FactOf(nameless, fact::kArray).value_or("none"))));
  EXPECT_THAT(arrays().ResizeMesh("nosuchmesh", "dp=2"), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(arrays().ResizeMesh("default", "dp=two"),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kInvalidMesh));
  ExpectArray("w", 12, "dp=4");
}

TEST_F(ResizeTest, PartialSumsMoveAsTheirSums) {
  ASSERT_NO_FATAL_FAILURE(Start());
  Put("w", 12);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const client::StepResult step,
      cluster_->client().compute().Collective({.input = client::ArraySelector::ByName("w"),
                                               .kind = CollectiveKind::kReduce,
                                               .axes = {"dp"},
                                               .root = 1,
                                               .output = {.names = {"p"}}}));
  // Only the name holds the array, so that the resize need not wait for the session.
  ASSERT_THAT(arrays().ReleaseArrays({step.outputs[0].array.descriptor.array_id}), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::ResizeResult plan,
                                 arrays().ResizeMesh("default", "dp=2", {.validate_only = true}));
  EXPECT_EQ(plan.refusal_count, 0);
  EXPECT_EQ(plan.array_count, 2);
  ASSERT_THAT(arrays().ResizeMesh("default", "dp=2"), IsOk());
  ExpectArray("w", 12, "dp=2");
  const auto sums = arrays().Gather(client::ArraySelector::ByName("p"));
  ASSERT_THAT(sums, IsOk());
  // Rank r had rows 3 * r to 3 * r + 2 of "w", and row i of the sums is that of rows i, 3 + i, ...
  std::vector<float> expected;
  for (int row = 0; row < 3; ++row) {
    for (int column = 0; column < 4; ++column) {
      expected.push_back(static_cast<float>(72 + 16 * row + 4 * column));
    }
  }
  EXPECT_EQ(FloatsOf(sums->view().bytes()), expected);
  EXPECT_THAT(Meshes(), ElementsAre("default"));
}

TEST_F(ResizeTest, PartialSumsMoveOntoAShapeThatDoesNotDivideThem) {
  ASSERT_NO_FATAL_FAILURE(Start());
  Put("w", 12);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const client::StepResult step,
      cluster_->client().compute().Collective({.input = client::ArraySelector::ByName("w"),
                                               .kind = CollectiveKind::kReduce,
                                               .axes = {"dp"},
                                               .root = 1,
                                               .output = {.names = {"p"}}}));
  ASSERT_THAT(arrays().ReleaseArrays({step.outputs[0].array.descriptor.array_id}), IsOk());
  // The sums of 3 rows of 4 elements are scattered over dp=4, and 3 does not divide 4.
  ASSERT_THAT(arrays().ResizeMesh("default", "dp=3"), IsOk());
  ExpectArray("w", 12, "dp=3");
  const auto sums = arrays().Gather(client::ArraySelector::ByName("p"));
  ASSERT_THAT(sums, IsOk());
  EXPECT_EQ(FloatsOf(sums->view().bytes()).front(), 72.0F);
  EXPECT_THAT(Meshes(), ElementsAre("default"));
}

TEST_F(ResizeTest, AllNamesOfAnArrayMove) {
  ASSERT_NO_FATAL_FAILURE(Start());
  Put("a", 12);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::Array array,
                                 arrays().DescribeArray(client::ArraySelector::ByName("a")));
  ASSERT_THAT(arrays().MoveName("b", array.descriptor.array_id), IsOk());
  ASSERT_THAT(arrays().ResizeMesh("default", "dp=2"), IsOk());
  ExpectArray("a", 12, "dp=2");
  ExpectArray("b", 12, "dp=2");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::Array one,
                                 arrays().DescribeArray(client::ArraySelector::ByName("a")));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::Array other,
                                 arrays().DescribeArray(client::ArraySelector::ByName("b")));
  EXPECT_EQ(one.descriptor.array_id, other.descriptor.array_id);
}

TEST_F(ResizeTest, ACancelledResizeLeavesTheMeshAsBefore) {
  ASSERT_NO_FATAL_FAILURE(Start());
  for (int i = 0; i < 40; ++i) Put(StrCat("w/", 10 + i), 12, static_cast<float>(i));
  client::ResizeOptions options;
  options.on_begun = [&](const std::string& operation_id) {
    EXPECT_THAT(cluster_->client().cluster().CancelOperation(operation_id), IsOk());
  };
  EXPECT_THAT(arrays().ResizeMesh("default", "dp=2", options),
              StatusIs(absl::StatusCode::kCancelled));
  EXPECT_EQ(ShapeOfDefault(), "dp=4");
  EXPECT_THAT(Meshes(), ElementsAre("default"));
  for (int i = 0; i < 40; ++i) ExpectArray(StrCat("w/", 10 + i), 12, "dp=4", static_cast<float>(i));
}

TEST_F(ResizeTest, ADeadlineNamesTheWorkerThatIsStopped) {
  ASSERT_NO_FATAL_FAILURE(Start());
  Put("w", 12);
  ASSERT_THAT(cluster_->Signal("worker-1", SIGSTOP), IsOk());
  const absl::Status late =
      arrays().ResizeMesh("default", "dp=2", {}, {.timeout = absl::Seconds(4)}).status();
  // Another worker, which is to read tiles of the stopped one, may give up first.
  EXPECT_TRUE(absl::IsDeadlineExceeded(late) || absl::IsUnavailable(late)) << late;
  EXPECT_THAT(std::string(late.message()), HasSubstr("worker-1"));
  EXPECT_THAT(cluster_->Signal("worker-1", SIGCONT), IsOk());
  ASSERT_TRUE(Eventually([&] { return ShapeOfDefault() == "dp=4" && Meshes().size() == 1; }))
      << "a resize whose caller gave up is cancelled";
}

// No worker counts as silent by the first deadlines. The last worker only sends tiles.
TEST_F(ResizeTest, AShortDeadlineNamesTheWorkerThatIsStopped) {
  ASSERT_NO_FATAL_FAILURE(Start());
  Put("w", 12);
  for (const std::string stopped : {"worker-1", "worker-3"}) {
    std::string told;
    // On a busy machine, a call may end before it waits for the workers. Each attempt has more
    // time.
    for (int attempt = 0; attempt < 10 && told.find(stopped) == std::string::npos; ++attempt) {
      ASSERT_THAT(cluster_->Signal(stopped, SIGSTOP), IsOk());
      const absl::Duration timeout = absl::Milliseconds(1000 + 300 * attempt);
      const absl::Status late =
          arrays().ResizeMesh("default", "dp=2", {}, {.timeout = timeout}).status();
      EXPECT_THAT(cluster_->Signal(stopped, SIGCONT), IsOk());
      EXPECT_FALSE(late.ok());
      told = std::string(late.message());
      ASSERT_TRUE(Eventually([&] { return ShapeOfDefault() == "dp=4" && Meshes().size() == 1; }));
      ASSERT_THAT(cluster_->WaitUntilHealthy(), IsOk());
    }
    EXPECT_THAT(told, HasSubstr(stopped));
  }
}

// The resize waits for no worker yet when its workers are asked whether they answer. Both workers
// only send tiles.
TEST_F(ResizeTest, AVeryShortDeadlineNamesOnlyTheWorkerThatIsStopped) {
  ASSERT_NO_FATAL_FAILURE(Start());
  Put("w", 12);
  for (const std::string stopped : {"worker-2", "worker-3"}) {
    std::string named;
    // On a busy machine, a call may end before the workers had the time to answer. Each attempt has
    // more time.
    for (int attempt = 0; attempt < 10 && named != stopped; ++attempt) {
      ASSERT_THAT(cluster_->Signal(stopped, SIGSTOP), IsOk());
      const absl::Duration timeout = absl::Milliseconds(300 + 50 * attempt);
      const absl::Status late =
          arrays().ResizeMesh("default", "dp=2", {}, {.timeout = timeout}).status();
      EXPECT_THAT(cluster_->Signal(stopped, SIGCONT), IsOk());
      EXPECT_FALSE(late.ok());
      named = FactOf(late, fact::kIdentity).value_or("");
      ASSERT_TRUE(Eventually([&] { return ShapeOfDefault() == "dp=4" && Meshes().size() == 1; }));
      ASSERT_THAT(cluster_->WaitUntilHealthy(), IsOk());
    }
    EXPECT_EQ(named, stopped);
  }
}

// Its tiles are elsewhere too. Nobody confirms that it has dropped them, which the resize would
// wait for, for 5 s each of several times.
TEST_F(ResizeTest, ADeadWorkerDoesNotHoldUpAResize) {
  ASSERT_NO_FATAL_FAILURE(Start());
  for (int i = 0; i < 4; ++i) {
    ASSERT_THAT(PutFloats(cluster_->client(), StrCat("w/", i), {12, 4},
                          NumbersFrom(static_cast<float>(i), 48),
                          PartitionSpec({SpecEntry(), SpecEntry()})),
                IsOk());
  }
  ASSERT_THAT(cluster_->Kill("worker-3"), IsOk());
  ASSERT_TRUE(Eventually([&] {
    const auto status = cluster_->client().cluster().GetStatus();
    return status.ok() && status->workers[3].state == client::WorkerState::kLost;
  }));
  const absl::Time begun = absl::Now();
  ASSERT_THAT(arrays().ResizeMesh("default", "dp=3"), IsOk());
  EXPECT_LT(absl::Now() - begun, absl::Seconds(5));
  EXPECT_EQ(ShapeOfDefault(), "dp=3");
  for (int i = 0; i < 4; ++i) ExpectArray(StrCat("w/", i), 12, "dp=3", static_cast<float>(i));
}

TEST_F(ResizeTest, ACoordinatorKilledMidwayGoesOnWithTheNextRequest) {
  ASSERT_NO_FATAL_FAILURE(Start(/*durable=*/true));
  for (int i = 0; i < 30; ++i) Put(StrCat("w/", 10 + i), 12, static_cast<float>(i));
  int begun = 0;
  client::ResizeOptions options;
  options.on_begun = [&](const std::string&) {
    if (++begun > 1) return;
    EXPECT_THAT(cluster_->Kill("coordinator"), IsOk());
    EXPECT_THAT(cluster_->Restart("coordinator"), IsOk());
  };
  const absl::Status resized = arrays().ResizeMesh("default", "dp=3", options).status();
  if (!resized.ok()) ResizeAtLast("dp=3");
  EXPECT_EQ(ShapeOfDefault(), "dp=3");
  EXPECT_THAT(Meshes(), ElementsAre("default"));
  for (int i = 0; i < 30; ++i) ExpectArray(StrCat("w/", 10 + i), 12, "dp=3", static_cast<float>(i));
}

// The arrays get the axis on the auxiliary mesh, and must lose it again.
TEST_F(ResizeTest, ACoordinatorKilledMidwayGoesBackToAShapeThatDoesNotDivideTheArrays) {
  ASSERT_NO_FATAL_FAILURE(Start(/*durable=*/true));
  for (int i = 0; i < 30; ++i) Put(StrCat("w/", 10 + i), 9, static_cast<float>(i));
  client::ResizeOptions options;
  options.on_begun = [&](const std::string&) {
    EXPECT_THAT(cluster_->Kill("coordinator"), IsOk());
  };
  const absl::Status ended =
      arrays().ResizeMesh("default", "dp=3", options, {.timeout = absl::Seconds(2)}).status();
  ASSERT_THAT(cluster_->Restart("coordinator"), IsOk());
  if (ended.ok()) return;  // it came to its end before
  absl::Status back;
  std::string shape;
  const absl::Time give_up = absl::Now() + absl::Minutes(1);
  do {
    absl::SleepFor(absl::Milliseconds(100));
    back = arrays().ResizeMesh("default", "dp=4").status();
    shape = ShapeOfDefault();
    if (shape == "dp=3") return;  // the mesh had changed before the kill: there is no way back
  } while (!back.ok() && absl::Now() < give_up);
  ASSERT_THAT(back, IsOk());
  EXPECT_EQ(shape, "dp=4");
  EXPECT_THAT(Meshes(), ElementsAre("default"));
  for (int i = 0; i < 30; ++i) ExpectArray(StrCat("w/", 10 + i), 9, "dp=4", static_cast<float>(i));
}

TEST_F(ResizeTest, AWorkerKilledMidwayCostsNoArray) {
  ASSERT_NO_FATAL_FAILURE(Start(/*durable=*/true));
  for (int i = 0; i < 30; ++i) Put(StrCat("w/", 10 + i), 12, static_cast<float>(i));
  client::ResizeOptions options;
  options.on_begun = [&](const std::string&) { EXPECT_THAT(cluster_->Kill("worker-3"), IsOk()); };
  // Whether the resize came to its end before the worker's, it may tell.
  arrays()
      .ResizeMesh("default", "dp=2", options, {.timeout = absl::Seconds(20)})
      .status()
      .IgnoreError();
  ASSERT_THAT(cluster_->Restart("worker-3"), IsOk());
  ASSERT_NO_FATAL_FAILURE(ResizeAtLast("dp=2"));
  EXPECT_THAT(Meshes(), ElementsAre("default"));
  for (int i = 0; i < 30; ++i) ExpectArray(StrCat("w/", 10 + i), 12, "dp=2", static_cast<float>(i));
}

// The two moments after the change of the mesh: before the arrays move back, and before the
// auxiliary mesh goes. The first resize passes them, so that the coordinator ends in the second
// one, and no more after its restart.
TEST_F(ResizeTest, ACoordinatorKilledAfterTheMeshHasChangedGoesOn) {
  for (const std::string point : {"resize.mesh_changed", "resize.arrays_returned"}) {
    SCOPED_TRACE(point);
    cluster_.reset();
    ASSERT_NO_FATAL_FAILURE(Start(/*durable=*/true, {StrCat("--failpoints=", point, "=crash:2")}));
    for (int i = 0; i < 12; ++i) Put(StrCat("w/", 10 + i), 12, static_cast<float>(i));
    ASSERT_THAT(arrays().ResizeMesh("default", "dp=3"), IsOk());
    std::thread resizing([this] {
      // Whether the client hears of the end, it may tell.
      arrays()
          .ResizeMesh("default", "dp=2", {}, {.timeout = absl::Seconds(60)})
          .status()
          .IgnoreError();
    });
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::string end, cluster_->AwaitEnd("coordinator"));
    EXPECT_EQ(end, StrCat("exited with code ", kFailpointExitCode));
    EXPECT_THAT(cluster_->Restart("coordinator"), IsOk());
    resizing.join();
    ASSERT_NO_FATAL_FAILURE(ResizeAtLast("dp=2"));
    EXPECT_EQ(ShapeOfDefault(), "dp=2");
    EXPECT_THAT(Meshes(), ElementsAre("default"));
    for (int i = 0; i < 12; ++i) {
      ExpectArray(StrCat("w/", 10 + i), 12, "dp=2", static_cast<float>(i));
    }
  }
}

// The tiles that were released before the kill are gone for good, and the others come back.
TEST_F(ResizeTest, AWorkerKilledAfterTheMeshHasChangedCostsNoArray) {
  ASSERT_NO_FATAL_FAILURE(Start(/*durable=*/true));
  for (int i = 0; i < 30; ++i) Put(StrCat("w/", 10 + i), 12, static_cast<float>(i));
  std::thread resizing([this] {
    arrays()
        .ResizeMesh("default", "dp=2", {}, {.timeout = absl::Seconds(20)})
        .status()
        .IgnoreError();
  });
  // Also if the resize ends too soon for it, the arrays are whole.
  EXPECT_TRUE(Eventually([this] { return ShapeOfDefault() == "dp=2"; }));
  EXPECT_THAT(cluster_->Kill("worker-1"), IsOk());
  EXPECT_THAT(cluster_->Restart("worker-1"), IsOk());
  resizing.join();
  ASSERT_NO_FATAL_FAILURE(ResizeAtLast("dp=2"));
  EXPECT_THAT(Meshes(), ElementsAre("default"));
  for (int i = 0; i < 30; ++i) ExpectArray(StrCat("w/", 10 + i), 12, "dp=2", static_cast<float>(i));
}

TEST_F(ResizeTest, TheCommandShowsAndResizes) {
  ASSERT_NO_FATAL_FAILURE(Start());
  Put("w", 8);
  CommandResult result = cluster_->Run({"mesh", "resize", "default", "dp=3", "--validate-only"});
  ASSERT_EQ(result.exit_code, 1) << result.err;
  EXPECT_THAT(result.out, HasSubstr("refused: w: "));
  EXPECT_THAT(result.out,
              HasSubstr("Would be refused; without the refused arrays, it would move "));
  EXPECT_THAT(result.err, HasSubstr("would be refused: 1 array cannot move to dp=3"));
  EXPECT_THAT(result.err, HasSubstr(". Choose a shape that divides the arrays, or --uneven ceil"));
  EXPECT_THAT(result.err, Not(HasSubstr("Keep the axes"))) << "no spec names an axis that it lacks";
  EXPECT_THAT(result.out + result.err, Not(HasSubstr("to mend")));
  result = cluster_->Run({"mesh", "resize", "default", "dp=3", "--validate-only", "-ojson"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(json::parse(result.out)["validate_only"], true) << result.out;
  result = cluster_->Run({"mesh", "resize", "default", "dp=3"});
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.err, HasSubstr("'w'"));
  result = cluster_->Run({"mesh", "resize", "default", "dp=3", "--uneven=ceil", "--validate-only"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  result =
      cluster_->Run({"mesh", "resize", "default", "dp=3", "--weights=1,2,1", "--validate-only"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  result = cluster_->Run({"mesh", "resize", "default", "dp=6"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, AllOf(HasSubstr("Start 2 more"), HasSubstr(cluster_->address())));
  result = cluster_->Run({"mesh", "resize", "default", "dp=2"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("Resized mesh default to dp=2: moved 1 array"));
  ExpectArray("w", 8, "dp=2");
  result = cluster_->Run({"ops", "ls", "-ojson"});
  const json operations = json::parse(result.out)["operations"];
  int64_t resizes = 0;
  for (const json& each : operations) {
    // The moves of a resize are parts of its operation.
    EXPECT_TRUE(each["kind"] == "resize" || each["kind"] == "put") << each;
    if (each["kind"] != "resize") continue;
    ++resizes;
    EXPECT_EQ(each["done_bytes"], each["total_bytes"]);
  }
  EXPECT_EQ(resizes, 1);
  EXPECT_EQ(std::ssize(operations), 2);  // with the put at the beginning
  result = cluster_->Run({"mesh", "resize", "default", "dp=2"});
  EXPECT_THAT(result.out, HasSubstr("already"));
}

}  // namespace
}  // namespace shardmesh::test
