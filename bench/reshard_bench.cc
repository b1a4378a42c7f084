// Measures the reshard of an array from rows to columns as a step of a running cluster, beside the
// all-to-all collective that moves the same bytes. The two take turns.
//
// clang-format off
//   reshard_bench COORDINATOR LABEL RANKS [MIB]    the mesh is "default", with the one axis tp
// clang-format on
//
// The array has MIB mebibytes, by default 1,024. Prints one line of JSON, with the median times of
// the exchange of the slowest worker. Fails if the reshard sends other than the bytes of its
// plan's lower bound.
#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "client/mesh_client.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

constexpr int kWarmCalls = 1;
constexpr int kCalls = 7;

template <typename T>
T OrExit(absl::StatusOr<T> value) {
  if (value.ok()) return *std::move(value);
  std::cerr << "reshard_bench: " << value.status() << "\n";
  std::exit(1);
}

double MedianOf(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

void MeasureReshard(client::MeshClient& mesh, const std::string& label, int64_t ranks,
                    int64_t mebibytes) {
  const int64_t columns = 16'384;
  const int64_t rows = (mebibytes << 20) / 4 / columns;
  const int64_t bytes = rows * columns * 4;
  std::string input;
  {
    const std::vector<char> elements(static_cast<size_t>(bytes));
    client::PutTensor tensor{.name = "",
                             .view = OrExit(TensorView::Create(Dtype::kF32, {rows, columns},
                                                               {elements.data(), elements.size()})),
                             .spec = PartitionSpec({SpecEntry::Axis("tp"), SpecEntry::None()}),
                             .cut_points = {}};
    input = OrExit(mesh.arrays().PutTensors({&tensor, 1})).arrays[0].descriptor.array_id;
  }
  const Program reshard{
      .operand_count = 1,
      .ops = {ReshardOp{.spec = PartitionSpec({SpecEntry::None(), SpecEntry::Axis("tp")})}},
      .outputs = {1}};
  const Program all_to_all{
      .operand_count = 1,
      .ops = {CollectiveOp{
          .kind = CollectiveKind::kAllToAll, .axes = {"tp"}, .dimension = 0, .split_dimension = 1}},
      .outputs = {1}};
  const int64_t lower_bound = bytes / ranks * (ranks - 1);
  std::vector<double> times[2];
  for (int call = 0; call < kWarmCalls + kCalls; ++call) {
    for (const Program* program : {&reshard, &all_to_all}) {
      const client::StepResult result = OrExit(mesh.compute().Execute(
          {.work = *program, .operands = {client::ArraySelector::ById(input)}}));
      const std::string output = result.outputs[0].array.descriptor.array_id;
      (void)OrExit(mesh.arrays().ReleaseArrays({&output, 1}));
      if (program == &reshard && result.timings.sent_bytes != lower_bound) {
        std::cerr << "reshard_bench: the reshard sent " << result.timings.sent_bytes
                  << " bytes; the lower bound is " << lower_bound << "\n";
        std::exit(1);
      }
      if (call < kWarmCalls) continue;
      times[program == &reshard ? 0 : 1].push_back(
          absl::ToDoubleMilliseconds(result.timings.collective));
    }
  }
  (void)OrExit(mesh.arrays().ReleaseArrays({&input, 1}));
  const double ours = MedianOf(std::move(times[0]));
  const double peer = MedianOf(std::move(times[1]));
  const auto rounded = [](double value, double unit) {
    return static_cast<double>(static_cast<int64_t>(value * unit + 0.5)) / unit;
  };
  const nlohmann::json line = {
      {"id", label},
      {"what", StrCat("reshard ", mebibytes, " MiB from rows to columns on ", ranks,
                      " workers, beside the all-to-all of the same bytes")},
      {"ours", rounded(ours, 10)},
      {"peer", rounded(peer, 10)},
      {"unit", "ms"},
      {"ratio", rounded(ours / peer, 100)},
      {"target", "<= 1.2"},
      {"met", ours <= 1.2 * peer}};
  std::cout << line.dump() << std::endl;
}

}  // namespace
}  // namespace shardmesh

int main(int argc, char** argv) {
  if (argc != 4 && argc != 5) {
    std::cerr << "usage: reshard_bench COORDINATOR LABEL RANKS [MIB]\n";
    return 2;
  }
  const auto mesh = shardmesh::OrExit(shardmesh::client::MeshClient::Connect(argv[1]));
  shardmesh::MeasureReshard(*mesh, argv[2], std::atoll(argv[3]),
                            argc == 5 ? std::atoll(argv[4]) : 1024);
}
