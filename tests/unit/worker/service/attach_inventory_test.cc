// Pages of an inventory, verdicts on it, and orders about the quarantine, on a store in memory.
#include "worker/service/attach_inventory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "rpc/codec/spec_codec.h"
#include "rpc/codec/worker_error_codec.h"
#include "status/str_cat.h"
#include "tensor/buffer.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/worker/service/attach_fakes.h"
#include "worker/step/step_executor.h"

namespace shardmesh::worker {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class AttachInventoryTest : public testing::Test {
 protected:
  AttachInventoryTest() { store_ = *ShardStore::Open({.pool = pool_, .data_dir = ""}); }

  void Commit(const std::string& id) {
    ASSERT_TRUE(StageFour(*store_, id));
    ASSERT_THAT(store_->Commit({id}), IsOk());
  }
  void Quarantine(const std::string& id) {
    Commit(id);
    ASSERT_EQ(store_->Quarantine({{id, {{{0, 4}}}, "test", false}}, clock_.Now()), 1);
  }
  std::vector<internal::v1::InventoryPage> Pages() {
    KeptMessages stream;
    SendInventory(*store_, stream);
    std::vector<internal::v1::InventoryPage> pages;
    for (const internal::v1::AttachRequest& message : stream.Take()) {
      EXPECT_TRUE(message.has_inventory());
      pages.push_back(message.inventory());
    }
    return pages;
  }
  internal::v1::QuarantineAnswer Answer(internal::v1::QuarantineOrder::Action action,
                                        const std::vector<std::string>& ids = {}) {
    internal::v1::QuarantineOrder order;
    order.set_order_id(7);
    order.set_action(action);
    order.set_max_arrays(2);
    for (const std::string& id : ids) order.add_array_ids(id);
    restored_.clear();
    return CarryOut(order, "w1", *store_,
                    [this](const std::string& id) { restored_.push_back(id); });
  }
  static std::vector<std::string> Ids(const internal::v1::QuarantineAnswer& answer) {
    std::vector<std::string> ids;
    for (const v1::QuarantinedArray& array : answer.arrays()) {
      EXPECT_EQ(array.identity(), "w1");
      ids.push_back(array.array().array_id());
    }
    return ids;
  }

  test::FakeClock clock_;
  MemoryBudget budget_{int64_t{16} << 20};
  std::shared_ptr<BufferPool> pool_ = BufferPool::Create(&budget_, 0);
  std::unique_ptr<ShardStore> store_;
  std::vector<std::string> restored_;
};

TEST_F(AttachInventoryTest, AnEmptyStoreSendsOneLastPage) {
  const std::vector<internal::v1::InventoryPage> pages = Pages();
  ASSERT_THAT(pages, SizeIs(1));
  EXPECT_TRUE(pages[0].last());
  EXPECT_THAT(pages[0].tiles(), IsEmpty());
}

TEST_F(AttachInventoryTest, APageEndsWithTheTileThatFillsIt) {
  const std::string descriptor(static_cast<size_t>(kInventoryMessageBytes / 2 - 1000), 'd');
  for (const char* id : {"a", "b", "c", "d"}) ASSERT_TRUE(StageFour(*store_, id, descriptor));
  Quarantine("e");
  const std::vector<internal::v1::InventoryPage> pages = Pages();
  ASSERT_THAT(pages, SizeIs(2));
  EXPECT_THAT(pages[0].tiles(), SizeIs(3));
  EXPECT_FALSE(pages[0].last());
  ASSERT_THAT(pages[1].tiles(), SizeIs(1));
  EXPECT_EQ(pages[1].tiles(0).array_id(), "d");
  EXPECT_EQ(pages[1].tiles(0).transfer_id(), "t");
  EXPECT_FALSE(pages[1].tiles(0).committed());
  EXPECT_THAT(pages[1].quarantined_array_ids(), ElementsAre("e"));
  EXPECT_TRUE(pages[1].last());
}

TEST_F(AttachInventoryTest, AFullLastPageIsFollowedByAnEmptyOne) {
  ASSERT_TRUE(
      StageFour(*store_, "a", std::string(static_cast<size_t>(kInventoryMessageBytes), 'd')));
  const std::vector<internal::v1::InventoryPage> pages = Pages();
  ASSERT_THAT(pages, SizeIs(2));
  EXPECT_FALSE(pages[0].last());
  EXPECT_THAT(pages[1].tiles(), IsEmpty());
  EXPECT_TRUE(pages[1].last());
}

TEST_F(AttachInventoryTest, ACommittedTileNamesNoTransfer) {
  Commit("a");
  const std::vector<internal::v1::InventoryPage> pages = Pages();
  ASSERT_THAT(pages, SizeIs(1));
  ASSERT_THAT(pages[0].tiles(), SizeIs(1));
  EXPECT_TRUE(pages[0].tiles(0).committed());
  EXPECT_EQ(pages[0].tiles(0).transfer_id(), "");
}

TEST_F(AttachInventoryTest, TheStagedResultOfAStepSaysSo) {
  const std::string of_step = StrCat(kStepTransferPrefix, 7);
  ASSERT_TRUE(StageFour(*store_, "a", "", of_step));
  ASSERT_TRUE(StageFour(*store_, "b"));
  ASSERT_TRUE(StageFour(*store_, "c", "", of_step));
  ASSERT_THAT(store_->Commit({"c"}), IsOk());
  const std::vector<internal::v1::InventoryPage> pages = Pages();
  ASSERT_THAT(pages, SizeIs(1));
  ASSERT_THAT(pages[0].tiles(), SizeIs(3));
  EXPECT_TRUE(pages[0].tiles(0).of_step());
  EXPECT_FALSE(pages[0].tiles(1).of_step());
  EXPECT_FALSE(pages[0].tiles(2).of_step());
}

TEST_F(AttachInventoryTest, AVerdictCommitsEachArrayThatIsThere) {
  ASSERT_TRUE(StageFour(*store_, "a"));
  ASSERT_TRUE(StageFour(*store_, "b"));
  internal::v1::InventoryVerdict verdict;
  for (const char* id : {"a", "missing", "b"}) verdict.add_commit_array_ids(id);
  EXPECT_THAT(ApplyVerdict(verdict, *store_, clock_), IsOk());
  EXPECT_THAT(store_->FindAll("a"), IsOk());
  EXPECT_THAT(store_->FindAll("b"), IsOk());
}

TEST_F(AttachInventoryTest, AVerdictMovesTilesAsideAndSaysWhichArraysLive) {
  Quarantine("gone");
  Quarantine("lives");
  Commit("aside");
  internal::v1::InventoryVerdict verdict;
  verdict.add_live_array_ids("lives");
  verdict.add_unknown_array_ids("gone");
  internal::v1::QuarantineTile* aside = verdict.add_quarantine_tiles();
  aside->set_array_id("aside");
  rpc::Encode(Tile{{{0, 4}}}, aside->mutable_tile());
  aside->set_reason("the registry does not know its array");
  EXPECT_THAT(ApplyVerdict(verdict, *store_, clock_), IsOk());
  const std::vector<QuarantinedArray> all = store_->ListQuarantine({}, "", 10);
  ASSERT_THAT(all, SizeIs(3));
  EXPECT_EQ(all[0].array_id, "aside");
  EXPECT_EQ(all[0].reason, "the registry does not know its array");
  EXPECT_EQ(all[0].since, clock_.Now());
  EXPECT_FALSE(all[1].array_lives) << all[1].array_id;
  EXPECT_TRUE(all[2].array_lives) << all[2].array_id;
}

TEST_F(AttachInventoryTest, AVerdictOnAMalformedTileIsAnError) {
  Commit("a");
  internal::v1::InventoryVerdict verdict;
  internal::v1::QuarantineTile* aside = verdict.add_quarantine_tiles();
  aside->set_array_id("a");
  aside->mutable_tile()->add_ranges()->set_start(-1);
  EXPECT_THAT(ApplyVerdict(verdict, *store_, clock_),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadTile));
  EXPECT_THAT(store_->FindAll("a"), IsOk());
}

TEST_F(AttachInventoryTest, ListsTheQuarantineInParts) {
  for (const char* id : {"a", "b", "c"}) Quarantine(id);
  const internal::v1::QuarantineAnswer first = Answer(internal::v1::QuarantineOrder::ACTION_LIST);
  EXPECT_EQ(first.order_id(), 7);
  EXPECT_THAT(Ids(first), ElementsAre("a", "b"));
  EXPECT_TRUE(first.has_more());
  const internal::v1::QuarantineAnswer named =
      Answer(internal::v1::QuarantineOrder::ACTION_LIST, {"b", "c"});
  EXPECT_THAT(Ids(named), ElementsAre("b", "c"));
  EXPECT_FALSE(named.has_more());
}

TEST_F(AttachInventoryTest, RestoresArraysAndPassesThemOn) {
  Quarantine("a");
  const internal::v1::QuarantineAnswer answer =
      Answer(internal::v1::QuarantineOrder::ACTION_RESTORE, {"missing", "a"});
  EXPECT_THAT(Ids(answer), ElementsAre("a"));
  EXPECT_FALSE(answer.has_error()) << "a missing one is none";
  EXPECT_THAT(restored_, ElementsAre("a"));
  EXPECT_THAT(store_->FindAll("a"), IsOk());
}

TEST_F(AttachInventoryTest, DropsArraysFromTheQuarantine) {
  Quarantine("a");
  Quarantine("b");
  EXPECT_THAT(Ids(Answer(internal::v1::QuarantineOrder::ACTION_DROP, {"a"})), ElementsAre("a"));
  EXPECT_THAT(restored_, IsEmpty());
  EXPECT_THAT(store_->ListQuarantine({}, "", 10), SizeIs(1));
}

TEST_F(AttachInventoryTest, AnOrderEndsWithTheFirstArrayThatFails) {
  Quarantine("a");
  Quarantine("b");
  Commit("a");  // in use again: it cannot come back
  const internal::v1::QuarantineAnswer answer =
      Answer(internal::v1::QuarantineOrder::ACTION_RESTORE, {"a", "b"});
  EXPECT_THAT(Ids(answer), IsEmpty());
  EXPECT_THAT(rpc::Decode(answer.error()), StatusIs(absl::StatusCode::kAlreadyExists));
  EXPECT_THAT(restored_, IsEmpty());
}

}  // namespace
}  // namespace shardmesh::worker
