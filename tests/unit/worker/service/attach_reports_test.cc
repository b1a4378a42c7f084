// Reports to the coordinator in the stages of an attach, by a clock of the test.
#include "worker/service/attach_reports.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "rpc/codec/time_codec.h"
#include "tensor/buffer.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/worker/service/attach_fakes.h"

namespace shardmesh::worker {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::IsOkAndHolds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class AttachReportsTest : public testing::Test {
 protected:
  AttachReportsTest() {
    store_ = *ShardStore::Open({.pool = pool_, .data_dir = ""});
    reports_ = std::make_unique<AttachReports>(
        AttachReports::Options{.clock = &clock_,
                               .store = store_.get(),
                               .recorder = &recorder_,
                               .progress = [this] { return progress_; },
                               .measured_links = [this] { return links_; },
                               .arriving = [this] { return arriving_; },
                               .ready_changed = [this](bool ready) { ready_ = ready; }});
  }

  void Attach() { reports_->Attached(stream_, absl::Seconds(10)); }
  // The only message since the last call.
  internal::v1::AttachRequest Only() {
    std::vector<internal::v1::AttachRequest> messages = stream_->Take();
    EXPECT_THAT(messages, SizeIs(1));
    return messages.size() == 1 ? messages[0] : internal::v1::AttachRequest();
  }
  // Sends the next heartbeat of the interval, and returns it.
  internal::v1::Heartbeat NextHeartbeat() {
    clock_.Advance(absl::Seconds(10));
    return Only().heartbeat();
  }
  void Restore(const std::string& id) {
    ASSERT_TRUE(StageFour(*store_, id));
    ASSERT_THAT(store_->Commit({id}), IsOk());
    reports_->ReportRestored(id);
  }
  void Record(int64_t op) {
    recorder_.End(recorder_.Begin({.step = 9, .op = op, .started = clock_.Now()}, {}),
                  absl::OkStatus(), clock_.Now());
  }

  test::FakeClock clock_;
  MemoryBudget budget_{int64_t{16} << 20};
  std::shared_ptr<BufferPool> pool_ = BufferPool::Create(&budget_, 0);
  std::unique_ptr<ShardStore> store_;
  FlightRecorder recorder_;
  std::vector<StepProgress> progress_;
  MeasuredLinks links_;
  std::map<std::string, int64_t> arriving_;
  bool ready_ = false;
  std::shared_ptr<KeptMessages> stream_ = std::make_shared<KeptMessages>();
  std::unique_ptr<AttachReports> reports_;
};

TEST_F(AttachReportsTest, HeartbeatsGoUpInTheIntervalWhileAttached) {
  clock_.Advance(absl::Minutes(1));
  EXPECT_THAT(stream_->Take(), IsEmpty()) << "nobody is there";
  Attach();
  EXPECT_TRUE(reports_->state().attached);
  clock_.Advance(absl::Seconds(10) - absl::Milliseconds(1));
  EXPECT_THAT(stream_->Take(), IsEmpty());
  clock_.Advance(absl::Milliseconds(1));
  const internal::v1::Heartbeat heartbeat = Only().heartbeat();
  EXPECT_THAT(rpc::Decode(heartbeat.send_time()), IsOkAndHolds(clock_.Now()));
  clock_.Advance(absl::Seconds(20));
  EXPECT_THAT(stream_->Take(), SizeIs(2));
  EXPECT_TRUE(reports_->Detached());
  EXPECT_FALSE(reports_->Detached()) << "it was not attached again";
  EXPECT_FALSE(reports_->state().attached);
  clock_.Advance(absl::Minutes(1));
  EXPECT_THAT(stream_->Take(), IsEmpty());
}

TEST_F(AttachReportsTest, ACoordinatorThatAsksGetsAHeartbeatAtOnce) {
  reports_->BeatNow();
  EXPECT_THAT(stream_->Take(), IsEmpty()) << "nobody is there";
  Attach();
  clock_.Advance(absl::Seconds(3));
  reports_->BeatNow();
  EXPECT_TRUE(Only().has_heartbeat());
  clock_.Advance(absl::Seconds(9));
  EXPECT_THAT(stream_->Take(), IsEmpty()) << "the next one is due an interval after the last";
  clock_.Advance(absl::Seconds(1));
  EXPECT_TRUE(Only().has_heartbeat());
}

TEST_F(AttachReportsTest, ASlowInstructionGoesUpAtOnce) {
  Attach();
  reports_->StepBegins();
  progress_ = {{.step = 7,
                .started = clock_.Now(),
                .instruction = FlightRecord{.step = 7, .op = 2, .started = clock_.Now()}}};
  clock_.Advance(absl::Milliseconds(99));
  EXPECT_THAT(stream_->Take(), IsEmpty());
  clock_.Advance(absl::Milliseconds(1));
  const internal::v1::Heartbeat heartbeat = Only().heartbeat();
  ASSERT_THAT(heartbeat.progress(), SizeIs(1));
  EXPECT_EQ(heartbeat.progress(0).sequence(), 7);
  clock_.Advance(absl::Seconds(9));
  EXPECT_THAT(stream_->Take(), IsEmpty()) << "it goes up once";
  clock_.Advance(absl::Seconds(1));
  EXPECT_THAT(Only().heartbeat().progress(), SizeIs(1));
}

TEST_F(AttachReportsTest, HeartbeatsSayWhatAStepHasReceived) {
  Attach();
  progress_ = {
      {.step = 7, .started = clock_.Now()},
      {.step = 8,
       .started = clock_.Now(),
       .instruction = FlightRecord{.step = 8, .started = clock_.Now(), .received_bytes = 300}}};
  clock_.Advance(absl::Seconds(10));
  const std::vector<internal::v1::AttachRequest> sent = stream_->Take();
  ASSERT_FALSE(sent.empty());
  const internal::v1::Heartbeat& heartbeat = sent.back().heartbeat();
  ASSERT_THAT(heartbeat.progress(), SizeIs(2));
  EXPECT_THAT(heartbeat.received_bytes(), testing::ElementsAre(0, 300));
}

TEST_F(AttachReportsTest, WhatArrivesOfATransferGoesUpWithTheHeartbeatIfItChanged) {
  Attach();
  arriving_ = {{"t", 5}, {"u", 7}};
  clock_.Advance(absl::Seconds(10));
  std::vector<internal::v1::AttachRequest> sent = stream_->Take();
  ASSERT_THAT(sent, SizeIs(3));
  EXPECT_EQ(sent[0].tiles_arriving().transfer_id(), "t");
  EXPECT_EQ(sent[0].tiles_arriving().arrived_bytes(), 5);
  EXPECT_EQ(sent[1].tiles_arriving().transfer_id(), "u");
  EXPECT_TRUE(sent[2].has_heartbeat());
  arriving_ = {{"t", 5}, {"u", 9}};
  clock_.Advance(absl::Seconds(10));
  sent = stream_->Take();
  ASSERT_THAT(sent, SizeIs(2));
  EXPECT_EQ(sent[0].tiles_arriving().arrived_bytes(), 9);
  arriving_ = {};
  NextHeartbeat();
}

TEST_F(AttachReportsTest, StagedTilesGoUpOnlyWhileAttached) {
  const TileReport report{.transfer_id = "t", .array_id = "a", .transfer_time = absl::Seconds(1)};
  reports_->ReportTile(report);
  Attach();
  EXPECT_THAT(stream_->Take(), IsEmpty()) << "the inventory covers it";
  reports_->ReportTile(report);
  EXPECT_EQ(Only().tile_staged().array_id(), "a");
  reports_->Detached();
  reports_->ReportTile(report);
  EXPECT_THAT(stream_->Take(), IsEmpty());
}

TEST_F(AttachReportsTest, IsReadyOnceThePeersOfTheEpochAreReached) {
  Attach();
  reports_->ReportPeers(4, {});
  EXPECT_THAT(stream_->Take(), IsEmpty()) << "its epoch is not known here yet";
  EXPECT_FALSE(ready_);
  reports_->MemberAt(4);
  EXPECT_EQ(Only().peers().epoch(), 4);
  EXPECT_TRUE(ready_);
  EXPECT_EQ(reports_->state().epoch, 4);
  reports_->ReportPeers(4, {"w2"});
  EXPECT_THAT(Only().peers().unreached(), ElementsAre("w2"));
  EXPECT_FALSE(ready_);
  reports_->MemberAt(5);
  EXPECT_THAT(stream_->Take(), IsEmpty()) << "the report is of the older epoch";
  reports_->ReportPeers(5, {});
  EXPECT_EQ(Only().peers().epoch(), 5);
  EXPECT_TRUE(ready_);
  EXPECT_TRUE(reports_->state().ready);
  reports_->Detached();
  EXPECT_FALSE(ready_);
  Attach();
  EXPECT_FALSE(ready_);
  reports_->MemberAt(5);
  EXPECT_EQ(Only().peers().epoch(), 5);
  EXPECT_TRUE(ready_);
}

TEST_F(AttachReportsTest, DroppedArraysAreConfirmedBeforeTheNextHeartbeat) {
  Attach();
  reports_->ReportDropped({"a", "b"});
  EXPECT_THAT(stream_->Take(), IsEmpty());
  clock_.Advance(absl::Seconds(10));
  const std::vector<internal::v1::AttachRequest> messages = stream_->Take();
  ASSERT_THAT(messages, SizeIs(2));
  EXPECT_THAT(messages[0].tiles_dropped().array_ids(), ElementsAre("a", "b"));
  EXPECT_TRUE(messages[1].has_heartbeat());
  clock_.Advance(absl::Seconds(10));
  EXPECT_TRUE(Only().has_heartbeat()) << "once";
}

TEST_F(AttachReportsTest, ManyDroppedArraysAreConfirmedAtOnceInParts) {
  const std::vector<std::string> ids(5000, "a");
  reports_->ReportDropped(ids);
  Attach();
  EXPECT_THAT(stream_->Take(), IsEmpty()) << "the inventory covers them";
  reports_->ReportDropped(ids);
  const std::vector<internal::v1::AttachRequest> messages = stream_->Take();
  ASSERT_THAT(messages, SizeIs(2));
  EXPECT_THAT(messages[0].tiles_dropped().array_ids(), SizeIs(4096));
  EXPECT_THAT(messages[1].tiles_dropped().array_ids(), SizeIs(904));
  clock_.Advance(absl::Seconds(10));
  EXPECT_TRUE(Only().has_heartbeat());
}

TEST_F(AttachReportsTest, DamagedTilesWaitForTheVerdict) {
  reports_->ReportDamaged("before", "the inventory lacks it");
  Attach();
  reports_->ReportDamaged("a", "a bit flipped");
  EXPECT_THAT(stream_->Take(), IsEmpty());
  reports_->Judged();
  const std::vector<internal::v1::AttachRequest> messages = stream_->Take();
  ASSERT_THAT(messages, SizeIs(2));
  EXPECT_EQ(messages[0].tile_damaged().array_id(), "a");
  EXPECT_EQ(messages[0].tile_damaged().reason(), "a bit flipped");
  reports_->ReportDamaged("b", "another");
  EXPECT_EQ(Only().tile_damaged().array_id(), "b");
  reports_->Detached();
  reports_->ReportDamaged("c", "while it is away");
  Attach();
  reports_->Judged();
  EXPECT_TRUE(Only().has_heartbeat());
}

TEST_F(AttachReportsTest, RestoredArraysWaitForTheVerdict) {
  Attach();
  Restore("a");
  reports_->ReportRestored("gone again");
  EXPECT_THAT(stream_->Take(), IsEmpty());
  reports_->Judged();
  std::vector<internal::v1::AttachRequest> messages = stream_->Take();
  ASSERT_THAT(messages, SizeIs(2));
  ASSERT_THAT(messages[0].inventory().tiles(), SizeIs(1));
  EXPECT_EQ(messages[0].inventory().tiles(0).array_id(), "a");
  EXPECT_TRUE(messages[0].inventory().tiles(0).committed());
  EXPECT_TRUE(messages[0].inventory().last());
  EXPECT_EQ(messages[1].heartbeat().used_bytes(), store_->used_bytes()) << "at once";
  Restore("b");
  EXPECT_EQ(Only().inventory().tiles(0).array_id(), "b");
  reports_->Detached();
  Restore("c");
  Attach();
  EXPECT_THAT(stream_->Take(), IsEmpty());
  reports_->Judged();
  messages = stream_->Take();
  ASSERT_THAT(messages, SizeIs(2));
  EXPECT_EQ(messages[0].inventory().tiles(0).array_id(), "c");
}

TEST_F(AttachReportsTest, HeartbeatsBringLinksThatChangedAndAllAfterAnAttach) {
  Attach();
  EXPECT_FALSE(NextHeartbeat().has_links());
  links_ = {.revision = 1, .links = {{.peer = "w2", .measured = clock_.Now()}}};
  EXPECT_THAT(NextHeartbeat().links().links(), SizeIs(1));
  EXPECT_FALSE(NextHeartbeat().has_links());
  links_ = {.revision = 2};
  const internal::v1::Heartbeat none = NextHeartbeat();
  EXPECT_TRUE(none.has_links());
  EXPECT_THAT(none.links().links(), IsEmpty());
  reports_->Detached();
  Attach();
  EXPECT_TRUE(NextHeartbeat().has_links());
}

TEST_F(AttachReportsTest, HeartbeatsBringEachRecordOnceToEachCoordinator) {
  Record(0);
  Record(1);
  Attach();
  EXPECT_THAT(NextHeartbeat().records(), SizeIs(2));
  Record(2);
  const internal::v1::Heartbeat next = NextHeartbeat();
  ASSERT_THAT(next.records(), SizeIs(1));
  EXPECT_EQ(next.records(0).number(), 2);
  EXPECT_THAT(NextHeartbeat().records(), IsEmpty());
  reports_->Detached();
  Attach();
  EXPECT_THAT(NextHeartbeat().records(), SizeIs(3)) << "this one may know none";
}

TEST_F(AttachReportsTest, MemoryOfTheQuarantineCountsAsFree) {
  ASSERT_TRUE(StageFour(*store_, "a"));
  ASSERT_THAT(store_->Commit({"a"}), IsOk());
  ASSERT_EQ(store_->Quarantine({{"a", {{{0, 4}}}, "test", false}}, clock_.Now()), 1);
  Attach();
  const internal::v1::Heartbeat heartbeat = NextHeartbeat();
  EXPECT_EQ(heartbeat.quarantined_arrays(), 1);
  EXPECT_GT(heartbeat.quarantined_bytes(), 0);
  EXPECT_LT(heartbeat.used_bytes(), store_->used_bytes());
}

}  // namespace
}  // namespace shardmesh::worker
