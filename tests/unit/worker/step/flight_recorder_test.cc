// FlightRecorder: what is kept, and what is pushed out.
#include "worker/step/flight_recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

namespace shardmesh::worker {
namespace {

absl::Time At(int64_t seconds) { return absl::FromUnixSeconds(seconds); }

FlightRecord Op(int64_t step, int64_t op, std::string what, absl::Time started) {
  return {.step = step, .op = op, .what = std::move(what), .started = started};
}

std::vector<int64_t> Numbers(const std::vector<FlightRecord>& records) {
  std::vector<int64_t> numbers;
  for (const FlightRecord& record : records) numbers.push_back(record.number);
  return numbers;
}

TEST(FlightRecorderTest, TellsWhoseDataHasNotCome) {
  FlightRecorder recorder;
  const auto op = recorder.Begin(Op(7, 2, "all-reduce over tp", At(10)), {1, 3});
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
  const auto op = recorder.Begin(Op(7, 2, "matmul", At(10)), {});
  recorder.End(op, absl::UnavailableError("rank 3 is gone"), At(12));
  EXPECT_EQ(recorder.Last()[0].ended, At(12));
  EXPECT_EQ(recorder.Last()[0].outcome, absl::UnavailableError("rank 3 is gone"));
}

TEST(FlightRecorderTest, PushesOutTheOldest) {
  FlightRecorder recorder;
  const auto first = recorder.Begin(Op(0, 0, "matmul", At(0)), {1});
  for (int64_t step = 1; step <= static_cast<int64_t>(FlightRecorder::kCapacity); ++step) {
    recorder.Begin(Op(step, 0, "matmul", At(step)), {1});
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
        const auto op = recorder.Begin(Op(i, thread, "barrier", At(i)), {1, 2});
        recorder.DataCame(op, 1, At(i));
        recorder.Last(3);
        recorder.End(op, absl::OkStatus(), At(i));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const FlightRecord& record : recorder.Last()) EXPECT_EQ(record.ended, record.started);
}

TEST(FlightRecorderTest, TellsWhatRunsAndForWhomItWaits) {
  FlightRecorder recorder;
  EXPECT_FALSE(recorder.Running(7).has_value());
  const auto op = recorder.Begin(Op(7, 2, "all-reduce over tp", At(10)), {1, 3});
  ASSERT_TRUE(recorder.Running(7).has_value());
  EXPECT_FALSE(recorder.Running(7)->waits_for.has_value());
  recorder.WaitsFor(op, 3);
  EXPECT_EQ(recorder.Running(7)->waits_for, 3);
  recorder.End(op, absl::DeadlineExceededError("rank 3 sent nothing in time"), At(12));
  EXPECT_FALSE(recorder.Running(7).has_value());
  EXPECT_EQ(recorder.Last()[0].waits_for, 3) << "whom it waited for when it failed";

  const auto good = recorder.Begin(Op(8, 0, "barrier", At(13)), {1});
  recorder.WaitsFor(good, 1);
  recorder.End(good, absl::OkStatus(), At(14));
  EXPECT_FALSE(recorder.Last(1)[0].waits_for.has_value());
}

TEST(FlightRecorderTest, CountsTheBytesThatHaveComeWhileTheInstructionRuns) {
  FlightRecorder recorder;
  const auto op = recorder.Begin(Op(7, 0, "move", At(1)), {1});
  EXPECT_EQ(recorder.Running(7)->received_bytes, 0);
  recorder.Received(op, 5);
  recorder.Received(op, 7);
  EXPECT_EQ(recorder.Running(7)->received_bytes, 12);
  recorder.End(op, absl::OkStatus(), At(2));
  recorder.Received(op, 9);
  EXPECT_EQ(recorder.Last(1)[0].received_bytes, 12);
}

TEST(FlightRecorderTest, TellsOnceWhatHasEnded) {
  FlightRecorder recorder;
  for (int64_t step = 0; step < 3; ++step) {
    recorder.End(recorder.Begin(Op(step, 0, "matmul", At(step)), {}), absl::OkStatus(), At(step));
  }
  const auto running = recorder.Begin(Op(3, 0, "barrier", At(3)), {1});
  FlightRecorder::Tail tail = recorder.EndedSince(0, 2);
  EXPECT_THAT(Numbers(tail.records), ::testing::ElementsAre(1, 2)) << "the last two";
  tail = recorder.EndedSince(tail.next, 2);
  EXPECT_THAT(tail.records, ::testing::IsEmpty());
  recorder.End(running, absl::OkStatus(), At(4));
  tail = recorder.EndedSince(tail.next, 2);
  EXPECT_THAT(Numbers(tail.records), ::testing::ElementsAre(3));
  EXPECT_EQ(tail.next, 4);

  // What ends later is told later, whatever began first.
  const auto long_one = recorder.Begin(Op(8, 0, "matmul", At(5)), {});
  recorder.End(recorder.Begin(Op(9, 0, "barrier", At(6)), {}), absl::OkStatus(), At(6));
  tail = recorder.EndedSince(4, 2);
  ASSERT_EQ(tail.records.size(), 1u);
  EXPECT_EQ(tail.records[0].step, 9);
  EXPECT_EQ(recorder.Running(8)->started, At(5));
  recorder.End(long_one, absl::OkStatus(), At(7));
  tail = recorder.EndedSince(tail.next, 2);
  ASSERT_EQ(tail.records.size(), 1u);
  EXPECT_EQ(tail.records[0].step, 8);
  EXPECT_EQ(tail.next, 6);

  const auto count = static_cast<int64_t>(FlightRecorder::kCapacity) + 10;
  for (int64_t step = 0; step < count; ++step) {
    recorder.End(recorder.Begin(Op(step, 0, "matmul", At(step)), {}), absl::OkStatus(), At(step));
  }
  tail = recorder.EndedSince(6, 4096);
  EXPECT_EQ(tail.records.size(), FlightRecorder::kCapacity);
  EXPECT_EQ(tail.records.front().number, 16) << "those before it were pushed out";
}

}  // namespace
}  // namespace shardmesh::worker
