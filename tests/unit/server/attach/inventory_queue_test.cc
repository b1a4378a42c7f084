// Whose turn it is, and whose inventory is too much.
#include "server/attach/inventory_queue.h"

#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "status/reason.h"
#include "tests/testing/eventually.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::server {
namespace {

using ::shardmesh::test::Eventually;
using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::ElementsAre;

class CountingStream final : public WorkerStream {
 public:
  const std::string& identity() const override { return identity_; }
  bool HasFeature(std::string_view) const override { return false; }
  uint64_t attachment() const override { return 0; }
  void Send(WorkerMessage) override {}
  void Close(absl::Status) override {}
  void Cut(const absl::Status&) override {}
  void TakeWholeInventory() override { ++taken; }
  std::string TakeDecidable(const MembershipView&) override { return ""; }

  std::atomic<int> taken = 0;

 private:
  const std::string identity_ = "w";
};

class InventoryQueueTest : public testing::Test {
 protected:
  void Await(int i) {
    queue_.AwaitTurn(&streams_[i], [this, i] { admitted_.push_back(i); });
  }

  test::FakeClock clock_;
  CountingStream streams_[5];
  InventoryQueue queue_{&clock_, {.streams = 2, .bytes = 100}};
  std::vector<int> admitted_;
};

TEST_F(InventoryQueueTest, SoManyBringAtATimeAndOthersFollowInOrder) {
  for (int i = 0; i < 4; ++i) Await(i);
  EXPECT_THAT(admitted_, ElementsAre(0, 1));
  queue_.EndTurn(&streams_[1]);
  EXPECT_THAT(admitted_, ElementsAre(0, 1, 2));
  queue_.EndTurn(&streams_[1]);
  EXPECT_THAT(admitted_, ElementsAre(0, 1, 2)) << "its turn had ended";
  queue_.EndTurn(&streams_[0]);
  EXPECT_THAT(admitted_, ElementsAre(0, 1, 2, 3));
}

TEST_F(InventoryQueueTest, OneInventoryMayGoBeyondTheLimit) {
  Await(0);
  Await(1);
  EXPECT_THAT(queue_.Keep(&streams_[0], 90), IsOk());
  EXPECT_THAT(queue_.Keep(&streams_[1], 20), IsOk()) << "the first beyond the limit";
  EXPECT_THAT(queue_.Keep(&streams_[1], 20), IsOk());
  EXPECT_THAT(queue_.Keep(&streams_[0], 1),
              StatusIs(absl::StatusCode::kResourceExhausted, Reason::kOverloaded));
  queue_.EndTurn(&streams_[1]);
  EXPECT_THAT(queue_.Keep(&streams_[0], 1), IsOk());
  EXPECT_THAT(queue_.Keep(&streams_[4], 1'000), IsOk()) << "it has no turn, nothing is counted";
}

TEST_F(InventoryQueueTest, ALargeInventoryMakesOthersWaitUntilItIsForgotten) {
  Await(0);
  ASSERT_THAT(queue_.Keep(&streams_[0], 60), IsOk());
  Await(1);
  EXPECT_THAT(admitted_, ElementsAre(0)) << "the next may be as large";
  queue_.EndTurn(&streams_[0]);
  EXPECT_THAT(admitted_, ElementsAre(0, 1));
  queue_.EndTurn(&streams_[1]);
  clock_.Advance(absl::Seconds(31));
  Await(2);
  Await(3);
  EXPECT_THAT(admitted_, ElementsAre(0, 1, 2, 3));
}

TEST_F(InventoryQueueTest, EachWholeInventoryIsTakenInOnce) {
  Await(0);
  Await(1);
  queue_.TakeIn(&streams_[1]);
  queue_.TakeIn(&streams_[0]);
  EXPECT_TRUE(Eventually([&] { return streams_[0].taken == 1 && streams_[1].taken == 1; }));
}

}  // namespace
}  // namespace shardmesh::server
