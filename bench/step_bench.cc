// Measures the time of a collective as a step of a running cluster, from the client's call to its
// answer.
//
// clang-format off
//   step_bench COORDINATOR                  the mesh is "default", with the one axis tp
//   step_bench COORDINATOR --linear STEPS   prints the times of so many linear layers, in
//                                           milliseconds, one a line
// clang-format on
//
// The linear layer is of 512 rows and a column-parallel F32 weight of 4096 x 4096.
//
// Prints one line of JSON for each size, with medians in microseconds:
//   {"bytes", "call_us", "collective_us"}
// The last one is the time of the slowest worker's collective within the call. The tensor is
// replicated, so each rank passes all elements to the all-reduce. The client releases each result
// at once.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "bench/step_samples.h"
#include "client/mesh_client.h"

namespace shardmesh {
namespace {

using bench::MedianOf;
using bench::OrExit;

constexpr int64_t kWarmCalls = 5;

void Measure(client::MeshClient& mesh, int64_t bytes) {
  const std::vector<char> elements(static_cast<size_t>(bytes));
  client::PutTensor tensor{.name = "",
                           .view = OrExit(TensorView::Create(Dtype::kF32, {bytes / 4},
                                                             {elements.data(), elements.size()})),
                           .spec = PartitionSpec(),
                           .cut_points = {}};
  const client::PutResult put = OrExit(mesh.arrays().PutTensors({&tensor, 1}));
  const std::string input = put.arrays[0].descriptor.array_id;
  const client::CollectiveCall call{.input = client::ArraySelector::ById(input),
                                    .kind = CollectiveKind::kAllReduce,
                                    .axes = {"tp"}};
  const int64_t calls = std::clamp<int64_t>((int64_t{1} << 30) / bytes, 20, 1000);
  std::vector<double> all;
  std::vector<double> collective;
  for (int64_t i = 0; i < calls + kWarmCalls; ++i) {
    const absl::Time begin = absl::Now();
    const client::StepResult result = OrExit(mesh.compute().Collective(call));
    const absl::Duration time = absl::Now() - begin;
    const std::string output = result.outputs[0].array.descriptor.array_id;
    (void)OrExit(mesh.arrays().ReleaseArrays({&output, 1}));
    if (i < kWarmCalls) continue;
    all.push_back(absl::ToDoubleMicroseconds(time));
    collective.push_back(absl::ToDoubleMicroseconds(result.timings.collective));
  }
  (void)OrExit(mesh.arrays().ReleaseArrays({&input, 1}));
  const nlohmann::json line = {{"bytes", bytes},
                               {"call_us", MedianOf(std::move(all))},
                               {"collective_us", MedianOf(std::move(collective))}};
  std::cout << line.dump() << std::endl;
}

void TimeLinearLayers(client::MeshClient& mesh, int64_t steps) {
  constexpr int64_t kRows = 512;
  constexpr int64_t kWidth = 4096;
  const std::vector<float> elements(static_cast<size_t>(kWidth * kWidth), 0.5F);
  const auto tensor = [&](int64_t rows, PartitionSpec spec) {
    const auto bytes = static_cast<size_t>(rows * kWidth) * sizeof(float);
    return client::PutTensor{
        .name = "",
        .view = OrExit(TensorView::Create(Dtype::kF32, {rows, kWidth},
                                          {reinterpret_cast<const char*>(elements.data()), bytes})),
        .spec = std::move(spec),
        .cut_points = {}};
  };
  const client::PutTensor tensors[] = {
      tensor(kRows, PartitionSpec()),
      tensor(kWidth, PartitionSpec({SpecEntry(), SpecEntry::Axis("tp")}))};
  const client::PutResult put = OrExit(mesh.arrays().PutTensors(tensors));
  const client::MatmulCall call{
      .lhs = client::ArraySelector::ById(put.arrays[0].descriptor.array_id),
      .rhs = client::ArraySelector::ById(put.arrays[1].descriptor.array_id)};
  for (int64_t i = -kWarmCalls; i < steps; ++i) {
    const absl::Time begin = absl::Now();
    const client::StepResult result = OrExit(mesh.compute().Matmul(call));
    const absl::Duration time = absl::Now() - begin;
    const std::string output = result.outputs[0].array.descriptor.array_id;
    (void)OrExit(mesh.arrays().ReleaseArrays({&output, 1}));
    if (i >= 0) std::cout << absl::ToDoubleMilliseconds(time) << std::endl;
  }
}

}  // namespace
}  // namespace shardmesh

int main(int argc, char** argv) {
  const bool is_linear = argc == 4 && std::string(argv[2]) == "--linear";
  if (argc != 2 && !is_linear) {
    std::cerr << "usage: step_bench COORDINATOR [--linear STEPS]\n";
    return 2;
  }
  const auto mesh = shardmesh::bench::OrExit(shardmesh::client::MeshClient::Connect(argv[1]));
  if (is_linear) {
    shardmesh::TimeLinearLayers(*mesh, std::atoll(argv[3]));
    return 0;
  }
  for (const int64_t bytes : {8, 1 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20}) {
    shardmesh::Measure(*mesh, bytes);
  }
}
