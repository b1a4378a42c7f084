// Runs random programs on a running cluster, to compare what was predicted with what they took.
//
// clang-format off
//   prediction_bench COORDINATOR SEED      the mesh is "default", with the one axis tp
// clang-format on
//
// Puts the operands of the program of this seed, waits until the workers have measured what
// predictions need, and prints "ready". For the line "what", prints a description of the program;
// for "run", runs it, keeps the results of the last run, and prints the medians
// (bench/step_samples.h). The same seed gives the same program.
#include <array>
#include <cmath>
#include <iterator>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "bench/step_samples.h"
#include "client/mesh_client.h"
#include "program/graph/graph_builder.h"
#include "status/str_cat.h"
#include "tensor/dtype.h"
#include "tensor/random.h"
#include "tensor/view.h"

namespace shardmesh::bench {
namespace {

using client::ExecuteCall;
using client::StepResult;

constexpr int64_t kWarmRuns = 2;
constexpr int64_t kRuns = 7;
constexpr absl::Duration kPatience = absl::Seconds(20);

// Puts a program of random kind and sizes onto the cluster.
class RandomProgram {
 public:
  RandomProgram(client::MeshClient* mesh, uint64_t seed) : mesh_(*mesh), random_(seed) {
    using Maker = GraphValue (RandomProgram::*)();
    constexpr std::array<Maker, 6> kMakers = {
        &RandomProgram::Layers,   &RandomProgram::Block,          &RandomProgram::Elements,
        &RandomProgram::Exchange, &RandomProgram::BatchedProduct, &RandomProgram::Shapes};
    // Without distributions of the library, which differ between libraries.
    constexpr std::array kDtypes = {Dtype::kF32, Dtype::kBF16, Dtype::kF32, Dtype::kBF16,
                                    Dtype::kF16};
    dtype_ = kDtypes[static_cast<size_t>(Below(std::ssize(kDtypes)))];
    const GraphValue result = (this->*kMakers[static_cast<size_t>(Below(std::ssize(kMakers)))])();
    builder_.Output("y", result);
    what_ = StrCat(DtypeName(dtype_), " ", what_);
    const Graph graph = OrExit(builder_.Build());
    call_.work = graph.program;
    call_.mesh_id = "default";
  }

  const std::string& what() const { return what_; }
  const ExecuteCall& call() const { return call_; }

 private:
  // Returns a number from 0 to below `limit`.
  int64_t Below(int64_t limit) {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(limit));
  }
  int64_t Between(int64_t least, int64_t most, int64_t step) {
    return least + step * Below((most - least) / step + 1);
  }

  // A layout of a matrix: replicated, over its rows or over its columns.
  PartitionSpec AnySpec() {
    const SpecEntry tp = SpecEntry::Axis("tp");
    switch (Below(3)) {
      case 0:
        return PartitionSpec();
      case 1:
        return PartitionSpec({tp});
      default:
        return PartitionSpec({SpecEntry::None(), tp});
    }
  }

  GraphValue Put(Dtype dtype, const Shape& shape, PartitionSpec spec) {
    int64_t count = 1;
    for (const int64_t extent : shape) count *= extent;
    std::vector<char> elements(static_cast<size_t>(count * BitsPerElement(dtype) / 8));
    const double deviation = 1 / std::sqrt(static_cast<double>(shape.back()));
    OrExit(FillNormal(dtype, call_.operands.size(), deviation, 0, absl::MakeSpan(elements)));
    return Put(dtype, shape, std::move(spec), elements);
  }
  // FillNormal has no integers.
  GraphValue PutZeros(Dtype dtype, const Shape& shape, PartitionSpec spec) {
    int64_t count = 1;
    for (const int64_t extent : shape) count *= extent;
    const std::vector<char> elements(static_cast<size_t>(count * BitsPerElement(dtype) / 8));
    return Put(dtype, shape, std::move(spec), elements);
  }
  GraphValue Put(Dtype dtype, const Shape& shape, PartitionSpec spec,
                 const std::vector<char>& elements) {
    call_.operands.emplace_back(
        PutUnnamed(mesh_, OrExit(TensorView::Create(dtype, shape, elements)), std::move(spec)));
    return builder_.Parameter(StrCat("operand", call_.operands.size()), dtype, shape);
  }

  Activation AnyActivation() {
    constexpr Activation kAll[] = {Activation::kNone, Activation::kGelu, Activation::kSilu,
                                   Activation::kRelu};
    return kAll[Below(std::ssize(kAll))];
  }

  // The weights of a linear layer: I8 with scales, if `is_i8`.
  GraphValue Layer(GraphValue input, int64_t out, int64_t in, bool is_i8) {
    LinearArgs args = {.activation = AnyActivation()};
    if (!is_i8) return builder_.Linear(input, Put(dtype_, {out, in}, AnySpec()), args);
    const GraphValue weight = PutZeros(Dtype::kI8, {out, in}, AnySpec());
    args.scales = Put(Dtype::kF32, {out}, PartitionSpec());
    return builder_.Linear(input, weight, args);
  }

  GraphValue Layers() {
    // Half of them have few rows, as in decoding.
    const int64_t rows = Below(2) == 0 ? 1 + Below(32) : Between(32, 1024, 32);
    const bool is_i8 = Below(4) == 0;
    const int64_t depth = 1 + Below(3);
    int64_t width = Between(512, 4096, 64);
    what_ = StrCat(is_i8 ? "linear layers of I8, " : "linear layers, ", rows, " rows, ", width);
    GraphValue value = Put(dtype_, {rows, width}, AnySpec());
    for (int64_t layer = 0; layer < depth; ++layer) {
      const int64_t out = Between(512, 4096, 64);
      StrAppend(&what_, " -> ", out);
      value = Layer(value, out, width, is_i8);
      width = out;
    }
    return value;
  }

  // A block of a transformer, without its second half.
  GraphValue Block() {
    const int64_t batch = 1 + Below(4);
    const int64_t length = Between(64, 512, 64);
    const int64_t heads = Between(8, 16, 8);
    const int64_t features = 64;
    const int64_t hidden = heads * features;
    what_ = StrCat("attention block, ", batch, " x ", length, " tokens, ", heads, " heads");
    const PartitionSpec rows({SpecEntry::Axis("tp")});
    const PartitionSpec columns({SpecEntry::None(), SpecEntry::Axis("tp")});
    const GraphValue input = Put(dtype_, {batch, length, hidden}, PartitionSpec());
    const GraphValue normal =
        builder_.RmsNorm(input, {.weight = Put(dtype_, {hidden}, PartitionSpec())});
    const auto head = [&] {
      return builder_.Reshape(builder_.Linear(normal, Put(dtype_, {hidden, hidden}, rows)),
                              {batch, length, heads, features});
    };
    const GraphValue query = head();
    const GraphValue keys = head();
    AttentionArgs args = {.scale = 0.125F};
    if (Below(2) == 0) {
      std::vector<int32_t> positions(static_cast<size_t>(length));
      std::iota(positions.begin(), positions.end(), 0);
      args.positions = builder_.Vector(positions);
      StrAppend(&what_, ", causal");
    }
    const GraphValue attention = builder_.Attention(query, keys, head(), args);
    return builder_.Add(input, builder_.Linear(builder_.Reshape(attention, {batch, length, hidden}),
                                               Put(dtype_, {hidden, hidden}, columns)));
  }

  GraphValue Elements() {
    const int64_t rows = Between(1024, 8192, 1024);
    const int64_t columns = Between(512, 4096, 512);
    what_ = StrCat("functions of ", rows, " x ", columns, " elements");
    const PartitionSpec spec({SpecEntry::Axis("tp")});
    GraphValue value = Put(dtype_, {rows, columns}, spec);
    const GraphValue other = Put(dtype_, {rows, columns}, spec);
    const int64_t count = 1 + Below(4);
    for (int64_t op = 0; op < count; ++op) {
      switch (Below(4)) {
        case 0:
          value = builder_.Add(value, other);
          break;
        case 1:
          value = builder_.LayerNorm(value);
          break;
        case 2:
          value = builder_.Softmax(value);
          break;
        default:
          value = builder_.Gelu(value);
      }
    }
    StrAppend(&what_, ", ", count, " ops");
    return value;
  }

  GraphValue Exchange() {
    const int64_t rows = Between(512, 4096, 512);
    const int64_t columns = Between(1024, 4096, 1024);
    const SpecEntry tp = SpecEntry::Axis("tp");
    constexpr const char* kNames[] = {"all-reduce", "reduce-scatter", "all-gather", "reshard"};
    const int64_t kind = Below(std::ssize(kNames));
    what_ = StrCat(kNames[kind], " of ", rows, " x ", columns);
    const GraphValue value =
        Put(dtype_, {rows, columns}, kind < 2 ? PartitionSpec() : PartitionSpec({tp}));
    if (kind == 0) return builder_.AllReduce(value, {"tp"});
    if (kind == 1) return builder_.ReduceScatter(value, {"tp"}, 0);
    if (kind == 2) return builder_.AllGather(value, {"tp"}, 0);
    return builder_.Reshard(value, PartitionSpec({SpecEntry::None(), tp}));
  }

  GraphValue BatchedProduct() {
    const int64_t batch = Between(2, 16, 2);
    const int64_t rows = Between(64, 512, 64);
    const int64_t contracted = Between(64, 1024, 64);
    const int64_t columns = Between(64, 1024, 64);
    what_ = StrCat("batched product, ", batch, " of ", rows, " x ", contracted, " x ", columns);
    const PartitionSpec spec({SpecEntry::Axis("tp")});
    const GraphValue lhs = Put(dtype_, {batch, rows, contracted}, spec);
    const GraphValue product =
        builder_.Matmul(lhs, Put(dtype_, {batch, contracted, columns}, spec));
    return Below(2) == 0 ? product : builder_.Softmax(product);
  }

  GraphValue Shapes() {
    const int64_t rows = Between(1024, 4096, 512);
    const int64_t columns = Between(1024, 4096, 512);
    what_ = StrCat("changes of shape of ", rows, " x ", columns);
    const PartitionSpec spec({SpecEntry::Axis("tp")});
    const GraphValue value = Put(dtype_, {rows, columns}, spec);
    const GraphValue turned = builder_.Transpose(value, {1, 0});
    const GraphValue joined = builder_.Concatenate({turned, turned}, 1);
    return Below(2) == 0 ? builder_.Slice(joined, 1, rows / 2, rows + rows / 2)
                         : builder_.Sum(joined, {0});
  }

  client::MeshClient& mesh_;
  std::mt19937_64 random_;
  GraphBuilder builder_;
  Dtype dtype_ = Dtype::kF32;
  std::string what_;
  ExecuteCall call_;
};

// Waits until the workers have measured all that a prediction needs.
void AwaitRates(client::MeshClient& mesh, const ExecuteCall& call) {
  const absl::Time end = absl::Now() + kPatience;
  while (absl::Now() < end) {
    const client::CompiledProgram compiled =
        OrExit(mesh.compute().Compile(std::get<Program>(call.work), call.operands, call.mesh_id));
    if (compiled.exchange_time.has_value() && compiled.kernel_time.has_value()) return;
    absl::SleepFor(absl::Milliseconds(100));
  }
  OrExit(absl::DeadlineExceededError("the workers have not measured their links and kernels"));
}

// Makes the workers give back the buffers that they kept from puts, which would count as memory of
// the program: a worker does so once it has packed a weight.
void TrimPools(client::MeshClient& mesh) {
  constexpr int64_t kWidth = 256;
  std::vector<char> elements(static_cast<size_t>(kWidth * kWidth) * sizeof(float));
  OrExit(FillNormal(Dtype::kF32, 1, 1, 0, absl::MakeSpan(elements)));
  const TensorView matrix = OrExit(TensorView::Create(Dtype::kF32, {kWidth, kWidth}, elements));
  const Program product{
      .operand_count = 2, .ops = {LinearOp{.input = 0, .weight = 1}}, .outputs = {2}};
  const ExecuteCall call{.work = product,
                         .operands = {PutUnnamed(mesh, matrix, PartitionSpec()),
                                      PutUnnamed(mesh, matrix, PartitionSpec())}};
  (void)RunSteps(mesh, call, 1, 1);
}

void RunProgram(client::MeshClient& mesh, const ExecuteCall& call) {
  StepSamples samples;
  for (int64_t run = 1 - kWarmRuns; run <= kRuns; ++run) {
    const absl::Time begin = absl::Now();
    const StepResult step = OrExit(mesh.compute().Execute(call));
    const absl::Duration time = absl::Now() - begin;
    if (run < kRuns) Release(mesh, step);
    if (run > 0) samples.Add(time, step.timings);
  }
  std::cout << samples.Json().dump() << std::endl;
}

}  // namespace
}  // namespace shardmesh::bench

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: prediction_bench COORDINATOR SEED\n";
    return 2;
  }
  const auto mesh = shardmesh::bench::OrExit(shardmesh::client::MeshClient::Connect(argv[1]));
  const shardmesh::bench::RandomProgram program(mesh.get(), std::strtoull(argv[2], nullptr, 10));
  shardmesh::bench::AwaitRates(*mesh, program.call());
  shardmesh::bench::TrimPools(*mesh);
  std::cout << "ready" << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    if (line == "run") {
      shardmesh::bench::RunProgram(*mesh, program.call());
    } else {
      std::cout << program.what() << std::endl;
    }
  }
}
