// What members are sent, in which order, and what they are not.
#include "server/attach/worker_streams.h"

#include <set>

#include "absl/synchronization/notification.h"
#include "rpc/codec/spec_codec.h"
#include "rpc/contract.h"
#include "server/steps/fill_codec.h"
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
using ::testing::Not;
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
  bool HasFeature(std::string_view feature) const override {
    if (feature == rpc::kFillConversionsFeature) return can_fill && can_convert;
    return (feature == rpc::kFillFeature || feature == rpc::kDigestFeature) && can_fill;
  }
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

  bool can_fill = true;
  bool can_convert = true;

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
  const std::optional<Participant> missed = streams_->Start(Work(11, {"a", "c"}), StepMessage());
  ASSERT_TRUE(missed.has_value());
  EXPECT_EQ(missed->identity, "c");
  EXPECT_EQ(missed->rank, 1);
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

TEST_F(WorkerStreamsTest, OfWorkersThatDoNotReachAStoppedOneOnlyTheStoppedOneIsNamed) {
  FakeStream* const a = Join("a");
  FakeStream* const b = Join("b");
  FakeStream* const c = Join("c");
  Define("m", {"a", "b", "c"});
  streams_->MembershipChanged();
  ASSERT_TRUE(IsTold("m"));
  for (FakeStream* stream : {a, b, c}) ReportPeers(stream);
  ASSERT_THAT(streams_->CheckReady("m"), IsOk());
  for (int i = 0; i < 4; ++i) {
    clock_.Advance(absl::Seconds(1));
    for (FakeStream* stream : {a, c}) {
      ASSERT_THAT(members_.Heartbeat(stream->attachment(), 0), IsOk());
    }
  }
  EXPECT_THAT(streams_->CheckReady("m"), IsOk()) << "its peers still reach it";
  ReportPeers(a, {"b"});
  ReportPeers(c, {"b"});
  const absl::Status stopped = streams_->CheckReady("m");
  EXPECT_THAT(stopped, test::CarriesFacts(Reason::kRecovering, {{fact::kIdentity, "b"}}));
  EXPECT_THAT(std::string(stopped.message()),
              AllOf(HasSubstr("rank 1 (worker \"b\" has sent no heartbeat for 4s, and its peers do "
                              "not reach it)"),
                    Not(HasSubstr("worker \"a\"")), Not(HasSubstr("worker \"c\""))));
  // One of the two also lacks a connection to a worker that runs.
  ReportPeers(c, {"a", "b"});
  const absl::Status both = streams_->CheckReady("m");
  EXPECT_THAT(both, test::CarriesFacts(Reason::kRecovering, {{fact::kIdentity, "b,c"}}));
  EXPECT_THAT(std::string(both.message()),
              AllOf(HasSubstr("rank 2 (worker \"c\" does not reach \"a\")"),
                    Not(HasSubstr("worker \"a\""))));
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

SourceFile FileAt(std::string path) {
  return {.path = std::move(path),
          .size_bytes = 64,
          .modify_time = absl::FromUnixSeconds(5),
          .head_sha256 = std::string(32, 'h'),
          .head_bytes = 8};
}

TEST_F(WorkerStreamsTest, AQuestionAboutFilesIsAnsweredOnce) {
  std::vector<FileVerdict> verdicts;
  const auto checked = [&](const FileVerdict& verdict) { verdicts.push_back(verdict); };
  const std::string files = EncodeFiles({FileAt("/a"), FileAt("/b")});
  FakeStream* const a = Join("a");
  FakeStream* const b = Join("b");
  const int64_t first = streams_->CheckFiles("a", files, checked);
  const int64_t second = streams_->CheckFiles("b", files, checked);
  EXPECT_NE(first, second);
  ASSERT_THAT(a->sent().kinds(), ElementsAre(Down::kCheckFiles));
  const internal::v1::CheckFiles order = Parsed(a->last()).check_files();
  EXPECT_EQ(order.order_id(), first);
  ASSERT_EQ(order.files_size(), 2);
  EXPECT_EQ(order.files(1).path(), "/b");
  EXPECT_EQ(order.files(1).size_bytes(), 64);
  EXPECT_EQ(order.files(1).modify_time().seconds(), 5);

  streams_->file_checks().Answer(b, first, {});  // not its question
  streams_->file_checks().Answer(a, 99, {});     // nobody's question
  EXPECT_THAT(verdicts, IsEmpty());
  streams_->file_checks().Answer(a, first, {.status = absl::NotFoundError("gone"), .file = 1});
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_EQ(verdicts[0].status.message(), "gone");
  EXPECT_EQ(verdicts[0].file, 1);
  streams_->file_checks().Answer(a, first, {});  // again
  EXPECT_THAT(verdicts, SizeIs(1));

  streams_->ForgetFileCheck(second);
  streams_->file_checks().Answer(b, second, {});
  EXPECT_THAT(verdicts, SizeIs(1));
}

TEST_F(WorkerStreamsTest, ALostWorkerAnswersAQuestionAboutFilesWithItsLoss) {
  std::vector<FileVerdict> verdicts;
  const auto checked = [&](const FileVerdict& verdict) { verdicts.push_back(verdict); };
  EXPECT_EQ(streams_->CheckFiles("a", "", checked), 0);  // it is not attached
  FakeStream* const first = Join("a");
  streams_->CheckFiles("a", "", checked);
  FakeStream* const second = Join("a");  // over another stream
  streams_->CheckFiles("a", "", checked);
  EXPECT_THAT(verdicts, SizeIs(2));
  streams_->Leave(second);
  ASSERT_THAT(verdicts, SizeIs(3));
  for (const FileVerdict& verdict : verdicts) {
    EXPECT_THAT(verdict.status, StatusIs(absl::StatusCode::kUnavailable, Reason::kWorkerLost));
    EXPECT_TRUE(RetryDelayOf(verdict.status).has_value());
  }
  streams_->file_checks().Answer(first, 1, {});
  EXPECT_THAT(verdicts, SizeIs(3));
}

TEST_F(WorkerStreamsTest, AWorkerOfAnOlderBuildIsAskedNothingAboutFiles) {
  FakeStream* const old = Join("old");
  old->can_fill = false;
  std::vector<FileVerdict> verdicts;
  EXPECT_EQ(streams_->CheckFiles("old", "", [&](const FileVerdict& v) { verdicts.push_back(v); }),
            0);
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_THAT(verdicts[0].status,
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kNotAvailable));
  EXPECT_THAT(old->sent().kinds(), IsEmpty());
  const absl::Status refused = streams_->CheckCanFill("old");
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kNotAvailable));
  EXPECT_THAT(refused, test::CarriesFacts(Reason::kNotAvailable, {{fact::kField, "source"}}));
  EXPECT_THAT(streams_->CheckCanFill("nobody"),
              StatusIs(absl::StatusCode::kUnavailable, Reason::kWorkerLost));
  Join("new");
  EXPECT_THAT(streams_->CheckCanFill("new"), IsOk());
  EXPECT_THAT(streams_->CheckCanConvert("old"),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kNotAvailable));
  EXPECT_THAT(streams_->CheckCanConvert("nobody"),
              StatusIs(absl::StatusCode::kUnavailable, Reason::kWorkerLost));
  EXPECT_THAT(streams_->CheckCanConvert("new"), IsOk());
  Join("plain")->can_convert = false;
  EXPECT_THAT(streams_->CheckCanFill("plain"), IsOk());
  const absl::Status plain = streams_->CheckCanConvert("plain");
  EXPECT_THAT(plain,
              test::CarriesFacts(Reason::kNotAvailable, {{fact::kField, "converted_source"}}));
}

TEST_F(WorkerStreamsTest, QuestionsAboutFilesAreBounded) {
  FakeStream* const a = Join("a");
  std::vector<FileVerdict> verdicts;
  const auto checked = [&](const FileVerdict& verdict) { verdicts.push_back(verdict); };
  for (size_t i = 0; i < FileChecks::kMaxChecks; ++i) streams_->CheckFiles("a", "", checked);
  EXPECT_THAT(verdicts, IsEmpty());
  EXPECT_EQ(streams_->CheckFiles("a", "", checked), 0);
  ASSERT_THAT(verdicts, SizeIs(1));
  EXPECT_THAT(verdicts[0].status,
              StatusIs(absl::StatusCode::kResourceExhausted, Reason::kOverloaded));
  EXPECT_TRUE(RetryDelayOf(verdicts[0].status).has_value());
  streams_->Leave(a);
  EXPECT_THAT(verdicts, SizeIs(FileChecks::kMaxChecks + 1)) << "all are answered";
}

TEST_F(WorkerStreamsTest, AQuestionForDigestsIsAnsweredOnceAlsoByTheLossOfTheWorker) {
  using Digests = DigestTransport::Digests;
  std::vector<absl::StatusOr<Digests>> answers;
  const auto digested = [&](const absl::StatusOr<Digests>& each) { answers.push_back(each); };
  const std::vector<WantedDigest> tiles = {{.array_id = "a1", .tile = {{{2, 4}}}}};
  EXPECT_EQ(streams_->DigestTiles("a", tiles, digested), 0);
  ASSERT_THAT(answers, SizeIs(1));
  EXPECT_THAT(answers[0], StatusIs(absl::StatusCode::kUnavailable, Reason::kWorkerLost));
  FakeStream* const old = Join("old");
  old->can_fill = false;
  EXPECT_EQ(streams_->DigestTiles("old", tiles, digested), 0);
  ASSERT_THAT(answers, SizeIs(2));
  EXPECT_THAT(answers[1], StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kNotAvailable));
  EXPECT_THAT(old->sent().kinds(), IsEmpty());

  FakeStream* const a = Join("a");
  const int64_t number = streams_->DigestTiles("a", tiles, digested);
  ASSERT_THAT(a->sent().kinds(), ElementsAre(Down::kDigestTiles));
  const internal::v1::DigestTiles order = Parsed(a->last()).digest_tiles();
  EXPECT_EQ(order.order_id(), number);
  ASSERT_EQ(order.tiles_size(), 1);
  EXPECT_EQ(order.tiles(0).array_id(), "a1");
  EXPECT_EQ(order.tiles(0).tile().ranges(0).start(), 2);
  streams_->digest_orders().Answer(old, number, {"of another worker"});
  streams_->digest_orders().Answer(a, number, {"digest"});
  streams_->digest_orders().Answer(a, number, {"again"});
  ASSERT_THAT(answers, SizeIs(3));
  EXPECT_EQ(answers[2].value(), Digests({"digest"}));
  streams_->ForgetDigests(streams_->DigestTiles("a", tiles, digested));
  streams_->DigestTiles("a", tiles, digested);
  streams_->Leave(a);
  ASSERT_THAT(answers, SizeIs(4));
  EXPECT_THAT(answers[3], StatusIs(absl::StatusCode::kUnavailable, Reason::kWorkerLost));
}

TEST_F(WorkerStreamsTest, QuestionsForDigestsAreBounded) {
  FakeStream* const a = Join("a");
  std::vector<absl::Status> errors;
  const auto digested = [&](const absl::StatusOr<DigestTransport::Digests>& each) {
    errors.push_back(each.status());
  };
  for (size_t i = 0; i < DigestOrders::kMaxOrders; ++i) streams_->DigestTiles("a", {}, digested);
  EXPECT_THAT(errors, IsEmpty());
  EXPECT_EQ(streams_->DigestTiles("a", {}, digested), 0);
  ASSERT_THAT(errors, SizeIs(1));
  EXPECT_THAT(errors[0], StatusIs(absl::StatusCode::kResourceExhausted, Reason::kOverloaded));
  EXPECT_TRUE(RetryDelayOf(errors[0]).has_value());
  streams_->Leave(a);
  EXPECT_THAT(errors, SizeIs(DigestOrders::kMaxOrders + 1)) << "all are answered";
}

TEST_F(WorkerStreamsTest, AnOrderToFillGoesToOneWorkerInPagesWithTheFilesThatTheyUse) {
  FakeStream* const a = Join("a");
  FakeStream* const b = Join("b");
  const std::vector<SourceFile> files = {
      FileAt("/unused"), FileAt(StrCat("/", std::string(99, 'x'))), FileAt("/second")};
  FillEncoder encoder("transfer", 7, nullptr, [&](std::string_view message) {
    EXPECT_THAT(streams_->SendFill("a", message), IsOk());
  });
  const std::string descriptor(100'000, 'd');
  for (int64_t i = 0; i < 25; ++i) {
    encoder.AddFromFile(StrCat(i, descriptor), 3, &files[i < 24 ? 1 : 2], i * 10);
  }
  encoder.Flush();
  encoder.Flush();  // there is nothing left
  EXPECT_THAT(streams_->SendFill("nobody", ""),
              StatusIs(absl::StatusCode::kUnavailable, Reason::kWorkerLost));
  EXPECT_THAT(b->sent().kinds(), IsEmpty());
  int64_t tiles = 0;
  int64_t messages = 0;
  for (const Down& each : a->sent().all()) {
    if (!each.has_fill_tiles()) continue;
    ++messages;
    const internal::v1::FillTiles& fill = each.fill_tiles();
    EXPECT_LE(fill.ByteSizeLong(), size_t{1} << 20);
    EXPECT_EQ(fill.transfer_id(), "transfer");
    EXPECT_EQ(fill.term(), 7);
    EXPECT_FALSE(fill.has_devices());
    for (const internal::v1::FillTile& tile : fill.tiles()) {
      EXPECT_EQ(tile.array_descriptor(), StrCat(tiles, descriptor));
      EXPECT_EQ(tile.rank(), 3);
      EXPECT_EQ(tile.file().offset_bytes(), tiles * 10);
      ASSERT_LT(static_cast<int>(tile.file().file()), fill.files_size());
      EXPECT_EQ(fill.files(static_cast<int>(tile.file().file())).path(),
                files[tiles < 24 ? 1 : 2].path);
      ++tiles;
    }
  }
  EXPECT_EQ(tiles, 25);
  EXPECT_EQ(messages, 3);
}

// Between attach and Join, which may take seconds, the member is the earlier stream.
TEST_F(WorkerStreamsTest, OrdersToAWorkerThatAttachesAgainAreNoOrdersToItsEarlierStream) {
  FakeStream* const first = Join("a");
  EXPECT_THAT(streams_->CheckCanFill("a"), IsOk());
  EXPECT_THAT(streams_->SendFill("a", ""), IsOk());
  FakeStream* const second = Attach("a");  // the same process
  const auto tail = std::make_shared<const std::string>();
  std::vector<FileVerdict> verdicts;
  EXPECT_EQ(streams_->CheckFiles("a", "", [&](const FileVerdict& v) { verdicts.push_back(v); }), 0);
  ASSERT_THAT(verdicts, SizeIs(1));
  for (const absl::Status& status : {streams_->CheckCanFill("a"), streams_->SendFill("a", ""),
                                     streams_->SendFillParts("a", "", tail), verdicts[0].status}) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable, Reason::kWorkerLost));
    EXPECT_TRUE(RetryDelayOf(status).has_value());
  }
  EXPECT_THAT(first->sent().kinds(), ElementsAre(Down::kFillTiles));
  streams_->Join(second);
  EXPECT_THAT(streams_->CheckCanFill("a"), IsOk());
  EXPECT_THAT(streams_->SendFill("a", ""), IsOk());
  EXPECT_THAT(second->sent().kinds(), ElementsAre(Down::kFillTiles));
}

TEST_F(WorkerStreamsTest, AStepWithAWorkerThatAttachesAgainEndsAtOnce) {
  FakeStream* const a = Join("a");
  FakeStream* const first = Join("b");
  FakeStream* const second = Attach("b");  // the same process
  absl::Status ended;
  const auto submit = [&] {
    StepRequest request;
    request.op = "linear";
    request.mesh_id = "m";
    request.participants = {{.rank = 0, .identity = "a"}, {.rank = 1, .identity = "b"}};
    request.message = StepMessage();
    request.timeout = absl::Minutes(5);
    return sequencer_->Submit(std::move(request),
                              [&](const WorkOutcome& outcome) { ended = outcome.status; });
  };
  ASSERT_THAT(submit(), IsOk());
  EXPECT_THAT(ended, StatusIs(absl::StatusCode::kUnavailable, Reason::kWorkerLost));
  EXPECT_THAT(a->sent().kinds(), ElementsAre(Down::kRunStep, Down::kEndStep));
  // The end goes to the member, as for each step.
  EXPECT_THAT(first->sent().kinds(), ElementsAre(Down::kEndStep));
  EXPECT_THAT(second->sent().kinds(), IsEmpty());
  streams_->Join(second);
  ended = absl::OkStatus();
  const auto ticket = submit();
  ASSERT_THAT(ticket, IsOk());
  EXPECT_THAT(ended, IsOk());
  EXPECT_THAT(second->sent().kinds(), ElementsAre(Down::kRunStep));
  sequencer_->Cancel(*ticket);
}

// The membership reports the loss, with its reason.
TEST_F(WorkerStreamsTest, AStepIsNotMissedByAWorkerThatIsLost) {
  FakeStream* const a = Join("a");
  members_.Detach(a->attachment(), "its stream broke");
  streams_->Leave(a);
  EXPECT_EQ(streams_->Start(Work(11, {"a"}), StepMessage()), std::nullopt);
}

TEST_F(WorkerStreamsTest, AnOrderToFillFromAnArrayNamesTheDevicesOfBothMeshes) {
  FakeStream* const a = Join("a");
  const internal::v1::FillDevices devices = EncodeFillDevices(
      {{.rank = 1, .identity = "b", .incarnation = 4, .endpoints = {"10.0.0.2:1"}}}, {"a", "b"},
      {"b", "c", "a"});
  FillEncoder encoder("transfer", 7, &devices, [&](std::string_view message) {
    EXPECT_THAT(streams_->SendFill("a", message), IsOk());
  });
  encoder.AddFromArray("to", 2, "from", "token");
  encoder.Flush();
  const internal::v1::FillTiles fill = Parsed(a->last()).fill_tiles();
  ASSERT_EQ(fill.tiles_size(), 1);
  EXPECT_EQ(fill.tiles(0).array().array_descriptor(), "from");
  EXPECT_EQ(fill.tiles(0).array().token(), "token");
  EXPECT_EQ(fill.files_size(), 0);
  EXPECT_THAT(fill.devices().source_ids(), ElementsAre(0, 1));
  EXPECT_THAT(fill.devices().destination_ids(), ElementsAre(1, 2, 0));
  ASSERT_EQ(fill.devices().sources_size(), 1);
  EXPECT_EQ(fill.devices().sources(0).endpoints(0).address(), "10.0.0.2:1");
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
