// Timelines of steps over the wire.
#include "rpc/codec/flight_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "status/reason.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::rpc {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::IsOkAndHolds;
using ::shardmesh::test::StatusIs;
using ::testing::HasSubstr;

StepTrace ATrace() {
  return {.labels = {"op 0 (matmul)", "op 0 (matmul): all-reduce over tp"},
          .ranks = {{.rank = 0,
                     .started = absl::FromUnixMicros(1'700'000'000'000'001),
                     .spans = {{.kind = TraceSpanKind::kKernel,
                                .op = 0,
                                .start = absl::Nanoseconds(1500),
                                .elapsed = absl::Milliseconds(2),
                                .flops = 12},
                               {.kind = TraceSpanKind::kSend, .op = 1, .bytes = 64, .peer = 1},
                               {.kind = TraceSpanKind::kWait,
                                .op = 1,
                                .elapsed = absl::Microseconds(3),
                                .peer = 0},
                               {.kind = TraceSpanKind::kInstruction, .op = 1, .bytes = 64}},
                     .omitted_spans = 3},
                    {.rank = 1, .started = absl::FromUnixMicros(1'700'000'000'000'002)}}};
}

TEST(TraceCodecTest, ATimelineComesBackAsItWas) {
  v1::StepTrace wire;
  Encode(ATrace(), &wire);
  EXPECT_FALSE(wire.ranks(0).spans(0).has_peer_rank());
  EXPECT_THAT(Decode(wire), IsOkAndHolds(ATrace()));
}

TEST(TraceCodecTest, LabelsBeyondTheLimitAreLeftOut) {
  const StepTrace trace = {.labels = {std::string(kMaxTraceLabelBytes - 4, 'a'), "four", "b"}};
  v1::StepTrace wire;
  Encode(trace, &wire);
  EXPECT_EQ(wire.labels_size(), 2);
}

// The coordinator decodes the spans of workers, and encodes them for the client: each of the three
// may be of another build.
TEST(TraceCodecTest, KindsOfNewerBuildsKeepTheirNumbers) {
  for (const int32_t number : {5, 77, std::numeric_limits<int32_t>::max()}) {
    v1::RankTrace wire;
    Encode(ATrace().ranks[0], &wire);
    wire.mutable_spans(1)->set_kind(static_cast<v1::TraceSpanKind>(number));
    const auto decoded = Decode(wire);
    ASSERT_THAT(decoded, IsOk());
    EXPECT_EQ(TraceSpanKindNumber(decoded->spans[1].kind), number);
    EXPECT_EQ(TraceSpanKindName(decoded->spans[1].kind), "kind " + std::to_string(number));
    EXPECT_EQ(decoded->spans[1].peer, 1);
    v1::RankTrace again;
    Encode(*decoded, &again);
    EXPECT_EQ(again.SerializeAsString(), wire.SerializeAsString());
  }
}

TEST(TraceCodecTest, RefusesMoreSpansThanARankRecordsAndSpansWithoutKinds) {
  v1::RankTrace wire;
  for (const int32_t number : {0, -1, std::numeric_limits<int32_t>::min()}) {
    Encode(ATrace().ranks[0], &wire);
    wire.mutable_spans(0)->set_kind(static_cast<v1::TraceSpanKind>(number));
    EXPECT_THAT(Decode(wire), StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
    wire.Clear();
  }
  wire.clear_spans();
  for (int64_t i = 0; i <= kMaxRankSpans; ++i) {
    wire.add_spans()->set_kind(v1::TRACE_SPAN_KIND_WAIT);
  }
  const auto refused = Decode(wire);
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("4097 elements"));
}

TEST(TraceCodecTest, AllRanksShareTheSpansOfAStep) {
  EXPECT_EQ(SpansOfEachRank(1), kMaxRankSpans);
  EXPECT_EQ(SpansOfEachRank(8), kMaxRankSpans);
  EXPECT_EQ(SpansOfEachRank(16), kMaxStepSpans / 16);
  EXPECT_EQ(SpansOfEachRank(2 * kMaxStepSpans), 1) << "each rank has a span at least";
}

}  // namespace
}  // namespace shardmesh::rpc
