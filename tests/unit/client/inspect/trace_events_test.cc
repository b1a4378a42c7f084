// Timelines as trace events.
#include "client/inspect/trace_events.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace shardmesh::client {
namespace {

using Json = nlohmann::json;
using ::testing::UnorderedElementsAre;

// The events of this phase, by name.
Json EventsOf(const Json& file, const std::string& phase) {
  Json found = Json::array();
  for (const Json& event : file["traceEvents"]) {
    if (event["ph"] == phase) found.push_back(event);
  }
  return found;
}

TEST(TraceEventsTest, ASpanOfAKindOfNewerWorkersIsShownByItsNumber) {
  const StepTrace trace = {.labels = {"op 0 (matmul)"},
                           .ranks = {{.rank = 0, .spans = {{.kind = TraceSpanKind::kKernel}}},
                                     {.rank = 1,
                                      .spans = {{.kind = static_cast<TraceSpanKind>(6),
                                                 .elapsed = absl::Microseconds(2),
                                                 .bytes = 8,
                                                 .peer = 0}}}}};
  const Json file = Json::parse(TraceEventsOf(trace, 7));
  const Json spans = EventsOf(file, "X");
  ASSERT_EQ(spans.size(), 2U);
  EXPECT_EQ(spans[1]["name"], "kind 7: op 0 (matmul)");
  EXPECT_EQ(spans[1]["cat"], "kind 7");
  EXPECT_EQ(spans[1]["tid"], 7);
  EXPECT_EQ(spans[1]["dur"], 2.0);
  EXPECT_EQ(spans[1]["args"], Json({{"instruction", 0}, {"bytes", 8}, {"peer", 0}}));
  const Json names = EventsOf(file, "M");
  EXPECT_EQ(names.size(), 11U) << "only the rank with such a span has a row for it";
  EXPECT_EQ(names.back()["args"], Json({{"name", "spans of kind 7"}}));
}

TEST(TraceEventsTest, EachRankIsAProcessWithItsSpansByKind) {
  const absl::Time started = absl::FromUnixSeconds(1'700'000'000);
  const StepTrace trace = {
      .labels = {"op 0 (matmul)"},
      .ranks = {{.rank = 0,
                 .started = started + absl::Microseconds(5),
                 .spans = {{.kind = TraceSpanKind::kKernel,
                            .start = absl::Nanoseconds(1500),
                            .elapsed = absl::Microseconds(2),
                            .flops = 12},
                           {.kind = TraceSpanKind::kSend, .op = 1, .bytes = 64, .peer = 1}},
                 .omitted_spans = 2},
                {.rank = 1,
                 .started = started,
                 .spans = {{.kind = TraceSpanKind::kWait, .peer = 0},
                           {.kind = TraceSpanKind::kWait},
                           {.kind = TraceSpanKind::kInstruction}},
                 .omitted_spans = 1}}};
  const Json file = Json::parse(TraceEventsOf(trace, 7));
  EXPECT_EQ(file["otherData"]["step"], 7);
  EXPECT_EQ(file["otherData"]["start_time_ns"], 1'700'000'000'000'000'000);
  EXPECT_EQ(file["otherData"]["omitted_spans"], 3);
  EXPECT_EQ(EventsOf(file, "M").size(), 10U) << "the names of two processes, and of four threads "
                                                "each";
  const Json spans = EventsOf(file, "X");
  ASSERT_EQ(spans.size(), 5U);
  const Json& kernel = spans[0];
  EXPECT_EQ(kernel["name"], "op 0 (matmul)");
  EXPECT_EQ(kernel["cat"], "kernel");
  EXPECT_EQ(kernel["pid"], 0);
  EXPECT_EQ(kernel["ts"], 6.5) << "microseconds after rank 1 began, which was the first";
  EXPECT_EQ(kernel["dur"], 2.0);
  EXPECT_EQ(kernel["args"], Json({{"instruction", 0}, {"flops", 12}}));
  EXPECT_EQ(spans[1]["name"], "send to rank 1");
  EXPECT_EQ(spans[1]["args"], Json({{"instruction", 1}, {"label", "instruction 1"}, {"bytes", 64}}))
      << "the labels end before this instruction";
  EXPECT_EQ(spans[2]["name"], "wait for rank 0");
  EXPECT_EQ(spans[3]["name"], "wait for another step's kernel");
  EXPECT_THAT(
      (std::vector<int>{spans[0]["tid"], spans[1]["tid"], spans[2]["tid"], spans[4]["tid"]}),
      UnorderedElementsAre(1, 2, 3, 4));
}

TEST(TraceEventsTest, ATimelineWithoutRanksAndLabelsOfAnyBytesAreValid) {
  EXPECT_TRUE(Json::parse(TraceEventsOf({}, 1))["traceEvents"].empty());
  const StepTrace odd = {.labels = {"a\xff\"b\n"}, .ranks = {{.rank = 0, .spans = {{}}}}};
  EXPECT_EQ(EventsOf(Json::parse(TraceEventsOf(odd, 1)), "X")[0]["name"], "a\xEF\xBF\xBD\"b\n");
}

}  // namespace
}  // namespace shardmesh::client
