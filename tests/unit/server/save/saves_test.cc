// Saves from the snapshot of names to the published checkpoint, with workers in this process.
#include "server/save/saves.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "process/clock.h"
#include "process/crc32c.h"
#include "process/failpoint.h"
#include "process/random_bytes.h"
#include "rpc/codec/worker_error_codec.h"
#include "server/attach/quarantine_orders.h"
#include "server/save/saved_places.h"
#include "server/store/local_store.h"
#include "sharding/shape.h"
#include "shardmesh/internal/v1/attach_service.pb.h"
#include "status/str_cat.h"
#include "tensor/checkpoint_folder.h"
#include "tensor/checkpoint_manifest.h"
#include "tensor/safetensors.h"
#include "tensor/source_file.h"
#include "tests/testing/status_matchers.h"
#include "worker/save/save_orders.h"

namespace shardmesh::server {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Workers of this process, which carry out orders as real ones do.
class LocalWorkers final : public SaveAccess {
 public:
  struct Worker {
    std::unique_ptr<worker::ShardStore> store;
    std::unique_ptr<worker::SaveOrders> orders;
    bool is_lost = false;
  };

  void Add(const std::string& identity, const std::string& write_root) {
    Worker& added = workers_[identity];
    added.store = *worker::ShardStore::Open(
        {.pool = BufferPool::Create(&budget_, 0), .data_dir = "", .quarantine = {}});
    SetRoot(identity, write_root);
  }
  void SetRoot(const std::string& identity, const std::string& write_root) {
    Worker& each = workers_[identity];
    each.orders = std::make_unique<worker::SaveOrders>(each.store.get(),
                                                       *worker::WriteRoots::Create({write_root}));
  }
  worker::ShardStore& StoreOf(const std::string& identity) { return *workers_[identity].store; }
  // Ends the worker's saves, as the loss of its stream does.
  void Lose(const std::string& identity) {
    workers_[identity].is_lost = true;
    workers_[identity].orders->EndAll();
  }

  void OrderSave(const std::string& identity, const internal::v1::SaveOrder& order,
                 SaveProgressed progressed, SaveAnswered answered) override {
    if (on_order_) on_order_(identity, order);
    Worker& to = workers_[identity];
    if ((order.has_compare() || order.has_earlier()) && identity == old_build_) {
      internal::v1::SaveAnswer answer;
      rpc::Encode(absl::UnimplementedError("an unknown order"), answer.mutable_error());
      return std::move(answered)(std::move(answer));
    }
    if (to.is_lost) return std::move(answered)(NotAttached(identity));
    auto shared = std::make_shared<SaveAnswered>(std::move(answered));
    to.orders->Take(order, {.answer =
                                [this, shared, identity](internal::v1::SaveAnswer answer) {
                                  if (workers_[identity].is_lost) {
                                    return std::move(*shared)(NotAttached(identity));
                                  }
                                  std::move (*shared)(std::move(answer));
                                  if (on_answered_) on_answered_(identity);
                                },
                            .progress =
                                [progressed](internal::v1::SaveProgress progress) {
                                  if (progressed) progressed(progress.done_bytes());
                                }});
  }

  void Reattach(const std::string& identity) { workers_[identity].is_lost = false; }

  std::function<void(const std::string& identity, const internal::v1::SaveOrder& order)> on_order_;
  std::function<void(const std::string& identity)> on_answered_;
  std::string old_build_;  // a worker that knows no order to compare, and none to list files

 private:
  MemoryBudget budget_{int64_t{1} << 30};
  std::map<std::string, Worker> workers_;
};

class SavesTest : public testing::Test {
 protected:
  SavesTest()
      : root_(StrCat(testing::TempDir(), "/saves_",
                     testing::UnitTest::GetInstance()->current_test_info()->name())),
        folder_(root_ + "/run") {
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(root_);
    registry_ = *ArrayRegistry::Open(store_.get(), &clock_, [](const auto&, const auto&) {});
    for (const char* const identity : {"w-0", "w-1"}) {
      workers_.Add(identity, root_);
      EXPECT_THAT(members_.Attach({.identity = identity,
                                   .incarnation = 1,
                                   .build_version = "1",
                                   .endpoints = {"10.0.0.1:1"},
                                   .host = "host"}),
                  IsOk());
    }
    EXPECT_THAT(members_.AddMesh("m", 2, {"w-0", "w-1"}), IsOk());
    operations_ = std::make_unique<OperationTable>(&clock_, &sessions_);
    session_ = *sessions_.Open({.name = "host:a"}, "", absl::Hours(1));
    saves_ = std::make_unique<Saves>(Parts());
  }
  Saves::Parts Parts() {
    return {.registry = registry_.get(),
            .sessions = &sessions_,
            .membership = &members_,
            .recovery = &recovery_,
            .operations = operations_.get(),
            .access = &workers_,
            .cluster_id = "cluster"};
  }
  ~SavesTest() override {
    saves_.reset();
    std::filesystem::remove_all(root_);
  }

  static PartitionSpec Rows() { return PartitionSpec({SpecEntry::Axis("x")}); }
  static PartitionSpec Columns() {
    return PartitionSpec({SpecEntry::None(), SpecEntry::Axis("x")});
  }

  // Makes an array of random U8 elements under the name, and returns the elements. `late`: a device
  // that the coordinator has not yet told that the array is committed.
  std::string Put(const std::string& name, const Shape& shape, const PartitionSpec& spec,
                  DeviceId late = -1) {
    std::string bytes(static_cast<size_t>(*ElementCount(shape)), '\0');
    for (char& byte : bytes) byte = static_cast<char>(random_());
    PutBytes(name, shape, spec, bytes, late);
    return bytes;
  }
  // Makes an array of these elements.
  void PutBytes(const std::string& name, const Shape& shape, const PartitionSpec& spec,
                const std::string& bytes, DeviceId late = -1) {
    CommitUnder(name, {.descriptor = DescriptorOf("m", shape, spec)}, {"w-0", "w-1"}, bytes, late);
  }
  static ArrayDescriptor DescriptorOf(const std::string& mesh_id, const Shape& shape,
                                      const PartitionSpec& spec) {
    return {.array_id = RandomId(),
            .dtype = Dtype::kU8,
            .shape = shape,
            .spec = spec,
            .mesh_id = mesh_id,
            .mesh_revision = 0,
            .mesh = *Mesh::Parse("x=2"),
            .cut_points = {}};
  }
  // Makes the array on these workers, by rank. A companion has no name.
  void CommitUnder(const std::string& name, const ArrayDefinition& definition,
                   const std::vector<std::string>& identities, const std::string& bytes,
                   DeviceId late = -1) {
    const ArrayDescriptor& array = definition.descriptor;
    const Shape& shape = array.shape;
    const TensorView view = *TensorView::Create(Dtype::kU8, shape, bytes);
    const Tiling tiling = *array.Tiling();
    ArrayCommit commit{
        .array_id = array.array_id, .durability = Durability::kMemory, .tile_crc32c = {}};
    for (DeviceId device = 0; device < 2; ++device) {
      const Tile tile = tiling.TileOf(device);
      std::string part(static_cast<size_t>(tile.element_count()), '\0');
      EXPECT_THAT(CopyTileBytes(view, tile, 0, absl::MakeSpan(part)), IsOk());
      commit.tile_crc32c.push_back(Crc32c(part));
      worker::ShardStore& tiles = workers_.StoreOf(identities[static_cast<size_t>(device)]);
      auto staged = tiles.Stage({array.array_id, Dtype::kU8, shape, tile, "d", "t"}, false);
      EXPECT_THAT(staged, IsOk());
      if (!part.empty()) {
        EXPECT_THAT((*staged)->Append(0, part, Crc32c(part)), IsOk());
      }
      EXPECT_THAT((*staged)->Finish(Crc32c(part)), IsOk());
      if (device != late) {
        EXPECT_THAT(tiles.Commit({array.array_id}), IsOk());
      }
    }
    EXPECT_THAT(registry_->Stage(definition), IsOk());
    CommitRequest request;
    if (!name.empty()) {
      request.moves.push_back({.name = name, .array_id = array.array_id, .expected_version = {}});
    }
    request.arrays.push_back(std::move(commit));
    absl::Notification done;
    registry_->Commit(std::move(request), [&done](const absl::StatusOr<CommitResult>& committed) {
      EXPECT_THAT(committed, IsOk());
      done.Notify();
    });
    done.WaitForNotification();
  }

  SaveRequest Request(const std::string& prefix = "") const {
    SaveRequest request;
    request.session_id = session_.id;
    request.prefix = prefix;
    request.destination.folder = folder_;
    return request;
  }
  absl::StatusOr<SaveResult> Save(const SaveRequest& request) {
    SHARDMESH_ASSIGN_OR_RETURN(const BegunSave begun, saves_->Begin(request));
    return Await(begun.operation_id);
  }
  absl::StatusOr<SaveResult> Await(const std::string& operation_id) {
    absl::StatusOr<SaveResult> result;
    absl::Notification ended;
    saves_->Wait(operation_id, [&](absl::StatusOr<SaveResult> given) {
      result = std::move(given);
      ended.Notify();
    });
    ended.WaitForNotification();
    return result;
  }
  static std::string BytesOf(const Checkpoint& checkpoint, const std::string& name) {
    const Checkpoint::Entry* const entry = checkpoint.Find(name);
    if (entry == nullptr) return "(none)";
    const absl::Span<const char> bytes = checkpoint.View(*entry).bytes();
    return {bytes.data(), bytes.size()};
  }

  // Expects that the manifest in the folder has the checksums of the pieces of all tiles of several
  // pieces, and of no other tiles. Returns the number of those tiles.
  static int ExpectPieces(const std::string& folder) {
    const auto read = [&folder](std::string_view name) {
      std::ifstream file(StrCat(folder, "/", name), std::ios::binary);
      return std::string(std::istreambuf_iterator<char>(file), {});
    };
    const std::string manifest = read(kCheckpointManifest);
    EXPECT_THAT(CheckMarker(folder, manifest, read(kCheckpointMarker)), IsOk());
    const auto files = ParseManifest("m", manifest);
    const auto checkpoint = Checkpoint::Open(folder);
    EXPECT_THAT(files, IsOk());
    EXPECT_THAT(checkpoint, IsOk());
    if (!files.ok() || !checkpoint.ok()) return 0;
    int count = 0;
    for (const ManifestFile& file : *files) {
      EXPECT_TRUE(file.has_checksums);
      for (const ManifestTensor& tensor : file.tensors) {
        const TensorView view = checkpoint->View(*checkpoint->Find(tensor.name));
        for (const ManifestTile& tile : tensor.tiles) {
          std::string bytes(static_cast<size_t>(tile.tile.element_count()), '\0');
          EXPECT_THAT(CopyTileBytes(view, tile.tile, 0, absl::MakeSpan(bytes)), IsOk());
          std::vector<uint32_t> pieces;
          for (size_t at = 0; at < bytes.size(); at += kSavedPieceBytes) {
            pieces.push_back(Crc32c(std::string_view(bytes).substr(at, kSavedPieceBytes)));
          }
          if (pieces.size() < 2) pieces.clear();
          EXPECT_EQ(tile.piece_crc32c, pieces) << tensor.name << " " << tile.tile.ToString();
          count += pieces.empty() ? 0 : 1;
        }
      }
    }
    return count;
  }

  const std::string root_;
  const std::string folder_;
  RealClock clock_;
  std::mt19937 random_{11};
  const std::unique_ptr<Store> store_ = CreateMemoryStore({});
  std::unique_ptr<ArrayRegistry> registry_;
  Membership members_{&clock_, {.lost_after = absl::Hours(1)}};
  Recovery recovery_{&clock_};
  SessionTable sessions_{
      &clock_, [this](const EndedSession& ended) {
        for (const std::string& id : ended.transfers) {
          operations_->CancelFor(id, absl::CancelledError("its session ended")).IgnoreError();
        }
      }};
  std::unique_ptr<OperationTable> operations_;
  Session session_;
  LocalWorkers workers_;
  std::unique_ptr<Saves> saves_;
};

TEST_F(SavesTest, WritesACheckpointThatAReaderFindsEqual) {
  const std::string rows = Put("m/rows", {64, 33}, Rows());
  const std::string columns = Put("m/columns", {1000, 6}, Columns());
  const std::string whole = Put("m/whole", {17}, PartitionSpec());
  const std::string large = Put("m/large", {5 << 20}, PartitionSpec());  // both workers write it
  const std::string scalar = Put("m/scalar", {}, PartitionSpec());
  const std::string none = Put("m/none", {0, 4}, Rows());
  Put("other", {4}, PartitionSpec());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const SaveResult saved, Save(Request("m/")));
  EXPECT_EQ(saved.tensors, 6);
  EXPECT_EQ(saved.files, 1);
  EXPECT_EQ(saved.written_bytes, saved.size_bytes);
  EXPECT_EQ(saved.path, folder_);
  EXPECT_EQ(saved.revision, registry_->FindName("m/none")->version);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Checkpoint checkpoint, Checkpoint::Open(folder_));
  EXPECT_EQ(checkpoint.tensors().size(), 6);
  EXPECT_EQ(BytesOf(checkpoint, "m/rows"), rows);
  EXPECT_EQ(BytesOf(checkpoint, "m/columns"), columns);
  EXPECT_EQ(BytesOf(checkpoint, "m/whole"), whole);
  EXPECT_EQ(BytesOf(checkpoint, "m/large"), large);
  EXPECT_EQ(BytesOf(checkpoint, "m/scalar"), scalar);
  EXPECT_EQ(BytesOf(checkpoint, "m/none"), none);
  EXPECT_FALSE(std::filesystem::exists(StrCat(folder_, "/", kSaveStaging)));
  EXPECT_FALSE(std::filesystem::exists(StrCat(folder_, "/", kSaveLock)));
}

TEST_F(SavesTest, ListsTheChecksumsOfPiecesOfWrittenAndOfLinkedFiles) {
  Put("whole", {5 << 20}, PartitionSpec());  // both workers write it
  Put("rows", {3000, 1000}, Rows());
  Put("columns", {3000, 1000}, Columns());
  Put("small", {1000, 6}, Columns());
  SaveRequest request = Request();
  for (int64_t step = 1; step <= 2; ++step) {
    request.destination.step = step;
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const SaveResult saved, Save(request));
    EXPECT_EQ(saved.linked_files, step - 1);
    EXPECT_EQ(ExpectPieces(saved.path), 5);
  }
}

TEST_F(SavesTest, SavesTensorsWithoutElementsAlone) {
  Put("m/none", {0, 4}, Rows());
  Put("m/nothing", {3, 0}, PartitionSpec());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const SaveResult saved, Save(Request("m/")));
  EXPECT_EQ(saved.tensors, 2);
  EXPECT_EQ(saved.written_bytes, 0);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Checkpoint checkpoint, Checkpoint::Open(folder_));
  EXPECT_EQ(BytesOf(checkpoint, "m/none"), "");
  EXPECT_EQ(BytesOf(checkpoint, "m/nothing"), "");
}

TEST_F(SavesTest, SendsTheOrdersOfManyTilesInTheirOrder) {
  // More regions than one order takes: each is one tile of two bytes.
  constexpr int kTensors = 3'000;
  std::map<std::string, std::string> put;
  for (int i = 0; i < kTensors; ++i) {
    const std::string name = StrCat("t", i);
    put[name] = Put(name, {4}, Rows());
  }
  int orders = 0;
  int last_orders = 0;  // that sync the files
  absl::Mutex mutex;
  workers_.on_order_ = [&](const std::string&, const internal::v1::SaveOrder& order) {
    if (!order.has_tiles()) return;
    absl::MutexLock lock(&mutex);
    ++orders;
    last_orders += order.tiles().sync() ? 1 : 0;
  };
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const SaveResult saved, Save(Request()));
  EXPECT_EQ(saved.written_bytes, kTensors * 4);
  EXPECT_GE(orders, 4);
  EXPECT_EQ(last_orders, 2);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Checkpoint checkpoint, Checkpoint::Open(folder_));
  for (const auto& [name, bytes] : put) EXPECT_EQ(BytesOf(checkpoint, name), bytes);
}

TEST_F(SavesTest, TheTilesOfAllRunningSavesAreLimited) {
  for (const char* const name : {"a", "b", "c/a", "c/b"}) Put(name, {16}, Rows());
  Saves::Parts parts = Parts();
  parts.max_tiles = 6;
  saves_ = std::make_unique<Saves>(std::move(parts));
  const absl::Status alone = saves_->Check(Request()).status();
  EXPECT_THAT(alone, StatusIs(absl::StatusCode::kResourceExhausted, Reason::kLimitExceeded));
  EXPECT_THAT(alone.message(), HasSubstr("longer prefixes"));
  absl::Notification go_on;
  workers_.on_order_ = [&](const std::string&, const internal::v1::SaveOrder& order) {
    if (order.has_open()) go_on.WaitForNotification();
  };
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunSave first, saves_->Begin(Request("c/")));
  SaveRequest other = Request("c/");
  other.destination.folder = StrCat(folder_, 2);
  EXPECT_THAT(saves_->Begin(other),
              StatusIs(absl::StatusCode::kResourceExhausted, Reason::kOverloaded));
  go_on.Notify();
  EXPECT_THAT(Await(first.operation_id), IsOk());
  EXPECT_THAT(Save(other), IsOk());
}

TEST_F(SavesTest, ACallerThatStopsWaitingIsForgotten) {
  Put("a", {16}, Rows());
  absl::Notification go_on;
  workers_.on_order_ = [&](const std::string&, const internal::v1::SaveOrder& order) {
    if (order.has_open()) go_on.WaitForNotification();
  };
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunSave save, saves_->Begin(Request()));
  const auto caller = std::make_shared<int>(0);
  const int64_t number =
      saves_->Wait(save.operation_id, [caller](const absl::StatusOr<SaveResult>&) { ++*caller; });
  EXPECT_EQ(caller.use_count(), 2);
  saves_->StopWaiting(save.operation_id, number);
  EXPECT_EQ(caller.use_count(), 1);
  go_on.Notify();
  EXPECT_THAT(Await(save.operation_id), IsOk());
  EXPECT_EQ(*caller, 0);
}

TEST_F(SavesTest, ALimitOfThreadsEndsNoMoreThanTheSave) {
  const std::string a = Put("a", {16}, Rows());
  // Threads of the coordinator, of the first worker and of the second one.
  for (const int start : {1, 2, 3}) {
    SCOPED_TRACE(start);
    ASSERT_THAT(ArmFailpoints(StrCat("thread.start=emfile:", start)), IsOk());
    EXPECT_THAT(Save(Request()), StatusIs(absl::StatusCode::kResourceExhausted));
    EXPECT_FALSE(IsArmed("thread.start"));
    EXPECT_FALSE(std::filesystem::exists(folder_));
  }
  EXPECT_EQ(operations_->CountRunning(), 0);
  EXPECT_THAT(Save(Request()), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Checkpoint checkpoint, Checkpoint::Open(folder_));
  EXPECT_EQ(BytesOf(checkpoint, "a"), a);
}

TEST_F(SavesTest, SaysForWhichWorkersItWaits) {
  Put("a", {16}, Rows());
  absl::Notification ordered;
  absl::Notification go_on;
  workers_.on_order_ = [&](const std::string& identity, const internal::v1::SaveOrder& order) {
    if (!order.has_tiles() || identity != "w-1" || ordered.HasBeenNotified()) return;
    ordered.Notify();
    go_on.WaitForNotification();
  };
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunSave save, saves_->Begin(Request()));
  ordered.WaitForNotification();
  EXPECT_THAT(saves_->WorkersOf(save.operation_id).waiting_for, Contains("w-1"));
  EXPECT_THAT(saves_->WorkersOf("other").waiting_for, IsEmpty());
  go_on.Notify();
  EXPECT_THAT(Await(save.operation_id), IsOk());
  EXPECT_THAT(saves_->WorkersOf(save.operation_id).waiting_for, IsEmpty());
}

TEST_F(SavesTest, CutsACheckpointIntoFilesWithAnIndex) {
  std::map<std::string, std::string> put;
  for (const char* const name : {"a", "b", "c", "d"}) {
    put[name] = Put(StrCat("m/", name), {700'000}, Rows());
  }
  SaveRequest request = Request("m/");
  request.max_file_bytes = 1'500'000;
  request.strip_prefix = true;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const SaveResult saved, Save(request));
  EXPECT_EQ(saved.files, 2);
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/model-00002-of-00002.safetensors"));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Checkpoint checkpoint, Checkpoint::Open(folder_));
  for (const auto& [name, bytes] : put) EXPECT_EQ(BytesOf(checkpoint, name), bytes);
}

TEST_F(SavesTest, WritesACheckpointOfTensorsWithoutElementsOnly) {
  Put("empty", {0, 8}, Rows());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const SaveResult saved, Save(Request()));
  EXPECT_EQ(saved.tensors, 1);
  EXPECT_EQ(saved.written_bytes, 0);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Checkpoint checkpoint, Checkpoint::Open(folder_));
  ASSERT_EQ(checkpoint.tensors().size(), 1);
  EXPECT_EQ(checkpoint.tensors().front().tensor->shape, Shape({0, 8}));
}

TEST_F(SavesTest, ATileMayBeStagedWhereTheCommitHasNotComeYet) {
  const std::string bytes = Put("w", {8, 6}, Rows(), /*late=*/1);
  ASSERT_THAT(Save(Request()), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Checkpoint checkpoint, Checkpoint::Open(folder_));
  EXPECT_EQ(BytesOf(checkpoint, "w"), bytes);
}

TEST_F(SavesTest, ASaveOfNoBytesNeedsALiveWorker) {
  Put("empty", {0, 8}, Rows());
  for (const char* const identity : {"w-0", "w-1"}) {
    members_.Detach(members_.view()->FindWorker(identity)->attachment, "it ended");
  }
  EXPECT_THAT(Save(Request()),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kArrayDegraded));
}

TEST_F(SavesTest, WritesTheTilesOfALostWorkerFromTheCompanion) {
  EXPECT_THAT(members_.AddMesh("copies", 2, {"w-1", "w-0"}), IsOk());
  const std::string bytes(48, 'b');
  const ArrayDescriptor array = DescriptorOf("m", {8, 6}, Rows());
  CommitUnder("w", {.descriptor = array}, {"w-0", "w-1"}, bytes);
  ArrayDefinition companion{.descriptor = DescriptorOf("copies", {8, 6}, Rows())};
  companion.replica_of = array.array_id;
  CommitUnder("", companion, {"w-1", "w-0"}, bytes);
  const uint64_t attachment = members_.view()->FindWorker("w-1")->attachment;
  members_.Detach(attachment, "it ended");
  registry_->TilesLost("m", 1, attachment);
  registry_->TilesLost("copies", 0, attachment);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const SaveResult saved, Save(Request()));
  EXPECT_EQ(saved.written_bytes, 48);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Checkpoint checkpoint, Checkpoint::Open(folder_));
  EXPECT_EQ(BytesOf(checkpoint, "w"), bytes);

  // The worker that is left has lost its tile of the companion too.
  registry_->TileDamaged(companion.descriptor.array_id, 1);
  SaveRequest again = Request();
  again.destination.folder = folder_ + "-2";
  EXPECT_THAT(Save(again), StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kArrayDegraded));
}

TEST_F(SavesTest, LinksFilesOfUnchangedTensorsAndKeepsTheNewestSteps) {
  for (const char* const name : {"a", "b", "c"}) Put(name, {1 << 20}, Rows());
  SaveRequest request = Request();
  request.max_file_bytes = 1 << 20;
  request.destination.keep = 2;
  for (int64_t step = 1; step <= 3; ++step) {
    request.destination.step = step;
    if (step > 1) Put("b", {1 << 20}, Rows());
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const SaveResult saved, Save(request));
    EXPECT_EQ(saved.linked_files, step == 1 ? 0 : 2);
    EXPECT_EQ(saved.written_bytes, step == 1 ? 3 << 20 : 1 << 20);
    if (step == 3) {
      EXPECT_THAT(saved.removed_steps, ElementsAre(1));
      EXPECT_THAT(saved.kept_steps, ElementsAre(2, 3));
    }
  }
  EXPECT_THAT(Checkpoint::Open(folder_), IsOk());
  EXPECT_THAT(Checkpoint::Open(folder_, 1), StatusIs(absl::StatusCode::kNotFound));
}

// Saves of steps of 20 tensors, of 512 KiB each.
class ChangedTensorsTest : public SavesTest {
 protected:
  ChangedTensorsTest() {
    for (int i = 0; i < 20; ++i) PutTensor(i);
  }
  void PutTensor(int number) {
    const std::string name = StrCat(number < 10 ? "t0" : "t", number);
    bytes_[name] = Put(name, {kTensorBytes}, Rows());
  }
  // Saves the next step, and expects that a reader finds all tensors equal.
  SaveResult SaveStep(int64_t max_file_bytes) {
    SaveRequest request = Request();
    request.destination.step = ++step_;
    request.max_file_bytes = max_file_bytes;
    const absl::StatusOr<BegunSave> checked = saves_->Check(request);
    const absl::StatusOr<SaveResult> saved = Save(request);
    EXPECT_THAT(checked, IsOk());
    EXPECT_THAT(saved, IsOk());
    if (!saved.ok() || !checked.ok()) return {};
    EXPECT_EQ(checked->files, saved->files);
    const absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(saved->path);
    EXPECT_THAT(checkpoint, IsOk());
    if (!checkpoint.ok()) return {};
    EXPECT_EQ(checkpoint->tensors().size(), bytes_.size());
    for (const auto& [name, bytes] : bytes_) {
      EXPECT_TRUE(BytesOf(*checkpoint, name) == bytes) << name;
    }
    return *saved;
  }
  void ExpectStep(int64_t max_file_bytes, int64_t files, int64_t linked_files,
                  int64_t written_bytes) {
    const SaveResult saved = SaveStep(max_file_bytes);
    EXPECT_EQ(saved.files, files) << step_;
    EXPECT_EQ(saved.linked_files, linked_files) << step_;
    EXPECT_EQ(saved.written_bytes, written_bytes) << step_;
  }

  static constexpr int64_t kTensorBytes = int64_t{512} << 10;
  std::map<std::string, std::string> bytes_;
  int64_t step_ = 0;
};

TEST_F(ChangedTensorsTest, CostTheirFileOnceAndThenThemselves) {
  constexpr int64_t kTwoTensors = 2 * kTensorBytes;
  ExpectStep(kTwoTensors, 10, 0, 20 * kTensorBytes);
  PutTensor(7);
  ExpectStep(kTwoTensors, 11, 9, 2 * kTensorBytes);
  PutTensor(7);
  ExpectStep(kTwoTensors, 11, 10, kTensorBytes);
  ExpectStep(kTwoTensors, 11, 11, 0);
  PutTensor(3);
  PutTensor(7);
  ExpectStep(kTwoTensors, 11, 9, 3 * kTensorBytes);  // t02 alone; t03 and t07 together
}

TEST_F(ChangedTensorsTest, OfASmallTreeCostOnlyThemselvesFromTheThirdStepOn) {
  ExpectStep(0, 1, 0, 20 * kTensorBytes);
  PutTensor(7);
  ExpectStep(0, 2, 0, 20 * kTensorBytes);
  PutTensor(7);
  ExpectStep(0, 2, 1, kTensorBytes);
}

TEST_F(ChangedTensorsTest, FilesOverTheSizeThatIsAskedForAreCutAndManySmallOnesMerged) {
  ExpectStep(0, 1, 0, 20 * kTensorBytes);
  ExpectStep(2 * kTensorBytes, 10, 0, 20 * kTensorBytes);
  ExpectStep(0, 1, 0, 20 * kTensorBytes);
  ExpectStep(0, 1, 1, 0);
}

TEST_F(ChangedTensorsTest, CostTheirWholeFileIfTheLeaderIsOfAnOlderBuild) {
  workers_.old_build_ = "w-0";
  for (int step = 1; step <= 3; ++step) {
    ExpectStep(2 * kTensorBytes, 10, step == 1 ? 0 : 9, (step == 1 ? 20 : 2) * kTensorBytes);
    PutTensor(7);
  }
}

TEST_F(ChangedTensorsTest, LeaveACheckpointWithoutAStepInOneFile) {
  SaveRequest request = Request();
  request.destination.overwrite = true;
  for (int save = 1; save <= 2; ++save) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const SaveResult saved, Save(request));
    EXPECT_EQ(saved.files, 1);
    PutTensor(7);
  }
}

// Saves that the next coordinator knows.
class SavedPlacesTest : public SavesTest {
 protected:
  SavedPlacesTest() { Reopen(); }

  // Ends the coordinator, and starts the next one with its store.
  void Reopen() {
    saves_.reset();
    registry_.reset();
    registry_ = *ArrayRegistry::Open(store_.get(), &clock_, [](const auto&, const auto&) {});
    Saves::Parts parts = Parts();
    parts.store = store_.get();
    saves_ = std::make_unique<Saves>(std::move(parts));
  }
  void SaveTo(const std::string& prefix, const std::string& folder) {
    SaveRequest request = Request(prefix);
    request.destination.folder = StrCat(root_, "/", folder);
    EXPECT_THAT(Save(request), IsOk());
  }
  // The file of the newest checkpoint of the array with the name, without the root.
  std::string FileOf(const std::string& name) {
    const ArraySource place =
        (*registry_->FindArray(registry_->FindName(name)->array_id))->checkpoint;
    if (place.file == nullptr) return "(none)";
    EXPECT_EQ(place.file->modify_time, absl::InfinitePast());
    EXPECT_EQ(place.file->head_bytes, place.offset_bytes) << "the first tensor of its file";
    EXPECT_EQ(place.file->head_sha256.size(), 32);
    return place.file->path.substr(root_.size() + 1);
  }
  // The number of records, when all commits so far are done.
  int64_t Records() {
    EXPECT_THAT(CommitAndWait(*store_, {.deletes = {"none"}}), IsOk());
    return std::ssize(store_->List("saved/")->items);
  }
};

TEST_F(SavedPlacesTest, AreKnownAfterARestart) {
  Put("a", {8}, Rows());
  Put("b/x", {8}, Rows());
  SaveTo("a", "first");
  SaveTo("b/", "second");
  EXPECT_EQ(Records(), 2);
  SaveTo("b/", "third");
  EXPECT_EQ(Records(), 2) << "the record of the second is gone";
  for (int start = 0; start < 3; ++start) {
    EXPECT_EQ(FileOf("a"), "first/model.safetensors") << start;
    EXPECT_EQ(FileOf("b/x"), "third/model.safetensors") << start;
    Reopen();
  }
  // A save deletes records that the process before has written.
  Put("b/x", {8}, Rows());
  EXPECT_EQ(FileOf("b/x"), "(none)");
  SaveTo("b/", "fourth");
  EXPECT_EQ(Records(), 2);
  Reopen();
  EXPECT_EQ(FileOf("a"), "first/model.safetensors");
  EXPECT_EQ(FileOf("b/x"), "fourth/model.safetensors");
}

TEST_F(SavedPlacesTest, GoWithTheirArrays) {
  Put("a", {8}, Rows());
  Put("b", {8}, Rows());
  SaveTo("a", "a");
  SaveTo("b", "b");
  Put("a", {8}, Rows());  // another array
  EXPECT_EQ(FileOf("a"), "(none)");
  EXPECT_EQ(Records(), 2);
  SaveTo("b", "again");
  EXPECT_EQ(Records(), 1) << "the next save deletes the records of the other two";
  Put("b", {8}, Rows());
  EXPECT_EQ(Records(), 1);
  Reopen();
  EXPECT_EQ(Records(), 0) << "so does a restart";
  EXPECT_EQ(FileOf("b"), "(none)");
}

TEST_F(SavedPlacesTest, OfManyArraysAreInSeveralRecords) {
  std::vector<SavedPlace> places;
  const auto file =
      std::make_shared<const SourceFile>(SourceFile{.path = root_ + "/f",
                                                    .modify_time = absl::InfinitePast(),
                                                    .head_sha256 = std::string(32, 'h'),
                                                    .head_bytes = 0});
  for (int i = 0; i < 20; ++i) {
    const std::string name = StrCat("t", i);
    Put(name, {8}, Rows());
    places.push_back({.array_id = registry_->FindName(name)->array_id,
                      .source = {.file = file, .offset_bytes = 0}});
  }
  int64_t records = 0;
  {
    SavedPlaces saved(registry_.get(), store_.get(), /*max_record_bytes=*/500);
    saved.Remember(places);
    records = Records();
    EXPECT_GT(records, 1);
    saved.Remember(places);
    EXPECT_EQ(Records(), records) << "the new ones only";
  }
  Reopen();
  EXPECT_EQ(Records(), records);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(FileOf(StrCat("t", i)), "f");
}

TEST_F(SavedPlacesTest, ThatAreDamagedAreDeleted) {
  Put("a", {8}, Rows());
  SaveTo("a", "a");
  ASSERT_EQ(Records(), 1);
  const std::string record = store_->List("saved/")->items.front().value;
  EXPECT_THAT(
      CommitAndWait(*store_, {.puts = {{"saved/damaged", "\xff"},
                                       {"saved/cut", record.substr(0, record.size() - 4)}}}),
      IsOk());
  Reopen();
  EXPECT_EQ(Records(), 1);
  EXPECT_EQ(FileOf("a"), "a/model.safetensors");
}

TEST_F(SavedPlacesTest, AreWrittenOnlyByTheCoordinatorOfTheNewestTerm) {
  Put("a", {8}, Rows());
  const std::unique_ptr<ArrayRegistry> next =
      *ArrayRegistry::Open(store_.get(), &clock_, [](const auto&, const auto&) {});
  SaveTo("a", "a");
  EXPECT_EQ(Records(), 0);
}

// Saves arrays of equal bytes with other ids, as results of steps that did not change have them.
class EqualBytesTest : public SavesTest {
 protected:
  // Puts tensors for three files, and saves them as step 1.
  void PutAndSave() {
    for (const char* const name : {"a", "b", "c"}) bytes_[name] = Put(name, kShape, specs_[name]);
    request_ = Request();
    request_.max_file_bytes = kBytes;
    request_.destination.step = 1;
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const SaveResult saved, Save(request_));
    EXPECT_EQ(saved.linked_files, 0);
    request_.destination.step = 2;
  }
  // Puts the tensors again.
  void PutAgain() {
    for (const auto& [name, bytes] : bytes_) PutBytes(name, kShape, specs_[name], bytes);
  }
  void ExpectSaved(const SaveResult& saved) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const Checkpoint checkpoint, Checkpoint::Open(saved.path));
    for (const auto& [name, bytes] : bytes_)
      EXPECT_TRUE(BytesOf(checkpoint, name) == bytes) << name;
    EXPECT_EQ(ExpectPieces(saved.path), 5);
  }
  std::string FileOf(int64_t step, int file) const {
    return StrCat(folder_, "/", StepFolderName(step), "/model-0000", file, "-of-00003.safetensors");
  }

  static constexpr int64_t kBytes = int64_t{3'000} * 1'000;
  const Shape kShape = {3'000, 1'000};
  std::map<std::string, PartitionSpec> specs_ = {
      {"a", Rows()}, {"b", Columns()}, {"c", PartitionSpec()}};
  std::map<std::string, std::string> bytes_;
  SaveRequest request_;
};

TEST_F(EqualBytesTest, AreLinked) {
  PutAndSave();
  PutAgain();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const SaveResult saved, Save(request_));
  EXPECT_EQ(saved.linked_files, 3);
  EXPECT_EQ(saved.written_bytes, 0);
  ExpectSaved(saved);
  EXPECT_TRUE(std::filesystem::equivalent(FileOf(1, 2), FileOf(2, 2)));
}

TEST_F(EqualBytesTest, OfAnotherClusterAreLinked) {
  PutAndSave();
  Saves::Parts parts = Parts();
  parts.cluster_id = "another";
  saves_ = std::make_unique<Saves>(std::move(parts));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const SaveResult saved, Save(request_));
  EXPECT_EQ(saved.linked_files, 3);
  EXPECT_EQ(saved.written_bytes, 0);
  ExpectSaved(saved);
}

TEST_F(EqualBytesTest, AreLinkedBetweenCutsByRowsOnly) {
  PutAndSave();
  specs_["a"] = PartitionSpec();
  specs_["b"] = Rows();  // was cut by columns
  specs_["c"] = Rows();
  PutAgain();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const SaveResult saved, Save(request_));
  EXPECT_EQ(saved.linked_files, 2);
  EXPECT_EQ(saved.written_bytes, kBytes);
  ExpectSaved(saved);
  EXPECT_FALSE(std::filesystem::equivalent(FileOf(1, 2), FileOf(2, 2)));
}

TEST_F(EqualBytesTest, AFileWithOneOtherByteIsWritten) {
  PutAndSave();
  bytes_["b"].back() = static_cast<char>(bytes_["b"].back() ^ 1);
  PutAgain();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const SaveResult saved, Save(request_));
  EXPECT_EQ(saved.linked_files, 2);
  EXPECT_EQ(saved.written_bytes, kBytes);
  ExpectSaved(saved);
}

// Equal checksums of other bytes: here the bytes changed after the save listed the checksums.
TEST_F(EqualBytesTest, AreNotTakenForEqualByTheirChecksums) {
  PutAndSave();
  for (int file = 1; file <= 3; ++file) {
    std::fstream stream(FileOf(1, file), std::ios::in | std::ios::out | std::ios::binary);
    // In the last row: in the part of the second worker.
    stream.seekg(-500, std::ios::end);
    const int byte = stream.get();
    stream.seekp(-500, std::ios::end);
    stream.put(static_cast<char>(byte ^ 1));
  }
  PutAgain();
  int compared = 0;
  absl::Mutex mutex;
  workers_.on_order_ = [&](const std::string&, const internal::v1::SaveOrder& order) {
    absl::MutexLock lock(&mutex);
    compared += order.has_compare() ? 1 : 0;
  };
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const SaveResult saved, Save(request_));
  workers_.on_order_ = nullptr;
  EXPECT_EQ(compared, 2);  // each worker has one order
  EXPECT_EQ(saved.linked_files, 0);
  EXPECT_EQ(saved.written_bytes, 3 * kBytes);
  ExpectSaved(saved);
}

TEST_F(EqualBytesTest, AreWrittenIfAWorkerCannotCompareThem) {
  PutAndSave();
  PutAgain();
  workers_.old_build_ = "w-1";
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const SaveResult saved, Save(request_));
  EXPECT_EQ(saved.linked_files, 0);
  EXPECT_EQ(saved.written_bytes, 3 * kBytes);
  ExpectSaved(saved);
}

TEST_F(EqualBytesTest, ASaveThatIsCancelledWhileItComparesLeavesTheOldCheckpointAlone) {
  PutAndSave();
  PutAgain();
  std::string operation_id;
  absl::Notification begun;
  workers_.on_order_ = [&](const std::string&, const internal::v1::SaveOrder& order) {
    if (!order.has_compare()) return;
    begun.WaitForNotification();
    operations_->Cancel(operation_id, session_.id).IgnoreError();
  };
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunSave save, saves_->Begin(request_));
  operation_id = save.operation_id;
  begun.Notify();
  EXPECT_THAT(Await(operation_id), StatusIs(absl::StatusCode::kCancelled));
  workers_.on_order_ = nullptr;
  EXPECT_FALSE(std::filesystem::exists(FileOf(2, 1)));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const SaveResult saved, Save(request_));
  EXPECT_EQ(saved.linked_files, 3);
  ExpectSaved(saved);
}

TEST_F(SavesTest, SavesNamesAtOneRevisionWhilePutsGoOn) {
  const std::string a = Put("a", {6 << 20}, Rows());
  const std::string b = Put("b", {1000, 500}, Columns());
  bool has_changed = false;
  workers_.on_order_ = [&](const std::string&, const internal::v1::SaveOrder& order) {
    if (!order.has_tiles() || std::exchange(has_changed, true)) return;
    Put("a", {6 << 20}, Rows());
    Put("b", {2}, PartitionSpec());
    Put("c", {2}, PartitionSpec());
  };
  EXPECT_THAT(Save(Request()), IsOk());
  ASSERT_TRUE(has_changed);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Checkpoint checkpoint, Checkpoint::Open(folder_));
  EXPECT_EQ(checkpoint.tensors().size(), 2);
  EXPECT_EQ(BytesOf(checkpoint, "a"), a);
  EXPECT_EQ(BytesOf(checkpoint, "b"), b);
}

TEST_F(SavesTest, UnpinsTheArraysWhenItEnds) {
  Put("a", {16}, Rows());
  const std::string former = registry_->FindName("a")->array_id;
  EXPECT_THAT(Save(Request()), IsOk());
  Put("a", {16}, Rows());
  EXPECT_THAT(registry_->FindArray(former), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(SavesTest, ACancelledSaveLeavesNothing) {
  Put("a", {1 << 20}, Rows());
  for (const auto phase : {internal::v1::SaveOrder::kOpen, internal::v1::SaveOrder::kCheck,
                           internal::v1::SaveOrder::kMake, internal::v1::SaveOrder::kText,
                           internal::v1::SaveOrder::kTiles}) {
    std::string operation_id;
    absl::Notification begun;
    workers_.on_order_ = [&](const std::string&, const internal::v1::SaveOrder& order) {
      if (order.action_case() != phase) return;
      begun.WaitForNotification();
      EXPECT_THAT(operations_->Cancel(operation_id, session_.id), IsOk());
    };
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunSave save, saves_->Begin(Request()));
    operation_id = save.operation_id;
    begun.Notify();
    EXPECT_THAT(Await(operation_id), StatusIs(absl::StatusCode::kCancelled)) << phase;
    EXPECT_FALSE(std::filesystem::exists(folder_)) << phase;
  }
}

// A save that keeps what it wrote, however little.
class KeptSavesTest : public SavesTest {
 protected:
  KeptSavesTest() {
    Saves::Parts parts = Parts();
    parts.min_kept_bytes = 1;
    saves_ = std::make_unique<Saves>(std::move(parts));
  }
  // Lets a lost worker come back, when it has left the folder.
  void Reattach(const std::string& identity) {
    const absl::Time end = absl::Now() + absl::Minutes(1);
    while (std::filesystem::exists(StrCat(folder_, "/", kSaveLock)) && absl::Now() < end) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    workers_.Reattach(identity);
  }
};

TEST_F(KeptSavesTest, ACancelledSaveIsContinuedAndWritesNothingTwice) {
  std::map<std::string, std::string> put;
  for (const char* const name : {"a", "b", "c"}) put[name] = Put(name, {1 << 20}, Rows());
  put["d"] = Put("d", {3, 1000}, Columns());
  SaveRequest request = Request();
  request.max_file_bytes = 1 << 20;
  std::string operation_id;
  absl::Notification begun;
  // The index is written after all tiles.
  workers_.on_order_ = [&](const std::string&, const internal::v1::SaveOrder& order) {
    if (!order.has_text() || order.text().name() != kCheckpointIndex) return;
    begun.WaitForNotification();
    EXPECT_THAT(operations_->Cancel(operation_id, session_.id), IsOk());
  };
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunSave save, saves_->Begin(request));
  operation_id = save.operation_id;
  begun.Notify();
  EXPECT_THAT(Await(operation_id), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_FALSE(FindCheckpointFolder(folder_).ok());
  workers_.on_order_ = nullptr;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const SaveResult saved, Save(request));
  EXPECT_TRUE(saved.took_over);
  EXPECT_EQ(saved.written_bytes, 0);
  EXPECT_EQ(saved.found_bytes, saved.size_bytes);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Checkpoint checkpoint, Checkpoint::Open(folder_));
  for (const auto& [name, bytes] : put) EXPECT_EQ(BytesOf(checkpoint, name), bytes);
  EXPECT_FALSE(std::filesystem::exists(StrCat(folder_, "/", kSaveStaging)));
}

TEST_F(KeptSavesTest, TheTilesOfALostWorkerAreWrittenAndThoseOfTheOthersFound) {
  // The orders to the leader, and its answers, which may come late.
  struct Counts {
    absl::Mutex mutex;
    int orders = 0;
    int answers = 0;
  };
  const auto counts = std::make_shared<Counts>();
  workers_.on_answered_ = [counts](const std::string& identity) {
    absl::MutexLock lock(&counts->mutex);
    if (identity == "w-0") ++counts->answers;
  };
  // The leader, which holds the lock, is lost when all tiles are written; the other worker before
  // it writes its own.
  for (const std::string lost : {"w-1", "w-0"}) {
    const std::string rows = Put("rows", {1 << 20}, Rows());
    const std::string columns = Put("columns", {100, 64}, Columns());
    workers_.on_order_ = [&](const std::string& identity, const internal::v1::SaveOrder& order) {
      if (order.has_publish() && lost == "w-0") workers_.Lose("w-0");
      absl::MutexLock lock(&counts->mutex);
      if (identity == "w-0") ++counts->orders;
      // The order to w-0 comes first.
      if (!order.has_tiles() || identity != "w-1" || lost != "w-1") return;
      const auto has_written = [&] { return counts->answers == counts->orders; };
      counts->mutex.Await(absl::Condition(&has_written));
      workers_.Lose("w-1");
    };
    const absl::Status ended = Save(Request()).status();
    EXPECT_THAT(ended, StatusIs(absl::StatusCode::kUnavailable, Reason::kWorkerLost)) << lost;
    EXPECT_FALSE(FindCheckpointFolder(folder_).ok()) << lost;
    workers_.on_order_ = nullptr;
    Reattach(lost);
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const SaveResult saved, Save(Request()));
    EXPECT_EQ(saved.found_bytes + saved.written_bytes, saved.size_bytes) << lost;
    EXPECT_EQ(saved.found_bytes, lost == "w-1" ? saved.size_bytes / 2 : saved.size_bytes) << lost;
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const Checkpoint checkpoint, Checkpoint::Open(folder_));
    EXPECT_EQ(BytesOf(checkpoint, "rows"), rows) << lost;
    EXPECT_EQ(BytesOf(checkpoint, "columns"), columns) << lost;
    std::filesystem::remove_all(folder_);
  }
}

TEST_F(KeptSavesTest, ArraysThatWerePutMeanwhileAreWritten) {
  Put("a", {1 << 20}, Rows());
  Put("b", {1 << 20}, Rows());
  SaveRequest request = Request();
  request.max_file_bytes = 1 << 20;
  workers_.on_order_ = [&](const std::string& identity, const internal::v1::SaveOrder& order) {
    if (order.has_publish()) workers_.Lose(identity);
  };
  EXPECT_THAT(Save(request), StatusIs(absl::StatusCode::kUnavailable, Reason::kWorkerLost));
  workers_.on_order_ = nullptr;
  Reattach("w-0");
  const std::string b = Put("b", {1 << 20}, Rows());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const SaveResult saved, Save(request));
  EXPECT_EQ(saved.found_bytes, 1 << 20);
  EXPECT_EQ(saved.written_bytes, 1 << 20);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Checkpoint checkpoint, Checkpoint::Open(folder_));
  EXPECT_EQ(BytesOf(checkpoint, "b"), b);
}

TEST_F(KeptSavesTest, TheChecksumsOfPiecesOfFoundTilesAreListed) {
  Put("rows", {3000, 1000}, Rows());
  Put("columns", {3000, 1000}, Columns());
  workers_.on_order_ = [&](const std::string& identity, const internal::v1::SaveOrder& order) {
    if (order.has_publish()) workers_.Lose(identity);
  };
  EXPECT_THAT(Save(Request()), StatusIs(absl::StatusCode::kUnavailable, Reason::kWorkerLost));
  workers_.on_order_ = nullptr;
  Reattach("w-0");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const SaveResult saved, Save(Request()));
  EXPECT_EQ(saved.found_bytes, saved.size_bytes);
  EXPECT_EQ(ExpectPieces(folder_), 4);
}

// A page cache may show what a disk has not taken.
TEST_F(KeptSavesTest, NothingIsKeptAfterAnErrorOfADisk) {
  const std::string a = Put("a", {1 << 20}, Rows());
  bool is_armed = false;
  absl::Mutex mutex;
  workers_.on_order_ = [&](const std::string&, const internal::v1::SaveOrder& order) {
    absl::MutexLock lock(&mutex);
    if (!order.has_tiles() || std::exchange(is_armed, true)) return;
    EXPECT_THAT(ArmFailpoints("save.sync=eio"), IsOk());
  };
  EXPECT_THAT(Save(Request()), StatusIs(absl::StatusCode::kDataLoss));
  workers_.on_order_ = nullptr;
  ASSERT_THAT(ArmFailpoints(""), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const SaveResult saved, Save(Request()));
  EXPECT_FALSE(saved.took_over);
  EXPECT_EQ(saved.found_bytes, 0);
  EXPECT_EQ(saved.written_bytes, saved.size_bytes);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Checkpoint checkpoint, Checkpoint::Open(folder_));
  EXPECT_EQ(BytesOf(checkpoint, "a"), a);
}

TEST_F(SavesTest, AValidationAsksEachWorkerAndCreatesNothing) {
  Put("a", {16}, Rows());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunSave checked, saves_->Check(Request()));
  EXPECT_EQ(checked.operation_id, "");
  EXPECT_EQ(checked.tensors, 1);
  EXPECT_FALSE(std::filesystem::exists(folder_));
  const std::string elsewhere = root_ + "/elsewhere";
  std::filesystem::create_directories(elsewhere);
  workers_.SetRoot("w-1", elsewhere);
  const auto refusals = [this](const SaveRequest& request) {
    const absl::Status checking = saves_->Check(request).status();
    const absl::Status saving = Save(request).status();
    EXPECT_EQ(checking.message(), saving.message());
    EXPECT_EQ(ReasonOf(checking), ReasonOf(saving));
    return checking;
  };
  const absl::Status unseen = refusals(Request());
  EXPECT_THAT(unseen, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  EXPECT_THAT(unseen.message(), AllOf(HasSubstr("1 of 2 workers"), HasSubstr("\"w-1\"")));
  workers_.SetRoot("w-0", elsewhere);
  EXPECT_THAT(refusals(Request()), StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  for (const char* const identity : {"w-0", "w-1"}) workers_.SetRoot(identity, root_);
  EXPECT_THAT(Save(Request()), IsOk());
  EXPECT_THAT(refusals(Request()),
              StatusIs(absl::StatusCode::kAlreadyExists, Reason::kAlreadyExists));
  workers_.on_order_ = [&](const std::string& identity, const internal::v1::SaveOrder& order) {
    if (order.has_validate() && identity == "w-1") workers_.Lose("w-1");
  };
  SaveRequest request = Request();
  request.destination.overwrite = true;
  EXPECT_THAT(saves_->Check(request),
              StatusIs(absl::StatusCode::kUnavailable, Reason::kWorkerLost));
}

TEST_F(SavesTest, ACoordinatorThatStopsEndsItsValidations) {
  Put("a", {16}, Rows());
  workers_.on_order_ = [&](const std::string&, const internal::v1::SaveOrder& order) {
    if (order.has_validate()) saves_->Stop(absl::UnavailableError("the coordinator is stopping"));
  };
  EXPECT_THAT(saves_->Check(Request()), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(saves_->Check(Request()), StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(SavesTest, ACheckSaysForWhichWorkersItWaitsAndEndsAtOnceWhenItIsCancelled) {
  // Worker w-1 answers no order.
  class HalfSilent final : public SaveAccess {
   public:
    explicit HalfSilent(LocalWorkers* workers) : workers_(workers) {}
    void OrderSave(const std::string& identity, const internal::v1::SaveOrder& order,
                   SaveProgressed progressed, SaveAnswered answered) override {
      if (identity != "w-1") {
        return workers_->OrderSave(identity, order, std::move(progressed), std::move(answered));
      }
      kept_.push_back(std::move(answered));
      if (!order.has_end()) asked_.Notify();
    }
    absl::Notification asked_;

   private:
    LocalWorkers* const workers_;
    std::vector<SaveAnswered> kept_;  // only the thread of the check uses it
  } access(&workers_);
  Put("a", {16}, Rows());
  Saves::Parts parts = Parts();
  parts.access = &access;
  Saves saves(parts);
  SaveCheck check;
  EXPECT_THAT(check.Workers().taking_part, IsEmpty());
  absl::Status ended;
  std::thread thread([&] { ended = saves.Check(Request(), &check).status(); });
  access.asked_.WaitForNotification();
  EXPECT_THAT(check.Workers().waiting_for, ElementsAre("w-1"));
  EXPECT_THAT(check.Workers().taking_part, ElementsAre("w-0", "w-1"));
  const absl::Time cancelled = absl::Now();
  check.Cancel(absl::DeadlineExceededError("it takes too long"));
  thread.join();
  EXPECT_THAT(ended, StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_LT(absl::Now() - cancelled, absl::Seconds(5)) << "it waits for the silent worker";
  EXPECT_THAT(check.Workers().taking_part, IsEmpty());

  SaveCheck over;
  over.Cancel(absl::DeadlineExceededError("it waited too long for a thread"));
  EXPECT_THAT(saves.Check(Request(), &over), StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST_F(SavesTest, NamesAWorkerThatDoesNotAnswer) {
  class Silent final : public SaveAccess {
    void OrderSave(const std::string&, const internal::v1::SaveOrder& order, SaveProgressed,
                   SaveAnswered answered) override {
      if (order.has_end()) std::move(answered)(internal::v1::SaveAnswer());
    }
  } silent;
  Put("a", {2}, Rows());
  const ArrayPtr array = *registry_->FindArray(registry_->FindName("a")->array_id);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      SavePlan plan,
      PlanSave({{.name = "a",
                 .array = array,
                 .parts = {{.tile = Tile::Whole({2}), .identities = {"w-old"}, .crc32c = 0}}}},
               {.max_file_bytes = 1 << 20, .single_file = false, .cluster_id = "c"}));
  SaveRun run({.save_id = "s",
               .plan = std::move(plan),
               .destination = {.folder = folder_},
               .description = {},
               .one_host = true,
               .access = &silent,
               .total = nullptr,
               .progress = nullptr,
               .open_timeout = absl::Milliseconds(20)});
  const absl::Status late = run.Run().status();
  EXPECT_THAT(late, StatusIs(absl::StatusCode::kDeadlineExceeded, Reason::kDeadline));
  EXPECT_THAT(late.message(), HasSubstr("w-old"));
}

TEST_F(SavesTest, ALostWorkerFailsTheSaveWithItsName) {
  Put("a", {1 << 20}, Rows());
  workers_.on_order_ = [&](const std::string& identity, const internal::v1::SaveOrder& order) {
    if (order.has_tiles() && identity == "w-1") workers_.Lose("w-1");
  };
  const absl::Status lost = Save(Request()).status();
  EXPECT_THAT(lost, StatusIs(absl::StatusCode::kUnavailable, Reason::kWorkerLost));
  EXPECT_THAT(lost.message(), HasSubstr("w-1"));
  EXPECT_FALSE(std::filesystem::exists(folder_));
}

TEST_F(SavesTest, LooksOnceForAdviceHoweverManyWorkersAreLost) {
  class Leader final : public SaveAccess {
    void OrderSave(const std::string& identity, const internal::v1::SaveOrder&, SaveProgressed,
                   SaveAnswered answered) override {
      if (identity == "w-0") return std::move(answered)(internal::v1::SaveAnswer());
      std::move(answered)(NotAttached(identity));
    }
  } leader;
  Put("a", {6}, Rows());
  const ArrayPtr array = *registry_->FindArray(registry_->FindName("a")->array_id);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      SavePlan plan,
      PlanSave({{.name = "a",
                 .array = array,
                 .parts = {{.tile = {{{0, 2}}}, .identities = {"w-0"}, .crc32c = 0},
                           {.tile = {{{2, 4}}}, .identities = {"w-1"}, .crc32c = 0},
                           {.tile = {{{4, 6}}}, .identities = {"w-2"}, .crc32c = 0}}}},
               {.max_file_bytes = 1 << 20, .single_file = false, .cluster_id = "c"}));
  std::vector<std::string> asked;
  SaveRun run({.save_id = "s",
               .plan = std::move(plan),
               .destination = {.folder = folder_},
               .description = {},
               .one_host = true,
               .access = &leader,
               .total = nullptr,
               .progress = nullptr,
               .advise_on_lost = [&asked](const SavePlan&, const std::string& identity) {
                 asked.push_back(identity);
                 return std::string("do this");
               }});
  const absl::Status lost = run.Validate();
  EXPECT_THAT(lost, StatusIs(absl::StatusCode::kUnavailable, Reason::kWorkerLost));
  EXPECT_THAT(lost.message(), HasSubstr("worker \"w-1\" was lost during the save; do this"));
  EXPECT_THAT(asked, ElementsAre("w-1"));
}

// The advice depends on the other places of the lost worker's tiles.
class LostWorkerTest : public SavesTest {
 protected:
  // Returns the error of a save during which w-1 is lost.
  std::string LoseWhileSaving(const SaveRequest& request) {
    workers_.on_order_ = [&](const std::string& identity, const internal::v1::SaveOrder& order) {
      if (order.has_tiles() && identity == "w-1") workers_.Lose("w-1");
    };
    const absl::Status lost = Save(request).status();
    EXPECT_THAT(lost, StatusIs(absl::StatusCode::kUnavailable, Reason::kWorkerLost));
    return std::string(lost.message());
  }
};

TEST_F(LostWorkerTest, TilesThatWereInItsMemoryOnlyMustBeLoadedAgain) {
  for (const char* const name : {"m/a", "m/b", "m/c", "m/d"}) Put(name, {1 << 20}, Rows());
  SaveRequest request = Request("m/");
  request.strip_prefix = true;
  EXPECT_THAT(LoseWhileSaving(request),
              HasSubstr("worker \"w-1\" was lost during the save; load or compute \"m/a\", "
                        "\"m/b\", \"m/c\" and 1 more again, of which tiles were only in its "
                        "memory; then save again"));
}

TEST_F(LostWorkerTest, TilesThatOtherWorkersHaveAreSavedFromThere) {
  Put("w", {1 << 22}, PartitionSpec());  // whole on both, which write a half each
  EXPECT_THAT(LoseWhileSaving(Request()),
              HasSubstr("was lost during the save; save again: other workers have its tiles"));
}

TEST_F(LostWorkerTest, TilesOfACheckpointAreReadAgain) {
  Put("w", {1 << 20}, Rows());
  registry_->SetCheckpoint(registry_->FindName("w")->array_id,
                           {.file = std::make_shared<const SourceFile>()});
  EXPECT_THAT(LoseWhileSaving(Request()),
              AllOf(HasSubstr("wait until the tiles of 1 tensor are read again from a file or a "
                              "checkpoint"),
                    HasSubstr("; then save again"), Not(HasSubstr("compute"))));
}

TEST_F(LostWorkerTest, WithoutRepairsTilesOfACheckpointMustBeLoadedAgain) {
  Saves::Parts parts = Parts();
  parts.has_repairs = false;
  saves_ = std::make_unique<Saves>(parts);
  Put("w", {1 << 20}, Rows());
  registry_->SetCheckpoint(registry_->FindName("w")->array_id,
                           {.file = std::make_shared<const SourceFile>()});
  EXPECT_THAT(LoseWhileSaving(Request()),
              AllOf(HasSubstr("load \"w\" again from the file or checkpoint: the coordinator runs "
                              "with --no-repair"),
                    HasSubstr("; then save again"), Not(HasSubstr("wait until"))));
}

TEST_F(LostWorkerTest, TilesOnItsDiskComeBackWithIt) {
  Put("w", {1 << 20}, Rows());
  recovery_.Lost("w-1");  // called only for workers that keep their tiles on disk
  EXPECT_THAT(LoseWhileSaving(Request()),
              HasSubstr("was lost during the save; start it again: the tiles of 1 tensor are on "
                        "its disk; then save again"));
}

TEST_F(SavesTest, NamesTheWorkersThatDoNotSeeTheFolder) {
  Put("a", {16}, Rows());
  const std::string elsewhere = root_ + "/elsewhere";
  std::filesystem::create_directories(elsewhere);
  workers_.SetRoot("w-1", elsewhere);
  const absl::Status unseen = Save(Request()).status();
  EXPECT_THAT(unseen, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  EXPECT_THAT(unseen.message(), AllOf(HasSubstr("\"w-1\""), HasSubstr(elsewhere)));
  EXPECT_FALSE(std::filesystem::exists(folder_));
}

TEST_F(SavesTest, RefusesASecondSaveIntoTheSameFolder) {
  Put("a", {16}, Rows());
  absl::Notification first_makes;  // from then on it has the lock
  absl::Notification second_ended;
  workers_.on_order_ = [&](const std::string&, const internal::v1::SaveOrder& order) {
    if (order.has_make() && !first_makes.HasBeenNotified()) {
      first_makes.Notify();
      second_ended.WaitForNotification();
    }
  };
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunSave first, saves_->Begin(Request()));
  first_makes.WaitForNotification();
  const absl::Status second = Save(Request()).status();
  EXPECT_THAT(second, StatusIs(absl::StatusCode::kAlreadyExists, Reason::kAlreadyExists));
  second_ended.Notify();
  EXPECT_THAT(Await(first.operation_id), IsOk());
}

TEST_F(SavesTest, FindsATileWhoseMemoryHasChanged) {
  Put("a", {64}, Rows());
  // The registry's checksum is that of the commit; this array claims another one.
  const ArrayPtr array = *registry_->FindArray(registry_->FindName("a")->array_id);
  auto changed = std::make_shared<Array>(*array);
  changed->tile_crc32c[1] ^= 1;
  SaveDescription description{.cluster_id = "c", .prefix = "", .revision = 1, .step = {}};
  TensorToSave tensor{.name = "a", .array = changed, .parts = {}};
  const Tiling tiling = *array->definition.descriptor.Tiling();
  for (DeviceId device = 0; device < 2; ++device) {
    tensor.parts.push_back({.tile = tiling.TileOf(device),
                            .identities = {StrCat("w-", device)},
                            .crc32c = changed->tile_crc32c[static_cast<size_t>(device)]});
  }
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      SavePlan plan,
      PlanSave({tensor}, {.max_file_bytes = 1 << 20, .single_file = false, .cluster_id = "c"}));
  SaveRun run({.save_id = "s",
               .plan = std::move(plan),
               .destination = {.folder = folder_},
               .description = description,
               .one_host = true,
               .access = &workers_,
               .total = nullptr,
               .progress = nullptr});
  const absl::Status found = run.Run().status();
  EXPECT_THAT(found, StatusIs(absl::StatusCode::kDataLoss, Reason::kChecksumMismatch));
  EXPECT_THAT(found.message(), HasSubstr("w-1"));
  EXPECT_FALSE(std::filesystem::exists(folder_));
}

TEST_F(SavesTest, RefusesPartialSums) {
  Put("a", {16}, PartitionSpec({}, {"x"}));
  const absl::Status refused = saves_->Begin(Request()).status();
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  EXPECT_THAT(refused.message(),
              HasSubstr("\"a\" holds partial sums along x; save by a prefix that "
                        "leaves it out, or reduce it first: `shardmesh collective all-reduce a "
                        "--axes x --as NAME`"));
}

TEST_F(SavesTest, NamesTheTilesThatADegradedArrayLacks) {
  Put("a", {16}, Rows());
  Put("replicated", {16}, PartitionSpec());
  registry_->TilesLost("m", 1, 1'000);
  const absl::Status degraded = saves_->Begin(Request("a")).status();
  EXPECT_THAT(degraded, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kArrayDegraded));
  EXPECT_THAT(degraded.message(), AllOf(HasSubstr("\"a\""), HasSubstr("rank 1")));
  EXPECT_THAT(Save(Request("repl")), IsOk());  // the other replica is enough
}

TEST_F(SavesTest, RefusesRequestsThatAreWrong) {
  Put("a", {16}, Rows());
  const auto refused = [&](const std::function<void(SaveRequest*)>& change) {
    SaveRequest request = Request();
    change(&request);
    EXPECT_FALSE(saves_->Check(request).ok());
    return saves_->Begin(request).status();
  };
  const auto bad_field = StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField);
  EXPECT_THAT(refused([](SaveRequest* r) { r->destination.folder = "relative"; }), bad_field);
  EXPECT_THAT(refused([](SaveRequest* r) { r->destination.folder = ""; }), bad_field);
  EXPECT_THAT(refused([](SaveRequest* r) { r->destination.step = -1; }), bad_field);
  EXPECT_THAT(refused([](SaveRequest* r) { r->destination.step = 100'000'000; }), bad_field);
  EXPECT_THAT(refused([](SaveRequest* r) { r->destination.keep = 1; }), bad_field);
  EXPECT_THAT(refused([](SaveRequest* r) { r->max_file_bytes = 10; }), bad_field);
  EXPECT_THAT(refused([](SaveRequest* r) {
                r->prefix = "a";
                r->strip_prefix = true;
              }),
              bad_field);
  EXPECT_THAT(refused([](SaveRequest* r) { r->prefix = "nothing"; }),
              StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
}

TEST_F(SavesTest, ARepeatedRequestGetsTheSameSave) {
  Put("a", {16}, Rows());
  SaveRequest request = Request();
  request.request_key = "key";
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunSave first, saves_->Begin(request));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunSave again, saves_->Begin(request));
  EXPECT_EQ(first.operation_id, again.operation_id);
  EXPECT_THAT(Await(first.operation_id), IsOk());
  request.single_file = true;
  EXPECT_THAT(saves_->Begin(request),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kRequestIdReused));
}

TEST_F(SavesTest, NoMoreSavesRunThanThereMayBe) {
  Put("a", {16}, Rows());
  absl::Notification go_on;
  workers_.on_order_ = [&](const std::string&, const internal::v1::SaveOrder& order) {
    if (order.has_open()) go_on.WaitForNotification();
  };
  std::vector<std::string> begun;
  for (size_t i = 0; i < Saves::kMaxRunning; ++i) {
    SaveRequest request = Request();
    request.destination.folder = StrCat(folder_, i);
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunSave save, saves_->Begin(request));
    begun.push_back(save.operation_id);
  }
  EXPECT_THAT(saves_->Begin(Request()),
              StatusIs(absl::StatusCode::kResourceExhausted, Reason::kOverloaded));
  go_on.Notify();
  for (const std::string& id : begun) EXPECT_THAT(Await(id), IsOk());
  EXPECT_THAT(Save(Request()), IsOk());
}

TEST_F(SavesTest, TheEndOfItsSessionCancelsIt) {
  Put("a", {16}, Rows());
  std::string operation_id;
  absl::Notification begun;
  workers_.on_order_ = [&](const std::string&, const internal::v1::SaveOrder& order) {
    if (!order.has_make()) return;
    begun.WaitForNotification();
    EXPECT_THAT(operations_->CancelFor(operation_id, absl::CancelledError("its session ended")),
                IsOk());
  };
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunSave save, saves_->Begin(Request()));
  operation_id = save.operation_id;
  begun.Notify();
  const absl::Status ended = Await(operation_id).status();
  EXPECT_THAT(ended, StatusIs(absl::StatusCode::kCancelled));
  EXPECT_THAT(ended.message(), HasSubstr("its session ended"));
}

TEST_F(SavesTest, ADetachedSaveGoesOnWhenItsSessionEnds) {
  const std::string a = Put("a", {16}, Rows());
  for (const bool is_detached : {false, true}) {
    session_ = *sessions_.Open({.name = "host:a"}, "", absl::Hours(1));
    absl::Notification closed;
    workers_.on_order_ = [&](const std::string&, const internal::v1::SaveOrder& order) {
      if (order.has_make()) closed.WaitForNotification();
    };
    SaveRequest request = Request();
    request.is_detached = is_detached;
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunSave begun, saves_->Begin(request));
    EXPECT_EQ(begun.is_detached, is_detached);
    EXPECT_THAT(sessions_.Close(session_.id), IsOk());
    closed.Notify();
    const absl::StatusOr<SaveResult> saved = Await(begun.operation_id);
    workers_.on_order_ = nullptr;
    if (!is_detached) {
      EXPECT_THAT(saved, StatusIs(absl::StatusCode::kCancelled));
      continue;
    }
    EXPECT_THAT(saved, IsOk());
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const Checkpoint checkpoint, Checkpoint::Open(folder_));
    EXPECT_EQ(BytesOf(checkpoint, "a"), a);
  }
  const std::string former = registry_->FindName("a")->array_id;
  Put("a", {16}, Rows());
  EXPECT_THAT(registry_->FindArray(former), StatusIs(absl::StatusCode::kNotFound))
      << "a pin is left";
}

TEST_F(SavesTest, ADetachedSaveIsCancelledByOthersAndByACoordinatorThatStops) {
  Put("a", {1 << 20}, Rows());
  SaveRequest request = Request();
  request.is_detached = true;
  for (const bool is_stopped : {false, true}) {
    std::string operation_id;
    absl::Notification begun;
    workers_.on_order_ = [&](const std::string&, const internal::v1::SaveOrder& order) {
      if (!order.has_tiles()) return;
      begun.WaitForNotification();
      if (is_stopped) {
        saves_->Stop(absl::CancelledError("the coordinator is stopping"));
      } else {
        EXPECT_THAT(operations_->CancelFor(operation_id, absl::CancelledError("by another")),
                    IsOk());
      }
    };
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunSave save, saves_->Begin(request));
    operation_id = save.operation_id;
    begun.Notify();
    EXPECT_THAT(Await(operation_id), StatusIs(absl::StatusCode::kCancelled));
    EXPECT_FALSE(std::filesystem::exists(folder_));
  }
}

TEST_F(SavesTest, ACoordinatorThatStopsEndsItsSaves) {
  Put("a", {16}, Rows());
  workers_.on_order_ = [&](const std::string&, const internal::v1::SaveOrder& order) {
    if (order.has_make()) saves_->Stop(absl::UnavailableError("the coordinator is stopping"));
  };
  EXPECT_THAT(Save(Request()), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_FALSE(std::filesystem::exists(folder_));
  EXPECT_THAT(saves_->Begin(Request()), StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(SavesTest, ReportsItsProgressAsAnOperation) {
  Put("a", {1 << 20}, Rows());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunSave save, saves_->Begin(Request()));
  EXPECT_THAT(Await(save.operation_id), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const OperationProgress progress,
                                 operations_->Progress(save.operation_id));
  EXPECT_EQ(progress.kind, OperationKind::kSave);
  EXPECT_EQ(progress.total_bytes, 1 << 20);
  EXPECT_EQ(progress.done_bytes, 1 << 20);
  EXPECT_EQ(progress.done, 2);
  EXPECT_THAT(progress.description, HasSubstr(folder_));
}

}  // namespace
}  // namespace shardmesh::server
