// Collectives on the command line, and their times.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/integration/cli_fixture.h"
#include "tests/testing/read_file.h"
#include "tests/testing/test_cluster.h"

namespace shardmesh::test {
namespace {

using ::nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST_F(ClusterCommandTest, ExchangesTiles) {
  ASSERT_EQ(cluster_->Run({"make-tensor", "--shape", "8,4", "--out", Path("a.npy")}).exit_code, 0);
  const auto collective = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "collective");
    return cluster_->Run(std::move(arguments));
  };
  const auto expect = [&](std::vector<std::string> arguments, const std::string& spec) {
    const CommandResult result = collective(std::move(arguments));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("spec " + spec));
    EXPECT_THAT(result.out, HasSubstr("\nPredicted: "));
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
  expect({"all-reduce", "rows", "--axes", "tp", "--order", "fastest", "--algorithm", "ring"},
         "fsdp,-");
  expect({"barrier", "rows", "--axes", "tp"}, "(fsdp,tp),-");
  expect({"scatter", Path("a.npy"), "--axes", "fsdp,tp", "--counts", "1,2,4,1", "--as", "uneven"},
         "(fsdp,tp),-, named uneven");
  EXPECT_THAT(cluster_->Run({"describe", "uneven"}).out, HasSubstr("[3,7)x[0,4)"));
  ASSERT_EQ(cluster_->Run({"get", "uneven", "--out", Path("b.npy")}).exit_code, 0);
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
  EXPECT_EQ(cluster_->Run({"rm", "rows"}).exit_code, 0);
  EXPECT_EQ(cluster_->Run({"rm", "uneven"}).exit_code, 0);
}

TEST_F(ClusterCommandTest, MultipliesBatchesOfMatrices) {
  ASSERT_EQ(cluster_->Run({"make-tensor", "--shape", "4,2,6", "--out", Path("a.npy")}).exit_code,
            0);
  ASSERT_EQ(cluster_->Run({"make-tensor", "--shape", "1,2,6", "--out", Path("b.npy")}).exit_code,
            0);
  ASSERT_EQ(cluster_->Run({"put", Path("a.npy"), "--as", "batch", "--spec", "fsdp,-,tp"}).exit_code,
            0);
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
  EXPECT_EQ(cluster_->Run({"rm", "batch"}).exit_code, 0);
  EXPECT_EQ(cluster_->Run({"rm", "products"}).exit_code, 0);
}

TEST_F(ClusterCommandTest, ShowsWhatAStepWouldSendAndRunsNothing) {
  ASSERT_EQ(cluster_->Run({"make-tensor", "--shape", "8,4", "--out", Path("a.npy")}).exit_code, 0);
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
  EXPECT_EQ(cluster_->Run({"rm", "rows"}).exit_code, 0);
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
