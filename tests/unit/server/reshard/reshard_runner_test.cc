// ReshardRunner: what it moves, keeps, lets go and refuses, however a move ends.
#include "server/reshard/reshard_runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "rpc/codec/array_codec.h"
#include "rpc/codec/status.h"
#include "rpc/metrics/metrics.h"
#include "rpc/transfer_token.h"
#include "server/reshard/array_fill.h"
#include "sharding/presets.h"
#include "shardmesh/internal/v1/attach_service.pb.h"
#include "shardmesh/internal/v1/fill.pb.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "tests/testing/eventually.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/server/steps/keeping_fill.h"
#include "tests/unit/server/steps/step_cluster.h"

namespace shardmesh::server {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

const PartitionSpec kOverX({SpecEntry::Axis("x")});
const PartitionSpec kWhole({SpecEntry()});

// What the caller of a reshard hears.
struct Heard {
  absl::Mutex mutex;
  std::optional<ReshardOutline> outline ABSL_GUARDED_BY(mutex);
  std::vector<ReshardedArray> moved ABSL_GUARDED_BY(mutex);
  int64_t done_bytes ABSL_GUARDED_BY(mutex) = 0;
  absl::StatusOr<Revision> end ABSL_GUARDED_BY(mutex) = absl::UnknownError("it runs");
  absl::Notification ended;
  ReshardRunner::RunPtr run;

  ReshardOutline Outline() {
    absl::MutexLock lock(&mutex);
    return outline.value_or(ReshardOutline());
  }
  std::vector<ReshardedArray> Moved() {
    absl::MutexLock lock(&mutex);
    return moved;
  }
  absl::StatusOr<Revision> Wait() {
    EXPECT_TRUE(ended.WaitForNotificationWithTimeout(absl::Seconds(60)));
    absl::MutexLock lock(&mutex);
    return end;
  }
};

class ReshardRunnerTest : public StepCluster {
 protected:
  // The sequencer ends all work before the runner is gone.
  ~ReshardRunnerTest() override { sequencer_.reset(); }

  ReshardCall Call() const {
    ReshardCall call{.request_id = "r",
                     .session_id = session_,
                     .fingerprint = "f",
                     .caller = caller_,
                     .deadline = clock_.Now() + absl::Seconds(100)};
    call.rule_source = [](const Definitions&, const std::function<bool()>&) {
      return std::nullopt;
    };
    call.profile_source = [](const Definitions&) { return PartitionAxis(); };
    return call;
  }
  ReshardCall CallOf(const std::string& name, const PartitionSpec& spec) const {
    ReshardCall call = Call();
    call.array = ArrayReference{.name = name};
    call.spec = spec;
    return call;
  }
  ReshardCall CallOfTree(const std::string& prefix, const PartitionSpec& spec) const {
    ReshardCall call = Call();
    call.prefix = prefix;
    call.spec = spec;
    return call;
  }

  std::unique_ptr<Heard> Start(ReshardCall call) { return Start(std::move(call), &runner_); }
  // Starts a further call, which moves "w" to another mesh. Waits until its workers have orders.
  std::unique_ptr<Heard> StartOnto(const std::string& mesh_id) {
    ReshardCall call = CallOf("w", kWhole);
    call.request_id = "r2";
    call.mesh_id = mesh_id;
    std::unique_ptr<Heard> heard = Start(std::move(call));
    EXPECT_TRUE(test::Eventually([&] { return fill_.last_orders().size() == 2; }));
    return heard;
  }
  std::unique_ptr<Heard> Start(ReshardCall call, ReshardRunner* runner) {
    auto heard = std::make_unique<Heard>();
    Heard* const to = heard.get();
    ReshardEvents events;
    events.planned = [this, to](const ReshardOutline& outline) {
      if (on_planned_) on_planned_();
      absl::MutexLock lock(&to->mutex);
      to->outline = outline;
    };
    events.moved = [to](const ReshardedArray& array, int64_t done_bytes) {
      absl::MutexLock lock(&to->mutex);
      to->moved.push_back(array);
      to->done_bytes = done_bytes;
    };
    events.ended = [to](absl::StatusOr<Revision> end) {
      {
        absl::MutexLock lock(&to->mutex);
        to->end = std::move(end);
      }
      to->ended.Notify();
    };
    heard->run = runner->Start(std::move(call), std::move(events));
    return heard;
  }
  absl::Status Refusal(ReshardCall call) {
    const std::unique_ptr<Heard> heard = Start(std::move(call));
    const absl::Status status = heard->Wait().status();
    EXPECT_EQ(transport_.started(), 0);
    EXPECT_EQ(registry_->CountArrays().staging, 0);
    return status;
  }

  // Adds an array of which each rank of "m" has a partial sum. Returns its id.
  std::string AddPartial(const std::string& name) {
    ArrayDescriptor partial = Descriptor();
    partial.spec = PartitionSpec({SpecEntry()}, {"x"});
    return AddArray(partial, name);
  }

  // Waits until the workers were told of `steps` steps in all.
  bool AwaitSteps(int steps) {
    return test::Eventually([&] { return transport_.started() >= steps; });
  }
  // Both ranks report the last step that the workers were told of.
  void FinishStep() {
    for (int64_t rank = 0; rank < 2; ++rank) EXPECT_THAT(Report(rank), IsOk());
  }
  // Both workers report that they have filled their tiles.
  void FinishFill() {
    ASSERT_TRUE(test::Eventually([&] { return fill_.last_orders().size() == 2; }));
    for (const auto& [identity, order] : fill_.last_orders()) {
      RankReport report{.identity = identity, .rank = order.rank(), .done = true};
      report.tiles.push_back(
          {.array_id = rpc::ParseArrayDescriptorBytes(order.tiles(0).array_descriptor())->array_id,
           .crc32c = 9});
      EXPECT_THAT(sequencer_->ReportTransfer(order.transfer_id(), order.term(), std::move(report)),
                  IsOk());
    }
  }
  std::string IdOfName(const std::string& name) {
    return registry_->FindName(name).value_or(NameEntry{}).array_id;
  }
  // Returns the keys of the records of released arrays.
  std::vector<std::string> StoredReleases() {
    std::vector<std::string> keys;
    const absl::StatusOr<KeyValues> stored = store_->List("released/");
    for (const KeyValue& item : stored->items) keys.push_back(item.key);
    return keys;
  }
  bool IsHere(const std::string& array_id) { return registry_->FindArray(array_id).ok(); }
  PartitionSpec SpecOf(const std::string& name) {
    return (*registry_->FindArray(IdOfName(name)))->definition.descriptor.spec;
  }

  OperationTable operations_{&clock_, &sessions_};
  Transfers transfers_{&clock_, registry_.get(), &sessions_, sequencer_.get(), &operations_};
  std::function<void()> on_planned_;  // called when a reshard has been planned
  KeepingFill fill_;
  const ReshardParts parts_{.plan = {.put = {.clock = &clock_,
                                             .definition_store = definition_store_.get(),
                                             .membership = &members_,
                                             .registry = registry_.get(),
                                             .endpoints = &endpoints_,
                                             .sessions = &sessions_,
                                             .transfers = &transfers_},
                                     .registry = registry_.get(),
                                     .recovery = &recovery_},
                            .clock = &clock_,
                            .registry = registry_.get(),
                            .sessions = &sessions_,
                            .operations = &operations_,
                            .steps = &steps_,
                            .fill = &fill_,
                            .token_key = std::string(32, 'k'),
                            .term = 7};
  ReshardRunner runner_{parts_};
};

TEST_F(ReshardRunnerTest, ANameMovesToTheNewArray) {
  const std::string old_id = AddArray(Descriptor(), "w");
  const std::unique_ptr<Heard> heard = Start(CallOf("w", kWhole));
  ASSERT_TRUE(AwaitSteps(1));
  EXPECT_EQ(transport_.work().op, StrCat("reshard of array ", old_id));
  EXPECT_EQ(IdOfName("w"), old_id);  // readers see the old array until the commit
  FinishStep();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Revision revision, heard->Wait());
  ASSERT_THAT(heard->Moved(), SizeIs(1));
  const ReshardedArray moved = heard->Moved().front();
  EXPECT_EQ(moved.name, "w");
  EXPECT_EQ(moved.source_array_id, old_id);
  EXPECT_EQ(moved.descriptor.array_id, IdOfName("w"));
  EXPECT_EQ(moved.name_version, revision);
  EXPECT_EQ(moved.moved_bytes, 32);  // each rank lacks half of 32 bytes
  EXPECT_FALSE(moved.is_skipped);
  EXPECT_NE(IdOfName("w"), old_id);
  EXPECT_EQ(SpecOf("w"), kWhole);
  // The session keeps the old array, and nothing else.
  EXPECT_TRUE(IsHere(old_id));
  EXPECT_EQ(PinnedBySession(), 1);
  EXPECT_THAT(StoredReleases(), IsEmpty());
  UnpinForSession(*registry_, sessions_, session_, {old_id});
  EXPECT_FALSE(IsHere(old_id));
  EXPECT_TRUE(IsHere(moved.descriptor.array_id));
}

TEST_F(ReshardRunnerTest, TheCallIsAnOperation) {
  AddArray(Descriptor(), "w");
  const std::unique_ptr<Heard> heard = Start(CallOf("w", kWhole));
  ASSERT_TRUE(AwaitSteps(1));
  const ReshardOutline outline = heard->Outline();
  EXPECT_EQ(outline.array_count, 1);
  EXPECT_EQ(outline.total_bytes, 64);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(OperationProgress progress,
                                 operations_.Progress(outline.operation_id));
  EXPECT_EQ(progress.kind, OperationKind::kReshard);
  EXPECT_EQ(progress.description, "reshard of 'w'");
  EXPECT_EQ(progress.total_bytes, 64);
  EXPECT_FALSE(progress.ended);
  FinishStep();
  ASSERT_THAT(heard->Wait(), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(progress, operations_.Progress(outline.operation_id));
  EXPECT_TRUE(progress.ended);
  EXPECT_EQ(progress.done, 1);
  EXPECT_EQ(progress.done_bytes, 64);
}

TEST_F(ReshardRunnerTest, ProgressMovesWithinAStepAndNeverPastItsEnd) {
  AddArray(Descriptor(), "w");
  const std::unique_ptr<Heard> heard = Start(CallOf("w", kWhole));
  ASSERT_TRUE(AwaitSteps(1));
  const std::string id = heard->Outline().operation_id;
  const auto done_bytes = [&] { return operations_.Progress(id)->done_bytes; };
  const int64_t sequence = transport_.work().sequence;
  EXPECT_EQ(done_bytes(), 0);
  // The two ranks receive 16 bytes each, and the new tiles have 64.
  sequencer_->StepReceived(sequence, "w0", 8);
  EXPECT_EQ(done_bytes(), 16);
  sequencer_->StepReceived(sequence, "w1", 16);
  EXPECT_EQ(done_bytes(), 48);
  sequencer_->StepReceived(sequence, "w1", 0);
  sequencer_->StepReceived(sequence, "w0", 3);
  EXPECT_EQ(done_bytes(), 48) << "an older heartbeat takes nothing back";
  sequencer_->StepReceived(sequence, "w0", 1'000);
  EXPECT_EQ(done_bytes(), 64);
  EXPECT_EQ(operations_.Progress(id)->done, 0);
  FinishStep();
  ASSERT_THAT(heard->Wait(), IsOk());
  sequencer_->StepReceived(sequence, "w0", 1'000);
  EXPECT_EQ(done_bytes(), 64);
  EXPECT_EQ(operations_.Progress(id)->done, 1);
}

TEST_F(ReshardRunnerTest, AFailedStepCountsAsNothing) {
  AddArray(Descriptor(), "w");
  const std::unique_ptr<Heard> heard = Start(CallOf("w", kWhole));
  ASSERT_TRUE(AwaitSteps(1));
  const std::string id = heard->Outline().operation_id;
  sequencer_->StepReceived(transport_.work().sequence, "w0", 8);
  EXPECT_EQ(operations_.Progress(id)->done_bytes, 16);
  ASSERT_THAT(operations_.Cancel(id, session_), IsOk());
  EXPECT_THAT(heard->Wait(), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_EQ(operations_.Progress(id)->done_bytes, 0);
}

TEST_F(ReshardRunnerTest, ACancelledOperationLeavesTheOldArray) {
  const std::string old_id = AddArray(Descriptor(), "w");
  const std::unique_ptr<Heard> heard = Start(CallOf("w", kWhole));
  ASSERT_TRUE(AwaitSteps(1));
  ASSERT_THAT(operations_.Cancel(heard->Outline().operation_id, session_), IsOk());
  EXPECT_THAT(heard->Wait(), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_EQ(IdOfName("w"), old_id);
  EXPECT_EQ(registry_->CountArrays().total(), 1);
  EXPECT_EQ(PinnedBySession(), 0);
  // The same request may run again.
  const std::unique_ptr<Heard> again = Start(CallOf("w", kWhole));
  ASSERT_TRUE(AwaitSteps(2));
  FinishStep();
  EXPECT_THAT(again->Wait(), IsOk());
}

TEST_F(ReshardRunnerTest, ALostWorkerLeavesTheOldArray) {
  const std::string old_id = AddArray(Descriptor(), "w");
  const std::unique_ptr<Heard> heard = Start(CallOf("w", kWhole));
  ASSERT_TRUE(AwaitSteps(1));
  sequencer_->WorkerLost("w1", 3, "killed");
  EXPECT_THAT(heard->Wait(), StatusIs(absl::StatusCode::kUnavailable, Reason::kWorkerLost));
  EXPECT_EQ(IdOfName("w"), old_id);
  EXPECT_EQ(registry_->CountArrays().total(), 1);
  EXPECT_EQ(PinnedBySession(), 0);
}

// The pin that the first of two calls made for the session is that of the second one too.
TEST_F(ReshardRunnerTest, ACallThatFailsLeavesThePinOnWhichAnotherOneCounts) {
  const std::string old_id = AddArray(Descriptor(), "w");
  const std::unique_ptr<Heard> first = Start(CallOf("w", kWhole));
  ASSERT_TRUE(AwaitSteps(1));
  const std::unique_ptr<Heard> second = StartOnto("n");
  ASSERT_THAT(operations_.Cancel(first->Outline().operation_id, session_), IsOk());
  EXPECT_THAT(first->Wait(), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_EQ(PinnedBySession(), 1);
  FinishFill();
  ASSERT_THAT(second->Wait(), IsOk());
  EXPECT_NE(IdOfName("w"), old_id);
  EXPECT_TRUE(IsHere(old_id));
  EXPECT_EQ(PinnedBySession(), 1);
  UnpinForSession(*registry_, sessions_, session_, {old_id});
  EXPECT_FALSE(IsHere(old_id));
}

TEST_F(ReshardRunnerTest, TheLastOfSeveralCallsThatFailRemovesTheirPin) {
  AddArray(Descriptor(), "w");
  const std::unique_ptr<Heard> first = Start(CallOf("w", kWhole));
  ASSERT_TRUE(AwaitSteps(1));
  const std::unique_ptr<Heard> second = StartOnto("n");
  // While the step of the first call runs, the session pins its output too.
  ASSERT_THAT(operations_.Cancel(first->Outline().operation_id, session_), IsOk());
  EXPECT_THAT(first->Wait(), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_EQ(PinnedBySession(), 1);
  ASSERT_THAT(operations_.Cancel(second->Outline().operation_id, session_), IsOk());
  EXPECT_THAT(second->Wait(), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_EQ(PinnedBySession(), 0);
}

TEST_F(ReshardRunnerTest, ANameThatAnotherCallMovedMeanwhileStays) {
  AddArray(Descriptor(), "w");
  const std::unique_ptr<Heard> heard = Start(CallOf("w", kWhole));
  ASSERT_TRUE(AwaitSteps(1));
  const std::string newer_id = AddArray(Descriptor(), "w");
  FinishStep();
  EXPECT_THAT(heard->Wait(), StatusIs(absl::StatusCode::kAborted, Reason::kVersionMismatch));
  EXPECT_EQ(IdOfName("w"), newer_id);
  EXPECT_EQ(registry_->CountArrays().total(), 1);
}

TEST_F(ReshardRunnerTest, AnArrayThatLiesSoIsSkipped) {
  const std::string old_id = AddArray(Descriptor(), "w");
  const std::unique_ptr<Heard> heard = Start(CallOf("w", kOverX));
  EXPECT_THAT(heard->Wait(), IsOk());
  ASSERT_THAT(heard->Moved(), SizeIs(1));
  EXPECT_TRUE(heard->Moved().front().is_skipped);
  EXPECT_EQ(heard->Moved().front().name_version, registry_->VersionOf("w"));
  EXPECT_EQ(IdOfName("w"), old_id);
  EXPECT_EQ(transport_.started(), 0);
}

TEST_F(ReshardRunnerTest, AnArrayThatLiesSoGetsTheRequestedName) {
  const std::string old_id = AddArray(Descriptor(), "w");
  ReshardCall call = CallOf("w", kOverX);
  call.name = "v";
  call.release_source = true;
  EXPECT_THAT(Start(std::move(call))->Wait(), IsOk());
  EXPECT_EQ(IdOfName("v"), old_id);
  EXPECT_EQ(registry_->VersionOf("w"), 0);
}

TEST_F(ReshardRunnerTest, ReleaseSourceLetsTheOldArrayGo) {
  const std::string old_id = AddArray(Descriptor(), "w");
  ReshardCall call = CallOf("w", kWhole);
  call.release_source = true;
  const std::unique_ptr<Heard> heard = Start(std::move(call));
  ASSERT_TRUE(AwaitSteps(1));
  FinishStep();
  ASSERT_THAT(heard->Wait(), IsOk());
  EXPECT_FALSE(IsHere(old_id));
  EXPECT_EQ(PinnedBySession(), 0);
}

TEST_F(ReshardRunnerTest, AResultWithAnotherNameLeavesTheOldNameUnlessReleased) {
  const std::string old_id = AddArray(Descriptor(), "w");
  ReshardCall call = CallOf("w", kWhole);
  call.name = "v";
  std::unique_ptr<Heard> heard = Start(call);
  ASSERT_TRUE(AwaitSteps(1));
  FinishStep();
  ASSERT_THAT(heard->Wait(), IsOk());
  EXPECT_EQ(IdOfName("w"), old_id);
  EXPECT_EQ(SpecOf("v"), kWhole);

  UnpinForSession(*registry_, sessions_, session_, {old_id});
  call.name = "u";
  call.request_id = "s";
  call.release_source = true;
  heard = Start(call);
  ASSERT_TRUE(AwaitSteps(2));
  FinishStep();
  ASSERT_THAT(heard->Wait(), IsOk());
  EXPECT_EQ(registry_->VersionOf("w"), 0);
  EXPECT_FALSE(IsHere(old_id));
}

TEST_F(ReshardRunnerTest, TheNewNameTheLossOfTheOldOneAndTheReleaseAreOneCommit) {
  for (const Durability durability : {Durability::kMemory, Durability::kDisk}) {
    const bool is_step = durability == Durability::kMemory;
    const std::string old_id = AddArray(Descriptor(), "w", durability);
    ReshardCall call = CallOf("w", kWhole);
    call.request_id = is_step ? "step" : "transfer";
    call.name = is_step ? "v" : "u";
    call.release_source = true;
    const Revision before = store_->revision();
    const std::unique_ptr<Heard> heard = Start(call);
    if (is_step) {
      ASSERT_TRUE(AwaitSteps(1));
      FinishStep();
    } else {
      FinishFill();
    }
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const Revision revision, heard->Wait());
    EXPECT_EQ(registry_->VersionOf(call.name), revision);
    EXPECT_EQ(registry_->VersionOf("w"), 0);
    EXPECT_FALSE(IsHere(old_id));
    absl::Mutex mutex;
    std::vector<std::set<std::string>> commits;  // the names and releases that each changed
    const auto watch = store_->Watch({"name/", "released/"}, before + 1,
                                     [&](const std::vector<WatchEvent>& events) {
                                       absl::MutexLock lock(&mutex);
                                       std::set<std::string>& keys = commits.emplace_back();
                                       for (const WatchEvent& event : events)
                                         keys.insert(event.key);
                                     });
    ASSERT_THAT(watch.status(), IsOk());
    ASSERT_TRUE(test::Eventually([&] {
      absl::MutexLock lock(&mutex);
      return !commits.empty();
    }));
    absl::MutexLock lock(&mutex);
    EXPECT_THAT(commits, ElementsAre(UnorderedElementsAre("name/w", StrCat("name/", call.name),
                                                          StrCat("released/", old_id))));
  }
}

TEST_F(ReshardRunnerTest, ATreeRecordsTheReleaseOfEachArrayThatHasNoOtherName) {
  const std::string first_id = AddArray(Descriptor(), "t/a");
  const std::string second_id = AddArray(Descriptor(), "t/b");
  CommitRequest commit;
  commit.moves.push_back({.name = "alias", .array_id = second_id, .expected_version = {}});
  absl::Notification named;
  registry_->Commit(std::move(commit), [&](const absl::StatusOr<CommitResult>& result) {
    EXPECT_THAT(result, IsOk());
    named.Notify();
  });
  named.WaitForNotification();
  ASSERT_THAT(registry_->Pin(first_id), IsOk());
  ReshardCall call = CallOfTree("t/", kWhole);
  call.release_source = true;
  const std::unique_ptr<Heard> heard = Start(std::move(call));
  ASSERT_TRUE(AwaitSteps(1));
  EXPECT_THAT(StoredReleases(), IsEmpty());
  FinishStep();
  ASSERT_TRUE(AwaitSteps(2));
  EXPECT_THAT(StoredReleases(), ElementsAre(StrCat("released/", first_id)));
  EXPECT_TRUE(IsHere(first_id)) << "a reader pins it";
  FinishStep();
  ASSERT_THAT(heard->Wait(), IsOk());
  EXPECT_THAT(StoredReleases(), ElementsAre(StrCat("released/", first_id)));
  EXPECT_EQ(IdOfName("alias"), second_id);
  registry_->Unpin(first_id);
  EXPECT_FALSE(IsHere(first_id));
}

TEST_F(ReshardRunnerTest, ANameThatLeftTheOldArrayMeanwhileStaysWhereItIs) {
  AddArray(Descriptor(), "w");
  ReshardCall call = CallOf("w", kWhole);
  call.name = "v";
  call.release_source = true;
  const std::unique_ptr<Heard> heard = Start(call);
  ASSERT_TRUE(AwaitSteps(1));
  const std::string newer_id = AddArray(Descriptor(), "w");
  FinishStep();
  EXPECT_THAT(heard->Wait(), IsOk());
  EXPECT_EQ(SpecOf("v"), kWhole);
  EXPECT_EQ(IdOfName("w"), newer_id);
}

TEST_F(ReshardRunnerTest, ANameThatIsReplacedDuringThePlanningIsLookedUpAgain) {
  const std::string old_id = AddArray(Descriptor(), "w");
  ReshardCall call = CallOf("w", kWhole);
  std::string newer_id;
  call.rule_source =
      [&](const Definitions&,
          const std::function<bool()>&) -> absl::StatusOr<std::optional<RuleSetDefinition>> {
    if (newer_id.empty()) newer_id = AddArray(Descriptor(), "w");
    return std::nullopt;
  };
  const std::unique_ptr<Heard> heard = Start(std::move(call));
  ASSERT_TRUE(AwaitSteps(1));
  FinishStep();
  ASSERT_THAT(heard->Wait(), IsOk());
  EXPECT_FALSE(IsHere(old_id));
  EXPECT_EQ(heard->Moved().front().source_array_id, newer_id);
  EXPECT_EQ(SpecOf("w"), kWhole);
}

TEST_F(ReshardRunnerTest, ANameThatIsReplacedAfterThePlanningStaysWithTheNewArray) {
  struct Case {
    bool is_tree;
    bool release_source;
  };
  int steps = 0;
  for (const Case& each : {Case{false, false}, {false, true}, {true, false}, {true, true}}) {
    const std::string old_id = AddArray(Descriptor(), "w");
    std::string newer_id;
    on_planned_ = [&] { newer_id = AddArray(Descriptor(), "w"); };
    ReshardCall call = each.is_tree ? CallOfTree("w", kWhole) : CallOf("w", kWhole);
    call.request_id = StrCat("r", each.is_tree, each.release_source);
    call.release_source = each.release_source;
    const std::unique_ptr<Heard> heard = Start(std::move(call));
    if (!each.is_tree) {  // pinned since its planning
      ASSERT_TRUE(AwaitSteps(++steps));
      FinishStep();
    }
    EXPECT_THAT(heard->Wait(), StatusIs(absl::StatusCode::kAborted, Reason::kVersionMismatch))
        << each.is_tree << each.release_source;
    EXPECT_EQ(IdOfName("w"), newer_id);
    EXPECT_TRUE(test::Eventually([&] { return !IsHere(old_id); }));
    EXPECT_EQ(transport_.started(), steps);
    EXPECT_EQ(PinnedBySession(), 0);
  }
}

TEST_F(ReshardRunnerTest, MovesBeginWhileTheStoreCommits) {
  for (const char* name : {"a", "b"}) AddArray(Descriptor(), name);
  ReshardCall call = CallOfTree("", kWhole);
  call.release_source = true;  // one after the other
  transport_.on_start = [&] {
    // A commit that is called back only when the thread of the earlier commit is free.
    if (transport_.started() == 1) AddArray(Descriptor(), "c");
  };
  const std::unique_ptr<Heard> heard = Start(call);
  ASSERT_TRUE(AwaitSteps(1));
  FinishStep();
  ASSERT_TRUE(AwaitSteps(2));
  FinishStep();
  EXPECT_THAT(heard->Wait(), IsOk());
}

TEST_F(ReshardRunnerTest, ACancellationAfterTheLastCommitChangesNothing) {
  AddArray(Descriptor(), "w");
  ReshardCall call = CallOf("w", kWhole);
  call.release_source = true;
  const std::unique_ptr<Heard> heard = Start(std::move(call));
  ASSERT_TRUE(AwaitSteps(1));
  on_release_ = [&] { ReshardRunner::Cancel(heard->run, absl::CancelledError("too late")); };
  FinishStep();
  EXPECT_THAT(heard->Wait(), IsOk());
  EXPECT_THAT(heard->Moved(), SizeIs(1));
  EXPECT_THAT(operations_.Progress(heard->Outline().operation_id)->status, IsOk());
}

TEST_F(ReshardRunnerTest, ACancellationEndsTheCompilationOfRules) {
  AddArray(Descriptor(), "w");
  ReshardCall call = Call();
  call.array = ArrayReference{.name = "w"};
  call.has_rules = true;
  absl::Notification begun;
  bool is_stopped = false;
  call.rule_source = [&](const Definitions&, const std::function<bool()>& is_cancelled)
      -> absl::StatusOr<std::optional<RuleSetDefinition>> {
    begun.Notify();
    is_stopped = test::Eventually(is_cancelled);
    return absl::CancelledError("stopped");
  };
  const std::unique_ptr<Heard> heard = Start(std::move(call));
  begun.WaitForNotification();
  ReshardRunner::Cancel(heard->run, absl::CancelledError("enough"));
  EXPECT_THAT(heard->Wait(), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_TRUE(is_stopped);
}

TEST_F(ReshardRunnerTest, WithoutALayoutUnevenPartsAndTheRequestedSpecStay) {
  // The mesh has no axis y, so a correction left it out before the array was cut.
  ArrayDefinition uneven{.descriptor = Descriptor()};
  uneven.descriptor.cut_points = {{0, 2, 8}};
  uneven.requested_spec = PartitionSpec({SpecEntry::Axes({"x", "y"})});
  ASSERT_THAT(registry_->Stage(uneven), IsOk());
  CommitRequest commit;
  commit.arrays.push_back({.array_id = uneven.descriptor.array_id, .tile_crc32c = {1, 2}});
  commit.moves.push_back(
      {.name = "t/uneven", .array_id = uneven.descriptor.array_id, .expected_version = {}});
  registry_->Commit(std::move(commit), [](const absl::StatusOr<CommitResult>& result) {
    EXPECT_THAT(result, IsOk());
  });
  ASSERT_TRUE(test::Eventually([&] { return registry_->VersionOf("t/uneven") != 0; }));
  ReshardCall call = Call();
  call.prefix = "t/";
  call.mesh_id = "n";
  const std::unique_ptr<Heard> heard = Start(std::move(call));
  FinishFill();
  ASSERT_THAT(heard->Wait(), IsOk());
  const ArrayDefinition moved = (*registry_->FindArray(IdOfName("t/uneven")))->definition;
  EXPECT_EQ(moved.descriptor.mesh_id, "n");
  EXPECT_EQ(moved.descriptor.spec, kOverX);
  EXPECT_EQ(moved.descriptor.cut_points, uneven.descriptor.cut_points);
  EXPECT_EQ(moved.requested_spec, uneven.requested_spec);
}

TEST_F(ReshardRunnerTest, ARuleCutsWhatTheAxesDoNotDivide) {
  ArrayDescriptor odd = Descriptor();
  odd.shape = {7};
  odd.spec = PartitionSpec();
  AddArray(odd, "w");
  ReshardCall call = CallOf("w", kOverX);
  call.uneven = UnevenCuts::kByWeights;
  call.weights = {1, 3};
  call.strict = true;  // no correction is needed
  const std::unique_ptr<Heard> heard = Start(std::move(call));
  ASSERT_TRUE(AwaitSteps(1));
  FinishStep();
  ASSERT_THAT(heard->Wait(), IsOk());
  ASSERT_THAT(heard->Moved(), SizeIs(1));
  EXPECT_THAT(heard->Moved().front().corrections, IsEmpty());
  const ArrayDescriptor moved = (*registry_->FindArray(IdOfName("w")))->definition.descriptor;
  EXPECT_EQ(moved.spec, kOverX);
  EXPECT_THAT(moved.cut_points, ElementsAre(ElementsAre(0, 2, 7)));
  // A repetition finds nothing to move.
  ReshardCall again = CallOf("w", kOverX);
  again.request_id = "r2";
  again.uneven = UnevenCuts::kByWeights;
  again.weights = {1, 3};
  const std::unique_ptr<Heard> skipped = Start(std::move(again));
  ASSERT_THAT(skipped->Wait(), IsOk());
  EXPECT_TRUE(skipped->Moved().front().is_skipped);
}

TEST_F(ReshardRunnerTest, ARuleCutsATreeAnewWithoutALayout) {
  // The rule replaces the cut points of the first array, and the replication of the second one.
  ArrayDescriptor cut = Descriptor();
  cut.cut_points = {{0, 2, 8}};
  AddArray(cut, "t/cut");
  ArrayDefinition corrected{.descriptor = Descriptor()};
  corrected.descriptor.shape = {7};
  corrected.descriptor.spec = PartitionSpec();
  corrected.requested_spec = kOverX;
  ASSERT_THAT(registry_->Stage(corrected), IsOk());
  CommitRequest commit;
  commit.arrays.push_back({.array_id = corrected.descriptor.array_id, .tile_crc32c = {1, 2}});
  commit.moves.push_back(
      {.name = "t/odd", .array_id = corrected.descriptor.array_id, .expected_version = {}});
  registry_->Commit(std::move(commit), [](const absl::StatusOr<CommitResult>& result) {
    EXPECT_THAT(result, IsOk());
  });
  ASSERT_TRUE(test::Eventually([&] { return registry_->VersionOf("t/odd") != 0; }));
  const auto planned = [&](UnevenCuts rule) {
    ReshardCall call = Call();
    call.prefix = "t/";
    call.uneven = rule;
    call.validate_only = true;
    const std::unique_ptr<Heard> heard = Start(std::move(call));
    EXPECT_THAT(heard->Wait(), IsOk());
    return heard->Moved();
  };
  std::vector<ReshardedArray> arrays = planned(UnevenCuts::kEqualOnly);
  ASSERT_THAT(arrays, SizeIs(2));
  EXPECT_TRUE(arrays[0].is_skipped);
  EXPECT_TRUE(arrays[1].is_skipped);
  // Both workers have a mebibyte.
  for (const UnevenCuts rule : {UnevenCuts::kCeilChunks, UnevenCuts::kByMemory}) {
    arrays = planned(rule);
    ASSERT_THAT(arrays, SizeIs(2));
    EXPECT_THAT(arrays[0].descriptor.cut_points, IsEmpty());
    EXPECT_EQ(arrays[1].descriptor.spec, kOverX);
    EXPECT_THAT(arrays[1].descriptor.cut_points, ElementsAre(ElementsAre(0, 4, 7)));
    EXPECT_THAT(arrays[1].corrections, IsEmpty());
  }
}

TEST_F(ReshardRunnerTest, WeightsThatDoNotFitTheMeshAreRefused) {
  AddArray(Descriptor(), "w");
  const auto field_of = [](const absl::Status& status) {
    const auto violations = rpc::FieldViolationsOf(status);
    return violations.empty() ? std::string() : violations.front().field;
  };
  ReshardCall call = CallOf("w", kOverX);
  call.uneven = UnevenCuts::kByWeights;
  call.weights = {1, 2, 3};
  absl::Status refused = Refusal(std::move(call));
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kInvalidCutPoints));
  EXPECT_EQ(field_of(refused), "weights");
  EXPECT_THAT(std::string(refused.message()), HasSubstr("array 'w'"));
  call = CallOf("w", kOverX);
  call.uneven = UnevenCuts::kBySpeed;  // these workers have not measured theirs
  refused = Refusal(std::move(call));
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kNotAvailable));
  EXPECT_EQ(field_of(refused), "uneven");
}

TEST_F(ReshardRunnerTest, OnlyArraysThatNothingElseHoldsCountAsReleased) {
  // A whole copy of an array takes 80 KiB on each worker, and a half 40 KiB.
  ArrayDescriptor large = Descriptor();
  large.shape = {20'480};
  const auto need_bytes = [&] {
    ReshardCall call = CallOfTree("", kWhole);
    call.release_source = true;
    call.validate_only = true;
    const std::unique_ptr<Heard> heard = Start(std::move(call));
    EXPECT_THAT(heard->Wait(), IsOk());
    return heard->Outline().memory.front().need_bytes;
  };
  const std::string first_id = AddArray(large, "a");
  large.array_id = RandomId();
  AddArray(large, "b");
  EXPECT_EQ(need_bytes(), 122'880) << "the first array has gone when the second one comes";
  const auto name_first = [&](const std::string& name) {
    CommitRequest commit;
    commit.moves.push_back({.name = name, .array_id = first_id, .expected_version = {}});
    registry_->Commit(std::move(commit), [](const absl::StatusOr<CommitResult>& result) {
      EXPECT_THAT(result, IsOk());
    });
    EXPECT_TRUE(test::Eventually([&] { return registry_->VersionOf(name) != 0; }));
  };
  name_first("c");
  // All three copies lie there before the first array goes, but the second one has gone by then.
  EXPECT_EQ(need_bytes(), 81'920 * 3 - 40'960);
}

TEST_F(ReshardRunnerTest, AnArrayThatAPinOrANameOutsideTheTreeHoldsIsNotReleased) {
  ArrayDescriptor large = Descriptor();
  large.shape = {20'480};
  const std::string held_id = AddArray(large, "t/a");
  large.array_id = RandomId();
  AddArray(large, "t/b");
  const auto need_bytes = [&] {
    ReshardCall call = CallOfTree("t/", kWhole);
    call.release_source = true;
    call.validate_only = true;
    const std::unique_ptr<Heard> heard = Start(std::move(call));
    EXPECT_THAT(heard->Wait(), IsOk());
    return heard->Outline().memory.front().need_bytes;
  };
  EXPECT_EQ(need_bytes(), 81'920 * 2 - 40'960);
  ASSERT_THAT(registry_->Pin(held_id), IsOk());
  EXPECT_EQ(need_bytes(), 81'920 * 2);
  registry_->Unpin(held_id);
  CommitRequest commit;
  commit.moves.push_back({.name = "other", .array_id = held_id, .expected_version = {}});
  registry_->Commit(std::move(commit), [](const absl::StatusOr<CommitResult>& result) {
    EXPECT_THAT(result, IsOk());
  });
  ASSERT_TRUE(test::Eventually([&] { return registry_->VersionOf("other") != 0; }));
  EXPECT_EQ(need_bytes(), 81'920 * 2);
}

TEST_F(ReshardRunnerTest, AnArrayWithTwoNamesIsReleasedIfBothLeaveTheMesh) {
  ArrayDescriptor large = Descriptor();
  large.shape = {20'480};
  const std::string first_id = AddArray(large, "a");
  large.array_id = RandomId();
  AddArray(large, "b");
  CommitRequest commit;
  commit.moves.push_back({.name = "c", .array_id = first_id, .expected_version = {}});
  registry_->Commit(std::move(commit), [](const absl::StatusOr<CommitResult>& result) {
    EXPECT_THAT(result, IsOk());
  });
  ASSERT_TRUE(test::Eventually([&] { return registry_->VersionOf("c") != 0; }));
  ReshardCall call = Call();
  call.from_mesh = Descriptor().mesh_id;
  call.mesh_id = "n";
  call.release_source = true;
  call.validate_only = true;
  const std::unique_ptr<Heard> heard = Start(std::move(call));
  ASSERT_THAT(heard->Wait(), IsOk());
  EXPECT_EQ(heard->Outline().array_count, 2);
  // Each array has half of its elements on each worker, on both meshes.
  EXPECT_EQ(heard->Outline().memory.front().need_bytes, 40'960);
}

TEST_F(ReshardRunnerTest, AnArrayByItsIdStaysPinnedWithoutAName) {
  const std::string old_id = AddArray(Descriptor(), "");
  ReshardCall call = Call();
  call.array = ArrayReference{.array_id = old_id};
  call.spec = kWhole;
  call.release_source = true;
  const std::unique_ptr<Heard> heard = Start(std::move(call));
  ASSERT_TRUE(AwaitSteps(1));
  FinishStep();
  ASSERT_THAT(heard->Wait(), IsOk());
  EXPECT_FALSE(IsHere(old_id));
  EXPECT_EQ(PinnedBySession(), 1);  // the new array
  EXPECT_TRUE(IsHere(heard->Moved().front().descriptor.array_id));
}

TEST_F(ReshardRunnerTest, ARequestOfALostSessionGetsTheAnswerOfTheStore) {
  AddArray(Descriptor(), "w");
  ReshardCall call = CallOf("w", kOverX);  // it lies so already
  call.name = "copy";
  const std::unique_ptr<Heard> first = Start(call);
  ASSERT_THAT(first->Wait(), IsOk());
  ASSERT_THAT(first->Moved(), SizeIs(1));
  ASSERT_THAT(sessions_.Close(session_), IsOk());
  const std::unique_ptr<Heard> repeated = Start(call);
  EXPECT_EQ(*repeated->Wait(), *first->Wait());
  ASSERT_THAT(repeated->Moved(), SizeIs(1));
  EXPECT_EQ(repeated->Moved()[0].name, "copy");
  EXPECT_EQ(repeated->Moved()[0].name_version, first->Moved()[0].name_version);
  EXPECT_EQ(repeated->Moved()[0].descriptor, first->Moved()[0].descriptor);
  call.fingerprint = "another";
  EXPECT_THAT(Start(call)->Wait(),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kRequestIdReused));
  call.request_id = "unknown";
  EXPECT_THAT(Start(call)->Wait(), StatusIs(absl::StatusCode::kNotFound, Reason::kSessionGone));
}

TEST_F(ReshardRunnerTest, RequestsWithoutAnIdAreNotRemembered) {
  AddArray(Descriptor(), "w");
  ReshardCall call = CallOf("w", kOverX);  // it lies so already
  call.request_id = "";
  call.operation_id = "of a resize";
  EXPECT_THAT(Start(call)->Wait(), IsOk());
  EXPECT_THAT(Start(call)->Wait(), IsOk());
  call.fingerprint = "another";
  EXPECT_THAT(Start(call)->Wait(), IsOk());
}

TEST_F(ReshardRunnerTest, ARepeatedRequestGetsTheFirstAnswer) {
  AddArray(Descriptor(), "w");
  const std::unique_ptr<Heard> heard = Start(CallOf("w", kWhole));
  ASSERT_TRUE(AwaitSteps(1));
  // While the first runs, a repetition waits.
  EXPECT_THAT(Start(CallOf("w", kWhole))->Wait(), StatusIs(absl::StatusCode::kAborted));
  FinishStep();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Revision revision, heard->Wait());
  const std::unique_ptr<Heard> again = Start(CallOf("w", kWhole));
  EXPECT_THAT(again->Wait(), revision);
  EXPECT_EQ(again->run, nullptr);
  ASSERT_THAT(again->Moved(), SizeIs(1));
  EXPECT_FALSE(again->Moved().front().is_skipped);
  EXPECT_EQ(again->Outline().operation_id, heard->Outline().operation_id);
  ReshardCall other = CallOf("w", kOverX);
  other.fingerprint = "g";
  EXPECT_THAT(Start(std::move(other))->Wait(),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kRequestIdReused));
}

TEST_F(ReshardRunnerTest, LongNamesCountAmongTheBytesOfRememberedAnswers) {
  const std::string name(900, 'n');
  AddArray(Descriptor(), name);
  ReshardParts parts = parts_;
  parts.max_remembered_bytes = 3'000;  // enough for one answer
  ReshardRunner runner(parts);
  ReshardCall call = CallOf(name, kOverX);
  for (const char* request_id : {"first", "second"}) {
    call.request_id = request_id;
    EXPECT_THAT(Start(call, &runner)->Wait(), IsOk());
  }
  EXPECT_EQ(Start(call, &runner)->run, nullptr) << "the second answer is remembered";
  call.request_id = "first";
  const std::unique_ptr<Heard> again = Start(call, &runner);
  EXPECT_NE(again->run, nullptr) << "the first answer is remembered";
  EXPECT_THAT(again->Wait(), IsOk());
}

TEST_F(ReshardRunnerTest, ATreeGoesOnWhereItStopped) {
  for (const char* name : {"t/a", "t/b", "t/c", "u"}) AddArray(Descriptor(), name);
  ReshardCall call = CallOfTree("t/", kWhole);
  call.release_source = true;  // one after the other
  const std::unique_ptr<Heard> heard = Start(call);
  ASSERT_TRUE(AwaitSteps(1));
  FinishStep();
  ASSERT_TRUE(AwaitSteps(2));
  sequencer_->WorkerLost("w1", 3, "killed");
  const absl::Status lost = heard->Wait().status();
  EXPECT_THAT(lost, StatusIs(absl::StatusCode::kUnavailable, Reason::kWorkerLost));
  EXPECT_THAT(std::string(lost.message()), HasSubstr("1 of 3 arrays lie as requested now"));
  EXPECT_EQ(SpecOf("t/a"), kWhole);
  EXPECT_EQ(SpecOf("t/b"), kOverX);

  sequencer_->WorkerAttached("w1", 4);
  const std::unique_ptr<Heard> again = Start(call);
  ASSERT_TRUE(AwaitSteps(3));
  FinishStep();
  ASSERT_TRUE(AwaitSteps(4));
  FinishStep();
  ASSERT_THAT(again->Wait(), IsOk());
  EXPECT_EQ(transport_.started(), 4);
  ASSERT_THAT(again->Moved(), SizeIs(3));
  EXPECT_TRUE(again->Moved().front().is_skipped);
  EXPECT_EQ(again->Outline().total_bytes, 128);
  for (const char* name : {"t/a", "t/b", "t/c"}) EXPECT_EQ(SpecOf(name), kWhole);
  EXPECT_EQ(SpecOf("u"), kOverX);
}

TEST_F(ReshardRunnerTest, OnlyAFewArraysMoveAtOnce) {
  for (const char* name : {"a", "b", "c", "d", "e", "f"}) AddArray(Descriptor(), name);
  const std::unique_ptr<Heard> heard = Start(CallOfTree("", kWhole));
  ASSERT_TRUE(AwaitSteps(kReshardsAtOnce));
  EXPECT_EQ(transport_.started(), static_cast<int>(kReshardsAtOnce));
  ReshardRunner::Cancel(heard->run, absl::CancelledError("enough"));
  EXPECT_THAT(heard->Wait(), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_THAT(heard->Moved(), IsEmpty());
  EXPECT_EQ(PinnedBySession(), 0);
}

TEST_F(ReshardRunnerTest, TheMemoryForMovesBoundsHowManyArraysMoveAtOnce) {
  for (const char* name : {"a", "b", "c", "d", "e", "f"}) AddArray(Descriptor(), name);
  ReshardParts parts = parts_;
  parts.plan.move_memory_bytes = int64_t{32} << 20;
  ReshardRunner runner(parts);
  const std::unique_ptr<Heard> heard = Start(CallOfTree("", kWhole), &runner);
  ASSERT_TRUE(AwaitSteps(2));
  EXPECT_EQ(transport_.started(), 2) << "each move may have 16 MiB of copies";
  ReshardRunner::Cancel(heard->run, absl::CancelledError("enough"));
  EXPECT_THAT(heard->Wait(), StatusIs(absl::StatusCode::kCancelled));
}

TEST_F(ReshardRunnerTest, OrdersToFillTilesHaveTheMemoryForMoves) {
  AddArray(Descriptor(), "w", Durability::kDisk);
  ReshardParts parts = parts_;
  parts.plan.move_memory_bytes = int64_t{48} << 20;
  ReshardRunner runner(parts);
  const std::unique_ptr<Heard> heard = Start(CallOf("w", kWhole), &runner);
  FinishFill();
  ASSERT_THAT(heard->Wait(), IsOk());
  for (const auto& [identity, order] : fill_.last_orders()) {
    EXPECT_EQ(order.move_memory_bytes(), int64_t{48} << 20) << identity;
  }
}

TEST(ReshardsAtOnceTest, FewerArraysMoveOnMeshesWhoseMovesTakeMoreMemory) {
  const auto item_on = [](int64_t devices, Durability durability) {
    auto array = std::make_shared<Array>();
    array->definition.descriptor.mesh_id = "mesh";
    array->durability = durability;
    array->state = ArrayState::kAvailable;
    ReshardItem item;
    item.target.descriptor.mesh_id = "mesh";
    item.target.descriptor.mesh = *Mesh::Create({{"x", devices}});
    item.source.array = std::move(array);
    return item;
  };
  const ReshardItem small = item_on(16, Durability::kMemory);
  const ReshardItem large = item_on(32, Durability::kMemory);
  EXPECT_EQ(ReshardsAtOnce({small}, /*release_source=*/false), 4u);
  EXPECT_EQ(ReshardsAtOnce({small, large}, /*release_source=*/false), 2u);
  EXPECT_EQ(ReshardsAtOnce({item_on(8192, Durability::kMemory)}, /*release_source=*/false), 1u);
  EXPECT_EQ(ReshardsAtOnce({small}, /*release_source=*/true), 1u);
  EXPECT_EQ(ReshardsAtOnce({small}, /*release_source=*/false, kLeastMoveMemoryBytes), 2u);
  EXPECT_EQ(ReshardsAtOnce({small, large}, /*release_source=*/false, kLeastMoveMemoryBytes), 1u);
  EXPECT_EQ(ReshardsAtOnce({large}, /*release_source=*/false, 2 * kMoveMemoryBytes), 4u);
  EXPECT_EQ(ReshardsAtOnce({small}, /*release_source=*/false, kMostMoveMemoryBytes), 4u);
  // No step moves these, so that they need no copies.
  ReshardItem skipped = large;
  skipped.is_skipped = true;
  EXPECT_EQ(ReshardsAtOnce({skipped, item_on(32, Durability::kDisk)}, false), 4u);
  // The sums that lie beside the old and the new array are those of one array.
  ReshardItem summed = small;
  summed.sums = ArrayDescriptor{};
  EXPECT_EQ(ReshardsAtOnce({small, summed}, /*release_source=*/false), 1u);
}

TEST_F(ReshardRunnerTest, WorkersAreToldToDropTheOldArrayBeforeTheNextOneMoves) {
  for (const char* name : {"a", "b", "c"}) AddArray(Descriptor(), name);
  ReshardCall call = CallOfTree("", kWhole);
  call.release_source = true;
  std::vector<int> begun;  // steps begun at each release
  on_release_ = [&] { begun.push_back(transport_.started()); };
  const std::unique_ptr<Heard> heard = Start(std::move(call));
  for (int step = 1; step <= 3; ++step) {
    ASSERT_TRUE(AwaitSteps(step));
    FinishStep();
  }
  ASSERT_THAT(heard->Wait(), IsOk());
  EXPECT_THAT(begun, ElementsAre(1, 2, 3));
}

TEST_F(ReshardRunnerTest, AnArrayOnDiskMovesAsATransferOnItsOwnMeshToo) {
  const std::string old_id = AddArray(Descriptor(), "w", Durability::kDisk);
  const std::unique_ptr<Heard> heard = Start(CallOf("w", kWhole));
  FinishFill();
  ASSERT_THAT(heard->Wait(), IsOk());
  EXPECT_NE(IdOfName("w"), old_id);
  EXPECT_EQ((*registry_->FindArray(IdOfName("w")))->definition.descriptor.mesh_id, "m");
  EXPECT_EQ(heard->Moved().front().moved_bytes, 32);
  EXPECT_EQ(transport_.started(), 0);
}

TEST_F(ReshardRunnerTest, ValidateOnlyShowsBytesAndMemory) {
  const std::string old_id = AddArray(Descriptor(), "w");
  Beat(/*used_bytes=*/100);
  ReshardCall call = CallOf("w", kWhole);
  call.validate_only = true;
  const std::unique_ptr<Heard> heard = Start(std::move(call));
  EXPECT_THAT(heard->Wait(), IsOk());
  const ReshardOutline outline = heard->Outline();
  EXPECT_EQ(outline.operation_id, "");
  ASSERT_THAT(outline.memory, SizeIs(2));
  EXPECT_EQ(outline.memory[1].rank, 1);
  EXPECT_EQ(outline.memory[1].identity, "w1");
  EXPECT_EQ(outline.memory[1].have_bytes, (1 << 20) - 100);
  EXPECT_EQ(outline.memory[1].need_bytes, 32);
  ASSERT_THAT(heard->Moved(), SizeIs(1));
  EXPECT_EQ(heard->Moved().front().name_version, 0);
  EXPECT_EQ(IdOfName("w"), old_id);
  EXPECT_EQ(transport_.started(), 0);
}

TEST_F(ReshardRunnerTest, TooLittleMemoryIsRefusedWithWhatWouldFit) {
  // Each worker has a mebibyte. A whole copy of an array takes 400 KiB.
  ArrayDescriptor large = Descriptor();
  large.shape = {102'400};
  for (const char* name : {"a", "b", "c"}) {
    large.array_id = RandomId();
    AddArray(large, name);
  }
  Beat(/*used_bytes=*/0);  // the tiles of these arrays count nothing here
  const absl::Status refused = Refusal(CallOfTree("", kWhole));
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted, Reason::kMemoryLimit));
  EXPECT_EQ(FactOf(refused, fact::kNeed), StrCat(3 * 409'600));
  EXPECT_EQ(FactOf(refused, fact::kHave), StrCat(1 << 20));
  EXPECT_EQ(FactOf(refused, fact::kRank), "0,1");
  EXPECT_EQ(FactOf(refused, fact::kIdentity), "w0,w1");
  EXPECT_THAT(std::string(refused.message()),
              testing::AllOf(HasSubstr("rank 1 of the mesh \"m\" (worker \"w1\") has 1.00 MiB of "
                                       "1.00 MiB left, and needs 1.17 MiB"),
                             HasSubstr("--release-source"), HasSubstr("needs at most 800 KiB"),
                             HasSubstr("nothing was moved"), HasSubstr("with --memory 2MiB")));
  ReshardCall call = CallOfTree("", kWhole);
  call.release_source = true;
  call.validate_only = true;
  const std::unique_ptr<Heard> heard = Start(std::move(call));
  EXPECT_THAT(heard->Wait(), IsOk());
  EXPECT_EQ(heard->Outline().memory.front().need_bytes, 819'200);
}

TEST_F(ReshardRunnerTest, CopiesOfMovesCountAsNeededMemory) {
  const PartitionSpec columns({SpecEntry(), SpecEntry::Axis("x")});
  ArrayDescriptor large = Descriptor();
  large.shape = {256, 512};
  for (const char* name : {"t/a", "t/b"}) {
    large.array_id = RandomId();
    AddArray(large, name);
  }
  const auto need_bytes = [&](ReshardCall call) {
    call.validate_only = true;
    const std::unique_ptr<Heard> heard = Start(std::move(call));
    EXPECT_THAT(heard->Wait(), IsOk());
    return heard->Outline().memory.front().need_bytes;
  };
  // Each worker has a tile of 256 KiB of each array, and sends half of it, which is no run.
  EXPECT_EQ(need_bytes(CallOf("t/a", columns)), (256 + 128) << 10);
  EXPECT_EQ(need_bytes(CallOfTree("t/", columns)), 2 * (256 + 128) << 10);
  ReshardCall one_by_one = CallOfTree("t/", columns);
  one_by_one.release_source = true;
  EXPECT_EQ(need_bytes(std::move(one_by_one)), (256 + 128) << 10);
  ReshardCall elsewhere = CallOf("t/a", columns);
  elsewhere.mesh_id = "n";
  EXPECT_EQ(need_bytes(std::move(elsewhere)), 256 << 10) << "no step moves it";

  // A worker with room for the tiles alone refuses, before anything moves.
  large.array_id = RandomId();
  large.shape = {1024, 384};
  AddArray(large, "u");
  Beat(/*used_bytes=*/0);
  const absl::Status refused = Refusal(CallOf("u", columns));
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted, Reason::kMemoryLimit));
  EXPECT_EQ(FactOf(refused, fact::kNeed), StrCat((768 + 384) << 10));
}

TEST_F(ReshardRunnerTest, AnArrayOnDiskLeavesMemoryIfItDoesNotFitBesideTheNewOne) {
  // Each worker has a mebibyte, 400,000 bytes of the array, and is to have all 800,000.
  ArrayDescriptor large = Descriptor();
  large.shape = {200'000};
  const std::string old_id = AddArray(large, "w", Durability::kDisk);
  Beat(/*used_bytes=*/400'000);
  EXPECT_THAT(std::string(Refusal(CallOf("w", kWhole)).message()),
              HasSubstr("with release_source (--release-source) the reshard needs at most 391 "
                        "KiB there, and fits"));
  ReshardCall call = CallOf("w", kWhole);
  call.request_id = "r2";
  call.release_source = true;
  const std::unique_ptr<Heard> heard = Start(call);
  FinishFill();
  ASSERT_THAT(heard->Wait(), IsOk());
  EXPECT_EQ(heard->Outline().memory.front().need_bytes, 400'000);
  for (const auto& [identity, order] : fill_.last_orders()) {
    EXPECT_THAT(order.unloaded_array_ids(), ElementsAre(old_id)) << identity;
  }
  EXPECT_FALSE(IsHere(old_id));
}

TEST_F(ReshardRunnerTest, AnArrayThatFitsBesideTheNewOneStaysInMemory) {
  AddArray(Descriptor(), "w", Durability::kDisk);
  ReshardCall call = CallOf("w", kWhole);
  call.release_source = true;
  const std::unique_ptr<Heard> heard = Start(call);
  FinishFill();
  ASSERT_THAT(heard->Wait(), IsOk());
  for (const auto& [identity, order] : fill_.last_orders()) {
    EXPECT_THAT(order.unloaded_array_ids(), IsEmpty()) << identity;
  }
}

TEST_F(ReshardRunnerTest, AnArrayOnDiskLeavesMemoryAlsoWhileReadersPinIt) {
  ArrayDescriptor large = Descriptor();
  large.shape = {200'000};
  const std::string old_id = AddArray(large, "w", Durability::kDisk);
  ASSERT_THAT(registry_->Pin(old_id), IsOk());
  Beat(/*used_bytes=*/400'000);
  ReshardCall call = CallOf("w", kWhole);
  call.release_source = true;
  const std::unique_ptr<Heard> heard = Start(call);
  FinishFill();
  ASSERT_THAT(heard->Wait(), IsOk());
  EXPECT_THAT(fill_.last_orders().begin()->second.unloaded_array_ids(), ElementsAre(old_id));
  EXPECT_TRUE(IsHere(old_id));
  registry_->Unpin(old_id);
  EXPECT_FALSE(IsHere(old_id));
}

TEST_F(ReshardRunnerTest, ArraysInMemoryOnlyAndThoseWithOtherNamesStayInMemory) {
  ArrayDescriptor large = Descriptor();
  large.shape = {200'000};
  AddArray(large, "in-memory");
  large.array_id = RandomId();
  CommitRequest commit;
  commit.moves.push_back({.name = "alias",
                          .array_id = AddArray(large, "named-twice", Durability::kDisk),
                          .expected_version = {}});
  absl::Notification named;
  registry_->Commit(std::move(commit), [&](const absl::StatusOr<CommitResult>& result) {
    EXPECT_THAT(result, IsOk());
    named.Notify();
  });
  named.WaitForNotification();
  Beat(/*used_bytes=*/400'000);
  for (const bool release_source : {false, true}) {
    for (const char* name : {"in-memory", "named-twice"}) {
      ReshardCall call = CallOf(name, kWhole);
      call.request_id = StrCat(name, release_source);
      call.release_source = release_source;
      const absl::Status refused = Refusal(call);
      EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted, Reason::kMemoryLimit));
      EXPECT_EQ(FactOf(refused, fact::kNeed), "800000");
      const bool is_told = std::string(refused.message())
                               .find(
                                   "it fits if the old arrays are on "
                                   "disk") != std::string::npos;
      EXPECT_EQ(is_told, std::string(name) == "in-memory") << refused;
    }
  }
}

TEST_F(ReshardRunnerTest, ATreeThatFitsArrayByArrayIsToldSo) {
  // A whole copy of an array takes 400 KiB. Pins keep the old arrays, so none of them goes.
  ArrayDescriptor large = Descriptor();
  large.shape = {102'400};
  for (const char* name : {"a", "b", "c"}) {
    large.array_id = RandomId();
    ASSERT_THAT(registry_->Pin(AddArray(large, name)), IsOk());
  }
  Beat(/*used_bytes=*/0);
  EXPECT_THAT(std::string(Refusal(CallOfTree("", kWhole)).message()),
              testing::AllOf(HasSubstr("; each array by itself fits: reshard them one after"),
                             HasSubstr("; or release arrays; or start these workers with "
                                       "--memory 2MiB or more")));
  // With release_source, the call moves one array after the other already.
  ReshardCall releases = CallOfTree("", kWhole);
  releases.request_id = "releases";
  releases.release_source = true;
  const absl::Status refused = Refusal(releases);
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted, Reason::kMemoryLimit));
  EXPECT_EQ(std::string(refused.message()).find("one after"), std::string::npos) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("or start these workers with --memory"));
  // An array that is too large by itself needs more memory.
  large.shape = {512 << 10};
  large.array_id = RandomId();
  AddArray(large, "d");
  const std::string message(Refusal(CallOf("d", kWhole)).message());
  EXPECT_THAT(message, HasSubstr(", and nothing was moved; release arrays; or start these workers "
                                 "with --memory "));
  EXPECT_EQ(message.find("release_source"), std::string::npos) << message;
}

TEST_F(ReshardRunnerTest, TilesThatNoHeartbeatHasToldOfCountAsMemoryInUse) {
  Beat(/*used_bytes=*/0);
  ArrayDescriptor large = Descriptor();
  large.shape = {102'400};
  AddArray(large, "a");  // 204,800 bytes on each worker
  ArrayDescriptor whole = Descriptor("n");
  whole.shape = {102'400};
  whole.spec = PartitionSpec();
  AddArray(whole, "b");  // 409,600 bytes on each worker, for another mesh
  ArrayDescriptor uneven = Descriptor();
  uneven.shape = {102'400};
  uneven.cut_points = {{0, 25'600, 102'400}};
  AddArray(uneven, "c");  // 102,400 bytes on w0 and 307,200 on w1
  const absl::Status refused = Refusal(CallOf("a", kWhole));
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted, Reason::kMemoryLimit));
  EXPECT_EQ(FactOf(refused, fact::kHave), "331776");
  EXPECT_EQ(FactOf(refused, fact::kNeed), "409600");
  ReshardCall call = CallOf("a", kWhole);
  call.validate_only = true;
  const std::unique_ptr<Heard> heard = Start(std::move(call));
  EXPECT_THAT(heard->Wait(), IsOk());
  ASSERT_THAT(heard->Outline().memory, SizeIs(2));
  EXPECT_EQ(heard->Outline().memory[1].have_bytes, 126'976);
}

TEST_F(ReshardRunnerTest, WhatWasReleasedSinceTheLastHeartbeatDoesNotCountAsInUse) {
  ArrayDescriptor large = Descriptor();
  large.shape = {102'400};
  AddArray(large, "a");  // 204,800 bytes on each worker
  large.array_id = RandomId();
  AddArray(large, "b");
  Beat(/*used_bytes=*/1 << 20);
  EXPECT_THAT(Refusal(CallOf("a", kWhole)),
              StatusIs(absl::StatusCode::kResourceExhausted, Reason::kMemoryLimit));
  CommitRequest remove;
  remove.moves.push_back({.name = "b", .array_id = "", .expected_version = {}});
  registry_->Commit(std::move(remove), [](const absl::StatusOr<CommitResult>& result) {
    EXPECT_THAT(result, IsOk());
  });
  ASSERT_TRUE(test::Eventually([&] { return registry_->CountUnconfirmed() == 1; }));
  const std::unique_ptr<Heard> heard = Start(CallOf("a", kWhole));
  ASSERT_TRUE(AwaitSteps(1));
  EXPECT_EQ(heard->Outline().memory.front().have_bytes, (1 << 20) - 204'800);
  FinishStep();
  EXPECT_THAT(heard->Wait(), IsOk());
}

TEST_F(ReshardRunnerTest, ADegradedArrayIsRefused) {
  AddArray(Descriptor(), "w");
  registry_->TilesLost("m", 1, 1'000);
  EXPECT_THAT(Refusal(CallOf("w", kWhole)),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kArrayDegraded));
}

TEST_F(ReshardRunnerTest, ReplicasTakeThePlaceOfLostTiles) {
  ArrayDescriptor whole = Descriptor();
  whole.spec = kWhole;
  AddArray(whole, "w");
  registry_->TilesLost("m", 1, 1'000);
  // On its own mesh too, the array moves as a transfer: a step needs the tile of each rank.
  const std::unique_ptr<Heard> heard = Start(CallOf("w", kOverX));
  ASSERT_TRUE(test::Eventually([&] { return fill_.last_orders().size() == 2; }));
  const internal::v1::FillTiles order = fill_.last_orders().at("w1");
  ASSERT_EQ(order.devices().sources_size(), 1);
  EXPECT_EQ(order.devices().sources(0).rank(), 0);
  FinishFill();
  ASSERT_THAT(heard->Wait(), IsOk());
  EXPECT_EQ(SpecOf("w"), kOverX);
  EXPECT_EQ(transport_.started(), 0);
}

TEST_F(ReshardRunnerTest, TheCompanionTakesThePlaceOfLostTiles) {
  EXPECT_THAT(members_.AddMesh("copies", 2, {"w1", "w0"}), IsOk());
  const ArrayDescriptor array = Descriptor();
  AddArray(array, "w");
  ArrayDefinition companion{.descriptor = Descriptor("copies")};
  companion.replica_of = array.array_id;
  const std::string companion_id = companion.descriptor.array_id;
  EXPECT_THAT(registry_->Stage(companion), IsOk());
  CommitRequest commit;
  commit.arrays.push_back({.array_id = companion_id, .tile_crc32c = {1, 2}});
  absl::Notification done;
  registry_->Commit(std::move(commit), [&done](const absl::StatusOr<CommitResult>& result) {
    EXPECT_THAT(result, IsOk());
    done.Notify();
  });
  done.WaitForNotification();
  // The tiles of w1, which is attached again without them.
  registry_->TilesLost("m", 1, 1'000);
  registry_->TilesLost("copies", 0, 1'000);
  ReshardCall call = CallOf("w", kWhole);
  call.mesh_id = "n";
  const std::unique_ptr<Heard> heard = Start(call);
  ASSERT_TRUE(test::Eventually([&] { return fill_.last_orders().size() == 2; }));
  const internal::v1::FillTiles order = fill_.last_orders().at("w1");
  ASSERT_EQ(order.devices().sources_size(), 1);
  EXPECT_EQ(order.devices().sources(0).rank(), 0);
  ASSERT_EQ(order.devices().second_sources_size(), 1);
  EXPECT_EQ(order.devices().second_sources(0).rank(), 1);
  ASSERT_EQ(order.tiles_size(), 1);
  EXPECT_EQ(order.tiles(0).array().second_array_id(), companion_id);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const rpc::VerifiedToken token,
      rpc::VerifyToken(order.tiles(0).array().second_token(), parts_.token_key,
                       rpc::TransferDirection::kGet, clock_.Now()));
  EXPECT_EQ(token.array.array_id, companion_id);
  FinishFill();
  ASSERT_THAT(heard->Wait(), IsOk());

  // Neither has the tile of rank 1.
  AddArray(Descriptor(), "v");
  registry_->TilesLost("m", 1, 1'000);
  call = CallOf("v", kWhole);
  call.request_id = "r2";
  EXPECT_THAT(Refusal(call),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kArrayDegraded));
}

TEST(SourcesOfMissingTest, AreOnlyThoseOfTilesThatNoWorkerOfTheArrayHas) {
  const ArrayDescriptor array{.array_id = "a",
                              .dtype = Dtype::kF32,
                              .shape = {8},
                              .spec = kOverX,
                              .mesh_id = "m",
                              .mesh_revision = 1,
                              .mesh = *Mesh::Parse("x=2,y=2"),
                              .cut_points = {}};
  const auto workers = [](const std::vector<int64_t>& ranks) {
    std::vector<RankEndpoint> endpoints;
    for (const int64_t rank : ranks) {
      endpoints.push_back({.rank = rank, .identity = StrCat("w", rank), .endpoints = {}});
    }
    return endpoints;
  };
  const auto wanted = [&](const std::vector<int64_t>& first, const std::vector<int64_t>& second) {
    std::vector<int64_t> ranks;
    const auto found = SourcesOfMissing(array, workers(first), workers(second));
    EXPECT_THAT(found, IsOk());
    for (const RankEndpoint& each : *found) ranks.push_back(each.rank);
    return ranks;
  };
  // The ranks 0 and 1 have one tile, and the ranks 2 and 3 the other.
  EXPECT_THAT(wanted({0, 1, 2, 3}, {0, 1, 2, 3}), IsEmpty());
  EXPECT_THAT(wanted({0, 3}, {0, 1, 2, 3}), IsEmpty());
  EXPECT_THAT(wanted({0, 1}, {0, 1, 3}), ElementsAre(3));
  EXPECT_THAT(wanted({}, {1, 2}), ElementsAre(1, 2));
}

TEST_F(ReshardRunnerTest, AStepKeepsTheOriginOfAnArrayButNotThatOfPartialSums) {
  const auto file =
      std::make_shared<const SourceFile>(SourceFile{.path = "/model",
                                                    .size_bytes = 1'024,
                                                    .modify_time = absl::FromUnixSeconds(5),
                                                    .head_sha256 = std::string(32, 'h'),
                                                    .head_bytes = 8,
                                                    .change_time = absl::FromUnixSeconds(6),
                                                    .inode = 17});
  const auto add = [&](ArrayDefinition definition, const std::string& name) {
    ASSERT_THAT(registry_->Stage(definition), IsOk());
    CommitRequest commit;
    commit.arrays.push_back({.array_id = definition.descriptor.array_id, .tile_crc32c = {1, 2}});
    commit.moves.push_back(
        {.name = name, .array_id = definition.descriptor.array_id, .expected_version = {}});
    registry_->Commit(std::move(commit), [](const absl::StatusOr<CommitResult>& result) {
      EXPECT_THAT(result, IsOk());
    });
    ASSERT_TRUE(test::Eventually([&] { return registry_->VersionOf(name) != 0; }));
  };
  add({.descriptor = Descriptor(), .source = {.file = file, .offset_bytes = 8}}, "read");
  add({.descriptor = Descriptor(),
       .sent_from = {.file = file, .offset_bytes = 64, .conversion = "to F32"}},
      "sent");
  ArrayDefinition partial{.descriptor = Descriptor(), .source = {.file = file, .offset_bytes = 0}};
  partial.descriptor.spec = PartitionSpec({SpecEntry()}, {"x"});
  add(partial, "sum");
  int steps = 0;
  for (const char* name : {"read", "sent", "sum"}) {
    const std::string old_id = IdOfName(name);
    const std::string key = (*registry_->FindArray(old_id))->definition.origin_key();
    ASSERT_NE(key, "");
    ReshardCall call = CallOf(name, kWhole);
    call.request_id = name;
    const std::unique_ptr<Heard> heard = Start(std::move(call));
    ASSERT_TRUE(AwaitSteps(++steps));
    FinishStep();
    ASSERT_THAT(heard->Wait(), IsOk());
    ASSERT_NE(IdOfName(name), old_id);
    const ArrayDefinition moved = (*registry_->FindArray(IdOfName(name)))->definition;
    EXPECT_EQ(moved.origin_key(), name == std::string("sum") ? "" : key);
    EXPECT_EQ(moved.source.file != nullptr, name == std::string("read"));
  }
}

TEST_F(ReshardRunnerTest, PartialSumsAreAddedUpOnTheirOwnMesh) {
  AddPartial("p");
  const std::unique_ptr<Heard> heard = Start(CallOf("p", kWhole));
  ASSERT_TRUE(AwaitSteps(1));
  FinishStep();
  EXPECT_THAT(heard->Wait(), IsOk());
  EXPECT_EQ(SpecOf("p"), kWhole);
  EXPECT_EQ(heard->Moved().front().summed_bytes, 0);
  EXPECT_EQ(heard->Moved().front().sums_spec, std::nullopt);
}

TEST_F(ReshardRunnerTest, PartialSumsAreAddedUpBeforeTheyMoveToAnotherMesh) {
  const std::string old_id = AddPartial("p");
  ReshardCall call = CallOf("p", kWhole);
  call.mesh_id = "n";
  const std::unique_ptr<Heard> heard = Start(std::move(call));
  ASSERT_TRUE(AwaitSteps(1));
  EXPECT_EQ(transport_.work().op, StrCat("reshard of array ", old_id));
  EXPECT_THAT(fill_.last_orders(), IsEmpty());
  FinishStep();
  ASSERT_TRUE(test::Eventually([&] { return fill_.last_orders().size() == 2; }));
  const internal::v1::FillTiles order = fill_.last_orders().at("w1");
  const auto sums = rpc::ParseArrayDescriptorBytes(order.tiles(0).array().array_descriptor());
  ASSERT_THAT(sums, IsOk());
  EXPECT_EQ(sums->spec, kOverX) << "half of the sums on each worker";
  EXPECT_EQ(sums->mesh_id, "m");
  EXPECT_NE(sums->array_id, old_id);
  EXPECT_EQ(IdOfName("p"), old_id) << "readers see no sums before they have moved";
  FinishFill();
  ASSERT_THAT(heard->Wait(), IsOk());
  EXPECT_EQ((*registry_->FindArray(IdOfName("p")))->definition.descriptor.mesh_id, "n");
  EXPECT_THAT(SpecOf("p").unreduced(), IsEmpty());
  ASSERT_THAT(heard->Moved(), SizeIs(1));
  const ReshardedArray moved = heard->Moved().front();
  EXPECT_EQ(moved.source_array_id, old_id);
  EXPECT_EQ(moved.summed_bytes, 32);  // each rank receives the other's part of its half
  EXPECT_EQ(moved.moved_bytes, 64);   // and then the other half of the sums
  EXPECT_EQ(moved.sums_spec, kOverX);
  EXPECT_EQ(moved.descriptor.array_id, IdOfName("p"));
  EXPECT_FALSE(IsHere(sums->array_id));
  EXPECT_TRUE(IsHere(old_id));
  EXPECT_EQ(PinnedBySession(), 1);  // the old array
  EXPECT_EQ(transport_.started(), 1);
}

TEST_F(ReshardRunnerTest, ReleaseSourceReleasesPartialSumsAndTheirSums) {
  const std::string old_id = AddPartial("p");
  ReshardCall call = CallOf("p", kWhole);
  call.mesh_id = "n";
  call.name = "q";
  call.release_source = true;
  const std::unique_ptr<Heard> heard = Start(std::move(call));
  ASSERT_TRUE(AwaitSteps(1));
  FinishStep();
  FinishFill();
  ASSERT_THAT(heard->Wait(), IsOk());
  EXPECT_EQ(IdOfName("p"), "");
  EXPECT_EQ(IdOfName("q"), heard->Moved().front().descriptor.array_id);
  EXPECT_FALSE(IsHere(old_id));
  EXPECT_EQ(registry_->CountArrays().total(), 1);
  EXPECT_EQ(PinnedBySession(), 0);
}

TEST_F(ReshardRunnerTest, WorkersAreToldToDropTheSumsBeforeTheNextOnesAreMade) {
  AddPartial("a");
  AddPartial("b");
  ReshardCall call = CallOfTree("", kWhole);
  call.mesh_id = "n";
  std::vector<int> begun;  // steps begun at each release
  on_release_ = [&] { begun.push_back(transport_.started()); };
  const std::unique_ptr<Heard> heard = Start(std::move(call));
  for (int move = 1; move <= 2; ++move) {
    ASSERT_TRUE(AwaitSteps(move));
    FinishStep();
    ASSERT_TRUE(test::Eventually([&] {
      return std::ssize(fill_.sent("w0")) == move && std::ssize(fill_.sent("w1")) == move;
    }));
    FinishFill();
  }
  ASSERT_THAT(heard->Wait(), IsOk());
  EXPECT_THAT(begun, ElementsAre(1, 2));
}

TEST_F(ReshardRunnerTest, WithoutALayoutTheNewArrayHasNoUnreducedAxes) {
  AddPartial("p");
  ReshardCall call = CallOf("p", kWhole);
  call.mesh_id = "n";
  call.spec.reset();
  const std::unique_ptr<Heard> heard = Start(std::move(call));
  ASSERT_TRUE(AwaitSteps(1));
  FinishStep();
  FinishFill();
  ASSERT_THAT(heard->Wait(), IsOk());
  EXPECT_THAT(SpecOf("p").unreduced(), IsEmpty());
  EXPECT_TRUE(SpecOf("p").entry(0).is_none());
}

TEST_F(ReshardRunnerTest, ThePlanOfPartialSumsHasBothPartsAndTheirMemory) {
  AddPartial("p");
  ReshardCall call = CallOf("p", kWhole);
  call.mesh_id = "n";
  call.validate_only = true;
  const std::unique_ptr<Heard> heard = Start(std::move(call));
  ASSERT_THAT(heard->Wait(), IsOk());
  const ReshardOutline outline = heard->Outline();
  ASSERT_THAT(outline.memory, SizeIs(4)) << "the ranks of both meshes";
  EXPECT_EQ(outline.memory.front().mesh_id, "m");
  EXPECT_EQ(outline.memory.back().mesh_id, "n");
  // Half of the sums, and the whole new array.
  for (const ReshardMemoryNeed& each : outline.memory) EXPECT_EQ(each.need_bytes, 16 + 32);
  ASSERT_THAT(heard->Moved(), SizeIs(1));
  EXPECT_EQ(heard->Moved().front().summed_bytes, 32);
  EXPECT_EQ(heard->Moved().front().moved_bytes, 64);
  EXPECT_EQ(transport_.started(), 0);
}

TEST_F(ReshardRunnerTest, AFailureBeforeTheSumsHaveMovedLeavesThePartialSums) {
  const std::string old_id = AddPartial("p");
  ReshardCall call = CallOf("p", kWhole);
  call.mesh_id = "n";
  const auto expect_as_before = [&] {
    EXPECT_EQ(IdOfName("p"), old_id);
    EXPECT_EQ(registry_->CountArrays().total(), 1);
    EXPECT_EQ(PinnedBySession(), 0);
  };
  endpoints_.ready = absl::UnavailableError("not ready");
  EXPECT_THAT(Start(call)->Wait(), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_EQ(transport_.started(), 0) << "nothing is added up in vain";
  endpoints_.ready = absl::OkStatus();
  expect_as_before();

  call.request_id = "in the step";
  const std::unique_ptr<Heard> in_step = Start(call);
  ASSERT_TRUE(AwaitSteps(1));
  ASSERT_THAT(operations_.Cancel(in_step->Outline().operation_id, session_), IsOk());
  EXPECT_THAT(in_step->Wait(), StatusIs(absl::StatusCode::kCancelled));
  expect_as_before();

  call.request_id = "in the transfer";
  fill_.unreachable = "w1";
  const std::unique_ptr<Heard> in_transfer = Start(call);
  ASSERT_TRUE(AwaitSteps(2));
  FinishStep();
  EXPECT_THAT(in_transfer->Wait(), StatusIs(absl::StatusCode::kUnavailable, Reason::kWorkerLost));
  expect_as_before();
}

TEST_F(ReshardRunnerTest, PartialSumsThatWorkersCannotAddAreRefused) {
  ArrayDescriptor partial = Descriptor();
  partial.spec = PartitionSpec({SpecEntry()}, {"x"});
  partial.dtype = Dtype::kBool;
  AddArray(partial, "p");
  ReshardCall call = CallOf("p", kWhole);
  call.mesh_id = "n";
  const absl::Status refused = Refusal(std::move(call));
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kUnsupportedDtype));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("'p': it holds partial sums along x"));
}

TEST_F(ReshardRunnerTest, BadCallsAreRefusedBeforeAnythingMoves) {
  AddArray(Descriptor(), "w");
  EXPECT_THAT(Refusal(CallOf("none", kWhole)), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(Refusal(CallOfTree("none/", kWhole)), StatusIs(absl::StatusCode::kNotFound));
  ReshardCall call = CallOf("w", kWhole);
  call.mesh_id = "none";
  EXPECT_THAT(Refusal(call), StatusIs(absl::StatusCode::kNotFound));
  call = CallOf("w", kWhole);
  call.session_id = "none";
  EXPECT_THAT(Refusal(call), StatusIs(absl::StatusCode::kNotFound, Reason::kSessionGone));
  call = CallOf("w", kWhole);
  call.expected_version = 1'000;
  EXPECT_THAT(Refusal(call), StatusIs(absl::StatusCode::kAborted, Reason::kVersionMismatch));
  call = CallOfTree("w", kWhole);
  call.name = "v";
  EXPECT_THAT(Refusal(call), StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  call = CallOf("w", PartitionSpec({SpecEntry::Axis("y")}));
  call.strict = true;
  EXPECT_THAT(Refusal(call), StatusIs(absl::StatusCode::kInvalidArgument));
  const absl::Status unreduced = Refusal(CallOf("w", PartitionSpec({SpecEntry()}, {"x"})));
  EXPECT_THAT(unreduced, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  EXPECT_THAT(std::string(unreduced.message()),
              HasSubstr("leaves x unreduced, and the new layout cannot be a partial sum; give the "
                        "same spec without unreduced axes"));
  call = CallOf("w", kWhole);
  call.deadline = clock_.Now();
  EXPECT_THAT(Refusal(call), StatusIs(absl::StatusCode::kDeadlineExceeded, Reason::kDeadline));
}

// The last attempt of a client that waits for a worker comes too late.
TEST_F(ReshardRunnerTest, ALateCallNamesTheWorkerThatItsMeshWaitsFor) {
  AddArray(Descriptor(), "w");
  endpoints_.ready = WithReason(absl::UnavailableError("mesh \"m\" waits for rank 1 (w1)"),
                                Reason::kRecovering, {{fact::kIdentity, "w1"}});
  for (ReshardCall call : {CallOf("w", kWhole), CallOfTree("w", kWhole)}) {
    call.deadline = clock_.Now();
    for (const bool validate_only : {false, true}) {
      call.validate_only = validate_only;
      const absl::Status late = Refusal(call);
      EXPECT_THAT(late, StatusIs(absl::StatusCode::kUnavailable, Reason::kRecovering));
      EXPECT_EQ(FactOf(late, fact::kIdentity), "w1");
    }
  }
}

TEST_F(ReshardRunnerTest, ALateCallSaysWhatToDo) {
  AddArray(Descriptor(), "w");
  ReshardCall call = CallOf("w", kWhole);
  call.deadline = clock_.Now();
  const absl::Status late = Refusal(call);
  EXPECT_THAT(late, StatusIs(absl::StatusCode::kDeadlineExceeded, Reason::kDeadline));
  EXPECT_THAT(std::string(late.message()), HasSubstr("it goes on where it stopped"));
  // A plan stops nowhere.
  call.validate_only = true;
  const absl::Status unplanned = Refusal(call);
  EXPECT_THAT(unplanned, StatusIs(absl::StatusCode::kDeadlineExceeded, Reason::kDeadline));
  EXPECT_THAT(std::string(unplanned.message()),
              HasSubstr("before the reshard was planned; allow more time"));
}

// Arrays of clients there would keep the coordinator from deleting these meshes.
TEST_F(ReshardRunnerTest, OnlyAResizeMovesArraysOntoItsAuxiliaryMesh) {
  AddArray(Descriptor(), "w");
  for (const char* mesh : {"m.resize-0123456789ab", "m.replicas-0123456789ab"}) {
    SCOPED_TRACE(mesh);
    DefineMesh(definition_store_.get(), mesh, mesh_);
    ReshardCall call = CallOf("w", kWhole);
    call.mesh_id = mesh;
    const absl::Status refused = Refusal(call);
    EXPECT_THAT(refused, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
    ASSERT_THAT(rpc::FieldViolationsOf(refused), SizeIs(1));
    EXPECT_EQ(rpc::FieldViolationsOf(refused).front().field, "mesh");
    call.validate_only = true;
    EXPECT_THAT(Refusal(call), StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  }
  const std::string mesh = "m.resize-0123456789ab";
  ASSERT_THAT(members_.AddMesh(mesh, 2, {"w0", "w1"}), IsOk());
  ReshardCall call = CallOf("w", kWhole);
  call.request_id = "";
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      call.operation_id, operations_.Begin(OperationKind::kResize, "a resize", "", 0,
                                           [](const absl::Status&) { return absl::OkStatus(); }));
  call.mesh_id = mesh;
  const std::unique_ptr<Heard> heard = Start(std::move(call));
  FinishFill();
  ASSERT_THAT(heard->Wait(), IsOk());
  EXPECT_EQ(heard->Moved().front().descriptor.mesh_id, mesh);
  // Meanwhile clients may move it on the mesh on which it lies.
  const std::unique_ptr<Heard> in_place = Start(CallOf("w", kOverX));
  ASSERT_TRUE(AwaitSteps(1));
  FinishStep();
  ASSERT_THAT(in_place->Wait(), IsOk());
  EXPECT_EQ(in_place->Moved().front().descriptor.mesh_id, mesh);
}

TEST_F(ReshardRunnerTest, WorkersFillTheTilesOnAnotherMesh) {
  const std::string old_id = AddArray(Descriptor(), "w");
  ReshardCall call = CallOf("w", kWhole);
  call.mesh_id = "n";
  const std::unique_ptr<Heard> heard = Start(std::move(call));
  ASSERT_TRUE(test::Eventually([&] { return fill_.last_orders().size() == 2; }));
  const internal::v1::FillTiles order = fill_.last_orders().at("w1");
  EXPECT_EQ(order.term(), 7);
  ASSERT_EQ(order.tiles_size(), 1);
  EXPECT_EQ(order.rank(), 1);
  EXPECT_EQ(rpc::ParseArrayDescriptorBytes(order.tiles(0).array().array_descriptor())->array_id,
            old_id);
  EXPECT_FALSE(order.tiles(0).array().token().empty());
  // Descriptors, token and devices are encoded once for all workers.
  EXPECT_EQ(fill_.tails(), 1u);
  EXPECT_LT(fill_.own_bytes(), 2 * 64u);
  // The same workers serve both meshes, so they are the same devices.
  EXPECT_THAT(order.devices().source_ids(), ElementsAre(0, 1));
  EXPECT_THAT(order.devices().destination_ids(), ElementsAre(0, 1));
  EXPECT_EQ(IdOfName("w"), old_id);
  FinishFill();
  ASSERT_THAT(heard->Wait(), IsOk());
  EXPECT_EQ(heard->Moved().front().descriptor.mesh_id, "n");
  EXPECT_EQ(heard->Moved().front().moved_bytes, 32);
  EXPECT_EQ((*registry_->FindArray(IdOfName("w")))->definition.descriptor.mesh_id, "n");
  EXPECT_EQ(PinnedBySession(), 1);  // the old array
  EXPECT_EQ(transport_.started(), 0);
}

TEST_F(ReshardRunnerTest, AFillThatFailsLeavesTheOldArray) {
  const std::string old_id = AddArray(Descriptor(), "w");
  ReshardCall call = CallOf("w", kWhole);
  call.mesh_id = "n";
  const std::unique_ptr<Heard> heard = Start(call);
  ASSERT_TRUE(test::Eventually([&] { return fill_.last_orders().size() == 2; }));
  const internal::v1::FillTiles order = fill_.last_orders().at("w1");
  EXPECT_THAT(sequencer_->ReportTransfer(
                  order.transfer_id(), order.term(),
                  {.identity = "w1", .rank = 1, .status = absl::DataLossError("broken")}),
              IsOk());
  EXPECT_THAT(heard->Wait(), StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_EQ(IdOfName("w"), old_id);
  EXPECT_EQ(registry_->CountArrays().total(), 1);
  EXPECT_EQ(PinnedBySession(), 0);

  fill_.can_fill = absl::FailedPreconditionError("an older build");
  EXPECT_THAT(Start(call)->Wait(), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_EQ(PinnedBySession(), 0);
}

TEST_F(ReshardRunnerTest, AnOrderThatDoesNotReachItsWorkerEndsTheMove) {
  fill_.unreachable = "w1";
  const std::string old_id = AddArray(Descriptor(), "w");
  ReshardCall call = CallOf("w", kWhole);
  call.mesh_id = "n";
  EXPECT_THAT(Start(call)->Wait(), StatusIs(absl::StatusCode::kUnavailable, Reason::kWorkerLost));
  EXPECT_EQ(IdOfName("w"), old_id);
  EXPECT_EQ(registry_->CountArrays().total(), 1);
  EXPECT_EQ(PinnedBySession(), 0);
}

TEST_F(ReshardRunnerTest, ACancelledFillLeavesTheOldArray) {
  const std::string old_id = AddArray(Descriptor(), "w");
  ReshardCall call = CallOf("w", kOverX);
  call.mesh_id = "n";
  const std::unique_ptr<Heard> heard = Start(std::move(call));
  ASSERT_TRUE(test::Eventually([&] { return fill_.last_orders().size() == 2; }));
  ReshardRunner::Cancel(heard->run, WithReason(absl::CancelledError("left"), Reason::kCancelled));
  EXPECT_THAT(heard->Wait(), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_EQ(IdOfName("w"), old_id);
  EXPECT_EQ(registry_->CountArrays().total(), 1);
}

TEST(NumberWorkersTest, EqualWorkersHaveEqualNumbers) {
  const WorkerNumbers numbers = NumberWorkers({"a", "b", "c"}, {"c", "d", "a"});
  EXPECT_THAT(numbers.sources, ElementsAre(0, 1, 2));
  EXPECT_THAT(numbers.destinations, ElementsAre(2, 3, 0));
}

}  // namespace
}  // namespace shardmesh::server
