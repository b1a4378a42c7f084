// Runs programs as steps of a running cluster, one for each line of its input, and prints what they
// took.
//
// clang-format off
//   program_bench COORDINATOR            the mesh is "default", with the one axis tp
// clang-format on
//
// Prints "ready". Then answers each line of its input with one line of JSON: the medians of the
// steps (bench/step_samples.h), in seconds. The lines, with DTYPE being F32 or BF16:
//
// clang-format off
//   empty RUNS                           an empty program
//   stream RUNS                          the same in one ExecuteStream; "call_s" is the time of one step
//   product DTYPE ROWS IN OUT RUNS       input, replicated, times a weight [OUT, IN] partitioned over its rows
//   mlp DTYPE ROWS RUNS                  linear 4096 -> 11008, silu, linear 11008 -> 4096, all-reduce
//   gather-product DTYPE ROWS IN OUT RUNS    as "product", after an all-gather of the rows of the input
//   gather DTYPE ROWS IN OUT RUNS            the all-gather of that input alone
//   gather-columns DTYPE ROWS IN OUT RUNS    as "local", after an all-gather of the rows of the weight, columns of y
//   local DTYPE ROWS IN OUT RUNS             a product of replicated operands: each device computes all of it
//   product-scatter DTYPE ROWS IN OUT RUNS   as "local", and then a reduce-scatter of the rows of the result
//   scatter DTYPE ROWS IN OUT RUNS           the reduce-scatter of that result alone
//   burst BYTES CALLS RUNS               so many all-reduces, one of the result of the other; "collective_s" is of one
// clang-format on
//
// The first result of "mlp" for each type is compared with the products computed here.
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bench/step_samples.h"
#include "client/mesh_client.h"
#include "program/graph/graph_builder.h"
#include "status/str_cat.h"
#include "tensor/dtype.h"
#include "tensor/float_convert.h"
#include "tensor/random.h"
#include "tensor/view.h"

namespace shardmesh::bench {
namespace {

using client::ArraySelector;
using client::ExecuteCall;
using nlohmann::json;

constexpr int64_t kHidden = 4096;
constexpr int64_t kInner = 11008;
constexpr int64_t kWarmRuns = 3;

const SpecEntry kNone = SpecEntry::None();

PartitionSpec OverRows() { return PartitionSpec({SpecEntry::Axis("tp"), kNone}); }
PartitionSpec OverColumns() { return PartitionSpec({kNone, SpecEntry::Axis("tp")}); }

// A matrix of random elements, here and on the cluster.
struct PutMatrix {
  std::vector<char> elements;
  int64_t columns = 0;
  ArraySelector array;
};

double ElementOf(const PutMatrix& matrix, Dtype dtype, int64_t row, int64_t column) {
  const auto at = static_cast<size_t>(row * matrix.columns + column);
  if (dtype == Dtype::kF32) {
    float value;
    std::memcpy(&value, matrix.elements.data() + at * sizeof(value), sizeof(value));
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, matrix.elements.data() + at * sizeof(bits), sizeof(bits));
  return BF16ToF32(bits);
}

class ProgramBench {
 public:
  explicit ProgramBench(client::MeshClient* mesh) : mesh_(*mesh) {}

  // Returns the answer to a line.
  json Answer(const std::string& line) {
    std::istringstream words(line);
    std::string verb;
    words >> verb;
    if (verb == "empty") return Empty(Number(words));
    if (verb == "stream") return Stream(Number(words));
    if (verb == "burst") {
      const int64_t bytes = Number(words);
      const int64_t calls = Number(words);
      return Burst(bytes, calls, Number(words));
    }
    std::string type;
    words >> type;
    const Dtype dtype = type == "F32" ? Dtype::kF32 : Dtype::kBF16;
    const int64_t rows = Number(words);
    if (verb == "mlp") return Mlp(dtype, rows, Number(words));
    const int64_t in = Number(words);
    const int64_t out = Number(words);
    const int64_t runs = Number(words);
    return Product(verb, dtype, {.rows = rows, .in = in, .out = out}, runs);
  }

 private:
  struct Extents {
    int64_t rows = 1;
    int64_t in = 1;
    int64_t out = 1;
  };

  static int64_t Number(std::istringstream& words) {
    int64_t number = 0;
    if (words >> number && number > 0) return number;
    OrExit(
        absl::InvalidArgumentError("a line lacks a number above 0; the head of "
                                   "bench/program_bench.cc has the form of each line"));
    return 1;
  }

  // Puts a matrix, or returns the one that was put with these arguments before. The standard
  // deviation is one over the root of `columns`, so that products with it keep their size.
  const PutMatrix& Matrix(Dtype dtype, int64_t rows, int64_t columns, const PartitionSpec& spec,
                          double deviation) {
    PutMatrix& matrix = matrices_[{dtype, rows, columns, spec.ToString()}];
    if (!matrix.elements.empty()) return matrix;
    matrix.columns = columns;
    matrix.elements.resize(static_cast<size_t>(rows * columns * BitsPerElement(dtype) / 8));
    OrExit(FillNormal(dtype, matrices_.size(), deviation, 0, absl::MakeSpan(matrix.elements)));
    matrix.array = PutUnnamed(
        mesh_, OrExit(TensorView::Create(dtype, {rows, columns}, matrix.elements)), spec);
    return matrix;
  }
  const PutMatrix& Weight(Dtype dtype, int64_t out, int64_t in, const PartitionSpec& spec) {
    return Matrix(dtype, out, in, spec, 1 / std::sqrt(static_cast<double>(in)));
  }

  json Run(const GraphBuilder& builder, std::vector<client::Operand> operands, int64_t runs) {
    const Graph graph = OrExit(builder.Build());
    ExecuteCall call{.work = graph.program, .operands = std::move(operands), .mesh_id = "default"};
    const client::CompiledProgram compiled =
        OrExit(mesh_.compute().Compile(graph.program, call.operands, call.mesh_id));
    json answer = RunSteps(mesh_, call, kWarmRuns, runs).Json();
    for (const client::PlannedInstruction& instruction : compiled.instructions) {
      answer["instructions"].push_back(instruction.label);
    }
    return answer;
  }

  json Empty(int64_t runs) {
    return RunSteps(mesh_, {.work = Program(), .operands = {}, .mesh_id = "default"}, runs / 10,
                    runs)
        .Json();
  }

  json Stream(int64_t runs) {
    constexpr int64_t kAhead = 32;
    ExecuteCall call{.work = Program(), .operands = {}, .mesh_id = "default"};
    const auto stream = OrExit(mesh_.compute().OpenStream());
    StepSamples samples;
    const int64_t warm_runs = runs / 10;
    int64_t sent = 0;
    absl::Time begin = absl::Now();
    for (int64_t done = 0; done < warm_runs + runs; ++done) {
      if (done == warm_runs) begin = absl::Now();
      for (; sent < std::min(warm_runs + runs, done + kAhead); ++sent) {
        OrExit(stream->Send(call));
        call.work = std::string();
      }
      samples.Add(absl::ZeroDuration(), OrExit(OrExit(stream->Next()).result).timings);
    }
    json answer = samples.Json();
    answer["call_s"] = absl::ToDoubleSeconds(absl::Now() - begin) / static_cast<double>(runs);
    stream->EndSends();
    return answer;
  }

  json Burst(int64_t bytes, int64_t calls, int64_t runs) {
    const int64_t count = bytes / 4;
    const std::vector<float> zeros(static_cast<size_t>(count));
    const ArraySelector array = PutUnnamed(
        mesh_,
        OrExit(TensorView::Create(
            Dtype::kF32, {count},
            absl::MakeConstSpan(reinterpret_cast<const char*>(zeros.data()), zeros.size() * 4))),
        PartitionSpec());
    GraphBuilder builder;
    GraphValue value = builder.Parameter("x", Dtype::kF32, {count});
    for (int64_t call = 0; call < calls; ++call) value = builder.AllReduce(value, {"tp"});
    builder.Output("y", value);
    json answer = Run(builder, {array}, runs);
    answer["collective_s"] = answer["collective_s"].get<double>() / static_cast<double>(calls);
    (void)OrExit(mesh_.arrays().ReleaseArrays({&array.array_id, 1}));
    return answer;
  }

  json Mlp(Dtype dtype, int64_t rows, int64_t runs) {
    const PutMatrix& input = Matrix(dtype, rows, kHidden, PartitionSpec(), 1);
    const PutMatrix& up = Weight(dtype, kInner, kHidden, OverRows());
    const PutMatrix& down = Weight(dtype, kHidden, kInner, OverColumns());
    GraphBuilder builder;
    const GraphValue x = builder.Parameter("x", dtype, {rows, kHidden});
    const GraphValue w1 = builder.Parameter("up", dtype, {kInner, kHidden});
    const GraphValue w2 = builder.Parameter("down", dtype, {kHidden, kInner});
    const GraphValue inner = builder.Linear(x, w1, {.activation = Activation::kSilu});
    builder.Output("y", builder.Reshard(builder.Linear(inner, w2), PartitionSpec()));
    if (!checked_[dtype]) {
      CheckMlp(OrExit(builder.Build()), dtype, input, up, down);
      checked_[dtype] = true;
    }
    return Run(builder, {input.array, up.array, down.array}, runs);
  }

  // Compares some elements of the result's first row with products in F64.
  void CheckMlp(const Graph& graph, Dtype dtype, const PutMatrix& input, const PutMatrix& up,
                const PutMatrix& down) {
    ExecuteCall call{.work = graph.program,
                     .operands = {input.array, up.array, down.array},
                     .mesh_id = "default"};
    const client::StepResult step = OrExit(mesh_.compute().Execute(call));
    const client::GatheredTensor result = OrExit(
        mesh_.arrays().Gather(ArraySelector::ById(step.outputs[0].array.descriptor.array_id)));
    std::vector<double> inner(kInner);
    for (int64_t row = 0; row < kInner; ++row) {
      double sum = 0;
      for (int64_t i = 0; i < kHidden; ++i) {
        sum += ElementOf(input, dtype, 0, i) * ElementOf(up, dtype, row, i);
      }
      inner[static_cast<size_t>(row)] = sum / (1 + std::exp(-sum));
    }
    const PutMatrix got{.elements = {result.view().bytes().begin(), result.view().bytes().end()},
                        .columns = kHidden,
                        .array = {}};
    const double tolerance = dtype == Dtype::kF32 ? 1e-4 : 3e-2;
    for (int64_t column = 0; column < kHidden; column += kHidden / 16 - 1) {
      double expected = 0;
      for (int64_t i = 0; i < kInner; ++i) {
        expected += inner[static_cast<size_t>(i)] * ElementOf(down, dtype, column, i);
      }
      const double have = ElementOf(got, dtype, 0, column);
      if (std::abs(have - expected) <= tolerance * (1 + std::abs(expected))) continue;
      OrExit(absl::InternalError(
          StrCat("column ", column, " of the result is ", have, "; it must be about ", expected)));
    }
    Release(mesh_, step);
  }

  json Product(const std::string& verb, Dtype dtype, const Extents& extents, int64_t runs) {
    const Shape input_shape = {extents.rows, extents.in};
    const Shape weight_shape = {extents.out, extents.in};
    const Shape result_shape = {extents.rows, extents.out};
    const auto input = [&](const PartitionSpec& spec) {
      return Matrix(dtype, extents.rows, extents.in, spec, 1).array;
    };
    const auto weight = [&](const PartitionSpec& spec) {
      return Weight(dtype, extents.out, extents.in, spec).array;
    };
    GraphBuilder builder;
    if (verb == "gather") {
      builder.Output("y", builder.AllGather(builder.Parameter("x", dtype, input_shape), {"tp"}, 0));
      return Run(builder, {input(OverRows())}, runs);
    }
    if (verb == "scatter") {
      const GraphValue x = builder.Parameter("x", dtype, result_shape);
      builder.Output("y", builder.ReduceScatter(x, {"tp"}, 0));
      return Run(builder, {Matrix(dtype, extents.rows, extents.out, PartitionSpec(), 1).array},
                 runs);
    }
    const bool is_partitioned = verb == "product" || verb == "gather-product";
    const bool gathers_weight = verb == "gather-columns";
    if (!is_partitioned && !gathers_weight && verb != "product-scatter" && verb != "local") {
      OrExit(absl::InvalidArgumentError(StrCat("a line begins with \"", verb, "\"")));
    }
    const bool gathers = verb == "gather-product";
    const GraphValue x = builder.Parameter("x", dtype, input_shape);
    const GraphValue w = builder.Parameter("w", dtype, weight_shape);
    // A collective of its own leaves the planner no choice of another layout.
    const GraphValue y = builder.Linear(gathers ? builder.AllGather(x, {"tp"}, 0) : x,
                                        gathers_weight ? builder.AllGather(w, {"tp"}, 0) : w);
    builder.Output("y", verb == "product-scatter" ? builder.ReduceScatter(y, {"tp"}, 0) : y);
    return Run(builder,
               {input(gathers ? OverRows() : PartitionSpec()),
                weight(is_partitioned || gathers_weight ? OverRows() : PartitionSpec())},
               runs);
  }

  client::MeshClient& mesh_;
  std::map<std::tuple<Dtype, int64_t, int64_t, std::string>, PutMatrix> matrices_;
  std::map<Dtype, bool> checked_;
};

}  // namespace
}  // namespace shardmesh::bench

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: program_bench COORDINATOR\n";
    return 2;
  }
  const auto mesh = shardmesh::bench::OrExit(shardmesh::client::MeshClient::Connect(argv[1]));
  shardmesh::bench::ProgramBench bench(mesh.get());
  std::cout << "ready" << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << bench.Answer(line).dump() << std::endl;
  }
}
