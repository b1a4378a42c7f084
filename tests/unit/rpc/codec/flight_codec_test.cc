// Flight records over the wire: whole, and within their bounds.
#include "rpc/codec/flight_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/testing/status_matchers.h"

namespace shardmesh::rpc {
namespace {

using ::shardmesh::test::StatusIs;

absl::Time At(int64_t seconds) { return absl::FromUnixSeconds(seconds); }

TEST(FlightCodecTest, BringsARecordOverWhole) {
  FlightRecord record{.number = 5,
                      .step = 7,
                      .mesh_id = "default",
                      .rank = 2,
                      .op = 3,
                      .what = "op 0 (linear): all-reduce over tp",
                      .started = At(10),
                      .ended = At(12),
                      .outcome = absl::UnavailableError("rank 1 is gone"),
                      .peers = {{.rank = 0, .data_came = At(11)}, {.rank = 1}},
                      .waits_for = 1};
  v1::StepProgress wire;
  Encode(StepProgress{.step = 7, .started = At(9), .instruction = record}, &wire);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const StepProgress progress, Decode(wire));
  EXPECT_EQ(progress.step, 7);
  EXPECT_EQ(progress.started, At(9));
  const FlightRecord& decoded = *progress.instruction;
  EXPECT_EQ(decoded.number, 5);
  EXPECT_EQ(decoded.step, 7);
  EXPECT_EQ(decoded.mesh_id, "default");
  EXPECT_EQ(decoded.rank, 2);
  EXPECT_EQ(decoded.op, 3);
  EXPECT_EQ(decoded.what, record.what);
  EXPECT_EQ(decoded.started, At(10));
  EXPECT_EQ(decoded.ended, At(12));
  EXPECT_EQ(decoded.outcome, record.outcome);
  ASSERT_EQ(decoded.peers.size(), 2u);
  EXPECT_EQ(decoded.peers[0].data_came, At(11));
  EXPECT_EQ(decoded.peers[1].rank, 1);
  EXPECT_EQ(decoded.peers[1].data_came, absl::InfiniteFuture());
  EXPECT_EQ(decoded.waits_for, 1);
  EXPECT_FALSE(decoded.is_running());

  v1::StepProgress idle;
  Encode(StepProgress{.step = 7, .started = At(9)}, &idle);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const StepProgress between, Decode(idle));
  EXPECT_FALSE(between.instruction.has_value());
}

TEST(FlightCodecTest, CutsTextsBetweenCharactersAndKeepsThePeersThatAreMissing) {
  FlightRecord record{.what = std::string(255, 'x') + "\u00e4",
                      .started = At(0),
                      .ended = At(1),
                      .outcome = absl::InternalError(std::string(5000, 'y'))};
  for (DeviceId rank = 0; rank < 100; ++rank) {
    record.peers.push_back(
        {.rank = rank, .data_came = rank == 98 ? absl::InfiniteFuture() : At(1)});
  }
  v1::FlightRecord wire;
  Encode(record, &wire);
  EXPECT_EQ(wire.label(), std::string(255, 'x'));
  EXPECT_EQ(wire.message().size(), kMaxFlightMessageBytes);
  EXPECT_EQ(wire.peers_size(), static_cast<int>(kMaxFlightPeers));
  EXPECT_EQ(wire.peers(0).rank(), 98);
  EXPECT_EQ(wire.omitted_peers(), 36);
  // A peer that keeps to no bounds is cut too.
  wire.set_label(std::string(5000, 'x'));
  for (int i = 0; i < 1000; ++i) wire.add_peers();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const FlightRecord decoded, Decode(wire));
  EXPECT_EQ(decoded.what.size(), kMaxFlightLabelBytes);
  EXPECT_EQ(decoded.peers.size(), kMaxFlightPeers);
  EXPECT_EQ(decoded.omitted_peers, 1036);
}

TEST(FlightCodecTest, RefusesATimeThatIsNone) {
  v1::FlightRecord wire;
  wire.mutable_start_time()->set_nanos(-1);
  EXPECT_THAT(Decode(wire), StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  wire.clear_start_time();
  wire.set_code(4711);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const FlightRecord decoded, Decode(wire));
  EXPECT_EQ(decoded.outcome.code(), absl::StatusCode::kUnknown);
}

}  // namespace
}  // namespace shardmesh::rpc
