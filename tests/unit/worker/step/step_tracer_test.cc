// Spans of a step, by a clock that the test advances.
#include "worker/step/step_tracer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/time/clock.h"
#include "tests/testing/fake_clock.h"

namespace shardmesh::worker {
namespace {

using ::shardmesh::test::FakeClock;
using ::testing::ElementsAre;

TEST(StepTracerTest, RecordsSpansSinceTheBeginOfTheStep) {
  FakeClock clock;
  const absl::Time before = absl::Now();
  StepTracer tracer(&clock, 10);
  clock.Advance(absl::Milliseconds(1));
  const absl::Time started = tracer.Now();
  clock.Advance(absl::Milliseconds(2));
  tracer.Add({.kind = TraceSpanKind::kSend, .op = 3, .started = started, .bytes = 8, .peer = 1});
  clock.Advance(absl::Milliseconds(4));
  tracer.AddKernel(/*op=*/4, /*flops=*/9, absl::Milliseconds(1), absl::Milliseconds(2));
  const RankTrace trace = tracer.Take(5);
  EXPECT_EQ(trace.rank, 5);
  EXPECT_GE(trace.started, before) << "by the wall clock, whatever the clock shows";
  EXPECT_LE(trace.started, absl::Now());
  EXPECT_EQ(trace.omitted_spans, 0);
  const TraceSpan send = {.kind = TraceSpanKind::kSend,
                          .op = 3,
                          .start = absl::Milliseconds(1),
                          .elapsed = absl::Milliseconds(2),
                          .bytes = 8,
                          .peer = 1};
  const TraceSpan wait = {.kind = TraceSpanKind::kWait,
                          .op = 4,
                          .start = absl::Milliseconds(4),
                          .elapsed = absl::Milliseconds(1)};
  const TraceSpan kernel = {.kind = TraceSpanKind::kKernel,
                            .op = 4,
                            .start = absl::Milliseconds(5),
                            .elapsed = absl::Milliseconds(2),
                            .flops = 9};
  EXPECT_THAT(trace.spans, ElementsAre(send, wait, kernel));
}

TEST(StepTracerTest, KeepsTheFirstSpansAndCountsTheOthers) {
  FakeClock clock;
  StepTracer tracer(&clock, 2);
  for (int64_t op = 0; op < 5; ++op) tracer.Add({.op = op, .started = tracer.Now()});
  const RankTrace trace = tracer.Take(0);
  ASSERT_EQ(trace.spans.size(), 2U);
  EXPECT_EQ(trace.spans[1].op, 1);
  EXPECT_EQ(trace.omitted_spans, 3);
}

TEST(StepTracerTest, DataThatIsThereIsNoWait) {
  FakeClock clock;
  StepTracer tracer(&clock, 10);
  tracer.Add({.kind = TraceSpanKind::kWait, .started = tracer.Now(), .peer = 1});
  tracer.AddKernel(0, 1, absl::ZeroDuration(), absl::ZeroDuration());
  EXPECT_EQ(tracer.Take(0).spans.size(), 1U) << "the kernel";
}

TEST(StepTracerTest, NoKernelTakesLessThanNoTime) {
  FakeClock clock;
  StepTracer tracer(&clock, 10);
  clock.Advance(absl::Milliseconds(1));
  tracer.AddKernel(0, 1, absl::ZeroDuration(), absl::Microseconds(-3));
  const RankTrace trace = tracer.Take(0);
  ASSERT_EQ(trace.spans.size(), 1U);
  EXPECT_EQ(trace.spans[0].start, absl::Milliseconds(1));
  EXPECT_EQ(trace.spans[0].elapsed, absl::ZeroDuration());
}

}  // namespace
}  // namespace shardmesh::worker
