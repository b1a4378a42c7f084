// Collectives on the command line, and their times.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "client/arrays.h"
#include "sharding/spec.h"
#include "tensor/view.h"
#include "tests/integration/cli_fixture.h"
#include "tests/testing/read_file.h"
#include "tests/testing/test_cluster.h"

namespace shardmesh::test {
namespace {

using ::nlohmann::json;
using ::testing::AllOf;
using ::testing::FloatNear;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pointwise;
using ::testing::StartsWith;

TEST_F(ClusterCommandTest, ExchangesTiles) {
  ASSERT_THAT(cluster_->Run({"make-tensor", "--shape", "8,4", "--out", Path("a.npy")}),
              Succeeded());
  const auto collective = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "collective");
    return cluster_->Run(std::move(arguments));
  };
  const auto expect = [&](std::vector<std::string> arguments, const std::string& spec) {
    arguments.emplace_back("--verify");
    const CommandResult result = collective(std::move(arguments));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("spec " + spec));
    EXPECT_THAT(result.out, HasSubstr("\nPredicted: "));
    EXPECT_THAT(result.out, HasSubstr("\nVerified "));
  };
  expect({"scatter", Path("a.npy"), "--axes", "fsdp,tp", "--root", "3", "--as", "rows"},
         "(fsdp,tp),-, named rows");
  expect({"all-to-all", "rows", "--axes", "tp", "--split-dimension", "1"}, "fsdp,tp");
  expect({"all-gather", "rows", "--axes", "tp", "--algorithm", "ring"}, "fsdp,-");
  expect({"permute", "rows", "--axes", "fsdp,tp", "--pairs", "0:1,1:2"}, "(fsdp,tp),-");
  expect({"send", "rows", "--axes", "tp", "--from", "1", "--to", "0"}, "(fsdp,tp),-");
  expect({"reduce", "rows", "--axes", "tp", "--root=1", "--algorithm", "binomial"},
         "fsdp,- unreduced tp");
  expect({"reduce", "rows", "--axes", "tp", "--as", "partial"},
         "fsdp,- unreduced tp, named partial");
  EXPECT_THAT(
      cluster_->Run({"collective", "reduce", "rows", "--axes", "tp", "--root=1", "--verify"}).out,
      AllOf(HasSubstr("\nVerified 16 elements of partial sum 0 of output 0: "),
            HasSubstr("\nVerified 16 elements of partial sum 1 of output 0: ")));
  // Partial sums as operands, of a collective and of a product, and added up by a change of layout.
  expect({"all-reduce", "partial", "--axes", "tp"}, "fsdp,-");
  expect({"gather", "rows", "--axes", "tp", "--result-spec", "-,tp"}, "-,tp");
  const CommandResult product =
      cluster_->Run({"matmul", "partial", "partial", "--transpose-b", "--verify"});
  EXPECT_EQ(product.exit_code, 0) << product.err;
  EXPECT_THAT(product.out, HasSubstr("\nVerified 16 elements of output 0: "));
  expect({"all-reduce", "rows", "--axes", "tp", "--order", "fastest", "--algorithm", "ring"},
         "fsdp,-");
  expect({"barrier", "rows", "--axes", "tp"}, "(fsdp,tp),-");
  expect({"scatter", Path("a.npy"), "--axes", "fsdp,tp", "--counts", "1,2,4,1", "--as", "uneven"},
         "(fsdp,tp),-, named uneven");
  EXPECT_THAT(cluster_->Run({"describe", "uneven"}).out, HasSubstr("[3,7)x[0,4)"));
  ASSERT_THAT(cluster_->Run({"get", "uneven", "--out", Path("b.npy")}), Succeeded());
  EXPECT_EQ(ReadFile(Path("a.npy")), ReadFile(Path("b.npy")));

  ExpectRefused(
      {{"a root that is no place",
        {"collective", "broadcast", "rows", "--axes", "tp", "--root", "2"},
        "root 2 is no place of a group; it has the places 0 to 1"},
       {"an algorithm that the kind does not have",
        {"collective", "gather", "rows", "--axes", "tp", "--algorithm", "chain"},
        "gather has no algorithm \"chain\"; those that fit: pairwise"},
       {"a get of partial sums",
        {"get", "partial", "--out", Path("p.npy")},
        "partial holds partial sums along tp; reduce it first: `shardmesh collective all-reduce "
        "partial --axes tp --as NAME`"},
       {"no pairs", {"collective", "permute", "rows", "--axes", "tp"}, "no pairs of places"},
       {"an axis that the mesh does not have",
        {"collective", "all-reduce", "rows", "--axes", "tpp"},
        "axis 'tpp' is not in the mesh fsdp=2,tp=2; did you mean \"tp\"?"},
       {"an array that there is not",
        {"collective", "all-reduce", "rosw", "--axes", "tp"},
        "no array is named \"rosw\"; did you mean \"rows\"?"},
       {"a file in a folder that there is not",
        {"collective", "all-reduce", "rows", "--axes", "tp", "--as", "unmade", "--out",
         Path("none/a.npy")},
        "cannot create " + Path("none/a.npy") + ": No such file"},
       {"a result that was not computed", {"describe", "unmade"}, "no array is named \"unmade\""},
       {"counts that do not add up",
        {"collective", "scatter", Path("a.npy"), "--axes", "tp", "--counts", "4,5"},
        "counts 4,5 do not add up to the 8 elements that dimension 0 of a tile has"},
       {"tiles of unequal size",
        {"collective", "all-reduce", "uneven", "--axes", "tp"},
        "dimension 0 is cut at 0,1,3,7,8"}});
  const std::pair<std::vector<std::string>, std::string> wrong[] = {
      {{"permute", "rows", "--axes", "tp", "--pairs", "0-1"}, "is no pair of places, as in"},
      {{"send", "rows", "--axes", "tp", "--from", "1"}, "--to"},
      {{"send", "rows", "--axes", "tp", "--from=1", "--to=0", "--pairs", "0:1"}, "--pairs"},
      {{"broadcst", "rows", "--axes", "tp"}, "shardmesh: kind: \"broadcst\" is none of"},
      {{"broadcst", "rows", "--axes", "tp"}, "did you mean \"broadcast\"?"},
      {{"scatter", "rows", "--axes", "tp", "--counts", "4,x"}, "--counts"},
      {{"all-reduce", "rows", "--axes", "tp", "--order", "slowest"}, "reproducible, fastest"},
  };
  for (const auto& [arguments, error] : wrong) {
    const CommandResult result = collective(arguments);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr(error));
  }
  for (const std::vector<std::string>& more : {std::vector<std::string>{}, {"--plan-only"}}) {
    std::vector<std::string> arguments = {"matmul", "rows", Path("a.npy"), "--transpose-b",
                                          "--result-spec=sp,-"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const CommandResult result = cluster_->Run(arguments);
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(result.err, StartsWith("shardmesh: --result-spec: "));
    EXPECT_THAT(result.err, HasSubstr("'sp'"));
  }
  EXPECT_THAT(cluster_->Run({"rm", "rows"}), Succeeded());
  EXPECT_THAT(cluster_->Run({"rm", "uneven"}), Succeeded());
}

TEST_F(ClusterCommandTest, MultipliesBatchesOfMatrices) {
  ASSERT_THAT(cluster_->Run({"make-tensor", "--shape", "4,2,6", "--out", Path("a.npy")}),
              Succeeded());
  ASSERT_THAT(cluster_->Run({"make-tensor", "--shape", "1,2,6", "--out", Path("b.npy")}),
              Succeeded());
  ASSERT_THAT(cluster_->Run({"put", Path("a.npy"), "--as", "batch", "--spec", "fsdp,-,tp"}),
              Succeeded());
  CommandResult result =
      cluster_->Run({"matmul", "batch", Path("b.npy"), "--transpose-b", "--result-spec=tp,-,fsdp",
                     "--as", "products", "--out", Path("products.npy"), "--output", "json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json step = json::parse(result.out);
  EXPECT_EQ(step["shape"], json::parse("[4, 2, 2]"));
  const json predicted = step.value("predicted", json::object());
  EXPECT_GT(predicted.value("sent_bytes", 0), 0) << step;  // tp divides the sums
  EXPECT_GT(predicted.value("peak_bytes", 0), 0) << step;
  result = cluster_->Run({"matmul", "batch", Path("b.npy")});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("6 is contracted with 2"));
  EXPECT_THAT(cluster_->Run({"rm", "batch"}), Succeeded());
  EXPECT_THAT(cluster_->Run({"rm", "products"}), Succeeded());
}

TEST_F(ClusterCommandTest, ShowsWhatAStepWouldSendAndRunsNothing) {
  ASSERT_THAT(cluster_->Run({"make-tensor", "--shape", "8,4", "--out", Path("a.npy")}),
              Succeeded());
  ASSERT_EQ(cluster_
                ->Run({"collective", "scatter", Path("a.npy"), "--axes", "fsdp,tp", "--root", "0",
                       "--as", "rows"})
                .exit_code,
            0);
  CommandResult result =
      cluster_->Run({"collective", "all-gather", "rows", "--axes", "tp", "--algorithm", "pairwise",
                     "--plan-only", "--output", "json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json plan = json::parse(result.out);
  EXPECT_EQ(plan["plan_hash"].get<std::string>().size(), 64u);
  ASSERT_EQ(plan["instructions"].size(), 1u);
  EXPECT_EQ(plan["instructions"][0]["collective"], "all-gather");
  EXPECT_EQ(plan["instructions"][0]["algorithm"], "pairwise");
  EXPECT_EQ(plan["instructions"][0]["axes"], json::array({"tp"}));
  ASSERT_EQ(plan["traffic"].size(), 1u);
  EXPECT_EQ(plan["traffic"][0]["axes"], json::array({"tp"}));
  EXPECT_EQ(plan["traffic"][0]["collectives"], 1);
  EXPECT_EQ(plan["traffic"][0]["sent_bytes"], 32) << "two rows of four floats";
  EXPECT_EQ(plan["peak_bytes"], 64);
  EXPECT_EQ(plan["links"], json::parse(R"({"busiest": [
      {"sender_rank": 0, "receiver_rank": 1, "sent_bytes": 32},
      {"sender_rank": 1, "receiver_rank": 0, "sent_bytes": 32},
      {"sender_rank": 2, "receiver_rank": 3, "sent_bytes": 32},
      {"sender_rank": 3, "receiver_rank": 2, "sent_bytes": 32}],
      "link_count": 4, "sent_bytes": 128})"));

  result = cluster_->Run({"collective", "broadcast", "rows", "--axes", "tp", "--root", "1",
                          "--algorithm", "pairwise", "--plan-only"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("instruction"), HasSubstr("over tp"),
                                HasSubstr("Values take at most 32 B of each device at once\n"),
                                HasSubstr("busiest device sends"),
                                HasSubstr("sender  receiver  sent\n"
                                          "     1         0  32 B\n"
                                          "     3         2  32 B\n"
                                          "2 of 2 links, which carry 64 B together\n")));
  result = cluster_->Run(
      {"matmul", "rows", Path("a.npy"), "--transpose-b", "--plan-only", "--output", "json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(json::parse(result.out)["links"]["link_count"], 0) << "each rank multiplies its rows";
  result = cluster_->Run({"matmul", "rows", Path("a.npy"), "--transpose-b", "--plan-only",
                          "--result-spec=fsdp,-", "--output", "json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(json::parse(result.out)["links"]["link_count"], 4) << "pairs along tp";
  result = cluster_->Run({"matmul", "rows", Path("a.npy"), "--transpose-b", "--plan-only",
                          "--candidates", "3", "--result-spec=fsdp,-", "--output", "json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json candidates = json::parse(result.out)["candidates"];
  ASSERT_EQ(candidates.size(), 3u);
  EXPECT_THAT(candidates[0]["roles"].get<std::string>(), HasSubstr("fsdp: "));
  EXPECT_LE(candidates[0]["time_s"], candidates[1]["time_s"]);
  EXPECT_GT(candidates[0]["peak_bytes"], 0);
  EXPECT_THAT(candidates[0]["instructions"].dump(), HasSubstr("op 0 (matmul): multiply"));
  result = cluster_->Run(
      {"linear", "--input", "rows", "--weight", Path("a.npy"), "--plan-only", "--candidates", "2"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("slower by"), HasSubstr("fsdp: M, tp: M\n"),
                                HasSubstr("  op 0 (linear): multiply\n")));
  result = cluster_->Run({"matmul", "rows", Path("a.npy"), "--candidates", "2"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("--plan-only"));
  result =
      cluster_->Run({"linear", "--input", Path("a.npy"), "--weight", Path("a.npy"), "--plan-only"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("Devices send nothing to each other\n"));

  for (const char* const kept : {"--as=made", "--out=made.npy"}) {
    result = cluster_->Run({"matmul", "rows", "rows", "--plan-only", kept});
    EXPECT_EQ(result.exit_code, 2) << kept;
    EXPECT_THAT(result.err, HasSubstr("--plan-only"));
  }
  EXPECT_THAT(cluster_->Run({"ls"}).out, Not(HasSubstr("made")));
  EXPECT_THAT(cluster_->Run({"rm", "rows"}), Succeeded());
}

// Returns the elements of a .npy file of F32.
std::vector<float> FloatsOf(const std::string& path) {
  const std::string bytes = ReadFile(path);
  uint16_t header = 0;
  std::memcpy(&header, bytes.data() + 8, sizeof(header));
  const size_t start = 10 + size_t{header};
  std::vector<float> floats((bytes.size() - start) / sizeof(float));
  std::memcpy(floats.data(), bytes.data() + start, floats.size() * sizeof(float));
  return floats;
}

// Returns the path of a file with the graph sum = a + b, product = sum * wT.
std::string WriteGraph(const std::string& path) {
  return WriteFile(path, R"(# sum = a + b; product = sum * wT
      operands { name: "a" dtype: DTYPE_F32 shape: [4, 8] }
      operands { name: "b" dtype: DTYPE_F32 shape: [4, 8] }
      operands { name: "w" dtype: DTYPE_F32 shape: [6, 8] }
      ops { tensor { map { function: MAP_FUNCTION_ADD inputs: [0, 1] } } }
      ops { matmul { lhs: 3 rhs: 2 transpose_rhs: true } }
      outputs { name: "sum" value: 3 }
      outputs { name: "product" value: 4 }
  )");
}

TEST_F(ClusterCommandTest, RunsGraphs) {
  ASSERT_THAT(cluster_->Run({"make-tensor", "--shape", "4,8", "--out", Path("a.npy")}),
              Succeeded());
  ASSERT_THAT(cluster_->Run({"make-tensor", "--shape", "6,8", "--out", Path("w.npy")}),
              Succeeded());
  ASSERT_THAT(cluster_->Run({"put", Path("w.npy"), "--as", "layer/w", "--spec", "tp,-"}),
              Succeeded());
  ASSERT_THAT(cluster_->Run({"put", Path("a.npy"), "--as", "layer/b", "--spec", "-,-"}),
              Succeeded());
  const std::string graph = WriteGraph(Path("graph.txtpb"));
  const CommandResult ran =
      cluster_->Run({"run", graph, "--operand", "a=" + Path("a.npy"), "--prefix", "layer/", "--out",
                     "sum=" + Path("s.npy"), "--as", "product=p", "--mesh", "default"});
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_THAT(ran.out, AllOf(HasSubstr("product"), HasSubstr("4x6"), HasSubstr("\nPredicted: ")));
  // The product by other commands.
  ASSERT_EQ(cluster_
                ->Run({"matmul", Path("s.npy"), "layer/w", "--transpose-b", "--out",
                       Path("expected.npy")})
                .exit_code,
            0);
  ASSERT_THAT(cluster_->Run({"get", "p", "--out", Path("p.npy")}), Succeeded());
  EXPECT_THAT(FloatsOf(Path("p.npy")), Pointwise(FloatNear(1e-4F), FloatsOf(Path("expected.npy"))));

  const CommandResult plan =
      cluster_->Run({"run", graph, "--operand", "a=" + Path("a.npy"), "--operand", "b=layer/b",
                     "--operand", "w=layer/w", "--plan-only"});
  ASSERT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_THAT(plan.out, AllOf(HasSubstr("op 1 (matmul)"), HasSubstr("Values take at most"),
                              HasSubstr("Predicted: kernels")));
  const CommandResult as_json = cluster_->Run(
      {"run", graph, "--operand", "a=" + Path("a.npy"), "--prefix", "layer/", "--output", "json"});
  ASSERT_EQ(as_json.exit_code, 0) << as_json.err;
  const json answer = json::parse(as_json.out);
  EXPECT_EQ(answer["outputs"][1]["output"], "product");
  EXPECT_EQ(answer["outputs"][1]["shape"], json({4, 6}));
  EXPECT_TRUE(answer.contains("total_s"));

  // A collective without arrays, on the mesh of the flag.
  ASSERT_THAT(cluster_->Run({"catalog", "put", "mesh", "tiny",
                             WriteFile(Path("tiny.yaml"), "axes: [{name: sp, size: 2}]\n")}),
              Succeeded());
  const std::string exchange = WriteFile(Path("exchange.txtpb"), R"(
      operands { name: "x" dtype: DTYPE_F32 shape: [4, 8] }
      ops { collective { input: 0 kind: COLLECTIVE_KIND_ALL_REDUCE axes: "sp" } }
      outputs { name: "y" value: 1 })");
  const CommandResult exchanged = cluster_->Run(
      {"run", exchange, "--operand", "x=" + Path("a.npy"), "--mesh", "tiny", "--verify"});
  EXPECT_EQ(exchanged.exit_code, 0) << exchanged.err;
  EXPECT_THAT(exchanged.out, HasSubstr("\nVerified 32 elements of output 0: "));

  // The same file for any number of rows.
  const std::string any = WriteFile(Path("any.txtpb"), R"(
      symbol { name: "rows" min: 1 max: 64 }
      operands { name: "x" dtype: DTYPE_F32 shape: [0, 8] symbolic_shape { index: 0 } }
      ops { tensor { slice { input: 0 starts: [0, 0] limits: [0, 8]
                             symbolic_starts { index: 0 offset: -1 }
                             symbolic_limits { index: 0 } } } }
      outputs { name: "last" value: 1 })");
  const CommandResult last = cluster_->Run(
      {"run", any, "--operand", "x=layer/w", "--out", "last=" + Path("last.npy"), "--verify"});
  ASSERT_EQ(last.exit_code, 0) << last.err;
  EXPECT_THAT(last.out, HasSubstr("The graph takes rows from 1 to 64\n"));
  const CommandResult range =
      cluster_->Run({"run", any, "--operand", "x=" + Path("a.npy"), "--plan-only"});
  ASSERT_EQ(range.exit_code, 0) << range.err;
  EXPECT_THAT(range.out, AllOf(HasSubstr("rows from 1 to 64; above for 64"),
                               HasSubstr("For 1: values take at most")));
}

TEST_F(ClusterCommandTest, VerifiesAndTracesSteps) {
  for (const auto& [file, shape] : std::vector<std::pair<std::string, std::string>>{
           {"a.npy", "4,8"}, {"w.npy", "6,8"}, {"k.npy", "2,8"}}) {
    ASSERT_THAT(cluster_->Run({"make-tensor", "--shape", shape, "--out", Path(file)}), Succeeded());
  }
  ASSERT_THAT(cluster_->Run({"put", Path("w.npy"), "--as", "w", "--spec", "-,tp"}), Succeeded());
  ASSERT_THAT(cluster_->Run({"put", Path("a.npy"), "--as", "b", "--spec", "-,-"}), Succeeded());

  // Sampled elements of one product, whose sums go over tp.
  const CommandResult product =
      cluster_->Run({"matmul", Path("a.npy"), "w", "--transpose-b", "--verify", "--verify-samples",
                     "6", "--trace", Path("product.json")});
  ASSERT_EQ(product.exit_code, 0) << product.err;
  EXPECT_THAT(product.out, AllOf(HasSubstr("\nVerified 6 elements of output 0: the largest error "),
                                 HasSubstr("\nTimeline of 4 ranks: ")));
  const json timeline = json::parse(ReadFile(Path("product.json")));
  std::map<std::string, int> kinds;
  std::map<int, int> ranks;
  for (const json& event : timeline["traceEvents"]) {
    if (event["ph"] != "X") continue;
    ++kinds[event["cat"].get<std::string>()];
    ++ranks[event["pid"].get<int>()];
    EXPECT_GE(event["ts"].get<double>(), 0.0);
  }
  EXPECT_EQ(ranks.size(), 4u);
  EXPECT_GE(kinds["instruction"], 8) << "each rank multiplies and adds up";
  EXPECT_GE(kinds["kernel"], 4);
  EXPECT_GE(kinds["send"], 4);

  // A layer of two parts, recomputed as a whole.
  const CommandResult layer = cluster_->Run({"linear",
                                             "--input",
                                             "b",
                                             "--weight",
                                             "w",
                                             "--weight",
                                             Path("k.npy"),
                                             "--activation",
                                             "gelu",
                                             "--dtype",
                                             "BF16",
                                             "--axis",
                                             "tp",
                                             "--method",
                                             "all-gather",
                                             "--verify",
                                             "--verify-samples",
                                             "5",
                                             "--trace",
                                             Path("layer.json"),
                                             "--output",
                                             "json"});
  ASSERT_EQ(layer.exit_code, 0) << layer.err;
  const json verified = json::parse(layer.out)["verified"];
  ASSERT_EQ(verified.size(), 2u) << layer.out;
  EXPECT_EQ(verified[0]["checked"], 24);
  EXPECT_EQ(verified[1]["checked"], 8);
  EXPECT_EQ(verified[1]["outside"], 0);
  EXPECT_GT(json::parse(layer.out)["trace"]["spans"], 0);

  const CommandResult graph =
      cluster_->Run({"run", WriteGraph(Path("graph.txtpb")), "--operand", "a=" + Path("a.npy"),
                     "--operand", "b=b", "--operand", "w=w", "--verify", "--verify-samples", "9",
                     "--trace", Path("graph.json")});
  ASSERT_EQ(graph.exit_code, 0) << graph.err;
  EXPECT_THAT(graph.out, AllOf(HasSubstr("\nVerified 32 elements of output 0: "),
                               HasSubstr("\nVerified 24 elements of output 1: ")));
  const CommandResult sum = cluster_->Run({"collective", "all-reduce", "b", "--axes", "tp",
                                           "--trace", Path("sum.json"), "--output", "json"});
  ASSERT_EQ(sum.exit_code, 0) << sum.err;
  EXPECT_EQ(json::parse(sum.out)["trace"]["path"], Path("sum.json"));
  EXPECT_EQ(json::parse(sum.out)["trace"]["missing_ranks"], 0);

  ExpectRefused({{"a timeline in a folder that there is not",
                  {"matmul", Path("a.npy"), "w", "--transpose-b", "--trace", Path("no/t.json")},
                  "no/t.json"}});
  EXPECT_EQ(cluster_->Run({"matmul", "b", "w", "--verify-samples", "3"}).exit_code, 2);
  EXPECT_EQ(cluster_->Run({"matmul", "b", "w", "--verify", "--plan-only"}).exit_code, 2);
}

TEST_F(ClusterCommandTest, RefusesGraphsThatDoNotFit) {
  ASSERT_THAT(cluster_->Run({"make-tensor", "--shape", "4,8", "--out", Path("a.npy")}),
              Succeeded());
  const std::string graph = WriteGraph(Path("graph.txtpb"));
  const std::string cyclic = WriteFile(Path("cyclic.txtpb"),
                                       R"(operands { name: "a" dtype: DTYPE_F32 shape: 4 }
         ops { tensor { map { function: MAP_FUNCTION_ADD inputs: [0, 2] } } }
         ops { tensor { map { function: MAP_FUNCTION_EXP inputs: [1] } } }
         outputs { name: "y" value: 2 })");
  const std::string mistyped = WriteFile(Path("mistyped.txtpb"), "operands {}\noperand {}");
  const std::string large = WriteFile(Path("large.txtpb"), "");
  std::filesystem::resize_file(large, (uint64_t{256} << 20) + 1);
  ExpectRefused(
      {{"an operand that is missing",
        {"run", graph, "--operand", "a=" + Path("a.npy")},
        "nothing is given for 2 of the graph's 3 operands: \"b\" F32 (4, 8), \"w\" F32 (6, 8)"},
       {"an operand that the graph lacks",
        {"run", graph, "--operand", "A=" + Path("a.npy")},
        "--operand: the graph has no operand \"A\"; did you mean \"a\"?"},
       {"an output that the graph lacks",
        {"run", graph, "--prefix", "", "--as", "products=p"},
        "--as: the graph has no output \"products\"; did you mean \"product\"?"},
       {"a file of another shape",
        {"run", graph, "--operand", "w=" + Path("a.npy"), "--prefix", ""},
        "operand \"w\" is F32 (6, 8); F32 (4, 8) is given"},
       {"an array that there is not",
        {"run", graph, "--prefix", "none/"},
        "no array is named \"none/a\""},
       {"a cycle",
        {"run", cyclic, "--prefix", ""},
        "op 0 (add) depends on itself: op 0 (add) reads op 1 (exp), which reads op 0 (add)"},
       {"a field that graphs lack",
        {"run", mistyped},
        "mistyped.txtpb: not a graph in protobuf's "
        "text format: line 2, column "},
       {"a file that there is not", {"run", Path("none.txtpb")}, "none.txtpb"},
       {"a file that is too large", {"run", large}, "a graph has at most 268435456"}});
  const std::pair<std::vector<std::string>, std::string> wrong[] = {
      {{"run"}, "GRAPH"},
      {{"run", graph, "--operand", "a"}, "--operand: \"a\" is not NAME=ARRAY or NAME=FILE.npy"},
      {{"run", graph, "--operand", "a=x", "--operand", "a=y"}, "--operand: \"a\" is given twice"},
      {{"run", graph, "--out", "sum=s.txt"}, "--out: run writes .npy files; name it s.npy"},
      {{"run", graph, "--as", "sum=s@1"}, "--as: "},
      {{"run", graph, "--out", "product=s.npy", "--out", "sum=s.npy"},
       "--out: the outputs \"product\" and \"sum\" both get \"s.npy\""},
      {{"run", graph, "--as", "product=s", "--as", "sum=s"},
       "--as: the outputs \"product\" and \"sum\" both get \"s\""},
      {{"run", graph, "--as", "sum=s", "--plan-only"}, "--plan-only"},
      {{"run", graph, "--operands", "a=x"}, "--operand"},
  };
  for (const auto& [arguments, error] : wrong) {
    const CommandResult result = cluster_->Run(arguments);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_THAT(result.err, HasSubstr(error));
  }
}

TEST_F(ClusterCommandTest, ComputesLinearLayers) {
  ASSERT_THAT(cluster_->Run({"make-tensor", "--shape", "4,16", "--out", Path("x.npy")}),
              Succeeded());
  ASSERT_THAT(cluster_->Run({"make-tensor", "--shape", "8,16", "--out", Path("w.npy")}),
              Succeeded());
  ASSERT_THAT(cluster_->Run({"make-tensor", "--shape", "2,16", "--out", Path("k.npy")}),
              Succeeded());
  const auto linear = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"linear", "--input", Path("x.npy")});
    return cluster_->Run(arguments);
  };
  // The same product with the scale as a number, and by the rule: 1 / sqrt(16).
  ASSERT_EQ(
      linear({"--weight", Path("w.npy"), "--scale", "0.25", "--out", Path("y.npy")}).exit_code, 0);
  const std::vector<float> expected = FloatsOf(Path("y.npy"));
  const auto near = [&] { return Pointwise(FloatNear(1e-4F), expected); };
  ASSERT_EQ(
      linear({"--weight", Path("w.npy"), "--scale", "fan_in", "--out", Path("f.npy")}).exit_code,
      0);
  EXPECT_THAT(FloatsOf(Path("f.npy")), near());
  const CommandResult scattered =
      linear({"--weight", Path("w.npy"), "--scale=fan_in", "--axis", "tp", "--method",
              "reduce-scatter", "--out", Path("s.npy")});
  ASSERT_EQ(scattered.exit_code, 0) << scattered.err;
  EXPECT_THAT(scattered.out, HasSubstr("spec -,tp"));
  EXPECT_THAT(FloatsOf(Path("s.npy")), near());
  const CommandResult whole =
      linear({"--weight", Path("w.npy"), "--scale=fan_in", "--axis", "tp", "--method",
              "reduce-scatter", "--reduce-output", "--out", Path("r.npy")});
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  EXPECT_THAT(whole.out, Not(HasSubstr("tp")));
  EXPECT_THAT(FloatsOf(Path("r.npy")), near());
  EXPECT_THAT(cluster_
                  ->Run({"linear", "--input", Path("x.npy"), "--weight", Path("w.npy"), "--axis",
                         "tp", "--direction", "column", "--reduce-scatter-output"})
                  .out,
              HasSubstr("spec -,tp"));

  // Two weights, and the parts of a merged one.
  const CommandResult two = linear({"--weight", Path("w.npy"), "--weight", Path("k.npy"), "--as",
                                    "q", "--as", "k", "--scale=fan_in"});
  ASSERT_EQ(two.exit_code, 0) << two.err;
  ASSERT_THAT(cluster_->Run({"get", "q", "--out", Path("q.npy")}), Succeeded());
  EXPECT_THAT(FloatsOf(Path("q.npy")), near());
  const CommandResult parts =
      linear({"--weight", Path("w.npy"), "--scale=fan_in", "--out-features", "6,2", "--out",
              Path("a.npy"), "--out", Path("b.npy"), "--output", "json"});
  ASSERT_EQ(parts.exit_code, 0) << parts.err;
  EXPECT_EQ(json::parse(parts.out)["parts"][0]["shape"], json({4, 6}));
  const std::vector<float> first = FloatsOf(Path("a.npy"));
  ASSERT_EQ(first.size(), 24u);
  EXPECT_NEAR(first[6], expected[8], 1e-4);  // the first element of row 1
  const CommandResult interleaved =
      linear({"--weight", Path("w.npy"), "--scale=fan_in", "--out-features", "6,2", "--shards", "2",
              "--out", Path("c.npy"), "--out", Path("d.npy")});
  ASSERT_EQ(interleaved.exit_code, 0) << interleaved.err;
  EXPECT_NEAR(FloatsOf(Path("c.npy"))[3], expected[4], 1e-4);  // the second shard begins at 4
  EXPECT_NEAR(FloatsOf(Path("d.npy"))[0], expected[3], 1e-4);

  const CommandResult rounded =
      cluster_->Run({"linear", "--input", Path("x.npy"), "--weight", Path("w.npy"), "--dtype",
                     "BF16", "--param-dtype", "BF16", "--output", "json"});
  ASSERT_EQ(rounded.exit_code, 0) << rounded.err;
  EXPECT_EQ(json::parse(rounded.out)["dtype"], "BF16");
  EXPECT_THAT(
      linear({"--weight", Path("w.npy"), "--axis", "tp", "--method", "all-gather", "--verify"}),
      Succeeded())
      << "files alone, on the mesh `default`";
  const CommandResult plan =
      linear({"--weight", Path("w.npy"), "--axis", "tp", "--method", "all-gather", "--plan-only"});
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_THAT(plan.out, HasSubstr("(linear)"));

  // A weight of I8, whose output features lie on the ranks of an axis, with its scales.
  std::string elements;
  std::vector<float> scales;
  for (int i = 0; i < 8 * 16; ++i) elements.push_back(static_cast<char>(i * 5 % 255 - 127));
  for (int i = 0; i < 8; ++i) scales.push_back(0.01F * static_cast<float>(i + 1));
  const absl::Span<const char> scale_bytes(reinterpret_cast<const char*>(scales.data()),
                                           scales.size() * sizeof(float));
  const std::vector<client::PutTensor> tensors = {
      {.name = "w8",
       .view = *TensorView::Create(Dtype::kI8, {8, 16}, elements),
       .spec = PartitionSpec({SpecEntry::Axis("tp")})},
      {.name = "w8.scale",
       .view = *TensorView::Create(Dtype::kF32, {8}, scale_bytes),
       .spec = PartitionSpec()}};
  ASSERT_THAT(cluster_->client().arrays().PutTensors(tensors), IsOk());
  const CommandResult scaled = linear({"--weight=w8", "--scales=w8.scale", "--out", Path("q.npy"),
                                       "--verify", "--verify-samples=32"});
  ASSERT_EQ(scaled.exit_code, 0) << scaled.err;
  EXPECT_THAT(scaled.out, HasSubstr("\nVerified 32 elements of output 0: "));
  const std::vector<float> x = FloatsOf(Path("x.npy"));
  std::vector<float> products;
  for (size_t i = 0; i < 4 * 8; ++i) {
    float sum = 0;
    for (size_t k = 0; k < 16; ++k) {
      sum += x[i / 8 * 16 + k] *
             static_cast<float>(static_cast<signed char>(elements[i % 8 * 16 + k]));
    }
    products.push_back(sum * scales[i % 8]);
  }
  EXPECT_THAT(FloatsOf(Path("q.npy")), Pointwise(FloatNear(1e-3F), products));
  EXPECT_THAT(cluster_->Run({"linear", "--input", Path("x.npy"), "--weight=w8", "--scales=w8.scale",
                             "--plan-only"}),
              Succeeded());
  // The same in a layer with settings: the columns of both halves, as separate results.
  const CommandResult halves =
      linear({"--weight=w8", "--scales=w8.scale", "--axis=tp", "--method=all-gather",
              "--out-features=4,4", "--out", Path("q0.npy"), "--out", Path("q1.npy"), "--verify"});
  ASSERT_EQ(halves.exit_code, 0) << halves.err;
  for (const size_t half : {0U, 1U}) {
    std::vector<float> columns;
    for (size_t row = 0; row < 4; ++row) {
      const auto begin = products.begin() + static_cast<std::ptrdiff_t>(row * 8 + half * 4);
      columns.insert(columns.end(), begin, begin + 4);
    }
    EXPECT_THAT(FloatsOf(Path(StrCat("q", half, ".npy"))), Pointwise(FloatNear(1e-3F), columns));
  }
  // Each of several weights has its scales.
  const CommandResult both =
      linear({"--weight=w8", "--scales=w8.scale", "--weight=w8", "--scales=w8.scale", "--out",
              Path("q2.npy"), "--out", Path("q3.npy"), "--verify"});
  ASSERT_EQ(both.exit_code, 0) << both.err;
  EXPECT_THAT(both.out, HasSubstr("\nVerified 32 elements of output 1: "));
  EXPECT_THAT(FloatsOf(Path("q3.npy")), Pointwise(FloatNear(1e-3F), products));
  EXPECT_EQ(linear({"--weight=w8", "--scales=w8.scale", "--weight=w8"}).exit_code, 2);
}

TEST_F(ClusterCommandTest, RefusesLinearLayersThatDoNotFit) {
  ASSERT_THAT(cluster_->Run({"make-tensor", "--shape", "4,16", "--out", Path("x.npy")}),
              Succeeded());
  const std::string x = "--input=" + Path("x.npy");
  const std::string w = "--weight=" + Path("x.npy");
  ExpectRefused(
      {{"parts that do not sum",
        {"linear", x, w, "--out-features", "2,1"},
        "out_features 2,1 sum to 3; the weight has 4 output features"},
       {"shards that do not divide",
        {"linear", x, w, "--out-features", "3,1", "--shards", "2"},
        "2 shards do not divide"},
       {"an axis that the mesh lacks",
        {"linear", x, w, "--axis", "tpp", "--method", "all-gather"},
        "tpp"},
       {"both outputs",
        {"linear", x, w, "--axis=tp", "--reduce-output", "--reduce-scatter-output"},
        "set only one of them"},
       {"a type that layers lack", {"linear", x, w, "--dtype", "I32"}, "(UNSUPPORTED_DTYPE)"}});
  // The plans of a layer that is parallel along an axis, and of one with two weights.
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{"--axis", "tp", "--method", "all-gather"}, {w}}) {
    std::vector<std::string> arguments = {"linear",       x,   w,          "--plan-only",
                                          "--candidates", "3", "--output", "json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const CommandResult plans = cluster_->Run(arguments);
    ASSERT_EQ(plans.exit_code, 0) << plans.err;
    const json candidates = json::parse(plans.out)["candidates"];
    ASSERT_GE(candidates.size(), 1u);
    EXPECT_LE(candidates.size(), 3u);
    EXPECT_GT(candidates[0]["peak_bytes"], 0);
    const std::string roles = candidates[0]["roles"];
    EXPECT_THAT(roles, HasSubstr("tp: "));
    EXPECT_EQ(roles.find("; op ") != std::string::npos, more.size() == 1) << roles;
  }
  const std::pair<std::vector<std::string>, std::string> wrong[] = {
      {{"--method", "all-gather"}, "--axis"},
      {{"--axis", "tp", "--method", "all-gathr"}, "did you mean \"all-gather\"?"},
      {{"--axis", "tp", "--direction", "rows"}, "did you mean \"row\"?"},
      {{"--scale", "nan"}, "\"nan\" is not a number"},
      {{"--scale", "-1e39"}, "\"-1e39\" is not a number"},
      {{"--scale", "fan_inn"}, "did you mean \"fan_in\"?"},
      {{"--out-features", "2,x"}, "--out-features"},
      {{"--out-features", "0"}, "--out-features"},
      {{"--shards", "0"}, "--shards"},
      {{"--dtype", "F31"}, "--dtype"},
      {{"--as", "a", "--as", "b"}, "--as is given 2 times; the layer has 1 result"},
      {{"--weight", "w", "--as", "a", "--as", "a"}, "--as: \"a\" is given twice"},
      {{"--weight", "w", "--out", "a.npy", "--out", "a.npy"}, "--out: \"a.npy\" is given twice"},
      {{"--weight", "w", "--bias", "b"}, "--bias is given 1 time; the layer has 2 weights"},
      {{"--out", "y.txt"}, "linear writes .npy files; name it y.npy"},
      {{"--reduce-scater-output", "--axis", "tp"}, "--reduce-scatter-output"},
  };
  for (const auto& [more, error] : wrong) {
    std::vector<std::string> arguments = {"linear", x, w};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const CommandResult result = cluster_->Run(arguments);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_THAT(result.err, HasSubstr(error));
  }
}

TEST_F(ClusterCommandTest, TimesCollectivesAndChecksTheirResults) {
  const CommandResult result =
      cluster_->Run({"bench", "collectives", "--sizes", "100000", "--calls", "5", "--algorithms",
                     "auto,ring", "--output", "json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  std::map<std::string, int> rows;  // by op
  for (const json& row : json::parse(result.out)) {
    SCOPED_TRACE(row.dump());
    ++rows[row["op"]];
    EXPECT_EQ(row["system"], "shardmesh");
    EXPECT_EQ(row["calls"], 5);
    EXPECT_EQ(row["right"], true);
    EXPECT_GT(row["p50_us"], 0);
    EXPECT_GE(row["p99_us"], row["p50_us"]);
    EXPECT_NE(row["algorithm"], "auto");
  }
  const std::map<std::string, int> expected = {{"all-reduce", 2},     {"all-gather", 2},
                                               {"reduce-scatter", 2}, {"all-to-all", 1},
                                               {"broadcast", 1},      {"barrier", 1}};
  EXPECT_EQ(rows, expected);
  EXPECT_THAT(cluster_->Run({"ls"}).out, Not(HasSubstr("array-")));

  const CommandResult table = cluster_->Run(
      {"bench", "collectives", "--ops", "all-reduce", "--sizes", "1KiB", "--calls", "5"});
  EXPECT_EQ(table.exit_code, 0) << table.err;
  EXPECT_THAT(table.out, AllOf(HasSubstr("alg/s"), HasSubstr("bus/s"), HasSubstr("right")));
  const CommandResult unknown = cluster_->Run({"bench", "collectives", "--mesh", "nope"});
  EXPECT_EQ(unknown.exit_code, 1);
  EXPECT_THAT(unknown.err, HasSubstr("there is no mesh named \"nope\""));
  EXPECT_THAT(cluster_->Run({"bench", "collectives", "--axes", "dpp"}).err, HasSubstr("dpp"));
}

}  // namespace
}  // namespace shardmesh::test
