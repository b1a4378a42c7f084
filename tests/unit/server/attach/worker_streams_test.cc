// What members are sent, in which order, and what they are not.
#include "server/attach/worker_streams.h"

#include <set>

#include "absl/synchronization/notification.h"
#include "rpc/codec/spec_codec.h"
#include "sharding/mesh_definition.h"
#include "shardmesh/v1/catalog_service.pb.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/server/worker_streams_fixture.h"

namespace shardmesh::server {
namespace {

using ::shardmesh::test::Eventually;
using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using Down = internal::v1::AttachResponse;

Down Parsed(const WorkerMessage& message) {
  Down parsed;
  EXPECT_TRUE(parsed.ParseFromString(*message));
  return parsed;
}

class FakeStream final : public WorkerStream {
 public:
  FakeStream(std::string identity, uint64_t attachment)
      : identity_(std::move(identity)), attachment_(attachment) {}

  const std::string& identity() const override { return identity_; }
  uint64_t attachment() const override { return attachment_; }
  void Send(WorkerMessage message) override {
    sent_.Add(message);
    if (Parsed(message).has_membership()) return;  // comes when it likes
    absl::MutexLock lock(&mutex_);
    last_ = std::move(message);
  }
  void Close(absl::Status status) override {
    absl::MutexLock lock(&mutex_);
    if (!end_.has_value()) end_ = std::move(status);
  }
  void Cut(const absl::Status& status) override { Close(status); }
  void TakeWholeInventory() override {}
  std::string TakeDecidable(const MembershipView& view) override {
    absl::MutexLock lock(&mutex_);
    const MeshRanks* const ranks = view.FindMesh(undecided_);
    return ranks == nullptr || ranks->identities.empty() ? "" : std::exchange(undecided_, "");
  }

  void SetUndecided(std::string mesh_id) {
    absl::MutexLock lock(&mutex_);
    undecided_ = std::move(mesh_id);
  }
  std::optional<absl::Status> end() const {
    absl::MutexLock lock(&mutex_);
    return end_;
  }
  const SentMessages& sent() const { return sent_; }
  // The last message but memberships.
  WorkerMessage last() const {
    absl::MutexLock lock(&mutex_);
    return last_;
  }

 private:
  const std::string identity_;
  const uint64_t attachment_;
  SentMessages sent_;
  mutable absl::Mutex mutex_;
  std::optional<absl::Status> end_;
  WorkerMessage last_;
  std::string undecided_;
};

class WorkerStreamsTest : public WorkerStreamsFixture {
 protected:
  ~WorkerStreamsTest() override {
    for (const auto& stream : all_) streams_->Leave(stream.get());
  }

  FakeStream* Attach(const std::string& identity) {
    const auto attachment = members_.Attach({.identity = identity,
                                             .incarnation = 1,
                                             .build_version = "1",
                                             .endpoints = {"10.0.0.1:1"},
                                             .host = "host"});
    EXPECT_THAT(attachment, IsOk());
    all_.push_back(std::make_unique<FakeStream>(identity, *attachment));
    return all_.back().get();
  }
  FakeStream* Join(const std::string& identity) {
    FakeStream* const stream = Attach(identity);
    streams_->Join(stream);
    return stream;
  }
  // A mesh of these workers, in the catalog and in the membership.
  void Define(const std::string& name, std::vector<std::string> identities) {
    v1::EntryValue value;
    rpc::Encode(MeshDefinition{.mesh = *Mesh::Parse(StrCat("x=", identities.size())),
                               .workers = identities},
                value.mutable_mesh());
    absl::Notification done;
    definition_store_->Create({.request_id = "", .name = name}, value.SerializeAsString(),
                              [&](const auto& written) {
                                EXPECT_THAT(written, IsOk());
                                done.Notify();
                              });
    done.WaitForNotification();
    const int64_t size = std::ssize(identities);
    ASSERT_THAT(members_.AddMesh(name, size, std::move(identities)), IsOk());
  }
  // All members have reported on their peers as of the newest epoch.
  void ReportPeers(FakeStream* stream, const std::vector<std::string>& unreached = {}) {
    streams_->PeersReported(stream, members_.view()->epoch, unreached);
  }
  // Whether all were told of the newest view: the answer no longer says that they are being
  // notified.
  bool IsTold(const std::string& mesh_id) {
    return Eventually([&] {
      return streams_->CheckReady(mesh_id).message().find("being notified") == std::string::npos;
    });
  }
  static WorkRef Work(int64_t sequence, const std::vector<std::string>& identities) {
    WorkRef work{.sequence = sequence, .op = "linear", .mesh_id = "m", .epoch = 3, .term = 7};
    for (const std::string& identity : identities) {
      work.participants.push_back(
          {.rank = std::ssize(work.participants), .identity = identity, .expected_tiles = 0});
    }
    return work;
  }
  static EncodedStepPtr StepMessage() {
    internal::v1::RunStep step;
    step.set_plan_hash("hash");
    step.set_return_literals(true);
    return std::make_shared<const EncodedStep>(
        EncodedStep{.plan_hash = "hash",
                    .plan = std::make_shared<const std::string>("plan"),
                    .rest = step.SerializeAsString()});
  }

  std::vector<std::unique_ptr<FakeStream>> all_;
};

TEST_F(WorkerStreamsTest, AStepGoesToItsParticipantsOnly) {
  FakeStream* const a = Join("a");
  FakeStream* const b = Join("b");
  FakeStream* const c = Attach("c");  // no member yet
  streams_->Start(Work(11, {"a", "c"}), StepMessage());
  ASSERT_THAT(a->sent().kinds(), ElementsAre(Down::kRunStep));
  EXPECT_THAT(b->sent().kinds(), IsEmpty());
  EXPECT_THAT(c->sent().kinds(), IsEmpty());
  for (const internal::v1::AttachResponse& each : a->sent().all()) {
    if (!each.has_run_step()) continue;
    EXPECT_EQ(each.run_step().sequence(), 11);
    EXPECT_EQ(each.run_step().epoch(), 3);
    EXPECT_EQ(each.run_step().term(), 7);
    EXPECT_EQ(each.run_step().plan_hash(), "hash");
    EXPECT_TRUE(each.run_step().return_literals());
  }
}

TEST_F(WorkerStreamsTest, AStepIsSerialisedOnceForAllWorkers) {
  const std::vector<std::string> identities = {"a", "b", "c", "d"};
  std::vector<FakeStream*> joined;
  for (const std::string& identity : identities) joined.push_back(Join(identity));
  // Bytes that no serialiser writes: parsing and serialising them again would change them.
  EncodedStep step = *StepMessage();
  constexpr std::string_view kReturnLiterals("\x48\x01", 2);
  step.rest.insert(0, kReturnLiterals).append("\xa2\x06\x03odd").append(kReturnLiterals);
  const auto shared = std::make_shared<const EncodedStep>(step);
  for (const int64_t sequence : {1, 2}) {  // with the plan, and without it
    streams_->Start(Work(sequence, identities), shared);
    std::set<WorkerMessage> serialised;
    for (FakeStream* stream : joined) {
      ASSERT_EQ(Parsed(stream->last()).run_step().sequence(), sequence);
      serialised.insert(stream->last());
    }
    ASSERT_THAT(serialised, SizeIs(1));
    EXPECT_THAT(**serialised.begin(), EndsWith(step.rest));
  }
  // Workers that ask for the plan share one message, too.
  std::set<WorkerMessage> serialised;
  for (FakeStream* stream : joined) {
    streams_->SendPlan(stream, 2);
    EXPECT_EQ(Parsed(stream->last()).run_step().plan(), "plan");
    serialised.insert(stream->last());
  }
  ASSERT_THAT(serialised, SizeIs(1));
  EXPECT_THAT(**serialised.begin(), EndsWith(step.rest));
}

TEST_F(WorkerStreamsTest, ThePlanGoesAlongUntilAllParticipantsHaveIt) {
  FakeStream* const a = Join("a");
  Join("b");
  const auto last_plan = [&] { return a->sent().all().back().run_step().plan(); };
  ASSERT_TRUE(Eventually([&] { return !a->sent().memberships().empty(); }));
  streams_->Start(Work(1, {"a"}), StepMessage());
  EXPECT_EQ(last_plan(), "plan");
  streams_->Start(Work(2, {"a"}), StepMessage());
  EXPECT_EQ(last_plan(), "");
  streams_->SendPlan(a, 2);
  EXPECT_EQ(last_plan(), "plan") << "the worker has forgotten it";
  streams_->Start(Work(3, {"a", "b"}), StepMessage());
  EXPECT_EQ(last_plan(), "plan") << "b lacks it";
  streams_->Start(Work(4, {"a", "b"}), StepMessage());
  EXPECT_EQ(last_plan(), "");
  const size_t sent = a->sent().all().size();
  streams_->Commit(Work(2, {"b"}));
  streams_->SendPlan(a, 2);
  EXPECT_THAT(a->sent().all(), SizeIs(sent)) << "the step has ended";
}

TEST_F(WorkerStreamsTest, EndsComeInTheOrderOfTheCalls) {
  FakeStream* const a = Join("a");
  streams_->Start(Work(1, {"a"}), StepMessage());
  streams_->Start(Work(2, {"a"}), StepMessage());
  streams_->Commit(Work(2, {"a"}));
  streams_->Abort(Work(1, {"a"}), absl::DataLossError("a tile is broken"));
  WorkRef put = Work(3, {"a"});
  put.transfer_id = "t";
  streams_->Commit(put);
  EXPECT_THAT(a->sent().kinds(), ElementsAre(Down::kRunStep, Down::kRunStep, Down::kEndStep,
                                             Down::kEndStep, Down::kEndTransfer));
  std::vector<std::pair<int64_t, bool>> ends;
  for (const internal::v1::AttachResponse& each : a->sent().all()) {
    if (each.has_end_step())
      ends.emplace_back(each.end_step().sequence(), each.end_step().commit());
  }
  EXPECT_THAT(ends, ElementsAre(std::pair(2, true), std::pair(1, false)));
  ASSERT_THAT(flight_log_.Failed(), SizeIs(1));
  EXPECT_EQ(flight_log_.Failed()[0].work.sequence, 1);
}

TEST_F(WorkerStreamsTest, ACancelledStepIsNotLoggedAsFailed) {
  Join("a");
  streams_->Abort(Work(1, {"a"}), absl::CancelledError("its client has gone"));
  EXPECT_THAT(flight_log_.Failed(), IsEmpty());
}

TEST_F(WorkerStreamsTest, AMemberGetsASnapshotAndThenChanges) {
  FakeStream* const a = Join("a");
  ASSERT_TRUE(Eventually([&] { return !a->sent().memberships().empty(); }));
  EXPECT_TRUE(a->sent().memberships()[0].snapshot());
  Join("b");
  EXPECT_TRUE(Eventually([&] {
    for (const internal::v1::Membership& page : a->sent().memberships()) {
      if (page.workers_size() == 1 && page.workers(0).identity() == "b") return !page.snapshot();
    }
    return false;
  }));
}

TEST_F(WorkerStreamsTest, ALostWorkerIsCutAndOthersHearOfIt) {
  FakeStream* const a = Join("a");
  FakeStream* const b = Join("b");
  ASSERT_TRUE(Eventually([&] { return !b->sent().memberships().empty(); }));
  members_.Detach(a->attachment(), "killed");
  EXPECT_THAT(*a->end(), StatusIs(absl::StatusCode::kUnavailable, Reason::kStaleEpoch));
  ASSERT_TRUE(Eventually([&] {
    for (const internal::v1::Membership& page : b->sent().memberships()) {
      if (page.lost_workers_size() == 1) return true;
    }
    return false;
  }));
}

TEST_F(WorkerStreamsTest, AWorkerIsCutWhenItIsLostBeforeItIsAMember) {
  FakeStream* const a = Attach("a");
  streams_->ExpectWithin(a, absl::Minutes(1), "whole inventory");
  streams_->WorkerLost("a", a->attachment() + 1);
  EXPECT_FALSE(a->end().has_value()) << "another attachment";
  streams_->WorkerLost("a", a->attachment());
  EXPECT_TRUE(a->end().has_value());
}

TEST_F(WorkerStreamsTest, DropsGoToTheWorkersOfTheMeshAndToThoseThatArrive) {
  FakeStream* const a = Join("a");
  FakeStream* const b = Join("b");
  FakeStream* const c = Join("c");
  Define("m", {"a", "b"});
  streams_->MembershipChanged();
  ASSERT_TRUE(IsTold("m"));
  FakeStream* const d = Attach("d");
  streams_->Arrive(d);
  streams_->Drop("m", {"x", "y"});
  EXPECT_THAT(a->sent().kinds(), ElementsAre(Down::kDropArrays));
  EXPECT_THAT(b->sent().kinds(), ElementsAre(Down::kDropArrays));
  EXPECT_THAT(c->sent().kinds(), IsEmpty());
  EXPECT_THAT(d->sent().kinds(), ElementsAre(Down::kDropArrays));
  streams_->Drop("gone", {"z"});
  EXPECT_THAT(c->sent().kinds(), ElementsAre(Down::kDropArrays)) << "it may have served that mesh";
}

TEST_F(WorkerStreamsTest, AMeshIsReadyWhenItsWorkersReachOneAnother) {
  EXPECT_THAT(streams_->CheckReady("m"), StatusIs(absl::StatusCode::kNotFound));
  FakeStream* const a = Join("a");
  FakeStream* const b = Join("b");
  Define("m", {"a", "b"});
  streams_->MembershipChanged();
  ASSERT_TRUE(IsTold("m"));
  EXPECT_THAT(streams_->CheckReady("m"),
              StatusIs(absl::StatusCode::kUnavailable, Reason::kRecovering));
  ReportPeers(a);
  ReportPeers(b, {"a", "elsewhere"});
  EXPECT_THAT(streams_->CheckReady("m"),
              test::CarriesFacts(Reason::kRecovering, {{fact::kIdentity, "b"}}));
  EXPECT_TRUE(streams_->IsReady("a"));
  EXPECT_FALSE(streams_->IsReady("b"));
  EXPECT_THAT(streams_->CheckReady("m").message(),
              AllOf(HasSubstr("rank 1"), HasSubstr("does not reach \"a\"")));
  ReportPeers(b, {"elsewhere"});
  EXPECT_THAT(streams_->CheckReady("m"), IsOk()) << "the other peer does not serve the mesh";
  streams_->Stop();
  EXPECT_THAT(streams_->CheckReady("m"),
              StatusIs(absl::StatusCode::kUnavailable, Reason::kNotServing));
  EXPECT_THAT(streams_->CheckReady("m"), test::CarriesFacts(Reason::kNotServing, {}));
}

TEST_F(WorkerStreamsTest, WorkersThatDoNotMeetMakeAMeshIncomplete) {
  FakeStream* const a = Join("a");
  FakeStream* const b = Join("b");
  Define("m", {"a", "b"});
  streams_->MembershipChanged();
  ASSERT_TRUE(IsTold("m"));
  ReportPeers(a);
  ReportPeers(b, {"a"});
  for (int i = 0; i < 6; ++i) {
    clock_.Advance(absl::Seconds(1));
    for (FakeStream* stream : {a, b}) {
      ASSERT_THAT(members_.Heartbeat(stream->attachment(), 0), IsOk());
    }
    ReportPeers(b, {"a"});
  }
  EXPECT_THAT(streams_->CheckReady("m"),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kMeshIncomplete));
}

TEST_F(WorkerStreamsTest, AMeshWithADrainingWorkerIsNotReady) {
  FakeStream* const a = Join("a");
  Define("m", {"a"});
  streams_->MembershipChanged();
  ASSERT_TRUE(IsTold("m"));
  ReportPeers(a);
  EXPECT_THAT(streams_->CheckReady("m"), IsOk());
  ASSERT_THAT(members_.Leave("a"), IsOk());
  sequencer_->WorkerLeaves("a", [&] { streams_->CloseDrained("a", a); });
  EXPECT_THAT(streams_->CheckReady("m"),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kMeshIncomplete));
  EXPECT_THAT(*a->end(), StatusIs(absl::StatusCode::kCancelled)) << "nothing needs it";
}

TEST_F(WorkerStreamsTest, OnlyLiveWorkersOfAMeshHaveEndpoints) {
  FakeStream* const a = Join("a");
  Join("b");
  Define("m", {"b", "a"});
  const auto identities = [&] {
    std::vector<std::pair<int64_t, std::string>> found;
    const auto endpoints = streams_->Endpoints("m");
    for (const RankEndpoint& each : *endpoints) {
      found.emplace_back(each.rank, each.identity);
    }
    return found;
  };
  EXPECT_THAT(identities(), ElementsAre(std::pair(0, "b"), std::pair(1, "a")));
  members_.Detach(a->attachment(), "killed");
  EXPECT_THAT(identities(), ElementsAre(std::pair(0, "b")));
  EXPECT_THAT(streams_->Endpoints("n"), StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
}

TEST_F(WorkerStreamsTest, AReportOverAnEarlierStreamDoesNotCount) {
  FakeStream* const first = Join("a");
  FakeStream* const second = Join("a");
  EXPECT_TRUE(first->end().has_value());
  ReportPeers(first);
  EXPECT_FALSE(streams_->IsReady("a"));
  ReportPeers(second);
  EXPECT_TRUE(streams_->IsReady("a"));
  streams_->Leave(first);
  EXPECT_TRUE(streams_->IsReady("a"));
}

TEST_F(WorkerStreamsTest, AMeshThatGetsItsRanksHasTheirWorkersAttachAgain) {
  FakeStream* const a = Join("a");
  a->SetUndecided("m");
  Define("m", {"a"});
  streams_->MembershipChanged();
  ASSERT_TRUE(Eventually([&] { return a->end().has_value(); }));
  EXPECT_THAT(*a->end(), StatusIs(absl::StatusCode::kUnavailable, Reason::kNotServing));
  EXPECT_EQ(FactOf(*a->end(), fact::kIdentity), "a");
  EXPECT_EQ(RetryDelayOf(*a->end()), absl::ZeroDuration()) << "it need not wait";
}

TEST_F(WorkerStreamsTest, AWorkerWhoseRanksMoveAttachesAgainAlsoWhileItsInventoryIsJudged) {
  FakeStream* const member = Join("member");
  FakeStream* const arriving = Attach("arriving");
  FakeStream* const other = Attach("other");
  FakeStream* const early = Attach("early");
  streams_->ExpectWithin(early, absl::Minutes(1), "whole inventory");
  streams_->Arrive(arriving);
  streams_->Arrive(other);
  for (const char* identity : {"member", "arriving", "early", "nobody"}) {
    streams_->AttachAnew(identity, "m");
  }
  ASSERT_TRUE(member->end().has_value());
  EXPECT_THAT(*member->end(), StatusIs(absl::StatusCode::kUnavailable, Reason::kNotServing));
  ASSERT_TRUE(arriving->end().has_value());
  EXPECT_THAT(*arriving->end(), StatusIs(absl::StatusCode::kUnavailable, Reason::kNotServing));
  EXPECT_FALSE(other->end().has_value());
  EXPECT_FALSE(early->end().has_value()) << "its inventory will be judged by the ranks of now";
}

TEST_F(WorkerStreamsTest, AnOrderAboutAQuarantineIsAnsweredOnce) {
  std::vector<absl::StatusOr<internal::v1::QuarantineAnswer>> answers;
  const auto answered = [&](absl::StatusOr<internal::v1::QuarantineAnswer> answer) {
    answers.push_back(std::move(answer));
  };
  EXPECT_EQ(streams_->OrderQuarantine("a", {}, answered), 0);
  ASSERT_THAT(answers, SizeIs(1));
  EXPECT_THAT(answers[0], StatusIs(absl::StatusCode::kUnavailable, Reason::kWorkerLost));

  FakeStream* const a = Join("a");
  FakeStream* const b = Join("b");
  internal::v1::QuarantineAnswer answer;
  answer.set_order_id(streams_->OrderQuarantine("a", {}, answered));
  EXPECT_THAT(a->sent().kinds(), ElementsAre(Down::kQuarantineOrder));
  streams_->orders().Answer(b, answer);
  EXPECT_THAT(answers, SizeIs(1)) << "the order went to another worker";
  streams_->orders().Answer(a, answer);
  streams_->orders().Answer(a, answer);
  ASSERT_THAT(answers, SizeIs(2));
  EXPECT_THAT(answers[1], IsOk());

  streams_->ForgetQuarantineOrder(streams_->OrderQuarantine("a", {}, answered));
  streams_->OrderQuarantine("a", {}, answered);
  streams_->Leave(a);
  ASSERT_THAT(answers, SizeIs(3)) << "not of the order that was forgotten";
  EXPECT_THAT(answers[2], StatusIs(absl::StatusCode::kUnavailable, Reason::kWorkerLost));
}

TEST_F(WorkerStreamsTest, ALateVerdictGoesToTheWorkerInSeveralMessages) {
  FakeStream* const a = Join("a");
  FakeStream* const b = Join("b");
  InventoryVerdict verdict;
  verdict.drop.assign(15'000, "x");
  streams_->SendVerdict("a", verdict);
  EXPECT_THAT(a->sent().kinds(), ElementsAre(Down::kInventoryVerdict, Down::kInventoryVerdict));
  EXPECT_FALSE(a->sent().all().back().inventory_verdict().last());
  EXPECT_THAT(b->sent().kinds(), IsEmpty());
}

}  // namespace
}  // namespace shardmesh::server
