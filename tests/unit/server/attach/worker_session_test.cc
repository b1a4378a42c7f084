// The messages of one worker in order, out of order, and cut short.
#include "server/attach/worker_session.h"

#include <algorithm>
#include <atomic>

#include "absl/synchronization/notification.h"
#include "server/attach/attach_codec.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/str_cat.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/server/worker_streams_fixture.h"

namespace shardmesh::server {
namespace {

using ::shardmesh::test::Eventually;
using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using Down = internal::v1::AttachResponse;

// A worker without a network. As with gRPC, its session ends after Finish.
class FakeWorker final : public AttachWire {
 public:
  FakeWorker(WorkerStreams* streams, Sequencer* sequencer) : session_(streams, sequencer, this) {
    session_.Begin();
    Read();
  }
  ~FakeWorker() override { End(); }

  // Says what a worker says; it must have been asked to.
  void Say(const internal::v1::AttachRequest& request) {
    {
      absl::MutexLock lock(&mutex_);
      ASSERT_EQ(reads_, 1) << "nobody reads";
      reads_ = 0;
    }
    session_.Take(request);
  }
  void SayHello(const std::string& identity, uint64_t incarnation = 1) {
    Say(HelloOf(identity, incarnation));
  }
  void BringInventory() {
    internal::v1::AttachRequest request;
    request.mutable_inventory()->set_last(true);
    Say(request);
  }
  void BreakOff() { session_.Close(absl::CancelledError("its stream broke")); }
  // The stream breaks, and has ended.
  void End() {
    if (std::exchange(ended_, true)) return;
    BreakOff();
    // The thread that takes in its inventory may hold the session.
    ASSERT_TRUE(Eventually([this] { return end().has_value(); }));
    session_.End();
  }

  static internal::v1::AttachRequest HelloOf(const std::string& identity, uint64_t incarnation) {
    internal::v1::AttachRequest request;
    internal::v1::Hello* hello = request.mutable_hello();
    hello->set_identity(identity);
    hello->set_incarnation(incarnation);
    hello->set_nonce("0123456789abcdef");
    hello->mutable_protocol()->set_min(1);
    hello->mutable_protocol()->set_max(1);
    hello->add_endpoints()->set_address("10.0.0.1:1");
    return request;
  }

  bool is_read() const {
    absl::MutexLock lock(&mutex_);
    return reads_ == 1;
  }
  std::optional<absl::Status> end() const {
    absl::MutexLock lock(&mutex_);
    return finished_;
  }
  bool is_broken() const {
    absl::MutexLock lock(&mutex_);
    return broken_;
  }
  const SentMessages& sent() const { return sent_; }
  bool IsMember() const { return !sent_.memberships().empty(); }

  absl::Status caller = absl::OkStatus();  // the answer of CheckCaller
  absl::Status full = absl::OkStatus();    // the answer of Write

 private:
  absl::Status CheckCaller(const std::string&) const override { return caller; }
  void Read() override {
    absl::MutexLock lock(&mutex_);
    ++reads_;
  }
  absl::Status Write(WorkerMessage message) override {
    if (!full.ok()) return full;
    sent_.Add(message);
    return absl::OkStatus();
  }
  void Finish(absl::Status status) override {
    absl::MutexLock lock(&mutex_);
    EXPECT_FALSE(finished_.has_value()) << "finished twice";
    finished_ = std::move(status);
  }
  void Break() override {
    absl::MutexLock lock(&mutex_);
    broken_ = true;
  }

  mutable absl::Mutex mutex_;
  int reads_ = 0;
  std::optional<absl::Status> finished_;
  bool broken_ = false;
  bool ended_ = false;
  SentMessages sent_;
  WorkerSession session_;
};

class WorkerSessionTest : public WorkerStreamsFixture {
 protected:
  // Answers the first question as the worker itself does.
  void AnswerAs(const std::string& identity, uint64_t incarnation = 1) {
    ASSERT_FALSE(questions_.empty());
    Question question = std::move(questions_.front());
    questions_.erase(questions_.begin());
    std::move(question.answered)(EndpointAnswer{
        .identity = identity, .incarnation = incarnation, .nonce = "0123456789abcdef"});
  }
  void Welcome(FakeWorker* worker, const std::string& identity, uint64_t incarnation = 1) {
    worker->SayHello(identity, incarnation);
    AnswerAs(identity, incarnation);
  }
  void BecomeMember(FakeWorker* worker, const std::string& identity, uint64_t incarnation = 1) {
    Welcome(worker, identity, incarnation);
    worker->BringInventory();
    ASSERT_TRUE(Eventually([&] { return worker->IsMember(); }));
  }
  // A request for 100 bytes, with the order 5.
  static internal::v1::AttachRequest MemoryRequest(bool on_disk) {
    internal::v1::AttachRequest request;
    request.mutable_memory_request()->set_order_id(5);
    request.mutable_memory_request()->set_need_bytes(100);
    request.mutable_memory_request()->set_on_disk(on_disk);
    return request;
  }
};

TEST_F(WorkerSessionTest, TheFirstMessageMustBeAHello) {
  FakeWorker worker(streams_.get(), sequencer_.get());
  worker.BringInventory();
  ASSERT_TRUE(worker.end().has_value());
  EXPECT_THAT(*worker.end(), StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
}

TEST_F(WorkerSessionTest, AWorkerGetsWelcomeVerdictAndMembershipInThisOrder) {
  FakeWorker worker(streams_.get(), sequencer_.get());
  worker.SayHello("a");
  EXPECT_FALSE(worker.is_read()) << "its endpoints are being asked";
  AnswerAs("a");
  ASSERT_THAT(worker.sent().kinds(), ElementsAre(Down::kWelcome));
  const internal::v1::Welcome welcome = worker.sent().all()[0].welcome();
  EXPECT_EQ(welcome.cluster_id(), "cluster");
  EXPECT_EQ(welcome.term(), 7);
  EXPECT_EQ(welcome.token_key(), "key");
  EXPECT_TRUE(members_.view()->IsAlive("a"));
  worker.BringInventory();
  ASSERT_TRUE(Eventually([&] { return worker.IsMember(); }));
  const std::vector<internal::v1::AttachResponse> sent = worker.sent().all();
  ASSERT_GE(sent.size(), 3u);
  EXPECT_TRUE(sent[1].inventory_verdict().last());
  EXPECT_TRUE(sent[2].membership().snapshot());
}

TEST_F(WorkerSessionTest, ACallerThatIsNotTheWorkerIsRefused) {
  FakeWorker worker(streams_.get(), sequencer_.get());
  worker.caller = absl::PermissionDeniedError("another certificate");
  worker.SayHello("a");
  EXPECT_THAT(*worker.end(), StatusIs(absl::StatusCode::kPermissionDenied));
  EXPECT_THAT(questions_, IsEmpty());
}

TEST_F(WorkerSessionTest, AnEndpointThatLeadsToAnotherWorkerIsRefused) {
  FakeWorker worker(streams_.get(), sequencer_.get());
  worker.SayHello("a");
  AnswerAs("b");
  EXPECT_THAT(*worker.end(),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kEndpointUnverified));
  EXPECT_THAT(
      *worker.end(),
      test::CarriesFacts(Reason::kEndpointUnverified,
                         {{fact::kIdentity, "a"},
                          {fact::kValue, FactOf(*worker.end(), fact::kValue).value_or("none")}}));
  EXPECT_EQ(members_.view()->FindWorker("a"), nullptr);
  EXPECT_EQ(streams_->FailedAttachesOf("a").count, 0) << "kept of known workers only";
}

TEST_F(WorkerSessionTest, AnotherProcessOfALiveWorkerIsRefusedAndCounted) {
  FakeWorker first(streams_.get(), sequencer_.get());
  BecomeMember(&first, "a", 1);
  FakeWorker second(streams_.get(), sequencer_.get());
  Welcome(&second, "a", 2);
  EXPECT_THAT(*second.end(), StatusIs(absl::StatusCode::kAlreadyExists, Reason::kIdentityInUse));
  EXPECT_EQ(streams_->FailedAttachesOf("a").count, 1);
  second.End();
  EXPECT_FALSE(first.end().has_value());
  EXPECT_TRUE(members_.view()->IsAlive("a"));
}

TEST_F(WorkerSessionTest, ALaterStreamOfTheSameProcessTakesOver) {
  FakeWorker first(streams_.get(), sequencer_.get());
  BecomeMember(&first, "a", 1);
  FakeWorker second(streams_.get(), sequencer_.get());
  BecomeMember(&second, "a", 1);
  EXPECT_THAT(*first.end(), StatusIs(absl::StatusCode::kUnavailable, Reason::kStaleEpoch));
  EXPECT_TRUE(first.is_broken());
  first.End();
  EXPECT_TRUE(members_.view()->IsAlive("a")) << "the worker is there over its later stream";
}

TEST_F(WorkerSessionTest, AWorkerWhoseStreamBreaksIsLost) {
  FakeWorker worker(streams_.get(), sequencer_.get());
  BecomeMember(&worker, "a");
  worker.End();
  const auto view = members_.view();
  EXPECT_FALSE(view->IsAlive("a"));
  EXPECT_THAT(view->FindWorker("a")->lost_because, HasSubstr("its stream broke"));
}

TEST_F(WorkerSessionTest, AWorkerWhoseStreamEndsAsTheCoordinatorStopsIsNotLost) {
  FakeWorker worker(streams_.get(), sequencer_.get());
  BecomeMember(&worker, "a");
  streams_->Stop();
  worker.End();
  EXPECT_TRUE(members_.view()->IsAlive("a"));
}

TEST_F(WorkerSessionTest, AStreamThatBreaksWhileItsEndpointsAreAskedEndsAfterTheAnswer) {
  FakeWorker worker(streams_.get(), sequencer_.get());
  worker.SayHello("a");
  Question question = std::move(questions_.front());
  questions_.clear();
  worker.BreakOff();
  EXPECT_FALSE(worker.end().has_value()) << "the answer still uses the session";
  std::move(question.answered)(
      EndpointAnswer{.identity = "a", .incarnation = 1, .nonce = "0123456789abcdef"});
  ASSERT_TRUE(worker.end().has_value());
  EXPECT_THAT(*worker.end(), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_EQ(members_.view()->FindWorker("a"), nullptr);
  EXPECT_THAT(worker.sent().all(), IsEmpty());
}

TEST_F(WorkerSessionTest, AStreamThatBringsNoHelloIsCut) {
  FakeWorker worker(streams_.get(), sequencer_.get());
  clock_.Advance(absl::Seconds(9));
  EXPECT_FALSE(worker.end().has_value());
  clock_.Advance(absl::Seconds(1));
  EXPECT_THAT(*worker.end(), StatusIs(absl::StatusCode::kDeadlineExceeded, Reason::kDeadline));
  EXPECT_TRUE(worker.is_broken());
}

TEST_F(WorkerSessionTest, AStreamThatBringsNoWholeInventoryIsCut) {
  FakeWorker worker(streams_.get(), sequencer_.get());
  Welcome(&worker, "a");
  clock_.Advance(absl::Seconds(3));
  EXPECT_THAT(*worker.end(), StatusIs(absl::StatusCode::kDeadlineExceeded, Reason::kDeadline));
  worker.End();
  EXPECT_FALSE(members_.view()->IsAlive("a"));
}

TEST_F(WorkerSessionTest, AnInventoryOfTooManyTilesIsRefused) {
  FakeWorker worker(streams_.get(), sequencer_.get());
  Welcome(&worker, "a");
  internal::v1::AttachRequest page;
  for (const char* id : {"x", "y", "z"}) page.mutable_inventory()->add_quarantined_array_ids(id);
  worker.Say(page);
  EXPECT_THAT(*worker.end(),
              StatusIs(absl::StatusCode::kResourceExhausted, Reason::kLimitExceeded));
}

TEST_F(WorkerSessionTest, ASilentWorkerIsCut) {
  FakeWorker worker(streams_.get(), sequencer_.get());
  BecomeMember(&worker, "a");
  for (int i = 0; i < 6; ++i) clock_.Advance(absl::Seconds(1));
  // The thread that takes in its inventory may hold the session.
  ASSERT_TRUE(Eventually([&] { return worker.end().has_value(); }));
  EXPECT_THAT(*worker.end(), StatusIs(absl::StatusCode::kUnavailable, Reason::kStaleEpoch));
  EXPECT_FALSE(members_.view()->IsAlive("a"));
}

TEST_F(WorkerSessionTest, HeartbeatsKeepAWorkerAliveAndBringTheClock) {
  FakeWorker worker(streams_.get(), sequencer_.get());
  BecomeMember(&worker, "a");
  internal::v1::AttachRequest beat;
  beat.mutable_heartbeat()->set_used_bytes(42);
  for (int i = 0; i < 7; ++i) {
    clock_.Advance(absl::Seconds(1));
    worker.Say(beat);
  }
  EXPECT_FALSE(worker.end().has_value());
  EXPECT_EQ(members_.view()->FindWorker("a")->used_bytes(), 42);
  EXPECT_THAT(worker.sent().kinds(),
              ElementsAre(Down::kWelcome, Down::kInventoryVerdict, Down::kClock));
}

TEST_F(WorkerSessionTest, HeartbeatsBringTheBytesThatAStepHasReceived) {
  FakeWorker worker(streams_.get(), sequencer_.get());
  BecomeMember(&worker, "a");
  std::vector<int64_t> received;
  StepRequest step;
  step.op = "reshard";
  step.mesh_id = "m";
  step.participants = {{.rank = 0, .identity = "a"}};
  step.message = std::make_shared<const EncodedStep>(EncodedStep{
      .plan_hash = "hash", .plan = std::make_shared<const std::string>("plan"), .rest = {}});
  step.timeout = absl::Minutes(1);
  step.received = [&](std::string_view identity, int64_t bytes) {
    EXPECT_EQ(identity, "a");
    received.push_back(bytes);
  };
  ASSERT_THAT(sequencer_->Submit(std::move(step), [](const WorkOutcome&) {}), IsOk());
  internal::v1::AttachRequest beat;
  v1::StepProgress& progress = *beat.mutable_heartbeat()->add_progress();
  progress.set_sequence(sequencer_->last_sequence());
  worker.Say(beat);
  // A worker of an older build does not send the bytes.
  progress.mutable_instruction()->set_sequence(progress.sequence());
  worker.Say(beat);
  EXPECT_THAT(received, IsEmpty());
  beat.mutable_heartbeat()->add_received_bytes(40);
  worker.Say(beat);
  beat.mutable_heartbeat()->set_received_bytes(0, -1);
  worker.Say(beat);
  EXPECT_FALSE(worker.end().has_value());
  EXPECT_THAT(received, ElementsAre(40));
}

TEST_F(WorkerSessionTest, ASecondHelloEndsTheStream) {
  FakeWorker worker(streams_.get(), sequencer_.get());
  Welcome(&worker, "a");
  worker.SayHello("a");
  EXPECT_THAT(*worker.end(), StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
}

TEST_F(WorkerSessionTest, AMessageOfANewerWorkerIsPassedOver) {
  FakeWorker worker(streams_.get(), sequencer_.get());
  BecomeMember(&worker, "a");
  worker.Say(internal::v1::AttachRequest());
  EXPECT_FALSE(worker.end().has_value());
  EXPECT_TRUE(worker.is_read());
}

TEST_F(WorkerSessionTest, AWorkerThatLeavesIsClosedWhenItsWorkIsDone) {
  FakeWorker worker(streams_.get(), sequencer_.get());
  BecomeMember(&worker, "a");
  ASSERT_THAT(sequencer_->BeginTransfer({.transfer_id = "t",
                                         .op = "put",
                                         .mesh_id = "m",
                                         .participants = {{.rank = 0, .identity = "a"}},
                                         .timeout = absl::Minutes(1),
                                         .commit = nullptr},
                                        [](const WorkOutcome&) {}),
              IsOk());
  internal::v1::AttachRequest leaving;
  leaving.mutable_leaving()->set_reason("maintenance");
  worker.Say(leaving);
  EXPECT_EQ(members_.view()->FindWorker("a")->state, WorkerState::kDraining);
  EXPECT_FALSE(worker.end().has_value()) << "a put still needs it";
  ASSERT_THAT(sequencer_->AbortTransfer("t", absl::CancelledError("enough")), IsOk());
  ASSERT_TRUE(worker.end().has_value());
  worker.End();
  EXPECT_THAT(members_.view()->FindWorker("a")->lost_because, HasSubstr("it left: maintenance"));
}

TEST_F(WorkerSessionTest, AWorkerThatLeavesBeforeItTookPartIsClosedAtOnce) {
  FakeWorker worker(streams_.get(), sequencer_.get());
  Welcome(&worker, "a");
  internal::v1::AttachRequest leaving;
  leaving.mutable_leaving()->set_reason("maintenance");
  worker.Say(leaving);
  EXPECT_THAT(*worker.end(), StatusIs(absl::StatusCode::kCancelled));
}

TEST_F(WorkerSessionTest, AStagedTileIsCountedBeforeItsReportCanEndThePut) {
  std::vector<std::string> events;
  tile_staged_ = [&](std::string_view transfer_id, int64_t size_bytes) {
    events.push_back(StrCat(transfer_id, " staged ", size_bytes));
  };
  FakeWorker worker(streams_.get(), sequencer_.get());
  BecomeMember(&worker, "a");
  ASSERT_THAT(sequencer_->BeginTransfer(
                  {.transfer_id = "t",
                   .op = "put",
                   .mesh_id = "m",
                   .participants = {{.rank = 0, .identity = "a", .expected_tiles = 1}},
                   .timeout = absl::Minutes(1),
                   .commit = nullptr},
                  [&](const WorkOutcome& outcome) {
                    EXPECT_THAT(outcome.status, IsOk());
                    events.push_back("ended");
                  }),
              IsOk());
  ASSERT_THAT(sequencer_->CommitTransfer("t"), IsOk());
  internal::v1::AttachRequest staged;
  staged.mutable_tile_staged()->set_transfer_id("t");
  staged.mutable_tile_staged()->set_array_id("w");
  staged.mutable_tile_staged()->set_size_bytes(64);
  staged.mutable_tile_staged()->set_term(7);
  worker.Say(staged);
  EXPECT_THAT(events, ElementsAre("t staged 64", "ended"));
}

TEST_F(WorkerSessionTest, ATileThatIsStagedTooLateIsAborted) {
  FakeWorker worker(streams_.get(), sequencer_.get());
  BecomeMember(&worker, "a");
  internal::v1::AttachRequest staged;
  staged.mutable_tile_staged()->set_transfer_id("gone");
  staged.mutable_tile_staged()->set_term(7);
  worker.Say(staged);
  const std::vector<internal::v1::AttachResponse> sent = worker.sent().all();
  ASSERT_TRUE(sent.back().has_end_transfer());
  EXPECT_EQ(sent.back().end_transfer().transfer_id(), "gone");
  EXPECT_FALSE(sent.back().end_transfer().commit());
}

TEST_F(WorkerSessionTest, AWorkerThatDoesNotReadIsCut) {
  FakeWorker worker(streams_.get(), sequencer_.get());
  BecomeMember(&worker, "a");
  worker.full = absl::ResourceExhaustedError("too much waits");
  internal::v1::AttachRequest staged;
  staged.mutable_tile_staged()->set_transfer_id("gone");
  staged.mutable_tile_staged()->set_term(7);
  worker.Say(staged);
  EXPECT_THAT(*worker.end(), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_TRUE(worker.is_broken());
}

// Begins the transfer "t" of worker "a", whose end sets `*ended`.
absl::Status BeginPutOfA(Sequencer* sequencer, absl::Status* ended) {
  return sequencer->BeginTransfer({.transfer_id = "t",
                                   .op = "put",
                                   .mesh_id = "m",
                                   .participants = {{0, "a", 2}},
                                   .timeout = absl::Minutes(1),
                                   .commit = nullptr},
                                  [ended](const WorkOutcome& o) { *ended = o.status; });
}

TEST_F(WorkerSessionTest, AFailureToFillEndsTheTransferAndBlamesTheWorker) {
  FakeWorker a(streams_.get(), sequencer_.get());
  BecomeMember(&a, "a");
  absl::Status ended;
  ASSERT_THAT(BeginPutOfA(sequencer_.get(), &ended), IsOk());
  internal::v1::AttachRequest request;
  internal::v1::FillFailed& failed = *request.mutable_fill_failed();
  failed.set_transfer_id("t");
  failed.set_term(7);
  failed.set_array_id("array");
  failed.mutable_error()->set_code(static_cast<int>(absl::StatusCode::kDataLoss));
  failed.mutable_error()->set_message("the disk is bad");
  a.Say(request);
  EXPECT_THAT(ended, StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_THAT(std::string(ended.message()), HasSubstr("the disk is bad"));
  EXPECT_THAT(std::string(ended.message()), HasSubstr("rank 0"));
  EXPECT_THAT(std::string(ended.message()), HasSubstr("a"));
  EXPECT_EQ(a.sent().kinds().back(), Down::kEndTransfer);
  // A late failure makes the worker drop its tiles once more.
  const size_t sent = a.sent().kinds().size();
  a.Say(request);
  EXPECT_THAT(a.sent().kinds(), SizeIs(sent + 1));
  EXPECT_EQ(a.sent().kinds().back(), Down::kEndTransfer);
}

TEST_F(WorkerSessionTest, AFailureToFillWithoutAnErrorEndsTheTransferToo) {
  FakeWorker a(streams_.get(), sequencer_.get());
  BecomeMember(&a, "a");
  absl::Status ended;
  ASSERT_THAT(BeginPutOfA(sequencer_.get(), &ended), IsOk());
  internal::v1::AttachRequest request;
  request.mutable_fill_failed()->set_transfer_id("t");
  request.mutable_fill_failed()->set_term(6);
  a.Say(request);  // of an earlier term
  EXPECT_THAT(ended, IsOk());
  request.mutable_fill_failed()->set_term(7);
  a.Say(request);
  EXPECT_THAT(ended, StatusIs(absl::StatusCode::kInternal));
}

TEST_F(WorkerSessionTest, PassesOnTheAnswerToAQuestionAboutFiles) {
  FakeWorker a(streams_.get(), sequencer_.get());
  internal::v1::AttachRequest hello = FakeWorker::HelloOf("a", 1);
  hello.mutable_hello()->add_features("fill");
  a.Say(hello);
  AnswerAs("a");
  a.BringInventory();
  ASSERT_TRUE(Eventually([&] { return a.IsMember(); }));
  FileVerdict verdict;
  const int64_t number =
      streams_->CheckFiles("a", "", [&](const FileVerdict& answer) { verdict = answer; });
  EXPECT_NE(number, 0);
  EXPECT_EQ(a.sent().kinds().back(), Down::kCheckFiles);
  internal::v1::AttachRequest request;
  request.mutable_files_checked()->set_order_id(number);
  request.mutable_files_checked()->set_file(3);
  request.mutable_files_checked()->mutable_error()->set_code(
      static_cast<int>(absl::StatusCode::kNotFound));
  request.mutable_files_checked()->mutable_error()->set_message("no such file");
  a.Say(request);
  EXPECT_THAT(verdict.status, StatusIs(absl::StatusCode::kNotFound));
  EXPECT_EQ(verdict.file, 3);
}

TEST_F(WorkerSessionTest, KnowsTheFeaturesOfWorkers) {
  FakeWorker old(streams_.get(), sequencer_.get());
  old.Say(FakeWorker::HelloOf("a", 1));
  AnswerAs("a");
  old.BringInventory();
  ASSERT_TRUE(Eventually([&] { return old.IsMember(); }));
  EXPECT_FALSE(members_.view()->FindWorker("a")->info.answers_clock);
  EXPECT_FALSE(members_.view()->FindWorker("a")->info.multiplies_batches);
  EXPECT_FALSE(members_.view()->FindWorker("a")->info.runs_tensor_ops);
  EXPECT_FALSE(members_.view()->FindWorker("a")->info.multiplies_short_types);
  EXPECT_FALSE(members_.view()->FindWorker("a")->info.overlaps_exchanges);
  EXPECT_FALSE(members_.view()->FindWorker("a")->info.runs_fused_ops);
  EXPECT_FALSE(members_.view()->FindWorker("a")->info.overlaps_parts);
  FakeWorker recent(streams_.get(), sequencer_.get());
  internal::v1::AttachRequest hello = FakeWorker::HelloOf("b", 1);
  hello.mutable_hello()->add_features("clock_answers");
  hello.mutable_hello()->add_features("batches_of_matrices");
  hello.mutable_hello()->add_features("tensor_ops");
  hello.mutable_hello()->add_features("short_products");
  hello.mutable_hello()->add_features("overlapped_exchanges");
  hello.mutable_hello()->add_features("fused_compute");
  hello.mutable_hello()->add_features("overlapped_parts");
  recent.Say(hello);
  AnswerAs("b");
  recent.BringInventory();
  ASSERT_TRUE(Eventually([&] { return recent.IsMember(); }));
  EXPECT_TRUE(members_.view()->FindWorker("b")->info.answers_clock);
  EXPECT_TRUE(members_.view()->FindWorker("b")->info.multiplies_batches);
  EXPECT_TRUE(members_.view()->FindWorker("b")->info.runs_tensor_ops);
  EXPECT_TRUE(members_.view()->FindWorker("b")->info.multiplies_short_types);
  EXPECT_TRUE(members_.view()->FindWorker("b")->info.overlaps_exchanges);
  EXPECT_TRUE(members_.view()->FindWorker("b")->info.runs_fused_ops);
  EXPECT_TRUE(members_.view()->FindWorker("b")->info.overlaps_parts);
}

TEST_F(WorkerSessionTest, PassesOnDigestsOfTiles) {
  FakeWorker a(streams_.get(), sequencer_.get());
  internal::v1::AttachRequest hello = FakeWorker::HelloOf("a", 1);
  hello.mutable_hello()->add_features("tile_digests");
  a.Say(hello);
  AnswerAs("a");
  a.BringInventory();
  ASSERT_TRUE(Eventually([&] { return a.IsMember(); }));
  DigestTransport::Digests digests;
  const int64_t number =
      streams_->DigestTiles("a", {{.array_id = "a1", .tile = {{{0, 4}}}}},
                            [&](const absl::StatusOr<DigestTransport::Digests>& answer) {
                              ASSERT_THAT(answer, IsOk());
                              digests = *answer;
                            });
  EXPECT_EQ(a.sent().kinds().back(), Down::kDigestTiles);
  internal::v1::AttachRequest request;
  request.mutable_tiles_digested()->set_order_id(number);
  request.mutable_tiles_digested()->add_tile_sha256("one");
  request.mutable_tiles_digested()->add_tile_sha256("");
  a.Say(request);
  EXPECT_EQ(digests, DigestTransport::Digests({"one", ""}));
}

TEST_F(WorkerSessionTest, ReadsOnWhileARequestForMemoryWaitsForTheCache) {
  absl::Notification go;
  std::atomic<bool> has_begun = false;
  free_memory_ = [&](int64_t) {
    has_begun = true;
    go.WaitForNotification();
  };
  FakeWorker a(streams_.get(), sequencer_.get());
  BecomeMember(&a, "a");
  a.Say(MemoryRequest(/*on_disk=*/false));
  ASSERT_TRUE(Eventually([&] { return has_begun.load(); }));
  EXPECT_TRUE(a.is_read()) << "the next message";
  const auto is_answer = [](const Down& sent) { return sent.has_memory_answer(); };
  const auto answers = [&] {
    const std::vector<Down> all = a.sent().all();
    return std::count_if(all.begin(), all.end(), is_answer);
  };
  // Answers to requests beyond the limit come at once.
  for (int64_t i = 0; i < 10; ++i) a.Say(MemoryRequest(/*on_disk=*/false));
  EXPECT_EQ(answers(), 2);
  a.BreakOff();
  EXPECT_FALSE(a.end().has_value()) << "the session ends after the answer";
  go.Notify();
  EXPECT_TRUE(Eventually([&] { return a.end().has_value(); }));
  EXPECT_EQ(answers(), 11);
}

TEST_F(WorkerSessionTest, ARequestForMemorySaysWhetherDiskSpaceIsNeeded) {
  FakeWorker a(streams_.get(), sequencer_.get());
  BecomeMember(&a, "a");
  a.Say(MemoryRequest(/*on_disk=*/true));
  EXPECT_TRUE(Eventually([&] { return is_disk_asked_for_.load(); }));
}

TEST_F(WorkerSessionTest, AnswersARequestForMemory) {
  FakeWorker a(streams_.get(), sequencer_.get());
  BecomeMember(&a, "a");
  a.Say(MemoryRequest(/*on_disk=*/false));
  ASSERT_TRUE(Eventually([&] { return a.sent().kinds().back() == Down::kMemoryAnswer; }));
  for (const Down& answer : a.sent().all()) {
    if (!answer.has_memory_answer()) continue;
    EXPECT_EQ(answer.memory_answer().order_id(), 5);
    EXPECT_EQ(answer.memory_answer().freed_bytes(), 200);
  }
}

}  // namespace
}  // namespace shardmesh::server
