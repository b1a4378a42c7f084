// Second replicas: when they are copied, what ends a copy, and what is left of their mesh.
#include "server/repair/replicas.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "process/failpoint.h"
#include "rpc/codec/array_codec.h"
#include "rpc/codec/spec_codec.h"
#include "server/steps/auxiliary_mesh.h"
#include "shardmesh/internal/v1/fill.pb.h"
#include "shardmesh/v1/catalog_service.pb.h"
#include "status/reason.h"
#include "status/str_cat.h"
#include "tests/testing/eventually.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/server/steps/keeping_fill.h"
#include "tests/unit/server/steps/ready_cluster.h"

namespace shardmesh::server {
namespace {

using ::shardmesh::test::Eventually;
using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const absl::Status kItBroke = absl::UnavailableError("it broke");

class ReplicasTest : public ReadyCluster {
 protected:
  ReplicasTest() {
    registry_->SetReplicaListener([this] { replicas_->Look(/*is_chance=*/false); });
    // The ranks of the mesh are assigned, as the coordinator stores it.
    for (const char* mesh : {"m", "n"}) {
      absl::Notification done;
      definition_store_->Assign(mesh, {"w0", "w1"}, [&](const auto& assigned) {
        EXPECT_THAT(assigned, IsOk());
        done.Notify();
      });
      done.WaitForNotification();
    }
  }
  ~ReplicasTest() override {
    if (replicas_ != nullptr) replicas_->Stop();
    sequencer_.reset();
    registry_->SetReplicaListener(nullptr);
  }

  // An array of eight F32 elements over x that wants two replicas, under a name.
  std::string Add(const std::string& name, bool is_over_x = true,
                  const std::function<void()>& before_commit = nullptr) {
    ArrayDefinition definition{.descriptor = Descriptor()};
    if (!is_over_x) definition.descriptor.spec = PartitionSpec({SpecEntry()});
    definition.replicas = 2;
    definition.source.file = file_;
    const std::string id = definition.descriptor.array_id;
    EXPECT_THAT(registry_->Stage(std::move(definition)), IsOk());
    if (before_commit) before_commit();
    CommitRequest commit;
    commit.arrays.push_back({.array_id = id, .tile_crc32c = {1, 2}});
    commit.moves.push_back({.name = name, .array_id = id, .expected_version = {}});
    Commit(std::move(commit));
    return id;
  }
  void Commit(CommitRequest commit) {
    absl::Notification done;
    registry_->Commit(std::move(commit), [&done](const absl::StatusOr<CommitResult>& result) {
      EXPECT_THAT(result, IsOk());
      done.Notify();
    });
    done.WaitForNotification();
  }
  void Remove(const std::string& name) {
    CommitRequest commit;
    commit.moves.push_back({.name = name, .array_id = "", .expected_version = {}});
    Commit(std::move(commit));
  }
  // From now on, arrays of Add come from a file, and are cached once they lose their names.
  void CacheArrays() {
    registry_->SetCaching(true);
    SourceFile file;
    file.path = "/model";
    file.size_bytes = 32;
    file.change_time = absl::FromUnixSeconds(5);
    file_ = std::make_shared<const SourceFile>(std::move(file));
  }
  // Deletes the name of an array, and gives the array, which then is cached, another name for a use
  // that wants one replica.
  void UseOnce(const std::string& name, const std::string& id) {
    Remove(name);
    ASSERT_TRUE(Eventually([&] { return registry_->IsCached(id); }));
    ASSERT_THAT(registry_->PinFound(id, /*is_use=*/true, /*replicas=*/1), IsOk());
    CommitRequest commit;
    commit.moves.push_back(
        {.name = StrCat(name, " again"), .array_id = id, .expected_version = {}});
    Commit(std::move(commit));
    registry_->Unpin(id);
  }
  // Lets the time pass until `is_so`.
  template <typename Condition>
  bool InTime(const Condition& is_so) {
    return Eventually([&] {
      if (is_so()) return true;
      clock_.Advance(absl::Milliseconds(100));
      return false;
    });
  }
  // Waits for the orders with this number, counted from 0: one to each worker.
  std::map<std::string, internal::v1::FillTiles> Orders(size_t number) {
    std::map<std::string, internal::v1::FillTiles> orders;
    EXPECT_TRUE(InTime(
        [&] { return fill_.sent("w0").size() > number && fill_.sent("w1").size() > number; }));
    for (const char* worker : {"w0", "w1"}) {
      const auto sent = fill_.sent(worker);
      if (sent.size() > number) orders[worker] = sent[number];
    }
    return orders;
  }
  void Report(const std::string& worker, const internal::v1::FillTiles& order,
              const absl::Status& status, uint32_t crc32c) {
    ASSERT_EQ(order.tiles_size(), 1);
    RankReport report{.identity = worker, .rank = order.rank(), .status = status};
    SHARDMESH_ASSERT_OK_AND_ASSIGN(
        const ArrayDescriptor array,
        rpc::ParseArrayDescriptorBytes(order.tiles(0).array_descriptor()));
    if (status.ok()) {
      report.tiles.push_back({.array_id = array.array_id, .crc32c = crc32c, .size_bytes = 16});
    }
    sequencer_->ReportTransfer(order.transfer_id(), order.term(), std::move(report)).IgnoreError();
  }
  // Both workers have fetched their tiles of the copy with this number.
  void ReportAll(size_t number) {
    for (const auto& [worker, order] : Orders(number)) {
      Report(worker, order, absl::OkStatus(), static_cast<uint32_t>(order.rank()) + 1);
    }
  }
  ArrayReplicas StateOf(const std::string& id) {
    const auto array = registry_->FindArray(id);
    if (!array.ok()) return {};
    return replicas_->Describe(**array).value_or(ArrayReplicas());
  }
  bool IsComplete(const std::string& id) {
    return InTime([&] { return StateOf(id).complete == 2; });
  }
  bool HasMesh() {
    for (const auto& [name, mesh] : definition_store_->shared_state()->all(DefinitionKind::kMesh)) {
      if (!ReplicatedMeshOf(name).empty()) return true;
    }
    return false;
  }
  std::vector<OperationProgress> Operations() {
    return operations_.List(0, 100, [](const OperationProgress&) { return true; }).operations;
  }
  void Confirm(const std::vector<std::string>& ids) {
    for (int64_t rank = 0; rank < 2; ++rank) {
      registry_->TilesDropped(ids, [rank](std::string_view) { return std::optional(rank); });
    }
  }

  OperationTable operations_{&clock_, &sessions_};
  Transfers transfers_{&clock_, registry_.get(), &sessions_, sequencer_.get(), &operations_};
  KeepingFill fill_;
  std::shared_ptr<const SourceFile> file_;  // of the arrays of Add; null: they are not loaded
  std::unique_ptr<Replicas> replicas_ =
      std::make_unique<Replicas>(ReplicaParts{.clock = &clock_,
                                              .membership = &members_,
                                              .registry = registry_.get(),
                                              .definitions = definition_store_.get(),
                                              .operations = &operations_,
                                              .sequencer = sequencer_.get(),
                                              .endpoints = &endpoints_,
                                              .fill = &fill_,
                                              .transfers = &transfers_,
                                              .encode =
                                                  [](const MeshDefinition& mesh) {
                                                    v1::EntryValue value;
                                                    rpc::Encode(mesh, value.mutable_mesh());
                                                    return value.SerializeAsString();
                                                  },
                                              .token_key = std::string(32, 'k'),
                                              .term = 7});
};

TEST_F(ReplicasTest, EachTileIsFetchedByTheOtherWorker) {
  const std::string id = Add("w");
  const auto orders = Orders(0);
  for (const auto& [worker, order] : orders) {
    ASSERT_EQ(order.tiles_size(), 1);
    EXPECT_EQ(order.rank(), worker == "w0" ? 1 : 0);
    SHARDMESH_ASSERT_OK_AND_ASSIGN(
        const ArrayDescriptor source,
        rpc::ParseArrayDescriptorBytes(order.tiles(0).array().array_descriptor()));
    EXPECT_EQ(source.array_id, id);
    EXPECT_EQ(order.devices().sources_size(), 2);
  }
  EXPECT_EQ(StateOf(id).complete, 1);
  ASSERT_THAT(Operations(), SizeIs(1));
  EXPECT_EQ(Operations()[0].kind, OperationKind::kReplicate);
  EXPECT_EQ(Operations()[0].total_bytes, 32);
  EXPECT_EQ(StateOf(id).operation_id, Operations()[0].id);
  replicas_->TileArriving(orders.at("w0").transfer_id(), "w0", 8);
  replicas_->TileArriving(orders.at("w0").transfer_id(), "w1", 4);
  replicas_->TileArriving(orders.at("w0").transfer_id(), "w0", 6);
  EXPECT_EQ(Operations()[0].done_bytes, 12);
  ReportAll(0);
  ASSERT_TRUE(IsComplete(id));
  EXPECT_TRUE(InTime([&] { return Operations()[0].ended; }));
  EXPECT_THAT(Operations()[0].status, IsOk());
  EXPECT_EQ(Operations()[0].done_bytes, 32);
  EXPECT_EQ(replicas_->totals().copied_bytes, 32);
  const ArrayPtr companion = registry_->FindTwin(id);
  ASSERT_NE(companion, nullptr);
  EXPECT_EQ(companion->definition.origin_key(), "");
}

TEST_F(ReplicasTest, OtherBytesAreNoReplica) {
  const std::string id = Add("w");
  for (const auto& [worker, order] : Orders(0)) Report(worker, order, absl::OkStatus(), 77);
  ASSERT_TRUE(InTime([&] { return !StateOf(id).failure.empty(); }));
  EXPECT_THAT(StateOf(id).failure, HasSubstr("CHECKSUM_MISMATCH"));
  EXPECT_EQ(StateOf(id).complete, 1);
  EXPECT_EQ(registry_->CountCompanions().total(), 0);
  EXPECT_EQ(replicas_->totals().failed, 1);
  // It is tried again later.
  ReportAll(1);
  EXPECT_TRUE(IsComplete(id));
  EXPECT_TRUE(Eventually([&] { return replicas_->totals().failed == 0; }));
}

TEST_F(ReplicasTest, AFailedCopyIsTriedAtOnceWhenAWorkerAttaches) {
  const std::string id = Add("w");
  const auto orders = Orders(0);
  Report("w0", orders.at("w0"), kItBroke, 0);
  ASSERT_TRUE(Eventually([&] { return !StateOf(id).failure.empty(); }));
  EXPECT_THAT(StateOf(id).failure, HasSubstr("it broke"));
  EXPECT_TRUE(Eventually([&] { return Operations()[0].ended; }));
  EXPECT_THAT(Operations()[0].status, StatusIs(absl::StatusCode::kUnavailable));
  replicas_->Look(/*is_chance=*/true);
  ReportAll(1);
  EXPECT_TRUE(IsComplete(id));
}

TEST_F(ReplicasTest, AnArrayThatIsReleasedDuringItsCopyLeavesNothing) {
  const std::string id = Add("w");
  Orders(0);
  Remove("w");
  ReportAll(0);
  EXPECT_TRUE(InTime([&] { return Operations()[0].ended; }));
  EXPECT_EQ(registry_->CountCompanions().total(), 0);
  EXPECT_TRUE(Eventually([&] { return replicas_->totals().failed == 0; }));
  Confirm({id});
  EXPECT_TRUE(InTime([&] { return !HasMesh(); }));
}

TEST_F(ReplicasTest, ACopyOfAnArrayThatWantsOneReplicaByNowLeavesNothing) {
  CacheArrays();
  const std::string id = Add("w");
  Orders(0);
  UseOnce("w", id);
  ReportAll(0);
  EXPECT_TRUE(InTime([&] { return Operations()[0].ended; }));
  EXPECT_EQ(registry_->FindTwin(id), nullptr);
  EXPECT_EQ(registry_->CountCompanions().total(), 0);
  EXPECT_TRUE(Eventually([&] {
    const ReplicaTotals totals = replicas_->totals();
    return totals.failed == 0 && totals.waiting == 0;
  }));
  for (int i = 0; i < 10; ++i) clock_.Advance(absl::Minutes(5));
  EXPECT_THAT(fill_.sent("w0"), SizeIs(1)) << "no copy begins again";
}

TEST_F(ReplicasTest, AnArrayThatWantsOneReplicaByNowWaitsForNoCopy) {
  CacheArrays();
  std::map<std::string, std::string> names;  // by array id, of the arrays that are not being copied
  for (const char* const name : {"a", "b", "c", "d", "e"}) names[Add(name)] = name;
  ASSERT_TRUE(InTime([&] { return replicas_->totals().waiting == 5; }));
  for (size_t copy = 0; copy < 4; ++copy) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(
        const ArrayDescriptor source,
        rpc::ParseArrayDescriptorBytes(Orders(copy).at("w0").tiles(0).array().array_descriptor()));
    names.erase(source.array_id);
  }
  ASSERT_THAT(names, SizeIs(1));
  const auto& [id, name] = *names.begin();
  UseOnce(name, id);
  for (size_t copy = 0; copy < 4; ++copy) ReportAll(copy);
  EXPECT_TRUE(InTime([&] { return Operations()[0].ended; }));
  EXPECT_THAT(fill_.sent("w0"), SizeIs(4));
  EXPECT_EQ(registry_->FindTwin(id), nullptr);
}

TEST_F(ReplicasTest, TheMeshGoesWithItsLastCompanionOnceAllTilesAreDropped) {
  const std::string id = Add("w");
  ReportAll(0);
  ASSERT_TRUE(IsComplete(id));
  const std::string companion = registry_->FindTwin(id)->definition.descriptor.array_id;
  clock_.Advance(absl::Minutes(1));
  EXPECT_TRUE(HasMesh());
  Remove("w");
  EXPECT_EQ(registry_->CountUnconfirmed(), 2);
  for (int i = 0; i < 10; ++i) clock_.Advance(absl::Seconds(10));
  EXPECT_TRUE(HasMesh()) << "the workers have tiles on it";
  Confirm({id, companion});
  EXPECT_TRUE(InTime([&] { return !HasMesh(); }));
}

TEST_F(ReplicasTest, TheMeshGoesAlthoughALostWorkerConfirmsNothing) {
  const std::string id = Add("w");
  ReportAll(0);
  ASSERT_TRUE(IsComplete(id));
  const std::string companion = registry_->FindTwin(id)->definition.descriptor.array_id;
  members_.Detach(members_.view()->FindWorker("w1")->attachment, "it is gone");
  Remove("w");
  for (int i = 0; i < 10; ++i) clock_.Advance(absl::Seconds(10));
  EXPECT_TRUE(HasMesh()) << "w0 is there and has its tiles";
  // The worker w0 has rank 0 of the array, and rank 1 of the companion.
  registry_->TilesDropped({id, companion}, [](std::string_view mesh) {
    return std::optional<int64_t>(mesh == "m" ? 0 : 1);
  });
  EXPECT_TRUE(InTime([&] { return !HasMesh(); }));
  EXPECT_EQ(registry_->CountUnconfirmed(), 1) << "the array is yet to be dropped by w1";
}

TEST_F(ReplicasTest, TheMeshGoesAlthoughTilesOfOtherMeshesAreYetToBeDropped) {
  const std::string id = Add("w");
  ReportAll(0);
  ASSERT_TRUE(IsComplete(id));
  const std::string companion = registry_->FindTwin(id)->definition.descriptor.array_id;
  Remove("w");
  Confirm({companion});
  EXPECT_TRUE(InTime([&] { return !HasMesh(); }));
  EXPECT_EQ(registry_->CountUnconfirmed(), 1);
}

TEST_F(ReplicasTest, FewArraysAreCopiedAtOnceAsOneOperation) {
  std::vector<std::string> ids;
  for (int i = 0; i < 10; ++i) ids.push_back(Add(StrCat("w", i)));
  Orders(3);
  EXPECT_THAT(fill_.sent("w0"), SizeIs(4));
  EXPECT_TRUE(InTime([&] { return Operations()[0].total == 10; }));
  EXPECT_EQ(replicas_->totals().waiting, 10);
  for (size_t i = 0; i < 10; ++i) ReportAll(i);
  for (const std::string& id : ids) EXPECT_TRUE(IsComplete(id));
  EXPECT_TRUE(InTime([&] { return Operations()[0].ended; }));
  EXPECT_THAT(Operations(), SizeIs(1));
  EXPECT_EQ(Operations()[0].done_bytes, 320);
}

TEST_F(ReplicasTest, ItsOperationKnowsTheWorkersThatItWaitsFor) {
  const std::string id = Add("w");
  Orders(0);
  const std::string operation_id = Operations()[0].id;
  EXPECT_EQ(sequencer_->WorkersOf(operation_id).waiting_for, (std::set<std::string>{"w0", "w1"}));
  EXPECT_TRUE(operations_.WorkersOf(operation_id).waiting_for.empty());
  ReportAll(0);
  EXPECT_TRUE(IsComplete(id));
  EXPECT_TRUE(sequencer_->WorkersOf(operation_id).waiting_for.empty());
}

TEST_F(ReplicasTest, ItsOperationHasNoCallbacksOnceItIsDestroyed) {
  Add("w");
  Orders(0);
  const std::string operation_id = Operations()[0].id;
  registry_->SetReplicaListener(nullptr);
  replicas_.reset();
  EXPECT_TRUE(Operations()[0].ended);
  EXPECT_TRUE(operations_.WorkersOf(operation_id).waiting_for.empty());
  EXPECT_THAT(operations_.CancelFor(operation_id, absl::CancelledError("too late")), IsOk());
}

TEST_F(ReplicasTest, ACancelledCopyWaitsForAWorker) {
  const std::string id = Add("w");
  Orders(0);
  ASSERT_THAT(operations_.CancelFor(Operations()[0].id, absl::CancelledError("an operator did")),
              IsOk());
  ASSERT_TRUE(Eventually([&] { return Operations()[0].ended; }));
  EXPECT_THAT(Operations()[0].status, StatusIs(absl::StatusCode::kCancelled));
  EXPECT_THAT(StateOf(id).failure, HasSubstr("an operator did"));
  for (int i = 0; i < 10; ++i) clock_.Advance(absl::Minutes(5));
  EXPECT_THAT(fill_.sent("w0"), SizeIs(1));
  replicas_->Look(/*is_chance=*/true);
  ReportAll(1);
  EXPECT_TRUE(IsComplete(id));
}

TEST_F(ReplicasTest, ACancellationWhileATransferBeginsEndsItsCopyToo) {
  ASSERT_THAT(ArmFailpoints("replicas.begin_transfer=delay"), IsOk());
  const std::string id = Add("w");
  ASSERT_TRUE(InTime([] { return !IsArmed("replicas.begin_transfer"); }));
  ASSERT_THAT(Operations(), SizeIs(1));
  ASSERT_THAT(operations_.CancelFor(Operations()[0].id, absl::CancelledError("an operator did")),
              IsOk());
  ASSERT_TRUE(Eventually([&] { return Operations()[0].ended; }));
  EXPECT_THAT(Operations()[0].status, StatusIs(absl::StatusCode::kCancelled));
  EXPECT_THAT(sequencer_->Live(), IsEmpty());
  EXPECT_EQ(registry_->CountCompanions().total(), 0);
}

TEST_F(ReplicasTest, AnArrayThatComesAfterACancellationIsCopiedByItself) {
  const std::string first = Add("first");
  Orders(0);
  ASSERT_THAT(operations_.CancelFor(Operations()[0].id, absl::CancelledError("an operator did")),
              IsOk());
  ASSERT_TRUE(Eventually([&] { return Operations()[0].ended; }));
  const std::string second = Add("second");
  ReportAll(1);
  EXPECT_TRUE(IsComplete(second));
  for (int i = 0; i < 10; ++i) clock_.Advance(absl::Minutes(5));
  EXPECT_EQ(StateOf(first).complete, 1);
  EXPECT_THAT(StateOf(first).failure, HasSubstr("an operator did"));
  EXPECT_THAT(fill_.sent("w0"), SizeIs(2));
  replicas_->Look(/*is_chance=*/true);
  ReportAll(2);
  EXPECT_TRUE(IsComplete(first));
}

TEST_F(ReplicasTest, AnArrayThatLacksTilesIsNotCopied) {
  const std::string id = Add("w", /*is_over_x=*/true, [this] {
    registry_->TilesLost("m", 1, members_.view()->FindWorker("w1")->attachment);
  });
  ASSERT_TRUE(InTime([&] { return !StateOf(id).failure.empty(); }));
  EXPECT_THAT(StateOf(id).failure, HasSubstr("lacks tiles of ranks 1"));
  EXPECT_EQ(StateOf(id).complete, 0);
  EXPECT_THAT(fill_.sent("w0"), IsEmpty());
  EXPECT_THAT(Operations(), IsEmpty());
}

TEST_F(ReplicasTest, CountsTheWorkersThatHaveTheTileWithTheFewest) {
  const std::string id = Add("w");
  ReportAll(0);
  ASSERT_TRUE(IsComplete(id));
  const std::string copies = registry_->FindTwin(id)->definition.descriptor.mesh_id;
  const auto lose = [this](const std::string& mesh, int64_t rank, const char* worker) {
    registry_->TilesLost(mesh, rank, members_.view()->FindWorker(worker)->attachment);
  };
  // The worker w1 has rank 1 of the array, and rank 0 of the companion.
  lose("m", 1, "w1");
  EXPECT_EQ(StateOf(id).complete, 1);
  lose(copies, 0, "w1");
  EXPECT_EQ(StateOf(id).complete, 1) << "w0 has the other copy of each tile";
  lose(copies, 1, "w0");
  EXPECT_EQ(StateOf(id).complete, 0) << "nobody has the tile of rank 1";
}

TEST_F(ReplicasTest, ATileThatAnotherRankHasIsNotLost) {
  const std::string id = Add("w", /*is_over_x=*/false);  // each rank has the whole array
  ArrayDefinition copy{.descriptor = Descriptor(), .replica_of = id};
  copy.descriptor.spec = PartitionSpec({SpecEntry()});
  copy.descriptor.mesh_id = "n";
  CommitRequest commit;
  commit.arrays.push_back({.array_id = copy.descriptor.array_id, .tile_crc32c = {1, 2}});
  ASSERT_THAT(registry_->Stage(std::move(copy)), IsOk());
  Commit(std::move(commit));
  ASSERT_NE(registry_->FindTwin(id), nullptr);
  const auto lose = [this](int64_t rank, const char* worker) {
    for (const char* const mesh : {"m", "n"}) {
      registry_->TilesLost(mesh, rank, members_.view()->FindWorker(worker)->attachment);
    }
  };
  EXPECT_EQ(StateOf(id).complete, 2);
  lose(0, "w0");
  EXPECT_EQ(StateOf(id).complete, 1);
  lose(1, "w1");
  EXPECT_EQ(StateOf(id).complete, 0);
}

TEST_F(ReplicasTest, MemoryThatDoesNotSufficeIsNamed) {
  Beat((1 << 20) - 15);
  const std::string id = Add("w");
  ASSERT_TRUE(InTime([&] { return !StateOf(id).failure.empty(); }));
  EXPECT_THAT(StateOf(id).failure, HasSubstr("has 15 B left"));
  EXPECT_THAT(StateOf(id).failure, HasSubstr("needs 16 B there"));
  EXPECT_THAT(Operations(), IsEmpty());
  Beat(0);
  ReportAll(0);
  EXPECT_TRUE(IsComplete(id));
}

TEST_F(ReplicasTest, ASpecThatReplicatesNeedsNoCopy) {
  const std::string id = Add("w", /*is_over_x=*/false);
  EXPECT_TRUE(IsComplete(id));
  EXPECT_TRUE(StateOf(id).by_spec);
  EXPECT_TRUE(StateOf(id).shares_host);
  for (int i = 0; i < 10; ++i) clock_.Advance(absl::Seconds(1));
  EXPECT_THAT(fill_.sent("w0"), IsEmpty());
  EXPECT_FALSE(HasMesh());
}

TEST_F(ReplicasTest, StopEndsWhatRuns) {
  Add("w");
  Orders(0);
  replicas_->Stop();
  ASSERT_THAT(Operations(), SizeIs(1));
  EXPECT_THAT(Operations()[0].status,
              StatusIs(absl::StatusCode::kUnavailable, Reason::kNotServing));
  EXPECT_THAT(sequencer_->Live(), IsEmpty());
  EXPECT_EQ(registry_->CountCompanions().total(), 0);
  replicas_->Look(/*is_chance=*/true);
  clock_.Advance(absl::Minutes(10));
  EXPECT_THAT(fill_.sent("w0"), SizeIs(1));
}

}  // namespace
}  // namespace shardmesh::server
