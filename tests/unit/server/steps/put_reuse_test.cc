// Puts of tensors whose elements are on the workers already.
#include "server/steps/put_reuse.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "rpc/codec/array_codec.h"
#include "rpc/codec/status.h"
#include "rpc/transfer_token.h"
#include "server/codec/put_codec.h"
#include "server/steps/array_cache.h"
#include "server/steps/fill_codec.h"
#include "server/steps/put_plan.h"
#include "status/detail.h"
#include "status/reason.h"
#include "status/str_cat.h"
#include "tests/testing/eventually.h"
#include "tests/unit/server/steps/keeping_fill.h"
#include "tests/unit/server/steps/ready_cluster.h"

namespace shardmesh::server {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

SourceFile Model(int64_t change_s = 6) {
  return {.path = "/model",
          .size_bytes = 1'024,
          .modify_time = absl::FromUnixSeconds(5),
          .head_sha256 = std::string(32, 'h'),
          .head_bytes = 8,
          .change_time = absl::FromUnixSeconds(change_s),
          .inode = 17};
}

TEST(SharedFillTest, OrdersForManyArraysOnALargeMeshFitAMessageAndAreSharedByAllWorkers) {
  constexpr int64_t kDevices = 2'048;
  constexpr int64_t kArrays = 5'000;
  constexpr size_t kMaxMessageBytes = size_t{4} << 20;  // rpc::kMaxControlMessageBytes
  std::vector<RankEndpoint> sources;
  std::vector<std::string> workers;
  for (int64_t rank = 0; rank < kDevices; ++rank) {
    // The longest identity, and as many addresses as a worker may have, each as long as it may be.
    const std::string name = StrCat(1'000 + rank, std::string(59, 'w'));
    workers.push_back(name);
    sources.push_back({.rank = rank,
                       .identity = name,
                       .incarnation = ~uint64_t{0},
                       .endpoints = std::vector<std::string>(16, std::string(320, 'e'))});
  }
  const internal::v1::FillDevices devices = EncodeFillDevices(sources, workers, workers);
  ASSERT_EQ(devices.sources_size(), kDevices);
  EXPECT_EQ(devices.sources(0).endpoints_size(), 2) << "the best ones";
  SharedFill orders("transfer", 7, &devices);
  const std::string descriptor(300, 'd');
  for (int64_t i = 0; i < kArrays; ++i) {
    orders.AddFromArray(StrCat(i, "to", descriptor), StrCat(i, "from", descriptor), "token");
  }
  KeepingFill fill;
  for (const int64_t rank : {int64_t{0}, kDevices - 1}) {
    const std::string& worker = workers[static_cast<size_t>(rank)];
    ASSERT_THAT(orders.SendTo(worker, rank, &fill), IsOk());
    int64_t tiles = 0;
    for (const internal::v1::FillTiles& order : fill.sent(worker)) {
      EXPECT_LT(order.ByteSizeLong(), kMaxMessageBytes - 1'000);
      EXPECT_EQ(order.transfer_id(), "transfer");
      EXPECT_EQ(order.term(), 7);
      EXPECT_TRUE(order.has_rank());
      EXPECT_EQ(order.rank(), rank);
      EXPECT_EQ(order.devices().sources_size(), kDevices);
      for (const internal::v1::FillTile& tile : order.tiles()) {
        EXPECT_EQ(tile.array_descriptor(), StrCat(tiles, "to", descriptor));
        EXPECT_EQ(tile.array().array_descriptor(), StrCat(tiles, "from", descriptor));
        ++tiles;
      }
    }
    EXPECT_EQ(tiles, kArrays);
    // A few large messages, not one for each array.
    EXPECT_LE(fill.sent(worker).size(), 5u);
    EXPECT_EQ(fill.tails(), fill.sent(worker).size());
  }
  EXPECT_LT(fill.own_bytes(), 10 * 32u);
}

class PutReuseTest : public ReadyCluster {
 protected:
  ~PutReuseTest() override { sequencer_.reset(); }

  // One tensor of a put, of 8 x 4 F32, that its client reads from a file.
  struct Given {
    std::string name = "w";
    std::string other_name = {};  // of a second tensor from the same place; empty: there is none
    SourceFile file = Model();
    int64_t offset_bytes = 64;
    std::string conversion = {};
    std::string mesh_id = "m";
    PartitionSpec spec = PartitionSpec({SpecEntry::Axis("x")});
    bool by_workers = false;
    bool on_disk = false;  // what the workers report about the tiles
    bool reuse = true;
    bool validate_only = false;
    std::optional<ContentClaim> content = {};
    bool is_true = true;                // what the workers say about `content`
    ArrayRegistry* registry = nullptr;  // null: registry_
    int64_t replicas = 0;
    Transfers* transfers = nullptr;  // null: transfers_
  };
  // Begins the put.
  absl::StatusOr<BegunPutPtr> Begin(const Given& given) {
    PutPlan plan({.clock = &clock_,
                  .definition_store = definition_store_.get(),
                  .membership = &members_,
                  .registry = given.registry == nullptr ? registry_.get() : given.registry,
                  .endpoints = &endpoints_,
                  .sessions = &sessions_,
                  .transfers = given.transfers == nullptr ? &transfers_ : given.transfers,
                  .fill = &fill_,
                  .cache = &cache_,
                  .term = 7,
                  .token_key = "key"});
    PutHeader header{.request_id = "r", .session_id = session_, .mesh_id = given.mesh_id};
    header.reuse = given.reuse;
    header.replicas = given.replicas;
    header.validate_only = given.validate_only;
    header.files = {std::make_shared<const SourceFile>(given.file)};
    SHARDMESH_RETURN_IF_ERROR(plan.TakeHeader(
        std::move(header), caller_,
        [](const Definitions&) { return std::optional<RuleSetDefinition>(); },
        [](const Definitions&) { return PartitionAxis(); }));
    PutTensor tensor{.name = given.name, .shape = {8, 4}, .spec = given.spec};
    const FileRange place{.file = 0, .offset_bytes = given.offset_bytes};
    (given.by_workers ? tensor.source : tensor.origin) = place;
    tensor.conversion = given.conversion;
    tensor.content = given.content;
    SHARDMESH_RETURN_IF_ERROR(plan.TakeTensor(tensor));
    if (tensor.name = given.other_name; !tensor.name.empty()) {
      SHARDMESH_RETURN_IF_ERROR(plan.TakeTensor(std::move(tensor)));
    }
    if (plan.may_reuse()) plan.FindReusable([] { return false; });
    EXPECT_EQ(plan.may_reuse(), given.reuse);
    std::vector<ClaimedArray> claims = plan.TakeClaims();
    claims_ = claims.size();
    if (!claims.empty()) {
      plan.UseContent(std::move(claims), {given.is_true}, [] { return false; });
    }
    reads_files_ = plan.reads_files();
    return plan.Begin();
  }
  // Commits the put after the workers have reported the tiles that it needs. Returns its array.
  std::string Commit(const BegunPut& put, bool on_disk = false) {
    absl::Notification done;
    absl::StatusOr<TransferResult> result;
    transfers_.Commit(put.transfer_id, "", clock_.Now() + absl::Minutes(1),
                      [&](absl::StatusOr<TransferResult> ended) {
                        result = std::move(ended);
                        done.Notify();
                      });
    const std::string& array_id = put.items[0].definition.descriptor.array_id;
    for (int rank = 0; rank < 2 && !put.items[0].is_kept(); ++rank) {
      EXPECT_THAT(sequencer_->ReportTransfer(
                      put.transfer_id, 7,
                      {.identity = StrCat("w", rank),
                       .rank = rank,
                       .tiles = {{.array_id = array_id, .crc32c = 7, .on_disk = on_disk}}}),
                  IsOk());
    }
    done.WaitForNotification();
    EXPECT_THAT(result, IsOk());
    return result.ok() ? result->array_ids.front() : "";
  }
  std::string Put(const Given& given) {
    const absl::StatusOr<BegunPutPtr> put = Begin(given);
    EXPECT_THAT(put, IsOk());
    return put.ok() ? Commit(**put, given.on_disk) : "";
  }
  std::string ArrayOf(const std::string& name) {
    const auto entry = registry_->FindName(name);
    return entry.ok() ? entry->array_id : "";
  }
  void DeleteName(const std::string& name) {
    absl::Notification done;
    CommitRequest request;
    request.moves.push_back({.name = name, .array_id = "", .expected_version = {}});
    registry_->Commit(std::move(request), [&](const auto&) { done.Notify(); });
    done.WaitForNotification();
  }

  ArrayCache cache_{registry_.get(), &members_};
  KeepingFill fill_;
  OperationTable operations_{&clock_, &sessions_};
  Transfers transfers_{&clock_, registry_.get(), &sessions_, sequencer_.get(), &operations_};
  bool reads_files_ = false;  // PutPlan::reads_files of the last put
  size_t claims_ = 0;         // about which the workers were asked in the last put
};

TEST_F(PutReuseTest, ASecondPutOfTheSameTensorNeedsNoTile) {
  for (const bool first_by_workers : {false, true}) {
    for (const bool then_by_workers : {false, true}) {
      const std::string name = StrCat("w", first_by_workers, then_by_workers);
      const int64_t offset_bytes = 64 * (first_by_workers ? 3 : 1) + (then_by_workers ? 64 : 0);
      const std::string array_id =
          Put({.name = name, .offset_bytes = offset_bytes, .by_workers = first_by_workers});
      const int64_t version = registry_->VersionOf(name);
      SHARDMESH_ASSERT_OK_AND_ASSIGN(
          const BegunPutPtr put,
          Begin({.name = name, .offset_bytes = offset_bytes, .by_workers = then_by_workers}));
      EXPECT_FALSE(reads_files_);
      EXPECT_TRUE(put->items[0].is_kept());
      EXPECT_EQ(registry_->CountArrays().staging, 0);
      SHARDMESH_ASSERT_OK_AND_ASSIGN(const TransferProgress progress,
                                     transfers_.Progress(put->transfer_id));
      EXPECT_EQ(progress.total_bytes, 128);
      EXPECT_EQ(progress.staged_bytes, 128);
      EXPECT_EQ(progress.reused_bytes, 128);
      EXPECT_EQ(progress.moved_bytes, 0);
      EXPECT_EQ(progress.staged_tiles, progress.total_tiles);
      EXPECT_EQ(Commit(*put), array_id);
      EXPECT_EQ(ArrayOf(name), array_id);
      EXPECT_GT(registry_->VersionOf(name), version);
    }
  }
  EXPECT_THAT(fill_.sent("w0"), SizeIs(2)) << "the first puts by the workers";
  EXPECT_EQ(transfers_.totals().put_bytes, 8 * 128);
  EXPECT_EQ(transfers_.totals().reused_bytes, 4 * 128);
}

TEST_F(PutReuseTest, AnotherNameGetsTheSameArray) {
  const std::string array_id = Put({.name = "one"});
  EXPECT_EQ(Put({.name = "two"}), array_id);
  EXPECT_EQ(ArrayOf("one"), array_id);
  EXPECT_EQ(ArrayOf("two"), array_id);
  DeleteName("one");
  EXPECT_THAT(registry_->FindArray(array_id), IsOk());
  DeleteName("two");
  EXPECT_THAT(registry_->FindArray(array_id), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_NE(Put({.name = "one"}), array_id) << "it was released";
}

TEST_F(PutReuseTest, APutThatAsksForOneReplicaCopiesAnArrayWithTwo) {
  const std::string twice = Put({.replicas = 2});
  EXPECT_EQ(Put({}), twice) << "the wish stays with the name";
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunPutPtr put, Begin({.replicas = 1}));
    EXPECT_TRUE(put->items[0].is_copied());
    EXPECT_EQ(put->items[0].moved_bytes, 0);
    EXPECT_EQ(put->items[0].definition.replicas, 1);
    EXPECT_THAT(transfers_.Abort(put->transfer_id, absl::CancelledError("enough")), IsOk());
  }
  const std::string once = Put({.replicas = 1});
  EXPECT_NE(once, twice);
  EXPECT_THAT(registry_->FindArray(twice), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_EQ(Put({.replicas = 1}), once) << "it has one replica already";
}

TEST_F(PutReuseTest, ACachedArrayGetsTheReplicasThatThePutWants) {
  registry_->SetCaching(true);
  const std::string array_id = Put({.replicas = 2});
  DeleteName("w");
  ASSERT_EQ(registry_->cache_totals().arrays, 1);
  for (const int64_t wanted : {int64_t{1}, int64_t{2}}) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunPutPtr checked,
                                   Begin({.validate_only = true, .replicas = wanted}));
    ASSERT_TRUE(checked->items[0].is_kept());
    EXPECT_EQ(checked->items[0].definition.replicas, wanted);
    EXPECT_EQ(checked->items[0].will_be_replicated(), wanted == 2);
    EXPECT_EQ(registry_->FindCommitted(array_id)->definition.replicas, 2);
  }
  EXPECT_EQ(Put({}), array_id);
  EXPECT_EQ(registry_->ReplicasOf("w"), 1) << "as for an array that the put would make";
  DeleteName("w");
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunPutPtr put, Begin({.replicas = 2}));
    ASSERT_TRUE(put->items[0].is_kept());
    EXPECT_EQ(put->items[0].definition.replicas, 2);
    EXPECT_TRUE(put->items[0].will_be_replicated());
    EXPECT_EQ(put->items[0].moved_bytes, 0);
    EXPECT_EQ(Commit(*put), array_id);
  }
  EXPECT_EQ(registry_->ReplicasOf("w"), 2);
  EXPECT_THAT(registry_->ListUnreplicated("", 10), SizeIs(1)) << "the second copy is to be made";
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunPutPtr again, Begin({.replicas = 2}));
  EXPECT_TRUE(again->items[0].is_kept());
  EXPECT_FALSE(again->items[0].will_be_replicated()) << "it is being made already";
}

TEST_F(PutReuseTest, TheSecondReplicaOfACachedArrayNeedsMemory) {
  registry_->SetCaching(true);
  const std::string array_id = Put({});  // 64 bytes on each worker
  DeleteName("w");
  Beat((1 << 20) - 63);
  EXPECT_THAT(Begin({.replicas = 2}),
              StatusIs(absl::StatusCode::kResourceExhausted, Reason::kMemoryLimit));
  EXPECT_EQ(registry_->cache_totals().arrays, 1) << "it is cached again";
  Beat((1 << 20) - 64);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunPutPtr put, Begin({.replicas = 2}));
  EXPECT_TRUE(put->items[0].is_kept());
}

TEST_F(PutReuseTest, TheSecondReplicaOfACachedArrayOfTwoNamesIsCountedOnce) {
  registry_->SetCaching(true);
  const std::string array_id = Put({});
  DeleteName("w");
  Beat((1 << 20) - 64);
  for (const bool validate_only : {true, false}) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(
        const BegunPutPtr put,
        Begin({.other_name = "v", .validate_only = validate_only, .replicas = 2}));
    ASSERT_THAT(put->items, SizeIs(2));
    for (const PutItem& item : put->items) {
      EXPECT_TRUE(item.is_kept());
      EXPECT_EQ(item.definition.descriptor.array_id, array_id);
      EXPECT_EQ(item.definition.replicas, 2);
    }
    EXPECT_TRUE(put->items[0].will_be_replicated());
    EXPECT_FALSE(put->items[1].will_be_replicated());
  }
}

TEST_F(PutReuseTest, ANameKeepsItsOwnArrayOfSeveral) {
  const std::string first = Put({.name = "one"});
  const std::string second = Put({.name = "two", .reuse = false});
  ASSERT_NE(first, second);
  EXPECT_EQ(Put({.name = "two"}), second);
  EXPECT_EQ(Put({.name = "one"}), first);
}

TEST_F(PutReuseTest, AnyOtherOriginIsPutAnew) {
  const std::string array_id = Put({});
  const std::vector<Given> others = {{.file = Model(/*change_s=*/7)},
                                     {.offset_bytes = 65},
                                     {.conversion = "1 F16"},
                                     {.reuse = false}};
  for (const Given& other : others) {
    const absl::StatusOr<BegunPutPtr> put = Begin(other);
    ASSERT_THAT(put, IsOk());
    EXPECT_EQ((*put)->items[0].reused, nullptr);
    EXPECT_THAT(transfers_.Abort((*put)->transfer_id, absl::CancelledError("enough")), IsOk());
  }
  SourceFile unseen = Model();
  unseen.change_time = absl::InfinitePast();
  const std::string first = Put({.file = unseen});
  EXPECT_NE(Put({.file = unseen}), first) << "it may have changed unseen";
}

TEST_F(PutReuseTest, ATensorWithoutANameIsCopied) {
  const std::string array_id = Put({});
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunPutPtr put, Begin({.name = ""}));
  EXPECT_TRUE(put->items[0].is_copied());
  EXPECT_NE(Commit(*put), array_id);
}

TEST_F(PutReuseTest, WorkersCopyToAnotherLayoutAndAnotherMesh) {
  const std::string array_id = Put({});
  const PartitionSpec columns({SpecEntry(), SpecEntry::Axis("x")});
  SHARDMESH_ASSERT_OK_AND_ASSIGN(BegunPutPtr put, Begin({.name = "columns", .spec = columns}));
  EXPECT_FALSE(reads_files_);
  ASSERT_TRUE(put->items[0].is_copied());
  EXPECT_EQ(put->items[0].moved_bytes, 64) << "half of each rank's tile is on the other";
  EXPECT_EQ(put->items[0].reused->array().definition.descriptor.array_id, array_id);
  EXPECT_TRUE(transfers_.Progress(put->transfer_id)->is_filled);
  for (int rank = 0; rank < 2; ++rank) {
    const auto sent = fill_.sent(StrCat("w", rank));
    ASSERT_THAT(sent, SizeIs(1));
    EXPECT_EQ(sent[0].transfer_id(), put->transfer_id);
    EXPECT_EQ(sent[0].devices().sources_size(), 2);
    ASSERT_EQ(sent[0].tiles_size(), 1);
    EXPECT_EQ(sent[0].rank(), rank);
    EXPECT_EQ(sent[0].tiles(0).array_descriptor(),
              rpc::ArrayDescriptorBytes(put->items[0].definition.descriptor));
    EXPECT_EQ(sent[0].tiles(0).array().array_descriptor(),
              rpc::ArrayDescriptorBytes(put->items[0].reused->array().definition.descriptor));
    EXPECT_NE(sent[0].tiles(0).array().token(), "");
  }
  EXPECT_EQ(fill_.tails(), 1u) << "the workers share an encoding";
  const std::string in_columns = Commit(*put);
  EXPECT_EQ(ArrayOf("columns"), in_columns);

  // The other mesh has the same workers, so it copies from the array that lies alike there.
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      put, Begin({.name = "other", .mesh_id = "n", .spec = columns, .by_workers = true}));
  EXPECT_FALSE(reads_files_);
  ASSERT_TRUE(put->items[0].is_copied());
  EXPECT_EQ(put->items[0].reused->array().definition.descriptor.array_id, in_columns);
  EXPECT_EQ(put->items[0].moved_bytes, 0);
  Commit(*put);
  EXPECT_EQ(transfers_.totals().reused_bytes, 256);
  EXPECT_EQ(transfers_.totals().moved_bytes, 64);
}

TEST_F(PutReuseTest, AnArrayWithTheContentIsUsedAsIfItsOriginWereThatOfTheTensor) {
  const std::string array_id = Put({});
  const ContentClaim content{array_id, {std::string(32, 'a'), std::string(32, 'b')}};
  const SourceFile copy = Model(/*change_s=*/7);
  EXPECT_EQ(Put({.file = copy, .content = content}), array_id);
  EXPECT_EQ(claims_, 1u);
  EXPECT_EQ(Put({.name = "v", .file = copy, .content = content}), array_id);
  EXPECT_EQ(claims_, 0u) << "it is found by the origin of the copy too";
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      BegunPutPtr put, Begin({.name = "w2", .file = Model(8), .spec = {}, .content = content}));
  EXPECT_EQ(claims_, 1u);
  ASSERT_TRUE(put->items[0].is_copied());
  EXPECT_EQ(put->items[0].reused->array().definition.descriptor.array_id, array_id);
  EXPECT_EQ(put->items[0].moved_bytes, 128) << "each rank gets the other's half";
  const std::string replicated = Commit(*put);
  // The copy has the origin of the new file.
  EXPECT_EQ(Put({.name = "w2", .file = Model(8), .spec = {}, .content = content}), replicated);
  EXPECT_EQ(claims_, 0u) << "an origin comes first";
}

TEST_F(PutReuseTest, AClaimThatIsFalseOrCannotBeTrueIsPutAnew) {
  const std::string array_id = Put({});
  const std::vector<std::string> two = {std::string(32, 'a'), std::string(32, 'b')};
  ArrayDescriptor other = Descriptor();  // of another shape
  const std::string other_id = AddArray(other, "other");
  const SourceFile copy = Model(/*change_s=*/7);
  const std::vector<Given> cases = {
      {.file = copy, .content = ContentClaim{array_id, two}, .is_true = false},
      {.file = copy, .content = ContentClaim{array_id, {two[0]}}},
      {.file = copy, .content = ContentClaim{"unknown", two}},
      {.file = copy, .content = ContentClaim{other_id, two}},
      {.file = copy, .reuse = false, .content = ContentClaim{array_id, two}}};
  for (size_t i = 0; i < cases.size(); ++i) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunPutPtr put, Begin(cases[i]));
    EXPECT_EQ(claims_, i == 0 ? 1u : 0u) << i;
    EXPECT_EQ(put->items[0].reused, nullptr) << i;
    EXPECT_THAT(transfers_.Abort(put->transfer_id, absl::CancelledError("enough")), IsOk());
  }
  registry_->TilesLost("m", 1, members_.view()->FindWorker("w1")->attachment);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunPutPtr put,
                                 Begin({.file = copy, .content = ContentClaim{array_id, two}}));
  EXPECT_EQ(claims_, 0u) << "it is degraded";
}

TEST_F(PutReuseTest, WorkersCopyTheTilesThatAreEqualAndTheClientSendsTheOthers) {
  const std::string array_id = Put({});
  const SourceFile changed = Model(/*change_s=*/7);
  const ContentClaim first{array_id, {std::string(32, 'a')}, {0}};
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunPutPtr put, Begin({.file = changed, .content = first}));
  EXPECT_EQ(claims_, 1u);
  const PutItem& item = put->items[0];
  ASSERT_TRUE(item.is_copied());
  EXPECT_THAT(item.sent_ranks, ElementsAre(1));
  EXPECT_EQ(item.moved_bytes, 0);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const TransferProgress progress,
                                 transfers_.Progress(put->transfer_id));
  EXPECT_EQ(progress.total_bytes, 128);
  EXPECT_EQ(progress.reused_bytes, 64);
  EXPECT_TRUE(progress.is_filled);
  const auto sent = fill_.sent("w0");
  ASSERT_THAT(sent, SizeIs(1));
  ASSERT_EQ(sent[0].tiles_size(), 1);
  EXPECT_EQ(sent[0].rank(), 0);
  EXPECT_EQ(sent[0].tiles(0).array_descriptor(),
            rpc::ArrayDescriptorBytes(item.definition.descriptor));
  EXPECT_LE(static_cast<int64_t>(sent[0].tiles(0).ByteSizeLong()),
            CopyOrderBytes(item.reused->array().definition.descriptor, item.definition.descriptor));
  EXPECT_THAT(fill_.sent("w1"), IsEmpty()) << "it gets its tile from the client";
  const v1::BeginPutResponse answer =
      PutAnswer(7, std::string(rpc::kTokenKeyBytes, 'k'), put).Next();
  ASSERT_EQ(answer.assignments_size(), 1);
  EXPECT_EQ(answer.assignments(0).reused().array_id(), array_id);
  EXPECT_THAT(answer.assignments(0).reused().sent_ranks(), ElementsAre(1));
  EXPECT_NE(answer.assignments(0).token(), "");

  const std::string made = Commit(*put);
  EXPECT_NE(made, array_id);
  EXPECT_EQ(ArrayOf("w"), made);
  EXPECT_EQ(transfers_.totals().reused_bytes, 64);
  EXPECT_EQ(Put({.file = changed}), made) << "it has the origin of the new file";
  // A claim that names all tiles is one about the whole array.
  const ContentClaim all{made, {std::string(32, 'a'), std::string(32, 'b')}, {0, 1}};
  EXPECT_EQ(Put({.file = Model(8), .content = all}), made);
}

TEST_F(PutReuseTest, ATensorWhoseTilesAllNeedOtherElementsOrThatTheWorkersReadIsNotCopiedPartly) {
  const std::string array_id = Put({});
  const SourceFile changed = Model(/*change_s=*/7);
  const std::vector<std::string> one = {std::string(32, 'a')};
  const ContentClaim first{array_id, one, {0}};
  const PartitionSpec columns({SpecEntry(), SpecEntry::Axis("x")});
  const std::vector<Given> cases = {{.file = changed, .content = first, .is_true = false},
                                    {.file = changed, .spec = columns, .content = first},
                                    {.file = changed, .spec = {}, .content = first},
                                    {.file = changed, .by_workers = true, .content = first},
                                    {.file = changed, .content = ContentClaim{array_id, one, {2}}}};
  for (size_t i = 0; i < cases.size(); ++i) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunPutPtr put, Begin(cases[i]));
    EXPECT_EQ(claims_, i == 0 ? 1u : 0u) << i;
    EXPECT_EQ(put->items[0].reused, nullptr) << i;
    EXPECT_THAT(put->items[0].sent_ranks, IsEmpty()) << i;
    EXPECT_THAT(transfers_.Abort(put->transfer_id, absl::CancelledError("enough")), IsOk());
  }
  // While a cached array is copied, it cannot be evicted for the copy.
  registry_->SetCaching(true);
  DeleteName("w");
  Beat((1 << 20) - 63);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunPutPtr put, Begin({.file = changed, .content = first}));
  EXPECT_EQ(claims_, 1u);
  EXPECT_EQ(put->items[0].reused, nullptr);
  EXPECT_THAT(put->items[0].sent_ranks, IsEmpty());
}

TEST_F(PutReuseTest, NoMoreTilesAreCopiedByOrdersOfTheirOwnThanThereMayBe) {
  const std::string array_id = Put({});
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const ArrayPtr array, registry_->FindArray(array_id));
  ArrayDescriptor made = array->definition.descriptor;
  made.array_id = "new0";
  // One mesh of two ranks, and two of the three orders.
  const int64_t max_bytes =
      2 * 2 * kDeviceBytes + 2 * CopyOrderBytes(array->definition.descriptor, made);
  PutReuse reuse({.registry = registry_.get(),
                  .membership = &members_,
                  .endpoints = &endpoints_,
                  .fill = &fill_,
                  .max_partly_copied_bytes = max_bytes});
  for (size_t i = 0; i < 3; ++i) {
    PutItem item;
    item.name = StrCat("v", i);
    item.definition.descriptor = array->definition.descriptor;
    item.definition.descriptor.array_id = StrCat("new", i);
    const auto claimed = reuse.PinClaimed({array_id, {std::string(32, 'a')}, {0}}, i, item);
    ASSERT_TRUE(claimed.has_value());
    EXPECT_EQ(claimed->item, i);
    EXPECT_THAT(claimed->tile_sha256, ElementsAre(std::string(32, 'a'), ""));
    reuse.Use(*claimed, item);
    EXPECT_EQ(item.is_copied(), i < 2) << i;
    EXPECT_THAT(item.sent_ranks, SizeIs(i < 2 ? 1 : 0)) << i;
  }
}

TEST(RanksToSendTest, AreThoseWhoseTilesMeetATileThatIsNotClaimed) {
  std::mt19937 random(11);
  const auto below = [&](int64_t limit) {
    return std::uniform_int_distribution<int64_t>(0, limit - 1)(random);
  };
  const Shape shape = {12, 12};
  const SpecEntry none;
  const SpecEntry x = SpecEntry::Axis("x");
  const SpecEntry y = SpecEntry::Axis("y");
  const std::vector<PartitionSpec> specs = {PartitionSpec(), PartitionSpec({x}),
                                            PartitionSpec({none, y}), PartitionSpec({x, y}),
                                            PartitionSpec({y, x})};
  const auto any_cuts = [&](int64_t parts) {
    CutPoints points = {0};
    for (int64_t i = 1; i < parts; ++i) points.push_back(below(13));
    points.push_back(12);
    std::sort(points.begin(), points.end());  // parts may be empty
    return points;
  };
  int partly = 0;
  for (int round = 0; round < 2'000; ++round) {
    const auto any_array = [&] {
      ArrayDescriptor array{.array_id = "a",
                            .dtype = Dtype::kF32,
                            .shape = shape,
                            .spec = specs[static_cast<size_t>(below(std::ssize(specs)))],
                            .mesh_id = "m",
                            .mesh_revision = 1,
                            .mesh = *Mesh::Parse("x=2,y=3"),
                            .cut_points = {}};
      if (below(2) == 0) return array;
      const Tiling even = *array.Tiling();
      array.cut_points.resize(2);
      for (int64_t dim = 0; dim < 2; ++dim) {
        if (even.PartCount(dim) == 1) continue;
        array.cut_points[static_cast<size_t>(dim)] = any_cuts(even.PartCount(dim));
      }
      return array;
    };
    const ArrayDescriptor from = any_array();
    const ArrayDescriptor to = any_array();
    const Tiling source = *from.Tiling();
    const Tiling destination = *to.Tiling();
    std::vector<std::string> digests(static_cast<size_t>(source.DistinctTileCount()));
    for (std::string& digest : digests) {
      if (below(4) != 0) digest = std::string(32, 'd');
    }
    std::vector<int64_t> expected;
    for (DeviceId rank = 0; rank < 6; ++rank) {
      for (size_t tile = 0; tile < digests.size(); ++tile) {
        const Tile unclaimed = source.ReplicaGroup(static_cast<int64_t>(tile)).tile;
        if (!digests[tile].empty() || !Intersect(unclaimed, destination.TileOf(rank))) continue;
        expected.push_back(rank);
        break;
      }
    }
    const std::optional<std::vector<int64_t>> ranks = RanksToSend(from, to, digests);
    ASSERT_EQ(ranks.has_value(), expected.size() < 6) << round;
    if (!ranks.has_value()) continue;
    EXPECT_EQ(*ranks, expected) << round;
    partly += ranks->empty() ? 0 : 1;
  }
  EXPECT_GT(partly, 100);
}

TEST(RanksToSendTest, ALargeMeshCopiesTensorsAsAWholeOrNotAtAll) {
  const auto array = [](int64_t ranks) {
    return ArrayDescriptor{.array_id = "a",
                           .dtype = Dtype::kF32,
                           .shape = {514},
                           .spec = PartitionSpec({SpecEntry::Axis("x")}),
                           .mesh_id = "m",
                           .mesh_revision = 1,
                           .mesh = *Mesh::Parse(StrCat("x=", ranks)),
                           .cut_points = {}};
  };
  const std::vector<std::string> digests = {"", std::string(32, 'd')};
  EXPECT_EQ(RanksToSend(array(2), array(2), digests), std::vector<int64_t>{0});
  EXPECT_EQ(RanksToSend(array(2), array(kMaxPartlyCopiedRanks + 1), digests), std::nullopt);
}

TEST_F(PutReuseTest, AClaimTakesAnArrayBackFromTheCache) {
  registry_->SetCaching(true);
  const std::string array_id = Put({});
  DeleteName("w");
  ASSERT_EQ(registry_->cache_totals().arrays, 1);
  const ContentClaim content{array_id, {std::string(32, 'a'), std::string(32, 'b')}};
  const SourceFile copy = Model(/*change_s=*/7);
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunPutPtr put,
                                   Begin({.file = copy, .content = content, .is_true = false}));
    EXPECT_THAT(transfers_.Abort(put->transfer_id, absl::CancelledError("enough")), IsOk());
  }
  EXPECT_EQ(registry_->cache_totals().arrays, 1) << "it is cached again";
  EXPECT_EQ(Put({.file = copy, .content = content}), array_id);
  EXPECT_EQ(ArrayOf("w"), array_id);
  EXPECT_EQ(registry_->cache_totals().arrays, 0);
}

TEST_F(PutReuseTest, AWorkerOfTheSourceThatIsLostMeanwhileEndsThePut) {
  Put({});
  int calls = 0;
  // The third call asks for the workers of the source: the first two ask for those of the mesh.
  endpoints_.on_endpoints = [&] {
    if (++calls == 3) endpoints_.endpoints.pop_back();
  };
  const absl::Status refused =
      Begin({.name = "v", .spec = PartitionSpec({SpecEntry(), SpecEntry::Axis("x")})}).status();
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kMeshIncomplete));
  EXPECT_THAT(std::string(refused.message()), ::testing::HasSubstr("was lost meanwhile"));
  EXPECT_TRUE(RetryDelayOf(refused).has_value());
  EXPECT_EQ(registry_->CountArrays().staging, 0);
}

TEST_F(PutReuseTest, AWorkerThatGetsNoOrdersYetEndsThePut) {
  Put({});
  int calls = 0;
  // At the third call the array was found, and the put is about to begin.
  endpoints_.on_endpoints = [&] {
    if (++calls < 3) return;
    fill_.can_fill = WithReason(absl::UnavailableError("it is not attached"), Reason::kNotServing);
  };
  EXPECT_THAT(Begin({.name = "v", .spec = PartitionSpec({SpecEntry(), SpecEntry::Axis("x")})}),
              StatusIs(absl::StatusCode::kUnavailable, Reason::kNotServing));
  EXPECT_EQ(registry_->CountArrays().staging, 0);
  EXPECT_THAT(fill_.sent("w0"), IsEmpty());
}

TEST_F(PutReuseTest, ADegradedArrayIsNotUsed) {
  const std::string array_id = Put({});
  registry_->TilesLost("m", 1, members_.view()->FindWorker("w1")->attachment);
  ASSERT_EQ((*registry_->FindArray(array_id))->state, ArrayState::kDegraded);
  for (const bool same : {true, false}) {
    Given given;
    if (!same) given.spec = PartitionSpec();
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunPutPtr put, Begin(given));
    EXPECT_EQ(put->items[0].reused, nullptr);
    EXPECT_THAT(transfers_.Abort(put->transfer_id, absl::CancelledError("enough")), IsOk());
  }
}

TEST_F(PutReuseTest, ATileThatIsLostAfterTheBeginningEndsThePut) {
  const std::string array_id = Put({});
  const int64_t version = registry_->VersionOf("w");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunPutPtr put, Begin({}));
  ASSERT_TRUE(put->items[0].is_kept());
  registry_->TileDamaged(array_id, 1);
  absl::Notification done;
  absl::Status ended;
  transfers_.Commit(put->transfer_id, "", clock_.Now() + absl::Minutes(1),
                    [&](const absl::StatusOr<TransferResult>& result) {
                      ended = result.status();
                      done.Notify();
                    });
  done.WaitForNotification();
  EXPECT_THAT(ended, StatusIs(absl::StatusCode::kUnavailable, Reason::kWorkerLost));
  EXPECT_THAT(std::string(ended.message()), ::testing::HasSubstr("the tile of rank 1"));
  EXPECT_EQ(registry_->VersionOf("w"), version);
  // The next put sends the elements again.
  EXPECT_NE(Put({}), array_id);
}

TEST_F(PutReuseTest, APutKeepsTheArraysThatItUsesUntilItsEnd) {
  const std::string array_id = Put({});
  SHARDMESH_ASSERT_OK_AND_ASSIGN(BegunPutPtr kept, Begin({}));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(BegunPutPtr copied, Begin({.name = "v", .spec = {}}));
  ASSERT_TRUE(copied->items[0].is_copied());
  DeleteName("w");
  EXPECT_THAT(registry_->FindArray(array_id), IsOk());
  const std::string transfers[] = {kept->transfer_id, copied->transfer_id};
  kept.reset();
  copied.reset();
  EXPECT_THAT(transfers_.Abort(transfers[0], absl::CancelledError("enough")), IsOk());
  EXPECT_THAT(registry_->FindArray(array_id), IsOk());
  EXPECT_THAT(transfers_.Abort(transfers[1], absl::CancelledError("enough")), IsOk());
  EXPECT_THAT(registry_->FindArray(array_id), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(PutReuseTest, AnAbortedPutLeavesAPinOfItsSessionAlone) {
  const std::string array_id = Put({});
  ASSERT_THAT(PinForSession(*registry_, sessions_, session_, array_id), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunPutPtr put, Begin({}));
  EXPECT_THAT(transfers_.Abort(put->transfer_id, absl::CancelledError("enough")), IsOk());
  EXPECT_EQ(PinnedBySession(), 1);
  EXPECT_EQ(ArrayOf("w"), array_id);
}

TEST_F(PutReuseTest, ALostWorkerAbortsAPutThatNeedsNoTile) {
  Put({});
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunPutPtr put, Begin({}));
  sequencer_->WorkerLost("w1", 3, "it is gone");
  // The store's thread may still be in the callback of the first put, and then ends the second too.
  EXPECT_TRUE(test::Eventually([&] {
    return ReasonOf(transfers_.Progress(put->transfer_id)->status) == Reason::kWorkerLost;
  }));
}

TEST_F(PutReuseTest, ValidatingFindsTheArrayAndChangesNothing) {
  const std::string array_id = Put({});
  const Revision before = store_->revision();
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunPutPtr put, Begin({.validate_only = true}));
    EXPECT_TRUE(put->items[0].is_kept());
    EXPECT_EQ(put->transfer_id, "");
  }
  EXPECT_EQ(store_->revision(), before);
  EXPECT_THAT(fill_.sent("w0"), IsEmpty());
}

TEST_F(PutReuseTest, APutNeedsNoMemoryForArraysThatAreThere) {
  Put({});
  Beat(1 << 20);  // nothing is left
  EXPECT_THAT(Begin({}), IsOk());
  EXPECT_THAT(Begin({.name = "v", .spec = {}}),
              StatusIs(absl::StatusCode::kResourceExhausted, Reason::kMemoryLimit));
}

TEST_F(PutReuseTest, AnArrayInMemoryDoesNotStandInForOneOnDisk) {
  const std::string array_id = Put({});
  for (const char* identity : {"w0", "w1"}) {
    // Both workers come back with a data folder.
    members_.Detach(members_.view()->FindWorker(identity)->attachment, "it restarts");
    ASSERT_THAT(members_.Attach({.identity = identity,
                                 .incarnation = 2,
                                 .build_version = "1",
                                 .endpoints = {"127.0.0.1:1"},
                                 .host = "host",
                                 .capacity_bytes = 1 << 20,
                                 .durable = true}),
                IsOk());
  }
  ASSERT_EQ((*registry_->FindArray(array_id))->durability, Durability::kMemory);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunPutPtr put, Begin({}));
  EXPECT_TRUE(put->items[0].is_copied());
}

TEST_F(PutReuseTest, AReleasedArrayIsTakenBackFromTheCache) {
  registry_->SetCaching(true);
  const std::string array_id = Put({});
  DeleteName("w");
  EXPECT_THAT(registry_->FindArray(array_id), StatusIs(absl::StatusCode::kNotFound));
  // Under another name, and in another layout.
  EXPECT_EQ(Put({.name = "v"}), array_id);
  EXPECT_EQ(registry_->cache_totals().hits, 1);
  DeleteName("v");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(BegunPutPtr put, Begin({.name = "v", .spec = {}}));
  ASSERT_TRUE(put->items[0].is_copied());
  EXPECT_EQ(put->items[0].reused->array().definition.descriptor.array_id, array_id);
  EXPECT_EQ(registry_->cache_totals().arrays, 0) << "it is not evicted while it is copied";
  const std::string copy = Commit(*put);
  put.reset();
  EXPECT_EQ(registry_->cache_totals().arrays, 1);
  EXPECT_EQ(ArrayOf("v"), copy);
  EXPECT_EQ(Put({}), array_id);
  EXPECT_EQ(registry_->cache_totals().hits, 3);
}

TEST_F(PutReuseTest, CachedTilesMakeRoomForAPut) {
  registry_->SetCaching(true);
  const std::string array_id = Put({});  // 64 bytes on each worker
  DeleteName("w");
  Beat(1 << 20);  // nothing is left beside the cached tiles
  EXPECT_THAT(Begin({.name = "v", .offset_bytes = 128, .validate_only = true}), IsOk());
  EXPECT_EQ(registry_->cache_totals().arrays, 1) << "a check evicts nothing";
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunPutPtr put, Begin({.name = "v", .offset_bytes = 128}));
  EXPECT_EQ(registry_->cache_totals().arrays, 0);
  EXPECT_EQ(registry_->cache_totals().evictions, 1);
  EXPECT_EQ(put->items[0].reused, nullptr);
}

TEST_F(PutReuseTest, APutTooLargeForTheMemoryEvictsNothing) {
  registry_->SetCaching(true);
  Put({});
  DeleteName("w");
  Beat((1 << 20) + 64);
  EXPECT_THAT(Begin({.name = "v", .offset_bytes = 128}),
              StatusIs(absl::StatusCode::kResourceExhausted, Reason::kMemoryLimit));
  EXPECT_EQ(registry_->cache_totals().arrays, 1);
}

TEST_F(PutReuseTest, ACachedArrayIsNotCopiedIfBothDoNotFit) {
  registry_->SetCaching(true);
  Put({});
  DeleteName("w");
  Beat((1 << 20) - 63);  // with the copy the memory would be a byte too small
  const PartitionSpec columns({SpecEntry(), SpecEntry::Axis("x")});
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunPutPtr put,
                                 Begin({.spec = columns, .by_workers = true}));
  EXPECT_EQ(put->items[0].reused, nullptr);
  EXPECT_TRUE(reads_files_) << "the workers read it anew";
  EXPECT_EQ(registry_->cache_totals().evictions, 1);
}

TEST_F(PutReuseTest, EvictsWhatWasUsedLongestAgoUntilAllWorkersAreWithinTheirLimits) {
  registry_->SetCaching(true);
  std::vector<std::string> ids;
  for (const char* name : {"a", "b", "c"}) {
    ids.push_back(Put({.name = name, .offset_bytes = 64 * std::ssize(ids)}));
    DeleteName(name);
  }
  EXPECT_EQ(CachedBytesOn(*members_.view(), registry_->CachedBytes(), "w0"), 192);
  EXPECT_EQ(cache_.Limit({{"w0", 192}, {"w1", 192}, {"unknown", 0}}), 0);
  EXPECT_EQ(Put({.name = "a", .offset_bytes = 0}), ids[0]);
  DeleteName("a");
  EXPECT_EQ(cache_.Limit({{"w0", 150}}), 64);
  EXPECT_EQ(Put({.name = "a", .offset_bytes = 0}), ids[0]) << "used last";
  DeleteName("a");
  EXPECT_NE(Put({.name = "b", .offset_bytes = 64}), ids[1]);
  EXPECT_EQ(cache_.Free("w1", 1), 64);
  EXPECT_EQ(cache_.Free("w1", 1'000), 64);
  EXPECT_EQ(cache_.Free("w1", 1'000), 0);
  EXPECT_EQ(registry_->cache_totals().arrays, 0);
}

TEST_F(PutReuseTest, ARequestForDiskSpaceEvictsOnlyArraysOnDisk) {
  registry_->SetCaching(true);
  const std::string in_memory = Put({.name = "a", .offset_bytes = 0});
  ASSERT_EQ((*registry_->FindArray(in_memory))->durability, Durability::kMemory);
  DeleteName("a");
  const std::string on_disk = Put({.name = "b", .offset_bytes = 64, .on_disk = true});
  ASSERT_EQ((*registry_->FindArray(on_disk))->durability, Durability::kDisk);
  DeleteName("b");
  EXPECT_EQ(registry_->cache_totals().arrays, 2);
  EXPECT_EQ(cache_.Free("unknown", 1, /*on_disk=*/true), 0);
  EXPECT_EQ(cache_.Free("w1", 1, /*on_disk=*/true), 64);
  EXPECT_EQ(cache_.Free("w1", 1'000, /*on_disk=*/true), 0);
  EXPECT_EQ(registry_->cache_totals().arrays, 1);
  EXPECT_EQ(cache_.Free("w1", 1'000), 64);
}

TEST_F(PutReuseTest, AValidationIsNoUseOfTheCache) {
  registry_->SetCaching(true);
  std::vector<std::string> ids;
  for (const char* name : {"a", "b", "c"}) {
    ids.push_back(Put({.name = name, .offset_bytes = 64 * std::ssize(ids)}));
    DeleteName(name);
  }
  const CacheTotals before = registry_->cache_totals();
  for (const std::string name : {"a", "other"}) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(BegunPutPtr checked,
                                   Begin({.name = name, .offset_bytes = 0, .validate_only = true}));
    EXPECT_NE(checked->items[0].reused, nullptr);
    checked = nullptr;
  }
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunPutPtr unknown,
                                 Begin({.name = "d", .offset_bytes = 512, .validate_only = true}));
  EXPECT_EQ(unknown->items[0].reused, nullptr);
  EXPECT_EQ(registry_->cache_totals().hits, before.hits);
  EXPECT_EQ(registry_->cache_totals().misses, before.misses);
  EXPECT_EQ(registry_->cache_totals().arrays, 3);
  EXPECT_EQ(registry_->ListCached()[0].array_id, ids[0]);
  // A put while the validation runs is a use.
  SHARDMESH_ASSERT_OK_AND_ASSIGN(BegunPutPtr checked,
                                 Begin({.name = "b", .offset_bytes = 64, .validate_only = true}));
  EXPECT_EQ(Put({.name = "b", .offset_bytes = 64}), ids[1]);
  EXPECT_EQ(registry_->cache_totals().hits, before.hits + 1);
  checked = nullptr;
  DeleteName("b");
  std::vector<std::string> order;
  for (const CachedArray& array : registry_->ListCached()) order.push_back(array.array_id);
  EXPECT_THAT(order, ElementsAre(ids[0], ids[2], ids[1]));
}

TEST_F(PutReuseTest, TheCacheIsTrimmedToTheLimitsOfTheWorkers) {
  members_.Detach(members_.view()->FindWorker("w0")->attachment, "it restarts");
  const WorkerInfo info{.identity = "w0",
                        .incarnation = 2,
                        .build_version = "1",
                        .endpoints = {"127.0.0.1:1"},
                        .host = "host",
                        .capacity_bytes = 1 << 20,
                        .cache_bytes = 64};
  ASSERT_THAT(members_.Attach(info), IsOk());
  cache_.WorkerAttached(info);
  Put({});
  DeleteName("w");
  EXPECT_EQ(registry_->cache_totals().arrays, 1);
  cache_.Trim();
  EXPECT_EQ(registry_->cache_totals().arrays, 0) << "w1 keeps none";
  Put({});
  DeleteName("w");
  EXPECT_EQ(cache_.DropAll().bytes, 128);
  EXPECT_EQ(cache_.DropAll().arrays, 0);
}

TEST_F(PutReuseTest, OriginsOutliveARestart) {
  const std::string sent = Put({.name = "sent", .conversion = "1 F16"});
  const std::string read = Put({.name = "read", .offset_bytes = 128, .by_workers = true});
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const auto reopened,
      ArrayRegistry::Open(store_.get(), &clock_, [](const auto&, const auto&) {}));
  for (const std::string& array_id : {sent, read}) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const ArrayPtr before, registry_->FindArray(array_id));
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const ArrayPtr after, reopened->FindArray(array_id));
    EXPECT_EQ(*after->definition.origin().file, Model());
    EXPECT_EQ(after->definition.source.file != nullptr, array_id == read);
    EXPECT_EQ(after->definition.origin().conversion, array_id == sent ? "1 F16" : "");
    EXPECT_EQ(after->definition.origin_key(), before->definition.origin_key());
    const auto found = reopened->FindByOrigin(after->definition.origin_key(), 8);
    ASSERT_THAT(found, SizeIs(1));
    EXPECT_EQ(found[0]->definition.descriptor.array_id, array_id);
  }
  EXPECT_THAT(reopened->FindByOrigin("", 8), IsEmpty());
}

TEST_F(PutReuseTest, RefusesBadOrigins) {
  EXPECT_EQ(rpc::FieldViolationsOf(Begin({.offset_bytes = 1'025}).status()).front().field,
            "origin.offset_bytes");
  const auto refused_field = [this](const PutTensor& tensor) {
    PutPlan plan({.clock = &clock_,
                  .definition_store = definition_store_.get(),
                  .membership = &members_,
                  .endpoints = &endpoints_,
                  .sessions = &sessions_,
                  .transfers = &transfers_});
    PutHeader header{.request_id = "r", .session_id = session_, .mesh_id = "m"};
    header.files = {std::make_shared<const SourceFile>(Model())};
    EXPECT_THAT(plan.TakeHeader(
                    std::move(header), caller_,
                    [](const Definitions&) { return std::optional<RuleSetDefinition>(); },
                    [](const Definitions&) { return PartitionAxis(); }),
                IsOk());
    return rpc::FieldViolationsOf(plan.TakeTensor(tensor)).front().field;
  };
  PutTensor tensor{.name = "w", .shape = {8, 4}, .spec = PartitionSpec()};
  tensor.source = FileRange{};
  tensor.origin = FileRange{};
  EXPECT_EQ(refused_field(tensor), "origin");
  tensor.source.reset();
  tensor.origin = FileRange{.file = 1, .offset_bytes = 0};
  EXPECT_EQ(refused_field(tensor), "origin.file");
}

}  // namespace
}  // namespace shardmesh::server
