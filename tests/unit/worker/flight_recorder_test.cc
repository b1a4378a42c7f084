// FlightRecorder: what is kept, and what is pushed out.
#include "worker/flight_recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

namespace shardmesh::worker {
namespace {

absl::Time At(int64_t seconds) { return absl::FromUnixSeconds(seconds); }

TEST(FlightRecorderTest, TellsWhoseDataHasNotCome) {
  FlightRecorder recorder;
  const auto op = recorder.Begin(7, 2, "all-reduce over tp", {1, 3}, At(10));
  recorder.DataCame(op, 3, At(11));
  const auto records = recorder.Last();
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].step, 7);
  EXPECT_EQ(records[0].op, 2);
  EXPECT_EQ(records[0].what, "all-reduce over tp");
  EXPECT_EQ(records[0].started, At(10));
  EXPECT_EQ(records[0].ended, absl::InfiniteFuture());
  ASSERT_EQ(records[0].peers.size(), 2u);
  EXPECT_EQ(records[0].peers[0].data_came, absl::InfiniteFuture());
  EXPECT_EQ(records[0].peers[1].data_came, At(11));
}

TEST(FlightRecorderTest, KeepsTheOutcome) {
  FlightRecorder recorder;
  const auto op = recorder.Begin(7, 2, "matmul", {}, At(10));
  recorder.End(op, absl::UnavailableError("rank 3 is gone"), At(12));
  EXPECT_EQ(recorder.Last()[0].ended, At(12));
  EXPECT_EQ(recorder.Last()[0].outcome, absl::UnavailableError("rank 3 is gone"));
}

TEST(FlightRecorderTest, PushesOutTheOldest) {
  FlightRecorder recorder;
  const auto first = recorder.Begin(0, 0, "matmul", {1}, At(0));
  for (int64_t step = 1; step <= static_cast<int64_t>(FlightRecorder::kCapacity); ++step) {
    recorder.Begin(step, 0, "matmul", {1}, At(step));
  }
  recorder.DataCame(first, 1, At(9));
  recorder.End(first, absl::OkStatus(), At(9));
  const auto records = recorder.Last();
  ASSERT_EQ(records.size(), FlightRecorder::kCapacity);
  EXPECT_EQ(records.front().step, 1);
  EXPECT_EQ(records.back().step, static_cast<int64_t>(FlightRecorder::kCapacity));
  for (const FlightRecord& record : records) {
    EXPECT_EQ(record.ended, absl::InfiniteFuture());
    EXPECT_EQ(record.peers[0].data_came, absl::InfiniteFuture());
  }
  EXPECT_EQ(recorder.Last(2).front().step, static_cast<int64_t>(FlightRecorder::kCapacity) - 1);
}

TEST(FlightRecorderTest, TakesOpsFromSeveralThreads) {
  FlightRecorder recorder;
  std::vector<std::thread> threads;
  for (int64_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&recorder, thread] {
      for (int64_t i = 0; i < 500; ++i) {
        const auto op = recorder.Begin(i, thread, "barrier", {1, 2}, At(i));
        recorder.DataCame(op, 1, At(i));
        recorder.Last(3);
        recorder.End(op, absl::OkStatus(), At(i));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const FlightRecord& record : recorder.Last()) EXPECT_EQ(record.ended, record.started);
}

}  // namespace
}  // namespace shardmesh::worker
