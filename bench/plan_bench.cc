// Measures the time to compute plans over many devices, on one thread: plans of reshards, layouts
// of whole models, and the search for a mesh.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sharding/layout/analysis.h"
#include "sharding/layout/mesh_search.h"
#include "sharding/mesh.h"
#include "sharding/reshard/plan.h"
#include "sharding/spec.h"
#include "sharding/tile.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

SpecEntry Axes(std::vector<AxisName> axes) { return SpecEntry::Axes(std::move(axes)); }

// A reshard between two layouts on 131,072 devices.
struct Reshard {
  const char* name;
  std::vector<SpecEntry> from;
  std::vector<SpecEntry> to;
};

const std::vector<Reshard>& Reshards() {
  static const auto* const reshards = new std::vector<Reshard>{
      // Both layouts have 131,072 tiles, and the cuts of one layout cross those of the other
      // layout. The plan must therefore walk over every coordinate.
      {"swap", {Axes({"a", "b"}), Axes({"c"})}, {Axes({"c"}), Axes({"b", "a"})}},
      {"reorder", {Axes({"a", "b", "c"})}, {Axes({"c", "b", "a"})}},
      {"all_gather", {Axes({"a", "b", "c"})}, {}},
      {"all_to_all", {Axes({"a", "b", "c"}), {}}, {{}, Axes({"a", "b", "c"})}},
  };
  return *reshards;
}

ReshardPlan PlanOf(const Reshard& reshard) {
  const Mesh mesh = *Mesh::Parse("a=64,b=64,c=32");
  const Shape shape = {int64_t{1} << 17, int64_t{1} << 17};
  return *ReshardPlan::Create(*Tiling::Create(mesh, PartitionSpec(reshard.from), shape),
                              *Tiling::Create(mesh, PartitionSpec(reshard.to), shape));
}

void BM_ReshardTotals(benchmark::State& state) {
  const Reshard& reshard = Reshards()[static_cast<size_t>(state.range(0))];
  state.SetLabel(reshard.name);
  for (auto _ : state) {
    absl::StatusOr<ReshardTotals> totals = PlanOf(reshard).Totals();
    benchmark::DoNotOptimize(totals);
  }
}
BENCHMARK(BM_ReshardTotals)->DenseRange(0, 3)->Unit(benchmark::kMillisecond);

// Computes the bytes that each of the 131,072 devices keeps and needs.
void BM_ReshardEveryDevice(benchmark::State& state) {
  const Reshard& reshard = Reshards()[static_cast<size_t>(state.range(0))];
  state.SetLabel(reshard.name);
  for (auto _ : state) {
    const ReshardPlan plan = PlanOf(reshard);
    for (DeviceId device = 0; device < plan.to().mesh().size(); ++device) {
      DeviceReshard part = plan.DeviceOf(device);
      benchmark::DoNotOptimize(part);
    }
  }
}
BENCHMARK(BM_ReshardEveryDevice)->DenseRange(0, 3)->Unit(benchmark::kMillisecond);

// Computes all regions that one device receives, and all regions that it sends.
void BM_ReshardLinksOfADevice(benchmark::State& state) {
  const Reshard& reshard = Reshards()[static_cast<size_t>(state.range(0))];
  state.SetLabel(reshard.name);
  const ReshardPlan plan = PlanOf(reshard);
  for (auto _ : state) {
    absl::StatusOr<std::vector<FetchRegion>> in = plan.RegionsOf(12345);
    absl::StatusOr<std::vector<ReshardLink>> out = plan.LinksOutOf(12345);
    benchmark::DoNotOptimize(in);
    benchmark::DoNotOptimize(out);
  }
}
BENCHMARK(BM_ReshardLinksOfADevice)->DenseRange(0, 3)->Unit(benchmark::kMillisecond);

// Analyzes the layout of a model of 90,000 tensors on 65,536 devices.
void BM_AnalyzeLayout(benchmark::State& state) {
  const Mesh mesh = *Mesh::Parse("dp=64,fsdp=32,tp=32");
  const PartitionSpec spec({Axes({"fsdp"}), Axes({"tp"})});
  std::vector<std::string> names;
  for (int64_t i = 0; i < 90'000; ++i) {
    names.push_back(StrCat("model/layers/", i / 9, "/mlp/experts/", i % 9, "/kernel"));
  }
  for (auto _ : state) {
    LayoutAnalysis analysis = *LayoutAnalysis::Create(mesh);
    for (size_t i = 0; i < names.size(); ++i) {
      const absl::Status status =
          analysis.Add(names[i], {4096, static_cast<int64_t>(1 + i % 500) * 32}, 16, spec);
      if (!status.ok()) {
        state.SkipWithError(status.ToString().c_str());
      }
    }
    absl::StatusOr<LayoutReport> report = analysis.Report();
    benchmark::DoNotOptimize(report);
  }
}
BENCHMARK(BM_AnalyzeLayout)->Unit(benchmark::kMillisecond);

// Searches meshes of 4,096 devices and five axes, for 500 kinds of tensors: once with one tensor of
// each kind, once with 90,000 tensors. The time includes the sorting of the tensors into groups.
void BM_SearchMeshes(benchmark::State& state) {
  MeshSearchOptions options;
  options.device_count = 4096;
  options.axes = {{"dp"}, {"fsdp"}, {"tp"}, {"sp"}, {"ep"}};
  options.device_memory_bytes = int64_t{16} << 30;
  const PartitionSpec spec({Axes({"ep"}), Axes({"fsdp", "sp"}), Axes({"tp"})});
  for (auto _ : state) {
    TensorGroups groups;
    for (int64_t i = 0; i < state.range(0); ++i) {
      const absl::Status status = groups.Add(spec, {64, 4096, (1 + i % 500) * 32}, 16);
      if (!status.ok()) {
        state.SkipWithError(status.ToString().c_str());
      }
    }
    absl::StatusOr<MeshSearchResult> result = SearchMeshes(groups.groups(), options);
    if (!result.ok() || result->evaluated != 1820) {
      state.SkipWithError("not all meshes were tried");
    }
    benchmark::DoNotOptimize(result);
  }
}
BENCHMARK(BM_SearchMeshes)->Arg(500)->Arg(90'000)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace shardmesh

BENCHMARK_MAIN();
