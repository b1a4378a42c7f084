// What the client library promises, with real processes behind it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "client/inspect/verify_series.h"
#include "client/inspect/verify_step.h"
#include "program/collective_choice.h"
#include "program/graph/graph.h"
#include "program/graph/graph_builder.h"
#include "rpc/contract.h"
#include "sharding/mesh_definition.h"
#include "sharding/rules/rule_set.h"
#include "sharding/rules/rule_set_definition.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/view.h"
#include "tests/testing/metric_values.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace shardmesh::test {
namespace {

class ClientTest : public ::testing::Test {
 protected:
  void SetUp() override { StartCluster({}); }
  void StartCluster(const TestCluster::Options& options) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(cluster_, TestCluster::Start(options));
  }

  // Puts four numbers and returns the array's id.
  absl::StatusOr<std::string> Put(const std::string& name) {
    return PutFloats(client(), name, {4}, values_, PartitionSpec({SpecEntry::Axis("tp")}));
  }
  client::MeshClient& client() { return cluster_->client(); }

  const std::vector<float> values_ = {1, 2, 3, 4};
  std::unique_ptr<TestCluster> cluster_;
};

TEST_F(ClientTest, TheCoordinatorTellsItsProtocolAndFeatures) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::ServerVersion version,
                                 client().cluster().GetVersion());
  EXPECT_EQ(version.min_protocol, rpc::kOldestProtocol);
  EXPECT_EQ(version.max_protocol, rpc::kNewestProtocol);
  std::vector<std::string> features;
  for (const rpc::Feature& feature : rpc::kFeatures) features.emplace_back(feature.name);
  EXPECT_EQ(version.features, features);
}

TEST_F(ClientTest, AnArrayThatWasReadGoesWithItsName) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::string first, Put("w"));
  EXPECT_THAT(client().arrays().Gather(client::ArraySelector::ByName("w")), IsOk());
  EXPECT_THAT(client().arrays().Gather(client::ArraySelector::ById(first)), IsOk());
  ASSERT_THAT(Put("w"), IsOk());
  EXPECT_THAT(client().arrays().DescribeArray(client::ArraySelector::ById(first)),
              StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(ClientTest, AMoveOfANameIsCheckedWithoutAChange) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::string a, Put("a"));
  client::ArrayClient& arrays = client().arrays();
  EXPECT_THAT(arrays.MoveName("c", a, std::nullopt, /*validate_only=*/true), IsOkAndHolds(0));
  EXPECT_THAT(arrays.MoveName("a", a, client::MustNotExist(), /*validate_only=*/true),
              StatusIs(absl::StatusCode::kAborted, Reason::kVersionMismatch));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const int64_t version, arrays.MoveName("a", a));
  EXPECT_THAT(arrays.MoveName("a", a, version, /*validate_only=*/true), IsOk());
  EXPECT_THAT(arrays.MoveName("a", a, version + 1, /*validate_only=*/true),
              StatusIs(absl::StatusCode::kAborted, Reason::kVersionMismatch));
  EXPECT_THAT(arrays.DeleteName("a", version + 1, /*validate_only=*/true),
              StatusIs(absl::StatusCode::kAborted, Reason::kVersionMismatch));
  EXPECT_THAT(arrays.DeleteName("c", std::nullopt, /*validate_only=*/true),
              StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(arrays.DeleteName("a", std::nullopt, /*validate_only=*/true), IsOk());
  EXPECT_THAT(arrays.DescribeArray(client::ArraySelector::ByName("a")), IsOk());
}

TEST_F(ClientTest, ANameIsMovedToTheArrayThatItHasAndSwappedWithAnother) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::string a, Put("a"));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::string b, Put("b"));
  // Each call is a request of its own, as a retry after a lost answer would be.
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(client().arrays().MoveName("a", a), IsOk());
  }
  EXPECT_THAT(client().arrays().MoveName("c", a), IsOk());
  EXPECT_THAT(client().arrays().MoveName("a", b), IsOk());
  EXPECT_THAT(client().arrays().MoveName("b", a), IsOk());
  EXPECT_THAT(client().arrays().MoveName("b", a), IsOk());
  EXPECT_THAT(client().arrays().Gather(client::ArraySelector::ByName("a")), IsOk());
  EXPECT_THAT(client().arrays().Gather(client::ArraySelector::ByName("b")), IsOk());
  EXPECT_EQ(
      client().arrays().DescribeArray(client::ArraySelector::ByName("a"))->descriptor.array_id, b);
  EXPECT_EQ(
      client().arrays().DescribeArray(client::ArraySelector::ByName("b"))->descriptor.array_id, a);
}

TEST_F(ClientTest, TensorsGoThroughTheLeastMemoryForCallsThatAWorkerTakes) {
  cluster_.reset();
  ASSERT_NO_FATAL_FAILURE(StartCluster(
      {.mesh = "tp=2", .coordinator_flags = {}, .worker_flags = {"--rpc-memory=16MiB"}}));
  // Half of it for each worker, in messages of the largest size.
  std::vector<float> elements(size_t{16} << 20);
  std::iota(elements.begin(), elements.end(), 0.0F);
  const Shape shape = {4096, 4096};
  for (int i = 0; i < 2; ++i) {
    ASSERT_THAT(
        PutFloats(client(), "large", shape, elements, PartitionSpec({SpecEntry::Axis("tp")})),
        IsOk());
    SHARDMESH_ASSERT_OK_AND_ASSIGN(
        const client::GatheredTensor tensor,
        client().arrays().Gather(client::ArraySelector::ByName("large")));
    EXPECT_EQ(FloatsOf(tensor.view().bytes()), elements);
  }
}

TEST_F(ClientTest, PutsByRulesThatTakeLongToCompile) {
  const auto options_of = [](std::vector<Rule> rules) {
    return client::PutOptions{.rules = RuleSetDefinition{.rules = *RuleSet::Create(rules)}};
  };
  const std::vector<Rule> rules = {{R"(\w{60}\b)", PartitionSpec()},
                                   {R"(\w{60}\b)", PartitionSpec()},
                                   {"^w$", PartitionSpec({SpecEntry::Axis("tp")})}};
  const client::PutTensor tensor{
      .name = "w",
      .view = *TensorView::Create(
          Dtype::kF32, {4}, {reinterpret_cast<const char*>(values_.data()), 4 * sizeof(float)}),
      .spec = {},
      .cut_points = {}};
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::PutResult result,
                                 client().arrays().PutTensors({&tensor, 1}, options_of(rules)));
  EXPECT_EQ(result.arrays[0].descriptor.spec, rules[2].spec);
  EXPECT_THAT(client().arrays().PutTensors({&tensor, 1}, options_of({rules[0], rules[1]})),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(ClientTest, ReadingDoesNotEndWhatTheSessionKeeps) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::string unnamed, Put(""));
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(client().arrays().Gather(client::ArraySelector::ById(unnamed)), IsOk());
  }
}

// The last `seq` rows of a table, x times a weight, and what a reshape and a constant make of them.
Graph GraphOfAnyLength() {
  GraphBuilder builder;
  const GraphExtent seq = builder.Symbol("seq", 1, 16);
  const GraphValue x = builder.Parameter("x", Dtype::kF32, {seq, 4});
  const GraphValue bias = builder.Parameter("bias", Dtype::kF32, {seq});
  const GraphValue weight = builder.Parameter("weight", Dtype::kF32, {6, 4});
  const GraphValue table = builder.Parameter("table", Dtype::kF32, {16, 6});
  const GraphValue rows = builder.Slice(table, 0, 16 - seq, 16);
  const GraphValue sum = builder.Add(builder.Linear(x, weight), rows);
  const GraphValue biased = builder.Add(sum, builder.Reshape(bias, {-1, 1}));
  const std::vector<float> two = {1, 2};
  builder.Output("biased", biased);
  builder.Output("joined", builder.Concatenate({builder.Reshape(biased, {3 * seq, 2}),
                                                builder.Reshape(builder.Vector(two), {1, 2})},
                                               0));
  builder.Output("last", builder.Slice(biased, 0, seq - 1, seq));
  return builder.Build().value();
}

TEST_F(ClientTest, OneHandleServesAllLengths) {
  const Graph graph = GraphOfAnyLength();
  const auto numbers = [](int64_t count, float first) {
    std::vector<float> values(static_cast<size_t>(count));
    std::iota(values.begin(), values.end(), first);
    for (float& value : values) value = 1 / value;
    return values;
  };
  ASSERT_THAT(
      PutFloats(client(), "weight", {6, 4}, numbers(24, 1), PartitionSpec({SpecEntry::Axis("tp")})),
      IsOk());
  ASSERT_THAT(PutFloats(client(), "table", {16, 6}, numbers(96, 2), PartitionSpec()), IsOk());
  const std::vector<int64_t> lengths = {1, 6, 16};
  for (const int64_t length : {int64_t{1}, int64_t{6}, int64_t{16}, int64_t{17}}) {
    ASSERT_THAT(
        PutFloats(client(), StrCat("x", length), {length, 4}, numbers(4 * length, 3),
                  length % 2 == 0 ? PartitionSpec({SpecEntry::Axis("tp")}) : PartitionSpec()),
        IsOk());
    ASSERT_THAT(
        PutFloats(client(), StrCat("bias", length), {length}, numbers(length, 4), PartitionSpec()),
        IsOk());
  }
  const auto operands = [](int64_t x, int64_t bias) -> std::vector<client::Operand> {
    return {client::ArraySelector::ByName(StrCat("x", x)),
            client::ArraySelector::ByName(StrCat("bias", bias)),
            client::ArraySelector::ByName("weight"), client::ArraySelector::ByName("table")};
  };
  client::ComputeClient& compute = client().compute();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::CompiledProgram compiled,
                                 compute.Compile(graph.program, operands(6, 6)));
  ASSERT_EQ(compiled.outputs.size(), 3u);
  EXPECT_EQ(compiled.outputs[0].type, (TensorType{Dtype::kF32, {16, 6}}));
  EXPECT_EQ(compiled.outputs[1].type, (TensorType{Dtype::kF32, {49, 2}}));
  ASSERT_TRUE(compiled.shortest.has_value());
  EXPECT_EQ(compiled.shortest->length, 1);
  EXPECT_EQ(compiled.shortest->outputs[1].type, (TensorType{Dtype::kF32, {4, 2}}));
  EXPECT_LT(compiled.shortest->peak_bytes, compiled.peak_bytes);
  EXPECT_FALSE(compiled.rank_peak_bytes.empty());

  std::vector<std::vector<std::string>> expected;  // bytes of the outputs, by length
  const auto bytes_of = [](const client::StepResult& result) {
    std::vector<std::string> bytes;
    for (const client::StepOutput& output : result.outputs) bytes.push_back(output.literal->bytes);
    return bytes;
  };
  const client::OutputOptions literals = {.return_literals = true};
  for (const int64_t length : lengths) {
    SCOPED_TRACE(length);
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const Graph plain, GraphAt(graph, length));
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::CompiledProgram own,
                                   compute.Compile(plain.program, operands(length, length)));
    EXPECT_FALSE(own.shortest.has_value());
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::StepResult alone,
                                   compute.Execute(own.Call(operands(length, length), literals)));
    expected.push_back(bytes_of(alone));
    client::SeriesVerifier series(&client());
    ASSERT_THAT(series.Begin(graph.program, operands(length, length)), IsOk());
    SHARDMESH_ASSERT_OK_AND_ASSIGN(
        const client::StepVerifier verifier,
        client::StepVerifier::Create(&client(), graph.program, operands(length, length)));
    SHARDMESH_ASSERT_OK_AND_ASSIGN(
        const client::StepResult result,
        compute.Execute(compiled.Call(operands(length, length), literals)));
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::vector<client::VerifiedResult> verified,
                                   series.End(result));
    ASSERT_EQ(verified.size(), 3u);
    EXPECT_EQ(verified[1].checked, (3 * length + 1) * 2);
    EXPECT_THAT(client::CheckVerified(verified), IsOk());
    EXPECT_THAT(verifier.Verify(result), IsOk());
    client::StepResult wrong = result;
    std::swap(wrong.outputs[0], wrong.outputs[1]);
    EXPECT_THAT(verifier.Verify(wrong), StatusIs(absl::StatusCode::kDataLoss));
    wrong.outputs.clear();
    EXPECT_THAT(verifier.Verify(wrong), StatusIs(absl::StatusCode::kDataLoss));
    EXPECT_EQ(bytes_of(result), expected.back());
    EXPECT_EQ(result.outputs[2].array.descriptor.shape, (Shape{1, 6}));
  }

  // The same by a stream; the second half does not name the program.
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto stream, compute.OpenStream());
  for (size_t i = 0; i < 2 * lengths.size(); ++i) {
    const int64_t length = lengths[i % lengths.size()];
    client::ExecuteCall call = compiled.Call(operands(length, length), literals);
    if (i >= lengths.size()) call.work = "";
    EXPECT_THAT(stream->Send(call), IsOk());
  }
  stream->EndSends();
  for (size_t i = 0; i < 2 * lengths.size(); ++i) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::StreamedStep step, stream->Next());
    ASSERT_THAT(step.result, IsOk());
    EXPECT_EQ(bytes_of(*step.result),
              expected[static_cast<size_t>(step.number - 1) % lengths.size()]);
  }

  EXPECT_THAT(compute.Execute(compiled.Call(operands(17, 17))),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kShapeMismatch,
                       ::testing::HasSubstr("seq is 17; the program is for seq from 1 to 16")));
  EXPECT_THAT(compute.Execute(compiled.Call(operands(6, 16))),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kShapeMismatch,
                       ::testing::HasSubstr("so seq would be 16; by dimension 0 of operand 0 it "
                                            "is 6")));
  EXPECT_THAT(compute.Compile(graph.program, operands(17, 17)),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kShapeMismatch));
}

TEST_F(ClientTest, AProgramThatDoesNotFitAtItsLongestLengthIsRefusedWhenItIsCompiled) {
  GraphBuilder builder;
  const GraphExtent n = builder.Symbol("n", 1, int64_t{1} << 38);
  builder.Output("y", builder.Exp(builder.Parameter("x", Dtype::kF32, {n})));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Graph graph, builder.Build());
  ASSERT_THAT(Put("x"), IsOk());
  EXPECT_THAT(client().compute().Compile(graph.program, {client::ArraySelector::ByName("x")}),
              StatusIs(absl::StatusCode::kResourceExhausted, Reason::kMemoryLimit,
                       ::testing::HasSubstr("at n 274877906944: the step lacks memory")));
}

TEST_F(ClientTest, KeepsTreesAndAnswersQuestionsThatNameThem) {
  using client::EntryKind;
  const std::vector<client::TreeTensor> tensors = {
      {.name = "layers.0.wq", .shape = {8, 4}, .dtype = Dtype::kBF16},
      {.name = "layers.0.wk",
       .shape = {8},
       .dtype = Dtype::kF32,
       .axes = std::vector<AxisValue>{AxisValue::Name("__HEAD__")}},
      {.name = "scale", .shape = {}, .spec = PartitionSpec()}};
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      client::Entry entry,
      client().catalog().CreateEntry("model", client::StoredTree{.tensors = tensors}));
  EXPECT_EQ(std::get<client::StoredTree>(entry.value).tensor_count, 3);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(entry, client().catalog().GetEntry(EntryKind::kTree, "model"));
  const auto& tree = std::get<client::StoredTree>(entry.value);
  ASSERT_EQ(tree.tensors.size(), 3u);
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(tree.tensors[i].name, tensors[i].name);
    EXPECT_EQ(tree.tensors[i].shape, tensors[i].shape);
    EXPECT_EQ(tree.tensors[i].dtype, tensors[i].dtype);
    EXPECT_EQ(tree.tensors[i].axes, tensors[i].axes);
    EXPECT_EQ(tree.tensors[i].spec, tensors[i].spec);
  }
  EXPECT_EQ(tree.parameters, 32 + 8 + 1);
  EXPECT_EQ(tree.bytes, 64 + 32);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::vector<client::Entry> listed,
                                 client().catalog().ListEntries(EntryKind::kTree));
  ASSERT_EQ(listed.size(), 1u);
  EXPECT_TRUE(std::get<client::StoredTree>(listed[0].value).tensors.empty());

  const RuleSetDefinition rules = {
      .rules = *RuleSet::Create({{"wq", PartitionSpec({SpecEntry::Axis("tp")})}, {"bias", {}}})};
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const client::TreeAnswer streamed,
      client().layouts().ResolveTree({.rules = rules, .mesh = "default"}, tensors));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const client::TreeAnswer stored,
      client().layouts().ResolveTree({.rules = rules, .mesh = "default", .stored_tree = "model"},
                                     {}));
  ASSERT_EQ(stored.placements.size(), 3u);
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(stored.specs[stored.placements[i].spec_index].effective,
              streamed.specs[streamed.placements[i].spec_index].effective);
  }
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const client::LintAnswer lint,
      client().layouts().LintRules({.rules = rules, .all_stored_trees = true}, {}));
  ASSERT_EQ(lint.trees.size(), 1u);
  EXPECT_EQ(lint.trees[0].source, client::LintedTree::Source::kCatalog);
  EXPECT_EQ(lint.trees[0].name, "model");
  EXPECT_EQ(lint.trees[0].own_specs, 1);
  EXPECT_EQ(lint.trees[0].report.dead_rules, 1);
  EXPECT_EQ(lint.trees[0].report.unmatched_tensors, 0) << "wk goes by its axes, and not by rules";
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const client::DiffAnswer diff,
      client().layouts().DiffLayouts({.a = {.rules = rules, .mesh = "default"},
                                      .b = {.rules = rules, .mesh = "default"},
                                      .stored_tree = "model"},
                                     {}));
  EXPECT_EQ(diff.a.layout.tensors, 3);
  EXPECT_THAT(client().layouts().AnalyzeLayout({.mesh = "default", .stored_tree = "model"}, {}),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kMissingArgument))
      << "not every tensor brings its spec";
  EXPECT_THAT(
      client().layouts().SearchMeshes(
          {.devices = 4, .axes = {{.name = "tp"}}, .rules = rules, .stored_tree = "modle"}, {}),
      StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
  ASSERT_THAT(client().catalog().DeleteEntry(EntryKind::kTree, "model"), IsOk());
  EXPECT_THAT(client().catalog().GetEntry(EntryKind::kTree, "model"),
              StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
}

// Collectives on an 8 x 4 matrix of the numbers 0, 1, 2, ..., whose rows lie over fsdp=2, tp=2; by
// how data goes between the workers.
class CollectiveClientTest : public ClientTest, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(StartCluster(
        {.coordinator_flags = {}, .worker_flags = {StrCat("--transport=", GetParam())}}));
    std::iota(numbers_.begin(), numbers_.end(), 0.0F);
    ASSERT_THAT(PutFloats(client(), "m", {8, 4}, numbers_,
                          PartitionSpec({SpecEntry::Axes({"fsdp", "tp"})})),
                IsOk());
  }

  // The rows [begin, end) of the matrix.
  std::vector<float> Rows(size_t begin, size_t end) const {
    return {numbers_.begin() + static_cast<std::ptrdiff_t>(4 * begin),
            numbers_.begin() + static_cast<std::ptrdiff_t>(4 * end)};
  }
  static std::vector<float> Add(std::vector<float> a, const std::vector<float>& b) {
    for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
    return a;
  }
  static std::vector<float> Join(std::vector<float> a, const std::vector<float>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  }

  // The elements of what a collective makes; partial sums are summed first.
  absl::StatusOr<std::vector<float>> ElementsAfter(const client::CollectiveCall& call,
                                                   PartitionSpec* spec) {
    SHARDMESH_ASSIGN_OR_RETURN(client::StepResult result, client().compute().Collective(call));
    *spec = result.outputs[0].array.descriptor.spec;
    std::optional<std::vector<float>> added;  // the partial sums, added up here
    if (!spec->unreduced().empty()) {
      const client::ArraySelector parts =
          client::ArraySelector::ById(result.outputs[0].array.descriptor.array_id);
      EXPECT_FALSE(client().arrays().Gather(parts).ok()) << "of partial sums";
      const int64_t count = client::PartialSumCount(result.outputs[0].array.descriptor);
      for (int64_t number = 0; number < count; ++number) {
        SHARDMESH_ASSIGN_OR_RETURN(const client::GatheredTensor sum,
                                   client().arrays().GatherPartialSum(parts, number));
        const std::vector<float> elements = FloatsOf(sum.view().bytes());
        added = added.has_value() ? Add(*std::move(added), elements) : elements;
      }
      EXPECT_THAT(client().arrays().GatherPartialSum(parts, count),
                  StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
      SHARDMESH_ASSIGN_OR_RETURN(
          result, client().compute().Collective(
                      {.input = parts,
                       .kind = CollectiveKind::kAllReduce,
                       .axes = {spec->unreduced().begin(), spec->unreduced().end()}}));
    }
    SHARDMESH_ASSIGN_OR_RETURN(const client::GatheredTensor gathered,
                               client().arrays().Gather(client::ArraySelector::ById(
                                   result.outputs[0].array.descriptor.array_id)));
    std::vector<float> elements = FloatsOf(gathered.view().bytes());
    if (added.has_value()) {
      EXPECT_EQ(*added, elements);
    }
    return elements;
  }

  // Returns the products of each row of one matrix with each row of another one, of 4 columns each.
  static std::vector<float> RowProducts(const std::vector<float>& lhs,
                                        const std::vector<float>& rhs) {
    std::vector<float> products;
    for (size_t row = 0; row < lhs.size(); row += 4) {
      for (size_t other = 0; other < rhs.size(); other += 4) {
        products.push_back(std::inner_product(lhs.begin() + static_cast<ptrdiff_t>(row),
                                              lhs.begin() + static_cast<ptrdiff_t>(row + 4),
                                              rhs.begin() + static_cast<ptrdiff_t>(other), 0.0F));
      }
    }
    return products;
  }

  // What the workers have sent to each other went the way that they were told to use.
  void ExpectSentThatWay() {
    const bool is_stream = GetParam() == std::string_view("stream");
    const auto bytes_by = [](const std::map<std::string, double>& values, const char* way) {
      return values.at(StrCat("shardmesh_worker_peer_sent_bytes_total{transport=\"", way, "\"}"));
    };
    const std::vector<std::string> addresses = cluster_->metrics_addresses();
    ASSERT_EQ(addresses.size(), 5u);
    for (size_t worker = 1; worker < addresses.size(); ++worker) {
      SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto values, MetricValues(addresses[worker]));
      EXPECT_GT(bytes_by(values, is_stream ? "stream" : "shared_memory"), 0) << worker;
      EXPECT_EQ(bytes_by(values, is_stream ? "shared_memory" : "stream"), 0) << worker;
    }
  }

  std::vector<float> numbers_ = std::vector<float>(32);
};

INSTANTIATE_TEST_SUITE_P(Over, CollectiveClientTest, ::testing::Values("stream", "shm"),
                         [](const auto& param) { return std::string(param.param); });

TEST_P(CollectiveClientTest, EveryKindByEveryAlgorithmOverProcesses) {
  using Kind = CollectiveKind;
  // Of a group along tp: rows 0, 1 and 2, 3 on the one, 4, 5 and 6, 7 on the other.
  struct Case {
    client::CollectiveCall call;
    std::vector<float> expected;
    PartitionSpec spec;
  };
  const client::Operand m = client::ArraySelector::ByName("m");
  const std::vector<float> sums = Join(Add(Rows(0, 2), Rows(2, 4)), Add(Rows(4, 6), Rows(6, 8)));
  const std::vector<float> of_place_1 = Join(Rows(2, 4), Rows(6, 8));
  const std::vector<float> zeros(8);
  std::vector<float> means = sums;
  for (float& x : means) x /= 2;
  const PartitionSpec over_fsdp_alone({SpecEntry::Axis("fsdp"), SpecEntry::None()});
  const Case cases[] = {
      {{.input = m, .kind = Kind::kAllReduce, .axes = {"tp"}}, sums, over_fsdp_alone},
      {{.input = m, .kind = Kind::kAllReduce, .axes = {"tp"}, .reduction = Reduction::kMax},
       of_place_1,
       over_fsdp_alone},
      {{.input = m, .kind = Kind::kAllReduce, .axes = {"tp"}, .reduction = Reduction::kMean},
       means,
       over_fsdp_alone},
      {{.input = m, .kind = Kind::kAllGather, .axes = {"tp"}}, numbers_, over_fsdp_alone},
      {{.input = m, .kind = Kind::kReduceScatter, .axes = {"tp"}},
       sums,
       PartitionSpec({SpecEntry::Axes({"fsdp", "tp"}), SpecEntry::None()})},
      {{.input = m, .kind = Kind::kAllToAll, .axes = {"tp"}, .split_dimension = 1},
       numbers_,
       PartitionSpec({SpecEntry::Axis("fsdp"), SpecEntry::Axis("tp")})},
      {{.input = m, .kind = Kind::kBroadcast, .axes = {"tp"}, .root = 1},
       of_place_1,
       over_fsdp_alone},
      {{.input = m, .kind = Kind::kReduce, .axes = {"tp"}, .root = 1},
       sums,
       PartitionSpec({SpecEntry::Axis("fsdp"), SpecEntry::None()}, {"tp"})},
      {{.input = m, .kind = Kind::kGather, .axes = {"tp"}, .root = 1},
       numbers_,
       PartitionSpec({SpecEntry::Axis("fsdp"), SpecEntry::None()}, {"tp"})},
      {{.input = m, .kind = Kind::kScatter, .axes = {"tp"}, .root = 1},
       of_place_1,
       PartitionSpec({SpecEntry::Axes({"fsdp", "tp"}), SpecEntry::None()})},
      {{.input = m, .kind = Kind::kPermute, .axes = {"tp"}, .permutation = {{0, 1}}},
       Join(Join(zeros, Rows(0, 2)), Join(zeros, Rows(4, 6))),
       PartitionSpec({SpecEntry::Axes({"fsdp", "tp"}), SpecEntry::None()})},
      {{.input = m, .kind = Kind::kBarrier, .axes = {"fsdp", "tp"}},
       numbers_,
       PartitionSpec({SpecEntry::Axes({"fsdp", "tp"}), SpecEntry::None()})},
  };
  for (const Case& c : cases) {
    for (const CollectiveAlgorithm algorithm : AllCollectiveAlgorithms()) {
      const absl::Span<const CollectiveAlgorithm> known = AlgorithmsOf(c.call.kind);
      const bool fits = algorithm == CollectiveAlgorithm::kAuto ||
                        std::find(known.begin(), known.end(), algorithm) != known.end();
      SCOPED_TRACE(StrCat(CollectiveKindName(c.call.kind), " by ",
                          CollectiveAlgorithmName(algorithm), ", reduction ",
                          static_cast<int>(c.call.reduction)));
      client::CollectiveCall call = c.call;
      call.algorithm = algorithm;
      call.order = CollectiveOrder::kFastest;
      PartitionSpec spec;
      const absl::StatusOr<std::vector<float>> elements = ElementsAfter(call, &spec);
      if (!fits) {
        EXPECT_THAT(elements, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
        continue;
      }
      ASSERT_THAT(elements, IsOk());
      EXPECT_EQ(*elements, c.expected);
      EXPECT_EQ(spec, c.spec) << spec.ToString();
    }
  }
  ExpectSentThatWay();
}

TEST_P(CollectiveClientTest, PartsHaveAsManyRowsAsTheirCountsSay) {
  using Kind = CollectiveKind;
  const auto result_of = [&](const client::CollectiveCall& call) {
    return client().compute().Collective(call);
  };
  // m is replicated first, then in parts of 1, 2, 4 and 1 rows, then whole again.
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::StepResult whole,
                                 result_of({.input = client::ArraySelector::ByName("m"),
                                            .kind = Kind::kAllGather,
                                            .axes = {"fsdp", "tp"}}));
  const auto by_id = [](const client::StepResult& result) {
    return client::Operand(
        client::ArraySelector::ById(result.outputs[0].array.descriptor.array_id));
  };
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::StepResult parts,
                                 result_of({.input = by_id(whole),
                                            .kind = Kind::kScatter,
                                            .axes = {"fsdp", "tp"},
                                            .root = 3,
                                            .counts = {1, 2, 4, 1},
                                            .output = {.names = {"parts"}}}));
  EXPECT_EQ(parts.outputs[0].array.descriptor.cut_points,
            (std::vector<CutPoints>{{0, 1, 3, 7, 8}, {}}));
  PartitionSpec spec;
  const client::Operand by_name = client::ArraySelector::ByName("parts");
  EXPECT_THAT(
      ElementsAfter({.input = by_name, .kind = Kind::kAllGather, .axes = {"fsdp", "tp"}}, &spec),
      IsOkAndHolds(numbers_));
  EXPECT_THAT(result_of({.input = by_name, .kind = Kind::kAllReduce, .axes = {"tp"}}),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kShapeMismatch));
  EXPECT_THAT(result_of({.input = by_id(whole),
                         .kind = Kind::kScatter,
                         .axes = {"fsdp", "tp"},
                         .counts = {1, 2, 4, 2}}),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kShapeMismatch));
  EXPECT_THAT(client().compute().Matmul({.lhs = by_name, .rhs = by_name}),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kShapeMismatch));
  // Both operands have unequal rows. One comes to the other, which gives the result its columns.
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const client::StepResult product,
      client().compute().Matmul({.lhs = by_name, .rhs = by_name, .transpose_rhs = true}));
  EXPECT_EQ(product.outputs[0].array.descriptor.cut_points,
            (std::vector<CutPoints>{{}, {0, 1, 3, 7, 8}}));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::GatheredTensor gathered,
                                 client().arrays().Gather(client::ArraySelector::ById(
                                     product.outputs[0].array.descriptor.array_id)));
  EXPECT_EQ(FloatsOf(gathered.view().bytes()), RowProducts(numbers_, numbers_));
}

TEST_P(CollectiveClientTest, ADonatedOperandGoesAndANamedOneStays) {
  const auto id_of = [](const client::StepResult& result) {
    return result.outputs[0].array.descriptor.array_id;
  };
  const auto sum_of = [&](client::Operand input) {
    input.donate = true;
    return client().compute().Collective({.input = std::move(input),
                                          .kind = CollectiveKind::kAllReduce,
                                          .axes = {"fsdp", "tp"},
                                          .algorithm = CollectiveAlgorithm::kPairwise,
                                          .output = {.return_literals = true}});
  };
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::StepResult first,
                                 sum_of(client::ArraySelector::ByName("m")));
  EXPECT_THAT(client().arrays().DescribeArray(client::ArraySelector::ByName("m")), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::StepResult second,
                                 sum_of(client::ArraySelector::ById(id_of(first))));
  EXPECT_THAT(client().arrays().DescribeArray(client::ArraySelector::ById(id_of(first))),
              StatusIs(absl::StatusCode::kNotFound));
  std::vector<float> expected = Add(Add(Rows(0, 2), Rows(2, 4)), Add(Rows(4, 6), Rows(6, 8)));
  for (float& x : expected) x *= 4;
  std::vector<float> elements(expected.size());
  ASSERT_EQ(second.outputs[0].literal->bytes.size(), elements.size() * sizeof(float));
  std::memcpy(elements.data(), second.outputs[0].literal->bytes.data(),
              elements.size() * sizeof(float));
  EXPECT_EQ(elements, expected);
}

TEST_P(CollectiveClientTest, OnlyASessionThatKeepsAnArrayMayDonateIt) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const client::StepResult rows,
      client().compute().Collective({.input = client::ArraySelector::ByName("m"),
                                     .kind = CollectiveKind::kBarrier,
                                     .axes = {"tp"}}));
  const std::string id = rows.outputs[0].array.descriptor.array_id;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto other,
                                 client::MeshClient::Connect(cluster_->address()));
  client::Operand input = client::ArraySelector::ById(id);
  input.donate = true;
  EXPECT_THAT(other->compute().Collective({.input = input,
                                           .kind = CollectiveKind::kAllReduce,
                                           .axes = {"tp"},
                                           .algorithm = CollectiveAlgorithm::kPairwise}),
              StatusIs(absl::StatusCode::kPermissionDenied, Reason::kNotOwner));
  EXPECT_THAT(client().arrays().Gather(client::ArraySelector::ById(id)), IsOk());
  // What a name keeps is lent to everybody.
  client::Operand named = client::ArraySelector::ByName("m");
  named.donate = true;
  EXPECT_THAT(other->compute().Collective(
                  {.input = named, .kind = CollectiveKind::kAllReduce, .axes = {"tp"}}),
              IsOk());
  EXPECT_THAT(client().arrays().Gather(client::ArraySelector::ByName("m")), IsOk());
}

TEST_P(CollectiveClientTest, AStepThatFailsSaysWhichDonatedOperandIsGoneWithIt) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const client::StepResult rows,
      client().compute().Collective({.input = client::ArraySelector::ByName("m"),
                                     .kind = CollectiveKind::kBarrier,
                                     .axes = {"tp"}}));
  const std::string id = rows.outputs[0].array.descriptor.array_id;
  const auto failing = [&](CollectiveAlgorithm algorithm) {
    client::Operand input = client::ArraySelector::ById(id);
    input.donate = true;
    return client()
        .compute()
        .Collective({.input = std::move(input),
                     .kind = CollectiveKind::kAllReduce,
                     .axes = {"fsdp", "tp"},
                     .algorithm = algorithm,
                     .output = {.names = {"m"}, .preconditions = {999}}})
        .status();
  };
  // Which makes its result elsewhere.
  absl::Status status = failing(CollectiveAlgorithm::kDirect);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kAborted, Reason::kVersionMismatch));
  EXPECT_THAT(std::string(status.message()),
              ::testing::Not(::testing::HasSubstr("gone with the step")));
  EXPECT_THAT(client().arrays().DescribeArray(client::ArraySelector::ById(id)), IsOk());

  status = failing(CollectiveAlgorithm::kPairwise);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kAborted, Reason::kVersionMismatch));
  EXPECT_THAT(
      std::string(status.message()),
      ::testing::AllOf(::testing::HasSubstr("gone with the step"), ::testing::HasSubstr(id)));
  EXPECT_THAT(client().arrays().DescribeArray(client::ArraySelector::ById(id)),
              StatusIs(absl::StatusCode::kNotFound));
}

TEST_P(CollectiveClientTest, AStepSendsTheBytesThatItsPlanForecastsByLink) {
  // Of groups along tp, and of all four ranks: pairs along tp are in both.
  const Program program{
      .operand_count = 1,
      .ops = {CollectiveOp{.input = 0,
                           .kind = CollectiveKind::kAllGather,
                           .axes = {"tp"},
                           .algorithm = CollectiveAlgorithm::kPairwise},
              CollectiveOp{
                  .input = 1, .axes = {"fsdp", "tp"}, .algorithm = CollectiveAlgorithm::kDirect}},
      .outputs = {2}};
  const std::vector<client::Operand> operands = {client::ArraySelector::ByName("m")};
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::CompiledProgram compiled,
                                 client().compute().Compile(program, operands));
  ASSERT_TRUE(compiled.links.has_value());
  constexpr int64_t kRow = 4 * 4;
  EXPECT_EQ(compiled.links->link_count, 4 * 3);
  EXPECT_EQ(compiled.links->sent_bytes, 4 * 2 * kRow + 4 * 3 * 4 * kRow);
  ASSERT_EQ(compiled.links->busiest.size(), 12u);
  EXPECT_EQ(compiled.links->busiest[0].sender_rank, 0);
  EXPECT_EQ(compiled.links->busiest[0].receiver_rank, 1);
  EXPECT_EQ(compiled.links->busiest[0].sent_bytes, (2 + 4) * kRow);
  EXPECT_EQ(compiled.links->busiest[11].sender_rank, 3);
  EXPECT_EQ(compiled.links->busiest[11].receiver_rank, 1);
  EXPECT_EQ(compiled.links->busiest[11].sent_bytes, 4 * kRow);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const client::StepResult result,
      client().compute().Execute({.work = compiled.plan_hash, .operands = operands}));
  EXPECT_EQ(result.timings.sent_bytes, compiled.links->sent_bytes);
  ASSERT_TRUE(result.timings.predicted.has_value());
  const client::StepPrediction& predicted = *result.timings.predicted;
  EXPECT_EQ(predicted.sent_bytes, compiled.links->sent_bytes);
  EXPECT_EQ(predicted.peak_bytes, compiled.peak_bytes);
  EXPECT_EQ(predicted.collective.has_value(), compiled.exchange_time.has_value());
  EXPECT_EQ(predicted.kernel.has_value(), compiled.kernel_time.has_value());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const client::StepResult second,
      client().compute().Execute({.work = compiled.plan_hash, .operands = operands}));
  ASSERT_TRUE(second.timings.predicted.has_value());
  EXPECT_TRUE(second.timings.predicted->overhead.has_value());
}

TEST_P(CollectiveClientTest, ReshardsSendTheBytesOfTheirPlans) {
  // 64 x 64, rows over all four ranks.
  std::vector<float> numbers(64 * 64);
  std::iota(numbers.begin(), numbers.end(), 0.0F);
  const SpecEntry all = SpecEntry::Axes({"fsdp", "tp"});
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      std::string id, PutFloats(client(), "rows", {64, 64}, numbers, PartitionSpec({all})));
  constexpr int64_t kAll = 64 * 64 * 4;
  struct Case {
    ReshardOp to;
    int64_t sent_bytes;
  };
  // Each reshards the result of the one before it.
  const std::vector<Case> cases = {
      // Each rank keeps a quarter of its new columns.
      {{.spec = PartitionSpec({SpecEntry::None(), all})}, kAll * 3 / 4},
      // Back, to uneven rows. Of 1, 2, 3 and 58 rows each rank has a quarter.
      {{.spec = PartitionSpec({all}), .part_starts = {{1, 3, 6}}}, kAll * 3 / 4},
      // From there to even rows: 15 of the first 16 rows, and all but the last 16 of the next.
      {{.spec = PartitionSpec({all})}, (15 + 16 + 16) * 64 * 4},
      // Each rank has a quarter of its slice of a column pair, but for nobody's rows.
      {{.spec = PartitionSpec({SpecEntry::None(), SpecEntry::Axis("tp")})}, 4 * (64 - 16) * 32 * 4},
      {{.spec = PartitionSpec({SpecEntry::Axis("fsdp"), SpecEntry::Axis("tp")})}, 0},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(i);
    ReshardOp op = cases[i].to;
    op.input = 0;
    const Program program{.operand_count = 1, .ops = {op}, .outputs = {1}};
    const std::vector<client::Operand> operands = {client::ArraySelector::ById(id)};
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::CompiledProgram compiled,
                                   client().compute().Compile(program, operands));
    ASSERT_TRUE(compiled.links.has_value());
    EXPECT_EQ(compiled.links->sent_bytes, cases[i].sent_bytes);
    EXPECT_EQ(compiled.instructions[0].axes.empty(), cases[i].sent_bytes == 0);
    SHARDMESH_ASSERT_OK_AND_ASSIGN(
        const client::StepResult result,
        client().compute().Execute({.work = compiled.plan_hash,
                                    .operands = operands,
                                    .output = {.names = {StrCat("step-", i)}}}));
    EXPECT_EQ(result.timings.sent_bytes, cases[i].sent_bytes);
    const ArrayDescriptor& array = result.outputs[0].array.descriptor;
    EXPECT_EQ(array.cut_points.empty(), op.part_starts.empty());
    id = array.array_id;
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::GatheredTensor gathered,
                                   client().arrays().Gather(client::ArraySelector::ById(id)));
    EXPECT_EQ(FloatsOf(gathered.view().bytes()), numbers);
  }
  ExpectSentThatWay();
}

TEST_P(CollectiveClientTest, UnevenArraysAreMultipliedWhereTheyLie) {
  // m (8 x 4) in rows of 3 and 5, times a weight of 4 inputs and 6 outputs.
  std::vector<float> weight(6 * 4);
  std::iota(weight.begin(), weight.end(), 1.0F);
  ASSERT_THAT(PutFloats(client(), "weight", {6, 4}, weight, PartitionSpec()), IsOk());
  const Program program{
      .operand_count = 2,
      .ops = {ReshardOp{
                  .input = 0, .spec = PartitionSpec({SpecEntry::Axis("tp")}), .part_starts = {{3}}},
              LinearOp{.input = 2, .weight = 1}},
      .outputs = {3}};
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const client::StepResult result,
      client().compute().Execute({.work = program,
                                  .operands = {client::ArraySelector::ByName("m"),
                                               client::ArraySelector::ByName("weight")},
                                  .output = {.names = {"product"}}}));
  const ArrayDescriptor& array = result.outputs[0].array.descriptor;
  EXPECT_EQ(array.cut_points, (std::vector<CutPoints>{{0, 3, 8}, {}}));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const client::GatheredTensor gathered,
      client().arrays().Gather(client::ArraySelector::ByName("product")));
  EXPECT_EQ(FloatsOf(gathered.view().bytes()), RowProducts(numbers_, weight));
}

TEST_P(CollectiveClientTest, RefusesWhatCannotBeBeforeAnyByteMoves) {
  const client::Operand m = client::ArraySelector::ByName("m");
  const auto refusal = [&](const client::CollectiveCall& call) {
    return client().compute().Collective(call).status();
  };
  EXPECT_THAT(refusal({.input = m, .kind = CollectiveKind::kBroadcast, .axes = {"tp"}, .root = 2}),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  EXPECT_THAT(refusal({.input = m, .kind = CollectiveKind::kBroadcast, .axes = {"tp"}, .root = -1}),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  EXPECT_THAT(refusal({.input = m, .axes = {"tp"}, .algorithm = CollectiveAlgorithm::kRing}),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  EXPECT_THAT(refusal({.input = m, .axes = {"pp"}}),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kAxisNotInMesh));
  EXPECT_THAT(refusal({.input = m,
                       .kind = CollectiveKind::kPermute,
                       .axes = {"tp"},
                       .permutation = {{0, 1}, {1, 1}}}),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  PartitionSpec spec;
  EXPECT_THAT(
      ElementsAfter({.input = m, .kind = CollectiveKind::kAllGather, .axes = {"tp"}}, &spec),
      IsOkAndHolds(numbers_));
}

TEST_P(CollectiveClientTest, OperandsOfTwoMeshesAreRefusedBeforeAnyByteMoves) {
  const MeshDefinition pair = {.mesh = *Mesh::Parse("x=2"), .workers = {"worker-0", "worker-1"}};
  ASSERT_THAT(client().catalog().CreateEntry("pair", pair), IsOk());
  ASSERT_THAT(
      PutFloats(client(), "other", {8, 4}, numbers_, PartitionSpec({SpecEntry::Axis("x")}), "pair"),
      IsOk());
  const auto m = client::ArraySelector::ByName("m");
  const auto other = client::ArraySelector::ByName("other");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::Array of_default,
                                 client().arrays().DescribeArray(m));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::Array of_pair,
                                 client().arrays().DescribeArray(other));
  const Program sums{
      .operand_count = 2,
      .ops = {CollectiveOp{.input = 0, .axes = {"tp"}}, CollectiveOp{.input = 1, .axes = {"x"}}},
      .outputs = {2, 3}};
  const absl::Status refused =
      client().compute().Execute({.work = sums, .operands = {m, other}}).status();
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kMeshMismatch));
  EXPECT_THAT(std::string(refused.message()),
              ::testing::AllOf(::testing::HasSubstr(StrCat("\"default\" at revision ",
                                                           of_default.descriptor.mesh_revision)),
                               ::testing::HasSubstr(StrCat("\"pair\" at revision ",
                                                           of_pair.descriptor.mesh_revision))));

  // And no definition goes from under its arrays.
  for (const absl::Status& status :
       {client().catalog().UpdateEntry("pair", pair).status(),
        client().catalog().DeleteEntry(client::EntryKind::kMesh, "pair").status()}) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition));
    EXPECT_THAT(std::string(status.message()),
                ::testing::AllOf(::testing::HasSubstr("mesh \"pair\""),
                                 ::testing::HasSubstr("such as \"other\"")));
  }
  PartitionSpec spec;
  EXPECT_THAT(
      ElementsAfter({.input = other, .kind = CollectiveKind::kAllGather, .axes = {"x"}}, &spec),
      IsOkAndHolds(numbers_));
}

}  // namespace
}  // namespace shardmesh::test
