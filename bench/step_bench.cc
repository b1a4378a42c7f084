// Measures the time of a collective as a step of a running cluster, from the client's call to its
// answer.
//
// clang-format off
//   step_bench COORDINATOR LABEL            the mesh is "default", with the one axis tp
//   step_bench COORDINATOR --linear STEPS   prints the times of so many linear layers, in
//                                           milliseconds, one a line
// clang-format on
//
// The linear layer is of 512 rows and a column-parallel F32 weight of 4096 x 4096.
//
// Prints one line of JSON per size; the line's id begins with LABEL. A line has the median time of
// a call, and the median time of the slowest worker's collective within the call. The tensor is
// replicated, so each rank passes all elements to the all-reduce. The client releases each result
// at once.
#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/mesh_client.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

constexpr int64_t kWarmCalls = 5;

template <typename T>
T OrFail(absl::StatusOr<T> value) {
  if (value.ok()) return *std::move(value);
  std::cerr << "step_bench: " << value.status() << "\n";
  std::exit(1);
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

void Measure(client::MeshClient& mesh, const std::string& label, int64_t bytes) {
  const std::vector<char> elements(static_cast<size_t>(bytes));
  client::PutTensor tensor{.name = "",
                           .view = OrFail(TensorView::Create(Dtype::kF32, {bytes / 4},
                                                             {elements.data(), elements.size()})),
                           .spec = PartitionSpec(),
                           .cut_points = {}};
  const client::PutResult put = OrFail(mesh.arrays().PutTensors({&tensor, 1}));
  const std::string input = put.arrays[0].descriptor.array_id;
  const client::CollectiveCall call{.input = client::ArraySelector::ById(input),
                                    .kind = CollectiveKind::kAllReduce,
                                    .axes = {"tp"}};
  const int64_t calls = std::clamp<int64_t>((int64_t{1} << 30) / bytes, 20, 1000);
  std::vector<double> all;
  std::vector<double> collective;
  for (int64_t i = 0; i < calls + kWarmCalls; ++i) {
    const absl::Time begin = absl::Now();
    const client::StepResult result = OrFail(mesh.compute().Collective(call));
    const absl::Duration time = absl::Now() - begin;
    const std::string output = result.outputs[0].array.descriptor.array_id;
    (void)OrFail(mesh.arrays().ReleaseArrays({&output, 1}));
    if (i < kWarmCalls) continue;
    all.push_back(absl::ToDoubleMicroseconds(time));
    collective.push_back(absl::ToDoubleMicroseconds(result.timings.collective));
  }
  (void)OrFail(mesh.arrays().ReleaseArrays({&input, 1}));
  const double ours = Median(std::move(all));
  const nlohmann::json line = {
      {"id", StrCat(label, "-", bytes)},
      {"what", StrCat("all-reduce of ", bytes, " bytes as a step, of which the collective took ",
                      static_cast<int64_t>(Median(std::move(collective))), " us")},
      {"ours", static_cast<double>(static_cast<int64_t>(ours * 10)) / 10},
      {"peer", nullptr},
      {"unit", "us"},
      {"ratio", nullptr},
      {"target", nullptr},
      {"met", nullptr}};
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
        .view = OrFail(TensorView::Create(Dtype::kF32, {rows, kWidth},
                                          {reinterpret_cast<const char*>(elements.data()), bytes})),
        .spec = std::move(spec),
        .cut_points = {}};
  };
  const client::PutTensor tensors[] = {
      tensor(kRows, PartitionSpec()),
      tensor(kWidth, PartitionSpec({SpecEntry(), SpecEntry::Axis("tp")}))};
  const client::PutResult put = OrFail(mesh.arrays().PutTensors(tensors));
  const client::MatmulCall call{
      .lhs = client::ArraySelector::ById(put.arrays[0].descriptor.array_id),
      .rhs = client::ArraySelector::ById(put.arrays[1].descriptor.array_id)};
  for (int64_t i = -kWarmCalls; i < steps; ++i) {
    const absl::Time begin = absl::Now();
    const client::StepResult result = OrFail(mesh.compute().Matmul(call));
    const absl::Duration time = absl::Now() - begin;
    const std::string output = result.outputs[0].array.descriptor.array_id;
    (void)OrFail(mesh.arrays().ReleaseArrays({&output, 1}));
    if (i >= 0) std::cout << absl::ToDoubleMilliseconds(time) << std::endl;
  }
}

}  // namespace
}  // namespace shardmesh

int main(int argc, char** argv) {
  const bool is_linear = argc == 4 && std::string(argv[2]) == "--linear";
  if (argc != 3 && !is_linear) {
    std::cerr << "usage: step_bench COORDINATOR LABEL | COORDINATOR --linear STEPS\n";
    return 2;
  }
  const auto mesh = shardmesh::OrFail(shardmesh::client::MeshClient::Connect(argv[1]));
  if (is_linear) {
    shardmesh::TimeLinearLayers(*mesh, std::atoll(argv[3]));
    return 0;
  }
  for (const int64_t bytes : {8, 1 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20}) {
    shardmesh::Measure(*mesh, argv[2], bytes);
  }
}
