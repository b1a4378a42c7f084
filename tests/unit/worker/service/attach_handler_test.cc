// Messages of a coordinator, handled without a stream to it.
#include "worker/service/attach_handler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "rpc/codec/array_codec.h"
#include "rpc/codec/time_codec.h"
#include "rpc/codec/worker_error_codec.h"
#include "rpc/contract.h"
#include "sharding/digest.h"
#include "status/detail.h"
#include "tensor/buffer.h"
#include "tests/testing/eventually.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/worker/service/attach_fixture.h"

namespace shardmesh::worker {
namespace {

using ::shardmesh::test::CarriesFacts;
using ::shardmesh::test::Eventually;
using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using Message = internal::v1::AttachResponse;

class AttachHandlerTest : public AttachFixture<test::FakeClock> {
 protected:
  AttachHandlerTest() { MakeHandler(&filler_); }
  ~AttachHandlerTest() override { handler_.reset(); }

  KeptFills filler_;
};

TEST_F(AttachHandlerTest, AWelcomeComesFirst) {
  EXPECT_THAT(Take(Membership(4)), StatusIs(absl::StatusCode::kInternal));
  EXPECT_FALSE(reports_->state().attached);
}

TEST_F(AttachHandlerTest, AWelcomeAttachesAndIsAnsweredWithTheInventory) {
  ASSERT_TRUE(StageFour(*store_, "a"));
  EXPECT_THAT(Take(Welcome()), IsOk());
  EXPECT_TRUE(reports_->state().attached);
  EXPECT_EQ(store_->cluster_id(), "cluster");
  EXPECT_EQ(links_.cluster_id(), "cluster");
  EXPECT_EQ(terms_->known().number, 3);
  const std::vector<internal::v1::AttachRequest> messages = stream_->Take();
  ASSERT_THAT(messages, SizeIs(1));
  EXPECT_THAT(messages[0].inventory().tiles(), SizeIs(1));
  EXPECT_TRUE(messages[0].inventory().last());
}

TEST_F(AttachHandlerTest, RefusesAWelcomeOfAnotherProtocol) {
  Message welcome = Welcome();
  welcome.mutable_welcome()->set_protocol(rpc::kNewestProtocol + 1);
  EXPECT_THAT(Take(welcome),
              CarriesFacts(Reason::kProtocolMismatch, {{fact::kHave, rpc::kNewestProtocol + 1},
                                                       {fact::kNeed, rpc::kNewestProtocol}}));
  EXPECT_FALSE(reports_->state().attached);
  EXPECT_EQ(terms_->known().number, 0);
}

TEST_F(AttachHandlerTest, RefusesTheWelcomeOfAnOlderTermAndChangesNothing) {
  ASSERT_THAT(Take(Welcome(3)), IsOk());
  ASSERT_TRUE(reports_->Detached());
  EXPECT_THAT(Take(Welcome(2)), StatusIs(absl::StatusCode::kAborted, Reason::kStaleTerm));
  EXPECT_FALSE(reports_->state().attached);
  EXPECT_EQ(terms_->known().number, 3);
}

TEST_F(AttachHandlerTest, RefusesTheWelcomeOfAnotherCluster) {
  ASSERT_THAT(store_->SetClusterId("another"), IsOk());
  EXPECT_THAT(Take(Welcome()),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kClusterMismatch));
  EXPECT_FALSE(reports_->state().attached);
}

TEST_F(AttachHandlerTest, AMembershipReachesTheLinksAndTheReports) {
  Attach();
  EXPECT_EQ(links_.membership().epoch, 4);
  EXPECT_EQ(links_.membership().Find("m")->RankOf("w1"), 1);
  EXPECT_EQ(reports_->state().epoch, 4);
}

TEST_F(AttachHandlerTest, AVerdictDropsArraysAndTheNextHeartbeatConfirmsThem) {
  ASSERT_TRUE(StageFour(*store_, "dropped"));
  ASSERT_TRUE(StageFour(*store_, "kept"));
  Attach();
  Message verdict;
  verdict.mutable_inventory_verdict()->add_drop_array_ids("dropped");
  verdict.mutable_inventory_verdict()->add_commit_array_ids("kept");
  EXPECT_THAT(Take(verdict), IsOk());
  EXPECT_THAT(executor_.forgotten, ElementsAre("dropped"));
  EXPECT_EQ(executor_.kept_staged, 0) << "more of the verdict follows";
  EXPECT_THAT(stream_->Take(), IsEmpty());
  Message last;
  last.mutable_inventory_verdict()->set_last(true);
  EXPECT_THAT(Take(last), IsOk());
  EXPECT_EQ(executor_.kept_staged, 1);
  const std::vector<internal::v1::AttachRequest> messages = stream_->Take();
  ASSERT_THAT(messages, SizeIs(2));
  EXPECT_THAT(messages[0].tiles_dropped().array_ids(), ElementsAre("dropped"));
  EXPECT_TRUE(messages[1].has_heartbeat());
  EXPECT_THAT(store_->FindAll("kept"), IsOk());
  EXPECT_FALSE(store_->FindAllStaged("dropped").ok());
}

TEST_F(AttachHandlerTest, AStepIsReportedWithTheRankInItsMesh) {
  Attach();
  Message run;
  run.mutable_run_step()->set_sequence(5);
  run.mutable_run_step()->add_outputs(rpc::ArrayDescriptorBytes({.array_id = "out",
                                                                 .dtype = Dtype::kF32,
                                                                 .shape = {4},
                                                                 .spec = PartitionSpec(),
                                                                 .mesh_id = "m",
                                                                 .mesh_revision = 2,
                                                                 .mesh = *Mesh::Parse("x=2"),
                                                                 .cut_points = {}}));
  EXPECT_THAT(Take(run), IsOk());
  ASSERT_THAT(executor_.runs, SizeIs(1));
  StepResult result;
  result.sequence = 5;
  executor_.runs[0].second(result);
  const std::vector<internal::v1::AttachRequest> messages = stream_->Take();
  ASSERT_THAT(messages, SizeIs(1));
  EXPECT_EQ(messages[0].step_report().sequence(), 5);
  EXPECT_EQ(messages[0].step_report().rank(), 1);
}

TEST_F(AttachHandlerTest, TakesTheOrderOfAStepAtOnceAndNothingElse) {
  Message run;
  run.mutable_run_step()->set_sequence(5);
  EXPECT_FALSE(handler_->TakeAtOnce(&run, stream_)) << "not attached yet";
  Attach();
  ASSERT_TRUE(handler_->TakeAtOnce(&run, stream_));
  ASSERT_THAT(executor_.runs, SizeIs(1));
  EXPECT_EQ(executor_.runs[0].first.sequence, 5);

  Message end;
  end.mutable_end_step()->set_sequence(5);
  end.mutable_end_step()->set_commit(true);
  EXPECT_FALSE(handler_->TakeAtOnce(&end, stream_)) << "a commit may wait for a file";
  EXPECT_EQ(end.end_step().sequence(), 5) << "it is left as it was";
  Message welcome = Welcome();
  EXPECT_FALSE(handler_->TakeAtOnce(&welcome, stream_));
}

TEST_F(AttachHandlerTest, AStepThatCannotBeReadIsReportedAsFailed) {
  Attach();
  Message run;
  run.mutable_run_step()->set_sequence(5);
  run.mutable_run_step()->set_term(3);
  v1::ArrayDescriptor descriptor;
  descriptor.set_array_id("out");
  descriptor.set_mesh_id("m");
  run.mutable_run_step()->add_outputs(descriptor.SerializeAsString());
  EXPECT_THAT(Take(run), IsOk()) << "the stream goes on";
  EXPECT_THAT(executor_.runs, IsEmpty());
  const std::vector<internal::v1::AttachRequest> messages = stream_->Take();
  ASSERT_THAT(messages, SizeIs(1));
  const internal::v1::StepReport& report = messages[0].step_report();
  EXPECT_EQ(report.outcome(), internal::v1::StepReport::OUTCOME_FAILED);
  EXPECT_EQ(report.term(), 3);
  EXPECT_EQ(report.rank(), 1);
  EXPECT_THAT(std::string(rpc::Decode(report.error()).message()), HasSubstr("step 5"));
}

TEST_F(AttachHandlerTest, StepsEndAsTheCoordinatorSays) {
  Attach();
  Message end;
  end.mutable_end_step()->set_sequence(5);
  EXPECT_THAT(Take(end), IsOk());
  ASSERT_THAT(executor_.aborted, SizeIs(1));
  EXPECT_THAT(executor_.aborted[0], StatusIs(absl::StatusCode::kAborted));
  end.mutable_end_step()->set_commit(true);
  EXPECT_THAT(Take(end), IsOk());
  EXPECT_THAT(executor_.committed, ElementsAre(5));
  executor_.commit_status = absl::NotFoundError("nothing is staged");
  EXPECT_THAT(Take(end), IsOk()) << "the verdict on the inventory has settled it";
  executor_.commit_status = absl::DataLossError("broken");
  const absl::Status broken = Take(end);
  EXPECT_THAT(broken, StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_THAT(std::string(broken.message()), HasSubstr("cannot commit step 5"));
}

// An order to fill a tile of this worker from a file.
Message FillOrderFor(const std::string& transfer_id) {
  Message message;
  internal::v1::FillTiles* fill = message.mutable_fill_tiles();
  fill->set_transfer_id(transfer_id);
  fill->set_term(3);
  v1::SourceFile* file = fill->add_files();
  file->set_path("/data/m.safetensors");
  file->set_size_bytes(1000);
  rpc::Encode(absl::FromUnixNanos(1'700'000'000'123'456'789), file->mutable_modify_time());
  file->set_head_sha256(std::string(32, 's'));
  file->set_head_bytes(80);
  internal::v1::FillTile* tile = fill->add_tiles();
  tile->set_array_descriptor(rpc::ArrayDescriptorBytes(FourOnMesh("a")));
  tile->set_rank(1);
  tile->mutable_file()->set_file(0);
  tile->mutable_file()->set_offset_bytes(80);
  return message;
}

TEST_F(AttachHandlerTest, OrdersToFillTilesReachTheFillerAndItsFailureTheCoordinator) {
  Attach();
  Message message = FillOrderFor("t");
  internal::v1::FillTile* tile = message.mutable_fill_tiles()->add_tiles();
  tile->set_array_descriptor("another array");
  tile->mutable_array()->set_array_descriptor("its source");
  tile->mutable_array()->set_token("token");
  internal::v1::FillTile* zeros = message.mutable_fill_tiles()->add_tiles();
  zeros->set_array_descriptor("an array of zeros");
  zeros->mutable_zeros();
  internal::v1::FillDevices* devices = message.mutable_fill_tiles()->mutable_devices();
  v1::DeviceEndpoint* source = devices->add_sources();
  source->set_rank(1);
  source->set_identity("w0");
  source->add_endpoints()->set_address("w0:7000");
  devices->add_source_ids(5);
  devices->add_source_ids(6);
  devices->add_destination_ids(6);
  message.mutable_fill_tiles()->set_move_memory_bytes(1'000);
  EXPECT_THAT(Take(message), IsOk());
  const auto orders = filler_.orders();
  ASSERT_THAT(orders, SizeIs(1));
  const FillOrder& order = orders[0].first;
  EXPECT_EQ(order.transfer_id, "t");
  EXPECT_EQ(order.term, 3);
  EXPECT_EQ(order.move_memory_bytes, 1'000);
  ASSERT_THAT(order.files, SizeIs(1));
  EXPECT_EQ(order.files[0].path, "/data/m.safetensors");
  EXPECT_EQ(order.files[0].modify_time, absl::FromUnixNanos(1'700'000'000'123'456'789));
  ASSERT_THAT(order.tiles, SizeIs(3));
  EXPECT_EQ(order.tiles[2].array_descriptor, "an array of zeros");
  EXPECT_TRUE(std::holds_alternative<FillZeros>(order.tiles[2].source));
  EXPECT_EQ(order.tiles[0].rank, 1);
  EXPECT_EQ(std::get<FileRange>(order.tiles[0].source).offset_bytes, 80);
  EXPECT_EQ(order.tiles[1].array_descriptor, "another array");
  EXPECT_EQ(std::get<FillFromArray>(order.tiles[1].source).array_descriptor, "its source");
  EXPECT_EQ(std::get<FillFromArray>(order.tiles[1].source).token, "token");
  ASSERT_TRUE(order.devices.has_value());
  EXPECT_THAT(order.devices->source_ids, ElementsAre(5, 6));
  EXPECT_THAT(order.devices->destination_ids, ElementsAre(6));
  ASSERT_THAT(order.devices->sources, SizeIs(1));
  EXPECT_EQ(order.devices->sources[0].identity, "w0");
  EXPECT_THAT(order.devices->sources[0].endpoints, ElementsAre("w0:7000"));

  orders[0].second({.transfer_id = "t",
                    .term = 3,
                    .array_id = "a",
                    .rank = 1,
                    .status = WithReason(absl::FailedPreconditionError("it changed"),
                                         Reason::kFileChanged, {{fact::kFile, "/data/m"}})});
  const std::vector<internal::v1::AttachRequest> messages = stream_->Take();
  ASSERT_THAT(messages, SizeIs(1));
  const internal::v1::FillFailed& failed = messages[0].fill_failed();
  EXPECT_EQ(failed.transfer_id(), "t");
  EXPECT_EQ(failed.term(), 3);
  EXPECT_EQ(failed.array_id(), "a");
  EXPECT_EQ(failed.rank(), 1);
  EXPECT_THAT(rpc::Decode(failed.error()),
              CarriesFacts(Reason::kFileChanged, {{fact::kFile, "/data/m"}}));

  Message end;
  end.mutable_end_transfer()->set_transfer_id("t");
  EXPECT_THAT(Take(end), IsOk());
  EXPECT_THAT(filler_.ended(), ElementsAre("t"));
}

TEST_F(AttachHandlerTest, AnOrderToAllWorkersOfAMeshHasOneRankForAllTiles) {
  Attach();
  Message message = FillOrderFor("t");
  internal::v1::FillTiles& fill = *message.mutable_fill_tiles();
  *fill.add_tiles() = fill.tiles(0);
  fill.set_rank(0);
  EXPECT_THAT(Take(message), IsOk());
  fill.set_rank(2);
  EXPECT_THAT(Take(message), IsOk());
  const auto orders = filler_.orders();
  ASSERT_THAT(orders, SizeIs(2));
  for (size_t i = 0; i < 2; ++i) {
    ASSERT_THAT(orders[i].first.tiles, SizeIs(2));
    for (const FillTile& tile : orders[i].first.tiles) EXPECT_EQ(tile.rank, i == 0 ? 0 : 2);
  }
  // A failure names it too.
  fill.mutable_tiles(1)->clear_source();
  EXPECT_THAT(Take(message), IsOk());
  const std::vector<internal::v1::AttachRequest> messages = stream_->Take();
  ASSERT_THAT(messages, SizeIs(1));
  EXPECT_EQ(messages[0].fill_failed().rank(), 2);
}

TEST_F(AttachHandlerTest, AFileOfAnOrderToFillTilesNeedsNoModifyTime) {
  Attach();
  Message message = FillOrderFor("t");
  message.mutable_fill_tiles()->mutable_files(0)->clear_modify_time();
  EXPECT_THAT(Take(message), IsOk());
  const auto orders = filler_.orders();
  ASSERT_THAT(orders, SizeIs(1));
  ASSERT_THAT(orders[0].first.files, SizeIs(1));
  EXPECT_EQ(orders[0].first.files[0].modify_time, absl::InfinitePast());

  // A question about files needs it: the asker has seen the file.
  Message question;
  question.mutable_check_files()->set_order_id(9);
  *question.mutable_check_files()->add_files() = message.fill_tiles().files(0);
  EXPECT_THAT(Take(question), IsOk());
  EXPECT_THAT(filler_.checks(), IsEmpty());
  const std::vector<internal::v1::AttachRequest> messages = stream_->Take();
  ASSERT_THAT(messages, SizeIs(1));
  EXPECT_THAT(rpc::Decode(messages[0].files_checked().error()),
              CarriesFacts(Reason::kBadField, {{fact::kField, "files[0].modify_time"}}));
}

TEST_F(AttachHandlerTest, AMalformedOrderToFillTilesIsAnsweredAndEndsItsTransfer) {
  Attach();
  const auto spoilt = [](const std::function<void(internal::v1::FillTiles&)>& spoil) {
    Message message = FillOrderFor("t");
    spoil(*message.mutable_fill_tiles());
    return message;
  };
  const std::vector<std::pair<Message, std::string>> cases = {
      {spoilt([](auto& fill) { fill.mutable_tiles(0)->mutable_file()->set_file(1); }),
       "tiles[0].file.file"},
      {spoilt([](auto& fill) { fill.mutable_tiles(0)->mutable_file()->set_offset_bytes(-1); }),
       "tiles[0].file.offset_bytes"},
      {spoilt([](auto& fill) { fill.mutable_tiles(0)->clear_source(); }), "tiles[0].source"},
      {spoilt([](auto& fill) { fill.mutable_tiles(0)->mutable_array()->set_token("t"); }),
       "tiles[0].devices"},
      {spoilt([](auto& fill) { fill.mutable_files(0)->set_path("m"); }), "files[0].path"},
      {spoilt([](auto& fill) { fill.mutable_files(0)->mutable_modify_time()->set_nanos(-1); }),
       "files[0].modify_time.nanos"},
  };
  for (const auto& [message, field] : cases) {
    EXPECT_THAT(Take(message), IsOk()) << "the stream goes on";
    const std::vector<internal::v1::AttachRequest> messages = stream_->Take();
    ASSERT_THAT(messages, SizeIs(1)) << field;
    const internal::v1::FillFailed& failed = messages[0].fill_failed();
    EXPECT_EQ(failed.transfer_id(), "t");
    EXPECT_EQ(failed.array_id(), "a");
    EXPECT_EQ(failed.rank(), 1);
    EXPECT_THAT(rpc::Decode(failed.error()),
                CarriesFacts(Reason::kBadField, {{fact::kField, field}}));
  }
  EXPECT_THAT(filler_.orders(), IsEmpty());
  EXPECT_THAT(filler_.ended(), SizeIs(cases.size()));
}

TEST_F(AttachHandlerTest, TilesAreDigestedAndMissingOnesHaveNoDigest) {
  ASSERT_TRUE(StageFour(*store_, "a"));
  Attach();
  Message message;
  internal::v1::DigestTiles& order = *message.mutable_digest_tiles();
  order.set_order_id(9);
  for (const std::string id : {"a", "unknown", "a", "a"}) {
    internal::v1::WantedDigest& wanted = *order.add_tiles();
    wanted.set_array_id(id);
    wanted.mutable_tile()->add_ranges()->set_stop(4);
  }
  order.mutable_tiles(2)->mutable_tile()->mutable_ranges(0)->set_stop(3);   // another tile
  order.mutable_tiles(3)->mutable_tile()->mutable_ranges(0)->set_stop(-1);  // malformed
  EXPECT_THAT(Take(message), IsOk());
  ASSERT_TRUE(Eventually([&] { return stream_->count() > 0; }));
  const std::vector<internal::v1::AttachRequest> messages = stream_->Take();
  ASSERT_THAT(messages, SizeIs(1));
  EXPECT_EQ(messages[0].tiles_digested().order_id(), 9);
  const StoredTilePtr tile = *store_->FindStaged("a", {{{0, 4}}});
  EXPECT_THAT(messages[0].tiles_digested().tile_sha256(),
              ElementsAre(Sha256({tile->bytes().data(), tile->bytes().size()}), "", "", ""));
}

TEST_F(AttachHandlerTest, FilesAreCheckedAndTheAnswerNamesTheFirstUnusableOne) {
  Attach();
  Message message;
  internal::v1::CheckFiles* check = message.mutable_check_files();
  check->set_order_id(9);
  *check->add_files() = FillOrderFor("t").fill_tiles().files(0);
  *check->add_files() = check->files(0);
  EXPECT_THAT(Take(message), IsOk());
  const auto checks = filler_.checks();
  ASSERT_THAT(checks, SizeIs(1));
  EXPECT_THAT(checks[0].first, SizeIs(2));
  checks[0].second(absl::NotFoundError("no such file"), 1);
  checks[0].second(absl::OkStatus(), 0);
  check->mutable_files(1)->set_size_bytes(-1);
  EXPECT_THAT(Take(message), IsOk());
  const std::vector<internal::v1::AttachRequest> messages = stream_->Take();
  ASSERT_THAT(messages, SizeIs(3));
  for (const internal::v1::AttachRequest& answer : messages) {
    EXPECT_EQ(answer.files_checked().order_id(), 9);
  }
  EXPECT_THAT(rpc::Decode(messages[0].files_checked().error()),
              StatusIs(absl::StatusCode::kNotFound));
  EXPECT_EQ(messages[0].files_checked().file(), 1u);
  EXPECT_FALSE(messages[1].files_checked().has_error());
  EXPECT_THAT(rpc::Decode(messages[2].files_checked().error()),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  EXPECT_EQ(messages[2].files_checked().file(), 1u);
}

TEST_F(AttachHandlerTest, ADetachSaysWhetherToComeBack) {
  Attach();
  Message detach;
  rpc::Encode(absl::UnavailableError("it restarts"), detach.mutable_detach()->mutable_reason());
  rpc::Encode(absl::Now() + absl::Hours(1), detach.mutable_detach()->mutable_retry_time());
  const absl::Status later = Take(detach);
  EXPECT_THAT(later, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(std::string(later.message()), HasSubstr("it restarts"));
  EXPECT_TRUE(RetryDelayOf(later).has_value());
  EXPECT_FALSE(handler_->is_detached_for_good());
  detach.mutable_detach()->clear_retry_time();
  EXPECT_THAT(Take(detach), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_TRUE(handler_->is_detached_for_good());
}

TEST_F(AttachHandlerTest, AnOrderAboutTheQuarantineIsAnswered) {
  ASSERT_TRUE(StageFour(*store_, "a"));
  ASSERT_THAT(store_->Commit({"a"}), IsOk());
  ASSERT_EQ(store_->Quarantine({{"a", {{{0, 4}}}, "test", false}}, clock_.Now()), 1);
  Attach();
  Message last;
  last.mutable_inventory_verdict()->set_last(true);
  ASSERT_THAT(Take(last), IsOk());
  stream_->Take();
  Message order;
  order.mutable_quarantine_order()->set_order_id(7);
  order.mutable_quarantine_order()->set_action(internal::v1::QuarantineOrder::ACTION_RESTORE);
  order.mutable_quarantine_order()->add_array_ids("a");
  EXPECT_THAT(Take(order), IsOk());
  ASSERT_TRUE(Eventually([&] { return stream_->count() == 2; }));
  const std::vector<internal::v1::AttachRequest> messages = stream_->Take();
  EXPECT_EQ(messages[0].inventory().tiles(0).array_id(), "a") << "before the answer";
  EXPECT_EQ(messages[1].quarantine_answer().order_id(), 7);
}

TEST_F(AttachHandlerTest, TheEndWaitsForOrdersUnderWay) {
  Attach();
  Message order;
  order.mutable_quarantine_order()->set_action(internal::v1::QuarantineOrder::ACTION_LIST);
  for (int i = 0; i < 20; ++i) EXPECT_THAT(Take(order), IsOk());
  handler_.reset();
  EXPECT_THAT(stream_->Take(), SizeIs(20));
}

TEST_F(AttachHandlerTest, AnAnswerToARequestForMemoryComesAfterTheOrdersToDrop) {
  Attach();
  std::future<bool> freed = std::async(std::launch::async, [this] { return memory_.Free(8); });
  ASSERT_TRUE(Eventually([&] { return stream_->count() == 1; }));
  const internal::v1::AttachRequest request = stream_->Take().front();
  EXPECT_EQ(request.memory_request().need_bytes(), 8);
  Message drop;
  drop.mutable_drop_arrays()->add_array_ids("cached");
  EXPECT_THAT(Take(drop), IsOk());
  Message answer;
  answer.mutable_memory_answer()->set_order_id(request.memory_request().order_id());
  answer.mutable_memory_answer()->set_freed_bytes(16);
  EXPECT_THAT(Take(answer), IsOk());
  EXPECT_TRUE(freed.get());
}

TEST_F(AttachHandlerTest, IgnoresTheMessageOfANewerCoordinator) {
  Attach();
  EXPECT_THAT(Take(Message()), IsOk());
  EXPECT_THAT(stream_->Take(), IsEmpty());
}

}  // namespace
}  // namespace shardmesh::worker
