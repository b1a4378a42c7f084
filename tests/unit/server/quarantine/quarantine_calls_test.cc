// Orders to quarantines of workers that answer in part, late, or not at all.
#include "server/quarantine/quarantine_calls.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "process/random_bytes.h"
#include "rpc/codec/array_codec.h"
#include "rpc/codec/spec_codec.h"
#include "rpc/codec/status.h"
#include "rpc/codec/worker_error_codec.h"
#include "server/state/definitions.h"
#include "server/state/membership.h"
#include "server/state/recovery.h"
#include "server/state/request_memory.h"
#include "server/state/session.h"
#include "server/state/session_pins.h"
#include "server/store/local_store.h"
#include "shardmesh/internal/v1/attach_service.pb.h"
#include "shardmesh/v1/cluster_service.pb.h"
#include "status/detail.h"
#include "status/str_cat.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/server/define_mesh.h"

namespace shardmesh::server {
namespace {

using test::IsOk;
using test::IsOkAndHolds;
using test::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Keeps orders until the test answers them.
class KeepingHub final : public QuarantineAccess {
 public:
  struct Kept {
    int64_t number;
    std::string identity;
    internal::v1::QuarantineOrder order;
    QuarantineAnswered answered;
  };

  int64_t OrderQuarantine(const std::string& identity, const internal::v1::QuarantineOrder& order,
                          QuarantineAnswered answered) override {
    kept.push_back({++last_number_, identity, order, std::move(answered)});
    return last_number_;
  }
  void ForgetQuarantineOrder(int64_t number) override {
    const auto found = std::find_if(kept.begin(), kept.end(),
                                    [&](const Kept& each) { return each.number == number; });
    if (found == kept.end()) return;
    late.push_back(std::move(*found));
    kept.erase(found);
  }
  // Answers the first order that is kept, or the one that came so many later.
  void Answer(absl::StatusOr<internal::v1::QuarantineAnswer> answer, size_t place = 0) {
    ASSERT_LT(place, kept.size());
    Kept order = std::move(kept[place]);
    kept.erase(kept.begin() + static_cast<ptrdiff_t>(place));
    std::move(order.answered)(std::move(answer));
  }

  void SendVerdict(const std::string&, const InventoryVerdict&) override {}

  std::vector<Kept> kept;
  std::vector<Kept> late;  // forgotten

 private:
  int64_t last_number_ = 0;
};

class QuarantineCallsTest : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* identity : {"w0", "w1"}) {
      Attach(identity);
    }
    ASSERT_THAT(members_.AddMesh("m", 2, {}), IsOk());
    registry_ = *ArrayRegistry::Open(store_.get(), &clock_, [](const auto&, const auto&) {});
    DefineMesh(definition_store_.get(), "m", mesh_);
  }
  void Attach(const std::string& identity) {
    const auto attachment = members_.Attach({.identity = identity,
                                             .incarnation = ++incarnation_,
                                             .build_version = "1",
                                             .endpoints = {"127.0.0.1:1"},
                                             .host = "host"});
    ASSERT_THAT(attachment, IsOk());
    attachments_[identity] = *attachment;
    recovery_.Heard(identity);
  }
  // A worker whose tiles are on its disk is killed.
  void Lose(const std::string& identity) {
    members_.Detach(attachments_[identity], "it was killed");
    recovery_.Lost(identity);
  }
  CoordinatorParts Context() {
    CoordinatorParts context;
    context.clock = &clock_;
    context.definition_store = definition_store_.get();
    context.recovery = &recovery_;
    context.membership = &members_;
    context.registry = registry_.get();
    context.sessions = &sessions_;
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
  // The worker of a rank brings its tiles of arrays that the registry does not know.
  void BringUnnamed(const std::vector<ArrayDescriptor>& arrays, int64_t rank) {
    Inventory inventory{
        .identity = StrCat("w", rank), .attachment = ++inventories_, .meshes = {}, .tiles = {}};
    for (const ArrayDescriptor& descriptor : arrays) {
      inventory.tiles.push_back({.array_id = descriptor.array_id,
                                 .tile = descriptor.Tiling()->TileOf(rank),
                                 .crc32c = static_cast<uint32_t>(10 + rank),
                                 .committed = true,
                                 .on_disk = true,
                                 .descriptor = descriptor});
    }
    inventory.meshes["m"] = {.mesh = &mesh_, .rank = rank, .identities = identities_};
    EXPECT_THAT(registry_->TakeInventory(inventory).quarantine, IsEmpty());
  }
  // Waits for the store's thread to have made the calls that it began.
  void Settle() { ASSERT_THAT(CommitAndWait(*store_, {}), IsOk()); }
  // Of a call that waits for answers.
  static auto HasNotEnded() { return StatusIs(absl::StatusCode::kUnknown); }
  // What becomes of the call, whose first orders are answered so.
  absl::Status Restore(const std::string& id, std::vector<internal::v1::QuarantineAnswer> answers,
                       const std::string& name = "") {
    restore_.set_array_id(id);
    restore_.set_name(name);
    done_.reset();
    RestoreQuarantined(Context(), &hub_, &restore_, &restored_, stop_, Done());
    for (internal::v1::QuarantineAnswer& answer : answers) hub_.Answer(std::move(answer));
    // An array that is held without a name gets one at once: that call ends on the store's thread.
    Settle();
    return done_.value_or(absl::UnknownError("it has not ended"));
  }
  absl::Status Drop(const std::vector<std::string>& ids, bool even_partly,
                    std::vector<internal::v1::QuarantineAnswer> answers) {
    drop_.Clear();
    for (const std::string& id : ids) drop_.add_array_ids(id);
    drop_.set_even_partly(even_partly);
    dropped_.Clear();
    done_.reset();
    DropQuarantined(Context(), &hub_, &drop_, &dropped_, stop_, Done());
    for (internal::v1::QuarantineAnswer& answer : answers) hub_.Answer(std::move(answer));
    return done_.value_or(absl::UnknownError("it has not ended"));
  }
  // An array with the name "w", of which no worker has brought a tile since the restart.
  ArrayDescriptor NewArray() {
    const ArrayDescriptor descriptor = NewDescriptor();
    EXPECT_THAT(registry_->Stage({.descriptor = descriptor}), IsOk());
    absl::Notification committed;
    registry_->Commit({{{.array_id = descriptor.array_id,
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
    registry_.reset();
    registry_ = *ArrayRegistry::Open(store_.get(), &clock_, [](const auto&, const auto&) {});
    return descriptor;
  }
  // What the worker of a rank says that it has.
  static internal::v1::QuarantineAnswer Has(const ArrayDescriptor& descriptor, int64_t rank) {
    internal::v1::QuarantineAnswer answer;
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
    const InventoryVerdict verdict = registry_->TakeRestored(restored);
    EXPECT_TRUE(verdict.quarantine.empty());
  }
  // Begins a restore of the array, up to the orders to both workers to restore it.
  void BeginRestore(const ArrayDescriptor& array, v1::RestoreQuarantinedRequest* request,
                    v1::RestoreQuarantinedResponse* response) {
    request->set_array_id(array.array_id);
    RestoreQuarantined(Context(), &hub_, request, response, stop_, Done());
    hub_.Answer(Has(array, 0));
    hub_.Answer(Has(array, 1));
    ASSERT_FALSE(hub_.kept.empty());
    ASSERT_EQ(hub_.kept.front().order.action(), internal::v1::QuarantineOrder::ACTION_RESTORE);
  }
  std::vector<int64_t> MissingOf(const ArrayDescriptor& descriptor) {
    return (*registry_->FindArray(descriptor.array_id))->missing_ranks;
  }

  const Mesh mesh_ = *Mesh::Parse("dp=2");
  const std::vector<std::string> identities_ = {"w0", "w1"};
  test::FakeClock clock_;
  Recovery recovery_{&clock_};
  Membership members_{&clock_, {.lost_after = absl::Hours(1)}};  // nobody sends heartbeats here
  uint64_t incarnation_ = 0;
  std::map<std::string, uint64_t> attachments_;
  uint64_t inventories_ = 0;
  const std::unique_ptr<Store> store_ = CreateMemoryStore();
  const std::unique_ptr<RequestMemory> requests_ = *RequestMemory::Open(store_.get(), &clock_);
  const std::unique_ptr<DefinitionStore> definition_store_ =
      *DefinitionStore::Open(store_.get(), &clock_, requests_.get());
  std::unique_ptr<ArrayRegistry> registry_;
  SessionTable sessions_{&clock_, [](const EndedSession&) {}};
  KeepingHub hub_;
  const QuarantineStopPtr stop_ = std::make_shared<QuarantineStop>();
  v1::RestoreQuarantinedRequest restore_;
  v1::RestoreQuarantinedResponse restored_;
  v1::DropQuarantinedRequest drop_;
  v1::DropQuarantinedResponse dropped_;
  std::optional<absl::Status> done_;
};

TEST_F(QuarantineCallsTest, AWorkerThatDoesNotAnswerIsNamedAndNotWaitedForAnyLonger) {
  v1::ListQuarantineRequest request;
  v1::ListQuarantineResponse response;
  ListQuarantine(Context(), &hub_, &request, &response, stop_, Done());
  hub_.Answer(internal::v1::QuarantineAnswer());
  clock_.Advance(absl::Minutes(4));
  EXPECT_FALSE(done_.has_value());
  clock_.Advance(absl::Minutes(1));
  ASSERT_TRUE(done_.has_value());
  EXPECT_THAT(*done_, StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(std::string(done_->message()), HasSubstr("\"w1\""));
  EXPECT_TRUE(hub_.kept.empty()) << "the order makes room for another";
  done_.reset();
  ASSERT_EQ(hub_.late.size(), 1u);
  std::move(hub_.late.front().answered)(internal::v1::QuarantineAnswer());
  EXPECT_FALSE(done_.has_value()) << "the call is over";
}

TEST_F(QuarantineCallsTest, TellsForWhichWorkerACallWaits) {
  v1::ListQuarantineRequest request;
  v1::ListQuarantineResponse response;
  EXPECT_EQ(stop_->awaited(), "");
  ListQuarantine(Context(), &hub_, &request, &response, stop_, Done());
  EXPECT_EQ(stop_->awaited(), "w0");
  hub_.Answer(internal::v1::QuarantineAnswer());
  EXPECT_EQ(stop_->awaited(), "w1");
  hub_.Answer(internal::v1::QuarantineAnswer());
  EXPECT_TRUE(done_.has_value());
  EXPECT_EQ(stop_->awaited(), "");
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
  std::move(hub_.late.front().answered)(internal::v1::QuarantineAnswer());
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
  v1::RestoreQuarantinedResponse response;
  ASSERT_NO_FATAL_FAILURE(BeginRestore(array, &request, &response));
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

TEST_F(QuarantineCallsTest, APartialSumOfAnEarlierRevisionOfItsMeshIsNotRestored) {
  ArrayDescriptor sum = NewDescriptor();
  sum.spec = PartitionSpec({}, {"dp"});
  sum.mesh_revision = 0;
  const absl::Status refused = Restore(sum.array_id, {Has(sum, 0), Has(sum, 1)});
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("partial sum on revision 0"), HasSubstr("compute it again")));
  EXPECT_TRUE(hub_.kept.empty()) << "no worker is asked to move a tile";
}

TEST_F(QuarantineCallsTest, ValidatesARestoreAndMovesNothing) {
  const ArrayDescriptor unknown = NewDescriptor();
  restore_.set_validate_only(true);
  EXPECT_THAT(Restore(unknown.array_id, {Has(unknown, 0), {}}, "new"),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kMeshIncomplete));
  EXPECT_THAT(Restore(unknown.array_id, {Has(unknown, 0), Has(unknown, 1)}, "a\nb"),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  EXPECT_THAT(Restore(unknown.array_id, {Has(unknown, 0), Has(unknown, 1)}, "new"), IsOk());
  EXPECT_TRUE(hub_.kept.empty()) << "no worker is asked to move a tile";
  EXPECT_EQ(restored_.name(), "new");
  EXPECT_THAT(restored_.identities(), ElementsAre("w0", "w1"));
  EXPECT_FALSE(registry_->FindArray(unknown.array_id).ok()) << "it is not staged";

  const ArrayDescriptor known = NewArray();
  restored_.Clear();
  EXPECT_THAT(Restore(known.array_id, {Has(known, 0), Has(known, 1)}), IsOk());
  EXPECT_TRUE(hub_.kept.empty());
  EXPECT_THAT(restored_.identities(), ElementsAre("w0", "w1"));
  EXPECT_THAT(MissingOf(known), ElementsAre(0, 1));
}

TEST_F(QuarantineCallsTest, ValidatesADropAndDropsNothing) {
  const ArrayDescriptor array = NewDescriptor();
  const auto check = [&](bool even_partly, std::vector<internal::v1::QuarantineAnswer> answers) {
    drop_.Clear();
    drop_.add_array_ids(array.array_id);
    drop_.set_even_partly(even_partly);
    drop_.set_validate_only(true);
    dropped_.Clear();
    done_.reset();
    DropQuarantined(Context(), &hub_, &drop_, &dropped_, stop_, Done());
    for (internal::v1::QuarantineAnswer& answer : answers) hub_.Answer(std::move(answer));
    EXPECT_TRUE(hub_.kept.empty()) << "no worker is asked to drop anything";
    return done_.value_or(absl::UnknownError("it has not ended"));
  };
  EXPECT_THAT(check(false, {{}, {}}), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(check(false, {Has(array, 0), Has(array, 1)}), IsOk());
  ASSERT_EQ(dropped_.arrays_size(), 2);
  EXPECT_EQ(dropped_.arrays(0).identity(), "w0");
  EXPECT_EQ(dropped_.arrays(0).array().array_id(), array.array_id);
  EXPECT_EQ(dropped_.arrays(1).identity(), "w1");

  Lose("w1");
  clock_.Advance(Recovery::kDefaultReturnGrace);
  EXPECT_THAT(check(false, {Has(array, 0)}),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kMeshIncomplete));
  EXPECT_THAT(check(true, {Has(array, 0)}), IsOk());
  EXPECT_EQ(dropped_.arrays_size(), 1);
  ASSERT_EQ(dropped_.unreached_size(), 1);
  EXPECT_EQ(dropped_.unreached(0).identity(), "w1");
}

TEST_F(QuarantineCallsTest, APartialSumFromBeforeItsRanksWereGivenAnewIsNotRestored) {
  ArrayDescriptor sum = NewDescriptor();
  sum.spec = PartitionSpec({}, {"dp"});
  const auto state = [&] { return definition_store_->shared_state(); };
  sum.mesh_revision = (*state()->Find(DefinitionKind::kMesh, "m"))->revision;
  absl::Notification assigned;
  definition_store_->Assign("m", identities_, [&](const auto& mesh) {
    EXPECT_THAT(mesh.status(), IsOk());
    assigned.Notify();
  });
  assigned.WaitForNotification();
  const absl::Status refused = Restore(sum.array_id, {Has(sum, 0), Has(sum, 1)});
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("compute it again"));
  EXPECT_TRUE(hub_.kept.empty()) << "no worker is asked to move a tile";

  sum.mesh_revision = RanksRevisionOf(**state()->Find(DefinitionKind::kMesh, "m"));
  EXPECT_THAT(Restore(sum.array_id, {Has(sum, 0), Has(sum, 1)}), HasNotEnded());
  EXPECT_FALSE(hub_.kept.empty()) << "made with the ranks of now";
  while (!hub_.kept.empty()) hub_.Answer(absl::UnavailableError("it left"));
}

TEST_F(QuarantineCallsTest, EachTileThatComesBackCountsWhateverBecomesOfTheOthers) {
  const ArrayDescriptor array = NewArray();
  ASSERT_THAT(MissingOf(array), ElementsAre(0, 1));
  v1::RestoreQuarantinedRequest request;
  v1::RestoreQuarantinedResponse response;
  ASSERT_NO_FATAL_FAILURE(BeginRestore(array, &request, &response));
  ComesBack(array, 0);
  hub_.Answer(Has(array, 0));
  hub_.Answer(absl::UnavailableError("worker \"w1\" was lost"));
  ASSERT_TRUE(done_.has_value());
  EXPECT_THAT(*done_, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(MissingOf(array), ElementsAre(1));
}

TEST_F(QuarantineCallsTest, ADropWhileAWorkerIsAwayDropsNothing) {
  const ArrayDescriptor array = NewDescriptor();
  Lose("w1");
  const absl::Status waits = Drop({array.array_id}, false, {Has(array, 0)});
  EXPECT_THAT(waits, StatusIs(absl::StatusCode::kUnavailable, Reason::kRecovering));
  EXPECT_THAT(waits.ToString(), AllOf(HasSubstr("w1 (rank 1 of mesh \"m\": it was killed)"),
                                      HasSubstr("nothing was dropped")));
  EXPECT_TRUE(RetryDelayOf(waits).has_value());
  EXPECT_TRUE(hub_.kept.empty()) << "no worker is asked to drop anything";
  EXPECT_THAT(Drop({array.array_id}, false, {{}}),
              StatusIs(absl::StatusCode::kUnavailable, Reason::kRecovering))
      << "the worker that is away may have it";

  clock_.Advance(Recovery::kDefaultReturnGrace);
  const absl::Status refused = Drop({array.array_id}, false, {Has(array, 0)});
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kMeshIncomplete));
  EXPECT_THAT(refused.ToString(), HasSubstr("w1 (rank 1"));
  EXPECT_TRUE(RetryDelayOf(refused).has_value());
  EXPECT_TRUE(hub_.kept.empty());
  const absl::Status absent = Drop({array.array_id}, false, {{}});
  EXPECT_THAT(absent, StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
  EXPECT_THAT(absent.ToString(), HasSubstr("not attached are w1"));

  EXPECT_THAT(Drop({array.array_id}, true, {Has(array, 0), Has(array, 0)}), IsOk());
  EXPECT_EQ(dropped_.arrays_size(), 1);
  ASSERT_EQ(dropped_.unreached_size(), 1);
  EXPECT_EQ(dropped_.unreached(0).identity(), "w1");
  EXPECT_THAT(dropped_.unreached(0).reason(), HasSubstr("rank 1 of mesh \"m\""));

  Attach("w1");
  EXPECT_THAT(Drop({array.array_id}, false, {{}, Has(array, 1), Has(array, 1)}), IsOk());
  EXPECT_EQ(dropped_.arrays_size(), 1);
  EXPECT_EQ(dropped_.unreached_size(), 0);
}

TEST_F(QuarantineCallsTest, ADropThatFailsInTheMiddleSaysWhatWasDropped) {
  const ArrayDescriptor one = NewDescriptor();
  const ArrayDescriptor other = NewDescriptor();
  const auto has_both = [&](int64_t rank) {
    internal::v1::QuarantineAnswer answer = Has(one, rank);
    answer.MergeFrom(Has(other, rank));
    return answer;
  };
  // The second worker drops the one, and fails at the other.
  internal::v1::QuarantineAnswer failed = Has(one, 1);
  rpc::Encode(absl::InternalError("the disk is broken"), failed.mutable_error());
  const absl::Status status = Drop({one.array_id, other.array_id}, false,
                                   {has_both(0), has_both(1), has_both(0), std::move(failed)});
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInternal));
  const std::string text = status.ToString();
  EXPECT_THAT(text, HasSubstr("the disk is broken"));
  const size_t not_dropped = text.find("not dropped: ");
  ASSERT_NE(not_dropped, std::string::npos) << text;
  EXPECT_EQ(text.substr(not_dropped), StrCat("not dropped: ", other.array_id, " on w1"));
  for (const std::string& part : {StrCat(one.array_id, " on w0"), StrCat(other.array_id, " on w0"),
                                  StrCat(one.array_id, " on w1")}) {
    EXPECT_LT(text.find(part), not_dropped) << part;
  }
  // One that is lost may have dropped its part; nobody asks again without knowing that.
  const absl::Status lost = WithRetryDelay(
      WithReason(absl::UnavailableError("worker \"w1\" is not attached"), Reason::kWorkerLost),
      absl::Seconds(1));
  EXPECT_THAT(Drop({one.array_id}, false, {Has(one, 0), Has(one, 1), Has(one, 0)}), HasNotEnded());
  hub_.Answer(lost);
  ASSERT_TRUE(done_.has_value());
  EXPECT_THAT(*done_, StatusIs(absl::StatusCode::kUnavailable, Reason::kWorkerLost));
  EXPECT_FALSE(RetryDelayOf(*done_).has_value());
  EXPECT_THAT(done_->ToString(),
              AllOf(HasSubstr(StrCat("dropped for good: ", one.array_id, " on w0")),
                    HasSubstr(StrCat("perhaps dropped: ", one.array_id, " on w1"))));
  // With `even_partly` the others go on.
  EXPECT_THAT(Drop({one.array_id}, true, {Has(one, 0), Has(one, 1)}), HasNotEnded());
  hub_.Answer(lost);
  hub_.Answer(Has(one, 1));
  ASSERT_TRUE(done_.has_value());
  EXPECT_THAT(*done_, IsOk());
  EXPECT_EQ(dropped_.arrays_size(), 1);
  ASSERT_EQ(dropped_.unreached_size(), 1);
  EXPECT_EQ(dropped_.unreached(0).identity(), "w0");
}

TEST_F(QuarantineCallsTest, ARestoreWaitsForWorkersThatComeBack) {
  const ArrayDescriptor array = NewDescriptor();
  Lose("w1");
  for (const internal::v1::QuarantineAnswer& answer :
       {Has(array, 0), internal::v1::QuarantineAnswer()}) {
    const absl::Status status = Restore(array.array_id, {answer});
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable, Reason::kRecovering));
    EXPECT_THAT(status.ToString(), AllOf(HasSubstr("w1"), Not(HasSubstr("drop"))));
    EXPECT_TRUE(RetryDelayOf(status).has_value());
  }
  clock_.Advance(Recovery::kDefaultReturnGrace);
  const absl::Status incomplete = Restore(array.array_id, {Has(array, 0)});
  EXPECT_THAT(incomplete, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kMeshIncomplete));
  EXPECT_THAT(incomplete.ToString(),
              AllOf(HasSubstr("rank 1 (w1"), HasSubstr("start"), Not(HasSubstr("drop"))));
  const absl::Status absent = Restore(array.array_id, {{}});
  EXPECT_THAT(absent, StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
  EXPECT_THAT(absent.ToString(), HasSubstr("not attached are w1"));
  EXPECT_TRUE(hub_.kept.empty()) << "no worker is asked to move a tile";
  Attach("w1");
  EXPECT_THAT(Restore(array.array_id, {Has(array, 0), {}}),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kMeshIncomplete));
}

TEST_F(QuarantineCallsTest, TheSecondOfTwoRestoresHearsOfTheFirst) {
  const ArrayDescriptor array = NewDescriptor();
  v1::RestoreQuarantinedRequest request;
  request.set_array_id(array.array_id);
  v1::RestoreQuarantinedResponse response;
  std::optional<absl::Status> first;
  RestoreQuarantined(Context(), &hub_, &request, &response, stop_,
                     [&](const absl::Status& status) { first = status; });
  hub_.Answer(Has(array, 0));
  hub_.Answer(Has(array, 1));
  ASSERT_EQ(hub_.kept.size(), 1u);
  ASSERT_EQ(hub_.kept[0].order.action(), internal::v1::QuarantineOrder::ACTION_RESTORE);
  // Before and after the first worker has moved its tile.
  for (const internal::v1::QuarantineAnswer& of_w0 :
       {Has(array, 0), internal::v1::QuarantineAnswer()}) {
    EXPECT_THAT(Restore(array.array_id, {}), HasNotEnded());
    hub_.Answer(of_w0, 1);
    hub_.Answer(Has(array, 1), 1);
    ASSERT_TRUE(done_.has_value());
    EXPECT_THAT(*done_, StatusIs(absl::StatusCode::kAborted));
    EXPECT_THAT(done_->ToString(), HasSubstr("is being restored by another call"));
    EXPECT_TRUE(RetryDelayOf(*done_).has_value());
  }
  EXPECT_FALSE(first.has_value());
  hub_.Answer(Has(array, 0));
  hub_.Answer(Has(array, 1));
  Settle();
  ASSERT_TRUE(first.has_value());
  EXPECT_THAT(*first, IsOk());
  EXPECT_THAT(Restore(array.array_id, {{}, {}}),
              StatusIs(absl::StatusCode::kAlreadyExists, Reason::kAlreadyExists));
}

TEST_F(QuarantineCallsTest, ArraysWithoutANameAreListedAndGetOneAtOnce) {
  const ArrayDescriptor partial = NewDescriptor();
  std::vector<ArrayDescriptor> arrays = {NewDescriptor(), NewDescriptor(), NewDescriptor()};
  BringUnnamed(arrays, 0);
  arrays.push_back(partial);
  BringUnnamed(arrays, 1);
  std::vector<std::string> ids;
  for (const ArrayDescriptor& array : arrays) ids.push_back(array.array_id);
  std::sort(ids.begin(), ids.end());
  clock_.Advance(absl::Minutes(1));
  std::vector<std::string> listed;
  v1::ListQuarantineRequest request;
  request.set_page_size(3);
  do {
    v1::ListQuarantineResponse response;
    done_.reset();
    ListQuarantine(Context(), &hub_, &request, &response, stop_, Done());
    while (!hub_.kept.empty()) hub_.Answer(internal::v1::QuarantineAnswer());
    ASSERT_TRUE(done_.has_value());
    ASSERT_THAT(*done_, IsOk());
    for (const v1::UnnamedArray& array : response.unnamed_arrays()) {
      listed.push_back(array.array().array_id());
      EXPECT_EQ(array.held_for().seconds(), 540);
      EXPECT_EQ(array.missing_ranks_size(), listed.back() == partial.array_id ? 1 : 0);
    }
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty());
  EXPECT_EQ(listed, ids);

  const std::string& whole = ids[0] == partial.array_id ? ids[1] : ids[0];
  EXPECT_THAT(Restore(whole, {{}, {}}, "back"), IsOk());
  EXPECT_EQ(restored_.name(), "back");
  EXPECT_THAT(restored_.identities(), ElementsAre("w0", "w1"));
  EXPECT_EQ(registry_->FindName("back")->array_id, whole);
  EXPECT_EQ(registry_->CountUnnamed(), 3);

  // A part of it is aside since an earlier start, the rest is in use: neither is to be lost.
  const absl::Status in_part = Restore(partial.array_id, {Has(partial, 0), {}});
  EXPECT_THAT(in_part, StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(in_part.ToString(), AllOf(HasSubstr("in part"), HasSubstr("held for 9m")));
  EXPECT_TRUE(hub_.kept.empty());
  clock_.Advance(absl::Minutes(9));
  EXPECT_EQ(registry_->CountUnnamed(), 0);
}

TEST_F(QuarantineCallsTest, ArraysWithoutANameAreDroppedUnlessASessionHoldsThem) {
  const std::vector<ArrayDescriptor> arrays = {NewDescriptor(), NewDescriptor(), NewDescriptor()};
  BringUnnamed(arrays, 0);
  BringUnnamed(arrays, 1);
  const std::string& held = arrays[0].array_id;
  const std::string& read = arrays[1].array_id;
  const std::string& left = arrays[2].array_id;
  const rpc::Caller caller{.name = "host:10.0.0.1", .is_proven = false};
  const std::string owner = sessions_.Open(caller, "trainer", absl::Minutes(1))->id;
  const std::string reader = sessions_.Open(caller, "", absl::Minutes(1))->id;
  ASSERT_THAT(TakeOverForSession(*registry_, sessions_, owner, {held}), IsOk());
  ASSERT_THAT(TakeOverForSession(*registry_, sessions_, owner, {held}), IsOk());
  EXPECT_EQ(registry_->HoldsOf(held).pins, 1) << "a second call has no effect";
  ASSERT_THAT(PinForSession(*registry_, sessions_, reader, read), IsOk());

  const absl::Status in_use = Drop({left, held}, false, {{}, {}});
  EXPECT_THAT(in_use, StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(in_use.ToString(),
              AllOf(HasSubstr(held), HasSubstr("session 1 of host:10.0.0.1 (client \"trainer\")"),
                    HasSubstr("nothing was dropped")));
  EXPECT_THAT(Drop({read}, true, {{}, {}}).ToString(), HasSubstr("session 2 of host:10.0.0.1;"));
  EXPECT_EQ(registry_->CountUnnamed(), 2);

  EXPECT_THAT(Drop({left}, false, {{}, {}}), IsOk());
  ASSERT_EQ(dropped_.arrays_size(), 2) << "one for each worker";
  EXPECT_EQ(dropped_.arrays(0).identity(), "w0");
  EXPECT_EQ(dropped_.arrays(1).array().array_id(), left);
  EXPECT_EQ(dropped_.arrays(1).tiles(0).size_bytes(), 32);
  EXPECT_EQ(registry_->CountUnnamed(), 1);
  EXPECT_THAT(registry_->FindArray(left), StatusIs(absl::StatusCode::kNotFound));
  // An array that its reader lets go waits for the end of the grace; one that its owner lets go is
  // deleted at once.
  EXPECT_EQ(UnpinForSession(*registry_, sessions_, reader, {read}), 1);
  EXPECT_THAT(registry_->FindArray(read), IsOk());
  EXPECT_EQ(UnpinForSession(*registry_, sessions_, owner, {held}), 1);
  EXPECT_THAT(registry_->FindArray(held), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(QuarantineCallsTest, AListOfDroppedArraysWithoutANameIsBounded) {
  // The descriptions of 2,000 parts have about 600 KiB.
  ArrayDescriptor large = NewDescriptor();
  large.shape = {128, 128, 128, 128, 128, 128, 128, 128, 1, 1, 1, 1, 1, 1, 1, 8};
  std::vector<SpecEntry> entries(15, SpecEntry::None());
  entries.push_back(SpecEntry::Axis("dp"));
  large.spec = PartitionSpec(entries);
  std::vector<ArrayDescriptor> arrays(1'000, large);
  std::vector<std::string> ids;
  for (ArrayDescriptor& array : arrays) {
    array.array_id = StrCat(RandomId(), RandomId());
    ids.push_back(array.array_id);
  }
  BringUnnamed(arrays, 0);
  BringUnnamed(arrays, 1);
  ASSERT_EQ(registry_->CountUnnamed(), 1'000);
  EXPECT_THAT(Drop(ids, false, {{}, {}}), IsOk());
  EXPECT_EQ(registry_->CountUnnamed(), 0);
  EXPECT_GT(dropped_.arrays_size(), 1'000);
  EXPECT_LT(dropped_.arrays_size(), 2'000);
  EXPECT_LT(dropped_.ByteSizeLong(), size_t{550} << 10);
}

TEST_F(QuarantineCallsTest, ASessionTakesOverAnArrayThatItHasReadAlready) {
  const std::vector<ArrayDescriptor> arrays = {NewDescriptor()};
  BringUnnamed(arrays, 0);
  BringUnnamed(arrays, 1);
  const std::string& id = arrays[0].array_id;
  const std::string owner = sessions_.Open({}, "", absl::Minutes(1))->id;
  ASSERT_THAT(PinForSession(*registry_, sessions_, owner, id), IsOk());
  ASSERT_THAT(TakeOverForSession(*registry_, sessions_, owner, {id}), IsOk());
  EXPECT_EQ(registry_->HoldsOf(id).pins, 1) << "the grace has ended";
  EXPECT_EQ(registry_->CountUnnamed(), 0);
  EXPECT_EQ(UnpinForSession(*registry_, sessions_, owner, {id}), 1);
  EXPECT_THAT(registry_->FindArray(id), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(QuarantineCallsTest, ASessionTakesOverSoManyArraysBeforeTheyAreReported) {
  const std::vector<ArrayDescriptor> arrays = {NewDescriptor()};
  BringUnnamed(arrays, 0);
  BringUnnamed(arrays, 1);
  const std::string& reported = arrays[0].array_id;
  const std::string first = sessions_.Open({}, "", absl::Minutes(1))->id;
  const std::string second = sessions_.Open({}, "", absl::Minutes(1))->id;
  std::vector<std::string> ids;
  for (int64_t i = 0; i < ArrayRegistry::kMaxAwaitedOfSession; ++i) ids.push_back(StrCat("id-", i));
  ASSERT_THAT(TakeOverForSession(*registry_, sessions_, first, ids), IsOkAndHolds(IsEmpty()));
  EXPECT_EQ(UnpinForSession(*registry_, sessions_, first, ids), std::ssize(ids));
  // Ids that it invents and releases count. An array that the workers have reported does not.
  EXPECT_THAT(TakeOverForSession(*registry_, sessions_, first, {"one-more", reported}),
              IsOkAndHolds(ElementsAre("one-more")));
  EXPECT_FALSE(registry_->IsAwaited("one-more"));
  EXPECT_TRUE(*sessions_.PinsArray(first, reported));
  EXPECT_THAT(TakeOverForSession(*registry_, sessions_, second, {"one-more"}),
              IsOkAndHolds(IsEmpty()));
  EXPECT_TRUE(registry_->IsAwaited("one-more"));
}

TEST_F(QuarantineCallsTest, SessionsWithManyArraysLeaveRoomForTheAwaitedArraysOfOthers) {
  const auto take = [this](const std::string& session, int64_t count) {
    std::vector<std::string> ids;
    for (int64_t i = 0; i < count; ++i) ids.push_back(StrCat(session, "-", i));
    const auto refused = TakeOverForSession(*registry_, sessions_, session, ids);
    EXPECT_THAT(refused, IsOk());
    if (!refused.ok()) return int64_t{0};
    const int64_t taken = count - std::ssize(*refused);
    // The arrays that it lists are those that it did not take, in the order of the call.
    EXPECT_EQ(*refused, std::vector<std::string>(ids.begin() + taken, ids.end()));
    return taken;
  };
  const auto open = [this] { return sessions_.Open({}, "", absl::Minutes(1))->id; };
  int64_t left = ArrayRegistry::kMaxAwaited;
  for (int i = 0; i < 12; ++i) {
    const std::string session = open();
    const int64_t taken = take(session, ArrayRegistry::kMaxAwaitedOfSession);
    EXPECT_EQ(taken, left / ArrayRegistry::kAwaitedShares) << i;
    left -= taken;
  }
  EXPECT_GT(left, ArrayRegistry::kMaxAwaited / 4);
  EXPECT_EQ(take(open(), 2'000), 2'000);
}

TEST_F(QuarantineCallsTest, AnArrayWithoutANameIsDroppedWithItsPartInQuarantine) {
  const ArrayDescriptor partial = NewDescriptor();
  BringUnnamed({partial}, 1);
  Drop({partial.array_id}, false, {Has(partial, 0), {}, Has(partial, 0)}).IgnoreError();
  ASSERT_TRUE(done_.has_value());
  EXPECT_THAT(*done_, IsOk());
  EXPECT_EQ(registry_->CountUnnamed(), 0);
  EXPECT_EQ(dropped_.arrays_size(), 2);
}

TEST_F(QuarantineCallsTest, NoArrayWithoutANameIsDroppedWhileAWorkerIsAway) {
  const ArrayDescriptor array = NewDescriptor();
  BringUnnamed({array}, 0);
  BringUnnamed({array}, 1);
  Lose("w1");
  clock_.Advance(absl::Minutes(1));
  EXPECT_THAT(Drop({array.array_id}, false, {{}}).ToString(), HasSubstr("w1"));
  EXPECT_EQ(registry_->CountUnnamed(), 1);
  EXPECT_THAT(Drop({array.array_id}, true, {{}}), IsOk());
  EXPECT_EQ(registry_->CountUnnamed(), 0);
}

TEST_F(QuarantineCallsTest, EachPageTellsOfTheWorkersThatAreAwayThen) {
  const ArrayDescriptor array = NewDescriptor();
  v1::ListQuarantineRequest request;
  v1::ListQuarantineResponse response;
  const auto list = [&](std::vector<internal::v1::QuarantineAnswer> answers) {
    request.set_page_size(1);
    request.set_page_token(response.next_page_token());
    response.Clear();
    done_.reset();
    ListQuarantine(Context(), &hub_, &request, &response, stop_, Done());
    for (internal::v1::QuarantineAnswer& answer : answers) hub_.Answer(std::move(answer));
    ASSERT_TRUE(done_.has_value());
    EXPECT_THAT(*done_, IsOk());
    EXPECT_TRUE(hub_.kept.empty());
  };
  const auto unreached = [&] {
    std::vector<std::string> identities;
    for (const auto& worker : response.unreached()) identities.push_back(worker.identity());
    return identities;
  };
  // One is lost behind the first page, whose list has not come to it.
  list({Has(array, 0)});
  EXPECT_EQ(response.arrays_size(), 1);
  EXPECT_THAT(unreached(), IsEmpty());
  Lose("w1");
  list({{}});
  EXPECT_EQ(response.arrays_size(), 0);
  EXPECT_THAT(unreached(), ElementsAre("w1"));
  EXPECT_EQ(response.next_page_token(), "");
  // One is lost of which the first page has listed a part.
  internal::v1::QuarantineAnswer part = Has(array, 0);
  part.set_has_more(true);
  list({part});
  EXPECT_THAT(unreached(), IsEmpty());
  Lose("w0");
  list({});
  EXPECT_THAT(unreached(), ElementsAre("w0", "w1"));
  EXPECT_EQ(response.next_page_token(), "");
  // One is away before the page's worker.
  Attach("w1");
  list({Has(array, 1)});
  EXPECT_THAT(unreached(), ElementsAre("w0"));
  EXPECT_EQ(response.arrays_size(), 1);
}

// What workers have, and workers that are away, more of each than fits on a page.
TEST_F(QuarantineCallsTest, PagesOfAListAreCutByBytes) {
  constexpr int kAway = 5'000;
  constexpr int kArrays = 400;
  std::vector<std::string> away;
  for (int i = 0; i < kAway; ++i) {
    away.push_back(StrCat(i % 2 == 0 ? "v" : "x", std::string(240, 'y'), "-", 10'000 + i));
  }
  ASSERT_THAT(members_.AddMesh("far", kAway, away), IsOk());
  std::sort(away.begin(), away.end());
  ArrayDescriptor descriptor = NewDescriptor();
  descriptor.mesh =
      *Mesh::Create({{"dp", 2}, {std::string(255, 'a'), 1}, {std::string(255, 'b'), 1}});
  std::map<std::string, internal::v1::QuarantineAnswer> held;
  for (int64_t rank = 0; rank < 2; ++rank) {
    for (int i = 0; i < kArrays; ++i) {
      descriptor.array_id = StrCat("array-", std::string(50, 'z'), 1'000 + i);
      internal::v1::QuarantineAnswer answer = Has(descriptor, rank);
      answer.mutable_arrays(0)->set_reason(std::string(1'000, 'r'));
      held[StrCat("w", rank)].MergeFrom(answer);
    }
  }
  constexpr size_t kPageBytes = size_t{1} << 20;
  std::vector<std::string> unreached;
  std::vector<std::string> arrays;
  int pages = 0;
  v1::ListQuarantineRequest request;
  request.set_page_size(1'000);
  do {
    v1::ListQuarantineResponse page;
    done_.reset();
    ListQuarantine(Context(), &hub_, &request, &page, stop_, Done());
    while (!hub_.kept.empty()) {
      internal::v1::QuarantineAnswer answer;
      for (const v1::QuarantinedArray& array : held[hub_.kept[0].identity].arrays()) {
        if (array.array().array_id() <= hub_.kept[0].order.start_after()) continue;
        if (answer.ByteSizeLong() > kPageBytes) answer.set_has_more(true);
        if (answer.has_more()) break;
        *answer.add_arrays() = array;
      }
      hub_.Answer(std::move(answer));
    }
    ASSERT_TRUE(done_.has_value());
    ASSERT_THAT(*done_, IsOk());
    EXPECT_LT(page.ByteSizeLong(), kPageBytes + 4'096);
    for (const auto& worker : page.unreached()) unreached.push_back(worker.identity());
    for (const auto& array : page.arrays()) {
      arrays.push_back(StrCat(array.identity(), "/", array.array().array_id()));
    }
    request.set_page_token(page.next_page_token());
    ++pages;
  } while (!request.page_token().empty() && pages < 100);
  EXPECT_GE(pages, 3);
  EXPECT_EQ(unreached, away) << "each once, by identity";
  EXPECT_EQ(arrays.size(), static_cast<size_t>(2 * kArrays));
  EXPECT_TRUE(std::is_sorted(arrays.begin(), arrays.end()));
  EXPECT_EQ(std::unique(arrays.begin(), arrays.end()), arrays.end()) << "each once";
}

// A worker's list comes in pieces: each counts before anything is dropped.
TEST_F(QuarantineCallsTest, ADropKnowsAllPartsBeforeItBegins) {
  const ArrayDescriptor one = NewDescriptor();
  const ArrayDescriptor other = NewDescriptor();
  EXPECT_THAT(Drop({one.array_id, other.array_id}, false, {}), HasNotEnded());
  internal::v1::QuarantineAnswer first = Has(one, 0);
  first.set_has_more(true);
  hub_.Answer(std::move(first));
  hub_.Answer(internal::v1::QuarantineAnswer());
  ASSERT_EQ(hub_.kept.size(), 1u);
  EXPECT_EQ(hub_.kept[0].order.start_after(), one.array_id);
  hub_.Answer(Has(other, 0));
  ASSERT_EQ(hub_.kept.size(), 1u);
  EXPECT_EQ(hub_.kept[0].order.action(), internal::v1::QuarantineOrder::ACTION_DROP);
  EXPECT_EQ(hub_.kept[0].order.array_ids_size(), 2);
  internal::v1::QuarantineAnswer dropped = Has(one, 0);
  dropped.MergeFrom(Has(other, 0));
  hub_.Answer(std::move(dropped));
  ASSERT_TRUE(done_.has_value());
  EXPECT_THAT(*done_, IsOk());
  EXPECT_EQ(dropped_.arrays_size(), 2);
}

// A worker that is away at first attaches while the others are asked: what it has counts too.
TEST_F(QuarantineCallsTest, ADropAsksWorkersThatAttachWhileTheOthersAnswer) {
  const ArrayDescriptor array = NewDescriptor();
  for (const bool even_partly : {false, true}) {
    Lose("w1");
    EXPECT_THAT(Drop({array.array_id}, even_partly, {}), HasNotEnded());
    Attach("w1");
    hub_.Answer(Has(array, 0));
    ASSERT_EQ(hub_.kept.size(), 1u);
    EXPECT_EQ(hub_.kept[0].identity, "w1");
    EXPECT_EQ(hub_.kept[0].order.action(), internal::v1::QuarantineOrder::ACTION_LIST);
    Attach("w2");  // and one more, that serves no rank
    hub_.Answer(Has(array, 1));
    ASSERT_EQ(hub_.kept.size(), 1u);
    EXPECT_EQ(hub_.kept[0].identity, "w2");
    EXPECT_EQ(hub_.kept[0].order.action(), internal::v1::QuarantineOrder::ACTION_LIST);
    hub_.Answer(internal::v1::QuarantineAnswer());
    for (const int64_t rank : {0, 1}) {
      ASSERT_EQ(hub_.kept.size(), 1u);
      EXPECT_EQ(hub_.kept[0].identity, StrCat("w", rank));
      EXPECT_EQ(hub_.kept[0].order.action(), internal::v1::QuarantineOrder::ACTION_DROP);
      hub_.Answer(Has(array, rank));
    }
    ASSERT_TRUE(done_.has_value());
    EXPECT_THAT(*done_, IsOk());
    EXPECT_EQ(dropped_.arrays_size(), 2);
    EXPECT_EQ(dropped_.unreached_size(), 0);
    Lose("w2");
  }
}

// What it said before it was started anew does not count any more.
TEST_F(QuarantineCallsTest, ADropAsksAWorkerAgainThatWasStartedAnew) {
  const ArrayDescriptor array = NewDescriptor();
  EXPECT_THAT(Drop({array.array_id}, false, {Has(array, 0)}), HasNotEnded());
  Lose("w0");
  Attach("w0");
  hub_.Answer(Has(array, 1));
  ASSERT_EQ(hub_.kept.size(), 1u);
  EXPECT_EQ(hub_.kept[0].identity, "w0");
  EXPECT_EQ(hub_.kept[0].order.action(), internal::v1::QuarantineOrder::ACTION_LIST);
  hub_.Answer(internal::v1::QuarantineAnswer());
  ASSERT_EQ(hub_.kept.size(), 1u);
  EXPECT_EQ(hub_.kept[0].identity, "w1");
  EXPECT_EQ(hub_.kept[0].order.action(), internal::v1::QuarantineOrder::ACTION_DROP);
  hub_.Answer(Has(array, 1));
  ASSERT_TRUE(done_.has_value());
  EXPECT_THAT(*done_, IsOk());
  EXPECT_EQ(dropped_.arrays_size(), 1);
  // One that failed, and is back before the others have answered.
  EXPECT_THAT(Drop({array.array_id}, true, {}), HasNotEnded());
  Lose("w0");
  hub_.Answer(absl::UnavailableError("worker \"w0\" is not attached"));
  Attach("w0");
  hub_.Answer(Has(array, 1));
  hub_.Answer(Has(array, 0));
  hub_.Answer(Has(array, 0));
  hub_.Answer(Has(array, 1));
  ASSERT_TRUE(done_.has_value());
  EXPECT_THAT(*done_, IsOk());
  EXPECT_EQ(dropped_.arrays_size(), 2);
  EXPECT_EQ(dropped_.unreached_size(), 0);
}

TEST_F(QuarantineCallsTest, ARestoreAsksWorkersThatAttachWhileTheOthersAnswer) {
  const ArrayDescriptor array = NewDescriptor();
  Lose("w1");
  EXPECT_THAT(Restore(array.array_id, {}), HasNotEnded());
  Attach("w1");
  hub_.Answer(Has(array, 0));
  EXPECT_FALSE(done_.has_value()) << *done_;
  ASSERT_EQ(hub_.kept.size(), 1u);
  EXPECT_EQ(hub_.kept[0].identity, "w1");
  EXPECT_EQ(hub_.kept[0].order.action(), internal::v1::QuarantineOrder::ACTION_LIST);
  hub_.Answer(Has(array, 1));
  for (const int64_t rank : {0, 1}) {
    ASSERT_EQ(hub_.kept.size(), 1u);
    EXPECT_EQ(hub_.kept[0].order.action(), internal::v1::QuarantineOrder::ACTION_RESTORE);
    hub_.Answer(Has(array, rank));
  }
  Settle();
  ASSERT_TRUE(done_.has_value());
  EXPECT_THAT(*done_, IsOk());
  EXPECT_THAT(restored_.identities(), ElementsAre("w0", "w1"));

  // The only one that has a part of it: not NOT_FOUND.
  const ArrayDescriptor other = NewDescriptor();
  Lose("w1");
  EXPECT_THAT(Restore(other.array_id, {}), HasNotEnded());
  Attach("w1");
  hub_.Answer(internal::v1::QuarantineAnswer());
  hub_.Answer(Has(other, 1));
  ASSERT_TRUE(done_.has_value());
  EXPECT_THAT(*done_, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kMeshIncomplete));
  EXPECT_THAT(done_->ToString(), HasSubstr("lacks the tiles of rank 0"));
}

TEST_F(QuarantineCallsTest, ADropThatDropsNothingSinceEachWorkerFailedIsAnError) {
  const ArrayDescriptor array = NewDescriptor();
  const absl::Status w0 = absl::DeadlineExceededError("worker \"w0\" has not answered");
  const absl::Status w1 = absl::UnavailableError("worker \"w1\" is not attached");
  // While they drop.
  EXPECT_THAT(Drop({array.array_id}, true, {Has(array, 0), Has(array, 1)}), HasNotEnded());
  hub_.Answer(w0);
  hub_.Answer(w1);
  ASSERT_TRUE(done_.has_value());
  EXPECT_THAT(*done_, StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(done_->ToString(),
              AllOf(HasSubstr("\"w0\" has not answered"), HasSubstr("\"w1\" is not attached"),
                    HasSubstr("; nothing was dropped for certain; perhaps dropped: ")));
  // While they are asked.
  EXPECT_THAT(Drop({array.array_id}, true, {}), HasNotEnded());
  hub_.Answer(w0);
  hub_.Answer(w1);
  ASSERT_TRUE(done_.has_value());
  EXPECT_THAT(*done_, StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(done_->ToString(),
              AllOf(HasSubstr("\"w0\" has not answered"), HasSubstr("\"w1\" is not attached"),
                    HasSubstr("; nothing was dropped"), Not(HasSubstr("perhaps"))));
}

TEST_F(QuarantineCallsTest, ADropNamesAWorkerThatWasNotReachedOnce) {
  const ArrayDescriptor array = NewDescriptor();
  // It is lost when it is asked, or when it is to drop what it has.
  for (const bool has_answered : {false, true}) {
    EXPECT_THAT(Drop({array.array_id}, true, {Has(array, 0)}), HasNotEnded());
    const absl::Status not_attached = absl::UnavailableError("worker \"w1\" is not attached");
    Lose("w1");
    if (has_answered) {
      hub_.Answer(Has(array, 1));
      hub_.Answer(Has(array, 0));
      hub_.Answer(not_attached);
    } else {
      hub_.Answer(not_attached);
      hub_.Answer(Has(array, 0));
    }
    ASSERT_TRUE(done_.has_value());
    EXPECT_THAT(*done_, IsOk());
    EXPECT_EQ(dropped_.arrays_size(), 1);
    ASSERT_EQ(dropped_.unreached_size(), 1) << dropped_.DebugString();
    EXPECT_EQ(dropped_.unreached(0).identity(), "w1");
    EXPECT_THAT(dropped_.unreached(0).reason(), HasSubstr("rank 1 of mesh \"m\""));
    EXPECT_TRUE(dropped_.unreached(0).expected_back());
    Attach("w1");
  }
}

}  // namespace
}  // namespace shardmesh::server
