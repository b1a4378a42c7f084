// What a worker counts of its steps.
#include "worker/worker_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "program/collective_choice.h"
#include "status/str_cat.h"

namespace shardmesh::worker {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(WorkerMetricsTest, EverySeriesIsThereBeforeTheFirstEvent) {
  rpc::Metrics metrics("worker");
  ObserveSteps(&metrics);
  const std::string text = metrics.Text();
  for (const char* outcome : {"done", "failed", "need_plan"}) {
    EXPECT_THAT(text,
                HasSubstr(StrCat("shardmesh_worker_steps_total{outcome=\"", outcome, "\"} 0\n")));
    EXPECT_THAT(text, HasSubstr(StrCat("shardmesh_worker_step_duration_seconds_count{outcome=\"",
                                       outcome, "\"} 0\n")));
  }
  EXPECT_THAT(text, HasSubstr("shardmesh_worker_kernel_flops_total 0\n"));
  for (const char* name : {"collectives", "collective_seconds", "collective_sent_bytes"}) {
    EXPECT_THAT(text, HasSubstr(StrCat("shardmesh_worker_", name,
                                       "_total{algorithm=\"halving\",op=\"all_reduce\"} 0\n")));
    // Only what there is.
    EXPECT_THAT(text, Not(HasSubstr(StrCat("shardmesh_worker_", name,
                                           "_total{algorithm=\"ring\",op=\"barrier\"}"))));
  }
  EXPECT_THAT(text, Not(HasSubstr("auto")));
}

TEST(WorkerMetricsTest, CollectivesAreCountedByOpAndAlgorithm) {
  rpc::Metrics metrics("worker");
  const StepObserver observer = ObserveSteps(&metrics);
  for (int i = 0; i < 2; ++i) {
    observer.collective(CollectiveKind::kReduceScatter, CollectiveAlgorithm::kPairwise,
                        {.sent = 100, .copied_to_send = 10, .copied_received = 1},
                        absl::Milliseconds(250));
  }
  // A plan may name what is then refused: it is in no series.
  observer.collective(CollectiveKind::kBarrier, CollectiveAlgorithm::kAuto, {.sent = 7},
                      absl::Seconds(1));
  const std::string text = metrics.Text();
  const std::string labels = "{algorithm=\"pairwise\",op=\"reduce_scatter\"} ";
  EXPECT_THAT(text, HasSubstr(StrCat("shardmesh_worker_collectives_total", labels, "2\n")));
  EXPECT_THAT(text, HasSubstr(StrCat("collective_sent_bytes_total", labels, "200\n")));
  EXPECT_THAT(text, HasSubstr(StrCat("collective_copied_to_send_bytes_total", labels, "20\n")));
  EXPECT_THAT(text, HasSubstr(StrCat("collective_copied_received_bytes_total", labels, "2\n")));
  EXPECT_THAT(text, HasSubstr(StrCat("collective_seconds_total", labels, "0.5\n")));
  EXPECT_THAT(text, HasSubstr("collectives_total{algorithm=\"pairwise\",op=\"barrier\"} 0\n"));
}

TEST(WorkerMetricsTest, MovesAreCountedBesideCollectives) {
  rpc::Metrics metrics("worker");
  const StepObserver observer = ObserveSteps(&metrics);
  observer.move({.sent = 100, .copied_to_send = 10, .copied_received = 1}, absl::Milliseconds(250));
  const std::string text = metrics.Text();
  const std::string labels = "{algorithm=\"regions\",op=\"move\"} ";
  EXPECT_THAT(text, HasSubstr(StrCat("shardmesh_worker_collectives_total", labels, "1\n")));
  EXPECT_THAT(text, HasSubstr(StrCat("collective_sent_bytes_total", labels, "100\n")));
  EXPECT_THAT(text, HasSubstr(StrCat("collective_seconds_total", labels, "0.25\n")));
}

TEST(WorkerMetricsTest, StepsAreCountedAndTimedByOutcome) {
  rpc::Metrics metrics("worker");
  const StepObserver observer = ObserveSteps(&metrics);
  observer.step(StepOutcome::kFailed, absl::Milliseconds(30));
  observer.kernel(1000, absl::Milliseconds(125));
  const std::string text = metrics.Text();
  EXPECT_THAT(text, HasSubstr("shardmesh_worker_steps_total{outcome=\"failed\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("shardmesh_worker_steps_total{outcome=\"done\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("step_duration_seconds_bucket{outcome=\"failed\",le=\"0.025\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("step_duration_seconds_bucket{outcome=\"failed\",le=\"0.05\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("shardmesh_worker_kernel_flops_total 1000\n"));
  EXPECT_THAT(text, HasSubstr("shardmesh_worker_kernel_seconds_total 0.125\n"));
}

}  // namespace
}  // namespace shardmesh::worker
