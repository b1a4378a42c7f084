// Workers of one process that fill tiles from files and from one another.
#include "worker/fill/fill_threads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "process/clock.h"
#include "process/crc32c.h"
#include "process/failpoint.h"
#include "process/pages.h"
#include "rpc/call.h"
#include "rpc/codec/array_codec.h"
#include "rpc/server_lifecycle.h"
#include "rpc/transfer_token.h"
#include "sharding/reshard/plan.h"
#include "shardmesh/v1/tile_service.grpc.pb.h"
#include "status/detail.h"
#include "status/str_cat.h"
#include "tensor/buffer.h"
#include "tensor/checkpoint_folder.h"
#include "tensor/checkpoint_manifest.h"
#include "tests/testing/eventually.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/worker/collective/random_layouts.h"
#include "tests/unit/worker/fill/source_files.h"
#include "worker/service/tile_service.h"
#include "worker/shm/shm_arena.h"

namespace shardmesh::worker {
namespace {

using ::shardmesh::test::CarriesFacts;
using ::shardmesh::test::Eventually;
using ::shardmesh::test::IsOk;
using ::shardmesh::test::PlainTile;
using ::shardmesh::test::RandomText;
using ::shardmesh::test::SourceFolder;
using ::shardmesh::test::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int64_t kTermNow = 5;
const std::string kTokenKey(rpc::kTokenKeyBytes, 'k');

int64_t Between(std::mt19937& random, int64_t least, int64_t most) {
  return std::uniform_int_distribution<int64_t>(least, most)(random);
}

// A worker: its store and gate, the service from which others read, and its filler.
class FillNode {
 public:
  FillNode(std::string identity, const ReadRoots* roots, absl::Duration idle_limit)
      : identity_(std::move(identity)) {
    store_ = *ShardStore::Open({.pool = pool_, .data_dir = ""});
    gate_ =
        std::make_unique<TileGate>(TileGate::Options{.identity = identity_,
                                                     .store = store_.get(),
                                                     .clock = &clock_,
                                                     .staged = [this](const TileReport& report) {
                                                       absl::MutexLock lock(&mutex_);
                                                       reports_.push_back(report);
                                                     }});
    service_ = MakeTileService({.self = {.identity = identity_, .incarnation = 7, .boot_id = ""},
                                .nonce = "0123456789abcdef",
                                .store = store_.get(),
                                .gate = gate_.get(),
                                .work = &work_,
                                .membership_waits = &work_,
                                .clock = &clock_});
    server_ = *rpc::ServerLifecycle::Start(
        {.max_message_bytes = rpc::kMaxDataMessageBytes, .on_drain = nullptr, .customize = nullptr},
        {{v1::TileService::service_full_name(), service_.get()}});
    filler_ = MakeTileFiller({.identity = identity_,
                              .store = store_.get(),
                              .gate = gate_.get(),
                              .roots = roots,
                              .free_memory =
                                  [this](const absl::Status& refused, int64_t size_bytes) {
                                    return free_memory && free_memory(refused, size_bytes);
                                  },
                              .membership_wait_limit = absl::Milliseconds(300),
                              .idle_limit = idle_limit});
  }
  ~FillNode() {
    filler_->Stop();
    StopServing();
  }

  const std::string& identity() const { return identity_; }
  const std::string& address() const { return server_->address(); }
  ShardStore& store() { return *store_; }
  TileGate& gate() { return *gate_; }
  TileFiller& filler() { return *filler_; }
  BufferPool& pool() { return *pool_; }
  // See FillOptions. Constant while tiles are filled.
  std::function<bool(const absl::Status& refused, int64_t size_bytes)> free_memory;
  void StopServing() { server_->Drain(absl::Now() + absl::Seconds(1)); }

  void Fill(FillOrder order) {
    filler_->Fill(std::move(order), [this](const FillFailure& failure) {
      absl::MutexLock lock(&mutex_);
      failures_.push_back(failure);
    });
  }
  std::vector<TileReport> reports() const {
    absl::MutexLock lock(&mutex_);
    return reports_;
  }
  std::vector<FillFailure> failures() const {
    absl::MutexLock lock(&mutex_);
    return failures_;
  }
  // Waits for as many reports, or for a failure.
  bool Await(size_t reports) const {
    return Eventually([&] { return this->reports().size() >= reports || !failures().empty(); });
  }

 private:
  const std::string identity_;
  RealClock clock_;
  MemoryBudget budget_{int64_t{256} << 20};
  // As in a worker. Large tiles are filled without faults, if the host allows.
  std::shared_ptr<BufferPool> pool_ =
      BufferPool::Create(&budget_, 0, std::make_shared<ShmArena>("test"));
  std::unique_ptr<ShardStore> store_;
  std::unique_ptr<TileGate> gate_;
  ThreadPool work_{2};
  std::unique_ptr<grpc::Service> service_;
  std::unique_ptr<rpc::ServerLifecycle> server_;
  mutable absl::Mutex mutex_;
  std::vector<TileReport> reports_ ABSL_GUARDED_BY(mutex_);
  std::vector<FillFailure> failures_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<TileFiller> filler_;
};

class FillThreadsTest : public testing::Test {
 protected:
  explicit FillThreadsTest(int nodes = 6, absl::Duration idle_limit = absl::Seconds(30)) {
    for (int i = 0; i < nodes; ++i) {
      nodes_.push_back(std::make_unique<FillNode>(StrCat("w", i), &folder_.roots(), idle_limit));
    }
  }
  ~FillThreadsTest() override { EXPECT_THAT(ArmFailpoints(""), IsOk()); }

  // All nodes serve the meshes of these arrays, each on these nodes by rank.
  struct Placed {
    const ArrayDescriptor* array;
    std::vector<int> nodes;
  };
  void Serve(const std::vector<Placed>& placed) {
    auto view = std::make_shared<MembershipView>();
    view->epoch = 1;
    view->term = kTermNow;
    for (const Placed& each : placed) {
      MeshMembers& mesh = view->meshes.emplace_back();
      mesh.mesh_id = each.array->mesh_id;
      mesh.revision = each.array->mesh_revision;
      mesh.mesh = each.array->mesh;
      for (size_t rank = 0; rank < each.nodes.size(); ++rank) {
        mesh.devices.push_back({.rank = static_cast<DeviceId>(rank),
                                .identity = node(each.nodes[rank]).identity(),
                                .incarnation = 7,
                                .endpoints = {}});
      }
    }
    for (const auto& each : nodes_) {
      each->gate().Serve({.term = kTermNow, .token_key = kTokenKey}, view);
    }
  }
  // An array of rows of the node `w0` alone, for tiles from files.
  static ArrayDescriptor Alone(const std::string& id, Shape shape, Dtype dtype = Dtype::kU8) {
    return {.array_id = id,
            .dtype = dtype,
            .shape = std::move(shape),
            .spec = PartitionSpec(),
            .mesh_id = "alone",
            .mesh_revision = 1,
            .mesh = *Mesh::Parse("x=1"),
            .cut_points = {}};
  }
  void ServeAlone() {
    const ArrayDescriptor array = Alone("a", {1});
    Serve({{&array, {0}}});
  }
  static FillOrder FileOrder(const std::vector<ArrayDescriptor>& arrays, const SourceFile& file,
                             const std::vector<int64_t>& offsets,
                             const std::string& transfer_id = "t") {
    FillOrder order{.transfer_id = transfer_id,
                    .term = kTermNow,
                    .files = {file},
                    .tiles = {},
                    .devices = std::nullopt};
    for (size_t i = 0; i < arrays.size(); ++i) {
      order.tiles.push_back({.array_descriptor = rpc::ArrayDescriptorBytes(arrays[i]),
                             .rank = 0,
                             .source = FileRange{.file = 0, .offset_bytes = offsets[i]}});
    }
    return order;
  }

  // Puts the array onto its nodes, as committed tiles.
  void Put(const ArrayDescriptor& array, const std::vector<int>& nodes, std::string_view bytes,
           const std::vector<int>& without = {}) {
    const Tiling tiling = *array.Tiling();
    for (size_t rank = 0; rank < nodes.size(); ++rank) {
      if (std::count(without.begin(), without.end(), nodes[rank]) > 0) continue;
      const Tile tile = tiling.TileOf(static_cast<DeviceId>(rank));
      const std::string own = PlainTile(array.dtype, array.shape, tile, bytes);
      ShardStore& store = node(nodes[rank]).store();
      auto staged = store.Stage({.array_id = array.array_id,
                                 .dtype = array.dtype,
                                 .array_shape = array.shape,
                                 .tile = tile,
                                 .array_descriptor = rpc::ArrayDescriptorBytes(array),
                                 .transfer_id = "put"},
                                /*durable=*/false);
      ASSERT_THAT(staged, IsOk());
      std::copy(own.begin(), own.end(), (*staged)->mutable_bytes().begin());
      ASSERT_THAT((*staged)->Finish(std::nullopt), IsOk());
      ASSERT_THAT(store.Commit({array.array_id}), IsOk());
    }
  }
  FillDevices Devices(const std::vector<int>& from, const std::vector<int>& to,
                      const std::vector<int>& lost = {}) {
    FillDevices devices;
    for (size_t rank = 0; rank < from.size(); ++rank) {
      devices.source_ids.push_back(from[rank]);
      if (std::count(lost.begin(), lost.end(), from[rank]) > 0) continue;
      devices.sources.push_back({.rank = static_cast<DeviceId>(rank),
                                 .identity = node(from[rank]).identity(),
                                 .endpoints = {node(from[rank]).address()}});
    }
    devices.destination_ids.assign(to.begin(), to.end());
    return devices;
  }
  FillOrder ArrayOrder(const ArrayDescriptor& from, const ArrayDescriptor& to, DeviceId rank,
                       FillDevices devices, const std::string& transfer_id = "t") {
    FillOrder order{.transfer_id = transfer_id,
                    .term = kTermNow,
                    .files = {},
                    .tiles = {},
                    .devices = std::move(devices)};
    order.tiles.push_back(
        {.array_descriptor = rpc::ArrayDescriptorBytes(to),
         .rank = rank,
         .source = FillFromArray{
             .array_descriptor = rpc::ArrayDescriptorBytes(from),
             .token = rpc::SignToken({.direction = rpc::TransferDirection::kGet,
                                      .transfer_id = "get",
                                      .session_id = "s",
                                      .array_descriptor = rpc::ArrayDescriptorBytes(from),
                                      .term = kTermNow,
                                      .expire_time = absl::Now() + absl::Minutes(5)},
                                     kTokenKey)}});
    return order;
  }
  static std::string StagedBytes(FillNode& node, const ArrayDescriptor& array, DeviceId rank) {
    auto stored = node.store().FindStaged(array.array_id, array.Tiling()->TileOf(rank));
    EXPECT_THAT(stored, IsOk());
    if (!stored.ok()) return "";
    EXPECT_EQ((*stored)->crc32c(), Crc32c((*stored)->bytes()));
    EXPECT_EQ((*stored)->description().array_descriptor, rpc::ArrayDescriptorBytes(array));
    return std::string((*stored)->bytes().begin(), (*stored)->bytes().end());
  }
  FillNode& node(int index) { return *nodes_[static_cast<size_t>(index)]; }

  SourceFolder folder_;
  std::vector<std::unique_ptr<FillNode>> nodes_;
};

class FillFromFilesTest : public FillThreadsTest {
 protected:
  FillFromFilesTest() : FillThreadsTest(1) { ServeAlone(); }
  FillNode& worker() { return node(0); }
};

TEST_F(FillFromFilesTest, StagesAndReportsTilesAsIfAClientHadPutThem) {
  const SourceFile file = folder_.Write("m", "headerAAAABBBBBB", 6);
  const ArrayDescriptor a = Alone("a", {4});
  const ArrayDescriptor b = Alone("b", {2, 3});
  const ArrayDescriptor none = Alone("none", {0, 3});
  worker().Fill(FileOrder({a, b, none}, file, {6, 10, 16}));
  ASSERT_TRUE(worker().Await(3));
  EXPECT_THAT(worker().failures(), IsEmpty());
  for (const TileReport& report : worker().reports()) {
    EXPECT_EQ(report.transfer_id, "t");
    EXPECT_EQ(report.term, kTermNow);
    EXPECT_EQ(report.rank, 0);
    EXPECT_FALSE(report.durable);
    EXPECT_GE(report.transfer_time, absl::ZeroDuration());
  }
  EXPECT_EQ(StagedBytes(worker(), a, 0), "AAAA");
  EXPECT_EQ(StagedBytes(worker(), b, 0), "BBBBBB");
  EXPECT_EQ(worker().filler().counters().file_bytes, 10);
  EXPECT_THAT(worker().store().FindAll("a"), StatusIs(absl::StatusCode::kNotFound))
      << "not committed yet";
  worker().filler().EndTransfer("t");
  EXPECT_THAT(worker().gate().EndTransfer("t", /*commit=*/true), IsOk());
  EXPECT_THAT(worker().store().FindAll("a"), IsOk());
}

TEST_F(FillFromFilesTest, MakesTilesOfZerosBesideOthers) {
  const SourceFile file = folder_.Write("m", "headerAAAA", 6);
  const ArrayDescriptor a = Alone("a", {4});
  const ArrayDescriptor zeros = Alone("zeros", {3, 5});
  const ArrayDescriptor none = Alone("none", {0, 3});
  const ArrayDescriptor large = Alone("large", {3, 1 << 20});
  FillOrder order = FileOrder({a, zeros, none, large}, file, {6, 0, 0, 0});
  for (size_t i = 1; i < order.tiles.size(); ++i) order.tiles[i].source = FillZeros();
  worker().Fill(std::move(order));
  ASSERT_TRUE(worker().Await(4));
  EXPECT_THAT(worker().failures(), IsEmpty());
  EXPECT_EQ(StagedBytes(worker(), a, 0), "AAAA");
  EXPECT_EQ(StagedBytes(worker(), zeros, 0), std::string(15, '\0'));
  EXPECT_EQ(StagedBytes(worker(), none, 0), "");
  EXPECT_EQ(StagedBytes(worker(), large, 0), std::string(3 << 20, '\0'));
  EXPECT_EQ(worker().filler().counters().file_bytes, 4);
}

TEST_F(FillFromFilesTest, LargeTilesOfRowsAndColumnsHaveTheirBytes) {
  std::mt19937 random(31);
  const Shape shape = {1'500, 1'201};  // 1.8 MB, no multiple of a piece or a page
  const std::string tensor = RandomText(1'500 * 1'201, random);
  const SourceFile file = folder_.Write("m", "header" + tensor, 6);
  ArrayDescriptor rows = Alone("rows", shape);
  ArrayDescriptor columns = Alone("columns", shape);
  rows.mesh_id = columns.mesh_id = "pair";
  rows.mesh = columns.mesh = *Mesh::Parse("x=2");
  rows.spec = *PartitionSpec::Create({AxisValue::Name("x")});
  columns.spec = *PartitionSpec::Create({AxisValue::None(), AxisValue::Name("x")});
  columns.cut_points = {{}, {0, 1'000, 1'201}};
  Serve({{&rows, {0, 0}}});
  FillOrder order = FileOrder({rows, columns}, file, {6, 6});
  worker().Fill(std::move(order));
  ASSERT_TRUE(worker().Await(2));
  ASSERT_THAT(worker().failures(), IsEmpty()) << worker().failures()[0].status;
  for (const ArrayDescriptor& array : {rows, columns}) {
    EXPECT_TRUE(StagedBytes(worker(), array, 0) ==
                PlainTile(Dtype::kU8, shape, array.Tiling()->TileOf(0), tensor))
        << array.array_id;
  }
}

TEST_F(FillFromFilesTest, AHostWithoutMemoryForALargeTileEndsTheTransfer) {
  if (HasHugeSharedPages()) GTEST_SKIP() << "this host gives shared memory huge pages";
  std::mt19937 random(32);
  const std::string tensor = RandomText(int64_t{3} << 20, random);
  const SourceFile file = folder_.Write("m", tensor, 0);
  ASSERT_THAT(ArmFailpoints("shm.write=enospc:3"), IsOk());
  worker().Fill(FileOrder({Alone("a", {int64_t{3} << 20})}, file, {0}));
  ASSERT_TRUE(Eventually([&] { return worker().failures().size() == 1; }));
  const absl::Status error = worker().failures()[0].status;
  EXPECT_THAT(error, StatusIs(absl::StatusCode::kResourceExhausted, Reason::kMemoryLimit));
  EXPECT_THAT(ToStd(error.message()), HasSubstr("the host refuses memory for bytes 2097152 to"));
  EXPECT_THAT(worker().reports(), IsEmpty());
}

TEST_F(FillFromFilesTest, AHostWithoutMemoryGetsThatOfTheCache) {
  if (HasHugeSharedPages()) GTEST_SKIP() << "this host gives shared memory huge pages";
  std::mt19937 random(33);
  const std::string tensor = RandomText(int64_t{3} << 20, random);
  const SourceFile file = folder_.Write("m", tensor, 0);
  std::vector<int64_t> asked_bytes;
  worker().free_memory = [&](const absl::Status& refused, int64_t size_bytes) {
    EXPECT_TRUE(IsHostShortage(refused)) << refused;
    asked_bytes.push_back(size_bytes);
    return true;
  };
  const ArrayDescriptor rows = Alone("rows", {int64_t{3} << 20});
  ASSERT_THAT(ArmFailpoints("shm.write=enospc:3"), IsOk());
  worker().Fill(FileOrder({rows}, file, {0}, "rows"));
  ASSERT_TRUE(worker().Await(1));
  EXPECT_THAT(worker().failures(), IsEmpty());
  EXPECT_THAT(asked_bytes, ElementsAre(int64_t{1} << 20)) << "what the tile lacked";
  EXPECT_EQ(StagedBytes(worker(), rows, 0), tensor);
  // A converted tile is written in place.
  const ArrayDescriptor transposed = Alone("transposed", {3 << 10, 1 << 10});
  FillOrder order = FileOrder({transposed}, file, {0}, "transposed");
  std::get<FileRange>(order.tiles[0].source).conversion =
      SourceConversion{.dtype = Dtype::kU8, .permutation = {1, 0}};
  ASSERT_THAT(ArmFailpoints("memory.fault_in=enospc"), IsOk());
  worker().Fill(std::move(order));
  ASSERT_TRUE(worker().Await(2));
  EXPECT_THAT(worker().failures(), IsEmpty());
  EXPECT_THAT(asked_bytes, ElementsAre(int64_t{1} << 20, int64_t{3} << 20));
}

TEST_F(FillFromFilesTest, RefusesATileOfASavedFileWithAChangedByteInAnyLayout) {
  const std::string bytes = "headerAAAABBBB";
  const std::string manifest =
      StrCat(R"({"files":[{"name":"m","size_bytes":14,"header_bytes":6,"header_crc32c":)",
             Crc32c(bytes.substr(0, 6)), R"(}],"tensors":[{"name":"w","file":"m","dtype":"U8",)",
             R"("shape":[8],"offset_bytes":6,"size_bytes":8,"tiles":[{"ranges":[[0,4]],"crc32c":)",
             Crc32c(bytes.substr(6, 4)), R"(},{"ranges":[[4,8]],"crc32c":)",
             Crc32c(bytes.substr(10)), "}]}]}");
  folder_.Write(std::string(kCheckpointManifest), manifest);
  folder_.Write(std::string(kCheckpointMarker), CheckpointMarkerText(manifest));
  worker().Fill(FileOrder({Alone("a", {8})}, folder_.Write("m", bytes, 6), {6}, "intact"));
  ASSERT_TRUE(worker().Await(1));
  EXPECT_THAT(worker().failures(), IsEmpty());
  const SourceFile changed = folder_.Write("m", "headerAAAABBBC", 6);
  worker().Fill(FileOrder({Alone("b", {8})}, changed, {6}, "changed"));
  ASSERT_TRUE(Eventually([&] { return !worker().failures().empty(); }));
  const absl::Status refused = worker().failures()[0].status;
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kDataLoss, Reason::kChecksumMismatch));
  EXPECT_THAT(refused.message(),
              AllOf(HasSubstr(changed.path), HasSubstr("the tile [4,8) of tensor \"w\"")));
  EXPECT_THAT(worker().reports(), SizeIs(1));
}

TEST_F(FillFromFilesTest, RefusesATransposedTensorOfASavedFileWithAChangedByte) {
  const std::string bytes = "headerAABBCCDD";
  const std::string manifest =
      StrCat(R"({"files":[{"name":"m","size_bytes":14,"header_bytes":6,"header_crc32c":)",
             Crc32c(bytes.substr(0, 6)), R"(}],"tensors":[{"name":"w","file":"m","dtype":"U8",)",
             R"("shape":[4,2],"offset_bytes":6,"size_bytes":8,"tiles":[{"ranges":[[0,4],[0,2]],)",
             R"("crc32c":)", Crc32c(bytes.substr(6)), "}]}]}");
  folder_.Write(std::string(kCheckpointManifest), manifest);
  folder_.Write(std::string(kCheckpointMarker), CheckpointMarkerText(manifest));
  const auto order = [&](const std::string& id, const SourceFile& file) {
    FillOrder transposed = FileOrder({Alone(id, {2, 4})}, file, {6}, id);
    std::get<FileRange>(transposed.tiles[0].source).conversion =
        SourceConversion{.dtype = Dtype::kU8, .permutation = {1, 0}};
    return transposed;
  };
  worker().Fill(order("a", folder_.Write("m", bytes, 6)));
  ASSERT_TRUE(worker().Await(1));
  EXPECT_THAT(worker().failures(), IsEmpty());
  EXPECT_EQ(StagedBytes(worker(), Alone("a", {2, 4}), 0), "ABCDABCD");
  EXPECT_EQ(worker().filler().counters().file_bytes, 8);
  worker().Fill(order("b", folder_.Write("m", "headerAABBCCDE", 6)));
  ASSERT_TRUE(Eventually([&] { return !worker().failures().empty(); }));
  EXPECT_THAT(worker().failures()[0].status,
              StatusIs(absl::StatusCode::kDataLoss, Reason::kChecksumMismatch));
}

TEST_F(FillFromFilesTest, TheSameOrderMayComeAgain) {
  const SourceFile file = folder_.Write("m", "0123");
  const FillOrder order = FileOrder({Alone("a", {2}), Alone("b", {2})}, file, {0, 2});
  worker().Fill(order);
  worker().Fill(order);
  ASSERT_TRUE(worker().Await(2));
  worker().Fill(order);
  worker().Fill(FileOrder({Alone("c", {1})}, file, {3}));
  ASSERT_TRUE(worker().Await(3));
  EXPECT_THAT(worker().failures(), IsEmpty());
  EXPECT_THAT(worker().reports(), SizeIs(3));
}

// A lost tile that came back from the quarantine while the order of its repair waited.
TEST_F(FillFromFilesTest, ATileOfACommittedArrayIsRefused) {
  const SourceFile file = folder_.Write("m", "0123");
  const ArrayDescriptor a = Alone("a", {2});
  Put(a, {0}, "01");
  worker().Fill(FileOrder({a}, file, {0}));
  ASSERT_TRUE(worker().Await(1));
  ASSERT_THAT(worker().failures(), SizeIs(1));
  EXPECT_EQ(worker().failures()[0].array_id, "a");
  EXPECT_THAT(worker().failures()[0].status,
              StatusIs(absl::StatusCode::kAlreadyExists, Reason::kAlreadyExists));
  EXPECT_THAT(worker().reports(), IsEmpty());
  EXPECT_THAT(worker().gate().EndTransfer("t", /*commit=*/false), IsOk());
  EXPECT_THAT(worker().store().FindAll("a"), IsOk());
}

TEST_F(FillFromFilesTest, TheFirstFailureEndsTheTransferAndIsReportedOnce) {
  const SourceFile file = folder_.Write("m", std::string(1000, 'x'));
  SourceFile changed = file;
  changed.size_bytes = 999;
  std::vector<ArrayDescriptor> arrays;
  std::vector<int64_t> offsets;
  for (int i = 0; i < 50; ++i) {
    arrays.push_back(Alone(StrCat("a", i), {10}));
    offsets.push_back(i * 10);
  }
  worker().Fill(FileOrder(arrays, changed, offsets));
  ASSERT_TRUE(worker().Await(1));
  // A further page of the transfer, which could be filled.
  worker().Fill(FileOrder({Alone("late", {10})}, file, {0}));
  // Another transfer is not concerned.
  worker().Fill(FileOrder({Alone("other", {10})}, file, {0}, "u"));
  ASSERT_TRUE(Eventually([&] { return !worker().reports().empty(); }));
  worker().filler().Stop();
  ASSERT_THAT(worker().failures(), SizeIs(1));
  const FillFailure failure = worker().failures()[0];
  EXPECT_EQ(failure.transfer_id, "t");
  EXPECT_EQ(failure.term, kTermNow);
  EXPECT_THAT(failure.array_id, testing::StartsWith("a"));
  EXPECT_EQ(failure.rank, 0);
  EXPECT_THAT(failure.status, CarriesFacts(Reason::kFileChanged, {{fact::kFile, file.path},
                                                                  {fact::kHave, "1000 bytes"},
                                                                  {fact::kNeed, "999 bytes"},
                                                                  {fact::kIdentity, "w0"}}));
  ASSERT_THAT(worker().reports(), SizeIs(1));
  EXPECT_EQ(worker().reports()[0].array_id, "other");
}

TEST_F(FillFromFilesTest, RefusesTilesThatAreNotItsOwnOrOfAnotherTerm) {
  const SourceFile file = folder_.Write("m", "0123");
  ArrayDescriptor elsewhere = Alone("a", {4});
  elsewhere.mesh_id = "unknown";
  ArrayDescriptor older = Alone("a", {4});
  older.mesh_revision = 0;
  FillOrder wrong_rank = FileOrder({Alone("a", {4})}, file, {0}, "rank");
  wrong_rank.tiles[0].rank = 1;
  FillOrder negative_rank = FileOrder({Alone("a", {4})}, file, {0}, "negative");
  negative_rank.tiles[0].rank = -1;
  FillOrder old_term = FileOrder({Alone("a", {4})}, file, {0}, "term");
  old_term.term = kTermNow - 1;
  FillOrder garbled = FileOrder({Alone("a", {4})}, file, {0}, "garbled");
  garbled.tiles[0].array_descriptor = "\xff";
  FillOrder beyond = FileOrder({Alone("a", {4})}, file, {1}, "beyond");
  const std::vector<std::pair<FillOrder, Reason>> cases = {
      {FileOrder({elsewhere}, file, {0}, "mesh"), Reason::kBadTile},
      {FileOrder({older}, file, {0}, "revision"), Reason::kBadTile},
      {wrong_rank, Reason::kBadTile},
      {negative_rank, Reason::kBadTile},
      {old_term, Reason::kStaleTerm},
      {garbled, Reason::kBadField},
      {beyond, Reason::kBadFile},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    worker().Fill(cases[i].first);
    ASSERT_TRUE(Eventually([&] { return worker().failures().size() == i + 1; }));
    EXPECT_EQ(worker().failures()[i].transfer_id, cases[i].first.transfer_id);
    EXPECT_EQ(ReasonOf(worker().failures()[i].status), cases[i].second)
        << worker().failures()[i].status;
  }
  EXPECT_THAT(worker().reports(), IsEmpty());
}

TEST_F(FillFromFilesTest, WaitsForAMeshThatIsAboutToCome) {
  const SourceFile file = folder_.Write("m", "0123");
  ArrayDescriptor array = Alone("a", {4});
  array.mesh_revision = 2;
  worker().Fill(FileOrder({array}, file, {0}));
  absl::SleepFor(absl::Milliseconds(50));
  Serve({{&array, {0}}});
  ASSERT_TRUE(worker().Await(1));
  EXPECT_THAT(worker().failures(), IsEmpty());
}

TEST_F(FillFromFilesTest, ATransferThatEndsOrALostCoordinatorStopsTheWorkWithinASecond) {
  std::mt19937 random(3);
  constexpr int64_t kTileBytes = int64_t{1} << 20;
  constexpr int kTiles = 64;
  const SourceFile file = folder_.Write("m", RandomText(kTileBytes, random));
  for (const std::string how : {"abort", "suspend", "stop"}) {
    const int used_before = static_cast<int>(worker().store().used_bytes());
    std::vector<ArrayDescriptor> arrays;
    for (int i = 0; i < kTiles; ++i) arrays.push_back(Alone(StrCat(how, i), {kTileBytes}));
    const size_t reported = worker().reports().size();
    // Each of the two threads sleeps in one tile.
    ASSERT_THAT(ArmFailpoints("fill.finish=delay:10"), IsOk());
    worker().Fill(FileOrder(arrays, file, std::vector<int64_t>(kTiles, 0), how));
    ASSERT_TRUE(Eventually([&] { return worker().reports().size() >= reported + 9; }));
    const absl::Time begin = absl::Now();
    if (how == "abort") {
      worker().filler().EndTransfer(how);
      ASSERT_THAT(worker().gate().EndTransfer(how, /*commit=*/false), IsOk());
    } else if (how == "suspend") {
      worker().filler().Suspend();
      worker().gate().Suspend();
    } else {
      worker().filler().Stop();
    }
    EXPECT_TRUE(Eventually([&] {
      worker().pool().Trim();
      return how != "abort" || worker().store().used_bytes() <= used_before;
    }));
    EXPECT_LT(absl::Now() - begin, absl::Seconds(1));
    absl::SleepFor(absl::Milliseconds(600));
    const size_t reports = worker().reports().size();
    EXPECT_LT(reports, reported + kTiles);
    EXPECT_EQ(worker().failures().size(), how == "abort" ? 0u : 1u);
    if (how == "abort") {
      // A page that comes late is refused.
      worker().Fill(FileOrder({Alone("late", {1})}, file, {0}, how));
      ASSERT_TRUE(Eventually([&] { return worker().failures().size() == 1; }));
      EXPECT_EQ(ReasonOf(worker().failures()[0].status), Reason::kStaleTerm);
      EXPECT_EQ(worker().reports().size(), reports);
    }
    ServeAlone();
  }
}

TEST_F(FillFromFilesTest, AFailureAtAnyPhaseGivesUpTheTransferAndItsMemory) {
  std::mt19937 random(4);
  const SourceFile file = folder_.Write("m", RandomText(int64_t{3} << 20, random), 100);
  int number = 0;
  for (const std::string point :
       {"fill.open=eio", "fill.head=eio", "fill.read=eio", "fill.read=emfile:2", "fill.finish=eio",
        "read_root.open=emfile", "read_root.examine=eio", "tiles.stage=enospc",
        "tiles.finish=eio"}) {
    ASSERT_THAT(ArmFailpoints(point), IsOk());
    const std::string id = StrCat("t", ++number);
    worker().Fill(FileOrder({Alone(id, {3 << 20})}, file, {0}, id));
    ASSERT_TRUE(Eventually([&] {
      return worker().failures().size() == static_cast<size_t>(number);
    })) << point;
    EXPECT_FALSE(worker().failures().back().status.ok());
    EXPECT_EQ(worker().failures().back().array_id, id);
    worker().filler().EndTransfer(id);
    EXPECT_THAT(worker().gate().EndTransfer(id, /*commit=*/false), IsOk());
    EXPECT_TRUE(Eventually([&] {
      worker().pool().Trim();
      return worker().store().used_bytes() == 0;
    })) << point;
  }
  EXPECT_THAT(worker().reports(), IsEmpty());
}

TEST_F(FillFromFilesTest, ChecksFilesAndNamesTheFirstThatItCannotUse) {
  const SourceFile good = folder_.Write("good", "header and more", 6);
  SourceFile changed = folder_.Write("changed", "header and more", 6);
  changed.head_sha256[5] ^= 1;
  SourceFile elsewhere = good;
  elsewhere.path = "/etc/passwd";
  const auto check = [&](std::vector<SourceFile> files) {
    absl::Mutex mutex;
    std::optional<std::pair<absl::Status, size_t>> answer;
    worker().filler().Check(std::move(files), [&](const absl::Status& status, size_t file) {
      absl::MutexLock lock(&mutex);
      answer = {status, file};
    });
    absl::MutexLock lock(&mutex);
    const auto is_there = [&] { return answer.has_value(); };
    EXPECT_TRUE(mutex.AwaitWithTimeout(absl::Condition(&is_there), absl::Seconds(20)));
    return answer.value_or(std::pair(absl::UnknownError("no answer"), size_t{99}));
  };
  EXPECT_THAT(check({}).first, IsOk());
  EXPECT_THAT(check({good, good}).first, IsOk());
  const auto [differs, second] = check({good, changed, elsewhere});
  EXPECT_EQ(second, 1u);
  EXPECT_EQ(ReasonOf(differs), Reason::kFileChanged);
  const auto [no_root, first] = check({elsewhere, changed});
  EXPECT_EQ(first, 0u);
  EXPECT_THAT(no_root, CarriesFacts(Reason::kNoReadRoot, {{fact::kFile, "/etc/passwd"},
                                                          {fact::kHave, folder_.path()},
                                                          {fact::kIdentity, "w0"}}));
}

// A question about files that take minutes ends in time, or when nobody asks any more. Otherwise
// the questions behind it would wait.
TEST_F(FillFromFilesTest, ALongQuestionAboutFilesEndsInTimeAndWhenTheCoordinatorIsLost) {
  const std::string head(size_t{32} << 20, '\0');
  const SourceFile slow = folder_.Write("slow", head, std::ssize(head));
  const SourceFile quick = folder_.Write("quick", "header and more", 6);
  const std::vector<SourceFile> many(10'000, slow);
  constexpr absl::Duration kLimit = absl::Milliseconds(100);
  struct Answer {
    absl::Mutex mutex;
    std::optional<absl::Status> status ABSL_GUARDED_BY(mutex);
    TileFiller::Checked Note() {
      return [this](const absl::Status& given, size_t) {
        absl::MutexLock lock(&mutex);
        status = given;
      };
    }
    bool IsThere() {
      absl::MutexLock lock(&mutex);
      return status.has_value();
    }
    absl::Status Get() {
      absl::MutexLock lock(&mutex);
      return status.value_or(absl::UnknownError("no answer"));
    }
  };
  Answer late;
  Answer behind;
  const std::unique_ptr<TileFiller> hasty = MakeTileFiller({.identity = "w0",
                                                            .store = &worker().store(),
                                                            .gate = &worker().gate(),
                                                            .roots = &folder_.roots(),
                                                            .check_limit = kLimit});
  hasty->Check(many, late.Note());
  hasty->Check({quick}, behind.Note());
  EXPECT_TRUE(Eventually([&] { return late.IsThere() && behind.IsThere(); }));
  EXPECT_THAT(late.Get(),
              CarriesFacts(Reason::kDeadline, {{fact::kLimit, absl::ToDoubleSeconds(kLimit)}}));
  EXPECT_TRUE(absl::IsDeadlineExceeded(late.Get()));
  hasty->Stop();

  Answer unwanted;
  Answer next;
  worker().filler().Check(many, unwanted.Note());
  worker().filler().Suspend();
  worker().filler().Check({quick}, next.Note());
  EXPECT_TRUE(Eventually([&] { return next.IsThere(); }));
  EXPECT_THAT(next.Get(), IsOk());
  EXPECT_FALSE(unwanted.IsThere());
}

class FillFromArraysTest : public FillThreadsTest {
 protected:
  explicit FillFromArraysTest(absl::Duration idle_limit = absl::Seconds(30))
      : FillThreadsTest(6, idle_limit) {}

  // A random mesh of at most six devices, and its nodes.
  struct Place {
    Mesh mesh;
    std::vector<int> nodes;
  };
  static Place RandomPlace(std::mt19937& random) {
    static const char* const kMeshes[] = {"x=1", "x=2",     "x=3",     "x=4",         "x=2,y=2",
                                          "x=6", "x=2,y=3", "x=3,y=2", "x=1,y=2,z=2", "x=5"};
    Place place{.mesh = *Mesh::Parse(kMeshes[Between(random, 0, std::ssize(kMeshes) - 1)]),
                .nodes = {0, 1, 2, 3, 4, 5}};
    std::shuffle(place.nodes.begin(), place.nodes.end(), random);
    place.nodes.resize(static_cast<size_t>(place.mesh.size()));
    return place;
  }
  static ArrayDescriptor ArrayOf(const std::string& id, const RandomTensor& tensor,
                                 const Mesh& mesh, RandomLayout layout) {
    return {.array_id = id,
            .dtype = tensor.dtype,
            .shape = tensor.shape,
            .spec = std::move(layout.spec),
            .mesh_id = "mesh-" + id,
            .mesh_revision = 1,
            .mesh = mesh,
            .cut_points = std::move(layout.cut_points)};
  }
  static ReshardPlan PlanOf(const ArrayDescriptor& from, const std::vector<int>& from_nodes,
                            const ArrayDescriptor& to, const std::vector<int>& to_nodes) {
    const auto tiling = [](const ArrayDescriptor& array, const std::vector<int>& nodes) {
      MeshOptions options;
      options.global_ids.assign(nodes.begin(), nodes.end());
      const Mesh mesh =
          *Mesh::Create({array.mesh.axes().begin(), array.mesh.axes().end()}, options);
      return *Tiling::Create(mesh, array.spec, array.shape, array.cut_points);
    };
    return *ReshardPlan::Create(tiling(from, from_nodes), tiling(to, to_nodes));
  }
  static ArrayDescriptor Array(const std::string& id, const std::string& mesh,
                               const std::vector<AxisValue>& entries, Shape shape = {8, 6}) {
    return {.array_id = id,
            .dtype = Dtype::kI16,
            .shape = std::move(shape),
            .spec = *PartitionSpec::Create(entries),
            .mesh_id = "mesh-" + id,
            .mesh_revision = 1,
            .mesh = *Mesh::Parse(mesh),
            .cut_points = {}};
  }
};

TEST_F(FillFromArraysTest, RandomLayoutsHaveTheirBitsAndReceiveNoMoreThanThePlanSays) {
  std::mt19937 random(21);
  LayoutDice dice(21);
  int with_empty_parts = 0;
  for (int round = 0; round < 500; ++round) {
    const RandomTensor tensor = dice.Tensor();
    const Place source = RandomPlace(random);
    const Place destination = Between(random, 0, 3) == 0 ? source : RandomPlace(random);
    RandomLayout first = dice.Layout(source.mesh, tensor);
    RandomLayout second = dice.Layout(destination.mesh, tensor);
    SCOPED_TRACE(StrCat("round ", round, ": ", DtypeName(tensor.dtype), " ",
                        ShapeToString(tensor.shape), " ", first.ToString(), " on ",
                        source.mesh.ToString(), " to ", second.ToString(), " on ",
                        destination.mesh.ToString()));
    with_empty_parts += first.has_empty_part || second.has_empty_part ? 1 : 0;
    const ArrayDescriptor from = ArrayOf(StrCat("s", round), tensor, source.mesh, std::move(first));
    const ArrayDescriptor to =
        ArrayOf(StrCat("d", round), tensor, destination.mesh, std::move(second));
    Put(from, source.nodes, tensor.bytes);
    Serve({{&from, source.nodes}, {&to, destination.nodes}});
    const ReshardPlan plan = PlanOf(from, source.nodes, to, destination.nodes);
    const auto packed = [&](int64_t elements) { return *PackedSizeBytes(tensor.dtype, elements); };
    for (size_t rank = 0; rank < destination.nodes.size(); ++rank) {
      FillNode& worker = node(destination.nodes[rank]);
      const TileFiller::Counters before = worker.filler().counters();
      const size_t reports = worker.reports().size();
      worker.Fill(ArrayOrder(from, to, static_cast<DeviceId>(rank),
                             Devices(source.nodes, destination.nodes), StrCat("t", round)));
      ASSERT_TRUE(worker.Await(reports + 1));
      ASSERT_THAT(worker.failures(), IsEmpty()) << worker.failures()[0].status;
      const Tile tile = to.Tiling()->TileOf(static_cast<DeviceId>(rank));
      ASSERT_EQ(StagedBytes(worker, to, static_cast<DeviceId>(rank)),
                PlainTile(tensor.dtype, tensor.shape, tile, tensor.bytes));
      const DeviceReshard needs = plan.DeviceOf(static_cast<DeviceId>(rank));
      const TileFiller::Counters after = worker.filler().counters();
      int64_t received_bytes = 0;
      SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::vector<FetchRegion> regions,
                                     plan.RegionsOf(static_cast<DeviceId>(rank)));
      for (const FetchRegion& region : regions) {
        received_bytes += packed(region.elements);
      }
      ASSERT_EQ(after.received_bytes - before.received_bytes, received_bytes);
      ASSERT_EQ(after.kept_bytes - before.kept_bytes, packed(needs.kept));
    }
    for (const auto& each : nodes_) {
      each->filler().EndTransfer(StrCat("t", round));
      ASSERT_THAT(each->gate().EndTransfer(StrCat("t", round), /*commit=*/true), IsOk());
      each->store().Drop({from.array_id, to.array_id}, [](const absl::Status&) {});
    }
  }
  EXPECT_GE(with_empty_parts, 25);
}

TEST_F(FillFromArraysTest, ALostHolderIsReplacedByAnother) {
  std::mt19937 random(22);
  // Rows over x; each tile is on two nodes, along y.
  const ArrayDescriptor from =
      Array("from", "x=2,y=2", {AxisValue::Name("x")}, {int64_t{1} << 10, int64_t{1} << 11});
  const ArrayDescriptor to = Array("to", "x=1", {}, from.shape);
  const std::string bytes = RandomText(int64_t{4} << 20, random);
  Put(from, {0, 1, 2, 3}, bytes);
  Serve({{&from, {0, 1, 2, 3}}, {&to, {4}}});
  // The plan's choice for the upper half is known to be lost; that for the lower half does not
  // answer.
  const ReshardPlan plan = PlanOf(from, {0, 1, 2, 3}, to, {4});
  const auto regions = *plan.RegionsOf(0);
  ASSERT_THAT(regions, SizeIs(2));
  const std::vector<int> lost = {static_cast<int>(regions[0].source)};
  FillDevices devices = Devices({0, 1, 2, 3}, {4}, lost);
  node(static_cast<int>(regions[1].source)).StopServing();
  node(4).Fill(ArrayOrder(from, to, 0, std::move(devices)));
  ASSERT_TRUE(node(4).Await(1));
  ASSERT_THAT(node(4).failures(), IsEmpty()) << node(4).failures()[0].status;
  EXPECT_TRUE(StagedBytes(node(4), to, 0) == bytes);

  // Without any holder that answers, the error names the last one.
  ArrayDescriptor again = to;
  again.array_id = "again";
  for (int holder = 0; holder < 4; ++holder) node(holder).StopServing();
  node(4).Fill(ArrayOrder(from, again, 0, Devices({0, 1, 2, 3}, {4}), "u"));
  ASSERT_TRUE(Eventually([&] { return node(4).failures().size() == 1; }));
  const absl::Status error = node(4).failures()[0].status;
  EXPECT_THAT(error, StatusIs(absl::StatusCode::kUnavailable, Reason::kWorkerLost));
  EXPECT_THAT(FactOf(error, fact::kIdentity).value_or(""), testing::StartsWith("w"));
  EXPECT_THAT(ToStd(error.message()), HasSubstr("the last of 2 holders"));
}

TEST_F(FillFromArraysTest, ATileHasTheChecksumOfItsBytesWhetherItComesWholeOrInParts) {
  std::mt19937 random(29);
  // Regions of several pieces each.
  const ArrayDescriptor whole = Array("whole", "x=2", {}, {int64_t{3} << 9, int64_t{1} << 11});
  const ArrayDescriptor halves =
      Array("halves", "x=2", {AxisValue::Name("x")}, {int64_t{1} << 10, int64_t{1} << 11});
  const ArrayDescriptor whole_copy = Array("whole-copy", "x=1", {}, whole.shape);
  const ArrayDescriptor halves_copy = Array("halves-copy", "x=1", {}, halves.shape);
  const std::string whole_bytes = RandomText(int64_t{6} << 20, random);
  const std::string halves_bytes = RandomText(int64_t{4} << 20, random);
  Put(whole, {0, 1}, whole_bytes);
  Put(halves, {0, 1}, halves_bytes);
  Serve({{&whole, {0, 1}}, {&halves, {0, 1}}, {&whole_copy, {4}}, {&halves_copy, {4}}});
  FillOrder order = ArrayOrder(halves, halves_copy, 0, Devices({0, 1}, {4}));
  order.tiles.push_back(ArrayOrder(whole, whole_copy, 0, Devices({0, 1}, {4})).tiles.front());
  node(4).Fill(std::move(order));
  ASSERT_TRUE(node(4).Await(2));
  ASSERT_THAT(node(4).failures(), IsEmpty()) << node(4).failures()[0].status;
  // StagedBytes compares the checksum with the bytes.
  EXPECT_TRUE(StagedBytes(node(4), whole_copy, 0) == whole_bytes);
  EXPECT_TRUE(StagedBytes(node(4), halves_copy, 0) == halves_bytes);
}

TEST_F(FillFromArraysTest, AHolderWithoutTheTileIsReplacedByAnotherAndNamedIfThereIsNone) {
  std::mt19937 random(23);
  const ArrayDescriptor from = Array("from", "x=3", {});
  const ArrayDescriptor to = Array("to", "x=1", {});
  const std::string bytes = RandomText(96, random);
  Put(from, {0, 1, 2}, bytes, /*without=*/{0, 1});
  Serve({{&from, {0, 1, 2}}, {&to, {4}}});
  node(4).Fill(ArrayOrder(from, to, 0, Devices({0, 1, 2}, {4})));
  ASSERT_TRUE(node(4).Await(1));
  ASSERT_THAT(node(4).failures(), IsEmpty()) << node(4).failures()[0].status;
  EXPECT_EQ(StagedBytes(node(4), to, 0), bytes);

  const ArrayDescriptor again = Array("again", "x=1", {});
  Serve({{&from, {0, 1, 2}}, {&again, {4}}});
  node(4).Fill(ArrayOrder(from, again, 0, Devices({0, 1, 2}, {4}, /*lost=*/{2}), "u"));
  ASSERT_TRUE(Eventually([&] { return node(4).failures().size() == 1; }));
  const FillFailure failure = node(4).failures()[0];
  EXPECT_EQ(failure.array_id, "again");
  EXPECT_THAT(failure.status, StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(ToStd(failure.status.message()),
              HasSubstr("cannot read [0,8)x[0,6) of array from from worker \"w"));

  node(4).Fill(ArrayOrder(from, again, 0, Devices({0, 1, 2}, {4}, /*lost=*/{0, 1, 2}), "v"));
  ASSERT_TRUE(Eventually([&] { return node(4).failures().size() == 2; }));
  EXPECT_THAT(node(4).failures()[1].status,
              CarriesFacts(Reason::kWorkerLost, {{fact::kRank, "0,1,2"}}));
}

class FillFromSilentTest : public FillFromArraysTest {
 protected:
  FillFromSilentTest() : FillFromArraysTest(absl::Milliseconds(150)) {}
};

TEST_F(FillFromSilentTest, ASilentHolderIsReplacedByAnother) {
  std::mt19937 random(26);
  const ArrayDescriptor from = Array("from", "x=2", {});
  const ArrayDescriptor to = Array("to", "x=1", {});
  const std::string bytes = RandomText(96, random);
  Put(from, {0, 1}, bytes);
  Serve({{&from, {0, 1}}, {&to, {4}}});
  // The first holder that is asked sleeps for half a second.
  ASSERT_THAT(ArmFailpoints("get.find=delay"), IsOk());
  node(4).Fill(ArrayOrder(from, to, 0, Devices({0, 1}, {4})));
  ASSERT_TRUE(node(4).Await(1));
  ASSERT_THAT(node(4).failures(), IsEmpty()) << node(4).failures()[0].status;
  EXPECT_EQ(StagedBytes(node(4), to, 0), bytes);
  // Without another holder, the error says who was silent.
  const ArrayDescriptor again = Array("again", "x=1", {});
  Serve({{&from, {0, 1}}, {&again, {4}}});
  ASSERT_THAT(ArmFailpoints("get.find=delay"), IsOk());
  node(4).Fill(ArrayOrder(from, again, 0, Devices({0, 1}, {4}, /*lost=*/{1}), "u"));
  ASSERT_TRUE(Eventually([&] { return node(4).failures().size() == 1; }));
  EXPECT_THAT(node(4).failures()[0].status,
              StatusIs(absl::StatusCode::kDeadlineExceeded, Reason::kDeadline));
  EXPECT_EQ(FactOf(node(4).failures()[0].status, fact::kIdentity), "w0");
  EXPECT_THAT(ToStd(node(4).failures()[0].status.message()), HasSubstr("from worker \"w0\""));
}

// The rank 1 of the array has no worker, and neither has the rank 0 of its companion.
TEST_F(FillFromArraysTest, WhatNoWorkerOfTheArrayHasComesFromItsCompanion) {
  std::mt19937 random(27);
  const ArrayDescriptor from = Array("from", "x=2", {AxisValue::Name("x")});
  const ArrayDescriptor companion = Array("companion", "x=2", {AxisValue::Name("x")});
  const std::string bytes = RandomText(96, random);
  Put(from, {0, 1}, bytes, /*without=*/{1});
  Put(companion, {1, 0}, bytes, /*without=*/{1});
  const auto order = [&](const ArrayDescriptor& to, int node_of_target) {
    FillDevices devices = Devices({0, 1}, {node_of_target}, /*lost=*/{1});
    devices.second_sources.push_back(
        {.rank = 1, .identity = node(0).identity(), .endpoints = {node(0).address()}});
    FillOrder filled = ArrayOrder(from, to, 0, std::move(devices), to.array_id);
    auto& source = std::get<FillFromArray>(filled.tiles[0].source);
    source.second_array_id = companion.array_id;
    source.second_token = rpc::SignToken({.direction = rpc::TransferDirection::kGet,
                                          .transfer_id = "get",
                                          .session_id = "s",
                                          .array_descriptor = rpc::ArrayDescriptorBytes(companion),
                                          .term = kTermNow,
                                          .expire_time = absl::Now() + absl::Minutes(5)},
                                         kTokenKey);
    return filled;
  };
  // One worker reads both halves of another. The other has both, and reads nothing.
  for (const int target : {4, 0}) {
    SCOPED_TRACE(target);
    const ArrayDescriptor to = Array(StrCat("to-", target), "x=1", {});
    Serve({{&from, {0, 1}}, {&companion, {1, 0}}, {&to, {target}}});
    node(target).Fill(order(to, target));
    ASSERT_TRUE(node(target).Await(1));
    ASSERT_THAT(node(target).failures(), IsEmpty()) << node(target).failures()[0].status;
    EXPECT_EQ(StagedBytes(node(target), to, 0), bytes);
    EXPECT_EQ(node(target).filler().counters().received_bytes, target == 0 ? 0 : 96);
    EXPECT_EQ(node(target).filler().counters().kept_bytes, target == 0 ? 96 : 0);
  }
}

// A repair: the new tile is one that this rank is to hold already, and has lost.
TEST_F(FillFromArraysTest, ATileThatThisWorkerLostComesFromItsReplicas) {
  std::mt19937 random(24);
  const ArrayDescriptor from = Array("from", "x=2,y=2", {AxisValue::Name("x")});
  ArrayDescriptor to = from;
  to.array_id = "to";
  const std::string bytes = RandomText(96, random);
  Put(from, {0, 1, 2, 3}, bytes, /*without=*/{1});
  Serve({{&from, {0, 1, 2, 3}}});
  node(1).Fill(ArrayOrder(from, to, 1, Devices({0, 1, 2, 3}, {0, 1, 2, 3})));
  ASSERT_TRUE(node(1).Await(1));
  ASSERT_THAT(node(1).failures(), IsEmpty()) << node(1).failures()[0].status;
  EXPECT_EQ(StagedBytes(node(1), to, 1), bytes.substr(0, 48));
  EXPECT_EQ(node(1).filler().counters().received_bytes, 48);
  EXPECT_EQ(node(1).filler().counters().kept_bytes, 0);
}

TEST_F(FillFromArraysTest, RefusesArraysThatDoNotFit) {
  const ArrayDescriptor from = Array("from", "x=2", {AxisValue::Name("x")});
  Put(from, {0, 1}, std::string(96, 'x'));
  ArrayDescriptor other_type = Array("type", "x=1", {});
  other_type.dtype = Dtype::kU16;
  const ArrayDescriptor other_shape = Array("shape", "x=1", {}, {6, 8});
  ArrayDescriptor sums = from;
  sums.spec = *PartitionSpec::Create({}, {"x"});
  const ArrayDescriptor to = Array("to", "x=1", {});
  Serve({{&from, {0, 1}}, {&other_type, {4}}, {&other_shape, {4}}, {&to, {4}}});
  FillDevices few = Devices({0, 1}, {4});
  few.source_ids.pop_back();
  FillOrder garbled = ArrayOrder(from, to, 0, Devices({0, 1}, {4}), "garbled");
  std::get<FillFromArray>(garbled.tiles[0].source).array_descriptor = "\xff";
  FillOrder no_token = ArrayOrder(from, to, 0, Devices({0, 1}, {4}), "token");
  std::get<FillFromArray>(no_token.tiles[0].source).token = "";
  const std::vector<std::pair<FillOrder, Reason>> cases = {
      {ArrayOrder(from, other_type, 0, Devices({0, 1}, {4}), "type"), Reason::kShapeMismatch},
      {ArrayOrder(from, other_shape, 0, Devices({0, 1}, {4}), "shape"), Reason::kShapeMismatch},
      {ArrayOrder(sums, to, 0, Devices({0, 1}, {4}), "sums"), Reason::kInvalidSpec},
      {ArrayOrder(from, to, 0, few, "few"), Reason::kBadField},
      {garbled, Reason::kBadField},
      {no_token, Reason::kBadToken},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    node(4).Fill(cases[i].first);
    ASSERT_TRUE(Eventually([&] { return node(4).failures().size() == i + 1; }));
    EXPECT_EQ(ReasonOf(node(4).failures()[i].status), cases[i].second)
        << node(4).failures()[i].status;
    node(4).filler().EndTransfer(cases[i].first.transfer_id);
    EXPECT_THAT(node(4).gate().EndTransfer(cases[i].first.transfer_id, false), IsOk());
  }
  EXPECT_THAT(node(4).reports(), IsEmpty());
}

TEST_F(FillFromArraysTest, ManyTilesComeTogetherAndAFailureAtAnyPhaseEndsThemAll) {
  std::mt19937 random(25);
  std::vector<ArrayDescriptor> from;
  std::vector<ArrayDescriptor> to;
  std::vector<std::string> bytes;
  for (int i = 0; i < 20; ++i) {
    from.push_back(Array(StrCat("from", i), "x=2", {AxisValue::Name("x")}, {64, 500}));
    to.push_back(Array(StrCat("to", i), "x=1", {}, {64, 500}));
    from.back().mesh_id = "from";
    to.back().mesh_id = "to";
    bytes.push_back(RandomText(64'000, random));
    Put(from.back(), {0, 1}, bytes.back());
  }
  Serve({{&from[0], {0, 1}}, {&to[0], {4}}});
  const auto order = [&](const std::string& transfer_id) {
    FillOrder all = ArrayOrder(from[0], to[0], 0, Devices({0, 1}, {4}), transfer_id);
    for (size_t i = 1; i < from.size(); ++i) {
      all.tiles.push_back(ArrayOrder(from[i], to[i], 0, {}).tiles[0]);
    }
    return all;
  };
  size_t failures = 0;
  for (const std::string point :
       {"fill.connect=eio", "fill.receive=eio:7", "fill.finish=enospc", "fill.open=eio:9"}) {
    ASSERT_THAT(ArmFailpoints(point), IsOk());
    node(4).Fill(order(point));
    ++failures;
    ASSERT_TRUE(Eventually([&] { return node(4).failures().size() == failures; })) << point;
    node(4).filler().EndTransfer(point);
    EXPECT_THAT(node(4).gate().EndTransfer(point, /*commit=*/false), IsOk());
    EXPECT_TRUE(Eventually([&] {
      node(4).pool().Trim();
      return node(4).store().used_bytes() == 0;
    })) << point;
    EXPECT_THAT(node(4).reports(), IsEmpty()) << point;
  }
  ASSERT_THAT(ArmFailpoints(""), IsOk());
  node(4).Fill(order("good"));
  ASSERT_TRUE(Eventually([&] { return node(4).reports().size() == from.size(); }));
  for (size_t i = 0; i < from.size(); ++i) {
    EXPECT_TRUE(StagedBytes(node(4), to[i], 0) == bytes[i]);
  }
}

}  // namespace
}  // namespace shardmesh::worker
