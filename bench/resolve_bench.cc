// How many questions about a tensor a profile answers per second, on one thread.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sharding/correction.h"
#include "sharding/layout/logical_sharding.h"
#include "sharding/mesh.h"
#include "sharding/partition_axis.h"
#include "sharding/presets.h"

namespace shardmesh {
namespace {

// An activation of attention: batch, query length, heads, head dimension.
const std::vector<int64_t> kShape = {32, 128, 16, 64};

LogicalQuestion AttentionQuestion() {
  LogicalQuestion question;
  question.dynamic_axes = &(*FindPreset("AttnQSharding"))->dynamic_axes;
  question.shape = kShape;
  return question;
}

void BM_ResolveSpec(benchmark::State& state) {
  const PartitionAxis profile;
  const LogicalQuestion question = AttentionQuestion();
  for (auto _ : state) {
    absl::StatusOr<PartitionSpec> spec = ResolveSpec(profile, question);
    benchmark::DoNotOptimize(spec);
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_ResolveSpec);

// With the correction against a mesh that lacks one of the axes.
void BM_ResolveAndCorrect(benchmark::State& state) {
  const PartitionAxis profile;
  const LogicalQuestion question = AttentionQuestion();
  const Mesh mesh = *Mesh::Parse("dp=2,fsdp=4,tp=4");
  for (auto _ : state) {
    absl::StatusOr<LogicalSharding> sharding = ApplyLogicalSharding(profile, question, mesh);
    benchmark::DoNotOptimize(sharding);
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_ResolveAndCorrect);

}  // namespace
}  // namespace shardmesh

BENCHMARK_MAIN();
