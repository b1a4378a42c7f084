// The answer of a step within the limit of a message.
#include "server/steps/step_codec.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "rpc/call.h"

namespace shardmesh::server {
namespace {

// A timeline of `ranks` ranks with `spans` spans each.
StepTrace TraceWith(int64_t ranks, int64_t spans) {
  StepTrace trace{.labels = {"op 0"}, .ranks = {}};
  for (int64_t rank = 0; rank < ranks; ++rank) {
    RankTrace& added = trace.ranks.emplace_back();
    added.rank = rank;
    for (int64_t i = 0; i < spans; ++i) {
      added.spans.push_back({.kind = TraceSpanKind::kSend,
                             .op = 8000,
                             .start = absl::Seconds(200) + absl::Nanoseconds(999'999'999),
                             .elapsed = absl::Seconds(200) + absl::Nanoseconds(999'999'999),
                             .flops = INT64_MAX,
                             .bytes = INT64_MAX,
                             .peer = 100'000});
    }
  }
  return trace;
}

TEST(StepCodecTest, ATimelineFitsIntoAnAnswer) {
  // The most spans of a step, each as long as it can be.
  StepResult result;
  result.trace = TraceWith(16, SpansOfEachRank(16));
  const v1::ExecuteResponse answer = Encode(std::move(result));
  EXPECT_LE(answer.ByteSizeLong(), static_cast<size_t>(rpc::kMaxControlMessageBytes));
  EXPECT_EQ(answer.timings().trace().ranks(15).spans_size(), SpansOfEachRank(16));
  EXPECT_EQ(answer.timings().trace().ranks(15).omitted_spans(), 0);
  EXPECT_FALSE(Encode(StepResult()).timings().has_trace());
}

TEST(StepCodecTest, SpansThatDoNotFitBesideTheResultsAreLeftOut) {
  StepResult result{.plan_hash = std::string(size_t{3} << 20, 'p')};
  result.trace = TraceWith(16, SpansOfEachRank(16));
  const v1::ExecuteResponse answer = Encode(std::move(result));
  EXPECT_LE(answer.ByteSizeLong(), static_cast<size_t>(rpc::kMaxControlMessageBytes));
  for (const v1::RankTrace& rank : answer.timings().trace().ranks()) {
    EXPECT_GT(rank.spans_size(), 0);
    EXPECT_EQ(rank.spans_size() + rank.omitted_spans(), SpansOfEachRank(16));
  }
  EXPECT_EQ(answer.timings().trace().labels_size(), 1);
}

}  // namespace
}  // namespace shardmesh::server
