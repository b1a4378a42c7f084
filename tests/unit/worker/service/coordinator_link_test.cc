// The stream to a coordinator, against a small one in this process.
#include "worker/service/coordinator_link.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <deque>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "process/clock.h"
#include "process/failpoint.h"
#include "rpc/codec/array_codec.h"
#include "rpc/codec/spec_codec.h"
#include "rpc/codec/status.h"
#include "rpc/codec/time_codec.h"
#include "rpc/server_lifecycle.h"
#include "rpc/transfer_token.h"
#include "shardmesh/internal/v1/attach_service.grpc.pb.h"
#include "tensor/buffer.h"
#include "tests/testing/eventually.h"
#include "tests/testing/read_file.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/worker/service/attach_fakes.h"
#include "worker/service/attach_stream.h"

namespace shardmesh::worker {
namespace {

using ::shardmesh::test::Eventually;
using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr absl::Duration kTimeout = absl::Seconds(20);
// A field with number 100 and value 42. An encoder writes unknown fields last: at the front it
// shows whether a message was encoded again.
const std::string kUnknownField = "\xa0\x06\x2a";

// Records what a worker asks of its peers' links; it has no peers.
class RecordingLinks final : public PeerLinks {
 public:
  void Customize(grpc::ServerBuilder&) override {}
  grpc::Service* service() override { return nullptr; }
  void Start() override {}
  void Close() override {}
  void SetClusterId(std::string cluster_id) override {
    absl::MutexLock lock(&mutex_);
    cluster_id_ = std::move(cluster_id);
  }
  void SetMembership(MembershipView view) override {
    absl::MutexLock lock(&mutex_);
    view_ = std::move(view);
  }
  std::string BlamedFor(int64_t) const override { return ""; }
  MembershipView membership() const override {
    absl::MutexLock lock(&mutex_);
    return view_;
  }
  absl::Status ExpectStep(int64_t /*sequence*/, int64_t /*epoch*/) override {
    return absl::OkStatus();
  }
  void CloseStep(int64_t /*sequence*/) override {}
  absl::StatusOr<std::unique_ptr<StepLink>> OpenLink(std::string_view, int64_t, int64_t,
                                                     absl::Time) override {
    return absl::UnavailableError("no peers");
  }
  void AbortStep(int64_t, const absl::Status&, std::string_view) override {}
  Counters counters() const override { return {}; }
  MeasuredLinks measured_links() const override {
    absl::MutexLock lock(&mutex_);
    return measured_;
  }
  void SetMeasured(MeasuredLinks measured) {
    absl::MutexLock lock(&mutex_);
    measured_ = std::move(measured);
  }

  std::string cluster_id() const {
    absl::MutexLock lock(&mutex_);
    return cluster_id_;
  }

 private:
  mutable absl::Mutex mutex_;
  std::string cluster_id_ ABSL_GUARDED_BY(mutex_);
  MembershipView view_ ABSL_GUARDED_BY(mutex_);
  MeasuredLinks measured_ ABSL_GUARDED_BY(mutex_);
};

// Takes steps and leaves it to the test when they end.
class HeldExecutor final : public StepExecutor {
 public:
  void Run(StepOrder order, Report report) override {
    absl::MutexLock lock(&mutex_);
    runs_.emplace_back(std::move(order), std::move(report));
  }
  absl::Status Commit(int64_t sequence) override {
    absl::MutexLock lock(&mutex_);
    committed_.push_back(sequence);
    runs_before_commit_.push_back(runs_.size());
    return absl::OkStatus();
  }
  void Abort(int64_t sequence, const absl::Status& status) override {
    absl::MutexLock lock(&mutex_);
    EXPECT_FALSE(status.ok());
    aborted_.push_back(sequence);
  }
  void AbortUnfinished(const absl::Status& status) override {
    absl::MutexLock lock(&mutex_);
    EXPECT_THAT(status, test::CarriesFacts(Reason::kStepAborted, {}));
    ++unfinished_aborts_;
  }
  void KeepStaged() override {
    absl::MutexLock lock(&mutex_);
    ++left_staged_;
  }
  void Forget(absl::Span<const std::string> array_ids) override {
    absl::MutexLock lock(&mutex_);
    forgotten_.insert(forgotten_.end(), array_ids.begin(), array_ids.end());
  }
  bool runs_steps() const override { return false; }
  std::vector<StepProgress> progress() const override {
    absl::MutexLock lock(&mutex_);
    return progress_;
  }
  void SetProgress(std::vector<StepProgress> progress) {
    absl::MutexLock lock(&mutex_);
    progress_ = std::move(progress);
  }

  template <typename Read>
  auto With(Read read) const {
    absl::MutexLock lock(&mutex_);
    return read(*this);
  }

  mutable absl::Mutex mutex_;
  std::vector<StepProgress> progress_ ABSL_GUARDED_BY(mutex_) = {
      {.step = 9, .instruction = FlightRecord{.op = 2}}};
  std::vector<std::pair<StepOrder, Report>> runs_ ABSL_GUARDED_BY(mutex_);
  std::vector<int64_t> committed_ ABSL_GUARDED_BY(mutex_);
  std::vector<size_t> runs_before_commit_ ABSL_GUARDED_BY(mutex_);
  std::vector<int64_t> aborted_ ABSL_GUARDED_BY(mutex_);
  int unfinished_aborts_ ABSL_GUARDED_BY(mutex_) = 0;
  int left_staged_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::string> forgotten_ ABSL_GUARDED_BY(mutex_);
};

// A coordinator that lets the test read and write the stream of the worker that attached last.
class Coordinator final : public internal::v1::AttachService::Service {
 public:
  using Stream =
      grpc::ServerReaderWriter<internal::v1::AttachResponse, internal::v1::AttachRequest>;

  // Refuses all who attach from now on; OK: takes them in.
  void RefuseWith(absl::Status status) {
    absl::MutexLock lock(&mutex_);
    refusal_ = std::move(status);
  }

  // The next message other than a heartbeat, from whichever stream.
  internal::v1::AttachRequest Read() {
    absl::MutexLock lock(&mutex_);
    const auto has_message = [this] { return !messages_.empty(); };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&has_message), kTimeout)) {
      ADD_FAILURE() << "the worker sends nothing";
      return {};
    }
    internal::v1::AttachRequest message = std::move(messages_.front());
    messages_.pop_front();
    return message;
  }
  int attaches() const {
    absl::MutexLock lock(&mutex_);
    return attaches_;
  }
  // Numbers of the records that all heartbeats brought.
  std::vector<int64_t> records() const {
    absl::MutexLock lock(&mutex_);
    return records_;
  }
  // Heartbeats that told of links, and what the last of them told.
  int link_reports() const {
    absl::MutexLock lock(&mutex_);
    return link_reports_;
  }
  internal::v1::MeasuredLinks last_links() const {
    absl::MutexLock lock(&mutex_);
    return links_;
  }
  internal::v1::Heartbeat last_heartbeat() const {
    absl::MutexLock lock(&mutex_);
    return heartbeat_;
  }
  void Write(const internal::v1::AttachResponse& message) {
    absl::MutexLock lock(&mutex_);
    ASSERT_NE(stream_, nullptr);
    stream_->Write(message);
  }
  // Breaks the stream of the worker.
  void Break() {
    absl::MutexLock lock(&mutex_);
    if (context_ != nullptr) {
      context_->TryCancel();
    }
  }

  grpc::Status Attach(grpc::ServerContext* context, Stream* stream) override {
    {
      absl::MutexLock lock(&mutex_);
      ++attaches_;
      if (!refusal_.ok()) {
        return rpc::ToGrpc(refusal_);
      }
      stream_ = stream;
      context_ = context;
    }
    internal::v1::AttachRequest message;
    while (stream->Read(&message)) {
      absl::MutexLock lock(&mutex_);
      if (message.has_heartbeat()) {
        heartbeat_ = message.heartbeat();
        if (heartbeat_.has_links()) {
          ++link_reports_;
          links_ = heartbeat_.links();
        }
        for (const v1::FlightRecord& record : heartbeat_.records()) {
          records_.push_back(record.number());
        }
      } else {
        messages_.push_back(message);
      }
    }
    absl::MutexLock lock(&mutex_);
    if (stream_ == stream) {
      stream_ = nullptr;
      context_ = nullptr;
    }
    return grpc::Status::OK;
  }

 private:
  mutable absl::Mutex mutex_;
  absl::Status refusal_ ABSL_GUARDED_BY(mutex_);
  int attaches_ ABSL_GUARDED_BY(mutex_) = 0;
  Stream* stream_ ABSL_GUARDED_BY(mutex_) = nullptr;
  grpc::ServerContext* context_ ABSL_GUARDED_BY(mutex_) = nullptr;
  internal::v1::Heartbeat heartbeat_ ABSL_GUARDED_BY(mutex_);
  std::vector<int64_t> records_ ABSL_GUARDED_BY(mutex_);
  int link_reports_ ABSL_GUARDED_BY(mutex_) = 0;
  internal::v1::MeasuredLinks links_ ABSL_GUARDED_BY(mutex_);
  std::deque<internal::v1::AttachRequest> messages_ ABSL_GUARDED_BY(mutex_);
};

class CoordinatorLinkTest : public ::testing::Test {
 protected:
  CoordinatorLinkTest() {
    store_ = *ShardStore::Open({.pool = pool_, .data_dir = ""});
    gate_ = std::make_unique<TileGate>(TileGate::Options{
        .identity = "w1", .store = store_.get(), .clock = &clock_, .staged = [](const auto&) {}});
    server_ = *rpc::ServerLifecycle::Start(
        {}, {{internal::v1::AttachService::service_full_name(), &coordinator_}});
  }
  ~CoordinatorLinkTest() override {
    link_.reset();
    server_->Drain(absl::Now() + kTimeout);
  }

  void Start() {
    auto link =
        CoordinatorLink::Create({.coordinator = server_->address(),
                                 .self = {.identity = "w1", .incarnation = 7, .boot_id = "boot"},
                                 .nonce = "0123456789abcdef",
                                 .endpoints = {"127.0.0.1:1"},
                                 .threads = 2,
                                 .data_dir = data_dir_,
                                 .clock = &clock_,
                                 .store = store_.get(),
                                 .gate = gate_.get(),
                                 .links = &links_,
                                 .executor = &executor_,
                                 .filler = &filler_,
                                 .recorder = &recorder_,
                                 .ready_changed =
                                     [this](bool ready) {
                                       absl::MutexLock lock(&mutex_);
                                       ready_ = ready;
                                     },
                                 .failed =
                                     [this](const absl::Status& reason) {
                                       absl::MutexLock lock(&mutex_);
                                       failure_ = reason;
                                     },
                                 .retry = {.max_attempts = 1,
                                           .initial_delay = absl::Milliseconds(1),
                                           .max_delay = absl::Milliseconds(10)}});
    ASSERT_THAT(link, IsOk());
    link_ = *std::move(link);
    link_->Start();
  }

  static internal::v1::AttachResponse Welcome(
      int64_t term = 3, const std::string& cluster_id = "cluster",
      absl::Duration heartbeat_interval = absl::Milliseconds(20), char key = 'k') {
    internal::v1::AttachResponse response;
    internal::v1::Welcome* welcome = response.mutable_welcome();
    welcome->set_cluster_id(cluster_id);
    welcome->set_term(term);
    welcome->set_protocol(1);
    welcome->set_token_key(std::string(32, key));
    rpc::Encode(heartbeat_interval, welcome->mutable_heartbeat_interval());
    return response;
  }
  static internal::v1::AttachResponse Membership(int64_t epoch) {
    return MembershipOf(epoch, {"w1"});
  }
  static internal::v1::AttachResponse Verdict(std::vector<std::string> commit,
                                              std::vector<std::string> drop) {
    internal::v1::AttachResponse response;
    for (const std::string& id : commit) {
      response.mutable_inventory_verdict()->add_commit_array_ids(id);
    }
    for (const std::string& id : drop) {
      response.mutable_inventory_verdict()->add_drop_array_ids(id);
    }
    response.mutable_inventory_verdict()->set_last(true);
    return response;
  }

  // Brings the worker from its hello to membership.
  void TakeIn(int64_t epoch, const internal::v1::AttachResponse& welcome = Welcome()) {
    EXPECT_TRUE(coordinator_.Read().has_hello());
    coordinator_.Write(welcome);
    EXPECT_TRUE(coordinator_.Read().inventory().last());
    coordinator_.Write(Verdict({}, {}));
    coordinator_.Write(Membership(epoch));
    EXPECT_TRUE(Eventually([&] { return link_->state().epoch == epoch; }));
  }

  void Stage(const std::string& id, const std::string& descriptor = "") {
    auto staged = store_->Stage({.array_id = id,
                                 .dtype = Dtype::kF32,
                                 .array_shape = {4},
                                 .tile = {{{0, 4}}},
                                 .array_descriptor = descriptor,
                                 .transfer_id = "t"},
                                /*durable=*/false);
    ASSERT_THAT(staged, IsOk());
    (*staged)->mutable_bytes()[0] = 'x';
    ASSERT_THAT((*staged)->Finish(std::nullopt), IsOk());
  }

  bool ready() {
    absl::MutexLock lock(&mutex_);
    return ready_;
  }
  absl::Status failure() {
    absl::MutexLock lock(&mutex_);
    return failure_;
  }

  static std::string MakeFolder() {
    std::string folder = testing::TempDir() + "/terms_XXXXXX";
    EXPECT_NE(mkdtemp(folder.data()), nullptr);
    return folder;
  }
  // The welcome of a coordinator that has begun the term with a key of its own.
  static internal::v1::AttachResponse WelcomeOf(char key, int64_t term) {
    return Welcome(term, "cluster", absl::Milliseconds(20), key);
  }

  std::string data_dir_;  // empty: in memory alone
  RealClock clock_;
  MemoryBudget budget_{int64_t{16} << 20};
  std::shared_ptr<BufferPool> pool_ = BufferPool::Create(&budget_, 0);
  std::unique_ptr<ShardStore> store_;
  std::unique_ptr<TileGate> gate_;
  RecordingLinks links_;
  HeldExecutor executor_;
  KeptFills filler_;
  FlightRecorder recorder_;
  Coordinator coordinator_;
  std::unique_ptr<rpc::ServerLifecycle> server_;
  absl::Mutex mutex_;
  bool ready_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<CoordinatorLink> link_;
};

TEST_F(CoordinatorLinkTest, IntroducesItselfAndBecomesReadyOnceItsPeersAreReached) {
  Start();
  const internal::v1::Hello hello = coordinator_.Read().hello();
  EXPECT_EQ(hello.identity(), "w1");
  EXPECT_EQ(hello.incarnation(), 7u);
  EXPECT_EQ(hello.nonce(), "0123456789abcdef");
  EXPECT_EQ(hello.protocol().min(), 1);
  EXPECT_EQ(hello.capacity().memory_bytes(), int64_t{16} << 20);
  EXPECT_EQ(hello.cluster_id(), "");
  ASSERT_THAT(hello.endpoints(), SizeIs(1));

  coordinator_.Write(Welcome());
  EXPECT_TRUE(coordinator_.Read().inventory().last());
  coordinator_.Write(Verdict({}, {}));
  link_->ReportPeers(4, {});  // before the membership is known here: told afterwards
  EXPECT_FALSE(ready());
  coordinator_.Write(Membership(4));
  const internal::v1::PeersReport peers = coordinator_.Read().peers();
  EXPECT_EQ(peers.epoch(), 4);
  EXPECT_THAT(peers.unreached(), IsEmpty());
  EXPECT_TRUE(Eventually([&] { return ready(); }));
  EXPECT_EQ(store_->cluster_id(), "cluster");
  EXPECT_EQ(links_.cluster_id(), "cluster");
  EXPECT_EQ(links_.membership().Find("m")->revision, 2);

  link_->ReportPeers(4, {"w2"});
  EXPECT_THAT(coordinator_.Read().peers().unreached(), ElementsAre("w2"));
  EXPECT_FALSE(ready());
  EXPECT_TRUE(Eventually([&] { return coordinator_.last_heartbeat().epoch() == 4; }));
  EXPECT_EQ(coordinator_.last_heartbeat().progress(0).sequence(), 9);
  EXPECT_EQ(coordinator_.last_heartbeat().progress(0).instruction().instruction(), 2u);
}

TEST_F(CoordinatorLinkTest, HeartbeatsBringTheLinksWheneverTheyHaveChangedAndAfterEachAttach) {
  const auto count = [this] { return coordinator_.link_reports(); };
  Start();
  TakeIn(4);
  links_.SetMeasured({.revision = 1, .links = {{.peer = "w2"}, {.peer = "w3"}}});
  ASSERT_TRUE(Eventually([&] { return count() == 1; }));
  EXPECT_EQ(coordinator_.last_links().links_size(), 2);
  EXPECT_EQ(coordinator_.last_links().links(1).peer_identity(), "w3");
  links_.SetMeasured({.revision = 2});
  ASSERT_TRUE(Eventually([&] { return count() == 2; }));
  EXPECT_EQ(coordinator_.last_links().links_size(), 0);
  coordinator_.Break();
  TakeIn(4);
  ASSERT_TRUE(Eventually([&] { return count() == 3; }));
}

TEST_F(CoordinatorLinkTest, HeartbeatsBringEachRecordOnceTheLastFirstWhereThereAreMany) {
  const auto run = [this](int64_t op) {
    recorder_.End(
        recorder_.Begin({.step = 9, .op = op, .what = "matmul", .started = clock_.Now()}, {1, 2}),
        absl::OkStatus(), clock_.Now());
  };
  for (int64_t op = 0; op < 100; ++op) run(op);
  const auto running = recorder_.Begin({.step = 9, .op = 100, .started = clock_.Now()}, {1});
  Start();
  TakeIn(4);
  ASSERT_TRUE(Eventually([&] { return coordinator_.records().size() == 64; }));
  EXPECT_EQ(coordinator_.records().front(), 36);
  EXPECT_EQ(coordinator_.records().back(), 99);
  recorder_.End(running, absl::UnavailableError("rank 1 is gone"), clock_.Now());
  ASSERT_TRUE(Eventually([&] { return coordinator_.records().size() > 64; }));
  run(101);
  ASSERT_TRUE(Eventually([&] { return coordinator_.records().size() == 66; }));
  EXPECT_EQ(coordinator_.records()[64], 100);
  EXPECT_EQ(coordinator_.records()[65], 101);
}

TEST_F(CoordinatorLinkTest, HeartbeatsTellOfASlowInstructionAtOnceAndNotOfAQuickOne) {
  executor_.SetProgress({});
  Start();
  // No other heartbeat would come in time.
  TakeIn(4, Welcome(3, "cluster", absl::Hours(1)));
  internal::v1::AttachResponse order;
  order.mutable_run_step()->set_sequence(11);
  order.mutable_run_step()->set_epoch(4);
  order.mutable_run_step()->set_term(3);
  const absl::Time begun = clock_.Now();
  executor_.SetProgress(
      {StepProgress{.step = 11,
                    .started = begun,
                    .instruction = FlightRecord{.step = 11,
                                                .op = 0,
                                                .started = begun,
                                                .peers = {{.rank = 1}, {.rank = 2}},
                                                .waits_for = 2}}});
  coordinator_.Write(order);
  ASSERT_TRUE(Eventually([&] {
    const internal::v1::Heartbeat last = coordinator_.last_heartbeat();
    return last.progress_size() == 1 && last.progress(0).sequence() == 11;
  }));
  EXPECT_GE(clock_.Now() - begun, absl::Milliseconds(100));
  const v1::FlightRecord waiting = coordinator_.last_heartbeat().progress(0).instruction();
  EXPECT_EQ(waiting.instruction(), 0u);
  EXPECT_EQ(waiting.waits_for_rank(), 2);
  EXPECT_EQ(waiting.peers_size(), 2);
  EXPECT_FALSE(waiting.peers(0).has_data_time());

  // The next instruction of the same step is slow as well.
  executor_.SetProgress(
      {StepProgress{.step = 11,
                    .started = begun,
                    .instruction = FlightRecord{.step = 11, .op = 1, .started = begun}}});
  EXPECT_TRUE(Eventually(
      [&] { return coordinator_.last_heartbeat().progress(0).instruction().instruction() == 1; }));
}

TEST_F(CoordinatorLinkTest, BringsItsInventoryAndObeysTheVerdict) {
  for (const char* id : {"commit", "drop_staged", "drop_committed"}) {
    Stage(id);
  }
  ASSERT_THAT(store_->Commit({"drop_committed"}), IsOk());
  Start();
  EXPECT_TRUE(coordinator_.Read().has_hello());
  coordinator_.Write(Welcome());
  const internal::v1::InventoryPage page = coordinator_.Read().inventory();
  ASSERT_THAT(page.tiles(), SizeIs(3));
  EXPECT_EQ(page.tiles(0).array_id(), "commit");
  EXPECT_EQ(page.tiles(0).transfer_id(), "t");
  EXPECT_FALSE(page.tiles(0).committed());
  EXPECT_TRUE(page.tiles(1).committed());
  coordinator_.Write(Verdict({"commit", "not_here"}, {"drop_staged", "drop_committed"}));
  coordinator_.Write(Membership(1));
  EXPECT_TRUE(Eventually([&] { return link_->state().epoch == 1; }));
  EXPECT_THAT(store_->FindAll("commit"), IsOk());
  const ShardStore::InventoryPage left = store_->ListInventory("", 10);
  EXPECT_THAT(left.tiles, SizeIs(1));
}

TEST_F(CoordinatorLinkTest, ConfirmsWhatItDroppedAndMovesTilesAside) {
  for (const char* id : {"aside", "dropped", "kept"}) {
    Stage(id);
    ASSERT_THAT(store_->Commit({id}), IsOk());
  }
  Start();
  EXPECT_TRUE(coordinator_.Read().has_hello());
  coordinator_.Write(Welcome());
  const internal::v1::InventoryPage page = coordinator_.Read().inventory();
  ASSERT_THAT(page.tiles(), SizeIs(3));
  internal::v1::AttachResponse verdict = Verdict({"kept"}, {"dropped"});
  internal::v1::QuarantineTile* aside = verdict.mutable_inventory_verdict()->add_quarantine_tiles();
  aside->set_array_id("aside");
  *aside->mutable_tile() = page.tiles(0).tile();
  aside->set_reason("the registry does not know its array");
  coordinator_.Write(verdict);
  EXPECT_THAT(coordinator_.Read().tiles_dropped().array_ids(), ElementsAre("dropped"));
  EXPECT_THAT(store_->ListInventory("", 10).tiles, SizeIs(1));
  EXPECT_TRUE(Eventually([&] { return coordinator_.last_heartbeat().quarantined_arrays() == 1; }));

  const auto answer_to = [&](internal::v1::QuarantineOrder::Action action) {
    internal::v1::AttachResponse order;
    order.mutable_quarantine_order()->set_order_id(7);
    order.mutable_quarantine_order()->set_action(action);
    order.mutable_quarantine_order()->set_max_arrays(10);
    if (action != internal::v1::QuarantineOrder::ACTION_LIST) {
      order.mutable_quarantine_order()->add_array_ids("aside");
    }
    coordinator_.Write(order);
    if (action == internal::v1::QuarantineOrder::ACTION_RESTORE) {
      const internal::v1::InventoryPage back = coordinator_.Read().inventory();
      EXPECT_EQ(back.tiles(0).array_id(), "aside") << "before the answer";
    }
    return coordinator_.Read().quarantine_answer();
  };
  const internal::v1::QuarantineAnswer list = answer_to(internal::v1::QuarantineOrder::ACTION_LIST);
  EXPECT_EQ(list.order_id(), 7);
  ASSERT_THAT(list.arrays(), SizeIs(1));
  EXPECT_EQ(list.arrays(0).array().array_id(), "aside");
  EXPECT_EQ(list.arrays(0).reason(), "the registry does not know its array");
  EXPECT_FALSE(list.has_more());
  EXPECT_THAT(answer_to(internal::v1::QuarantineOrder::ACTION_RESTORE).arrays(), SizeIs(1));
  EXPECT_THAT(store_->ListInventory("", 10).tiles, SizeIs(2));
  EXPECT_THAT(answer_to(internal::v1::QuarantineOrder::ACTION_DROP).arrays(), SizeIs(0))
      << "it is not there";
}

TEST_F(CoordinatorLinkTest, TellsOfATileThatComesBackWhenNobodyWaitsForIt) {
  Stage("aside");
  ASSERT_THAT(store_->Commit({"aside"}), IsOk());
  const Tile tile = {{{0, 4}}};
  ASSERT_EQ(store_->Quarantine({{"aside", tile, "test", false}}, clock_.Now()), 1);
  Start();
  TakeIn(1);
  ASSERT_THAT(ArmFailpoints("tiles.restore_quarantined=delay"), IsOk());
  internal::v1::AttachResponse order;
  order.mutable_quarantine_order()->set_order_id(7);
  order.mutable_quarantine_order()->set_action(internal::v1::QuarantineOrder::ACTION_RESTORE);
  order.mutable_quarantine_order()->add_array_ids("aside");
  coordinator_.Write(order);
  ASSERT_TRUE(Eventually([] { return !IsArmed("tiles.restore_quarantined"); }));
  // It is to be put aside again, of which there is nothing yet; then the stream breaks.
  internal::v1::AttachResponse back;
  internal::v1::QuarantineTile* aside = back.mutable_inventory_verdict()->add_quarantine_tiles();
  aside->set_array_id("aside");
  rpc::Encode(tile, aside->mutable_tile());
  coordinator_.Write(back);
  coordinator_.Break();
  EXPECT_TRUE(coordinator_.Read().has_hello());
  coordinator_.Write(Welcome());
  EXPECT_TRUE(coordinator_.Read().has_inventory());
  coordinator_.Write(Verdict({}, {}));
  const internal::v1::InventoryPage restored = coordinator_.Read().inventory();
  ASSERT_THAT(restored.tiles(), SizeIs(1));
  EXPECT_EQ(restored.tiles(0).array_id(), "aside");
  EXPECT_TRUE(restored.tiles(0).committed());
  coordinator_.Write(back);
  EXPECT_TRUE(Eventually([&] { return store_->quarantine_totals().arrays == 1; }));
}

TEST_F(CoordinatorLinkTest, SaysWhatIsInQuarantineAndHearsWhatBecameOfIt) {
  for (const char* id : {"gone", "released", "lives"}) {
    Stage(id);
    ASSERT_THAT(store_->Commit({id}), IsOk());
    ASSERT_EQ(store_->Quarantine({{id, {{{0, 4}}}, "test", *id == 'g'}}, clock_.Now()), 1);
  }
  Start();
  EXPECT_TRUE(coordinator_.Read().has_hello());
  coordinator_.Write(Welcome());
  const internal::v1::InventoryPage page = coordinator_.Read().inventory();
  EXPECT_THAT(page.tiles(), IsEmpty());
  EXPECT_THAT(page.quarantined_array_ids(), ElementsAre("gone", "lives", "released"));
  internal::v1::AttachResponse verdict = Verdict({}, {"released"});
  verdict.mutable_inventory_verdict()->add_live_array_ids("lives");
  verdict.mutable_inventory_verdict()->add_unknown_array_ids("gone");
  coordinator_.Write(verdict);
  EXPECT_THAT(coordinator_.Read().tiles_dropped().array_ids(), ElementsAre("released"));
  const std::vector<QuarantinedArray> left = store_->ListQuarantine({}, "", 10);
  ASSERT_THAT(left, SizeIs(2));
  EXPECT_EQ(left[0].array_id, "gone");
  EXPECT_FALSE(left[0].array_lives);
  EXPECT_EQ(left[1].array_id, "lives");
  EXPECT_TRUE(left[1].array_lives);
}

TEST_F(CoordinatorLinkTest, InventoriesBringDescriptorsInTheBytesOfTheStore) {
  const std::string descriptor = kUnknownField + rpc::ArrayDescriptorBytes(FourOnMesh("held"));
  Stage("held", descriptor);
  Stage("odd", "not a descriptor");
  Start();
  EXPECT_TRUE(coordinator_.Read().has_hello());
  coordinator_.Write(Welcome());
  const internal::v1::InventoryPage page = coordinator_.Read().inventory();
  ASSERT_THAT(page.tiles(), SizeIs(2));
  EXPECT_EQ(page.tiles(0).array_id(), "held");
  EXPECT_EQ(page.tiles(0).array_descriptor(), descriptor);
  EXPECT_EQ(page.tiles(1).array_id(), "odd");
  EXPECT_EQ(page.tiles(1).array_descriptor(), "not a descriptor");
}

TEST_F(CoordinatorLinkTest, SaysWhatItHoldsAsSoonAsTheVerdictIsThere) {
  Stage("held");
  ASSERT_THAT(store_->Commit({"held"}), IsOk());
  Start();
  EXPECT_TRUE(coordinator_.Read().has_hello());
  internal::v1::AttachResponse welcome = Welcome();
  rpc::Encode(absl::Hours(1), welcome.mutable_welcome()->mutable_heartbeat_interval());
  coordinator_.Write(welcome);
  EXPECT_TRUE(coordinator_.Read().has_inventory());
  coordinator_.Write(Verdict({}, {}));
  EXPECT_TRUE(Eventually([&] { return coordinator_.last_heartbeat().used_bytes() > 0; }));
  EXPECT_EQ(coordinator_.last_heartbeat().used_bytes(), store_->used_bytes());
}

TEST_F(CoordinatorLinkTest, RunsReportsAndEndsSteps) {
  Start();
  TakeIn(1);
  internal::v1::AttachResponse run;
  run.mutable_run_step()->set_sequence(5);
  run.mutable_run_step()->set_epoch(1);
  run.mutable_run_step()->set_term(3);
  run.mutable_run_step()->set_plan_hash("hash");
  run.mutable_run_step()->set_plan("plan");
  run.mutable_run_step()->add_operands()->set_array_id("a");
  coordinator_.Write(run);
  const auto count = [&] { return executor_.With([](const auto& e) { return e.runs_.size(); }); };
  ASSERT_TRUE(Eventually([&] { return count() == 1; }));
  auto [order, report] = executor_.With([](const auto& e) { return e.runs_[0]; });
  EXPECT_EQ(order.plan_bytes, "plan");
  EXPECT_EQ(std::get<std::string>(order.operands[0].value), "a");

  StepResult result;
  result.sequence = 5;
  result.epoch = 1;
  result.term = 3;
  result.outputs.push_back({.array_id = "out", .crc32c = 8, .size_bytes = 4, .data = "data"});
  report(result);
  const internal::v1::StepReport reported = coordinator_.Read().step_report();
  EXPECT_EQ(reported.outcome(), internal::v1::StepReport::OUTCOME_DONE);
  EXPECT_EQ(reported.term(), 3);
  EXPECT_EQ(reported.outputs(0).data(), "data");

  internal::v1::AttachResponse end;
  end.mutable_end_step()->set_sequence(5);
  end.mutable_end_step()->set_commit(true);
  coordinator_.Write(end);
  internal::v1::AttachResponse drop;
  drop.mutable_drop_arrays()->add_array_ids("gone");
  coordinator_.Write(drop);
  EXPECT_TRUE(Eventually([&] {
    return executor_.With([](const auto& e) { return e.forgotten_; }) ==
           std::vector<std::string>{"gone"};
  }));
  EXPECT_THAT(executor_.With([](const auto& e) { return e.committed_; }), ElementsAre(5));
}

// Short orders are taken by the thread that reads, long ones and all other messages by the link's.
TEST_F(CoordinatorLinkTest, TakesMessagesInTheirOrderWhicheverThreadTakesThem) {
  Start();
  TakeIn(1);
  constexpr size_t kSteps = 200;
  for (size_t i = 1; i <= kSteps; ++i) {
    internal::v1::AttachResponse run;
    run.mutable_run_step()->set_sequence(static_cast<int64_t>(i));
    if (i % 3 == 0) {
      run.mutable_run_step()->set_plan(std::string(2 * AttachStream::kMostBytesAtOnce, 'p'));
    }
    coordinator_.Write(run);
    internal::v1::AttachResponse end;
    end.mutable_end_step()->set_sequence(static_cast<int64_t>(i));
    end.mutable_end_step()->set_commit(true);
    coordinator_.Write(end);
  }
  ASSERT_TRUE(Eventually(
      [&] { return executor_.With([](const auto& e) { return e.committed_.size(); }) == kSteps; }));
  const auto runs = executor_.With([](const auto& e) { return e.runs_; });
  const auto committed = executor_.With([](const auto& e) { return e.committed_; });
  const auto runs_before = executor_.With([](const auto& e) { return e.runs_before_commit_; });
  ASSERT_THAT(runs, SizeIs(kSteps));
  for (size_t i = 0; i < kSteps; ++i) {
    EXPECT_EQ(runs[i].first.sequence, static_cast<int64_t>(i) + 1);
    EXPECT_EQ(committed[i], static_cast<int64_t>(i) + 1);
    // An order may overtake no commit that came before it, and no commit its order.
    EXPECT_EQ(runs_before[i], i + 1);
  }
}

TEST_F(CoordinatorLinkTest, PassesDescriptorsOfResultsOnInTheBytesOfTheStep) {
  Start();
  TakeIn(1);
  const std::string descriptor = kUnknownField + rpc::ArrayDescriptorBytes(FourOnMesh("out"));
  internal::v1::AttachResponse run;
  run.mutable_run_step()->set_sequence(5);
  run.mutable_run_step()->add_outputs(descriptor);
  coordinator_.Write(run);
  ASSERT_TRUE(Eventually(
      [&] { return executor_.With([](const auto& e) { return e.runs_.size(); }) == 1; }));
  auto [order, report] = executor_.With([](const auto& e) { return e.runs_[0]; });
  ASSERT_THAT(order.outputs, SizeIs(1));
  EXPECT_EQ(order.outputs[0].array, FourOnMesh("out"));
  EXPECT_EQ(order.outputs[0].encoded, descriptor);
}

TEST_F(CoordinatorLinkTest, RefusesAStepThatItCannotRead) {
  Start();
  TakeIn(1);
  v1::ArrayDescriptor misfit;
  rpc::Encode(FourOnMesh("out"), &misfit);
  misfit.clear_mesh();
  for (const std::string& descriptor : {misfit.SerializeAsString(), std::string("\xff")}) {
    internal::v1::AttachResponse run;
    run.mutable_run_step()->set_sequence(5);
    run.mutable_run_step()->add_outputs(descriptor);
    coordinator_.Write(run);
    const internal::v1::StepReport report = coordinator_.Read().step_report();
    EXPECT_EQ(report.sequence(), 5);
    EXPECT_EQ(report.rank(), 0);
    EXPECT_EQ(report.outcome(), internal::v1::StepReport::OUTCOME_FAILED);
    EXPECT_EQ(report.error().reason(), "BAD_FIELD");
  }
}

TEST_F(CoordinatorLinkTest, AttachesAnewAfterABreakAndLeavesStagedStepsToTheVerdict) {
  Start();
  TakeIn(1);
  link_->ReportPeers(1, {});
  EXPECT_TRUE(coordinator_.Read().has_peers());
  internal::v1::AttachResponse run;
  run.mutable_run_step()->set_sequence(5);
  coordinator_.Write(run);
  ASSERT_TRUE(Eventually(
      [&] { return executor_.With([](const auto& e) { return e.runs_.size(); }) == 1; }));

  coordinator_.Break();
  EXPECT_TRUE(Eventually(
      [&] { return executor_.With([](const auto& e) { return e.unfinished_aborts_; }) == 1; }));
  EXPECT_FALSE(ready());
  EXPECT_EQ(filler_.suspensions(), 1);
  const internal::v1::Hello hello = coordinator_.Read().hello();
  EXPECT_EQ(hello.term(), 3);
  EXPECT_THAT(hello.features(),
              ElementsAre("fill", "fill_conversions", "tile_digests", "clock_answers",
                          "batches_of_matrices", "tensor_ops", "short_products", "fused_compute"));
  EXPECT_EQ(hello.cluster_id(), "cluster");
  coordinator_.Write(Welcome());
  EXPECT_TRUE(coordinator_.Read().inventory().last());
  const int left_before = executor_.With([](const auto& e) { return e.left_staged_; });
  internal::v1::AttachResponse verdict;
  verdict.mutable_inventory_verdict()->add_commit_array_ids("staged by step 5");
  verdict.mutable_inventory_verdict()->set_last(true);
  coordinator_.Write(verdict);
  coordinator_.Write(Membership(2));
  EXPECT_TRUE(Eventually([&] { return link_->state().epoch == 2; }));
  EXPECT_EQ(executor_.With([](const auto& e) { return e.left_staged_; }), left_before + 1);
  EXPECT_THAT(executor_.With([](const auto& e) { return e.aborted_; }), ElementsAre());
  EXPECT_FALSE(ready());  // the peers' report is of the older epoch
}

TEST_F(CoordinatorLinkTest, RefusesACoordinatorOfAnOlderTerm) {
  Start();
  TakeIn(1);
  coordinator_.Break();
  EXPECT_TRUE(coordinator_.Read().has_hello());
  coordinator_.Write(Welcome(/*term=*/2));
  EXPECT_TRUE(coordinator_.Read().has_hello());  // it tried anew instead of going on
  EXPECT_EQ(link_->state().term, 3);
  EXPECT_THAT(failure(), IsOk());
}

// Both run on copies of one folder: each begins the same next term, with a key of its own.
TEST_F(CoordinatorLinkTest, FollowsOnlyTheFirstOfTwoCoordinatorsOfOneTerm) {
  data_dir_ = MakeFolder();
  std::ofstream(data_dir_ + "/term") << "3";  // as an older version wrote it
  testing::internal::CaptureStderr();
  Start();
  TakeIn(1, WelcomeOf('a', 3));  // the first that it hears of in this term
  // The same coordinator once more, then the other one.
  coordinator_.Break();
  TakeIn(2, WelcomeOf('a', 3));
  coordinator_.Break();
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(coordinator_.Read().has_hello());
    coordinator_.Write(WelcomeOf('b', 3));
  }
  EXPECT_TRUE(coordinator_.Read().has_hello()) << "it tries again";
  EXPECT_THAT(failure(), IsOk());
  link_.reset();
  EXPECT_THAT(
      testing::internal::GetCapturedStderr(),
      AllOf(HasSubstr("two coordinators have begun term 3"), HasSubstr("127.0.0.1"),
            HasSubstr(rpc::TokenKeyDigest(std::string(32, 'a'))),
            HasSubstr(rpc::TokenKeyDigest(std::string(32, 'b'))), HasSubstr("start it again")));
  // The worker is started anew, and remembers.
  Start();
  EXPECT_TRUE(coordinator_.Read().has_hello());
  coordinator_.Write(WelcomeOf('b', 3));
  TakeIn(3, WelcomeOf('a', 3));
  // The other one begins a higher term: it wins, and the first one has lost.
  coordinator_.Break();
  TakeIn(4, WelcomeOf('b', 4));
  coordinator_.Break();
  EXPECT_TRUE(coordinator_.Read().has_hello());
  coordinator_.Write(WelcomeOf('a', 3));
  const internal::v1::Hello hello = coordinator_.Read().hello();
  EXPECT_EQ(hello.term(), 4);
}

TEST_F(CoordinatorLinkTest, ServesOnAFullDiskAndKeepsTheTermOnceThereIsRoom) {
  data_dir_ = MakeFolder();
  std::ofstream(data_dir_ + "/term") << "1";
  const auto kept = [&] { return test::ReadFile(data_dir_ + "/term"); };
  ASSERT_THAT(ArmFailpoints("link.write_term=enospc"), IsOk());
  Start();
  TakeIn(1);
  EXPECT_EQ(kept(), "1");
  internal::v1::AttachResponse clock;
  clock.mutable_clock()->mutable_time()->set_seconds(1);
  coordinator_.Write(clock);
  EXPECT_TRUE(Eventually([&] { return kept().starts_with("3 "); }));
  // The next coordinator's, once more with a full disk: the one after it is tried again too.
  ASSERT_THAT(ArmFailpoints("link.write_term=enospc"), IsOk());
  coordinator_.Break();
  TakeIn(2, WelcomeOf('b', 4));
  EXPECT_TRUE(kept().starts_with("3 "));
  coordinator_.Break();
  TakeIn(3, WelcomeOf('b', 4));
  EXPECT_TRUE(kept().starts_with("4 "));
}

TEST_F(CoordinatorLinkTest, DoesNotStartWithATermThatCannotBeRead) {
  data_dir_ = MakeFolder();
  for (const char* text : {"", "x", "-1", "3 abc", "3 0123456789abcdef0123456789abcdef0"}) {
    std::ofstream(data_dir_ + "/term") << text;
    CoordinatorLink::Options options;
    options.coordinator = "127.0.0.1:1";
    options.data_dir = data_dir_;
    EXPECT_THAT(CoordinatorLink::Create(std::move(options)),
                StatusIs(absl::StatusCode::kDataLoss, Reason::kBadFile))
        << text;
  }
}

TEST_F(CoordinatorLinkTest, TriesAgainWhereWaitingHelps) {
  coordinator_.RefuseWith(
      WithReason(absl::AlreadyExistsError("held by process 12"), Reason::kIdentityInUse));
  Start();
  EXPECT_TRUE(Eventually([&] { return coordinator_.attaches() >= 3; }));
  EXPECT_THAT(failure(), IsOk());
  coordinator_.RefuseWith(absl::OkStatus());
  TakeIn(1);
}

TEST_F(CoordinatorLinkTest, GivesUpWhereWaitingCannotHelp) {
  coordinator_.RefuseWith(
      WithReason(absl::FailedPreconditionError("another cluster"), Reason::kClusterMismatch));
  Start();
  EXPECT_TRUE(Eventually([&] { return !failure().ok(); }));
  EXPECT_THAT(failure(), StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kClusterMismatch));
  EXPECT_EQ(coordinator_.attaches(), 1);
}

TEST_F(CoordinatorLinkTest, SaysThatItLeavesAndWaitsUntilItMay) {
  Start();
  TakeIn(1);
  std::thread leaves([this] { link_->Leave("it is draining", absl::InfiniteFuture()); });
  EXPECT_EQ(coordinator_.Read().leaving().reason(), "it is draining");
  EXPECT_TRUE(link_->state().attached);
  coordinator_.Break();
  leaves.join();
  EXPECT_FALSE(link_->state().attached);
  EXPECT_EQ(coordinator_.attaches(), 1) << "it does not come back";
}

TEST_F(CoordinatorLinkTest, LeavesAtOnceWhereItDoesNotTakePartYet) {
  Start();
  ASSERT_TRUE(Eventually([&] { return coordinator_.attaches() == 1; }));
  link_->Leave("it is draining", absl::InfiniteFuture());
  EXPECT_FALSE(link_->state().attached);
}

TEST_F(CoordinatorLinkTest, LeavesWhenItsTimeIsOver) {
  Start();
  TakeIn(1);
  link_->Leave("it is draining", absl::Now() + absl::Milliseconds(1));
  EXPECT_EQ(coordinator_.Read().leaving().reason(), "it is draining");
  EXPECT_FALSE(link_->state().attached);
}

}  // namespace
}  // namespace shardmesh::worker
