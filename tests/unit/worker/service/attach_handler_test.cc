// Messages of a coordinator, handled without a stream to it.
#include "worker/service/attach_handler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "rpc/codec/array_codec.h"
#include "rpc/codec/time_codec.h"
#include "rpc/codec/worker_error_codec.h"
#include "rpc/contract.h"
#include "rpc/transfer_token.h"
#include "status/detail.h"
#include "tensor/buffer.h"
#include "tests/testing/eventually.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/worker/service/attach_fakes.h"

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

// The handler of a worker "w1", which has rank 1 of a mesh x=2.
class AttachHandlerTest : public testing::Test {
 protected:
  AttachHandlerTest() {
    store_ = *ShardStore::Open({.pool = pool_, .data_dir = ""});
    gate_ = std::make_unique<TileGate>(TileGate::Options{
        .identity = "w1", .store = store_.get(), .clock = &clock_, .staged = [](const auto&) {}});
    terms_ = *TermKeeper::Open("");
    reports_ = std::make_unique<AttachReports>(
        AttachReports::Options{.clock = &clock_,
                               .store = store_.get(),
                               .progress = [] { return std::vector<StepProgress>(); },
                               .measured_links = [] { return MeasuredLinks(); },
                               .ready_changed = [](bool) {}});
    handler_ =
        std::make_unique<AttachHandler>(AttachHandler::Options{.coordinator = "coordinator:1",
                                                               .identity = "w1",
                                                               .clock = &clock_,
                                                               .store = store_.get(),
                                                               .gate = gate_.get(),
                                                               .links = &links_,
                                                               .executor = &executor_,
                                                               .terms = terms_.get(),
                                                               .reports = reports_.get()});
  }

  absl::Status Take(const Message& message) { return handler_->Take(message, stream_); }
  static Message Welcome(int64_t term = 3) {
    Message message;
    internal::v1::Welcome* welcome = message.mutable_welcome();
    welcome->set_cluster_id("cluster");
    welcome->set_term(term);
    welcome->set_protocol(rpc::kNewestProtocol);
    welcome->set_token_key(std::string(rpc::kTokenKeyBytes, 'k'));
    rpc::Encode(absl::Seconds(10), welcome->mutable_heartbeat_interval());
    return message;
  }
  static Message Membership(int64_t epoch) { return MembershipOf(epoch, {"w0", "w1"}); }
  // Takes the worker in, and forgets the messages of the attach.
  void Attach() {
    ASSERT_THAT(Take(Welcome()), IsOk());
    ASSERT_THAT(Take(Membership(4)), IsOk());
    stream_->Take();
  }

  test::FakeClock clock_;
  MemoryBudget budget_{int64_t{16} << 20};
  std::shared_ptr<BufferPool> pool_ = BufferPool::Create(&budget_, 0);
  std::unique_ptr<ShardStore> store_;
  std::unique_ptr<TileGate> gate_;
  NoPeers links_;
  KeptOrders executor_;
  std::shared_ptr<KeptMessages> stream_ = std::make_shared<KeptMessages>();
  std::unique_ptr<TermKeeper> terms_;
  std::unique_ptr<AttachReports> reports_;
  std::unique_ptr<AttachHandler> handler_;
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

TEST_F(AttachHandlerTest, IgnoresTheMessageOfANewerCoordinator) {
  Attach();
  EXPECT_THAT(Take(Message()), IsOk());
  EXPECT_THAT(stream_->Take(), IsEmpty());
}

}  // namespace
}  // namespace shardmesh::worker
