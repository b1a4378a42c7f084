// Orders to quarantines of workers that answer in part, late, or not at all.
#include "server/quarantine_calls.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rpc/array_codec.h"
#include "rpc/spec_codec.h"
#include "server/local_store.h"
#include "server/membership.h"
#include "server/random_id.h"
#include "sharding/str_cat.h"
#include "shardmesh/v1/attach_service.pb.h"
#include "shardmesh/v1/cluster_service.pb.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::server {
namespace {

using test::IsOk;
using test::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Keeps orders until the test answers them.
class KeepingHub final : public AttachHub {
 public:
  struct Kept {
    int64_t number;
    std::string identity;
    v1::QuarantineOrder order;
    QuarantineAnswered answered;
  };

  int64_t OrderQuarantine(const std::string& identity, v1::QuarantineOrder order,
                          QuarantineAnswered answered) override {
    kept.push_back({++last_number_, identity, std::move(order), std::move(answered)});
    return last_number_;
  }
  void ForgetQuarantineOrder(int64_t number) override {
    const auto found = std::find_if(kept.begin(), kept.end(),
                                    [&](const Kept& each) { return each.number == number; });
    if (found == kept.end()) return;
    late.push_back(std::move(*found));
    kept.erase(found);
  }
  // Answers the first order that is kept.
  void Answer(absl::StatusOr<v1::QuarantineAnswer> answer) {
    ASSERT_FALSE(kept.empty());
    Kept first = std::move(kept.front());
    kept.erase(kept.begin());
    std::move(first.answered)(std::move(answer));
  }

  grpc::Service* service() override { return nullptr; }
  void SetSequencer(Sequencer*) override {}
  void SetTileListener(TileListener) override {}
  bool IsReady(std::string_view) const override { return true; }
  absl::Status CheckReady(std::string_view) const override { return absl::OkStatus(); }
  absl::StatusOr<std::vector<RankEndpoint>> Endpoints(std::string_view) const override {
    return std::vector<RankEndpoint>();
  }
  AttachFailures::Failures FailedAttachesOf(std::string_view) const override { return {}; }
  void Drop(const std::string&, const std::vector<std::string>&) override {}
  void MembershipChanged() override {}
  void SendVerdict(const std::string&, const InventoryVerdict&) override {}
  void WorkerLost(std::string_view, uint64_t) override {}
  void EndStreams() override {}
  void Start(const WorkRef&, const std::shared_ptr<const std::string>&) override {}
  void Commit(const WorkRef&) override {}
  void Abort(const WorkRef&, const absl::Status&) override {}

  std::vector<Kept> kept;
  std::vector<Kept> late;  // forgotten

 private:
  int64_t last_number_ = 0;
};

class QuarantineCallsTest : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* identity : {"w0", "w1"}) {
      ASSERT_THAT(members_.Attach({.identity = identity,
                                   .incarnation = 1,
                                   .build_version = "1",
                                   .endpoints = {"127.0.0.1:1"},
                                   .host = "host"}),
                  IsOk());
    }
    ASSERT_THAT(members_.AddMesh("m", 2, {}), IsOk());
    catalogue_ = *Catalogue::Open(store_.get(), &clock_, [](const auto&, const auto&) {});
  }
  ArrayContext Context() {
    ArrayContext context;
    context.clock = &clock_;
    context.membership = &members_;
    context.hub = &hub_;
    context.catalogue = catalogue_.get();
    return context;
  }
  QuarantineDone Done() {
    return [this](const absl::Status& status) { done_ = status; };
  }
  static ArrayDescriptor NewDescriptor() {
    ArrayDescriptor descriptor;
    descriptor.array_id = RandomId();
    descriptor.dtype = Dtype::kBF16;
    descriptor.shape = {8, 4};
    descriptor.spec = PartitionSpec({SpecEntry::Axis("dp")});
    descriptor.mesh_id = std::string("m");
    descriptor.mesh_revision = 3;
    descriptor.mesh = *Mesh::Parse("dp=2");
    return descriptor;
  }
  // An array with the name "w", of which no worker has brought a tile since the restart.
  ArrayDescriptor NewArray() {
    const ArrayDescriptor descriptor = NewDescriptor();
    EXPECT_THAT(catalogue_->Stage({.descriptor = descriptor}), IsOk());
    absl::Notification committed;
    catalogue_->Commit({{{.array_id = descriptor.array_id,
                          .durability = Durability::kDisk,
                          .tile_crc32c = {10, 11}}},
                        {{"w", descriptor.array_id, std::nullopt}},
                        "",
                        ""},
                       [&](const absl::StatusOr<CommitResult>& result) {
                         EXPECT_THAT(result, IsOk());
                         committed.Notify();
                       });
    committed.WaitForNotification();
    catalogue_.reset();
    catalogue_ = *Catalogue::Open(store_.get(), &clock_, [](const auto&, const auto&) {});
    return descriptor;
  }
  // What the worker of a rank says that it has.
  static v1::QuarantineAnswer Has(const ArrayDescriptor& descriptor, int64_t rank) {
    v1::QuarantineAnswer answer;
    v1::QuarantinedArray* const array = answer.add_arrays();
    array->set_identity(StrCat("w", rank));
    rpc::Encode(descriptor, array->mutable_array());
    v1::QuarantinedTile* const tile = array->add_tiles();
    rpc::Encode(descriptor.Tiling()->TileOf(rank), tile->mutable_tile());
    tile->set_crc32c(static_cast<uint32_t>(10 + rank));
    return answer;
  }
  // Its worker tells that it is back in use.
  void ComesBack(const ArrayDescriptor& descriptor, int64_t rank) {
    Inventory restored{.identity = StrCat("w", rank), .attachment = 1, .meshes = {}, .tiles = {}};
    restored.meshes["m"].rank = rank;
    restored.tiles.push_back({.array_id = descriptor.array_id,
                              .tile = descriptor.Tiling()->TileOf(rank),
                              .crc32c = static_cast<uint32_t>(10 + rank)});
    const InventoryVerdict verdict = catalogue_->TakeRestored(restored);
    EXPECT_TRUE(verdict.quarantine.empty());
  }
  std::vector<int64_t> MissingOf(const ArrayDescriptor& descriptor) {
    return (*catalogue_->FindArray(descriptor.array_id))->missing_ranks;
  }

  test::FakeClock clock_;
  Membership members_{&clock_};
  const std::unique_ptr<Store> store_ = CreateMemoryStore();
  std::unique_ptr<Catalogue> catalogue_;
  KeepingHub hub_;
  const QuarantineStopPtr stop_ = std::make_shared<QuarantineStop>();
  std::optional<absl::Status> done_;
};

TEST_F(QuarantineCallsTest, AWorkerThatDoesNotAnswerIsNamedAndNotWaitedForAnyLonger) {
  v1::ListQuarantineRequest request;
  v1::ListQuarantineResponse response;
  ListQuarantine(Context(), &hub_, &request, &response, stop_, Done());
  hub_.Answer(v1::QuarantineAnswer());
  clock_.Advance(absl::Minutes(4));
  EXPECT_FALSE(done_.has_value());
  clock_.Advance(absl::Minutes(1));
  ASSERT_TRUE(done_.has_value());
  EXPECT_THAT(*done_, StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(std::string(done_->message()), HasSubstr("\"w1\""));
  EXPECT_TRUE(hub_.kept.empty()) << "the order makes room for another";
  done_.reset();
  ASSERT_EQ(hub_.late.size(), 1u);
  std::move(hub_.late.front().answered)(v1::QuarantineAnswer());
  EXPECT_FALSE(done_.has_value()) << "the call is over";
}

TEST_F(QuarantineCallsTest, ACallThatItsClientCancelsEndsAndItsOrderIsForgotten) {
  v1::DropQuarantinedRequest request;
  request.add_array_ids(std::string("a"));
  v1::DropQuarantinedResponse response;
  DropQuarantined(Context(), &hub_, &request, &response, stop_, Done());
  ASSERT_EQ(hub_.kept.size(), 1u);
  stop_->Cancel();
  ASSERT_TRUE(done_.has_value());
  EXPECT_THAT(*done_, StatusIs(absl::StatusCode::kCancelled));
  EXPECT_TRUE(hub_.kept.empty()) << "nor is the next worker asked";
  done_.reset();
  std::move(hub_.late.front().answered)(v1::QuarantineAnswer());
  stop_->Cancel();
  EXPECT_FALSE(done_.has_value()) << "it ends once";

  // One that was cancelled before it began asks nobody.
  DropQuarantined(Context(), &hub_, &request, &response, stop_, Done());
  ASSERT_TRUE(done_.has_value());
  EXPECT_THAT(*done_, StatusIs(absl::StatusCode::kCancelled));
  EXPECT_TRUE(hub_.kept.empty());
}

TEST_F(QuarantineCallsTest, ARestoreThatHasBegunGoesOnThoughItsClientHasGone) {
  const ArrayDescriptor array = NewArray();
  v1::RestoreQuarantinedRequest request;
  request.set_array_id(array.array_id);
  v1::RestoreQuarantinedResponse response;
  RestoreQuarantined(Context(), &hub_, &request, &response, stop_, Done());
  hub_.Answer(Has(array, 0));
  hub_.Answer(Has(array, 1));
  ASSERT_FALSE(hub_.kept.empty());
  ASSERT_EQ(hub_.kept.front().order.action(), v1::QuarantineOrder::ACTION_RESTORE);
  stop_->Cancel();
  EXPECT_FALSE(done_.has_value());
  for (const int64_t rank : {0, 1}) {
    ComesBack(array, rank);
    hub_.Answer(Has(array, rank));
  }
  ASSERT_TRUE(done_.has_value());
  EXPECT_THAT(*done_, IsOk());
  EXPECT_THAT(MissingOf(array), ElementsAre());
}

TEST_F(QuarantineCallsTest, ARestoreUnderANameThatCannotBeMovesNothing) {
  NewArray();
  const ArrayDescriptor unknown = NewDescriptor();
  for (const std::string name : {"w", "a\nb"}) {
    v1::RestoreQuarantinedRequest request;
    request.set_array_id(unknown.array_id);
    request.set_name(name);
    v1::RestoreQuarantinedResponse response;
    done_.reset();
    RestoreQuarantined(Context(), &hub_, &request, &response, stop_, Done());
    hub_.Answer(Has(unknown, 0));
    hub_.Answer(Has(unknown, 1));
    ASSERT_TRUE(done_.has_value());
    EXPECT_THAT(*done_, name == "w"
                            ? StatusIs(absl::StatusCode::kAborted, Reason::kVersionMismatch)
                            : StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
    EXPECT_TRUE(hub_.kept.empty()) << "no worker is asked to move a tile";
  }
}

TEST_F(QuarantineCallsTest, EachTileThatComesBackCountsWhateverBecomesOfTheOthers) {
  const ArrayDescriptor array = NewArray();
  ASSERT_THAT(MissingOf(array), ElementsAre(0, 1));
  v1::RestoreQuarantinedRequest request;
  request.set_array_id(array.array_id);
  v1::RestoreQuarantinedResponse response;
  RestoreQuarantined(Context(), &hub_, &request, &response, stop_, Done());
  hub_.Answer(Has(array, 0));
  hub_.Answer(Has(array, 1));
  ASSERT_FALSE(hub_.kept.empty());
  EXPECT_EQ(hub_.kept.front().order.action(), v1::QuarantineOrder::ACTION_RESTORE);
  ComesBack(array, 0);
  hub_.Answer(Has(array, 0));
  hub_.Answer(absl::UnavailableError("worker \"w1\" was lost"));
  ASSERT_TRUE(done_.has_value());
  EXPECT_THAT(*done_, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(MissingOf(array), ElementsAre(1));
}

}  // namespace
}  // namespace shardmesh::server
