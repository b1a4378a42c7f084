// Puts and gets that a worker admits or refuses, by a clock of the test.
#include "worker/service/tile_gate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "process/crc32c.h"
#include "rpc/codec/array_codec.h"
#include "rpc/transfer_token.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/str_cat.h"
#include "tensor/buffer.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::worker {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

// The gate of a worker "w1", which has rank 1 of a mesh "m", x=2, at revision 3. Arrays are F32 of
// (8, 2), cut in two by rows.
class TileGateTest : public testing::Test {
 protected:
  static constexpr int64_t kTermNow = 5;
  static constexpr int64_t kOwnBytes = 4 * 2 * 4;

  TileGateTest() {
    store_ = *ShardStore::Open({.pool = pool_, .data_dir = ""});
    gate_ = std::make_unique<TileGate>(TileGate::Options{
        .identity = "w1",
        .store = store_.get(),
        .clock = &clock_,
        .staged = [this](const TileReport& report) { reports_.push_back(report); }});
  }

  void Serve(int64_t revision = 3, const std::string& mesh_id = "m") {
    auto view = std::make_shared<MembershipView>();
    view->epoch = 1;
    view->meshes.push_back(
        {.mesh_id = mesh_id,
         .revision = revision,
         .mesh = *Mesh::Create({{"x", 2}}),
         .devices = {{.rank = 0, .identity = "w0", .incarnation = 1, .endpoints = {}},
                     {.rank = 1, .identity = "w1", .incarnation = 7, .endpoints = {}}}});
    gate_->Serve({.term = kTermNow, .token_key = Key()}, view);
  }

  static std::string Key(char byte = 'k') { return std::string(rpc::kTokenKeyBytes, byte); }
  static ArrayDescriptor Rows(const std::string& id) {
    return {.array_id = id,
            .dtype = Dtype::kF32,
            .shape = {8, 2},
            .spec = *PartitionSpec::Create({AxisValue::Name("x")}),
            .mesh_id = "m",
            .mesh_revision = 3,
            .mesh = *Mesh::Create({{"x", 2}}),
            .cut_points = {}};
  }
  static Tile Own() { return {{{4, 8}, {0, 2}}}; }
  // A token that expires in a minute.
  std::string Token(const ArrayDescriptor& array, rpc::TransferDirection direction,
                    int64_t term = kTermNow, const std::string& key = Key()) const {
    return rpc::SignToken({.direction = direction,
                           .transfer_id = "t-" + array.array_id,
                           .session_id = "s",
                           .array_descriptor = rpc::ArrayDescriptorBytes(array),
                           .term = term,
                           .expire_time = clock_.Now() + absl::Minutes(1)},
                          key);
  }
  std::string PutToken(const std::string& id, int64_t term = kTermNow) const {
    return Token(Rows(id), rpc::TransferDirection::kPut, term);
  }
  std::string GetToken(const std::string& id) const {
    return Token(Rows(id), rpc::TransferDirection::kGet);
  }

  absl::StatusOr<std::unique_ptr<IncomingTile>> Open(const std::string& id,
                                                     const std::string& token) {
    return gate_->Open(
        {.token = token, .array_id = id, .tile = Own(), .size_bytes = kOwnBytes, .rank = 1});
  }
  absl::StatusOr<std::unique_ptr<IncomingTile>> Open(const std::string& id) {
    return Open(id, PutToken(id));
  }
  // Sends all bytes of the tile, and ends it unless `finish` is false.
  static absl::Status Fill(IncomingTile& tile, bool finish = true) {
    const std::string bytes(static_cast<size_t>(kOwnBytes), 'x');
    const absl::Span<const char> part(bytes);
    absl::Status sent = tile.Append(0, absl::MakeConstSpan(&part, 1), Crc32c(bytes));
    return sent.ok() && finish ? tile.Finish(Crc32c(bytes)) : sent;
  }
  absl::Status Put(const std::string& id) {
    SHARDMESH_ASSIGN_OR_RETURN(const std::unique_ptr<IncomingTile> tile, Open(id));
    return Fill(*tile);
  }

  test::FakeClock clock_;
  MemoryBudget budget_{int64_t{16} << 20};
  std::shared_ptr<BufferPool> pool_ = BufferPool::Create(&budget_, 0);
  std::unique_ptr<ShardStore> store_;
  std::vector<TileReport> reports_;
  std::unique_ptr<TileGate> gate_;
};

const auto kNotServingNow = StatusIs(absl::StatusCode::kUnavailable, Reason::kNotServing);

TEST_F(TileGateTest, RefusesAllUntilItServes) {
  const absl::Status put = Open("a").status();
  EXPECT_THAT(put, kNotServingNow);
  EXPECT_TRUE(RetryDelayOf(put).has_value());
  EXPECT_EQ(FactOf(put, fact::kIdentity), "w1");
  EXPECT_THAT(gate_->Find(GetToken("a"), "a", std::nullopt), kNotServingNow);
  Serve();
  EXPECT_THAT(Put("a"), IsOk());
}

TEST_F(TileGateTest, ReportsAWholeTileWithTheTimeItTook) {
  Serve();
  auto tile = Open("a");
  ASSERT_THAT(tile, IsOk());
  EXPECT_EQ((*tile)->size_bytes(), kOwnBytes);
  clock_.Advance(absl::Seconds(3));
  EXPECT_THAT(reports_, IsEmpty());
  ASSERT_THAT(Fill(**tile), IsOk());
  ASSERT_THAT(reports_, SizeIs(1));
  EXPECT_EQ(reports_[0].transfer_id, "t-a");
  EXPECT_EQ(reports_[0].array_id, "a");
  EXPECT_EQ(reports_[0].rank, 1);
  EXPECT_EQ(reports_[0].size_bytes, kOwnBytes);
  EXPECT_FALSE(reports_[0].durable);
  EXPECT_EQ(reports_[0].transfer_time, absl::Seconds(3));
  EXPECT_EQ(reports_[0].term, kTermNow);
}

TEST_F(TileGateTest, CountsWhatHasArrivedOfTilesOnTheirWay) {
  Serve();
  EXPECT_THAT(gate_->Arriving(), IsEmpty());
  auto dropped = Open("a");
  ASSERT_THAT(dropped, IsOk());
  ASSERT_THAT(Fill(**dropped, /*finish=*/false), IsOk());
  auto in_place = Open("b");
  ASSERT_THAT(in_place, IsOk());
  ASSERT_THAT((*in_place)->MutableBytes(), IsOk());
  (*in_place)->Advance(8);
  (*in_place)->Advance(kOwnBytes);  // bytes that come twice count once
  EXPECT_THAT(gate_->Arriving(), ElementsAre(Pair("t-a", kOwnBytes), Pair("t-b", kOwnBytes)));
  dropped->reset();
  EXPECT_THAT(gate_->Arriving(), ElementsAre(Pair("t-b", kOwnBytes)));
  ASSERT_THAT((*in_place)->FinishInPlace(std::nullopt), IsOk());
  EXPECT_THAT(gate_->Arriving(), IsEmpty());
}

TEST_F(TileGateTest, TokensExpireByTheClockOfTheCoordinator) {
  Serve();
  const std::string token = PutToken("a");
  const auto expired = StatusIs(absl::StatusCode::kPermissionDenied, Reason::kBadToken);
  gate_->SetCoordinatorTime(clock_.Now() + absl::Minutes(2));
  EXPECT_THAT(Open("a", token), expired);
  gate_->SetCoordinatorTime(clock_.Now() - absl::Minutes(1));
  EXPECT_THAT(Open("a", token), IsOk());
  clock_.Advance(absl::Seconds(119));
  EXPECT_THAT(Open("a", token), IsOk());
  clock_.Advance(absl::Seconds(2));
  EXPECT_THAT(Open("a", token), expired);
}

TEST_F(TileGateTest, RefusesTokensOfAnotherArrayOrAnOlderTerm) {
  Serve();
  EXPECT_THAT(Open("a", PutToken("b")),
              StatusIs(absl::StatusCode::kPermissionDenied, Reason::kBadToken));
  EXPECT_THAT(Open("a", GetToken("a")),
              StatusIs(absl::StatusCode::kPermissionDenied, Reason::kBadToken));
  EXPECT_THAT(Open("a", PutToken("a", kTermNow - 1)),
              StatusIs(absl::StatusCode::kAborted, Reason::kStaleTerm));
  EXPECT_THAT(Open("a", Token(Rows("a"), rpc::TransferDirection::kPut, kTermNow, Key('n'))),
              StatusIs(absl::StatusCode::kUnauthenticated, Reason::kBadToken));
  EXPECT_EQ(store_->used_bytes(), 0);
}

TEST_F(TileGateTest, SaysOfWhichMeshItHasNotHeardYet) {
  Serve();
  const auto bad_tile = StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadTile);
  const auto unknown_of = [&](const ArrayDescriptor& array, const Tile& tile, DeviceId rank,
                              int64_t size_bytes) {
    std::optional<UnknownMesh> unknown;
    const std::string token = Token(array, rpc::TransferDirection::kPut);
    EXPECT_THAT(gate_->Open({.token = token,
                             .array_id = array.array_id,
                             .tile = tile,
                             .size_bytes = size_bytes,
                             .rank = rank},
                            &unknown),
                bad_tile);
    return unknown.has_value() ? StrCat(unknown->mesh_id, " ", unknown->revision) : "";
  };
  ArrayDescriptor array = Rows("a");
  array.mesh_revision = 4;
  EXPECT_EQ(unknown_of(array, Own(), 1, kOwnBytes), "m 4");
  array.mesh_revision = 2;
  EXPECT_EQ(unknown_of(array, Own(), 1, kOwnBytes), "") << "an older definition never comes back";
  array.mesh_revision = 3;
  array.mesh_id = "n";
  EXPECT_EQ(unknown_of(array, Own(), 1, kOwnBytes), "n 3");
  array.mesh_id = "m";
  EXPECT_EQ(unknown_of(array, Own(), 0, kOwnBytes), "") << "the rank of another worker";
  EXPECT_EQ(unknown_of(array, Tile{{{0, 4}, {0, 2}}}, 1, kOwnBytes), "") << "the tile of rank 0";
  EXPECT_EQ(unknown_of(array, Own(), 1, kOwnBytes + 4), "");
  EXPECT_EQ(store_->used_bytes(), 0);
}

TEST_F(TileGateTest, WaitsForAMeshUntilItComes) {
  Serve();
  gate_->AwaitMesh({.mesh_id = "m", .revision = 3}, absl::InfiniteFuture());  // known
  gate_->AwaitMesh({.mesh_id = "m", .revision = 4}, absl::Now());             // in vain
  std::thread newer(
      [this] { gate_->AwaitMesh({.mesh_id = "m", .revision = 4}, absl::InfiniteFuture()); });
  Serve(/*revision=*/5);
  newer.join();
  std::thread ended(
      [this] { gate_->AwaitMesh({.mesh_id = "n", .revision = 1}, absl::InfiniteFuture()); });
  gate_->Suspend();
  ended.join();
}

TEST_F(TileGateTest, ASuspensionDropsTilesOnTheirWayAndEndsTheirPuts) {
  Serve();
  auto tile = Open("a");
  ASSERT_THAT(tile, IsOk());
  gate_->Suspend();
  EXPECT_THAT(Fill(**tile), kNotServingNow);
  EXPECT_THAT(Open("b"), kNotServingNow);
  tile->reset();
  EXPECT_EQ(store_->used_bytes(), 0);
  Serve();
  EXPECT_THAT(Open("a"), StatusIs(absl::StatusCode::kAborted, Reason::kStaleTerm));
  EXPECT_THAT(Put("b"), IsOk());
  EXPECT_THAT(reports_, SizeIs(1));
}

TEST_F(TileGateTest, AReportedTileOutlivesASuspension) {
  Serve();
  ASSERT_THAT(Put("a"), IsOk());
  gate_->Suspend();
  EXPECT_THAT(store_->FindAllStaged("a"), IsOk());
}

TEST_F(TileGateTest, TheEndOfAPutDecidesAboutItsTiles) {
  Serve();
  ASSERT_THAT(Put("a"), IsOk());
  ASSERT_THAT(Put("b"), IsOk());
  EXPECT_THAT(gate_->EndTransfer("t-a", /*commit=*/true), IsOk());
  EXPECT_THAT(gate_->EndTransfer("t-b", /*commit=*/false), IsOk());
  EXPECT_THAT(gate_->EndTransfer("never heard of", /*commit=*/true), IsOk());
  EXPECT_THAT(store_->FindAll("a"), IsOk());
  EXPECT_FALSE(store_->FindAllStaged("b").ok());
  EXPECT_THAT(Open("b"), StatusIs(absl::StatusCode::kAborted, Reason::kStaleTerm));
}

// A tile that was being repaired came back from the quarantine before its order was carried out.
TEST_F(TileGateTest, TheAbortOfATransferLeavesCommittedArraysAlone) {
  Serve();
  const auto token = [this](const std::string& id, const std::string& transfer_id) {
    return rpc::SignToken({.direction = rpc::TransferDirection::kPut,
                           .transfer_id = transfer_id,
                           .session_id = "s",
                           .array_descriptor = rpc::ArrayDescriptorBytes(Rows(id)),
                           .term = kTermNow,
                           .expire_time = clock_.Now() + absl::Minutes(1)},
                          Key());
  };
  ASSERT_THAT(Put("a"), IsOk());
  ASSERT_THAT(gate_->EndTransfer("t-a", /*commit=*/true), IsOk());
  EXPECT_THAT(Open("a", token("a", "repair")),
              StatusIs(absl::StatusCode::kAlreadyExists, Reason::kAlreadyExists));
  {
    const auto other = Open("b", token("b", "repair"));
    ASSERT_THAT(other, IsOk());
    ASSERT_THAT(Fill(**other), IsOk());
  }
  EXPECT_THAT(gate_->EndTransfer("repair", /*commit=*/false), IsOk());
  EXPECT_THAT(store_->FindAll("a"), IsOk());
  EXPECT_FALSE(store_->FindAllStaged("b").ok());
}

TEST_F(TileGateTest, ForgetsTheOldestOfManyEndedPuts) {
  Serve();
  ASSERT_THAT(gate_->EndTransfer("t-a", /*commit=*/false), IsOk());
  for (int i = 1; i < 4096; ++i) {
    ASSERT_THAT(gate_->EndTransfer(StrCat("t", i), /*commit=*/false), IsOk());
  }
  EXPECT_THAT(Open("a"), StatusIs(absl::StatusCode::kAborted, Reason::kStaleTerm));
  ASSERT_THAT(gate_->EndTransfer("one more", /*commit=*/false), IsOk());
  EXPECT_THAT(Open("a"), IsOk());
}

TEST_F(TileGateTest, FindsTilesAndPartsOfThem) {
  Serve();
  ASSERT_THAT(Put("a"), IsOk());
  const auto whole = gate_->Find(GetToken("a"), "a", std::nullopt);
  ASSERT_THAT(whole, IsOk());  // before the commit: the token says that it is committed
  ASSERT_THAT(*whole, SizeIs(1));
  EXPECT_EQ((*whole)[0].range, Own());
  const Tile part{{{5, 6}, {0, 1}}};
  const auto found = gate_->Find(GetToken("a"), "a", part);
  ASSERT_THAT(found, IsOk());
  EXPECT_EQ((*found)[0].range, part);
  EXPECT_EQ((*found)[0].stored->description().tile, Own());
  for (const Tile& outside : {Tile{{{3, 6}, {0, 1}}}, Tile{{{5, 6}}}}) {
    EXPECT_THAT(gate_->Find(GetToken("a"), "a", outside),
                StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadTile));
  }
  EXPECT_THAT(gate_->Find(GetToken("b"), "b", std::nullopt), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(gate_->Find(GetToken("b"), "a", std::nullopt),
              StatusIs(absl::StatusCode::kPermissionDenied, Reason::kBadToken));
}

TEST_F(TileGateTest, ServesGetsOfTheLastCoordinatorWhileSuspended) {
  Serve();
  ASSERT_THAT(Put("a"), IsOk());
  ASSERT_THAT(gate_->EndTransfer("t-a", /*commit=*/true), IsOk());
  const std::string of_another =
      Token(Rows("a"), rpc::TransferDirection::kGet, kTermNow + 1, Key('n'));
  EXPECT_THAT(gate_->Find(of_another, "a", std::nullopt),
              StatusIs(absl::StatusCode::kUnauthenticated, Reason::kBadToken));
  gate_->Suspend();
  EXPECT_THAT(gate_->Find(GetToken("a"), "a", std::nullopt), IsOk());
  EXPECT_THAT(gate_->Find(of_another, "a", std::nullopt), kNotServingNow)
      << "of the next coordinator, perhaps";
}

TEST_F(TileGateTest, ServesNothingWhileItDrains) {
  Serve();
  ASSERT_THAT(Put("a"), IsOk());
  ASSERT_THAT(gate_->EndTransfer("t-a", /*commit=*/true), IsOk());
  gate_->Drain();
  EXPECT_THAT(Open("b"), kNotServingNow);
  EXPECT_THAT(gate_->Find(GetToken("a"), "a", std::nullopt), kNotServingNow);
  Serve();
  EXPECT_THAT(Open("b"), kNotServingNow) << "for good";
}

}  // namespace
}  // namespace shardmesh::worker
