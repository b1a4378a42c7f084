// StepCluster: a ReadyCluster that runs steps; the test reports for the workers.
#ifndef SHARDMESH_TESTS_UNIT_SERVER_STEPS_STEP_CLUSTER_H_
#define SHARDMESH_TESTS_UNIT_SERVER_STEPS_STEP_CLUSTER_H_

#include <cstdint>
#include <string>
#include <utility>

#include "rpc/codec/array_codec.h"
#include "rpc/metrics/metrics.h"
#include "server/steps/planner.h"
#include "server/steps/step_runner.h"
#include "shardmesh/internal/v1/attach_service.pb.h"
#include "tests/unit/server/steps/ready_cluster.h"

namespace shardmesh::server {

class StepCluster : public ReadyCluster {
 protected:
  ~StepCluster() override { sequencer_.reset(); }

  // What the workers were told of the last step.
  internal::v1::RunStep Told() {
    internal::v1::RunStep message;
    const EncodedStepPtr told = transport_.message();
    EXPECT_TRUE(told != nullptr && message.ParseFromString(told->rest));
    return message;
  }
  // The rank reports the last step; `bytes` are those of each of its result's tiles.
  absl::Status Report(int64_t rank, const std::string& bytes = "",
                      absl::Status status = absl::OkStatus()) {
    const WorkRef work = transport_.work();
    RankReport report{
        .identity = StrCat("w", rank), .rank = rank, .status = std::move(status), .done = true};
    report.detail.sent_bytes = 10;
    const internal::v1::RunStep told = Told();
    if (told.max_trace_spans() > 0) report.detail.trace = RankTrace{.rank = rank, .spans = {{}}};
    for (const std::string& output : told.outputs()) {
      const std::string array_id = rpc::ParseArrayDescriptorBytes(output)->array_id;
      report.tiles.push_back({.array_id = array_id, .crc32c = 9});
      report.detail.tile_bytes.emplace(array_id, bytes);
    }
    if (!report.status.ok()) report.tiles.clear();
    return sequencer_->ReportStep(work.sequence, work.epoch, work.term, std::move(report));
  }

  rpc::Metrics metrics_{"coordinator"};
  Planner planner_;
  StepRunner steps_{{.clock = &clock_,
                     .definition_store = definition_store_.get(),
                     .membership = &members_,
                     .endpoints = &endpoints_,
                     .registry = registry_.get(),
                     .sessions = &sessions_,
                     .links = &links_,
                     .recovery = &recovery_,
                     .planner = &planner_,
                     .sequencer = sequencer_.get(),
                     .metrics = &metrics_}};
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_TESTS_UNIT_SERVER_STEPS_STEP_CLUSTER_H_
