// Repairs: from where lost tiles are read again, whatever fails meanwhile.
#include "server/repair/repairs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "rpc/codec/array_codec.h"
#include "server/repair/repair_sources.h"
#include "shardmesh/internal/v1/fill.pb.h"
#include "status/reason.h"
#include "status/str_cat.h"
#include "tests/testing/eventually.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/server/steps/ready_cluster.h"

namespace shardmesh::server {
namespace {

using ::shardmesh::test::Eventually;
using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint32_t kCrc = 2;  // of the tiles of rank 1: see ReadyCluster::AddArray
constexpr char kFile[] = "/data/model.safetensors";

std::shared_ptr<const SourceFile> FileAt(const std::string& path,
                                         absl::Time modify_time = absl::UnixEpoch()) {
  auto file = std::make_shared<SourceFile>();
  file->path = path;
  file->modify_time = modify_time;
  return file;
}

// Keeps the orders to fill tiles.
class OrderKeeper final : public FillTransport {
 public:
  absl::Status CheckCanFill(std::string_view) const override {
    if (on_check != nullptr) std::exchange(on_check, nullptr)();
    absl::MutexLock lock(&mutex_);
    return can_fill_;
  }
  absl::Status CheckCanConvert(std::string_view) const override {
    absl::MutexLock lock(&mutex_);
    return can_convert_;
  }
  int64_t CheckFiles(const std::string&, std::string_view, FilesChecked) override { return 0; }
  void ForgetFileCheck(int64_t) override {}
  absl::Status SendFill(std::string_view identity, std::string_view message) override {
    EXPECT_EQ(identity, "w1");
    internal::v1::FillTiles order;
    EXPECT_TRUE(order.ParseFromString(std::string(message)));
    absl::MutexLock lock(&mutex_);
    orders_.push_back(std::move(order));
    return absl::OkStatus();
  }
  std::vector<internal::v1::FillTiles> orders() const {
    absl::MutexLock lock(&mutex_);
    return orders_;
  }
  void SetCanFill(absl::Status can_fill) {
    absl::MutexLock lock(&mutex_);
    can_fill_ = std::move(can_fill);
  }
  void SetCanConvert(absl::Status can_convert) {
    absl::MutexLock lock(&mutex_);
    can_convert_ = std::move(can_convert);
  }

  // Called once, by the thread that begins a repair; set before there is one.
  mutable std::function<void()> on_check;

 private:
  mutable absl::Mutex mutex_;
  absl::Status can_fill_ ABSL_GUARDED_BY(mutex_);
  absl::Status can_convert_ ABSL_GUARDED_BY(mutex_);
  std::vector<internal::v1::FillTiles> orders_ ABSL_GUARDED_BY(mutex_);
};

class RepairsTest : public ReadyCluster {
 protected:
  ~RepairsTest() override {
    repairs_->Stop();
    sequencer_.reset();
  }

  // A named array of eight F32 elements, whole on both workers unless it lies over x.
  // `in_file`: its element type in the file.
  std::string Add(const std::string& name, bool is_over_x = false, bool has_file = false,
                  Dtype in_file = Dtype::kF32) {
    ArrayDescriptor descriptor = Descriptor();
    if (!is_over_x) descriptor.spec = PartitionSpec({SpecEntry()});
    ArrayDefinition definition{.descriptor = descriptor};
    if (has_file) {
      definition.source = {.file = FileAt(kFile), .offset_bytes = 64};
      if (in_file != descriptor.dtype) {
        definition.source.conversion = SourceConversion{.dtype = in_file};
      }
    }
    EXPECT_THAT(registry_->Stage(std::move(definition)), IsOk());
    CommitRequest commit;
    commit.arrays.push_back({.array_id = descriptor.array_id, .tile_crc32c = {kCrc, kCrc}});
    commit.moves.push_back({.name = name, .array_id = descriptor.array_id, .expected_version = {}});
    Commit(std::move(commit));
    return descriptor.array_id;
  }
  void Commit(CommitRequest commit) {
    absl::Notification done;
    registry_->Commit(std::move(commit), [&done](const absl::StatusOr<CommitResult>& result) {
      EXPECT_THAT(result, IsOk());
      done.Notify();
    });
    done.WaitForNotification();
  }

  // The worker w1 ends, and its tiles are gone.
  void Lose() {
    const uint64_t attachment = members_.view()->FindWorker("w1")->attachment;
    members_.Detach(attachment, "killed");
    sequencer_->WorkerLost("w1", ++epoch_, "killed");
    registry_->TilesLost("m", 1, attachment);
  }
  // It comes back with nothing.
  void Return() {
    Join();
    clock_.Advance(absl::Seconds(2));
  }
  void Join() {
    sequencer_->WorkerAttached("w1", ++epoch_);
    Attach();
  }
  // Attaches a new incarnation of the worker, and tells the repairs alone.
  void Attach() {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const uint64_t attachment,
                                   members_.Attach({.identity = "w1",
                                                    .incarnation = ++incarnation_,
                                                    .build_version = "1",
                                                    .endpoints = {"127.0.0.1:1"},
                                                    .host = "host",
                                                    .capacity_bytes = 1 << 20}));
    repairs_->WorkerJoined("w1", attachment);
  }
  void LoseAndReturn() {
    Lose();
    Return();
  }

  // Waits for the order with this number, counted from 0.
  internal::v1::FillTiles Order(size_t number) {
    EXPECT_TRUE(Eventually([&] { return fill_.orders().size() > number; })) << number;
    const auto orders = fill_.orders();
    return number < orders.size() ? orders[number] : internal::v1::FillTiles();
  }
  // w1 reports the outcome of an order.
  void Report(const internal::v1::FillTiles& order, const std::string& array_id,
              const absl::Status& status, uint32_t crc32c = kCrc) {
    RankReport report{.identity = "w1", .rank = 1, .status = status};
    if (status.ok()) {
      report.tiles.push_back({.array_id = array_id, .crc32c = crc32c, .size_bytes = 32});
    }
    sequencer_->ReportTransfer(order.transfer_id(), order.term(), std::move(report)).IgnoreError();
  }
  bool IsAvailable(const std::string& array_id) {
    return Eventually([&] {
      const auto array = registry_->FindArray(array_id);
      return array.ok() && (*array)->state == ArrayState::kAvailable;
    });
  }
  std::vector<OperationProgress> Operations() {
    return operations_.List(0, 100, [](const OperationProgress&) { return true; }).operations;
  }
  // Waits until `count` operations have ended, and returns the last one.
  OperationProgress Ended(size_t count) {
    EXPECT_TRUE(Eventually([&] {
      const auto all = Operations();
      return all.size() == count && all.back().ended;
    }));
    return Operations().empty() ? OperationProgress() : Operations().back();
  }
  // Waits until the array's repair has failed with this text.
  bool FailsWith(const std::string& array_id, const std::string& text) {
    return Eventually([&] {
      const auto repair = repairs_->Find(array_id);
      return repair.has_value() && repair->failure.find(text) != std::string::npos;
    });
  }

  int64_t epoch_ = 2;
  uint64_t incarnation_ = 1;
  OperationTable operations_{&clock_, &sessions_};
  Transfers transfers_{&clock_, registry_.get(), &sessions_, sequencer_.get(), &operations_};
  OrderKeeper fill_;
  std::unique_ptr<Repairs> repairs_ =
      std::make_unique<Repairs>(RepairParts{.clock = &clock_,
                                            .membership = &members_,
                                            .registry = registry_.get(),
                                            .operations = &operations_,
                                            .sequencer = sequencer_.get(),
                                            .endpoints = &endpoints_,
                                            .fill = &fill_,
                                            .transfers = &transfers_,
                                            .token_key = std::string(32, 'k'),
                                            .term = 7});
};

const absl::Status kBroken = absl::UnavailableError("it broke");

TEST_F(RepairsTest, AReplicaIsReadAndTheRankHasItsTileAgain) {
  const std::string id = Add("w");
  LoseAndReturn();
  const internal::v1::FillTiles order = Order(0);
  ASSERT_EQ(order.tiles_size(), 1);
  EXPECT_EQ(order.tiles(0).rank(), 1);
  EXPECT_EQ(order.tiles(0).array().array_descriptor(), order.tiles(0).array_descriptor());
  ASSERT_EQ(order.devices().sources_size(), 1);
  EXPECT_EQ(order.devices().sources(0).identity(), "w0");
  const std::optional<ArrayRepair> repair = repairs_->Find(id);
  ASSERT_TRUE(repair.has_value());
  EXPECT_EQ(repair->tiles, 1);
  EXPECT_EQ(repair->size_bytes, 32);
  ASSERT_THAT(Operations(), SizeIs(1));
  EXPECT_EQ(Operations()[0].id, repair->operation_id);
  EXPECT_EQ(Operations()[0].kind, OperationKind::kRepair);
  EXPECT_EQ(Operations()[0].total_bytes, 32);
  EXPECT_EQ(repairs_->totals().operations, 1);
  Report(order, id, absl::OkStatus());
  EXPECT_TRUE(IsAvailable(id));
  const OperationProgress ended = Ended(1);
  EXPECT_THAT(ended.status, IsOk());
  EXPECT_EQ(ended.done, 1);
  EXPECT_EQ(ended.done_bytes, 32);
  EXPECT_EQ(repairs_->Find(id), std::nullopt);
  EXPECT_EQ(repairs_->totals().repaired_tiles, 1);
  EXPECT_EQ(repairs_->totals().repaired_bytes, 32);
}

TEST_F(RepairsTest, TheFileIsReadAfterTheReplicasFailed) {
  const std::string id = Add("w", /*is_over_x=*/false, /*has_file=*/true);
  LoseAndReturn();
  Report(Order(0), id, kBroken);
  const internal::v1::FillTiles order = Order(1);
  EXPECT_EQ(order.files(0).path(), kFile);
  EXPECT_EQ(order.tiles(0).file().offset_bytes(), 64);
  Report(order, id, absl::OkStatus());
  EXPECT_TRUE(IsAvailable(id));
  EXPECT_THAT(Ended(1).status, IsOk());
}

TEST_F(RepairsTest, AConvertedTensorIsReadFromItsFileAsItWasRead) {
  const std::string id = Add("w", /*is_over_x=*/true, /*has_file=*/true, Dtype::kF64);
  LoseAndReturn();
  const internal::v1::FillTiles order = Order(0);
  EXPECT_EQ(order.files(0).path(), kFile);
  EXPECT_EQ(order.tiles(0).converted_file().file().offset_bytes(), 64);
  EXPECT_EQ(order.tiles(0).converted_file().conversion().dtype(), v1::DTYPE_F64);
  Report(order, id, absl::OkStatus());
  EXPECT_TRUE(IsAvailable(id));
}

TEST_F(RepairsTest, AnOlderWorkerGetsNoConvertedTensorAndIsNamed) {
  fill_.SetCanConvert(
      WithReason(absl::FailedPreconditionError("w1 converts no tensors"), Reason::kNotAvailable));
  const std::string id = Add("w", /*is_over_x=*/true, /*has_file=*/true, Dtype::kF64);
  LoseAndReturn();
  EXPECT_TRUE(FailsWith(id, "w1 converts no tensors"));
  EXPECT_THAT(fill_.orders(), IsEmpty());
  registry_->SetCheckpoint(
      id, {.file = FileAt("/saved/model.safetensors", absl::InfinitePast()), .offset_bytes = 68});
  LoseAndReturn();
  EXPECT_EQ(Order(0).files(0).path(), "/saved/model.safetensors");
}

TEST(RepairSourcesTest, ATileThatBeginsWithinAByteComesFromNoFile) {
  const auto sources_of = [](const Shape& shape, int64_t rank) {
    Array array;
    array.definition.descriptor = {.array_id = "a",
                                   .dtype = Dtype::kF4,
                                   .shape = shape,
                                   .spec = PartitionSpec({SpecEntry(), SpecEntry::Axis("x")}),
                                   .mesh_id = "m",
                                   .mesh_revision = 1,
                                   .mesh = *Mesh::Parse("x=2"),
                                   .cut_points = {}};
    array.definition.source = {.file = FileAt(kFile), .offset_bytes = 64};
    const auto sources = RepairSourcesOf(array, rank, /*live=*/{});
    EXPECT_THAT(sources, IsOk());
    return sources.ok() ? sources->size() : 0;
  };
  EXPECT_EQ(sources_of({4, 8}, 1), 1u);
  EXPECT_EQ(sources_of({4, 6}, 1), 0u) << "columns [3,6) begin within a byte";
}

TEST_F(RepairsTest, TheNewestCheckpointIsReadLast) {
  const std::string id = Add("w", /*is_over_x=*/true, /*has_file=*/true);
  registry_->SetCheckpoint(
      id, {.file = FileAt("/saved/model.safetensors", absl::InfinitePast()), .offset_bytes = 68});
  LoseAndReturn();
  Report(Order(0), id, kBroken);
  const internal::v1::FillTiles order = Order(1);
  EXPECT_EQ(order.files(0).path(), "/saved/model.safetensors");
  EXPECT_FALSE(order.files(0).has_modify_time());  // it is not known
  EXPECT_EQ(order.tiles(0).file().offset_bytes(), 68);
  Report(order, id, absl::OkStatus());
  EXPECT_TRUE(IsAvailable(id));
}

TEST_F(RepairsTest, ATileWithAnotherChecksumIsRefusedAndTheNextSourceTried) {
  const std::string id = Add("w", /*is_over_x=*/false, /*has_file=*/true);
  LoseAndReturn();
  Report(Order(0), id, absl::OkStatus(), kCrc + 1);
  Report(Order(1), id, absl::OkStatus(), kCrc + 2);
  ASSERT_TRUE(FailsWith(id, "CHECKSUM_MISMATCH"));
  const absl::Status status = Ended(1).status;
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kArrayDegraded));
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("1 of 1 lost tiles"), HasSubstr("the replica on rank 0 (w0)"),
                    HasSubstr(kFile), HasSubstr("CRC-32C 00000003, the lost tile had 00000002")));
  EXPECT_EQ(repairs_->totals().failed_tiles, 1);
  EXPECT_EQ((*registry_->FindArray(id))->state, ArrayState::kDegraded);
  // It is tried again later, from the first source on.
  clock_.Advance(absl::Seconds(6));
  Report(Order(2), id, absl::OkStatus());
  EXPECT_TRUE(IsAvailable(id));
  EXPECT_THAT(Ended(2).status, IsOk());
}

TEST_F(RepairsTest, TheTimeBetweenTriesGrows) {
  const std::string id = Add("w");
  LoseAndReturn();
  Report(Order(0), id, kBroken);
  ASSERT_TRUE(FailsWith(id, "it broke"));
  clock_.Advance(absl::Seconds(6));
  Report(Order(1), id, kBroken);
  ASSERT_THAT(Ended(2).status, StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_EQ(repairs_->Find(id)->next_try - clock_.Now(), absl::Seconds(10));
  EXPECT_THAT(repairs_->Find(id)->ToString(clock_.Now()),
              AllOf(HasSubstr("a repair failed: rank 1: the replica on rank 0 (w0): "),
                    HasSubstr("it is tried again in 10s")));
  // A worker that attaches may be a source.
  repairs_->WorkerJoined("w0", members_.view()->FindWorker("w0")->attachment);
  clock_.Advance(absl::Seconds(2));
  Order(2);
}

TEST_F(RepairsTest, AWorkerThatIsLostMidwayGetsItsTilesWhenItIsBack) {
  const std::string id = Add("w");
  LoseAndReturn();
  const internal::v1::FillTiles first = Order(0);
  Lose();
  EXPECT_THAT(Ended(1).status, StatusIs(absl::StatusCode::kUnavailable, Reason::kWorkerLost));
  EXPECT_EQ(repairs_->Find(id), std::nullopt);
  Report(first, id, absl::OkStatus());  // late
  EXPECT_EQ((*registry_->FindArray(id))->state, ArrayState::kDegraded);
  Return();
  Report(Order(1), id, absl::OkStatus());
  EXPECT_TRUE(IsAvailable(id));
}

// A repair begins a moment after its worker has attached. Readers are told so, and try again.
TEST_F(RepairsTest, ARepairThatIsAboutToBeginIsKnown) {
  const std::string id = Add("w");
  const std::string once = Add("once", /*is_over_x=*/true);
  Lose();
  EXPECT_EQ(repairs_->Find(id), std::nullopt) << "its worker is away";
  Join();
  const std::optional<ArrayRepair> due = repairs_->Find(id);
  ASSERT_TRUE(due.has_value());
  EXPECT_TRUE(due->is_due);
  EXPECT_EQ(due->tiles, 1);
  EXPECT_THAT(due->ranks, ElementsAre(1));
  EXPECT_EQ(due->size_bytes, 32);
  EXPECT_EQ(due->operation_id, "");
  EXPECT_EQ(due->ToString(clock_.Now()), "the repair of 1 tile is about to begin");
  EXPECT_EQ(repairs_->Find(once), std::nullopt) << "no source has its tile";
  clock_.Advance(absl::Seconds(2));
  Order(0);
  ASSERT_TRUE(repairs_->Find(id).has_value());
  EXPECT_FALSE(repairs_->Find(id)->is_due);
  EXPECT_THAT(repairs_->Find(id)->ranks, ElementsAre(1));
  EXPECT_TRUE(FailsWith(once, "no other live worker has the tile"));
  EXPECT_THAT(repairs_->Find(once)->ranks, IsEmpty()) << "it waits for another try";
}

TEST_F(RepairsTest, ARepairIsAboutToBeginWhileTheInventoryIsNotJudged) {
  const std::string id = Add("w", /*is_over_x=*/true, /*has_file=*/true);
  Lose();
  ASSERT_THAT(members_.Attach({.identity = "w1",
                               .incarnation = ++incarnation_,
                               .build_version = "1",
                               .endpoints = {"127.0.0.1:1"},
                               .host = "host",
                               .capacity_bytes = 1 << 20}),
              IsOk());
  ASSERT_TRUE(repairs_->Find(id).has_value());
  EXPECT_TRUE(repairs_->Find(id)->is_due);
}

// The order of the repair goes to the worker's next process.
TEST_F(RepairsTest, AWorkerThatIsBackBeforeItsRepairBeginsGetsItsTiles) {
  const std::string id = Add("w");
  fill_.on_check = [this] {
    Lose();
    Join();
  };
  LoseAndReturn();
  Report(Order(0), id, absl::OkStatus());
  EXPECT_TRUE(Eventually([&] {
    clock_.Advance(absl::Seconds(2));
    return fill_.orders().size() > 1;
  }));
  Report(Order(1), id, absl::OkStatus());
  EXPECT_TRUE(IsAvailable(id));
}

// The search for the worker's next process finds the tile in work, for the process before.
TEST_F(RepairsTest, ARepairThatEndsAfterItsWorkerIsBackIsAboutToBeginAgain) {
  const std::string id = Add("w");
  LoseAndReturn();
  const internal::v1::FillTiles first = Order(0);
  const std::string once = Add("once", /*is_over_x=*/true);
  const uint64_t attachment = members_.view()->FindWorker("w1")->attachment;
  members_.Detach(attachment, "killed");
  registry_->TilesLost("m", 1, attachment);
  ASSERT_NO_FATAL_FAILURE(Attach());
  clock_.Advance(absl::Seconds(2));
  ASSERT_TRUE(FailsWith(once, "no other live worker has the tile")) << "the search is over";
  Report(first, id, kBroken);
  EXPECT_TRUE(Eventually([&] {
    const std::optional<ArrayRepair> repair = repairs_->Find(id);
    return repair.has_value() && repair->is_due;
  }));
  clock_.Advance(absl::Seconds(2));
  Report(Order(1), id, absl::OkStatus());
  EXPECT_TRUE(IsAvailable(id));
}

TEST_F(RepairsTest, ACancelledRepairBeginsAgainOnlyWithItsWorker) {
  const std::string id = Add("w");
  const std::string other = Add("x");
  LoseAndReturn();
  const internal::v1::FillTiles order = Order(1);
  ASSERT_THAT(operations_.CancelFor(Operations()[0].id, absl::CancelledError("enough")), IsOk());
  EXPECT_THAT(Ended(1).status, StatusIs(absl::StatusCode::kCancelled));
  EXPECT_TRUE(FailsWith(id, "it was cancelled"));
  EXPECT_TRUE(FailsWith(other, "it was cancelled"));
  Report(order, id, absl::OkStatus());
  EXPECT_EQ(registry_->CountArrays().degraded, 2);
  repairs_->WorkerJoined("w0", members_.view()->FindWorker("w0")->attachment);
  clock_.Advance(absl::Minutes(10));
  LoseAndReturn();
  Order(3);
  EXPECT_THAT(fill_.orders(), SizeIs(4));
}

TEST_F(RepairsTest, AnArrayThatIsReleasedMidwayEndsItsRepair) {
  const std::string id = Add("w");
  LoseAndReturn();
  const internal::v1::FillTiles order = Order(0);
  CommitRequest deletion;
  deletion.moves.push_back({.name = "w", .array_id = "", .expected_version = {}});
  Commit(std::move(deletion));
  Report(order, id, absl::OkStatus());
  EXPECT_THAT(Ended(1).status, IsOk());
  EXPECT_EQ(repairs_->Find(id), std::nullopt);
  EXPECT_EQ(repairs_->totals().repaired_tiles, 0);
}

TEST_F(RepairsTest, AnOlderWorkerLeavesTheArrayDegradedAndIsNamed) {
  const std::string id = Add("w");
  fill_.SetCanFill(WithReason(absl::FailedPreconditionError("worker \"w1\" runs an older build"),
                              Reason::kNotAvailable));
  LoseAndReturn();
  ASSERT_TRUE(FailsWith(id, "runs an older build"));
  EXPECT_EQ(repairs_->Find(id)->next_try, absl::InfiniteFuture());
  EXPECT_THAT(Operations(), IsEmpty());
  EXPECT_THAT(fill_.orders(), IsEmpty());
}

TEST_F(RepairsTest, ATileWaitsForMemoryThatIsFree) {
  const std::string id = Add("w");
  LoseAndReturn();
  Report(Order(0), id, kBroken);
  ASSERT_TRUE(FailsWith(id, "it broke"));
  ASSERT_THAT(Ended(1).status, StatusIs(absl::StatusCode::kFailedPrecondition));
  Beat((1 << 20) - 31);
  clock_.Advance(absl::Seconds(6));
  ASSERT_TRUE(FailsWith(id, "(MEMORY_LIMIT)"));
  EXPECT_TRUE(FailsWith(id, "has 31 B left"));
  EXPECT_THAT(fill_.orders(), SizeIs(1));
  Beat((1 << 20) - 32);
  clock_.Advance(absl::Minutes(1));
  Report(Order(1), id, absl::OkStatus());
  EXPECT_TRUE(IsAvailable(id));
}

TEST_F(RepairsTest, MemoryIsCountedAsForPuts) {
  const std::string id = Add("w");
  LoseAndReturn();
  Report(Order(0), id, kBroken);
  ASSERT_TRUE(FailsWith(id, "it broke"));
  ASSERT_THAT(Ended(1).status, StatusIs(absl::StatusCode::kFailedPrecondition));
  Beat((1 << 20) - 48);
  // The heartbeats know nothing yet of an array that leaves 16 bytes.
  ArrayDescriptor large = Descriptor();
  large.shape = {(1 << 18) - 4};
  large.spec = PartitionSpec({SpecEntry()});
  AddArray(large, "large");
  clock_.Advance(absl::Seconds(6));
  ASSERT_TRUE(FailsWith(id, "has 16 B left"));
  EXPECT_THAT(fill_.orders(), SizeIs(1));
  // They still count an array that was released just now.
  CommitRequest remove;
  remove.moves.push_back({.name = "large", .array_id = "", .expected_version = {}});
  Commit(std::move(remove));
  ASSERT_TRUE(Eventually([&] { return registry_->CountUnconfirmed() == 1; }));
  clock_.Advance(absl::Minutes(1));
  Report(Order(1), id, absl::OkStatus());
  EXPECT_TRUE(IsAvailable(id));
}

TEST_F(RepairsTest, AnArrayWithoutAnySourceSaysSo) {
  const std::string id = Add("w", /*is_over_x=*/true);
  LoseAndReturn();
  ASSERT_TRUE(FailsWith(id, "no other live worker has the tile"));
  EXPECT_THAT(Operations(), IsEmpty());
  EXPECT_THAT(fill_.orders(), IsEmpty());
}

TEST_F(RepairsTest, AnOperationNamesTheArraysThatHaveNoSource) {
  const std::string id = Add("w");
  const std::string once = Add("once", /*is_over_x=*/true);
  LoseAndReturn();
  Report(Order(0), id, absl::OkStatus());
  const OperationProgress ended = Ended(1);
  EXPECT_THAT(ended.status, IsOk());
  EXPECT_EQ(ended.total, 1);
  EXPECT_EQ(ended.description,
            StrCat("repair of the tiles that worker \"w1\" lacks; 1 array has no source and stays "
                   "degraded: \"once\" (",
                   once, ")"));
}

// A get waits for the ranks of a repair. It would wait in vain for a tile that has no source.
TEST_F(RepairsTest, ATileWithoutSourceThatWaitsForItsTurnIsNotAmongTheRanks) {
  for (const char* const name : {"a", "b", "c", "d"}) Add(name);
  LoseAndReturn();
  Order(3);  // the worker reads no more at once
  const std::string next = Add("next");
  const std::string once = Add("once", /*is_over_x=*/true);
  for (const std::string& id : {next, once}) registry_->TileDamaged(id, 1);
  repairs_->LookAgain();
  clock_.Advance(absl::Seconds(2));
  const auto waits = [this](const std::string& id) {
    const auto repair = repairs_->Find(id);
    return repair.has_value() && !repair->is_due && repair->tiles == 1;
  };
  ASSERT_TRUE(Eventually([&] { return waits(next) && waits(once); }));
  EXPECT_THAT(repairs_->Find(next)->ranks, ElementsAre(1));
  EXPECT_THAT(repairs_->Find(once)->ranks, IsEmpty());
  EXPECT_THAT(fill_.orders(), SizeIs(4));
}

TEST_F(RepairsTest, AWorkerThatIsNotBackHasNoRepair) {
  const std::string id = Add("w");
  Lose();
  repairs_->LookAgain();
  clock_.Advance(absl::Seconds(2));
  EXPECT_EQ(repairs_->Find(id), std::nullopt);
  EXPECT_THAT(fill_.orders(), IsEmpty());
}

TEST_F(RepairsTest, AWorkerReadsFewTilesAtOnce) {
  std::vector<std::string> ids;
  for (int i = 0; i < 10; ++i) ids.push_back(Add(StrCat("w", i)));
  LoseAndReturn();
  Order(3);
  EXPECT_THAT(fill_.orders(), SizeIs(4));
  EXPECT_EQ(Operations()[0].total, 10);
  EXPECT_EQ(repairs_->totals().tiles, 10);
  for (size_t i = 0; i < 10; ++i) {
    const internal::v1::FillTiles order = Order(i);
    SHARDMESH_ASSERT_OK_AND_ASSIGN(
        const ArrayDescriptor array,
        rpc::ParseArrayDescriptorBytes(order.tiles(0).array_descriptor()));
    Report(order, array.array_id, absl::OkStatus());
  }
  EXPECT_THAT(Ended(1).status, IsOk());
  for (const std::string& id : ids) EXPECT_TRUE(IsAvailable(id));
}

TEST_F(RepairsTest, ProgressAndTimeLeftCountTheBytesThatArrive) {
  const std::vector<std::string> ids = {Add("a"), Add("b"), Add("c")};
  LoseAndReturn();
  Order(2);
  const auto report = [&](size_t number, const absl::Status& status = absl::OkStatus()) {
    const internal::v1::FillTiles order = Order(number);
    SHARDMESH_ASSERT_OK_AND_ASSIGN(
        const ArrayDescriptor array,
        rpc::ParseArrayDescriptorBytes(order.tiles(0).array_descriptor()));
    Report(order, array.array_id, status);
  };
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(repairs_->totals().total_bytes, 96);
  EXPECT_EQ(repairs_->totals().done_bytes, 0);
  EXPECT_EQ(repairs_->totals().time_left, std::nullopt);
  const std::string first = Order(0).transfer_id();
  repairs_->TilesArriving("another", 16);
  EXPECT_EQ(repairs_->totals().done_bytes, 0);
  repairs_->TilesArriving(first, 16);
  EXPECT_EQ(repairs_->totals().done_bytes, 16);
  EXPECT_EQ(Operations()[0].done, 0);
  const std::optional<absl::Duration> left = repairs_->totals().time_left;
  ASSERT_TRUE(left.has_value());
  for (const std::string& id : ids) {
    const std::optional<ArrayRepair> repair = repairs_->Find(id);
    ASSERT_TRUE(repair.has_value());
    EXPECT_EQ(repair->time_left, left);
  }
  // A report of nonsense shows no more than the tile, and what was shown never falls.
  repairs_->TilesArriving(first, 1'000);
  repairs_->TilesArriving(first, 8);
  EXPECT_EQ(repairs_->totals().done_bytes, 32);
  report(0);
  EXPECT_TRUE(Eventually([&] { return Operations()[0].done == 1; }));
  EXPECT_EQ(repairs_->totals().done_bytes, 32) << "no byte counts twice";
  repairs_->TilesArriving(first, 16);  // it comes late
  EXPECT_EQ(repairs_->totals().done_bytes, 32);
  // What came from a source that failed does not count.
  repairs_->TilesArriving(Order(1).transfer_id(), 24);
  EXPECT_EQ(repairs_->totals().done_bytes, 56);
  report(1, kBroken);
  EXPECT_TRUE(Eventually([&] { return repairs_->totals().done_bytes == 32; }));
}

TEST_F(RepairsTest, AnArrayAndItsCompanionAreSourcesOfEachOther) {
  ArrayDescriptor descriptor = Descriptor();
  Array array;
  array.definition.descriptor = descriptor;
  array.definition.replicas = 2;
  array.definition.source.file = FileAt(kFile);
  array.missing_ranks = {1};
  Array companion;
  companion.definition.descriptor = descriptor;
  companion.definition.descriptor.array_id = "c";
  companion.definition.descriptor.mesh_id = "m.replicas-0123456789ab";
  companion.definition.replica_of = descriptor.array_id;
  companion.missing_ranks = {0};
  const std::vector<RankEndpoint> turned = {
      {.rank = 0, .identity = "w1", .incarnation = 1, .endpoints = {}},
      {.rank = 1, .identity = "w0", .incarnation = 1, .endpoints = {}}};
  const auto titles = [](const std::vector<RepairSource>& sources) {
    std::vector<std::string> all;
    for (const RepairSource& each : sources) all.push_back(each.title);
    return all;
  };
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const std::vector<RepairSource> of_array,
      RepairSourcesOf(array, 1, endpoints_.endpoints,
                      {.array = std::make_shared<const Array>(companion), .live = turned}));
  EXPECT_THAT(titles(of_array), ::testing::ElementsAre("the second replica of rank 1 (w0)",
                                                       StrCat("the file ", kFile)));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::vector<RepairSource> of_companion,
                                 RepairSourcesOf(companion, 0, turned,
                                                 {.array = std::make_shared<const Array>(array),
                                                  .live = endpoints_.endpoints}));
  EXPECT_THAT(titles(of_companion), ::testing::ElementsAre("the second replica of rank 0 (w0)",
                                                           StrCat("the file ", kFile)));
  // A tile that both lack comes from the file.
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::vector<RepairSource> of_both,
                                 RepairSourcesOf(companion, 1, turned,
                                                 {.array = std::make_shared<const Array>(array),
                                                  .live = endpoints_.endpoints}));
  EXPECT_THAT(titles(of_both), ::testing::ElementsAre(StrCat("the file ", kFile)));

  OrderKeeper keeper;
  EXPECT_THAT(SendRepair({.transfer_id = "t",
                          .term = 7,
                          .token_key = std::string(32, 'k'),
                          .expire_time = absl::UnixEpoch(),
                          .array = &array,
                          .rank = 1,
                          .source = &of_array.front(),
                          .workers = std::vector<std::string>{"w0", "w1"},
                          .twin_workers = std::vector<std::string>{"w1", "w0"}},
                         &keeper),
              IsOk());
  ASSERT_THAT(keeper.orders(), SizeIs(1));
  const internal::v1::FillTiles order = keeper.orders().front();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const ArrayDescriptor source,
      rpc::ParseArrayDescriptorBytes(order.tiles(0).array().array_descriptor()));
  EXPECT_EQ(source.array_id, "c");
  EXPECT_EQ(order.devices().sources(0).identity(), "w0");
}

TEST_F(RepairsTest, StopEndsWhatRuns) {
  const std::string id = Add("w");
  LoseAndReturn();
  const internal::v1::FillTiles order = Order(0);
  repairs_->Stop();
  EXPECT_THAT(Ended(1).status, StatusIs(absl::StatusCode::kUnavailable, Reason::kNotServing));
  EXPECT_THAT(sequencer_->Live(), IsEmpty());
  repairs_->WorkerJoined("w0", 1);
  clock_.Advance(absl::Minutes(10));
  EXPECT_THAT(fill_.orders(), SizeIs(1));
}

TEST_F(RepairsTest, PartialSumsHaveNoSources) {
  ArrayDescriptor descriptor = Descriptor();
  descriptor.spec = PartitionSpec({SpecEntry()}, {"x"});
  Array array;
  array.definition.descriptor = descriptor;
  array.missing_ranks = {1};
  array.definition.source.file = FileAt(kFile);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::vector<RepairSource> sources,
                                 RepairSourcesOf(array, 1, endpoints_.endpoints));
  EXPECT_THAT(sources, IsEmpty());
}

}  // namespace
}  // namespace shardmesh::server
