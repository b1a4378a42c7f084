// Streams end once, after the last work, with the first error.
#include "rpc/stream/finish_once.h"

#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shardmesh::rpc {
namespace {

class FinishOnceTest : public ::testing::Test {
 protected:
  int times_ = 0;
  absl::Status status_;
  FinishOnce end_{[this](const absl::Status& status) {
    ++times_;
    status_ = status;
  }};
};

TEST_F(FinishOnceTest, AnIdleStreamFinishesAtItsEnd) {
  end_.End(absl::OkStatus());
  EXPECT_EQ(times_, 1);
  EXPECT_EQ(status_, absl::OkStatus());
  EXPECT_TRUE(end_.has_ended());
}

TEST_F(FinishOnceTest, OnlyTheFirstEndCounts) {
  end_.End(absl::OkStatus());
  end_.End(absl::CancelledError("later"));
  EXPECT_EQ(times_, 1);
  EXPECT_EQ(status_, absl::OkStatus());
}

TEST_F(FinishOnceTest, AnEndAwaitsAllWorks) {
  ASSERT_TRUE(end_.BeginWork().ok());
  ASSERT_TRUE(end_.BeginWork().ok());
  end_.End(absl::OkStatus());
  EXPECT_EQ(times_, 0);
  end_.EndWork(absl::OkStatus());
  EXPECT_TRUE(end_.is_at_work());
  EXPECT_EQ(times_, 0);
  end_.EndWork(absl::OkStatus());
  EXPECT_EQ(times_, 1);
}

TEST_F(FinishOnceTest, AWorkThatFailsAfterAGoodEndGivesTheStatus) {
  ASSERT_TRUE(end_.BeginWork().ok());
  end_.End(absl::OkStatus());
  end_.EndWork(absl::DataLossError("disk"));
  EXPECT_EQ(status_, absl::DataLossError("disk"));
}

TEST_F(FinishOnceTest, AWorkThatFailsEndsTheStream) {
  ASSERT_TRUE(end_.BeginWork().ok());
  end_.EndWork(absl::DataLossError("disk"));
  EXPECT_EQ(times_, 1);
  EXPECT_EQ(status_, absl::DataLossError("disk"));
  EXPECT_TRUE(absl::IsCancelled(end_.BeginWork()));
}

TEST_F(FinishOnceTest, TheFirstErrorWins) {
  ASSERT_TRUE(end_.BeginWork().ok());
  end_.End(absl::CancelledError("left"));
  end_.EndWork(absl::DataLossError("disk"));
  EXPECT_EQ(status_, absl::CancelledError("left"));
}

TEST_F(FinishOnceTest, AWorkThatSucceedsLeavesTheStreamOpen) {
  ASSERT_TRUE(end_.BeginWork().ok());
  end_.EndWork(absl::OkStatus());
  EXPECT_EQ(times_, 0);
  EXPECT_FALSE(end_.has_ended());
}

// As a reactor does in OnDone.
TEST(FinishOnceLifeTest, FinishMayDestroyTheObject) {
  std::unique_ptr<FinishOnce> end;
  end = std::make_unique<FinishOnce>([&](const absl::Status&) { end.reset(); });
  end->End(absl::OkStatus());
  EXPECT_EQ(end, nullptr);
}

TEST(FinishOnceLifeTest, OneOfManyThreadsFinishes) {
  for (int round = 0; round < 200; ++round) {
    int times = 0;  // written by the one that finishes, read after all have ended
    FinishOnce end([&times](const absl::Status&) { ++times; });
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(end.BeginWork().ok());
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) threads.emplace_back([&end] { end.EndWork(absl::OkStatus()); });
    threads.emplace_back([&end] { end.End(absl::OkStatus()); });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(times, 1);
  }
}

}  // namespace
}  // namespace shardmesh::rpc
