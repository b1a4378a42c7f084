// FlightLog: what is kept of the workers' records, for how long, and how much of it.
#include "server/diagnosis/flight_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

absl::Time At(int64_t seconds) { return absl::FromUnixSeconds(seconds); }

FlightRecord Record(int64_t number, int64_t step) {
  return {.number = number,
          .step = step,
          .what = "all-reduce over tp",
          .started = At(number),
          .ended = At(number + 1)};
}

void Hear(FlightLog& log, const std::string& identity, uint64_t incarnation,
          std::vector<FlightRecord> records) {
  log.Heard(identity, incarnation, {.sent = At(0), .records = std::move(records)}, At(0));
}

std::vector<int64_t> Numbers(const std::optional<WorkerFlight>& flight) {
  std::vector<int64_t> numbers;
  for (const FlightRecord& record : flight->records) numbers.push_back(record.number);
  return numbers;
}

TEST(FlightLogTest, KeepsEachRecordOnceInOrder) {
  FlightLog log;
  log.Attached("a", 1);
  Hear(log, "a", 1, {Record(0, 5), Record(1, 5)});
  Hear(log, "a", 1, {Record(0, 5), Record(1, 5), Record(4, 6)});  // after a new attachment
  EXPECT_THAT(Numbers(log.Find("a")), ElementsAre(0, 1, 4));
  EXPECT_THAT(Numbers(log.Find("a", 5)), ElementsAre(0, 1));
  EXPECT_THAT(Numbers(log.Find("a", 0, 1)), ElementsAre(4));
  EXPECT_EQ(log.Find("a", 0, 1)->omitted, 4);
  EXPECT_FALSE(log.Find("b").has_value());
}

TEST(FlightLogTest, TellsTimesByTheCoordinatorsClock) {
  FlightLog log;
  FlightRecord ended = Record(0, 5);
  ended.peers.push_back({.rank = 1, .data_came = At(1)});
  ended.peers.push_back({.rank = 2});
  FlightRecord running = Record(1, 6);
  running.ended = absl::InfiniteFuture();
  log.Heard("a", 1,
            {.sent = At(10),
             .progress = {StepProgress{.step = 6, .started = At(2), .instruction = running},
                          StepProgress{.step = 8, .started = At(3)}},
             .records = {ended}},
            At(1010));
  const WorkerFlight flight = *log.Find("a");
  EXPECT_EQ(flight.records[0].started, At(1000));
  EXPECT_EQ(flight.records[0].ended, At(1001));
  EXPECT_EQ(flight.records[0].peers[0].data_came, At(1001));
  EXPECT_EQ(flight.records[0].peers[1].data_came, absl::InfiniteFuture());
  EXPECT_EQ(flight.progress->started, At(1002));
  EXPECT_EQ(flight.progress->instruction->started, At(1001));
  EXPECT_TRUE(flight.progress->instruction->is_running());
  EXPECT_EQ(flight.progress->step, 6) << "the lowest that runs";
  EXPECT_EQ(log.Find("a", 8)->progress->step, 8);
  EXPECT_EQ(log.Find("a", 8)->progress->started, At(1003));
  EXPECT_EQ(log.Find("a", 7)->progress->step, 6);
}

TEST(FlightLogTest, KeepsTheRecordsOfALostWorkerUntilAnotherProcessTakesItsIdentity) {
  FlightLog log;
  log.Attached("a", 1);
  Hear(log, "a", 1, {Record(0, 5)});
  log.PeersReported("a", {"b"});
  log.Lost("a");
  EXPECT_THAT(Numbers(log.Find("a")), ElementsAre(0));
  log.Attached("a", 1);
  EXPECT_THAT(Numbers(log.Find("a")), ElementsAre(0)) << "the same process is back";
  EXPECT_THAT(log.Find("a")->unreached, ElementsAre("b"));
  log.Lost("a");
  log.Attached("a", 2);
  EXPECT_THAT(log.Find("a")->records, IsEmpty());
  EXPECT_EQ(log.Find("a")->incarnation, 2u);
  Hear(log, "a", 2, {Record(0, 7)});
  EXPECT_THAT(Numbers(log.Find("a")), ElementsAre(0)) << "numbers begin anew";
}

TEST(FlightLogTest, ForgetsThoseThatWereLostLongest) {
  FlightLog log;
  for (size_t i = 0; i < FlightLog::kMaxLost + 2; ++i) {
    log.Attached(StrCat("w", i), 1);
    log.Lost(StrCat("w", i));
  }
  EXPECT_THAT(log.Identities(), SizeIs(FlightLog::kMaxLost));
  EXPECT_FALSE(log.Find("w0").has_value());
  EXPECT_FALSE(log.Find("w1").has_value());
  EXPECT_TRUE(log.Find("w2").has_value());
}

TEST(FlightLogTest, IsBoundedInRecordsAndBytes) {
  FlightLog log;
  for (int64_t number = 0; number < 3000; ++number) Hear(log, "a", 1, {Record(number, number)});
  EXPECT_THAT(log.Find("a")->records, SizeIs(FlightLog::kMaxRecords));
  EXPECT_EQ(log.Find("a")->records.back().number, 2999);
  EXPECT_EQ(log.Find("a")->omitted, 3000 - static_cast<int64_t>(FlightLog::kMaxRecords));

  for (int64_t number = 0; number < 3000; ++number) {
    FlightRecord record = Record(number, number);
    record.peers.resize(64);
    Hear(log, "b", 1, {std::move(record)});
  }
  const WorkerFlight flight = *log.Find("b");
  EXPECT_LE(static_cast<int64_t>(flight.records.size() * 64 * sizeof(FlightRecord::Peer)),
            FlightLog::kMaxRecordBytes);
  EXPECT_EQ(flight.records.back().number, 2999);

  for (int64_t step = 1; step <= 100; ++step) {
    log.StepFailed({.work = {.sequence = step}, .failed = At(step), .status = {}});
  }
  EXPECT_THAT(log.Failed(), SizeIs(FlightLog::kMaxFailed));
  EXPECT_EQ(log.Failed().front().work.sequence, 100);
}

}  // namespace
}  // namespace shardmesh::server
