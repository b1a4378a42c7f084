// Resizes that run at the same time.
#include "server/reshard/resize_runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "process/failpoint.h"
#include "server/codec/reshard_codec.h"
#include "server/state/definitions.h"
#include "server/steps/auxiliary_mesh.h"
#include "server/steps/transfers.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/str_cat.h"
#include "tests/testing/eventually.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/server/steps/keeping_fill.h"
#include "tests/unit/server/steps/step_cluster.h"

namespace shardmesh::server {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;

class ResizeRunnerTest : public StepCluster {
 protected:
  // The sequencer ends all work before the runners are gone.
  ~ResizeRunnerTest() override {
    if (!go_.HasBeenNotified()) go_.Notify();
    sequencer_.reset();
  }

  // A mesh x=2 without arrays, and the request to make it x=1.
  ResizeCall CallOf(size_t number) {
    const std::string mesh_id = StrCat("mesh-", number);
    DefineMesh(definition_store_.get(), mesh_id, mesh_);
    EXPECT_THAT(members_.AddMesh(mesh_id, 2, {"w0", "w1"}), IsOk());
    const Mesh one = *Mesh::Parse("x=1");
    return {.request_id = mesh_id,
            .session_id = session_,
            .fingerprint = mesh_id,
            .caller = caller_,
            .mesh_id = mesh_id,
            .axes = {one.axes().begin(), one.axes().end()}};
  }
  // As CallOf, of a mesh whose workers are assigned, and not named by its definition.
  ResizeCall CallOfAssigned() {
    ResizeCall call = CallOf(0);
    call.mesh_id = "assigned";
    absl::Notification defined;
    definition_store_->Create({.request_id = "", .name = call.mesh_id, .assign = {"w0", "w1"}},
                              EncodeEntry({.mesh = mesh_, .workers = {}}), [&](const auto& mesh) {
                                EXPECT_THAT(mesh, IsOk());
                                defined.Notify();
                              });
    defined.WaitForNotification();
    EXPECT_THAT(members_.AddMesh(call.mesh_id, 2, {"w0", "w1"}), IsOk());
    return call;
  }
  void Detach(const std::string& identity) {
    members_.Detach(members_.view()->FindWorker(identity)->attachment, "it ended");
  }
  absl::StatusOr<BegunResize> Begin(const ResizeCall& call) {
    return resizes_.Begin(call, [] { return false; });
  }

  absl::Notification go_;  // ends the waits of a test
  OperationTable operations_{&clock_, &sessions_};
  Transfers transfers_{&clock_, registry_.get(), &sessions_, sequencer_.get(), &operations_};
  KeepingFill fill_;
  const ReshardPlanParts plan_{.put = {.clock = &clock_,
                                       .definition_store = definition_store_.get(),
                                       .membership = &members_,
                                       .registry = registry_.get(),
                                       .endpoints = &endpoints_,
                                       .sessions = &sessions_,
                                       .transfers = &transfers_},
                               .registry = registry_.get(),
                               .recovery = &recovery_};
  ReshardRunner reshards_{{.plan = plan_,
                           .clock = &clock_,
                           .registry = registry_.get(),
                           .sessions = &sessions_,
                           .operations = &operations_,
                           .steps = &steps_,
                           .fill = &fill_,
                           .token_key = std::string(32, 'k'),
                           .term = 7}};
  ResizeRunner resizes_{{.plan = plan_,
                         .registry = registry_.get(),
                         .definitions = definition_store_.get(),
                         .sessions = &sessions_,
                         .operations = &operations_,
                         .reshards = &reshards_,
                         .encode = EncodeEntry}};
};

TEST_F(ResizeRunnerTest, NoMoreResizesRunThanThereMayBe) {
  endpoints_.on_each_check = [this] { go_.WaitForNotification(); };  // each waits for its new mesh
  std::vector<ResizeCall> calls;
  std::vector<std::string> operations;
  for (size_t i = 0; i < ResizeRunner::kMaxRunning; ++i) {
    calls.push_back(CallOf(i));
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunResize begun, Begin(calls.back()));
    EXPECT_NE(begun.operation_id, "");
    operations.push_back(begun.operation_id);
  }
  const ResizeCall one_more = CallOf(ResizeRunner::kMaxRunning);
  const absl::Status refused = Begin(one_more).status();
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted, Reason::kOverloaded));
  EXPECT_EQ(FactOf(refused, fact::kHave), StrCat(ResizeRunner::kMaxRunning));
  EXPECT_EQ(FactOf(refused, fact::kLimit), StrCat(ResizeRunner::kMaxRunning));
  EXPECT_TRUE(RetryDelayOf(refused).has_value());
  // A repetition of one that runs is none more.
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunResize again, Begin(calls.front()));
  EXPECT_EQ(again.operation_id, operations.front());
  go_.Notify();
  for (const std::string& id : operations) {
    EXPECT_TRUE(test::Eventually([&] { return operations_.Progress(id)->ended; }));
    EXPECT_THAT(operations_.Progress(id)->status, IsOk());
  }
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunResize begun, Begin(one_more));
  EXPECT_TRUE(test::Eventually([&] { return operations_.Progress(begun.operation_id)->ended; }));
  EXPECT_THAT(operations_.Progress(begun.operation_id)->status, IsOk());
}

TEST_F(ResizeRunnerTest, ProgressHasBothMovesOfAnArrayAndACancellationLeavesAllAsItWas) {
  endpoints_.on_each_check = [this] { go_.WaitForNotification(); };
  const ResizeCall call = CallOf(0);
  const std::string array_id = AddArray(Descriptor(call.mesh_id), "w");  // of 32 bytes
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunResize begun, Begin(call));
  EXPECT_EQ(begun.plan.array_count, 1);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const OperationProgress progress,
                                 operations_.Progress(begun.operation_id));
  EXPECT_EQ(progress.total, 2);  // onto the auxiliary mesh, and onto the changed one
  EXPECT_EQ(progress.total_bytes, 64);
  const absl::Status reason =
      WithReason(absl::CancelledError("ada cancelled it"), Reason::kCancelled);
  EXPECT_THAT(operations_.CancelFor(begun.operation_id, reason), IsOk());
  go_.Notify();
  ASSERT_TRUE(test::Eventually([&] { return operations_.Progress(begun.operation_id)->ended; }));
  EXPECT_THAT(operations_.Progress(begun.operation_id)->status,
              StatusIs(absl::StatusCode::kCancelled, Reason::kCancelled));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const NameEntry name, registry_->FindName("w"));
  EXPECT_EQ(name.array_id, array_id);
  const auto state = definition_store_->shared_state();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<const Definition> mesh,
                                 state->Find(DefinitionKind::kMesh, call.mesh_id));
  EXPECT_EQ(mesh->version, begun.plan.definition->version);
  EXPECT_THAT(state->Find(DefinitionKind::kMesh, begun.plan.auxiliary_id),
              StatusIs(absl::StatusCode::kNotFound));
}

// Nobody has cancelled the second request, although it asks for the same shape.
TEST_F(ResizeRunnerTest, ARequestBesideACancelledResizeWaitsForItsEndAndBeginsAnew) {
  endpoints_.on_each_check = [this] { go_.WaitForNotification(); };
  ResizeCall call = CallOf(0);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunResize first, Begin(call));
  EXPECT_THAT(operations_.CancelFor(first.operation_id, absl::CancelledError("ada cancelled it")),
              IsOk());
  // A repetition of the request that was cancelled gets its operation.
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunResize repeated, Begin(call));
  EXPECT_EQ(repeated.operation_id, first.operation_id);
  call.request_id = "second";
  const absl::Status refused = Begin(call).status();
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kAborted, Reason::kMeshInUse));
  EXPECT_TRUE(RetryDelayOf(refused).has_value());
  EXPECT_THAT(std::string(refused.message()),
              ::testing::HasSubstr(
                  StrCat("operation ", first.operation_id, ", which goes back to the old shape")));
  go_.Notify();
  ASSERT_TRUE(test::Eventually([&] { return operations_.Progress(first.operation_id)->ended; }));
  EXPECT_THAT(operations_.Progress(first.operation_id)->status,
              StatusIs(absl::StatusCode::kCancelled));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunResize second, Begin(call));
  EXPECT_NE(second.operation_id, first.operation_id);
  ASSERT_TRUE(test::Eventually([&] { return operations_.Progress(second.operation_id)->ended; }));
  EXPECT_THAT(operations_.Progress(second.operation_id)->status, IsOk());
}

TEST_F(ResizeRunnerTest, ThePlanCountsTheAdditionOfPartialSums) {
  ResizeCall call = CallOf(0);
  call.validate_only = true;
  ArrayDescriptor partial = Descriptor(call.mesh_id);
  partial.spec = PartitionSpec({SpecEntry()}, {"x"});
  AddArray(partial, "p");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunResize begun, Begin(call));
  const PlannedResize& plan = begun.plan;
  EXPECT_EQ(plan.refusal_count, 0);
  EXPECT_EQ(plan.array_count, 1);
  EXPECT_EQ(plan.move_count, 3);  // to the sums, onto the auxiliary mesh, onto the changed one
  // Each of two workers receives half of the other's partial sum. Then the one that is left
  // receives the other half of the sums.
  EXPECT_EQ(plan.moved_bytes, 2 * 16 + 16);
  ASSERT_EQ(plan.ranks.size(), 1u);
  EXPECT_EQ(plan.ranks.front().moved_bytes, 16 + 16);
  EXPECT_EQ(plan.total_bytes, 2 * 16 + 2 * 32);
}

TEST_F(ResizeRunnerTest, PartialSumsGiveTheirNameToTheirSumsBeforeTheyLeave) {
  const ResizeCall call = CallOf(0);
  ArrayDescriptor partial = Descriptor(call.mesh_id);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const std::shared_ptr<const Definition> mesh,
      definition_store_->shared_state()->Find(DefinitionKind::kMesh, call.mesh_id));
  partial.mesh_revision = mesh->revision;
  partial.spec = PartitionSpec({SpecEntry()}, {"x"});
  const std::string old_id = AddArray(partial, "p");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunResize begun, Begin(call));
  ASSERT_TRUE(test::Eventually([&] { return transport_.started() == 1; }));
  EXPECT_EQ(registry_->FindName("p")->array_id, old_id);
  for (int64_t rank = 0; rank < 2; ++rank) EXPECT_THAT(Report(rank), IsOk());
  ASSERT_TRUE(test::Eventually([&] { return registry_->FindName("p")->array_id != old_id; }));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const NameEntry name, registry_->FindName("p"));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const ArrayPtr sums, registry_->FindArray(name.array_id));
  EXPECT_EQ(sums->definition.descriptor.mesh_id, call.mesh_id);
  EXPECT_EQ(sums->definition.descriptor.spec, PartitionSpec({SpecEntry::Axis("x")}));
  EXPECT_EQ(sums->definition.requested_spec, PartitionSpec({SpecEntry()}));
  resizes_.Stop(absl::CancelledError("enough"));
  EXPECT_TRUE(test::Eventually([&] { return operations_.Progress(begun.operation_id)->ended; }));
  EXPECT_TRUE(registry_->FindName("p").ok());
}

TEST_F(ResizeRunnerTest, KnowsTheWorkersThatAreNotReady) {
  endpoints_.ready = WithReason(absl::UnavailableError("worker \"w1\" does not reach \"w0\""),
                                Reason::kRecovering, {{fact::kIdentity, "w1"}});
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunResize begun, Begin(CallOf(0)));
  EXPECT_TRUE(test::Eventually([&] {
    return operations_.WorkersOf(begun.operation_id).waiting_for == std::set<std::string>{"w1"};
  }));
  EXPECT_THAT(operations_.WorkersOf(begun.operation_id).taking_part, ::testing::Contains("w0"));
  EXPECT_THAT(operations_.CancelFor(begun.operation_id, absl::CancelledError("enough")), IsOk());
  resizes_.Stop(absl::CancelledError("enough"));
  EXPECT_TRUE(test::Eventually([&] { return operations_.Progress(begun.operation_id)->ended; }));
  EXPECT_TRUE(operations_.WorkersOf(begun.operation_id).taking_part.empty());
}

TEST_F(ResizeRunnerTest, AnotherWorkerTakesTheRankOfALostOne) {
  ResizeCall call = CallOfAssigned();
  call.validate_only = true;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunResize whole, Begin(call));
  EXPECT_THAT(whole.plan.workers, ::testing::ElementsAre("w0"));
  Detach("w0");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunResize shrunk, Begin(call));
  EXPECT_THAT(shrunk.plan.workers, ::testing::ElementsAre("w1"));
  // Without a worker that is left, the lost one may come back.
  Detach("w1");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunResize waits, Begin(call));
  EXPECT_THAT(waits.plan.workers, ::testing::ElementsAre("w0"));
}

TEST_F(ResizeRunnerTest, AttachedWorkersAreAwaitedToDropTilesAndLostOnesAreNot) {
  const ResizeCall call = CallOfAssigned();
  // Two released arrays, whose tiles no worker has dropped yet: one of another mesh, and one of the
  // mesh.
  std::string array_id;
  for (const std::string mesh_id : {"n", "assigned"}) {
    array_id = AddArray(Descriptor(mesh_id), "w");
    CommitRequest unname;
    unname.moves.push_back({.name = "w", .array_id = "", .expected_version = {}});
    absl::Notification done;
    registry_->Commit(std::move(unname), [&done](const absl::StatusOr<CommitResult>& result) {
      EXPECT_THAT(result, IsOk());
      done.Notify();
    });
    done.WaitForNotification();
    ASSERT_TRUE(test::Eventually([&] { return registry_->RanksYetToDrop(mesh_id).size() == 2; }));
  }
  Detach("w1");
  const absl::Time begun_at = absl::Now();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunResize begun, Begin(call));
  EXPECT_TRUE(test::Eventually([&] {
    return operations_.WorkersOf(begun.operation_id).waiting_for == std::set<std::string>{"w0"};
  }));
  registry_->TilesDropped({array_id}, [](std::string_view) { return std::optional<int64_t>(0); });
  EXPECT_TRUE(test::Eventually([&] { return operations_.Progress(begun.operation_id)->ended; }));
  EXPECT_THAT(operations_.Progress(begun.operation_id)->status, IsOk());
  // A resize that waited for tiles of the other mesh too, or for the lost worker, would take 5 s
  // for each of several waits.
  EXPECT_LT(absl::Now() - begun_at, absl::Seconds(8));
  EXPECT_THAT(registry_->RanksYetToDrop("n"), ::testing::ElementsAre(0, 1));
}

// Each worker has a mebibyte, and 400,000 bytes of an array. The rank that is left is to have all
// 800,000 of them.
class ShortResizeTest : public ResizeRunnerTest {
 protected:
  PlannedResize PlanOf(Durability durability, bool are_workers_durable) {
    for (const char* identity : {"w0", "w1"}) {
      members_.Detach(members_.view()->FindWorker(identity)->attachment, "it starts again");
      EXPECT_THAT(members_.Attach({.identity = identity,
                                   .incarnation = 2,
                                   .build_version = "1",
                                   .endpoints = {"127.0.0.1:1"},
                                   .host = "host",
                                   .capacity_bytes = 1 << 20,
                                   .durable = are_workers_durable}),
                  IsOk());
    }
    ResizeCall call = CallOf(0);
    call.validate_only = true;
    ArrayDescriptor large = Descriptor(call.mesh_id);
    large.shape = {200'000};
    AddArray(large, "w", durability);
    Beat(/*used_bytes=*/400'000);
    const absl::StatusOr<BegunResize> begun = Begin(call);
    EXPECT_THAT(begun, IsOk());
    if (!begun.ok()) return {};
    EXPECT_EQ(begun->plan.ranks.size(), 1u);
    EXPECT_EQ(begun->plan.ranks.front().have_bytes, (1 << 20) - 400'000);
    return begun->plan;
  }
  static void ExpectShort(const PlannedResize& plan, int64_t need_bytes) {
    const absl::Status refused = CheckResize(plan);
    EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted, Reason::kMemoryLimit));
    EXPECT_EQ(FactOf(refused, fact::kHave), StrCat((1 << 20) - 400'000));
    EXPECT_EQ(FactOf(refused, fact::kNeed), StrCat(need_bytes));
    EXPECT_THAT(std::string(refused.message()),
                ::testing::HasSubstr("it fits if all arrays are on disk"));
  }
};

TEST_F(ShortResizeTest, AnArrayOnDiskLeavesMemoryOnBothOfItsWays) {
  const PlannedResize plan = PlanOf(Durability::kDisk, /*are_workers_durable=*/true);
  EXPECT_THAT(CheckResize(plan), IsOk());
  EXPECT_EQ(plan.ranks.front().need_bytes, 400'000);
}

TEST_F(ShortResizeTest, AnArrayInMemoryOnlyMustFitBesideTheNewOne) {
  ExpectShort(PlanOf(Durability::kMemory, /*are_workers_durable=*/true), 800'000);
}

TEST_F(ShortResizeTest, WithoutDataFoldersTheArrayMustFitTwiceOnItsWayBack) {
  ExpectShort(PlanOf(Durability::kDisk, /*are_workers_durable=*/false), 1'200'000);
}

// The coordinator destroys the sequencer afterwards.
TEST_F(ResizeRunnerTest, ALimitOfThreadsRefusesTheResize) {
  const ResizeCall call = CallOf(0);
  ASSERT_THAT(ArmFailpoints("thread.start=emfile"), IsOk());
  EXPECT_THAT(Begin(call), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_FALSE(IsArmed("thread.start"));
  EXPECT_EQ(operations_.CountRunning(), 0);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunResize begun, Begin(call));
  EXPECT_TRUE(test::Eventually([&] { return operations_.Progress(begun.operation_id)->ended; }));
  EXPECT_THAT(operations_.Progress(begun.operation_id)->status, IsOk());
}

TEST_F(ResizeRunnerTest, JoinWaitsForTheEndsOfAllResizes) {
  endpoints_.on_each_check = [this] { go_.WaitForNotification(); };
  std::vector<std::string> operations;
  for (size_t i = 0; i < 2; ++i) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunResize begun, Begin(CallOf(i)));
    operations.push_back(begun.operation_id);
  }
  resizes_.Stop(absl::UnavailableError("the coordinator is stopping"));
  std::thread joiner([&] {
    resizes_.Join();
    for (const std::string& id : operations) EXPECT_TRUE(operations_.Progress(id)->ended);
  });
  go_.Notify();
  joiner.join();
  for (const std::string& id : operations) {
    EXPECT_THAT(operations_.Progress(id)->status, StatusIs(absl::StatusCode::kUnavailable));
  }
  EXPECT_THAT(Begin(CallOf(2)), StatusIs(absl::StatusCode::kUnavailable));
  resizes_.Join();  // there is none left
}

TEST_F(ResizeRunnerTest, AWorkerThatIsReplacedMeanwhileDoesNotServeTheNewShape) {
  const ResizeCall call = CallOf(0);
  const auto find = [this](const std::string& mesh_id) {
    return definition_store_->shared_state()->Find(DefinitionKind::kMesh, mesh_id);
  };
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<const Definition> before,
                                 find(call.mesh_id));
  // As `admin worker replace w0 w1` while the resize waits for its auxiliary mesh.
  absl::Status replaced = absl::UnknownError("not called");
  endpoints_.on_check = [&] {
    absl::Notification done;
    definition_store_->Reassign(ResizeMeshName(*before), "w0", "w1", [&](const auto& mesh) {
      replaced = mesh.status();
      done.Notify();
    });
    done.WaitForNotification();
  };
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunResize begun, Begin(call));
  EXPECT_THAT(begun.plan.workers, ::testing::ElementsAre("w0"));
  ASSERT_TRUE(test::Eventually([&] { return operations_.Progress(begun.operation_id)->ended; }));
  EXPECT_THAT(operations_.Progress(begun.operation_id)->status, IsOk());
  EXPECT_THAT(replaced, IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<const Definition> after, find(call.mesh_id));
  EXPECT_THAT(WorkersOf(*after), ::testing::ElementsAre("w1"));
}

}  // namespace
}  // namespace shardmesh::server
